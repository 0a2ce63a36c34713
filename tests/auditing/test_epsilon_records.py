"""Record-level privacy keeps its epsilon, of linear messages and of DP-SGD; planted bugs are flagged."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from torch import nn

from securefed import Dataset, audit_records, chain
from securefed.algorithms import SSI, PrivateFedAvg, record_level
from securefed.algorithms._private.record_level import RecordLevel
from securefed.defenses import clip, discrete_gaussian, gaussian, records, secure_aggregation, skellam
from securefed.errors import ConfigError, PlanError
from securefed.problems import TorchModule
from tests.auditing.test_epsilon_noise import DELTA, SURE, WeakCentral
from tests.combinations import first_ones

ROWS = 16
FAR = 100 * np.eye(ROWS)
"""Rows of 16 features, far beyond any clip, each in a direction of its own."""
WHOLE = SSI(rank=ROWS)
"""Its basis holds every direction, so that a record moves a message as far as it may."""


class Unclipped(RecordLevel):
    """Declares what a clipped record moves, and clips none."""

    def enroll(self, data, public, rng):
        return self.algorithm.enroll(data, public, rng)


class HalfDeclared(RecordLevel):
    """Declares a tenth of what a record moves."""

    def layout(self, public):
        found = super().layout(public)
        return replace(found, specs=tuple(replace(s, sensitivity=s.sensitivity / 10) for s in found.specs))


@pytest.mark.parametrize("noise", first_ones([skellam(2.0), gaussian(2.0), discrete_gaussian(2.0)]), ids=str)
def test_records_of_a_linear_message_are_as_private_as_planned(noise) -> None:
    found = audit_records(
        record_level(WHOLE, 1.0), chain(records(), noise, secure_aggregation()), Dataset(FAR), DELTA, **SURE
    )
    assert not found.flagged
    assert found.claimed > 1


NEAR = 3 * np.eye(ROWS)
"""Thrice the norm moves a message nine times as far."""
PLANTED = {
    "weak noise": (record_level(WHOLE, 1.0), chain(records(), WeakCentral(2.0)), FAR),
    "no clip": (Unclipped(WHOLE, 1.0), chain(records(), gaussian(2.0)), NEAR),
    "a tenth declared": (HalfDeclared(WHOLE, 1.0), chain(records(), gaussian(2.0)), FAR),
    # messages far beyond their bound are cut to it
    "no clip behind a bound": (Unclipped(WHOLE, 1.0), chain(records(), gaussian(2.0), secure_aggregation()), FAR),
}


@pytest.mark.parametrize("bug", first_ones(PLANTED))
def test_planted_bugs_of_linear_messages_are_flagged(bug: str) -> None:
    algorithm, defense, rows = PLANTED[bug]
    assert audit_records(algorithm, defense, Dataset(rows), DELTA, **SURE).violated


# DP-SGD

LINEAR = TorchModule(
    module=partial(nn.Linear, ROWS, 1, bias=False),
    criterion="squared_error",
    compared_with="responses",
    precision="float64",
)
REGRESSION = Dataset(FAR, np.ones((ROWS, 1)))
MANY = Dataset(np.tile(FAR, (4, 1)), np.ones((4 * ROWS, 1)))


class WeakNoise(PrivateFedAvg):
    """A tenth of the noise that is counted."""

    def _engaged(self, *given):
        module, optimizer, loader = super()._engaged(*given)
        optimizer.noise_multiplier /= 10
        return module, optimizer, loader


class LooseClip(PrivateFedAvg):
    """Gradients of ten times the clip beside the noise of the clip."""

    def _engaged(self, *given):
        module, optimizer, loader = super()._engaged(*given)
        optimizer.max_grad_norm *= 10
        optimizer.noise_multiplier /= 10
        return module, optimizer, loader


def private(kind=PrivateFedAvg, **settings) -> PrivateFedAvg:
    return kind(**{"problem": LINEAR, "local_steps": 1, "batch_size": None, "noise_multiplier": 2.0} | settings)


def audited(algorithm, data=REGRESSION, claimed=None, **fewer):
    epsilon = algorithm.per_round(data.rows) if claimed is None else claimed
    silent = replace(algorithm, noise_multiplier=1e-12)
    return audit_records(algorithm, chain(), data, algorithm.delta, silent=silent, claimed=epsilon, **(SURE | fewer))


@pytest.mark.exhaustive
def test_a_row_of_dp_sgd_is_as_private_as_accounted_for_and_bugs_are_flagged() -> None:
    assert not audited(private()).flagged
    assert audited(private(WeakNoise)).violated
    assert audited(private(LooseClip)).violated


DRAWN = private(noise_multiplier=0.4, batch_size=1, delta=0.3)
"""At delta .3 a row that is drawn with probability 1 / 64 is hidden by that alone, under noise that hides none."""


def test_rows_that_are_not_drawn_as_accounted_for_are_flagged() -> None:
    claimed = DRAWN.per_round(MANY.rows)
    assert claimed < 0.02
    # mu is 2.5: of 200 runs counted each way a tenth is told wrongly, and up to a fifth would be flagged
    assert audited(replace(DRAWN, batch_size=None), MANY, claimed, runs=400).violated


@pytest.mark.exhaustive
def test_rows_that_are_drawn_as_accounted_for_are_not_flagged() -> None:
    assert not audited(DRAWN, MANY).flagged


def test_what_has_no_epsilon_or_too_few_rows_is_refused() -> None:
    with pytest.raises(PlanError, match="no epsilon"):
        audit_records(WHOLE, chain(clip(1.0)), Dataset(FAR), DELTA)
    with pytest.raises(ConfigError, match="8 rows"):
        audit_records(WHOLE, chain(clip(1.0), gaussian(1.0)), Dataset(FAR[:4]), DELTA)
