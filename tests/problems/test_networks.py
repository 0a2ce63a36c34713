"""Networks: any torch module, what torch is left as, the BiGAN's codes, and a dense network's written-out gradients."""

from __future__ import annotations

import copy
import subprocess
import sys
import warnings
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from securefed import Array, Dataset, Federation, Public
from securefed._persistence.packing import pack, restore
from securefed.algorithms import FedAvg
from securefed.errors import ConfigError, DataError
from securefed.problems import Autoencoder, BiGAN, DenseNetwork, TorchModule
from securefed.problems._torch_problem import tensor

FACTS = Public(2, 2, 6, (5, 4), 3, 1.0)
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(5, 6)), np.array([0, 1, 2, 1, 0])


class Small(nn.Module):
    """A network with names that packing reserves, and a norm that clients can share."""

    def __init__(self, outputs: int = 3) -> None:
        super().__init__()
        self.add_module("in/out:1%", nn.Linear(6, 4))
        self.norm, self.last = nn.GroupNorm(2, 4), nn.Linear(4, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.norm(self._modules["in/out:1%"](x))))


@dataclass(frozen=True)
class _State:
    x: dict[str, Array]


def absolute(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (output[:, 0] - target).abs()


def double(**settings) -> TorchModule:
    return TorchModule(**{"module": Small, "precision": "float64"} | settings)


def start(problem, seed: int = 0) -> dict[str, Array]:
    return problem.initial(FACTS, np.random.default_rng(seed))


# ------------------------------------------------------------------------------------------------ any module


def test_a_module_gives_torchs_own_loss_and_gradient() -> None:
    problem, module = double(l2=0.2), Small().double()
    loss = nn.functional.cross_entropy(module(torch.from_numpy(X)), torch.from_numpy(Y))
    weights = [value for value in module.parameters() if value.ndim >= 2]
    (loss + 0.1 * sum(value.square().sum() for value in weights)).backward()
    names = {"in/out:1%.weight": "in%2Fout%3A1%25.weight", "in/out:1%.bias": "in%2Fout%3A1%25.bias"}
    own = {names.get(name, name): value for name, value in module.named_parameters()}
    parameters = {name: value.detach().numpy() for name, value in own.items()}
    assert problem.shapes(FACTS) == {name: value.shape for name, value in parameters.items()}
    for name, value in problem.gradient(parameters, X, Y).items():
        np.testing.assert_allclose(value, own[name].grad.numpy(), atol=1e-15)
    assert restore(_State(parameters), pack(_State(parameters))).x.keys() == parameters.keys()
    np.testing.assert_array_equal(problem.predict(parameters, X), module(torch.from_numpy(X)).argmax(dim=1).numpy())


def test_a_module_is_kept_however_many_others_there_are() -> None:
    """Made anew within `vmap` it would draw, and that is refused there."""
    first = [double(), copy.copy(double())]  # a copy is made of the state, as in another process
    for width in range(4, 44):
        double(module=partial(Small, width))
    assert first[0] == first[1]
    for problem in first:
        at, target = start(problem), problem.targets(Dataset(X, Y))
        found = problem.gradients({k: v[None] for k, v in at.items()}, X[None], target[None], np.full((1, 5), 0.2))
        assert all(np.isfinite(value).all() for value in found.values())


@pytest.mark.parametrize(
    "problem",
    [
        double(),
        double(criterion="squared_error", compared_with="responses", module=partial(Small, 1)),
        double(criterion=absolute, compared_with="responses"),
        double(criterion="squared_error", compared_with="rows", module=partial(Small, 6)),
        double(module=lambda: nn.Sequential(nn.Conv2d(1, 2, 2), nn.Flatten(), nn.Linear(4, 3)), input_shape=(1, 2, 3)),
    ],
    ids=["labels", "responses", "function", "rows", "images"],
)
def test_modules_of_every_kind_run_batched_as_in_the_loop(problem: TorchModule) -> None:
    y = X[:, 0] if problem.compared_with == "responses" else Y
    target = problem.targets(Dataset(X, y))
    at = [start(problem, seed) for seed in (1, 2)]
    x = np.stack([X, X])
    x[1, 3:] = 9.0
    weights = np.array([[0.2] * 5, [1 / 3] * 3 + [0.0] * 2])
    found = problem.gradients(
        {name: np.stack([p[name] for p in at]) for name in at[0]}, x, np.stack([target, target]), weights
    )
    for k, rows in enumerate((5, 3)):
        for name, value in problem.gradient(at[k], X[:rows], target[:rows]).items():
            np.testing.assert_allclose(found[name][k], value, atol=1e-12)
    assert np.isfinite(problem.loss(at[0], X, target))
    assert problem.measure(at[0], X, target).keys() == problem.measures(FACTS).keys()


def test_a_module_trains_in_a_federation() -> None:
    rng = np.random.default_rng(1)
    clients = []
    for _ in range(3):
        x = rng.normal(size=(20, 6))
        clients.append(Dataset(x, x[:, :3].argmax(axis=1)))
    problem = TorchModule(module=lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)))
    result = Federation(FedAvg(problem=problem, learning_rate=0.5, local_steps=5), clients, seed=2).run(20)
    scores = [problem.score(result.output, data.x, data.y) for data in clients]
    assert min(scores) > 0.7
    assert problem.score(start(problem), clients[0].x, clients[0].y) < 0.6


def test_a_frozen_parameter_stays_as_built() -> None:
    def build() -> nn.Module:
        module = Small()
        module.last.weight.requires_grad_(False)
        return module

    problem = double(module=build)
    assert "last.weight" not in problem.shapes(FACTS)
    assert problem.gradient(start(problem), X, Y).keys() == problem.shapes(FACTS).keys()


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"module": lambda: nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3))}, "'1' \\(BatchNorm1d\\).*GroupNorm"),
        ({"module": lambda: nn.Sequential(nn.Linear(6, 3), nn.Dropout(0.1))}, "set p=0"),
        ({"module": lambda: nn.MultiheadAttention(6, 2, dropout=0.1)}, "MultiheadAttention.*dropout=0"),
        ({"module": lambda: nn.GRU(6, 3, num_layers=2, dropout=0.1)}, "GRU.*dropout=0"),
        ({"module": lambda: nn.Sequential(nn.Linear(6, 3), nn.RReLU())}, "RReLU.*LeakyReLU"),
        ({"module": nn.ReLU}, "no parameters"),
        ({"module": Small()}, "an instance of Small; pass .* its class, or functools.partial"),
        ({"module": "Small"}, "module must be a function; got 'Small'; pass"),
        ({"module": nn.Linear}, "failed when called without arguments .*in_features.*; pass"),
        ({"module": dict}, "makes dict, not a torch.nn.Module"),
        ({"criterion": "hinge"}, "criterion must be one of"),
        ({"compared_with": "images"}, "compared_with must be one of"),
        ({"compared_with": "rows"}, "choose another criterion"),
        ({"precision": "float8"}, "one of 'float32', 'float64'"),
    ],
)
def test_modules_that_cannot_be_shared_are_refused(settings: dict, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        double(**settings)


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.linear(x)


@pytest.mark.parametrize(
    ("settings", "facts", "says"),
    [
        ({"module": Counter}, {}, "changes the module's buffer 'calls'"),
        ({}, {"features": 7}, r"rows of shape \(7,\)"),
        ({"input_shape": (2, 2)}, {}, r"rows of shape \(2, 2\)"),
        ({}, {"classes": 4}, "4 classes need as many logits"),
        ({}, {"classes": 1}, "at least 2 classes"),
    ],
)
def test_modules_that_do_not_fit_the_data_are_refused(settings: dict, facts: dict, says: str) -> None:
    public = {"features": 6, "classes": 3} | facts
    with pytest.raises(ConfigError, match=says):
        double(**settings).shapes(Public(2, 2, public["features"], (5, 4), public["classes"], 1.0))


def test_responses_and_labels_are_not_mistaken_for_each_other() -> None:
    with pytest.raises(DataError, match="real responses"):
        double(criterion=absolute, compared_with="responses").targets(Dataset(X, Y))
    with pytest.raises(DataError, match="needs labels"):
        double().targets(Dataset(X))


@pytest.mark.exhaustive
def test_repr_identifies_the_problem_in_any_process() -> None:
    made = "TorchModule(module=partial(torch.nn.Linear, 6, out_features=3), precision='float64')"
    names = "import torch; from functools import partial; from securefed.problems import TorchModule"
    code = f"{names}; print(repr({made}))"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert printed == repr(double(module=partial(nn.Linear, 6, out_features=3)))
    here = double(module=partial(Small, 2), criterion=absolute)
    others = [double(module=partial(Small, 3), criterion=absolute), double(module=partial(Small, 2))]
    others += [double(module=partial(Small, 2), criterion=absolute, l2=0.1)]
    assert len({repr(here), *map(repr, others)}) == 4


# ------------------------------------------------------------------------------------------------ torch, left as found


def test_torchs_random_state_and_settings_are_left_as_found() -> None:
    before, threads, grad = torch.random.get_rng_state(), torch.get_num_threads(), torch.is_grad_enabled()
    problem = double()
    at = start(problem)
    problem.shapes(FACTS)
    problem.gradient(at, X, Y)
    problem.loss(at, X, Y)
    assert torch.equal(before, torch.random.get_rng_state())
    assert (threads, grad) == (torch.get_num_threads(), torch.is_grad_enabled())
    assert torch.get_default_dtype() == torch.float32
    with torch.no_grad():  # a caller's setting does not reach into a gradient
        np.testing.assert_array_equal(problem.gradient(at, X, Y)["last.bias"], problem.gradient(at, X, Y)["last.bias"])


def test_the_start_follows_the_numpy_generator_alone() -> None:
    problem = double()
    torch.manual_seed(1)
    first = start(problem, 3)
    torch.manual_seed(2)
    again, other = start(problem, 3), start(problem, 4)
    for name in first:
        np.testing.assert_array_equal(first[name], again[name])
    assert any(not np.array_equal(first[name], other[name]) for name in first)


def test_arrays_become_tensors_without_copies_or_warnings() -> None:
    array = np.arange(6.0)
    shared = np.broadcast_to(array, (3, 6))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        view, spread = tensor(array), tensor(shared)
    assert view.data_ptr() == array.ctypes.data == spread.data_ptr()
    np.testing.assert_array_equal(spread.numpy(), shared)


# ------------------------------------------------------------------------------------------------ networks by name


@pytest.mark.parametrize("hidden", [(5,), (5, 4), (4, 4, 4)])
def test_dense_gradients_written_out_are_torchs(hidden: tuple[int, ...]) -> None:
    problem = DenseNetwork(hidden=hidden, precision="float64", l2=0.3)
    at = start(problem)
    one = problem.gradient(at, X, Y)
    many = problem.gradients({name: value[None] for name, value in at.items()}, X[None], Y[None], np.full((1, 5), 0.2))
    for name, value in one.items():
        np.testing.assert_allclose(many[name][0], value, atol=1e-14)


def test_glorot_weights_have_their_variance_and_biases_are_zero() -> None:
    wide = Public(2, 2, 300, (5, 4), 10, 1.0)
    drawn = DenseNetwork(hidden=(200,)).initial(wide, np.random.default_rng(0))
    limit = np.sqrt(6 / 500)
    assert np.abs(drawn["weight1"]).max() <= limit
    assert drawn["weight1"].std() == pytest.approx(limit / np.sqrt(3), rel=0.01)  # 60000 draws: standard error 0.2 %
    assert not drawn["bias1"].any()
    uniform = DenseNetwork(hidden=(200,), start="uniform").initial(wide, np.random.default_rng(0))
    assert 0.9 / np.sqrt(300) < np.abs(uniform["bias1"]).max() <= 1 / np.sqrt(300)


def test_an_autoencoder_finds_a_line() -> None:
    """Rows on a line through the origin fit through a code of one number; others come back worse."""
    rng, problem = np.random.default_rng(2), Autoencoder(layers=(8, 1), precision="float64")
    direction = rng.normal(size=6)
    x = rng.uniform(-1, 1, (40, 1)) * direction
    at, y = start(problem), problem.targets(Dataset(x))
    for _ in range(1500):
        at = {name: at[name] - 0.1 * value for name, value in problem.gradient(at, x, y).items()}
    assert problem.loss(at, x, y) < 0.02 * np.mean(x**2)
    other = rng.normal(size=(40, 6))
    assert problem.loss(at, other, y) > 10 * problem.loss(at, x, y)


# ------------------------------------------------------------------------------------------------ the BiGAN's codes


def test_codes_are_standard_normal_and_follow_the_rows() -> None:
    problem = BiGAN(layers=(4, 3))
    rows = RNG.normal(size=(4000, 6)).astype(np.float32)
    codes = problem.companions(rows, rows[:, :0])
    assert codes.shape == (4000, 3)
    assert abs(codes.mean()) < 0.04  # 12000 draws: standard error 0.009; of the deviation 0.0065
    assert codes.std() == pytest.approx(1.0, abs=0.03)
    np.testing.assert_array_equal(codes, problem.companions(rows.copy(), rows[:, :0]))
    other = problem.companions(rows[::-1], rows[:, :0])
    assert abs(np.corrcoef(codes.ravel(), other.ravel())[0, 1]) < 0.04  # another order, other codes
    assert abs(np.corrcoef(codes[:, 0], rows[:, 0])[0, 1]) < 0.07  # a code says nothing of its row: 4 / sqrt(4000)


def test_players_move_only_their_own_parameters() -> None:
    """At D = 0 the discriminator has a slope and the others have none, whatever they are."""
    problem = BiGAN(layers=(4, 2), precision="float64")
    at = start(problem)
    at |= {name: np.zeros_like(at[name]) for name in ("discriminator.weight2", "discriminator.bias2")}
    found = problem.gradient(at, X, problem.targets(Dataset(X)))
    assert np.abs(found["discriminator.weight2"]).max() > 1e-3
    for name, value in found.items():
        if not name.startswith("discriminator"):
            np.testing.assert_array_equal(value, 0.0)
