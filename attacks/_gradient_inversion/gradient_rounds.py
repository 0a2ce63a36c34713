"""Read a gradient method's rounds from a view, as one vector for each part of a message.

A gradient method here is one whose clients send what local steps of gradient descent changed: FedAvg, SCAFFOLD, LoSAC
and others. A part of a message is one copy of all parameters, flattened to a vector: `delta`, the change of the model,
or `dx` and `dc` in SCAFFOLD, the changes of the model and of the control variate. Members are the clients whose sum a
round's message is. `row_fit_problem` calls `read_rounds` for these vectors, and `estimate_gradients` for a first
estimate of the gradient behind each round, from which the starts of its search follow.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar, Protocol

import numpy as np

from securefed._messages import ClientId
from securefed._public import Public
from securefed._tensors import Array
from securefed.algorithms._optimization.fedavg import FedAvg
from securefed.algorithms._optimization.local_steps import BatchDraw, LocalTraining, Memory, Vectors
from securefed.algorithms._optimization.method import GradientMethod
from securefed.algorithms._optimization.mimesvrg import GRADIENT, PHASE, MimeSVRG
from securefed.algorithms._optimization.model import Model, label
from securefed.attacks._base import RoundView, Target, View
from securefed.attacks._gradient_inversion.contribution_clipping import ContributionClip
from securefed.attacks._gradient_inversion.linear_model import LinearModel
from securefed.attacks._gradient_inversion.proximal_derivatives import differentiable, is_proximal
from securefed.attacks._requirements import MEMORY, too_large, why_incomplete
from securefed.errors import TranscriptError
from securefed.problems._base import Problem


class LocalRound(Protocol):
    """The part of a method that a simulation of local steps needs; every `GradientMethod` has it.

    Attributes:
        sent: names of the parts of a message, in order.
    """

    sent: ClassVar[tuple[str, ...]]

    @property
    def problem(self) -> Problem:
        """The model and its loss."""
        ...

    def memory(self, model: Model) -> Memory:
        """Return a client's memory before its first round."""
        ...

    def draw(self, rows: int, rng: np.random.Generator) -> BatchDraw:
        """Draw the rows of each local step."""
        ...

    def steps(self, received: Vectors, memory: Memory, work: LocalTraining) -> tuple[dict[str, Array], Memory]:
        """Run the local steps; return the contribution and the new memory."""
        ...


@dataclass(frozen=True)
class GradientRound:
    """One round: vectors that the members received, and the sum of their contributions.

    Attributes:
        received: the vectors that the members received, by the method's names: `x` is the model.
        total: by part, the sum of their contributions.
        members: clients in the sum.
        rounding: by part, standard deviation of an entry's error in the sum, where a defence has the members round
            their contributions to a grid (fixed point); zeros without.
        clips: how a defence clipped each member's contribution.
        noise: by part, standard deviation of the noise in an entry of the sum.
    """

    received: Mapping[str, Array]
    total: Mapping[str, Array]
    members: tuple[ClientId, ...]
    rounding: Mapping[str, float] = field(default_factory=dict)
    clips: tuple[ContributionClip, ...] = ()
    noise: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class GradientEstimate:
    """Gradient estimated from one round.

    Attributes:
        point: parameters at which the gradient was taken.
        gradient: the estimated SUM over the members' rows, without the gradient of the penalty.
        error: bound on the error of an entry that rounding to a grid causes, if all tensors have the same grid; 0
            where nothing was rounded.
    """

    point: Array
    gradient: Array
    error: float = 0.0


def why_not_invertible(target: Target, observed: View) -> str | None:
    """Return why rows cannot be recovered from this view by gradient inversion, or `None` if they can."""
    method = target.algorithm
    if not isinstance(method, GradientMethod):
        return "It inverts gradients, and this algorithm sends none."
    if LinearModel.of(target) is None:
        return "It inverts logistic and softmax regression only."
    return (
        _not_simulable(method, target.public.rows)
        or why_incomplete(observed.rounds)
        or (None if _gradient_observations(observed, method) else "The view holds no messages.")
        or _too_large(target, observed)
    )


def _too_large(target: Target, observed: View) -> str | None:
    """Return why the rounds' vectors and the unknown rows do not fit into memory, or `None`.

    The fit expresses rows in coordinates (`directions`): of the space that the messages span, or all features. Its
    largest arrays hold, by feature, some eight float64 numbers for each output of each round, and four for each
    coordinate and each row.
    """
    model, rounds, public = LinearModel.of(target), len(observed.rounds), target.public
    assert model is not None  # `why_not_invertible` refuses other models
    rows = sum(public.rows[client] for client in observed.members)
    directions = public.features if is_proximal(method_of(target)) else rounds * model.outputs
    needed = 8 * (public.features + 1) * (8 * rounds * model.outputs + 4 * directions + 4 * rows)
    return too_large(
        needed,
        MEMORY,
        f"Inverting {rounds} rounds of {public.features} x {model.outputs} parameters for {rows} rows",
        "attack fewer rounds or members",
    )


def _not_simulable(method: GradientMethod, rows: tuple[int, ...]) -> str | None:
    """Return why the clients' rounds cannot be simulated, or `None`."""
    if differentiable(method) is None:
        return "It simulates local steps, and these pass through a proximal operator of unknown derivative."
    if getattr(method, "local_epochs", None) is not None and stochastic(method, rows):
        return "It simulates clients that make equally many local steps; these make more the more rows they have."
    return None


def method_of(target: Target) -> GradientMethod:
    """Return the method whose rounds `read_rounds` returns.

    It is the target's, or, for MimeSVRG, one that sends the same messages as its first phase.

    Raises:
        TranscriptError: the target's algorithm is no gradient method.
    """
    if isinstance(target.algorithm, MimeSVRG):  # phase 0 sends the mean gradient at x: minus a step of rate 1
        return FedAvg(problem=target.algorithm.problem, learning_rate=1.0, local_steps=1, weighting="uniform")
    if not isinstance(target.algorithm, GradientMethod):
        raise TranscriptError("only gradient methods can be inverted; the target's algorithm is none")
    return differentiable(target.algorithm) or target.algorithm


def _gradient_observations(observed: View, method: object) -> list[RoundView]:
    """Select the rounds to read: all, or MimeSVRG's first phases, which send gradients at the broadcast model.

    A round of MimeSVRG is two exchanges, its phases, of which the second sends model updates.
    """
    if not isinstance(method, MimeSVRG):
        return list(observed.rounds)
    return [item for item in observed.rounds if int(item.broadcast[PHASE]) == GRADIENT]


def read_rounds(observed: View, target: Target) -> tuple[GradientRound, ...]:
    """Read the view's rounds.

    Raises:
        TranscriptError: the view does not fit the method.
    """
    reason = why_not_invertible(target, observed)
    if reason is not None:
        raise TranscriptError(reason)
    method = method_of(target)
    model = Model(method.problem, target.public)
    mime = isinstance(target.algorithm, MimeSVRG)

    # By part of the method that is simulated, the part's name in the recorded messages. MimeSVRG sends the gradient as
    # `direction`; the stand-in of `method_of` sends minus the gradient as `delta`.
    names = {"delta": "direction"} if mime else {part: part for part in method.sent}
    sign = -1 if mime else 1

    def converted(item: RoundView) -> GradientRound:
        """Read one round."""
        rounding = math.sqrt(len(item.members) / 12)  # standard deviation for a grid of step 1
        return GradientRound(
            method.read(model, item.broadcast),
            {part: sign * model.vector(name, item.message) for part, name in names.items()},
            tuple(sorted(item.members)),
            {part: rounding * _root_mean_square(model, name, item.step) for part, name in names.items()},
            _clips(model, names, item),
            {part: _root_mean_square(model, name, item.noise) for part, name in names.items()} if item.noise else {},
        )

    try:
        return tuple(converted(item) for item in _gradient_observations(observed, target.algorithm))
    except KeyError as error:
        raise TranscriptError(f"the view lacks tensor {error} of {type(method).__name__}") from error


def _root_mean_square(model: Model, part: str, by_tensor: Mapping[str, float]) -> float:
    """Return the root mean square, over a part's entries, of numbers given by tensor."""
    squares = [spec.size * by_tensor.get(label(part, spec.name), 0.0) ** 2 for spec in model.layout]
    return float(np.sqrt(sum(squares) / model.layout.size))


def _clips(model: Model, names: Mapping[str, str], item: RoundView) -> tuple[ContributionClip, ...]:
    """Return the clips of a round; none if one of them covers tensors that are not read.

    Args:
        model: the model, whose first tensor holds the weights and whose second, if any, the bias.
        names: by part, its name in the recorded messages.
        item: the round.
    """
    weights, *bias = model.layout
    # Places count from the end of the vector, where the bias is: a simulation with fewer coordinates than features
    # shortens the weights in front of it.
    cut = -sum(spec.size for spec in bias) or None
    where = {weights.name: slice(None, cut)} | {spec.name: slice(cut, None) for spec in bias}
    places = {label(name, of): (part, at) for part, name in names.items() for of, at in where.items()}
    if not all(name in places for together, _ in item.clips for name in together):
        return ()
    return tuple(ContributionClip(tuple(places[name] for name in together), norm) for together, norm in item.clips)


def estimate_gradients(
    rounds: tuple[GradientRound, ...], method: LocalRound, public: Public, model: LinearModel
) -> list[GradientEstimate]:
    """Estimate the gradient behind each round, as if all members were one average client whose gradient stays the same.

    Local steps are linear in the gradients: with the same gradient g in all steps, a member sends known + slope g, with
    a vector `known` and a number `slope` that two simulations show, one with g = 0 and one with g = 1. The message then
    gives g. Only the last part of a message is used: in SCAFFOLD `dc`, in LoSAC `dphi`. These are changes of a gradient
    that the client stores, which `memory` follows from round to round.

    The result is exact for one local step if the members are the same in all rounds; where clients send mean gradients
    unweighted, as in SCAFFOLD, they must also hold equally many rows. Otherwise it is an average of the gradients at
    the points of the local steps.

    Args:
        rounds: the rounds, in order.
        method: the client's part of a round.
        public: the public facts of the federation.
        model: the linear model.

    Returns:
        One estimate for each round.
    """
    part = method.sent[-1]
    memory = method.memory(Model(method.problem, public))
    out = []
    for item in rounds:
        rows = float(np.mean([public.rows[client] for client in item.members]))
        work = partial(_training_with, rows=rows, steps=local_steps(method), public=public, model=model)
        zero = np.zeros_like(item.received["x"])
        known = method.steps(item.received, memory, work(zero))[0][part]
        # The penalty nearly cancels in the difference of the two simulations, of which all entries are then equal: the
        # coefficient of g. (From the second step on they are at different points, so their penalties differ. A bias,
        # which comes last, has none.)
        slope = float((method.steps(item.received, memory, work(zero + 1.0))[0][part] - known)[-1])
        gradient = (item.total[part] / len(item.members) - known) / slope
        memory = method.steps(item.received, memory, work(gradient))[1]
        # m members round by at most half a grid step each, so the sum is off by at most m / 2 steps. That is sqrt(3 m)
        # times the standard deviation `rounding`, sqrt(m / 12) steps.
        error = math.sqrt(3 * len(item.members)) * item.rounding.get(part, 0.0) * rows / abs(slope)
        out.append(GradientEstimate(item.received["x"], gradient * rows * len(item.members), error))
    return out


def _training_with(gradient: Array, *, rows: float, steps: int, public: Public, model: LinearModel) -> LocalTraining:
    """Return the local training of a client whose gradient is `gradient` plus the penalty's, in every step."""

    def oracle(point: Array, _: int = 0) -> Array:  # in place of the gradient of the client's rows
        return gradient + penalty(model, point)

    # every local step uses all rows, and a method that remembers gradients by block has the one block 0
    return LocalTraining(
        gradient=oracle, anchor=oracle, public=public, rows=rows, blocks=(0,) * steps, sizes=(rows,) * steps
    )


def stores_gradients(method: object, public: Public) -> bool:
    """Return whether clients send changes of a gradient that they store, beside their steps (SCAFFOLD, LoSAC).

    What a client sends in its first round is then its whole gradient, and little afterwards.
    """
    if not isinstance(method, GradientMethod) or len(method.sent) < 2:
        return False
    return bool(method.memory(Model(method.problem, public)))


def joins_unattacked(method: object, public: Public) -> bool:
    """Return whether clients keep a state between rounds but send no stored gradient, as FedADMM's and FedSaga's.

    The first message of a client that joins late is then unlike its later ones, and no attack reads it apart.
    """
    if not isinstance(method, GradientMethod) or stores_gradients(method, public):
        return False
    return bool(method.memory(Model(method.problem, public)))


def local_steps(method: LocalRound) -> int:
    """Return the number of local steps of a client with one row; one full batch is one pass."""
    return len(method.draw(1, np.random.default_rng(0)).parts)


def penalty(model: LinearModel, point: Array) -> Array:
    """Return the gradient of l2/2 ||W||^2 at a vector of parameters."""
    out = model.l2 * point
    if model.bias:
        out[..., -model.outputs :] = 0.0
    return out


def stochastic(method: LocalRound, rows: tuple[int, ...]) -> bool:
    """Return whether the clients' local steps draw rows at random, so that an attacker cannot repeat them."""
    parts = method.draw(max(rows), np.random.default_rng(0)).parts
    return any(not isinstance(part, slice) for part in parts)
