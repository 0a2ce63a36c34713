"""What the fitting attacks share: from a view to a system of equations, and from its solution to samples."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from securefed.algorithms.optimization.dsgd import DSGD
from securefed.algorithms.optimization.fedavg import FedAvg
from securefed.algorithms.optimization.losac import LoSAC
from securefed.algorithms.optimization.model import Model
from securefed.algorithms.optimization.scaffold import Scaffold
from securefed.attacks.base import Observed, Reconstruction, Target
from securefed.attacks.gradient_inversion.glm import LinearModel
from securefed.attacks.gradient_inversion.private import Guess, noisy
from securefed.attacks.gradient_inversion.proximal import is_proximal
from securefed.attacks.gradient_inversion.rounds import (
    Gradients,
    LocalRound,
    Seen,
    as_gradients,
    method_of,
    penalty,
    read,
    stochastic,
)
from securefed.attacks.gradient_inversion.search import SOLVED, Found, Race
from securefed.attacks.gradient_inversion.simulate import Simulation
from securefed.attacks.gradient_inversion.starts import Starts
from securefed.attacks.gradient_inversion.system import System
from securefed.errors import TranscriptError
from securefed.public import Public
from securefed.tensors import Array

_RANK_TOLERANCE = 1e-10
_MOST_ROUNDS = 40
_WARM_UP = 3


@dataclass(frozen=True)
class Scene:
    """A view read for fitting.

    Attributes:
        system: what has to hold.      starts: where to begin.
        whole: the same simulation in all of the rows' coordinates.
        known_points: whether the system is about exact gradients at known points instead of simulated local steps.
        repeatable: whether the clients' steps drew nothing at random; if not, full batches are simulated for them.
    """

    system: System
    starts: Starts
    known_points: bool
    repeatable: bool
    whole: Simulation


def look(observed: Observed, target: Target, *, rounds: int, telescope: bool = False, plain: bool = False) -> Scene:
    """Read a view.

    Args:
        rounds: rounds to fit, more where the rows need them: spread over the run for methods without memory, else
            the first ones.
        telescope: where running sums of the contributions are exact gradients at known points, use those.
        plain: read LoSAC's running sums as full gradients, as they are about once every block has had its turn.

    Raises:
        TranscriptError: the view does not fit the method.
    """
    seen, model = read(observed, target), LinearModel.of(target)
    assert model is not None  # `read` refuses other models
    return scene_of(method_of(target), model, target.public, seen, rounds=rounds, telescope=telescope, plain=plain)


def scene_of(
    method: LocalRound,
    model: LinearModel,
    public: Public,
    seen: tuple[Seen, ...],
    *,
    rounds: int,
    telescope: bool = False,
    plain: bool = False,
) -> Scene:
    """`look` at rounds that are read already."""
    gradients = as_gradients(seen, method, public, model)
    members = sorted({client for item in seen for client in item.members})
    sizes = tuple(public.rows[client] for client in members)
    repeatable = not stochastic(method, sizes)
    # Of proximal methods stored gradients are worth more: they span the rows, which the models do not.
    known = (telescope or is_proximal(method)) and _telescopes(method, seen) and repeatable
    if plain and isinstance(method, LoSAC):
        method, seen = _summed(method, seen)
        gradients = as_gradients(seen, method, public, model)
    elif known:
        method, seen = _telescoped(method, model, public, seen, gradients)
    # A round holds outputs * (B + 1) equations for B * B coordinates: about 2.5 times as many equations are asked for.
    rounds = max(rounds, min(_MOST_ROUNDS, 2 + -(-5 * sum(sizes) // (2 * model.outputs))))
    rounds += len({item.members for item in seen}) - 1  # members that come and go are seen less often
    if any(item.noise for item in seen):  # of which every round holds other noise
        rounds = max(rounds, _MOST_ROUNDS)
    if method.memory(Model(method.problem, public)):
        chosen = list(range(min(rounds, len(seen))))
    else:
        chosen = sorted({round(k) for k in np.linspace(0, len(seen) - 1, rounds)})
    seen = tuple(seen[k] for k in chosen)
    present = tuple(sorted({client for item in seen for client in item.members}))
    simulation = Simulation(method, model, public, seen, present)
    system = System.build(simulation, public.features)
    starts = Starts.of(system, [gradients[k] for k in chosen])
    return Scene(system, starts, known, repeatable, simulation)


def _telescopes(method: LocalRound, seen: tuple[Seen, ...]) -> bool:
    """Whether a client's stored gradient is that at the broadcast model, and all rounds are of the same clients."""
    anchored = isinstance(method, LoSAC | Scaffold) and method.local_steps == 1
    anchored |= isinstance(method, Scaffold) and method.option == "I"
    anchored &= not any(item.clips or item.noise for item in seen)  # what is clipped does not add up, and noise does
    return anchored and len({item.members for item in seen}) == 1


def _summed(method: LoSAC, seen: tuple[Seen, ...]) -> tuple[LocalRound, tuple[Seen, ...]]:
    """phi_i sums the stored gradients of all blocks: about the gradient of all rows, M times it as printed."""
    scale = 1.0 / method.blocks if method.block_scale == "printed" else 1.0
    sums = np.cumsum([item.total["dphi"] for item in seen], axis=0)
    rounds = [Seen({"x": s.received["x"]}, {"gradient": scale * v}, s.members) for s, v in zip(seen, sums, strict=True)]
    return DSGD(problem=method.problem), tuple(rounds[min(_WARM_UP, len(seen) - 1) :])


def _telescoped(
    method: LocalRound, model: LinearModel, public: Public, seen: tuple[Seen, ...], gradients: list[Gradients]
) -> tuple[LocalRound, tuple[Seen, ...]]:
    """The rounds as those of the method that sends exactly these gradients."""
    if isinstance(method, LoSAC):  # stored: n_i * mean gradient, as DSGD sends it
        plain: LocalRound = DSGD(problem=method.problem)
        part, scale = "gradient", 1.0
    else:  # stored: mean gradients, whose sum one uniform step of rate 1 sends with a minus
        plain = FedAvg(problem=method.problem, learning_rate=1.0, local_steps=1, weighting="uniform")
        part, scale = "delta", -1.0 / float(np.mean([public.rows[client] for client in seen[0].members]))
    rounds = []
    for item, read_as in zip(seen, gradients, strict=True):
        sums = float(np.sum([public.rows[c] for c in item.members]))
        total = scale * (read_as.gradient + sums * penalty(model, read_as.point))
        rounds.append(Seen({"x": read_as.point}, {part: total}, item.members))
    return plain, tuple(rounds)


@dataclass(frozen=True)
class Fitting:
    """What the attacks that fit rows to simulated rounds have in common.

    Attributes:
        rounds: fewest rounds fitted, where the view has them.      race: the search.
        limit: unknowns (rows x coordinates) beyond which the least-squares start is returned unfitted.
    """

    rounds: int = 4
    race: Race = Race()
    limit: int = 640

    secret: ClassVar[str] = "samples"

    def solve(self, scene: Scene, rng: np.random.Generator) -> Reconstruction:
        """Search, and turn what was found into samples; an estimate that does not fit is clipped to the public range.

        Raises:
            TranscriptError: the messages lead to numbers that are not finite.
        """
        system, limit = scene.system, self.limit
        if noisy(scene.whole):
            return self._posterior(scene, rng)
        if not all(np.isfinite(item.gradient).all() for item in scene.starts.gradients):
            raise TranscriptError("the view's messages lead to numbers that are not finite")
        if is_proximal(system.simulation.method):  # in full coordinates, through an operator: evaluations cost more
            limit = limit // 3
        if int(np.prod(system.shape)) > limit:
            start = next(scene.starts(rng))
            coordinates, labels, found = scene.starts.samples(start.labels), start.labels, None
        else:
            found = self.race(system, scene.starts, rng)
            coordinates, labels = found.fit.point.reshape(system.shape), found.labels
        return finish(scene, coordinates, labels, found)

    def _posterior(self, scene: Scene, rng: np.random.Generator) -> Reconstruction:
        """Rows under noise of a known size: the posterior mean; a fit where that leaves more than noise."""
        guess = Guess.of(scene.whole, scene.starts.label_counts)
        small = int(np.prod(scene.system.shape)) <= self.limit
        if not guess.explained and small:
            found = self.race(scene.system, scene.starts, rng)
            rows = found.fit.point.reshape(scene.system.shape) @ scene.system.basis
            guess = min(guess, guess.fitted(rows, found.labels), key=lambda one: one.objective)
        system = replace(guess.system, scales=scene.system.scales)
        out = finish(replace(scene, system=system), guess.coordinates, guess.labels, None)
        return replace(
            out,
            unknowns=guess.rows.size,
            diagnostics={**out.diagnostics, "explained": guess.explained, "certain labels": guess.certain},
        )


def finish(scene: Scene, coordinates: Array, labels: Array, found: Found | None) -> Reconstruction:
    """What was found, in the features' own units, with the rank of the equations at that point."""
    system, bound = scene.system, scene.system.simulation.public.feature_bound
    samples = coordinates @ system.basis
    residual = system.relative(coordinates, labels)
    if not residual <= np.sqrt(SOLVED):
        samples = np.clip(np.nan_to_num(samples), -bound, bound)
    if system.simulation.model.mirrored:  # (x, 0) and (-x, 1) are the same; features are rather positive
        labels = (samples.sum(axis=1) < 0).astype(np.int64)
        samples = np.where(labels[:, None] == 1, -samples, samples)
    out = Reconstruction(
        "samples",
        samples,
        labels=labels,
        residual=residual,
        unknowns=int(np.prod(system.shape)),
        members=frozenset(system.simulation.members),
        diagnostics={
            "coordinates": len(system.basis),
            "starts": found.starts if found else 0,
            "steps": found.steps if found else 0,
            "known points": scene.known_points,
            "full batches assumed": not scene.repeatable,
        },
    )
    if found is None or not found.fit.jacobian.size or not np.isfinite(found.fit.jacobian).all():
        return out
    values = np.linalg.svd(found.fit.jacobian, compute_uv=False)
    kept = values[values > _RANK_TOLERANCE * values[0]]
    condition = float(kept[0] / kept[-1]) if kept.size else float("nan")
    return replace(out, rank=int(kept.size), condition=condition)
