"""Trap weights behind convolutions: what they read through strides and pooling, in sums, and what stops them."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from securefed import Dataset, DeviatingServer, Public, chain
from securefed.algorithms import FedAvg
from securefed.attacks import ClientKernels, Dialogue, Target, TrapWeights
from securefed.attacks._active.layer_inputs import PooledPixels
from securefed.attacks._active.simulated_client import SimulatedClient
from securefed.attacks._active.trap_network import DenseChain, layer_inputs
from securefed.defenses import clip, local_gaussian, secure_aggregation
from securefed.errors import TranscriptError
from securefed.problems import TorchModule

PIXELS, CLASSES, CLIENTS = 64, 4, 6
nn = torch.nn


def network(*middle: Any, kernel: int = 3, stride: int = 1, classes: int = CLASSES) -> torch.nn.Module:
    begin = (
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 4, kernel, stride=stride, padding=kernel // 2 if stride == 1 else 0),
    )
    return nn.Sequential(
        *begin,
        nn.ReLU(),
        *(make() for make in middle),
        nn.Flatten(),
        nn.Linear(64, 60),
        nn.ReLU(),
        nn.Linear(60, classes),
    )


STRIDES = TorchModule(module=partial(network, kernel=2, stride=2))
MEANS = TorchModule(module=partial(network, partial(nn.AvgPool2d, 2)))
MAXIMA = TorchModule(module=partial(network, partial(nn.MaxPool2d, 2)))
SQUARES = TorchModule(module=partial(network, partial(nn.LPPool2d, 2.0, 2)))


def clients(seed: int = 0) -> list[Dataset]:
    rng = np.random.default_rng(seed)
    return [Dataset(rng.uniform(0, 1, (1, PIXELS)), np.array([place % CLASSES])) for place in range(CLIENTS)]


def deceive(problem: Any, data: list[Dataset], *defenses: Any, steps: int = 1) -> Any:
    method = FedAvg(problem=problem, learning_rate=0.05, local_steps=steps)
    return DeviatingServer(method, data, chain(*defenses or (secure_aggregation(),)), TrapWeights(rounds=5)).deceive()


def entering(problem: Any, data: list[Dataset], honest: Any, classes: int = CLASSES) -> PooledPixels:
    public = Public.of(data)
    method = FedAvg(problem=problem, learning_rate=0.05, local_steps=1)
    client = SimulatedClient(
        Target(method, public), Dialogue(honest, 0, frozenset(range(CLIENTS)), lambda chosen: pytest.fail("not asked"))
    )
    layers = DenseChain.of(problem.shapes(public), PIXELS, classes)
    assert layers is not None
    found = layer_inputs(client, layers, client.model.parameters(honest))
    assert isinstance(found, PooledPixels)
    return found


def share(estimate: Any, truth: Any, within: float = 0.05) -> float:
    distance = np.linalg.norm(truth[:, None] - estimate[None], axis=2) / np.linalg.norm(truth, axis=1)[:, None]
    return float((distance.min(axis=1) < within).mean())


@pytest.mark.parametrize(("problem", "maximum"), [(STRIDES, False), (MEANS, False), (MAXIMA, True)])
def test_pooled_pictures_of_many_clients_are_read_from_sums(problem: Any, maximum: bool) -> None:
    data = clients()
    run = deceive(problem, data)
    inputs = entering(problem, data, run.honest)
    assert (inputs.least is not None) == maximum
    truth = np.concatenate([own.x for own in data])
    pooled, read = (np.stack([inputs.of(row) for row in rows]) for rows in (truth, run.estimate.value))
    assert share(read, pooled) >= 5 / 6
    strangers = np.stack([inputs.of(own.x[0]) for own in clients(seed=9)])
    assert share(read, strangers) == 0.0  # a row of others is not within the same distance


def test_two_classes_are_told_apart_at_any_width() -> None:
    problem = TorchModule(module=partial(network, partial(nn.AvgPool2d, 2), classes=2))
    data = [Dataset(own.x, own.y % 2) for own in clients() if own.y is not None]
    run = deceive(problem, data)
    inputs = entering(problem, data, run.honest, classes=2)
    pooled, read = (
        np.stack([inputs.of(row) for row in rows])
        for rows in (np.concatenate([own.x for own in data]), run.estimate.value)
    )
    assert share(read, pooled) >= 5 / 6


def test_strides_without_pooling_give_the_picture_itself_and_maxima_do_not() -> None:
    data = clients()
    truth = np.concatenate([own.x for own in data])
    assert share(deceive(STRIDES, data).estimate.value, truth) >= 5 / 6
    assert share(deceive(MAXIMA, data).estimate.value, truth) == 0.0


def test_the_largest_picture_with_the_maxima_has_these_maxima() -> None:
    windows = np.kron(np.eye(3), np.ones(2))
    inputs = PooledPixels(3, np.zeros(3), {}, windows, least=np.zeros(3))
    entered = inputs.of(np.array([0.1, 0.4, 0.3, 0.2, 0.5, 0.5]))
    np.testing.assert_array_equal(entered, [0.4, 0.3, 0.5])
    np.testing.assert_array_equal(inputs.rows(entered[None]), [[0.4, 0.4, 0.3, 0.3, 0.5, 0.5]])


@pytest.mark.parametrize("problem", [MEANS, MAXIMA])
def test_what_enters_of_a_picture_with_negative_pixels_is_what_the_network_computes(problem: Any) -> None:
    """Windows at the border hold the zeros of the padding, which are larger than negative pixels."""
    rng = np.random.default_rng(1)
    data = [Dataset(rng.uniform(-1, 1, (1, PIXELS)), np.array([place % CLASSES])) for place in range(CLIENTS)]
    run = deceive(problem, data)
    inputs = entering(problem, data, run.honest)
    chosen = {**run.honest, **inputs.kernels}
    module = problem.instance(problem.tensors({name: np.asarray(v, np.float32) for name, v in chosen.items()}))
    for own in data:
        entered = module[:5](torch.as_tensor(own.x, dtype=torch.float32)).detach().numpy()[0]
        np.testing.assert_allclose(inputs.of(own.x[0]) + inputs.offset, entered, atol=1e-5)
    pooled, read = (
        np.stack([inputs.of(row) for row in rows])
        for rows in (np.concatenate([own.x for own in data]), run.estimate.value)
    )
    assert share(read, pooled) >= 5 / 6


def stack(layers: int, pool: Any = nn.AvgPool2d) -> torch.nn.Module:
    more = [layer for _ in range(layers - 1) for layer in (nn.Conv2d(4, 4, 3, padding=1), nn.ReLU())]
    begin = (nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 4, 3, padding=1), nn.ReLU())
    dense = (nn.Flatten(), nn.Linear(64, 60), nn.ReLU(), nn.Linear(60, CLASSES))
    return nn.Sequential(*begin, *more, pool(2), *dense)


def test_of_two_convolutions_before_a_pooling_one_shifts() -> None:
    """Shifts by 0 or 1 in both would be shifts by 0, 1 or 2, of which four channels hold the first four alone."""
    problem = TorchModule(module=partial(stack, 2))
    inputs = entering(problem, clients(), problem.initial(Public.of(clients()), np.random.default_rng(0)))
    assert np.linalg.matrix_rank(inputs.windows, tol=1e-3) == PIXELS


def test_ten_convolutions_take_no_thousand_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, calls = TorchModule(module=partial(stack, 10)), []
    gradient = SimulatedClient.gradient

    def counted(self: SimulatedClient, *arguments: Any) -> Any:
        calls.append(1)
        return gradient(self, *arguments)

    monkeypatch.setattr(SimulatedClient, "gradient", counted)
    entering(problem, clients(), problem.initial(Public.of(clients()), np.random.default_rng(0)))
    assert len(calls) < PIXELS + 40  # one for each pixel, and a few for each layer


class Shortcut(nn.Module):
    """A convolution of one pixel beside another convolution; they add up."""

    def __init__(self) -> None:
        super().__init__()
        self.main = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1))
        self.beside = nn.Conv2d(1, 4, 1)
        self.dense = nn.Sequential(nn.ReLU(), nn.Flatten(), nn.Linear(256, 60), nn.ReLU(), nn.Linear(60, CLASSES))

    def forward(self, x: torch.Tensor) -> Any:
        x = x.reshape(-1, 1, 8, 8)
        return self.dense(self.main(x) + self.beside(x))


def depthwise() -> torch.nn.Module:
    begin = (nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 4, 3, padding=1), nn.ReLU())
    dense = (nn.Flatten(), nn.Linear(256, 60), nn.ReLU(), nn.Linear(60, CLASSES))
    return nn.Sequential(*begin, nn.Conv2d(4, 4, 3, padding=1, groups=4), nn.ReLU(), *dense)


@pytest.mark.parametrize("module", [depthwise, Shortcut])
@pytest.mark.parametrize("attack", [TrapWeights(), ClientKernels()])
def test_convolutions_that_do_not_follow_each_other_are_declined_by_name(module: Any, attack: Any) -> None:
    method = FedAvg(problem=TorchModule(module=module), learning_rate=0.05, local_steps=1)
    with pytest.raises(TranscriptError, match="a chain of convolutions"):
        DeviatingServer(method, clients(), chain(), attack)


def test_pictures_of_too_many_pixels_are_declined_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("securefed.attacks._active.trap_weights._MOST", 4000)  # 64 pixels, 64 inputs
    with pytest.raises(TranscriptError, match="every pair of a pixel and an input"):
        deceive(MAXIMA, clients())


def test_noise_stops_it() -> None:
    data = clients()
    run = deceive(MAXIMA, data, clip(0.01), local_gaussian(1.0), secure_aggregation())
    inputs = entering(MAXIMA, data, run.honest)
    pooled, read = (np.stack([inputs.of(row) for row in rows]) for rows in (
        np.concatenate([own.x for own in data]), run.estimate.value))  # fmt: skip
    assert share(read, pooled) == 0.0


def test_layers_that_do_not_pool_are_declined_by_name() -> None:
    with pytest.raises(TranscriptError, match="more than pooling"):
        deceive(SQUARES, clients())


def test_several_local_steps_are_declined_by_name() -> None:
    """Convolutions move in them, and three of four rows that the attack would call single are none."""
    with pytest.raises(TranscriptError, match="several local steps"):
        deceive(MAXIMA, clients(), steps=5)
