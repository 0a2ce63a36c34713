"""Groups side by side leave the process's own settings as they were."""

from __future__ import annotations

import sys
import threading

import pytest

from securefed.algorithms._optimization import parallel
from securefed.algorithms._optimization.parallel import SWITCH_SECONDS, side_by_side


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "threads", lambda: 2)


@pytest.mark.usefixtures("two")
def test_results_come_in_order() -> None:
    assert side_by_side(lambda x: x**2, range(7)) == [x**2 for x in range(7)]


@pytest.mark.usefixtures("two")
@pytest.mark.parametrize("before", [5e-3, 1e-4])
def test_the_switch_interval_is_shorter_meanwhile_and_put_back(before: float) -> None:
    usual = sys.getswitchinterval()
    sys.setswitchinterval(before)
    try:
        during = side_by_side(lambda _: sys.getswitchinterval(), range(2))
        assert during == pytest.approx([min(before, SWITCH_SECONDS)] * 2, rel=0.02)  # kept in whole microseconds
        assert sys.getswitchinterval() == pytest.approx(before, rel=0.02)
        with pytest.raises(ZeroDivisionError):
            side_by_side(lambda x: 1 / x, [0, 0])
        assert sys.getswitchinterval() == pytest.approx(before, rel=0.02)
    finally:
        sys.setswitchinterval(usual)


@pytest.mark.usefixtures("two")
def test_what_overlaps_puts_back_what_was_before_all() -> None:
    usual = sys.getswitchinterval()
    inside, done = threading.Event(), threading.Event()

    def wait(_: int) -> None:
        inside.set()
        assert done.wait(60)

    first = threading.Thread(target=side_by_side, args=(wait, range(2)))
    first.start()
    assert inside.wait(60)
    side_by_side(abs, range(2))  # starts later, ends sooner
    assert sys.getswitchinterval() == pytest.approx(SWITCH_SECONDS)
    second = threading.Thread(target=side_by_side, args=(lambda _: None, range(2)))
    done.set()
    second.start()
    first.join()
    second.join()
    assert sys.getswitchinterval() == pytest.approx(usual)
