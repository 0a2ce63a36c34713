"""The robust means: identities, two independent routes, bounds under any liar, and the fewest groups."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import minimize

from securefed.defenses._grouped_sums.robust import ESTIMATORS, robust_mean

NAMES = list(ESTIMATORS)
ENTRYWISE = ["median", "trimmed_mean"]
SIZES = st.floats(-1e3, 1e3, allow_subnormal=False)


def means(groups: int, entries: int = 3) -> st.SearchStrategy[np.ndarray]:
    return arrays(np.float64, (groups, entries), elements=SIZES)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("liars", [1, 2])
def test_equal_means_are_their_estimate_and_shifts_and_scales_pass_through(name: str, liars: int) -> None:
    groups = ESTIMATORS[name].needs(liars)
    row = np.array([1.5, -2.0, 0.0, 1e6])
    np.testing.assert_array_equal(robust_mean(np.tile(row, (groups, 1)), name, liars), row)
    given = np.random.default_rng(0).normal(size=(groups + 1, 4))
    found = robust_mean(given, name, liars)
    np.testing.assert_allclose(robust_mean(8 * given + 3, name, liars), 8 * found + 3, atol=1e-9)
    order = np.random.default_rng(1).permutation(groups + 1)
    np.testing.assert_allclose(robust_mean(given[order], name, liars), found, atol=1e-9)


@given(means(5), arrays(np.float64, (1, 3), elements=st.floats(-1e12, 1e12)))
def test_entries_stay_between_those_of_honest_groups(honest: np.ndarray, liar: np.ndarray) -> None:
    for name in ENTRYWISE:
        found = robust_mean(np.concatenate([honest, liar]), name, 1)
        assert (found >= honest.min(axis=0) - 1e-9).all()
        assert (found <= honest.max(axis=0) + 1e-9).all()


@given(arrays(np.float64, (4, 3), elements=st.floats(-1, 1)), arrays(np.float64, (1, 3), elements=st.floats(-1e9, 1e9)))
def test_the_geometric_median_stays_near_honest_groups(honest: np.ndarray, liar: np.ndarray) -> None:
    """By the triangle inequality, with f = 1, for any c: |estimate - c| <= 2 (G - f) / (G - 2 f) max |x_i - c|."""
    found = robust_mean(np.concatenate([honest, liar]), "geometric_median", 1)
    centre = honest.mean(axis=0)
    spread = np.linalg.norm(honest - centre, axis=1).max()
    assert np.linalg.norm(found - centre) <= 2 * 4 / 3 * spread + 1e-6


@pytest.mark.parametrize("seed", range(20))
def test_the_geometric_median_is_the_minimum_that_a_general_solver_finds(seed: int) -> None:
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(rng.integers(3, 8), rng.integers(1, 5))) * 10.0 ** rng.integers(-6, 6)

    def total(point: Any) -> float:
        return float(np.linalg.norm(points - point, axis=1).sum())

    scale = float(np.abs(points).max())
    options = {"xatol": 1e-12, "fatol": 1e-15, "maxiter": 20000, "maxfev": 20000}
    solved = minimize(lambda x: total(scale * x) / scale, points.mean(0) / scale, method="Nelder-Mead", options=options)
    assert total(robust_mean(points, "geometric_median", 1)) <= scale * float(solved.fun) * (1 + 1e-9)


def test_the_geometric_median_may_be_one_of_the_means() -> None:
    points = np.array([[0.0, 0.0], [1.0, 0.0], [-1.0, 0.1], [0.0, 1.0], [0.1, -1.0]])
    np.testing.assert_allclose(robust_mean(points, "geometric_median", 1), 0.0, atol=1e-6)


def test_krum_takes_a_mean_whose_neighbours_are_near() -> None:
    """By the definition, in plain loops: the sum of squared distances to the G - f - 2 nearest others."""
    rng = np.random.default_rng(3)
    for _ in range(50):
        points = rng.normal(size=(7, 3))
        points[rng.integers(7)] = 100 * rng.normal(size=3)
        scores = []
        for i in range(7):
            away = sorted(float(((points[i] - points[j]) ** 2).sum()) for j in range(7) if j != i)
            scores.append(sum(away[: 7 - 1 - 2]))
        np.testing.assert_array_equal(robust_mean(points, "krum", 1), points[int(np.argmin(scores))])
        best = points[np.argsort(scores)[:4]].mean(axis=0)
        np.testing.assert_allclose(robust_mean(points, "multi_krum", 1), best)


@pytest.mark.parametrize("name", NAMES)
def test_a_liar_moves_no_robust_mean_far_and_moves_the_mean_as_far_as_it_likes(name: str) -> None:
    rng = np.random.default_rng(4)
    given = rng.normal(size=(ESTIMATORS[name].needs(1), 10))
    for size in (10.0, 1e6, 1e12):
        lied = given.copy()
        lied[0] = size
        honest = given[1:].mean(axis=0)
        assert np.linalg.norm(robust_mean(lied, name, 1) - honest) < 10
        assert np.linalg.norm(lied.mean(axis=0) - honest) > size / 10
