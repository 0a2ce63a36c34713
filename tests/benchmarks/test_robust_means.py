"""The benchmark of robust means estimates as a run under masks does, and finds a liar harmless where it is claimed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchmarks.peers.robust_means import CLIENTS, LIES, LOST, ClearGroups, accuracy, federation
from securefed import Dataset
from securefed.defenses import Defense, Identities, chain, grouped, quantise, secure_aggregation
from securefed.defenses._grouped_sums.robust import ESTIMATORS

DATA = [Dataset(np.random.default_rng(i).uniform(0, 1, (5, 3)), np.arange(5) % 2) for i in range(CLIENTS)]
PINNED = Identities.generate(CLIENTS)


@pytest.mark.parametrize("name", ["mean", *ESTIMATORS])
def test_sums_of_groups_in_the_clear_give_the_masked_run_bit_for_bit(name: Any) -> None:
    groups = grouped(secure_aggregation(identities=PINNED), groups=5, aggregator=name)
    masked = federation(DATA, chain(groups), 1).run(1).output
    clear = federation(DATA, Defense((quantise(),), ClearGroups(groups)), 1).run(1).output
    for name_, value in masked.items():
        np.testing.assert_array_equal(clear[name_], value)


@pytest.mark.parametrize("name", ESTIMATORS)
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in range(1, 10))])
def test_a_liar_at_ten_times_its_bound_leaves_the_accuracy_of_a_run_without_its_group(name: Any, seed: int) -> None:
    """Control: it ruins the plain mean."""
    assert abs(accuracy(seed, "iid", name, LIES[0], 3) - accuracy(seed, "iid", name, LOST, 3)) <= 0.01
    if seed == 0:
        assert accuracy(seed, "iid", "mean", LIES[0], 3) < accuracy(seed, "iid", "mean", "", 3) - 0.2


@pytest.mark.parametrize("lie", LIES[1:])
def test_a_lie_within_the_bounds_is_counted(lie: str) -> None:
    """So that what the benchmark measures of it is not a group that was left out."""
    groups = grouped(secure_aggregation(identities=PINNED), groups=5)
    honest = ClearGroups(groups)
    results = [
        federation(DATA, Defense((quantise(),), defense), 1).run(1)
        for defense in (honest, replace(honest, lie=lie), replace(honest, lie=LOST))
    ]
    assert [len(result.history[0].survivors) for result in results] == [CLIENTS, CLIENTS, CLIENTS - 4]
    assert np.abs(results[0].output["weight"] - results[1].output["weight"]).max() > 0
