"""From observations to vectors: what each round's message says, round by round, in the method's own parts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

import numpy as np

from securefed.algorithms.optimization.fedavg import FedAvg
from securefed.algorithms.optimization.method import GradientMethod
from securefed.algorithms.optimization.mimesvrg import GRADIENT, PHASE, MimeSVRG
from securefed.algorithms.optimization.model import Model, label
from securefed.algorithms.optimization.work import Draw, Memory, Vectors, Work
from securefed.attacks.base import Observation, Observed, Target
from securefed.attacks.gradient_inversion.clipping import Clip
from securefed.attacks.gradient_inversion.glm import LinearModel
from securefed.attacks.gradient_inversion.proximal import differentiable, is_proximal
from securefed.attacks.requirements import MEMORY, too_large, untold
from securefed.errors import TranscriptError
from securefed.messages import ClientId
from securefed.problems.base import Problem
from securefed.public import Public
from securefed.tensors import Array


class LocalRound(Protocol):
    """A client's round as anybody can run it: what a simulation needs of a `GradientMethod`, which is one. A part of a
    method's round, with no server of its own, is another."""

    sent: ClassVar[tuple[str, ...]]

    @property
    def problem(self) -> Problem: ...

    def memory(self, model: Model) -> Memory: ...

    def draw(self, rows: int, rng: np.random.Generator) -> Draw: ...

    def steps(self, received: Vectors, memory: Memory, work: Work) -> tuple[dict[str, Array], Memory]: ...


@dataclass(frozen=True)
class Seen:
    """One round: vectors received by the members, and the sum of what they sent.

    Attributes:
        rounding: by part, standard deviation of what rounding to fixed point added to an entry of the sum.
        clips: what each member's contribution was scaled down to.
        noise: by part, standard deviation of the noise in an entry of the sum.
    """

    received: Mapping[str, Array]
    total: Mapping[str, Array]
    members: tuple[ClientId, ...]
    rounding: Mapping[str, float] = field(default_factory=dict)
    clips: tuple[Clip, ...] = ()
    noise: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Gradients:
    """A round read as one gradient.

    Attributes:
        point: where it was taken.      gradient: the estimated SUM over the members' rows.
        error: how far rounding to fixed point, of one step for all tensors, may have moved an entry of it; 0 without.
    """

    point: Array
    gradient: Array
    error: float = 0.0


def why_not(target: Target, observed: Observed) -> str | None:
    """Why rounds of a gradient method cannot be read from this view, or `None`."""
    method = target.algorithm
    if not isinstance(method, GradientMethod):
        return "It inverts gradients, and this algorithm sends none."
    if LinearModel.of(target) is None:
        return "It inverts logistic and softmax regression only."
    return (
        _not_replayed(method, target.public.rows)
        or untold(observed.rounds)
        or (None if _told(observed, method) else "The view holds no messages.")
        or _no_room(target, observed)
    )


def _no_room(target: Target, observed: Observed) -> str | None:
    """Why the vectors of the rounds, and as many rows as are sought, do not fit into memory, or `None`."""
    model, rounds, public = LinearModel.of(target), len(observed.rounds), target.public
    assert model is not None  # `why_not` refuses other models
    rows = sum(public.rows[client] for client in observed.members)
    directions = public.features if is_proximal(method_of(target)) else rounds * model.outputs
    needed = 8 * (public.features + 1) * (8 * rounds * model.outputs + 4 * directions + 4 * rows)
    return too_large(
        needed,
        MEMORY,
        f"Inverting {rounds} rounds of {public.features} x {model.outputs} parameters for {rows} rows",
        "attack fewer rounds or members",
    )


def _not_replayed(method: GradientMethod, rows: tuple[int, ...]) -> str | None:
    """Why the clients' rounds cannot be simulated, or `None`."""
    if differentiable(method) is None:
        return "It replays local steps, and these pass through a proximal operator whose derivative it does not know."
    if getattr(method, "local_epochs", None) is not None and stochastic(method, rows):
        return "It replays clients that all make equally many local steps, and these make more the more rows they have."
    return None


def method_of(target: Target) -> GradientMethod:
    """The method whose rounds `read` returns: the target's, or one that sends the same where only a part is read.

    Raises:
        TranscriptError: the target's algorithm is no gradient method.
    """
    if isinstance(target.algorithm, MimeSVRG):  # phase 0 sends the mean gradient at x: minus a step of rate 1
        return FedAvg(problem=target.algorithm.problem, learning_rate=1.0, local_steps=1, weighting="uniform")
    if not isinstance(target.algorithm, GradientMethod):
        raise TranscriptError("gradients can be inverted for gradient methods only")
    return differentiable(target.algorithm) or target.algorithm


def _told(observed: Observed, method: object) -> list[Observation]:
    """The rounds that are read: all, or those of MimeSVRG's first phase, its gradients at the broadcast model."""
    if not isinstance(method, MimeSVRG):
        return list(observed.rounds)
    return [item for item in observed.rounds if int(item.broadcast[PHASE]) == GRADIENT]


def read(observed: Observed, target: Target) -> tuple[Seen, ...]:
    """The view's rounds.

    Raises:
        TranscriptError: the view does not fit the method.
    """
    reason = why_not(target, observed)
    if reason is not None:
        raise TranscriptError(reason)
    method = method_of(target)
    model = Model(method.problem, target.public)
    mime = isinstance(target.algorithm, MimeSVRG)

    names = {"delta": "direction"} if mime else {part: part for part in method.sent}
    sign = -1 if mime else 1

    def seen(item: Observation) -> Seen:
        return Seen(
            method.read(model, item.broadcast),
            {part: sign * model.vector(name, item.message) for part, name in names.items()},
            tuple(sorted(item.members)),
            {part: _rounding(model, name, item) for part, name in names.items()},
            _clips(model, names, item),
            {part: _noise(model, name, item) for part, name in names.items()} if item.noise else {},
        )

    try:
        return tuple(seen(item) for item in _told(observed, target.algorithm))
    except KeyError as error:
        raise TranscriptError(f"the view lacks tensor {error} of {type(method).__name__}") from error


def _rounding(model: Model, part: str, item: Observation) -> float:
    """Of numbers rounded to the nearest of a grid: step / sqrt(12) a member, as a root mean square over the entries."""
    squares = [spec.size * item.step.get(label(part, spec.name), 0.0) ** 2 for spec in model.layout]
    return float(np.sqrt(len(item.members) * sum(squares) / (12 * model.layout.size)))


def _noise(model: Model, part: str, item: Observation) -> float:
    """As a root mean square over the entries."""
    squares = [spec.size * item.noise.get(label(part, spec.name), 0.0) ** 2 for spec in model.layout]
    return float(np.sqrt(sum(squares) / model.layout.size))


def _clips(model: Model, names: Mapping[str, str], item: Observation) -> tuple[Clip, ...]:
    """The clips of a round; none where one of them reckons with tensors that are not read."""
    weights, *bias = model.layout
    cut = -sum(spec.size for spec in bias) or None  # counted from the end, places hold in any coordinates of the rows
    where = {weights.name: slice(None, cut)} | {spec.name: slice(cut, None) for spec in bias}
    places = {label(name, of): (part, at) for part, name in names.items() for of, at in where.items()}
    if not all(name in places for together, _ in item.clips for name in together):
        return ()
    return tuple(Clip(tuple(places[name] for name in together), norm) for together, norm in item.clips)


def as_gradients(rounds: tuple[Seen, ...], method: LocalRound, public: Public, model: LinearModel) -> list[Gradients]:
    """Each round as one gradient at the broadcast model, the members as one average client.

    Steps are linear in the gradients, so a gradient that stays the same all round is read off exactly, through
    the last part of the contribution (`dc`, `dphi`), whose running sums are stored gradients. Exact for one local
    step and constant members (SCAFFOLD: for mean gradients), an average along the path otherwise.
    """
    part = method.sent[-1]
    memory = method.memory(Model(method.problem, public))
    out = []
    for seen in rounds:
        rows = float(np.mean([public.rows[client] for client in seen.members]))
        steps = local_steps(method)

        def work(gradient: Array, rows: float = rows, steps: int = steps) -> Work:
            def oracle(point: Array, _: int = 0) -> Array:
                return gradient + penalty(model, point)

            return Work(oracle, oracle, public, rows, (0,) * steps, (rows,) * steps)

        zero = np.zeros_like(seen.received["x"])
        known = method.steps(seen.received, memory, work(zero))[0][part]
        # The penalty is the same in both, so the difference is the data's coefficient (exact for l2 = 0 or one step).
        slope = float((method.steps(seen.received, memory, work(zero + 1.0))[0][part] - known)[-1])
        gradient = (seen.total[part] / len(seen.members) - known) / slope
        memory = method.steps(seen.received, memory, work(gradient))[1]
        # Half a step a member, of which the rounding is the deviation of even parts.
        error = math.sqrt(3 * len(seen.members)) * seen.rounding.get(part, 0.0) * rows / abs(slope)
        out.append(Gradients(seen.received["x"], gradient * rows * len(seen.members), error))
    return out


def local_steps(method: LocalRound) -> int:
    """Local steps of a client with one row, one full batch each where they are counted in passes."""
    return len(method.draw(1, np.random.default_rng(0)).parts)


def penalty(model: LinearModel, point: Array) -> Array:
    """Gradient of l2/2 ||W||^2 at parameters (parameters,)."""
    out = model.l2 * point
    if model.bias:
        out[..., -model.outputs :] = 0.0
    return out


def stochastic(method: LocalRound, rows: tuple[int, ...]) -> bool:
    """Whether the clients' local steps draw rows at random, so that no attacker can repeat them."""
    parts = method.draw(max(rows), np.random.default_rng(0)).parts
    return any(not isinstance(part, slice) for part in parts)
