"""A gradient method's rounds as a simulation: the clients' own `steps`, fed by torch, whoever the members are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from securefed.algorithms.optimization.method import GradientMethod
from securefed.algorithms.optimization.model import Model
from securefed.algorithms.optimization.work import Work
from securefed.attacks.base import Observed, Target
from securefed.attacks.gradient_inversion.gradient_rounds import local_steps, method_of
from securefed.attacks.networks.network import Network
from securefed.attacks.networks.steps import passes
from securefed.errors import TranscriptError
from securefed.problems.torch_problem import TorchProblem
from securefed.public import Public


@dataclass(frozen=True)
class Round:
    """The first round of the members, in which their memory is still zero.

    The update rules are written in `+ - *`, so they run on torch's vectors as they run on the clients' (method.py).

    Attributes:
        sizes: rows of each member; a simulation's rows are theirs, one member after the other.
        received: by part, what the broadcast told every member.
        memories: vectors of a member's memory.
    """

    method: GradientMethod
    public: Public
    sizes: tuple[int, ...]
    received: Mapping[str, Tensor]
    memories: int

    def copies(self) -> int:
        return len(self.method.sent)

    def __call__(self, network: Network, point: Tensor, x: Tensor, y: Tensor) -> Tensor:
        total: dict[str, Tensor] = {}
        start = 0
        for size in self.sizes:
            own = slice(start, start + size)
            start += size
            for part, value in self._member(network, point, x[own], y[own]).items():
                total[part] = total[part] + value if part in total else value
        return torch.cat([total[part] for part in self.method.sent])

    def nothing(self, network: Network, point: Tensor, gradient: float) -> Tensor:
        """What the members would send if every local gradient were this constant."""
        constant = torch.full_like(point, gradient)
        total = None
        for size in self.sizes:
            work = self._work(size, lambda _point, _step: constant, lambda _point: constant)
            sent = self._steps(point, work)
            one = torch.cat([sent[part] for part in self.method.sent])
            total = one if total is None else total + one
        assert total is not None
        return total

    def _member(self, network: Network, point: Tensor, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        parts = passes(len(x), getattr(self.method, "batch_size", None), self._count(len(x)))

        def weights(rows: Tensor) -> Tensor:
            return torch.full((len(rows),), 1.0 / len(rows), dtype=rows.dtype)

        def gradient(at: Tensor, step: int) -> Tensor:
            own = x[parts[step]]
            return network.gradient(at, own, y[parts[step]], weights(own))

        def anchor(at: Tensor) -> Tensor:
            return network.gradient(at, x, y, weights(x))

        return self._steps(point, self._work(len(x), gradient, anchor))

    def _count(self, rows: int) -> int:
        size, epochs = getattr(self.method, "batch_size", None), getattr(self.method, "local_epochs", None)
        whole = 1 if size is None or size >= rows else -(-rows // size)
        return local_steps(self.method) * (whole if epochs is not None else 1)

    def _work(self, rows: int, gradient: Any, anchor: Any) -> Work:
        steps = self._count(rows)
        size = float(min(getattr(self.method, "batch_size", None) or rows, rows))
        return Work(gradient, anchor, self.public, float(rows), (0,) * steps, (size,) * steps)

    def _steps(self, point: Tensor, work: Work) -> dict[str, Tensor]:
        received = {part: (point if part == "x" else value) for part, value in self.received.items()}
        memory = tuple(torch.zeros_like(point) for _ in range(self.memories))
        sent, _ = self.method.steps(cast(Any, received), cast(Any, memory), work)
        return cast(dict[str, Tensor], sent)


@dataclass(frozen=True)
class Scene:
    """A view read for inversion: where, what, and how it came about."""

    network: Network
    round: Round
    point: Tensor
    message: Tensor

    def gradient(self) -> Tensor:
        """The message as the members' mean gradient, averaged along their path; exact for one local step."""
        nothing = self.round.nothing(self.network, self.point, 0.0)
        slope = self.round.nothing(self.network, self.point, 1.0) - nothing
        last = slice(-self.network.size, None)
        safe = torch.where(slope[last] == 0, torch.ones_like(slope[last]), slope[last])
        return (self.message[last] - nothing[last]) / safe


def network_of(problem: TorchProblem, public: Public) -> Network:
    """The problem as an attacker computes with it."""

    def objective(parameters: Mapping[str, Tensor], x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
        return problem.objective(parameters, x, y, weights)

    shapes = problem.shapes(public)
    # What is trained with numbers drawn beside the rows is matched where these have no part: BiGAN's encoder.
    blind = type(problem).companions is not TorchProblem.companions
    seen = tuple(name for name in shapes if name.startswith("encoder.")) if blind else ()
    return Network(shapes, objective, getattr(torch, problem.precision), seen)


def look(observed: Observed, target: Target) -> Scene:
    """The first round of a view.

    Raises:
        TranscriptError: a broadcast or a message lacks a tensor; the text names it and the round.
    """
    method = method_of(target)
    problem = cast(TorchProblem, method.problem)
    model, seen = Model(method.problem, target.public), observed.rounds[0]
    try:
        received = method.read(model, seen.broadcast)
    except KeyError as error:
        raise TranscriptError(
            f"exchange {seen.round}: the broadcast lacks tensor {error}, without which no step can be simulated"
        ) from error
    try:
        sent = [model.vector(part, seen.message) for part in method.sent]
    except KeyError as error:
        raise TranscriptError(f"exchange {seen.round}: the message lacks tensor {error}") from error
    if not all(np.isfinite(vector).all() for vector in (*received.values(), *sent)):
        raise TranscriptError(f"exchange {seen.round}: the view's messages hold numbers that are not finite")
    network = network_of(problem, target.public)
    tensors = {part: torch.as_tensor(np.array(value), dtype=network.dtype) for part, value in received.items()}
    sizes = tuple(target.public.rows[client] for client in sorted(seen.members))
    simulated = Round(method, target.public, sizes, tensors, len(method.memory(model)))
    message = torch.as_tensor(np.concatenate(sent), dtype=network.dtype)
    return Scene(network, simulated, tensors["x"], message)
