"""Every registered problem: gradients, batches, bounds, refusals."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from securefed import Array, Dataset, Layout, Public, Tensors
from securefed.errors import ConfigError, DataError
from securefed.problems import BiGAN, Problem, known_smoothness, problems

SMALL: dict[str, dict[str, Any]] = {
    "2nn": {"hidden": (5, 4)},
    "mlp": {"hidden": (6,)},
    "cnn": {"image_shape": (1, 10, 11), "channels": (3, 2), "hidden": 4},
    "autoencoder": {"layers": (4, 2)},
    "bigan": {"layers": (4, 2)},
}
NETWORKS = tuple(SMALL)
NAMES = problems.names
LABELLED = ("logistic", "softmax", "svm", "2nn", "mlp", "cnn")
FEATURES = {"cnn": 110, "low_rank": 9}
PENALISED = tuple(name for name in NAMES if name != "low_rank")


def make(name: str, **more: Any) -> Problem:
    double = {"precision": "float64"} if name in NETWORKS else {}
    return problems.make(name, **SMALL.get(name, {}) | double | more)


def rows(name: str, count: int, seed: int = 0) -> Dataset:
    rng = np.random.default_rng([seed, count])
    x = rng.uniform(-2, 2, (count, FEATURES.get(name, 5)))
    if name == "low_rank":
        return Dataset(x, rng.normal(size=count))
    return Dataset(x, np.append(rng.integers(0, 2, count - 1), 1))


def public(name: str, bound: float = 2.0) -> Public:
    classes = 0 if name == "low_rank" else 2
    return Public(2, 2, FEATURES.get(name, 5), (9, 4), classes, bound)


def anywhere(problem: Problem, name: str, seed: int = 1) -> dict[str, Array]:
    """Parameters away from the start, where nothing is zero by accident."""
    rng = np.random.default_rng(seed)
    return {key: value + rng.normal(size=value.shape) for key, value in problem.initial(public(name), rng).items()}


def losses(problem: Problem, name: str, parameters: Tensors, data: Dataset) -> list[tuple[str, float]]:
    """By prefix of the parameters, the function whose gradient they get: one for all, but for the BiGAN's players."""
    if name != "bigan":
        return [("", problem.loss(parameters, data.x, problem.targets(data)))]
    assert isinstance(problem, BiGAN)
    x = np.asarray(data.x, problem.dtype)
    codes = torch.from_numpy(problem.companions(x, x[:, :0]))
    own, others = (
        part.mean().item() for part in problem.players(problem.tensors(parameters), torch.from_numpy(x), codes)
    )
    return [("discriminator", own), ("encoder", others), ("generator", others)]


@pytest.mark.parametrize("name", NAMES)
def test_gradient_is_the_derivative_of_the_loss(name: str) -> None:
    l2 = {"l2": 0.3} if name in PENALISED and name != "bigan" else {}
    problem, data = make(name, **l2), rows(name, 7)
    at = anywhere(problem, name)
    layout = Layout.of(at)
    gradient = layout.flatten(problem.gradient(at, data.x, problem.targets(data)))
    vector, rng = layout.flatten(at), np.random.default_rng(2)
    names = [spec.name for spec in layout for _ in range(spec.size)]
    step = 1e-6  # central differences: error about step^2 + eps / step = 1e-10, more beside a kink, which none is hit
    for k in rng.choice(layout.size, min(layout.size, 60), replace=False):
        shift = step * np.eye(layout.size)[k]
        pairs = [losses(problem, name, layout.unflatten(vector + s), data) for s in (shift, -shift)]
        (higher, lower) = (next(value for part, value in found if names[k].startswith(part)) for found in pairs)
        assert gradient[k] == pytest.approx((higher - lower) / (2 * step), abs=2e-8 * max(1.0, abs(higher)))
    assert np.abs(gradient).max() > 1e-3


@pytest.mark.parametrize("name", NAMES)
def test_several_clients_at_once_are_the_clients_one_by_one(name: str) -> None:
    problem = make(name, **({"l2": 0.3} if name in PENALISED else {}))
    sets = [rows(name, count) for count in (3, 6, 1, 4)]
    points = [anywhere(problem, name, seed) for seed in range(4)]
    for padding in (0.0, 7.5):  # what stands in padded rows does not matter
        x = np.full((4, 6, sets[0].features), padding)
        targets = [problem.targets(data) for data in sets]
        y = np.zeros((4, 6, *targets[0].shape[1:]), targets[0].dtype)
        weights = np.zeros((4, 6))
        for k, (data, target) in enumerate(zip(sets, targets, strict=True)):
            x[k, : data.rows], y[k, : data.rows], weights[k, : data.rows] = data.x, target, 1 / data.rows
        stacked = {key: np.stack([point[key] for point in points]) for key in points[0]}
        found = problem.gradients(stacked, x, y, weights)
        assert found.keys() == stacked.keys()
        for k, (data, target) in enumerate(zip(sets, targets, strict=True)):
            for key, value in problem.gradient(points[k], data.x, target).items():
                np.testing.assert_allclose(found[key][k], value, rtol=0, atol=1e-10 * max(1.0, np.abs(value).max()))


@pytest.mark.parametrize("name", [name for name in NAMES if name not in NETWORKS])
def test_gradients_stay_within_the_declared_bounds(name: str) -> None:
    """Corners of the declared range, and responses as far away as the bound allows; no bound is known for networks."""
    problem, rng = make(name), np.random.default_rng(3)
    bounds, largest = problem.gradient_bounds(public(name)), 0.0
    for _ in range(100):
        x = rng.choice([-2.0, 2.0], size=(1, FEATURES.get(name, 5)))
        at = {key: rng.uniform(-1, 1, shape) for key, shape in problem.shapes(public(name)).items()}
        y = rng.integers(2, size=1) if name != "low_rank" else x @ at["matrix"].ravel() + rng.uniform(-10, 10, 1)
        for key, value in problem.gradient(at, x, y).items():
            largest = max(largest, float(np.abs(value).max()) / bounds[key])
            assert np.abs(value).max() <= bounds[key]
    assert largest > 0.5, "the bound is not loose"


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_declare_their_gradients(name: str) -> None:
    problem = make(name, gradient_bound=3.0)
    assert set(problem.gradient_bounds(public(name)).values()) == {3.0}
    assert problem.gradient_bounds(public(name)).keys() == problem.shapes(public(name)).keys()


@pytest.mark.parametrize("name", NAMES)
def test_initial_parameters_fit_and_follow_the_generator(name: str) -> None:
    problem = make(name)
    first, again, other = (problem.initial(public(name), np.random.default_rng(seed)) for seed in (5, 5, 6))
    assert {key: value.shape for key, value in first.items()} == problem.shapes(public(name))
    for key in first:
        np.testing.assert_array_equal(first[key], again[key])
    drawn = name in NETWORKS
    assert any(not np.array_equal(first[key], other[key]) for key in first) == drawn
    assert all("/" not in key and ":" not in key for key in first), "packing reserves them"


@pytest.mark.parametrize("name", NAMES)
def test_precision_of_gradients_is_the_declared_one(name: str) -> None:
    problem, data = problems.make(name, **SMALL.get(name, {})), rows(name, 4)
    at = {
        key: value.astype(problem.dtype)
        for key, value in problem.initial(public(name), np.random.default_rng(0)).items()
    }
    assert problem.dtype == (np.float32 if name in NETWORKS else np.float64)
    for value in problem.gradient(at, data.x, problem.targets(data)).values():
        assert np.asarray(value).dtype == problem.dtype


@pytest.mark.parametrize("name", NAMES)
def test_measures_are_sums_over_rows(name: str) -> None:
    problem, data = make(name), rows(name, 6)
    at, y = anywhere(problem, name), problem.targets(data)
    whole = problem.measure(at, data.x, y)
    halves = [problem.measure(at, data.x[part], y[part]) for part in (slice(0, 2), slice(2, 6))]
    assert whole.keys() == problem.measures(public(name)).keys()
    for key, value in whole.items():
        assert value == pytest.approx(sum(half[key] for half in halves), rel=1e-9)
    assert whole["count"] == 6
    score = whole["correct"] / 6 if name in LABELLED else -whole["loss"] / 6
    assert problem.score(at, data.x, y) == pytest.approx(score, rel=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_descent_lowers_the_loss(name: str) -> None:
    problem, data = make(name), rows(name, 9)
    at, y = problem.initial(public(name), np.random.default_rng(1)), problem.targets(data)
    start = [value for _, value in losses(problem, name, at, data)]
    for _ in range(60):
        at = {key: at[key] - 0.02 * value for key, value in problem.gradient(at, data.x, y).items()}
    end = [value for _, value in losses(problem, name, at, data)]
    assert (min if name == "bigan" else max)(b - a for a, b in zip(start, end, strict=True)) < 0


@pytest.mark.parametrize("name", LABELLED)
def test_data_without_labels_is_refused(name: str) -> None:
    problem, data = make(name), rows(name, 4)
    with pytest.raises(DataError, match="needs labels"):
        problem.targets(Dataset(data.x))
    with pytest.raises(DataError, match="float labels"):
        problem.targets(Dataset(data.x, data.x[:, 0]))


@pytest.mark.parametrize("name", LABELLED)
def test_a_task_without_classes_is_refused(name: str) -> None:
    classes = 0 if name == "logistic" else 1
    with pytest.raises(ConfigError, match="classes"):
        make(name).shapes(replace(public(name), classes=classes))


@pytest.mark.parametrize("name", LABELLED)
def test_a_client_with_one_class_can_be_trained_on(name: str) -> None:
    problem, data = make(name), rows(name, 4)
    one = Dataset(data.x, np.zeros(4, np.int64))
    gradient = problem.gradient(anywhere(problem, name), one.x, problem.targets(one))
    assert all(np.isfinite(value).all() for value in gradient.values())


@pytest.mark.parametrize("name", ["autoencoder", "bigan"])
def test_reconstruction_needs_no_labels(name: str) -> None:
    problem, data = make(name), rows(name, 4)
    with_labels, without = problem.targets(data), problem.targets(Dataset(data.x))
    assert with_labels.shape == without.shape == (4, 0)
    at = anywhere(problem, name)
    found = problem.reconstruct(at, data.x)  # type: ignore[attr-defined]
    assert found.shape == data.x.shape
    assert problem.score(at, data.x, without) == pytest.approx(-np.mean((found - data.x) ** 2))


@pytest.mark.parametrize(
    ("name", "features", "says"),
    [("cnn", 99, "image_shape"), ("low_rank", 8, "square matrix")],
)
def test_rows_of_a_wrong_width_are_refused(name: str, features: int, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        make(name).shapes(replace(public(name), features=features))


@pytest.mark.parametrize("y", [None, np.array([0, 1]), np.ones((2, 3))])
def test_low_rank_needs_one_real_response_a_row(y: Array | None) -> None:
    with pytest.raises(DataError, match="response"):
        make("low_rank").targets(Dataset(np.ones((2, 9)), y))


@pytest.mark.parametrize(
    ("name", "settings", "says"),
    [
        ("svm", {"power": 3}, "power must be one of 1, 2; got 3"),
        ("svm", {"l2": -1.0}, "l2 must be"),
        ("2nn", {"hidden": ()}, "at least one integer"),
        ("2nn", {"hidden": (0,)}, "at least one integer"),
        ("2nn", {"start": "zero"}, "start must be"),
        ("2nn", {"precision": "float16"}, "one of 'float32', 'float64'"),
        ("mlp", {"gradient_bound": 0.0}, "gradient_bound must be"),
        ("mlp", {"l2": float("nan")}, "l2 must be"),
        ("cnn", {"image_shape": (28, 28)}, "list of 3 integers"),
        ("cnn", {"image_shape": (1, 9, 28)}, "sides of at least 10"),
        ("cnn", {"hidden": 0}, "hidden must be"),
        ("autoencoder", {"layers": ()}, "at least one integer"),
        ("bigan", {"start": "?"}, "start must be"),
    ],
)
def test_settings_outside_their_domain_are_refused(name: str, settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        problems.make(name, **settings)


@pytest.mark.parametrize(("name", "rate"), [("logistic", True), ("softmax", True), ("low_rank", True), ("svm", False)])
@pytest.mark.parametrize("count", [3, 12])
def test_known_smoothness_is_the_largest_eigenvalue_of_the_hessian(name: str, rate: bool, count: int) -> None:
    settings = {"l2": 0.3} if name != "low_rank" else {}
    problem, data = problems.make(name, **settings), rows(name, count)
    found = known_smoothness(problem, data, 2)
    if not rate:
        assert found is None
        return
    at = problem.initial(public(name), np.random.default_rng(0))
    layout, step = Layout.of(at), 1e-5

    def gradient(vector: Array) -> Array:
        return layout.flatten(problem.gradient(layout.unflatten(vector), data.x, problem.targets(data)))

    start = layout.flatten(at)
    shifts = step * np.eye(layout.size)
    hessian = np.stack([(gradient(start + s) - gradient(start - s)) / (2 * step) for s in shifts])
    assert found == pytest.approx(np.linalg.eigvalsh((hessian + hessian.T) / 2).max(), rel=1e-6)


def test_smoothness_away_from_the_start_it_is_known_for_is_unknown() -> None:
    assert known_smoothness(problems.make("softmax", initial_scale=0.1), rows("softmax", 5)) is None


@pytest.mark.parametrize(
    ("name", "settings", "features", "classes", "count"),
    [
        ("svm", {}, 60, 10, 610),
        ("2nn", {}, 784, 10, 199_210),
        ("mlp", {}, 784, 10, 79_510),
        ("cnn", {"image_shape": (3, 64, 64)}, 3 * 64 * 64, 6, 206_678),
    ],
)
def test_parameter_counts_of_the_papers(name: str, settings: dict, features: int, classes: int, count: int) -> None:
    facts = Public(2, 2, features, (9, 4), classes, 1.0)
    shapes = problems.make(name, **settings).shapes(facts)
    assert sum(int(np.prod(shape)) for shape in shapes.values()) == count


def test_listing_problems_imports_no_torch() -> None:
    code = "import sys, securefed.problems as p; p.problems.make('svm'); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
