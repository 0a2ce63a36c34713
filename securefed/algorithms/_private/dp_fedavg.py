"""FedAvg whose clients train a torch module by DP-SGD, so that single rows are private towards all other parties.

Every local step is DP-SGD (Abadi et al., CCS 2016), run by opacus' `PrivacyEngine`: each row is drawn with a fixed
probability, the gradient of each drawn row is clipped to an L2 norm of C, and Gaussian noise is added to their sum.
The accountant of opacus adds up epsilon over all rounds of a run. A client's upload is private by itself, so that no
defence need add noise. Needs the extra `records` (opacus).

A round is FedAvg's: a run calls `contribute` at each client, and the server adds the mean of the clients' changes to
its model. A client's new state is dropped where the round does not count it, but its privacy cost stays (`spend`).
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import lru_cache, partial
from typing import Any, ClassVar

import numpy as np
import torch

from securefed._extras import needed_for
from securefed._hyperparameters import check_number, check_positive, checked_integers
from securefed._process_lock import PROCESS_LOCK
from securefed._public import Public, require
from securefed._sampling.random_stream import SecureRandomStream, uniforms
from securefed._sampling.rounded_normal import SMALLEST_DEVIATION, grid_for, rounded_normal_draws
from securefed._tensors import Array, Ring, Tensors
from securefed.algorithms._capabilities import result_or_error
from securefed.algorithms._optimization.fedavg import FedAvg
from securefed.algorithms._optimization.method import ModelClient
from securefed.datasets._base import Dataset
from securefed.errors import BudgetSpent, ConfigError, SecureFedError
from securefed.problems._torch_module import TorchModule

with needed_for("record-level privacy"):
    from opacus import PrivacyEngine
    from opacus.accountants import RDPAccountant
    from opacus.optimizers import DPOptimizer
    from opacus.validators.errors import UnsupportedModuleError

History = tuple[tuple[float, float, int], ...]
"""The steps whose cost an accountant adds up: (noise multiplier, sampling rate, number of steps), in order."""
_TAIL = 8.0
"""Standard deviations of noise for which a bound leaves room; an entry exceeds them once in 8e14."""


@dataclass(frozen=True, kw_only=True)
class PrivateClient(ModelClient):
    """A client with the privacy cost of all contributions it has computed, whether or not a sum counted them.

    Attributes:
        spent: the accountant's history.
    """

    spent: History = ()


@dataclass(frozen=True, kw_only=True)
class PrivateFedAvg(FedAvg):
    """FedAvg whose local steps are opacus' DP-SGD: y <- y - eta ((clipped row gradients + noise) / (q n) + l2 y).

    The penalty l2 y, the problem's, is on weights alone and not on biases.

    Attributes:
        problem: a `TorchModule`; opacus must be able to take gradients of single rows of it.
        batch_size: b: rows of a step in the mean; each of the n rows is drawn with probability q = 1 / ceil(n / b).
        max_grad_norm: C, the L2 norm of a row's gradient after clipping.
        noise_multiplier: the noise's standard deviation over C.
        epsilon: a client refuses a round that would cost it more than this in all; `None`: no limit.
        delta: the delta of epsilon.

    Neighbours: one row of one client is there, or is not (opacus accounts for Poisson sampling); n_i is public. Rows of
    different clients do not add up, so the run costs the largest of the clients' epsilons.
    Claimed: epsilon(client), against every observer of that client's uploads, all rounds together; rounds that were
        void, rolled back or refused count. A run resumed from a checkpoint knows all rounds up to the checkpoint.
    Floating point: every row's clipped gradient is rounded to a grid, the sum is exact, the noise is a normal deviate
        rounded to the same grid and drawn exactly, and only then everything is cast to the module's precision. The
        grid's step is a power of two, at most 2^-30 of the noise's standard deviation (coarser only where
        `noise_multiplier` is below about 2^-22 times the number of rows). A row whose gradient is not finite adds
        zeros, so that no row can make a client refuse before its noise; a refusal for the range is made of the noised
        upload, and epsilon holds for it too.
    Assumed: a row's gradient, as floating point computes it, does not depend on the rows drawn beside it; the time a
        step takes is not observed. Noise and draws come from the operating system, not from torch's generator.
    NOT claimed: anything for `Public` facts, or for exchanges after the last checkpoint of a run that was killed: use
        `checkpoint_every=1`, and count one more round after a crash. Evaluation sums are refused: they have no noise.
    """

    batch_size: int | None = 32
    max_grad_norm: float = 1.0
    noise_multiplier: float = 1.0
    epsilon: float | None = None
    delta: float = 1e-5

    replayable: ClassVar[bool] = False  # an attacker cannot repeat its steps: their noise is drawn afresh

    def __post_init__(self) -> None:
        super().__post_init__()
        require(isinstance(self.problem, TorchModule), "opacus trains torch modules; make the problem a TorchModule")
        require(self.local_epochs is None, "Poisson draws have no epochs; give local_steps")
        for name in ("max_grad_norm", "noise_multiplier", *(() if self.epsilon is None else ("epsilon",))):
            check_positive(name, getattr(self, name))
        check_number("delta", self.delta, below=1, positive=True)

    def factors(self, public: Public) -> dict[str, tuple[float, Ring]]:
        """Return FedAvg's bounds with room for the noise; a refused upload would void a round that is paid for.

        FedAvg bounds an entry of `delta`, the sum of T steps, by weight eta T gradient_bound (`factor` is that over the
        gradient's bound). The noise of T steps adds at most _TAIL weight eta sqrt(T) `deviation`, which is the share
        `room` of that.
        """
        assert isinstance(self.problem, TorchModule)
        factor, ring = super().factors(public)["delta"]
        smallest = min(self.rate(rows) * rows for rows in set(public.rows))
        deviation = self.noise_multiplier * self.max_grad_norm / smallest  # of an entry of a step's mean gradient
        room = _TAIL * deviation / (math.sqrt(self.local_steps) * self.problem.gradient_bound)
        return {"delta": (factor * (1 + room), ring)}

    def assumptions(self, public: Public) -> tuple[str, ...]:
        """Return the privacy guarantee and its assumptions, in sentences for the plan that users read before a run."""
        per_round = max(self.per_round(rows) for rows in set(public.rows))
        limit = "" if self.epsilon is None else f" and at most {self.epsilon:g} in the run"
        return (
            f"One row of a client, there or not: epsilon {per_round:.4g} for one round{limit} at delta {self.delta:g}, "
            "against every observer of its uploads; rounds add up by opacus' Renyi accountant.",
        )

    def rate(self, rows: int) -> float:
        """Return the sampling rate q of a client with so many rows."""
        return 1 / math.ceil(rows / min(self.batch_size or rows, rows))

    def per_round(self, rows: int) -> float:
        """Return the epsilon that one round costs a client with so many rows."""
        return self._epsilon(((self.noise_multiplier, self.rate(rows), self.local_steps),))

    def spent(self, client: ModelClient) -> float:
        """Return the epsilon of everything that this client's rows have been used for so far."""
        assert isinstance(client, PrivateClient)
        return self._epsilon(client.spent)

    def enroll(self, data: Dataset, public: Public, rng: np.random.Generator) -> PrivateClient:
        """Return a client's state before its first round, with nothing spent."""
        plain = super().enroll(data, public, rng)
        return PrivateClient(**{field.name: getattr(plain, field.name) for field in fields(plain)})

    def contribute(
        self, client: ModelClient, broadcast: Tensors, rng: np.random.Generator
    ) -> tuple[ModelClient, Tensors]:
        """Compute one client's contribution.

        Raises:
            BudgetSpent: the round would exceed `epsilon`; no row has been used.
        """
        assert isinstance(client, PrivateClient)
        self._afford(client)
        received = self.read(client.model, broadcast)["x"]
        trained, history = self._trained(client, client.model.layout.unflatten(received), self._randomness(rng))
        weight = self.weight(float(client.data.rows), client.model.public)
        sent = {"delta": weight * (client.model.flatten(trained) - received)}
        tentative, contribution = self._contribution(client, sent, ())
        assert isinstance(tentative, PrivateClient)
        return replace(tentative, spent=history), contribution

    def contribute_together(
        self, clients: Sequence[ModelClient], broadcast: Tensors, rngs: Sequence[np.random.Generator]
    ) -> list[tuple[ModelClient, Tensors] | SecureFedError]:
        """Return for each client the result of `contribute`, or the error; opacus trains one model at a time."""
        pairs = zip(clients, rngs, strict=True)
        return [result_or_error(self.contribute, client, broadcast, rng) for client, rng in pairs]

    def evaluate(self, client: ModelClient, broadcast: Tensors) -> Tensors:
        """Refuse to evaluate, since the sums would be exact and epsilon would not hold.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(
            "a client of private/fedavg sends no evaluation sums, which would be exact and without noise; score the "
            "released model on public rows"
        )

    def spend(self, state: ModelClient, computed: ModelClient) -> ModelClient:
        """Return `state` with the privacy cost of `computed`; it counts as soon as a contribution is computed."""
        assert isinstance(state, PrivateClient)
        assert isinstance(computed, PrivateClient)
        return replace(state, spent=computed.spent)

    def noised_steps(self, state: ModelClient) -> tuple[float, float, int]:
        """Return noise multiplier, sampling rate and number of the local steps of one contribution."""
        return self.noise_multiplier, self.rate(state.data.rows), self.local_steps

    def _afford(self, client: PrivateClient) -> None:
        """Raise `BudgetSpent` where another round would exceed `epsilon`."""
        if self.epsilon is None:
            return
        after = self._epsilon(_composed(client.spent, self.noised_steps(client)))
        if after > self.epsilon:
            raise BudgetSpent(
                f"another round would cost a row epsilon {after:.4g} at delta {self.delta:g}, the budget is "
                f"{self.epsilon:g}; stop here, or plan with more noise"
            )

    def _epsilon(self, history: History) -> float:
        """Return the epsilon of these steps at `delta`."""
        return _renyi(history, self.delta) if history else 0.0

    def _randomness(self, rng: np.random.Generator) -> SecureRandomStream:
        """Return the source of a contribution's sampling and noise; it ignores `rng`, which a run's seed repeats."""
        return SecureRandomStream()

    def _trained(
        self, client: PrivateClient, start: Tensors, stream: SecureRandomStream
    ) -> tuple[dict[str, Array], History]:
        """Return the parameters after the local steps, and the accountant's state."""
        problem, data = self.problem, client.data
        assert isinstance(problem, TorchModule)
        with np.errstate(over="ignore"):  # rows beyond the precision have no finite gradient, and add zeros
            x = torch.from_numpy(np.asarray(data.x, problem.dtype))
        y = torch.from_numpy(np.asarray(problem.companions(data.x, problem.targets(data))))
        module = problem.instance(problem.tensors(start))
        expected = self.rate(data.rows) * data.rows
        with _quiet():
            engine = _Engine(stream, data.rows, accountant="rdp")
            engine.accountant.history = list(client.spent)
            private, optimizer, loader = self._engaged(engine, module, x, y, expected)
            rate = 1 / len(loader)
            for _ in range(self.local_steps):
                drawn = torch.from_numpy(np.flatnonzero(uniforms(stream, data.rows) < rate))
                optimizer.zero_grad()
                output = private(problem.shaped(x[drawn]))
                torch.autograd.backward(problem.compared(output, x[drawn], y[drawn]).sum())
                optimizer.step()
        history = tuple((float(noise), float(q), int(steps)) for noise, q, steps in engine.accountant.history)
        return problem.parameters_of(private), history

    def _engaged(
        self, engine: PrivacyEngine, module: torch.nn.Module, x: torch.Tensor, y: torch.Tensor, expected: float
    ) -> tuple[Any, Any, Any]:
        """Return the module, optimiser and loader of opacus.

        Gradients are sums over rows here; the division that makes them means is part of the learning rate.
        """
        trained = [value for value in module.parameters() if value.requires_grad]
        weights: dict[str, Any] = {
            "params": [value for value in trained if value.ndim >= 2],
            "weight_decay": getattr(self.problem, "l2", 0.0) * expected,
        }
        biases: dict[str, Any] = {"params": [value for value in trained if value.ndim < 2], "weight_decay": 0.0}
        groups = [group for group in (weights, biases) if group["params"]]
        optimizer = torch.optim.SGD(groups, lr=self.learning_rate / expected)
        rows = torch.utils.data.TensorDataset(x, y)
        loader: Any = torch.utils.data.DataLoader(rows, batch_size=min(self.batch_size or len(x), len(x)))
        try:
            made: tuple[Any, Any, Any] = engine.make_private(
                module=module.train(),
                optimizer=optimizer,
                data_loader=loader,
                noise_multiplier=self.noise_multiplier,
                max_grad_norm=self.max_grad_norm,
                loss_reduction="sum",
                poisson_sampling=False,  # the rows are drawn here, by the operating system's randomness
            )
        except UnsupportedModuleError as error:
            raise ConfigError(f"opacus cannot take gradients of single rows of this module: {error}") from error
        made[0].forbid_grad_accumulation()
        return made


class _SecureOptimizer(DPOptimizer):  # type: ignore[misc]
    """opacus' optimiser with gradients on a grid and noise from the operating system, not from a Mersenne twister.

    Attributes:
        stream: source of the noise.
        rows: number of the client's rows, drawn or not; the sum of so many clipped gradients fits the grid in float64.
    """

    def __init__(self, stream: SecureRandomStream, rows: int, **settings: Any) -> None:
        super().__init__(**settings)
        self.stream, self.rows = stream, rows

    @property
    def grid(self) -> float:
        """The grid's step, a power of two: fine against the noise, and so that the sum of all rows fits 2^52 steps."""
        fits = math.ceil(math.log2(self.rows * self.max_grad_norm)) - 52  # the sum is at most rows * C
        return max(grid_for(self.noise_multiplier * self.max_grad_norm), 2.0**fits)

    def clip_and_accumulate(self) -> None:
        """Sum the rows' gradients in steps of the grid: each clipped, rounded by itself, zeros where it is not finite.

        A row then moves the sum by its own integers, exactly, of a norm of at most `max_grad_norm` and half a step for
        each entry.
        """
        parts = [self._get_flat_grad_sample(p).flatten(1) for p in self.params]
        finite = torch.stack([part.isfinite().all(1) for part in parts]).all(0)  # of each row
        squares = torch.stack([part.double().square().sum(1) for part in parts]).sum(0)
        entries = sum(part.shape[1] for part in parts)
        # a row's norm, made larger than any rounding of its computation
        norms = squares.sqrt() * (1 + (entries + 8) * float(np.finfo(np.float64).eps))
        factors = (self.max_grad_norm / norms).clamp(max=1.0) / self.grid
        for p, part in zip(self.params, parts, strict=True):
            clipped = part.double().masked_fill(~finite[:, None], 0.0) * factors.masked_fill(~finite, 0.0)[:, None]
            p.summed_grad = clipped.round().sum(0)

    def add_noise(self) -> None:
        """Add noise in whole steps of the grid, then cast: never less than is accounted for."""
        entries = sum(p.numel() for p in self.params)
        moved = self.max_grad_norm + math.sqrt(entries) * self.grid / 2  # what one row moves the sum by, at most
        deviation = max(self.noise_multiplier * moved / self.grid, SMALLEST_DEVIATION)
        for p in self.params:
            noise = torch.from_numpy(rounded_normal_draws(deviation, p.numel(), self.stream))
            p.grad = ((p.summed_grad + noise) * self.grid).to(p.dtype).view_as(p)


class _Engine(PrivacyEngine):  # type: ignore[misc]
    """opacus' engine, which makes a `_SecureOptimizer`."""

    def __init__(self, stream: SecureRandomStream, rows: int, **settings: Any) -> None:
        super().__init__(**settings)
        self.stream, self.rows = stream, rows

    def _prepare_optimizer(self, *, optimizer: Any, **settings: Any) -> DPOptimizer:
        names = ("noise_multiplier", "max_grad_norm", "expected_batch_size", "loss_reduction")
        chosen = {name: settings[name] for name in names}
        return _SecureOptimizer(stream=self.stream, rows=self.rows, optimizer=optimizer, **chosen)


def _composed(history: History, step: tuple[float, float, int]) -> History:
    """Append steps to a history as opacus' accountant does: equal steps in a row are one entry."""
    if history and history[-1][:2] == step[:2]:
        return (*history[:-1], (*step[:2], history[-1][2] + step[2]))
    return (*history, step)


@lru_cache(maxsize=1024)
def _renyi(history: History, delta: float) -> float:
    """Return epsilon by opacus' Renyi accountant."""
    accountant = RDPAccountant()
    accountant.history = list(history)
    with _quiet():
        return max(0.0, float(accountant.get_epsilon(delta)))  # the conversion may end below 0


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress opacus' warnings about its own generator, which is not used here, and torch's about backward hooks.

    One thread at a time: Python's filters of warnings are the process's, and are put back at the end.
    """
    with PROCESS_LOCK, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Secure RNG turned off")
        warnings.filterwarnings("ignore", message="Full backward hook is firing")
        warnings.filterwarnings("ignore", message="Optimal order is the (largest|smallest) alpha")
        yield


def perceptron(*widths: int) -> torch.nn.Module:
    """Make a network of dense layers with ReLU between them; widths are features, hidden layers, classes."""
    require(len(widths) >= 2, f"widths must be two or more: features, hidden layers, classes; got {widths}")
    layers: list[torch.nn.Module] = []
    for before, after in itertools.pairwise(widths):
        layers += [torch.nn.Linear(before, after), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])


def private_fedavg(
    problem: TorchModule | None = None, widths: Sequence[int] = (64, 10), **settings: Any
) -> PrivateFedAvg:
    """Build `PrivateFedAvg` from a command line's settings: of `problem`, or of a `perceptron` of these widths."""
    module = partial(perceptron, *checked_integers("widths", widths))
    return PrivateFedAvg(problem=problem or TorchModule(module=module), **settings)


def named_like(state: Mapping[str, Any], like: Mapping[str, Any]) -> dict[str, Any]:
    """Rename the parameters of `state` as in `like`; opacus puts `_module.` before the names of modules it trains.

    So a mean of private clients loads into a plain model and the other way round:
    `model.load_state_dict(named_like(mean, model.state_dict()))`.

    Raises:
        ConfigError: the names differ by more than that prefix.
    """
    names = {bare(name): name for name in like}
    if set(names) != {bare(name) for name in state}:
        odd = sorted({bare(name) for name in state} ^ set(names))
        raise ConfigError(f"the states are not of one model: {odd[:3]} are in one of them only")
    return {names[bare(name)]: value for name, value in state.items()}


def bare(name: str) -> str:
    """Return a parameter's name without opacus' prefix."""
    return name.removeprefix("_module.")
