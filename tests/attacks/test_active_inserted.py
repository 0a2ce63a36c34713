"""Imprint modules in front of models of any kind, and channels of its own for each client."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from securefed import Dataset, DeviatingServer, Public, chain
from securefed.algorithms import FedAvg
from securefed.attacks import ClientKernels, Dialogue, RoundView, Target, TrapWeights, insert_imprint_module
from securefed.attacks._active.client_kernels import ClientChannels, client_channels
from securefed.attacks._active.simulated_client import SimulatedClient
from securefed.attacks._active.trap_network import DenseChain, possible_chains
from securefed.attacks._active.trap_weights import _known, _simulated
from securefed.defenses import clip, local_gaussian, quantise, secure_aggregation
from securefed.errors import ConfigError, TranscriptError
from securefed.problems import TorchModule
from tests.combinations import first_ones

SHAPE, PIXELS, CLASSES = (1, 6, 6), 36, 4
nn = torch.nn


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.layers(x)


def residual() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), Residual(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, CLASSES))


def attention() -> nn.Module:
    layer = nn.TransformerEncoderLayer(6, 2, 12, dropout=0.0, batch_first=True)
    return nn.Sequential(nn.Flatten(1, 2), layer, nn.Flatten(), nn.LayerNorm(PIXELS), nn.Linear(PIXELS, CLASSES))


class PastTheModule(nn.Module):
    """The picture enters the model beside what the imprint module makes of it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.model = nn.Linear(PIXELS, 40), nn.Linear(40, PIXELS), residual()

    def forward(self, x: torch.Tensor) -> Any:
        return self.model((x + self.second(torch.relu(self.first(x)))).reshape(-1, *SHAPE))


def inserted(model: Any, bins: int = 80, channels: int = 0) -> TorchModule:
    module = partial(insert_imprint_module, model, SHAPE, bins, channels)
    return TorchModule(module=module, gradient_bound=8.0)


def clients(count: int, rows: int, seed: int = 0) -> list[Dataset]:
    rng = np.random.default_rng(seed)
    x, numbers = rng.uniform(0, 1, (count * rows, PIXELS)), np.arange(count * rows)
    labels = (numbers // count + numbers) % CLASSES
    return [Dataset(x[i::count], labels[i::count]) for i in range(count)]


def deceive(problem: Any, attack: Any, data: list[Dataset], *defenses: Any, steps: int = 1, **options: Any) -> Any:
    method = FedAvg(problem=problem, learning_rate=0.05, local_steps=steps)
    return DeviatingServer(method, data, chain(*defenses or (quantise(),)), attack, **options).deceive()


def share(estimate: Any, truth: Any, within: float = 1e-2) -> float:
    distance = np.linalg.norm(truth[:, None] - estimate[None], axis=2) / np.linalg.norm(truth, axis=1)[:, None]
    return float((distance.min(axis=1) < within).mean())


def rows_of(data: list[Dataset]) -> Any:
    return np.concatenate([own.x for own in data])


def simulated(problem: Any, data: list[Dataset]) -> tuple[SimulatedClient, Any]:
    public, method = Public.of(data), FedAvg(problem=problem, learning_rate=0.05, local_steps=1)
    honest = method.broadcast(method.start(public, np.random.default_rng(0)))
    client = SimulatedClient(
        Target(method, public),
        Dialogue(honest, 0, frozenset(range(len(data))), lambda chosen: pytest.fail("not asked")),
    )
    return client, client.model.parameters(honest)


@pytest.mark.parametrize("model", first_ones([residual, attention]))
def test_an_imprint_module_in_front_of_any_model_reads_every_row_and_its_label_from_sums(model: Any) -> None:
    """Under secure aggregation, whose sums are exact; a row's label follows from its slope."""
    data = clients(4, rows=3)
    run = deceive(inserted(model), TrapWeights(), data, secure_aggregation())
    assert share(run.estimate.value, rows_of(data)) == 1.0
    assert run.estimate.diagnostics["single rows"] == 12
    labels = np.concatenate([own.labels() for own in data])
    nearest = [int(np.argmin(np.linalg.norm(rows_of(data) - row, axis=1))) for row in run.estimate.value]
    assert list(labels[nearest]) == list(run.estimate.labels)
    chance = deceive(inserted(model), TrapWeights(), data, shuffled=True)
    assert share(chance.estimate.value, rows_of(data), within=0.1) == 0.0


@pytest.mark.parametrize("model", [residual, attention])
def test_the_model_behind_grows_by_the_sum_of_the_modules_outputs(model: Any) -> None:
    """w f(c + d v) - w f(c) = v, by torch's own forward pass of the model behind."""
    problem = inserted(model)
    client, initial = simulated(problem, clients(3, 1))
    chains = list(possible_chains(client, initial))
    assert [found.behind is not None for found in chains] == [True]
    behind = chains[0].behind
    assert behind is not None
    module = problem.instance(problem.tensors({name: np.asarray(v, np.float32) for name, v in initial.items()}))
    hidden = module.double()[-1][:-1]  # type: ignore[index]  # the model behind, without its last layer

    def read(v: float) -> float:
        entered = torch.as_tensor(behind.point + v * behind.step).reshape(1, *SHAPE)
        return float(behind.readout @ hidden(entered).detach().numpy()[0]) - behind.level

    for v in (1e-5, -1e-6):
        assert read(v) - read(0.0) == pytest.approx(v, rel=1e-2)


def test_a_picture_that_passes_beside_the_module_is_declined_by_name() -> None:
    with pytest.raises(TranscriptError, match="other slopes"):
        deceive(TorchModule(module=PastTheModule), TrapWeights(), clients(3, 1))


def test_a_model_with_a_module_takes_flat_rows_and_pictures_and_refuses_senseless_sizes() -> None:
    for channels in (0, 3):
        module = insert_imprint_module(residual, SHAPE, 10, channels)
        rows = torch.rand(2, PIXELS)
        assert torch.equal(module(rows), module(rows.reshape(2, *SHAPE)))
    for wrong in ({"bins": 1}, {"bins": 10, "channels": -1}):
        with pytest.raises(ConfigError, match="must be an integer"):
            insert_imprint_module(residual, SHAPE, **wrong)
    with pytest.raises(ConfigError, match="shape"):
        insert_imprint_module(residual, (PIXELS,), 10, channels=2)


def test_known_rows_in_closed_form_are_what_simulated_clients_send() -> None:
    data = clients(4, 1)
    client, initial = simulated(inserted(residual), data)
    attack, rng = TrapWeights(), np.random.default_rng(0)
    layers = attack.layers(client, initial)
    assert not isinstance(layers, str)
    trap = attack.trap(client, *layers, 1, list(rows_of(data)), rng)
    broadcast = client.broadcast(client.dialogue.honest, trap.parameters(initial, CLASSES))
    observed = RoundView(0, broadcast, {}, frozenset(range(4)), frozenset(range(4)))
    rows = [(own.x[0], int(own.labels()[0])) for own in data]
    singly = [_simulated(client, trap, "delta", observed, *row) for row in rows]
    unit = singly[0].bias[0] / 1.0  # label 0 has code 1, and lies above the lowest threshold
    found = _known(client, trap, "delta", observed, rows, unit)
    size = np.abs(found.weight).max()
    np.testing.assert_allclose(found.weight, sum(one.weight for one in singly), atol=1e-3 * size)
    np.testing.assert_allclose(found.bias, sum(one.bias for one in singly), atol=1e-3 * size)


KERNELS = ClientKernels(TrapWeights(rounds=3))


def test_each_clients_rows_are_read_from_its_own_columns_where_rounds_are_not_bound_and_none_where_they_are() -> None:
    """The sums of integers in the clear are those of secure aggregation without its binding."""
    data, problem = clients(4, rows=3), inserted(residual, bins=24, channels=8)
    run = deceive(problem, KERNELS, data)
    whose = np.array(run.estimate.diagnostics["clients"])
    for place, own in enumerate(data):
        assert share(run.estimate.value[whose == place], own.x) >= 2 / 3
    assert share(run.estimate.value, rows_of(data)) >= 0.9
    chance = deceive(problem, KERNELS, data, shuffled=True)
    assert share(chance.estimate.value, rows_of(data), within=0.1) == 0.0
    bound = deceive(problem, KERNELS, data, secure_aggregation())
    assert bound.estimate is None and bound.refused
    alike = deceive(inserted(residual), TrapWeights(), data, secure_aggregation())  # positive control
    assert share(alike.estimate.value, rows_of(data)) > 0.9


def test_kernels_read_rows_of_the_class_that_the_first_round_predicts() -> None:
    """Rows of the predicted class have slope 0, so two rounds have to predict different classes."""
    data = [Dataset(own.x, np.zeros(own.rows, int)) for own in clients(4, rows=1)]
    attack, problem = ClientKernels(TrapWeights(rounds=2)), inserted(residual, bins=24, channels=8)
    run = deceive(problem, attack, data, public=Public.of(clients(4, rows=1)))  # four classes
    assert share(run.estimate.value, rows_of(data)) == 1.0


def test_clients_take_turns_where_a_networks_own_convolution_has_few_channels() -> None:
    """Four channels serve two clients at once; what is read behind maximum pooling is the pooled picture."""
    conv = (nn.Unflatten, (1, SHAPE)), (nn.Conv2d, (1, 4, 3)), (nn.ReLU, ()), (nn.MaxPool2d, (2,)), (nn.Flatten, ())
    dense = (nn.Linear, (16, 40)), (nn.ReLU, ()), (nn.Linear, (40, CLASSES))
    problem = TorchModule(module=lambda: nn.Sequential(*(make(*sizes) for make, sizes in (*conv, *dense))))
    data = clients(4, rows=2)
    run = deceive(problem, KERNELS, data)
    assert len(run.broadcasts) == 2 * KERNELS.rounds
    client, initial = simulated(problem, data)
    layers = DenseChain.of(problem.shapes(client.target.public), PIXELS, CLASSES)
    assert layers is not None
    inputs = client_channels(client, layers, initial)
    assert inputs is not None and inputs.least is not None
    pooled, read = (np.stack([inputs.of(row) for row in rows]) for rows in (rows_of(data), run.estimate.value))
    assert share(read, pooled) >= 7 / 8
    strangers = np.stack([inputs.of(row) for row in rows_of(clients(4, 2, seed=9))])
    assert share(read, strangers) == 0.0


def test_a_clients_columns_are_read_as_they_were_written() -> None:
    rng, columns, constant = np.random.default_rng(0), np.array([4, 5, 6]), np.array([7, 8])
    own = ClientChannels(3, np.zeros(3), total=9, columns=columns, constant=constant, level=2.0)
    weight, slopes = rng.normal(size=(5, 3)), rng.normal(size=5)
    whole = own.widen(weight)
    assert np.flatnonzero(whole.any(axis=0)).tolist() == [4, 5, 6]
    whole[:, constant] = 2.0 * slopes[:, None]  # the gradient by the weight of an input that is always 2
    of_all = rng.normal(size=5)  # the bias adds up all clients
    np.testing.assert_allclose(own.read(whole, of_all)[0], weight)
    np.testing.assert_allclose(own.read(whole, of_all)[1], slopes)


def test_noise_stops_both() -> None:
    data, noise = clients(4, rows=2), (clip(0.01), local_gaussian(1.0))
    for problem, attack in ((inserted(residual), TrapWeights()), (inserted(residual, 24, 8), KERNELS)):
        assert share(deceive(problem, attack, data).estimate.value, rows_of(data)) > 0.7  # positive control
        assert share(deceive(problem, attack, data, *noise).estimate.value, rows_of(data), within=0.1) == 0.0


@pytest.mark.parametrize(
    ("problem", "steps", "reason"),
    [
        (inserted(residual), 1, "channels of a convolution"),
        (inserted(residual, channels=1), 1, "channels of a convolution"),
        (inserted(residual, channels=8), 5, "several local steps"),
    ],
)
def test_kernels_say_why_they_do_not_apply(problem: Any, steps: int, reason: str) -> None:
    with pytest.raises(TranscriptError, match=reason):
        deceive(problem, KERNELS, clients(3, 1), steps=steps)
    with pytest.raises(TranscriptError, match="own messages"):
        method = FedAvg(problem=inserted(residual, channels=8), learning_rate=0.05, local_steps=1)
        DeviatingServer(method, clients(3, 1), None, KERNELS, alone=True)
