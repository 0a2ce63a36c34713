"""One search, two ways to step: roots are found, and where there is none it stops."""

import numpy as np
import pytest

from securefed.attacks._fitting.levenberg_marquardt import (
    GeodesicAcceleration,
    NielsenDamping,
    StallLimit,
    levenberg_marquardt,
)

START = np.array([-1.2, 1.0])
STEPPERS = {"nielsen": lambda residual: NielsenDamping(), "geodesic": GeodesicAcceleration}


def rosenbrock(x):
    return np.array([10 * (x[1] - x[0] ** 2), 1 - x[0]])


def slopes(x):
    return rosenbrock(x), np.array([[-20 * x[0], 10.0], [-1.0, 0.0]])


@pytest.mark.parametrize("residual", [None, rosenbrock], ids=["jacobians", "residuals"])
@pytest.mark.parametrize("make", STEPPERS.values(), ids=STEPPERS)
def test_it_walks_the_curved_valley_to_the_root(make, residual) -> None:
    found = levenberg_marquardt(slopes, START, steps=100, goal=1e-12, residual=residual, stepper=make(rosenbrock))
    np.testing.assert_allclose(found.point, [1.0, 1.0], atol=1e-10)
    assert found.norm <= 1e-12 and found.steps < 60
    np.testing.assert_allclose(found.jacobian, [[-20.0, 10.0], [-1.0, 0.0]])


@pytest.mark.parametrize("make", STEPPERS.values(), ids=STEPPERS)
@pytest.mark.parametrize("unknowns", [3, 160])
def test_a_linear_problem_ends_at_least_squares(make, unknowns) -> None:
    rng = np.random.default_rng(0)
    A, b = rng.normal(size=(2 * unknowns, unknowns)), rng.normal(size=2 * unknowns)

    def residual(x):
        return A @ x - b

    found = levenberg_marquardt(
        lambda x: (residual(x), A), np.zeros(unknowns), steps=30, goal=0.0, stepper=make(residual)
    )
    np.testing.assert_allclose(found.point, np.linalg.lstsq(A, b, rcond=None)[0], atol=1e-5)


def test_without_a_root_patience_ends_the_search() -> None:
    def rootless(x):
        return np.append(rosenbrock(x), 1.0)

    def linearised(x):
        return rootless(x), np.vstack([slopes(x)[1], np.zeros(2)])

    far, close = (
        levenberg_marquardt(linearised, START, steps=2000, goal=1e-12, patience=StallLimit(near, far=3, close=30))
        for near in (0.5, 1e9)
    )
    assert far.norm >= close.norm == pytest.approx(1.0)
    assert 3 <= far.steps < close.steps < 2000


def test_a_start_out_of_reach_is_said_to_be_so() -> None:
    def nowhere(x):
        return np.full(1, np.nan)

    for residual in (None, nowhere):
        found = levenberg_marquardt(
            lambda x: (nowhere(x), np.ones((1, 2))), START, steps=9, goal=1e-9, residual=residual
        )
        assert found.norm == np.inf and found.jacobian.size == 0


@pytest.mark.parametrize("unknowns", [2, 160])
def test_a_search_ends_where_nothing_depends_on_the_unknowns(unknowns) -> None:
    def constant(x):
        return np.ones(3)

    start = np.zeros(unknowns)
    found = levenberg_marquardt(
        lambda x: (constant(x), np.zeros((3, unknowns))), start, steps=9, goal=1e-9, residual=constant,
        stepper=GeodesicAcceleration(constant),
    )  # fmt: skip
    np.testing.assert_array_equal(found.point, start)
    assert found.norm == pytest.approx(np.sqrt(3))


def test_out_of_reach_trials_are_refused_on_the_way() -> None:
    def wall(x):
        return np.where(x[:1] < 0.5, np.nan, rosenbrock(x)) if x[0] < 0.5 else rosenbrock(x)

    for stepper in (NielsenDamping(), GeodesicAcceleration(wall)):
        found = levenberg_marquardt(slopes, np.array([0.6, 3.0]), steps=200, goal=1e-12, residual=wall, stepper=stepper)
        np.testing.assert_allclose(found.point, [1.0, 1.0], atol=1e-10)


@pytest.mark.parametrize("residual", [None, rosenbrock], ids=["jacobians", "residuals"])
@pytest.mark.parametrize("make", STEPPERS.values(), ids=STEPPERS)
@pytest.mark.parametrize("after", [0, 3])
def test_a_jacobian_that_is_not_finite_ends_the_search_at_a_finite_point(make, residual, after) -> None:
    """`residual` may be finite where the derivative is not, as of a root at zero."""
    calls = 0

    def linearised(x):
        nonlocal calls
        calls += 1
        return rosenbrock(x), slopes(x)[1] * (np.nan if calls > after else 1.0)

    found = levenberg_marquardt(linearised, START, steps=100, goal=1e-12, residual=residual, stepper=make(rosenbrock))
    assert np.isfinite(found.point).all()
    if after:
        assert found.norm == np.linalg.norm(rosenbrock(found.point)) < np.linalg.norm(rosenbrock(START))
    else:
        assert found.jacobian.size == 0


def test_a_decomposition_that_does_not_converge_leaves_the_search_to_the_normal_equations(monkeypatch) -> None:
    def fails(*args, **kwargs):
        raise np.linalg.LinAlgError("SVD did not converge")

    monkeypatch.setattr(np.linalg, "svd", fails)
    found = levenberg_marquardt(
        slopes, START, steps=100, goal=1e-12, residual=rosenbrock, stepper=GeodesicAcceleration(rosenbrock)
    )
    np.testing.assert_allclose(found.point, [1.0, 1.0], atol=1e-10)
