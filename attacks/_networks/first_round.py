"""Simulate the first round of a federated gradient method in torch, by calling the method's own `steps`.

Inputs are the first round of a view (the broadcast, and the sum of the messages of some clients, its members) and the
algorithm. `steps` is the method's own function of the local training: given what a client received, its memory and a
function that computes gradients, it returns the message. In the first round the memory (stored gradients, control
variates) is still zero, so the sum is a known, differentiable function of the members' rows and targets. Network
inversion (`view_inversion`) searches for the rows for which it equals the observed sum.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from securefed._public import Public
from securefed.algorithms._optimization.local_steps import LocalTraining
from securefed.algorithms._optimization.method import GradientMethod
from securefed.algorithms._optimization.model import Model, label
from securefed.attacks._base import RoundView, Target, View
from securefed.attacks._gradient_inversion.gradient_rounds import local_steps, method_of
from securefed.attacks._networks.client_simulations import batch_slices, mean_weights, pass_slices
from securefed.attacks._networks.flat_network import FlatNetwork
from securefed.errors import TranscriptError
from securefed.problems._torch_problem import TorchProblem

_TINY = 1e-30
"""Smallest squared length whose root is taken, since roots have no derivative at 0; float32 holds it too."""
_REACHED = 1e-3
"""Relative distance within which a message's length counts as the one it was clipped to; rounding makes them differ."""


@dataclass(frozen=True)
class FirstRoundSimulation:
    """Compute the message of a round's members from their rows, while their memory is still zero.

    The update rules use only `+ - *`, so that they run on torch's vectors as they do on the clients' arrays.

    Attributes:
        method: the algorithm.
        public: facts that every party knows.
        sizes: rows of each member; the rows of a simulation are those of one member after the other.
        received: vectors of the broadcast, by the method's names; `x` is the model.
        memories: number of vectors in a member's memory.
        matched: 1 for entries of a message that depend on the rows alone, 0 for others, which are not compared.
        clips: how a defence clipped each member's message: (copies * parameters,) 1 for the entries that were clipped
            together, 0 for others; and the L2 norm that they were clipped to.
    """

    method: GradientMethod
    public: Public
    sizes: tuple[int, ...]
    received: Mapping[str, Tensor]
    memories: int
    matched: Tensor
    clips: tuple[tuple[Tensor, float], ...] = ()

    def copies(self) -> int:
        """Return the number of parts of a message: vectors of all parameters, such as SCAFFOLD's dx and dc."""
        return len(self.method.sent)

    def __call__(self, network: FlatNetwork, point: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Return the sum of the members' messages, (copies * parameters,).

        Args:
            network: the model and its loss.
            point: (parameters,) initial parameters.
            x: (B, features) rows of one member after the other.
            y: (B, ...) their targets.
        """
        total, start = torch.zeros((), dtype=x.dtype), 0
        for size in self.sizes:
            rows = slice(start, start + size)
            start += size
            sent = self._member(network, point, x[rows], y[rows])
            total = total + self._clipped(torch.cat([sent[part] for part in self.method.sent]))
        return total * self.matched

    def _clipped(self, sent: Tensor) -> Tensor:
        """Apply the clips to one member's message, (copies * parameters,)."""
        for together, norm in self.clips:
            length = (sent * together).square().sum().clamp_min(_TINY).sqrt()
            sent = sent * (1.0 + together * ((norm / length).clamp(max=1.0) - 1.0))
        return sent

    def with_constant_gradient(self, network: FlatNetwork, point: Tensor, gradient: float) -> Tensor:
        """Return what the members would send, before any clip, if every entry of every gradient were this number."""
        constant, total = torch.full_like(point, gradient), torch.zeros((), dtype=point.dtype)
        for size in self.sizes:
            sent = self._steps(point, self._work(size, lambda _point, _step: constant, lambda _point: constant))
            total = total + torch.cat([sent[part] for part in self.method.sent])
        return total * self.matched

    def _member(self, network: FlatNetwork, point: Tensor, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        """Return one member's message, by the method's name of each part."""
        batches = self._batches(len(x))

        def gradient(parameters: Tensor, step: int) -> Tensor:
            rows = x[batches[step]]
            return network.gradient(parameters, rows, y[batches[step]], mean_weights(rows))

        def anchor(parameters: Tensor) -> Tensor:
            return network.gradient(parameters, x, y, mean_weights(x))

        return self._steps(point, self._work(len(x), gradient, anchor))

    def _batches(self, rows: int) -> list[slice]:
        """Return the rows of each local step of a member with so many rows, taken in their order.

        `local_steps` gives the steps of a client with one row: for methods that count passes over the rows
        (`local_epochs`), the passes. A pass ends with a smaller batch where the rows do not fill the last one.
        """
        size, steps = getattr(self.method, "batch_size", None), local_steps(self.method)
        if getattr(self.method, "local_epochs", None) is not None:
            return pass_slices(rows, size, steps)
        return batch_slices(rows, size, steps)

    def _work(self, rows: int, gradient: Any, anchor: Any) -> LocalTraining:
        """Return the method's description of a member's local training, with these gradient functions."""
        sizes = tuple(float(len(range(rows)[batch])) for batch in self._batches(rows))
        # gradient of a step, gradient of all rows, public facts, rows, then the block and the rows of each step
        return LocalTraining(gradient, anchor, self.public, float(rows), (0,) * len(sizes), sizes)

    def _steps(self, point: Tensor, work: LocalTraining) -> dict[str, Tensor]:
        """Run the method's own local steps from zero memory."""
        received = {part: (point if part == "x" else value) for part, value in self.received.items()}
        memory = tuple(torch.zeros_like(point) for _ in range(self.memories))
        sent, _ = self.method.steps(cast(Any, received), cast(Any, memory), work)
        return cast(dict[str, Tensor], sent)


@dataclass(frozen=True)
class FirstRoundView:
    """The first round of a view, as an inversion needs it.

    Attributes:
        network: the model and its loss.
        simulation: computes the members' message from their rows.
        point: (parameters,) initial parameters of the members.
        message: (copies * parameters,) the sum of their messages.
    """

    network: FlatNetwork
    simulation: FirstRoundSimulation
    point: Tensor
    message: Tensor

    def scaled(self) -> bool:
        """Return whether a clip may have scaled the message: not where one member's is shorter than the clip's norm."""
        if len(self.simulation.sizes) > 1:
            return bool(self.simulation.clips)
        lengths = [(float((self.message * together).norm()), norm) for together, norm in self.simulation.clips]
        return any(length >= norm * (1.0 - _REACHED) for length, norm in lengths)

    def gradient(self) -> Tensor:
        """Return the members' mean gradient, averaged along their path; exact for one local step.

        Where a defence clipped their messages, it comes out too small by a factor that is not known.

        Update rules are linear in the gradients, so a message is offset + slope * gradient, entry by entry, where the
        gradients of all local steps are equal; offset and slope follow from simulations with constant gradients 0 and
        1.
        """
        offset = self.simulation.with_constant_gradient(self.network, self.point, 0.0)
        slope = self.simulation.with_constant_gradient(self.network, self.point, 1.0) - offset
        last_vector = slice(-self.network.size, None)  # the last part: in SCAFFOLD dc, a change of a stored gradient
        divisor = torch.where(slope[last_vector] == 0, torch.ones_like(slope[last_vector]), slope[last_vector])
        return (self.message[last_vector] - offset[last_vector]) / divisor


def network_of(problem: TorchProblem, public: Public) -> FlatNetwork:
    """Return the problem's loss as a function of one flat vector of parameters."""

    def objective(parameters: Mapping[str, Tensor], x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
        return problem.objective(parameters, x, y, weights)

    return FlatNetwork(problem.shapes(public), objective, getattr(torch, problem.precision))


def read_first_round(observed: View, target: Target) -> FirstRoundView:
    """Read the first round of a view.

    Raises:
        TranscriptError: the broadcast or the message lacks a tensor, or holds numbers that are not finite.
    """
    method = method_of(target)
    problem = cast(TorchProblem, method.problem)
    model, first = Model(method.problem, target.public), observed.rounds[0]
    try:
        received = method.read(model, first.broadcast)
    except KeyError as error:
        raise TranscriptError(
            f"exchange {first.round}: the broadcast lacks tensor {error}, without which no step can be simulated"
        ) from error
    try:
        sent = [model.vector(part, first.message) for part in method.sent]
    except KeyError as error:
        raise TranscriptError(f"exchange {first.round}: the message lacks tensor {error}") from error
    if not all(np.isfinite(vector).all() for vector in (*received.values(), *sent)):
        raise TranscriptError(f"exchange {first.round}: the view's messages hold numbers that are not finite")
    network = network_of(problem, target.public)
    tensors = {part: torch.as_tensor(np.array(value), dtype=network.dtype) for part, value in received.items()}
    sizes = tuple(target.public.rows[client] for client in sorted(first.members))
    matched = _depends_on_rows_alone(problem, network).repeat(len(method.sent))
    clips, memories = _clips(method, network, first), len(method.memory(model))
    simulation = FirstRoundSimulation(method, target.public, sizes, tensors, memories, matched, clips)
    message = torch.as_tensor(np.concatenate(sent), dtype=network.dtype)
    return FirstRoundView(network, simulation, tensors["x"], message * matched)


def _clips(method: GradientMethod, network: FlatNetwork, observed: RoundView) -> tuple[tuple[Tensor, float], ...]:
    """Return the clips of a round, as `FirstRoundSimulation.clips`; none if one covers tensors that are not read."""
    starts = {part: number * network.size for number, part in enumerate(method.sent)}
    places = {
        label(part, name): slice(start + place.start, start + place.stop)
        for part, start in starts.items()
        for name, place in network.places.items()
    }
    if not all(name in places for together, _ in observed.clips for name in together):
        return ()
    out = []
    for together, norm in observed.clips:
        entries = torch.zeros(network.size * len(method.sent), dtype=network.dtype)
        for name in together:
            entries[places[name]] = 1.0
        out.append((entries, norm))
    return tuple(out)


def _depends_on_rows_alone(problem: TorchProblem, network: FlatNetwork) -> Tensor:
    """Return (parameters,) 1 where messages depend on the rows alone, else 0.

    Some problems draw numbers beside the rows (`companions`), which the attacker cannot know: BiGAN draws latent codes.
    Only the gradient of its encoder does not depend on them.
    """
    if type(problem).companions is TorchProblem.companions:
        return torch.ones(network.size, dtype=network.dtype)
    out = torch.zeros(network.size, dtype=network.dtype)
    for name, place in network.places.items():
        if name.startswith("encoder."):
            out[place] = 1.0
    return out
