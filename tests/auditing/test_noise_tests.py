"""Tests of the noise itself keep their level on noise as planned, and flag noise with a fault at every seed."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from securefed import Dataset, audit_noise, audit_records
from securefed._auditing.differential_privacy.noise_tests import MOST, Noise, odd_noise, size_bound
from securefed._auditing.gate.planted_noise import (
    ChangedGaussian,
    CutGaussian,
    HalfGaussian,
    ReusedGaussian,
    SharedDeviate,
)
from securefed._auditing.gate.self_check import check_noise
from securefed.algorithms import SSI, record_level
from securefed.defenses import (
    chain,
    clip,
    discrete_gaussian,
    gaussian,
    local_gaussian,
    records,
    secure_aggregation,
    skellam,
)
from securefed.defenses._differential_privacy import CentralGaussian
from tests.combinations import first_ones

DELTA = 1e-5
SURE = 1 - 1e-9
SIZES = [(200, 4), (40, 12), (1000, 1), (60, MOST)]


def normal(seed: int, shape: tuple[int, int]) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).normal(size=shape)


def noise(entries: np.ndarray) -> Noise:
    return Noise(entries, (0, entries.shape[1]))


@pytest.mark.parametrize("shape", first_ones([(size,) for size in SIZES], 2))
def test_noise_as_planned_is_flagged_as_seldom_as_they_say(shape) -> None:
    """At a risk of .2 each, of 200 games at most 40 are expected; 60 lie 3.5 standard errors (5.7) above."""
    games = [noise(normal(seed, shape)) for seed in range(200)]
    assert 20 <= sum(size_bound(game, 0.2) < 1 for game in games) <= 60  # exact: no wider than it has to be
    assert 1 <= sum(bool(list(odd_noise(game, 0.2))) for game in games) <= 60


@pytest.mark.parametrize("step", [0.02, 0.5, 1.0])
def test_noise_on_a_grid_is_not_odd(step) -> None:
    """The grid adds step^2 / 12 to the variance, and takes nothing from it."""
    for seed in range(10):
        grid = np.round(normal(seed, (1000, 4)) / step) * step
        assert not list(odd_noise(noise(grid), 1e-6))
        assert size_bound(noise(grid), 1e-6) > 1


def _neighbours(x: np.ndarray) -> np.ndarray:
    return np.column_stack([x[:, :1], 0.4 * x[:, :-1] + 0.84**0.5 * x[:, 1:]])


ODD = {
    "one deviate": (lambda x: np.repeat(x[:, :1], 4, axis=1), "two entries of an exchange share noise"),
    "neighbours": (_neighbours, "two entries of an exchange share noise"),
    "opposite entries": (lambda x: np.column_stack([x[:, :2], -x[:, :2]]), "two entries of an exchange share noise"),
    "reused at once": (lambda x: np.repeat(x[::2], 2, axis=0), "exchanges that lie 1 apart share noise"),
    "reused later": (lambda x: np.tile(x[:50], (20, 1)), "exchanges that lie 50 apart share noise"),
    "one for all": (lambda x: np.repeat(x[:1], 1000, axis=0), "or the same in every exchange"),
    "cut": (lambda x: np.clip(x, -2, 2), "0 entries lie beyond 2.02 planned deviations"),
    "uniform": (lambda x: np.sign(x) * np.random.default_rng(3).uniform(0, 3**0.5, x.shape), "entries"),
    "none in every second": (lambda x: np.where(np.arange(len(x))[:, None] % 2, x * 2**0.5, 0.01 * x), "not normal"),
}


@pytest.mark.parametrize("name", ODD)
def test_noise_with_a_fault_is_flagged_at_every_seed(name) -> None:
    """At a risk of 1e-6, so that it is the fault that is flagged."""
    change, says = ODD[name]
    for seed in range(10):
        entries = normal(seed, (1000, 4))
        assert not list(odd_noise(noise(entries), 1e-6))
        assert any(says in fault for fault in odd_noise(noise(change(entries)), 1e-6))


def test_the_quietest_tensor_counts_and_a_long_message_is_sampled() -> None:
    entries = normal(0, (200, 6))
    entries[:, 4:] *= 0.5
    assert 0.4 < size_bound(Noise(entries, (0, 4, 6)), 1e-6) < 0.65
    long = Noise.of(2 * normal(1, (20, 1000)), [np.full(700, 2.0), np.full(300, 2.0)])
    assert long.entries.shape == (20, MOST) and long.tensors[-1] == MOST and 128 < long.tensors[1] < MOST
    assert 0.9 < np.std(long.entries) < 1.1


@dataclass(frozen=True)
class Smaller(CentralGaussian):
    """A share of the noise that the plan counts."""

    share: float = 1.0

    def release(self, total, plan):
        assert plan.privacy is not None
        smaller = replace(plan.privacy, noise_multiplier=plan.privacy.noise_multiplier * self.share)
        return super().release(total, replace(plan, privacy=smaller))


class Neighbours(ChangedGaussian):
    """Every entry shares half of its noise with the one before."""

    def changed(self, noise, deviation):
        return (noise + np.roll(noise, 1)) / 2**0.5


DOORS = ("audit_noise", "audit_records")


def audited(door: str, made: CentralGaussian, confidence: float = SURE, runs: int = 0):
    if door == "audit_noise":
        return audit_noise(chain(clip(1.0), made, secure_aggregation()), DELTA, runs=runs or 300, confidence=confidence)
    rows = Dataset(100 * np.eye(8))
    defense = chain(records(), made, secure_aggregation())
    return audit_records(record_level(SSI(rank=8), 1.0), defense, rows, DELTA, runs=runs or 60, confidence=confidence)


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("multiplier", first_ones([1.0, 4.0]))
@pytest.mark.parametrize("kind", [SharedDeviate, CutGaussian, ReusedGaussian, HalfGaussian, Neighbours])
def test_both_audits_flag_noise_with_a_fault(door, kind, multiplier) -> None:
    assert audited(door, kind(multiplier)).violated


@pytest.mark.parametrize("door", DOORS)
def test_both_audits_flag_nine_tenths_of_the_noise(door) -> None:
    """Of 8000 or 3840 entries the deviation has a standard error of .0071 or .0103: its bound is .94 on average."""
    runs = {"audit_noise": 2000, "audit_records": 60}[door]
    assert audited(door, Smaller(1.0, share=0.9), 1 - 1e-6, runs).violated


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(
    "made", first_ones([gaussian(1.0), skellam(2.0), gaussian(4.0), discrete_gaussian(1.0)], 2), ids=str
)
def test_neither_audit_flags_noise_as_planned(door, made) -> None:
    found = audited(door, made)
    assert not found.flagged and found.deviation >= 1 and found.tradeoff <= found.claimed


def test_local_noise_as_planned_is_not_flagged() -> None:
    assert not audited("audit_noise", local_gaussian(2.0)).flagged


@pytest.mark.exhaustive
def test_the_self_check_judges_its_planted_noise_alike_every_time() -> None:
    assert all(item.right for _ in range(2) for item in check_noise())
