"""Every registered algorithm gives the same result under every exact defence, whoever drops out, and when."""

from __future__ import annotations

from itertools import combinations, product
from typing import Any

import numpy as np
import pytest

from securefed import Federation, InProcessTransport, LossyTransport, Public, chain
from securefed import _catalogue as catalogue
from securefed.defenses import Defense, Identities, grouped, secure_aggregation, threshold_paillier
from securefed.defenses._fixed_point import Quantise
from securefed.defenses._homomorphic import InsecurePaillier, insecure_deal
from securefed.testing._algorithm_checks import assert_same_run, is_lost, largest_rounding, run_with_losses
from tests.combinations import REPRESENTATIVES, of_each_family, quick, sampled
from tests.contract.settings import CLIENTS, SETTINGS, data, make

PINNED = Identities.generate(CLIENTS)
EXACT: dict[str, Defense] = {
    "secure_aggregation": chain(secure_aggregation()),
    "secure_aggregation, in every way": chain(secure_aggregation(identities=PINNED, pipelined=True, verify=True)),
    "secure_aggregation, in one group": chain(grouped(secure_aggregation(), groups=1, aggregator="mean")),
    "paillier": chain(InsecurePaillier(bits=512)),
    "paillier_threshold": chain(threshold_paillier(keys=insecure_deal(3, CLIENTS))),
}
QUANTISED = chain(Quantise())
NAMES = catalogue.algorithms.names
PARTS = 16
"""Runs over which the (stage, subset) combinations are spread."""


def test_the_registry_is_not_empty_and_the_battery_covers_it() -> None:
    assert len(NAMES) >= 8
    assert set(NAMES) == set(SETTINGS)
    exact = {entry.name for entry in catalogue.defenses if entry.details["exact"] == "yes"}
    assert exact == {name for name in EXACT if "," not in name} | {"plain", "quantise"}  # the two are compared with


@pytest.mark.parametrize(("name", "defense"), sampled(NAMES, EXACT))
def test_every_round_sums_within_the_plan_and_the_run_is_bit_identical(name: str, defense: str) -> None:
    assert largest_rounding(make(name), EXACT[defense]) > 0  # rounding did happen: the bound was put to the test


def schedules(stages: tuple[str, ...]) -> list[tuple[str, tuple[int, ...]]]:
    """All (stage, subset) combinations, in an order in which each part has exchanges with losses and void ones."""
    every = [(s, c) for s in stages for k in range(CLIENTS + 1) for c in combinations(range(CLIENTS), k)]
    order = np.random.default_rng(45).permutation(len(every))
    return [every[i] for i in order]


def parts() -> list[Any]:
    """All runs; `make test` makes a few of the representatives', and one of each combination sampled of the others.

    The representatives together meet each (stage, subset) once, half of them as lost requests and half as lost replies.
    """
    kept = quick(list(product(NAMES, ["requests", "replies"])))
    turn = {row: k % PARTS for k, row in enumerate(kept)}
    rows = list(product(NAMES, ["requests", "replies"], range(PARTS)))
    chosen = [row for row in rows if turn.get(row[:2]) == row[2] or in_turn(row)]
    return [pytest.param(*row, marks=() if row in chosen else pytest.mark.exhaustive) for row in rows]


def in_turn(row: tuple[str, str, int]) -> bool:
    """Whether `make test` makes this run of a representative: even parts lose requests, odd parts replies."""
    name, lose, part = row
    return name == list(REPRESENTATIVES)[part % 3] and lose == ("requests", "replies")[part % 2]


@pytest.mark.parametrize(("name", "lose", "part"), parts())
def test_clients_lost_at_every_stage_in_every_subset(name: str, lose: str, part: int) -> None:
    """One run that meets each (stage, subset) of its part once, against a plain run with the same survivors."""
    stages = EXACT["secure_aggregation"].plan(make(name).layout(Public.of(data())), CLIENTS).stages
    assert len(stages) == 4
    result = run_with_losses(make(name), data(), schedules(stages)[part::PARTS], lose)
    assert any(len(record.survivors) < CLIENTS for record in result.transcript.records)
    assert any(entry.void for entry in result.history)


@pytest.mark.parametrize(("name", "defense"), of_each_family(NAMES, ["paillier", "paillier_threshold"]))
def test_dropouts_under_paillier(name: str, defense: str) -> None:
    plan = [("upload", (0,)), ("upload", (1, 3)), ("upload", ()), ("upload", (4,))]

    def lossy(endpoints: Any) -> LossyTransport:
        return LossyTransport(InProcessTransport(endpoints), replies=lambda message: is_lost(plan, message))

    ours = Federation(make(name), data(), EXACT[defense], seed=5, transport=lossy).run(4)
    theirs = Federation(make(name), data(), QUANTISED, seed=5, transport=lossy).run(4)
    assert {len(r.survivors) for r in ours.transcript.records} == {3, 4, 5}
    assert_same_run(ours, theirs)


def test_the_battery_sees_a_wrong_sum() -> None:
    """Positive control: one unit in one entry of one round is noticed."""
    ours = Federation(make("pca/ssi"), data(), QUANTISED, seed=3).run(2)
    theirs = Federation(make("pca/ssi"), data(), QUANTISED, seed=3).run(2)
    theirs.transcript.records[1].encoded["product"][0, 0] += 1  # type: ignore[index]
    with pytest.raises(AssertionError):
        assert_same_run(ours, theirs)
