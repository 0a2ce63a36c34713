"""Runs whose clients check every training sum: honest ones are as without the check, a lying server is refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from securefed import Aggregate, Dataset, Federation, InProcessTransport, LossyTransport, RunOptions, Seal, chain
from securefed import _catalogue as catalogue
from securefed.defenses import secure_aggregation
from securefed.defenses._secure_aggregation import SecureAggregation
from securefed.errors import RoundVoid
from tests.combinations import first_ones

RNG = np.random.default_rng(4)


def data(clients: int = 4) -> list[Dataset]:
    return [Dataset(RNG.standard_normal((12, 4)), np.arange(12) % 2) for _ in range(clients)]


DATA = data()


def method() -> Any:
    return catalogue.algorithms.make("optimization/fedavg", learning_rate=0.1)


def output(federation: Federation, rounds: int = 4, **kwargs: Any) -> dict[str, Any]:
    return dict(federation.run(rounds, **kwargs).output)


def same(left: Mapping[str, Any], right: Mapping[str, Any]) -> bool:
    return all(np.array_equal(left[name], right[name]) for name in right)


@dataclass(frozen=True)
class Lying(SecureAggregation):
    """A server that adds `by` to an entry of the sum of exchange `at`, in what it uses and in what it announces."""

    by: int = 1
    at: int = 1
    name: ClassVar[str] = "lying"

    def server_step(self, state: Any, replies: Any) -> Any:
        step = super().server_step(state, replies)
        if not isinstance(step, Aggregate) or state.session.round != self.at:
            return step
        total = {name: value.copy() for name, value in step.total.items()}
        first = next(iter(total.values())).reshape(-1)
        first[0] += np.int64(self.by)
        return replace(step, total=total)


@pytest.mark.parametrize("pipelined", [False, True])
def test_a_checked_run_is_the_run_without_the_check(pipelined: bool) -> None:
    def lossy(endpoints: Any) -> Any:
        return LossyTransport(
            InProcessTransport(endpoints), replies=lambda m: m.sender == m.round % 4 and m.stage in ("upload", "unmask")
        )

    runs = [
        output(
            Federation(method(), DATA, chain(secure_aggregation(verify=verify, pipelined=pipelined)), transport=lossy),
            evaluate_every=2,
        )
        for verify in (True, False)
    ]
    assert same(*runs)


@pytest.mark.parametrize("by", first_ones([1, 2**31, 2**32, -(2**32)], 2))
def test_a_lying_server_is_refused_by_every_client_it_counted(by: int) -> None:
    """Altered by one unit, half the ring and multiples of it. Positive control: without the check it gets away."""
    honest = output(Federation(method(), DATA, chain(secure_aggregation())))
    deceived = Federation(method(), DATA, chain(Lying(by=by)))
    assert not same(output(deceived), honest)
    checked = Federation(method(), DATA, chain(Lying(verify=True, by=by)), options=RunOptions(max_void=2))
    with pytest.raises(RoundVoid, match=r"SumRefused: .*announced sum is not that of the contributions"):
        checked.run(4)
    assert len(checked.history) == 2  # the round whose sum was altered, and no further one
    assert all(node.state.tentative_round == 1 for node in checked.nodes.values())  # none committed it
    never = Federation(method(), DATA, chain(Lying(verify=True, by=by, at=99)))
    assert same(output(never), honest)


def test_the_last_sum_is_checked_when_the_run_ends() -> None:
    result = Federation(method(), DATA, chain(Lying(verify=True, at=3))).run(4)
    assert result.uncommitted == (0, 1, 2, 3)
    assert Federation(method(), DATA, chain(Lying(verify=True, at=99))).run(4).uncommitted == ()


def test_a_server_that_announces_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SecureAggregation, "announce", lambda *_: {})
    with pytest.raises(RoundVoid, match="announced sum's field"):
        Federation(method(), DATA, chain(secure_aggregation(verify=True)), options=RunOptions(max_void=2)).run(3)


def test_a_resumed_run_checks_the_sum_that_was_not_checked_yet(tmp_path: Path) -> None:
    for by, path in ((0, tmp_path / "honest"), (1, tmp_path / "lying")):
        sealed = Seal(bytes(range(32)))
        arguments: dict[str, Any] = {
            "options": RunOptions(checkpoint=path, checkpoint_every=1, max_void=2, seal=sealed)
        }

        def dies(entry: Any) -> None:
            if entry.round == 1:
                raise KeyboardInterrupt

        defense = chain(Lying(verify=True, by=by))
        with pytest.raises(KeyboardInterrupt):
            Federation(method(), DATA, defense, **arguments).run(4, progress=dies)
        resumed = Federation(method(), DATA, defense, **arguments)
        if by:
            with pytest.raises(RoundVoid, match="SumRefused"):
                resumed.run(4)
        else:
            assert same(output(resumed), output(Federation(method(), DATA, chain(secure_aggregation()))))
