"""Losses of a linear map: gradients against finite differences, limits, refusals."""

import numpy as np
import pytest

from securefed import Layout, Public
from securefed.errors import ConfigError, UnknownNameError
from securefed.problems import LogisticRegression, Problem, SoftmaxRegression, problems


def public(classes: int, features: int = 5, bound: float = 3.0) -> Public:
    return Public(clients=2, cohort=2, features=features, rows=(4, 3), classes=classes, feature_bound=bound)


CASES = [
    pytest.param(kind(bias=bias, l2=l2, initial_scale=0.7), classes, id=f"{kind.name}-bias={bias}-l2={l2}")
    for kind, classes in ((LogisticRegression, 2), (SoftmaxRegression, 2), (SoftmaxRegression, 4))
    for bias in (True, False)
    for l2 in (0.0, 0.3)
]


@pytest.mark.parametrize(("problem", "classes"), CASES)
def test_gradient_is_the_derivative_of_the_loss(problem: Problem, classes: int) -> None:
    rng = np.random.default_rng(1)
    facts = public(classes)
    x, y = rng.normal(size=(7, 5)), rng.integers(classes, size=7)
    layout = Layout.of(problem.initial(facts, rng))
    point = rng.normal(size=layout.size)
    gradient = layout.flatten(problem.gradient(layout.unflatten(point), x, y))
    step = 1e-6  # central differences: error about step^2 + eps / step = 1e-10
    for k in range(layout.size):
        shift = step * np.eye(layout.size)[k]
        higher, lower = (problem.loss(layout.unflatten(point + s), x, y) for s in (shift, -shift))
        assert gradient[k] == pytest.approx((higher - lower) / (2 * step), abs=1e-8)


@pytest.mark.parametrize(("problem", "classes"), CASES)
def test_gradients_stay_within_the_declared_bounds(problem: Problem, classes: int) -> None:
    rng = np.random.default_rng(2)
    facts = public(classes)
    bounds = problem.gradient_bounds(facts)
    largest = dict.fromkeys(bounds, 0.0)
    for _ in range(200):
        x = rng.choice([-3.0, 3.0], size=(1, 5))
        parameters = {name: rng.uniform(-10, 10, shape) for name, shape in problem.shapes(facts).items()}
        gradient = problem.gradient(parameters, x, rng.integers(classes, size=1))
        largest = {name: max(value, float(np.abs(gradient[name]).max())) for name, value in largest.items()}
    for name, bound in bounds.items():
        assert 0.5 * bound < largest[name] <= bound, "the bound holds, and is not loose"


def test_softmax_of_two_classes_is_logistic_regression() -> None:
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(9, 5)), rng.integers(2, size=9)
    w, b = rng.normal(size=5), np.asarray(0.4)
    one, two = LogisticRegression(), SoftmaxRegression()
    split = {"weight": np.stack([0 * w, w]), "bias": np.stack([0 * b, b])}
    assert two.loss(split, x, y) == pytest.approx(one.loss({"weight": w, "bias": b}, x, y), abs=1e-14)
    np.testing.assert_allclose(
        two.gradient(split, x, y)["weight"][1], one.gradient({"weight": w, "bias": b}, x, y)["weight"]
    )
    np.testing.assert_array_equal(two.predict(split, x), one.predict({"weight": w, "bias": b}, x))


@pytest.mark.parametrize("problem", [LogisticRegression(), SoftmaxRegression()])
def test_huge_logits_stay_finite(problem: Problem) -> None:
    parameters = {name: np.full(shape, 1e4) for name, shape in problem.shapes(public(2)).items()}
    x, y = np.full((2, 5), 1e3), np.array([0, 1])
    assert np.isfinite(problem.loss(parameters, x, y))
    assert all(np.isfinite(value).all() for value in problem.gradient(parameters, x, y).values())


def test_accuracy_counts_right_predictions() -> None:
    x, y = np.array([[1.0], [-1.0], [2.0], [-2.0]]), np.array([1, 0, 1, 1])
    assert LogisticRegression().accuracy({"weight": np.ones(1), "bias": np.asarray(0.0)}, x, y) == 0.75


def test_initial_parameters_are_zero_unless_asked() -> None:
    rng = np.random.default_rng(4)
    assert not np.any(SoftmaxRegression().initial(public(3), rng)["weight"])
    drawn = SoftmaxRegression(initial_scale=2.0).initial(public(3, features=4000), rng)["weight"]
    assert drawn.std() == pytest.approx(2.0, rel=0.05)  # 12000 draws: standard error 0.65 %


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: LogisticRegression(l2=-1.0), "l2 must be a finite number of at least 0"),
        (lambda: SoftmaxRegression(l2=float("nan")), "l2 must be a finite number of at least 0"),
        (lambda: SoftmaxRegression(initial_scale=-0.1), "initial_scale"),
        (lambda: LogisticRegression().shapes(public(10)), "softmax"),
        (lambda: SoftmaxRegression().shapes(public(1)), "at least 2 classes"),
    ],
)
def test_refusals_are_worded(make, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        make()


def test_registry_makes_problems_by_name() -> None:
    assert problems.make("logistic", bias=False) == LogisticRegression(bias=False)
    with pytest.raises(UnknownNameError, match="softmax"):
        problems.make("softmaxx")
