"""From observations to vectors: what each round's message says, round by round, in the method's own parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from securefed.algorithms.optimization.losac import LoSAC
from securefed.algorithms.optimization.method import GradientMethod
from securefed.algorithms.optimization.model import Model
from securefed.algorithms.optimization.work import Work
from securefed.attacks.base import Observed, Target
from securefed.attacks.gradient_inversion.glm import LinearModel
from securefed.errors import TranscriptError
from securefed.messages import ClientId
from securefed.tensors import Array


@dataclass(frozen=True)
class Seen:
    """One round: vectors received by the members, and the sum of what they sent."""

    received: Mapping[str, Array]
    total: Mapping[str, Array]
    members: tuple[ClientId, ...]


@dataclass(frozen=True)
class Gradients:
    """A round read as one gradient: `gradient` is the estimated SUM over the members' rows at `point`."""

    point: Array
    gradient: Array


def why_not(target: Target, observed: Observed) -> str | None:
    """Why rounds of a gradient method cannot be read from this view, or `None`."""
    if not isinstance(target.algorithm, GradientMethod):
        return "It inverts gradients, and this algorithm sends none."
    if LinearModel.of(target) is None:
        return "It inverts logistic and softmax regression only."
    if not observed.rounds:
        return "The view holds no messages."
    return None


def method_of(target: Target) -> GradientMethod:
    """The target's algorithm. Raises `TranscriptError` where it is no gradient method."""
    if not isinstance(target.algorithm, GradientMethod):
        raise TranscriptError("gradients can be inverted for gradient methods only")
    return target.algorithm


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
    try:
        return tuple(
            Seen(
                method.read(model, item.broadcast),
                {part: model.vector(part, item.message) for part in method.sent},
                tuple(sorted(item.members)),
            )
            for item in observed.rounds
        )
    except KeyError as error:
        raise TranscriptError(f"the view lacks tensor {error} of {type(method).__name__}") from error


def as_gradients(rounds: tuple[Seen, ...], target: Target, model: LinearModel) -> list[Gradients]:
    """Each round as one gradient at the broadcast model, the members as one average client.

    Steps are linear in the gradients, so a gradient that stays the same all round is read off exactly, through
    the last part of the contribution (`dc`, `dphi`), whose running sums are stored gradients. Exact for one local
    step and constant members (SCAFFOLD: for mean gradients), an average along the path otherwise.
    """
    method = method_of(target)
    public, part = target.public, method.sent[-1]
    memory = tuple(np.zeros_like(vector) for vector in method.memory(Model(method.problem, public)))
    out = []
    for seen in rounds:
        rows = float(np.mean([public.rows[client] for client in seen.members]))
        steps = _steps(method)

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
        out.append(Gradients(seen.received["x"], gradient * rows * len(seen.members)))
    return out


def _steps(method: GradientMethod) -> int:
    return int(getattr(method, "local_steps", 1))


def penalty(model: LinearModel, point: Array) -> Array:
    """Gradient of l2/2 ||W||^2 at parameters (parameters,)."""
    out = model.l2 * point
    if model.bias:
        out[..., -model.outputs :] = 0.0
    return out


def stochastic(method: GradientMethod, rows: tuple[int, ...]) -> bool:
    """Whether the clients' local steps draw rows at random, so that no attacker can repeat them."""
    largest, size = max(rows), getattr(method, "batch_size", None)
    if isinstance(method, LoSAC):
        return method.blocks > 1
    return size is not None and size < largest
