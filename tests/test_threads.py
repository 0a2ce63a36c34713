"""State that a process has once is changed by one thread at a time, and comes back as it was.

Threads change places as often as Python lets them.
"""

from __future__ import annotations

import random
import sys
import threading
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_info

from securefed._auditing.advice import search
from securefed._auditing.engine.worker_processes import run_all
from securefed._auditing.own.global_seed import global_seed
from securefed._registry import Registry
from securefed.algorithms._private import dp_fedavg
from securefed.problems import TorchModule
from tests.threads import THREADS, at_once, hasty

__all__ = ["hasty"]  # a fixture


def test_a_registry_is_complete_for_a_thread_that_looks_while_another_one_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = Registry[Any]("thing", built_in="things_of_a_test")
    source = "def fill():\n    pass\nimport sys\nsys.modules['things_in_a_test_are'].register()\n"
    (tmp_path / "things_of_a_test.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    second: list[Any] = []
    looking = threading.Thread(target=lambda: second.append(registry.names))

    class Filling:
        @staticmethod
        def register() -> None:
            registry.register("one", dict, summary="", source="")
            looking.start()
            looking.join(0.2)  # it may look meanwhile, and must wait for the end of the import
            registry.register("two", dict, summary="", source="")

    monkeypatch.setitem(sys.modules, "things_in_a_test_are", Filling)  # type: ignore[arg-type]
    try:
        assert registry.names == ("one", "two")
        looking.join()
        assert second == [("one", "two")]
    finally:
        sys.modules.pop("things_of_a_test", None)


def test_global_seeds_in_threads_give_what_they_give_alone() -> None:
    def draws(number: int) -> list[float]:
        out = []
        for seed in range(30):
            with global_seed(100 * number + seed):
                for _ in range(3):
                    drawn = random.random(), np.random.random(), torch.rand(1).item()  # noqa: NPY002, S311
                    out.extend(drawn)
        return out

    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()  # noqa: NPY002
    alone = [draws(number) for number in range(THREADS)]
    assert at_once(draws) == alone
    after = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()  # noqa: NPY002
    assert before[:2] == after[:2]
    assert torch.equal(before[2], after[2])


def test_a_step_with_a_seed_and_a_module_that_is_built_do_not_share_their_draws() -> None:
    """Both set torch's generator: one thread repeats a seeded step, the others build modules."""

    def work(number: int) -> set[float]:
        found = set()
        for _ in range(100):
            if number:
                TorchModule(module=lambda: torch.nn.Linear(2, 1))
            else:
                with global_seed(1):
                    drawn = torch.rand(1).item()
                    time.sleep(0)  # another thread's turn
                    found.add(drawn + torch.rand(1).item())
        return found

    assert len(at_once(work)[0]) == 1


def test_the_filters_of_warnings_come_back_as_they_were() -> None:
    entered, left = threading.Event(), threading.Event()

    def overlap() -> None:
        with dp_fedavg._quiet():
            entered.set()
            assert left.wait(60)

    before, other = list(warnings.filters), threading.Thread(target=overlap)
    with dp_fedavg._quiet():
        other.start()
        entered.wait(0.2)  # it may enter meanwhile, and must wait
    left.set()
    other.join()
    assert warnings.filters == before


def test_a_thread_keeps_its_search_while_another_one_asks_something_else() -> None:
    @dataclass
    class Question:
        number: int

        def search(self) -> int:
            return self.number

        def __eq__(self, other: object) -> bool:
            """Compare, while another thread asks another question."""
            thread = threading.Thread(target=search._search_of, args=(Question(2),))
            thread.start()
            thread.join()
            return isinstance(other, Question) and other.number == self.number

        def __hash__(self) -> int:
            return self.number

    for _ in range(2):
        assert search._search_of(Question(1)) == 1  # type: ignore[arg-type, comparison-overlap]


def test_tasks_that_run_in_this_process_leave_its_number_of_threads_as_it_was() -> None:
    def limits() -> dict[str, int]:
        return {found["filepath"]: found["num_threads"] for found in threadpool_info()}

    inside: list[int] = []

    def run(_: int) -> None:
        for _ in range(10):
            run_all([0], 1, lambda task: inside.extend(limits().values()), lambda task, outcome: None)

    before = limits()
    at_once(run)
    assert set(inside) == {1}
    assert limits() == before
