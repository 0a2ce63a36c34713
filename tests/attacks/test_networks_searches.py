"""Searches as coroutines, against SciPy and against their own limits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import rosen, rosen_der

from securefed.attacks import InversionEffort, NetworkInversion
from securefed.attacks._networks.gradient_searches import lbfgs, run_searches
from securefed.errors import ConfigError
from tests.attacks.test_networks import METHODS, seen


def rosenbrock(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return np.array([rosen(p) for p in points]), np.stack([rosen_der(p) for p in points])


def test_it_finds_minima_and_each_search_goes_its_own_way() -> None:
    starts = np.random.default_rng(0).normal(size=(4, 10))
    together = run_searches([lbfgs(s) for s in starts], starts, rosenbrock, 500, 1e-24)
    alone = [run_searches([lbfgs(s)], s[None], rosenbrock, 500, 1e-24)[0] for s in starts]
    for one, other in zip(together, alone, strict=True):
        np.testing.assert_array_equal(one.point, other.point)
        assert one.evaluations == other.evaluations
        assert np.abs(rosen_der(one.point)).max() < 1e-6
        assert one.evaluations < 200


def test_a_quadratic_takes_no_more_steps_than_it_has_dimensions() -> None:
    scales = np.logspace(0, 3, 12)

    def quadratic(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return 0.5 * (scales * points**2).sum(axis=1), scales * points

    start = np.ones((1, 12))
    best = run_searches([lbfgs(start[0])], start, quadratic, 60, 1e-20)[0]
    assert best.value <= 1e-20


def test_the_budget_is_kept_and_numbers_that_are_none_are_survived() -> None:
    def broken(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        far = np.abs(points).max(axis=1) > 2.0
        values = np.where(far, np.nan, (points**2).sum(axis=1))
        return values, np.where(far[:, None], np.nan, 2 * points)

    start = np.full((1, 3), 1.9)
    assert run_searches([lbfgs(start[0])], start, broken, 40, 1e-16)[0].value <= 1e-16
    assert run_searches([lbfgs(start[0])], start, rosenbrock, 7, 0.0)[0].evaluations == 7

    def nowhere(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.full(len(points), np.nan), np.full_like(points, np.nan)

    np.testing.assert_array_equal(run_searches([lbfgs(start[0])], start, nowhere, 40, 0)[0].point, start[0])


@pytest.mark.exhaustive
def test_a_search_says_how_far_it_is_and_by_name_that_its_seconds_ran_out(caplog: pytest.LogCaptureFixture) -> None:
    """Three rows behind a clip need a search; of a nanosecond it returns the first thing that it reached."""
    target, server, _, _ = seen(METHODS[1], 3)
    calls: list[tuple[int, int | None, str]] = []
    attack = NetworkInversion(low=0.0, fits=1, evaluations=20, progress=lambda *call: calls.append(call))
    whole = attack.run(server, target, np.random.default_rng(0))
    made, _ = len(calls), calls.clear()
    assert made > 10 and "stopped" not in whole.diagnostics
    short = replace(attack, seconds=1e-9).run(server, target, np.random.default_rng(0))
    assert 0 < len(calls) < made / 2 and "residual" in calls[0][2]
    said = f"networks/inversion ended after its 1e-09 s with a residual of {short.residual:.2g} (0 is solved)"
    assert str(short.diagnostics["stopped"]).startswith(said) and said in caplog.text
    assert np.isfinite(short.residual) and short.value.shape == (3, 16)
    with pytest.raises(ConfigError, match="seconds must be positive"):
        InversionEffort(seconds=0.0)
