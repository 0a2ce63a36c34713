"""Central noise is a rounded normal deviate, drawn exactly: every cell of its grid is reached, with its probability."""

from __future__ import annotations

import math
from decimal import Decimal

import mpmath
import numpy as np
import pytest
from scipy.stats import kstest

from securefed import Array, Layout, TensorSpec, chain
from securefed._sampling.rejection import rejection_sampler
from securefed._sampling.rounded_normal import RoundedNormal, rounded_normal_draws
from securefed.defenses import clip, gaussian, sensitivity
from securefed.defenses._differential_privacy.gaussian import _grid
from securefed.errors import ConfigError, PlanError
from tests.combinations import first_ones
from tests.seeded_stream import SeededStream

DEVIATION = 1.4 * 2.0**30
"""In steps of the grid: a usual one."""


# Reachability


def box_muller(count: int, uniforms: Array) -> Array:
    """The sampler that central noise once came from: pairs of normal deviates from uniforms of 53 bits."""
    radius = np.sqrt(-2 * np.log(uniforms[:count] + 2.0**-53))
    angle = 2 * np.pi * uniforms[count:]
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)])


def made_by_box_muller(cells: Array) -> Array:
    """Whether any uniforms give these pairs of grid cells (2, n); an adversary sees both deviates of a pair.

    The first uniform is k 2^-53, and the pair's radius is sqrt(-2 log(k 2^-53)) deviations: cells that no such circle
    crosses are not made. The angle's 2^53 steps leave no gap. Rounding moves k by less than 1e-6 where k < 2^27.
    """
    near = np.maximum(np.abs(cells) - 0.5, 0) / DEVIATION
    far = (np.abs(cells) + 0.5) / DEVIATION
    least, most = (2.0**53 * np.exp(-np.square(edge).sum(axis=0) / 2) for edge in (far, near))
    return np.asarray(np.floor(most + 1e-6) >= np.ceil(least - 1e-6))


class Scripted:
    """Words that propose given integers to the sampler of `DEVIATION`, and accept whatever has any probability."""

    def __init__(self, cells: Array) -> None:
        bits = rejection_sampler(RoundedNormal(DEVIATION)).block_bits
        distance = np.where(cells < 0, ~cells, cells)
        sign, place = (cells < 0).astype(np.uint64), (distance & ((1 << bits) - 1)).astype(np.uint64)
        zeros = (distance >> bits).astype(np.uint64)  # as many zero bits before the first one say the block
        self._words = (sign << np.uint64(63)) | (place << np.uint64(32)) | (np.uint64(1) << zeros)

    def words(self, count: int) -> Array:
        if count == 1:  # further bits of a uniform number that is to be as small as can be
            return np.zeros(1, np.uint64)
        places, heights = np.resize(self._words, count // 2), np.zeros(count // 2, np.uint64)
        return np.concatenate([places, heights])


def reached(cells: Array) -> bool:
    """Whether some words make the sampler draw exactly these cells."""
    return np.array_equal(rounded_normal_draws(DEVIATION, cells.size, Scripted(cells)), cells)


def far_pairs(count: int = 4000) -> Array:
    """Cells (2, n) that pairs of normal deviates beyond six standard deviations fall into."""
    rng = np.random.default_rng(3)
    radius, angle = np.sqrt(36 + 2 * rng.exponential(size=count)), rng.uniform(0, 2 * np.pi, count)
    return np.rint(DEVIATION * radius * np.stack([np.cos(angle), np.sin(angle)])).astype(np.int64)


def test_every_cell_beyond_six_deviations_is_reached_and_the_old_sampler_is_found_to_miss_most() -> None:
    cells = far_pairs()
    assert reached(cells.reshape(-1))
    # The control. What Box and Muller's pairs fall into is found to be made by them, and few of the cells above are.
    uniforms = np.random.default_rng(4).random(8000)
    uniforms[:4000] *= math.exp(-18)
    theirs = np.rint(DEVIATION * box_muller(4000, np.floor(uniforms * 2**53) * 2.0**-53)).astype(np.int64)
    assert made_by_box_muller(theirs).all()
    assert reached(theirs.reshape(-1))
    assert made_by_box_muller(cells).mean() < 0.5
    near = np.random.default_rng(5).normal(size=(2, 4000)) * DEVIATION
    assert made_by_box_muller(np.rint(near)).all()  # where everybody falls nothing could be seen


@pytest.mark.parametrize(
    ("deviations", "row"), [(0.0, 20_000), (5.8, 20_000), (8.57, 5000), (8.6, 5000), (12.0, 100), (20.0, 20)]
)
def test_no_cell_is_left_out_in_a_row_of_them_nor_is_a_tail_cut(deviations: float, row: int) -> None:
    """8.57 is where uniforms of 53 bits end; at 20 a cell has a probability of 2^-320."""
    first = int(deviations * DEVIATION)
    for sign in (1, -1):
        assert reached(sign * np.arange(first, first + row))


# The law


@pytest.mark.parametrize("deviation", [2.0**12, 5000.3, DEVIATION, 2.0**32])
@pytest.mark.parametrize("away", [0.001, 0.5, 3.0, 9.0])
def test_ratios_are_those_of_the_normal_integral_over_a_cell(deviation: float, away: float) -> None:
    distribution, x = RoundedNormal(deviation), int(away * deviation)
    with mpmath.workdps(80):
        variance = mpmath.mpf(deviation) ** 2
        mass = [mpmath.quad(lambda t: mpmath.exp(-t * t / (2 * variance)), [c - 0.5, c + 0.5]) for c in (x, 0)]
        exact = Decimal(mpmath.nstr(mass[0] / mass[1], 60))
    assert abs(distribution.ratio(x, 30) / exact - 1) < Decimal(10) ** -30
    found = float(distribution.log_ratio(np.array([x]))[0])
    assert abs(Decimal(found) - exact.ln()) <= Decimal(2.0**-40 * (1 + abs(found)) / 10)
    point = (-(Decimal(x) ** 2) / (2 * Decimal(deviation) ** 2)).exp()  # of the discrete Gaussian, which is another law
    assert x < 4000 or abs(point / exact - 1) > Decimal(10) ** -30


@pytest.mark.parametrize("deviation", first_ones([DEVIATION, 2.0**12]))
def test_draws_are_normal_and_independent(deviation: float) -> None:
    """Kolmogorov's test at 1e-9 and six standard errors; 5 % more or less deviation is told apart."""
    drawn = rounded_normal_draws(deviation, 400_001, SeededStream(7)) / deviation
    for factor, right in ((1.0, True), (0.95, False), (1.05, False)):
        assert bool(kstest(drawn / factor, "norm").pvalue > 1e-9) is right
    for left, right in ((drawn[:-1], drawn[1:]), (drawn[:200_000], drawn[200_001:])):
        for change in (lambda x: x, np.square):
            assert abs(np.corrcoef(change(left), change(right))[0, 1]) < 6 / math.sqrt(left.size)
    assert rounded_normal_draws(deviation, 0, SeededStream(7)).shape == (0,)


@pytest.mark.parametrize("deviation", [0.0, 2.0**11, 2.0**33, math.nan, math.inf])
def test_grids_too_coarse_or_too_fine_are_refused(deviation: float) -> None:
    with pytest.raises(ConfigError, match="grid"):
        RoundedNormal(deviation)


# In the mechanism


@pytest.mark.parametrize("noise", [0.01, 0.7, 40.0])
@pytest.mark.parametrize("clients", [3, 2**14])
def test_a_release_lies_on_the_grid_that_the_sensitivity_has_a_step_of(noise: float, clients: int) -> None:
    entries, rng = 1000, np.random.default_rng(0)
    defense = chain(clip(0.3), gaussian(noise))
    plan = defense.plan(Layout((TensorSpec("x", (entries,)),)), clients)
    grid = _grid(plan, plan.privacy)
    assert math.frexp(grid)[0] == 0.5
    assert 2**30 <= noise * sensitivity(plan) / grid <= 2**32
    assert sensitivity(plan) >= 0.3 + math.sqrt(entries) * grid
    for total in (np.zeros(entries), rng.uniform(-5, 5, entries), np.full(entries, math.pi)):
        units = defense.release({"x": total}, plan)["x"] / grid
        np.testing.assert_array_equal(units, np.rint(units))
        assert len(np.unique(units % 2)) == 2  # and no coarser


def test_the_plan_says_what_epsilon_covers() -> None:
    plan = chain(clip(1.0), gaussian(3.0)).plan(Layout((TensorSpec("x", (4,)),)), 10)
    assert any("no outcome of the noise is out of reach" in sentence for sentence in plan.assumptions)


def test_noise_so_large_that_its_grid_would_move_a_sum_is_refused() -> None:
    wide = Layout((TensorSpec("x", (10**6,)),))
    assert chain(clip(1.0), gaussian(5e5)).plan(wide, 3).privacy.noise_multiplier == 5e5
    with pytest.raises(PlanError, match="too large beside 1000000 entries"):
        chain(clip(1.0), gaussian(6e5)).plan(wide, 3)
