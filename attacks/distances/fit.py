"""Distances from graphs: invert the projected gradient steps that made them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import islice
from typing import ClassVar

import numpy as np

from securefed.algorithms.graph.fedavg import FedAvg
from securefed.algorithms.graph.method import GraphMethod, edges_of
from securefed.algorithms.graph.mrmtl import MRMTL
from securefed.algorithms.graph.ppgl import PPGL
from securefed.attacks.base import Observed, Reconstruction, Target
from securefed.attacks.distances.chain import Chain
from securefed.attacks.distances.clear import Opened, open_client
from securefed.attacks.distances.posterior import likeliest
from securefed.attacks.distances.starts import starts
from securefed.attacks.distances.system import System
from securefed.attacks.distances.unclipped import unclipped
from securefed.attacks.levenberg import Geodesic, Patience, levenberg
from securefed.attacks.requirements import too_large, untold
from securefed.errors import TranscriptError
from securefed.tensors import Array

SOLVED = 1e-10
_GOAL = 3e-15
_NEAR = 0.03
_RANK_TOLERANCE = 1e-12
_STAGES = (1, 3, 6, 14)
_CRAWLS, _HOPELESS = 1e-2, 0.3
_QUIET = 0.3
"""Noise, relative to what the messages say, up to which a search that knows of none may come near."""


@dataclass(frozen=True)
class Fit:
    """z_i / N_i of every member, by Levenberg-Marquardt through all steps of all rounds, a few rounds at first.

    One client in the clear: with K = 1 a round is linear in z on the edges that stay positive, so the first step is
    exact; with K > 1 a few are needed. Beyond `dense` distances each step is solved between vertices (`clear`). An edge
    at 0 throughout shows only that its distance is large, and about a sum or two of such distances at each vertex: then
    the rank falls short of the unknowns, and the rest is the completion of largest determinant, likely but not told.

    Of a sum every member is simulated by itself: in the first round all have the same weight, so it gives the pooled
    distances; from the second on the weights gamma_i tell PPGL's clients apart. Who is who among clients with equally
    many rows is not established. IGL sends one number a round.

    The pooled start is a stationary point of the difference between members, so members start apart from it. N members
    are determined by N rounds, and a fit that begins with no more of them ends in wrong minima less often. A search
    that crawls at the end goes on along the valley's curve.

    Clips are simulated. Under noise, and where clips leave less than is sought, the likeliest distances are returned
    (`posterior`), and `diagnostics["explained"]` says whether the noise is as large as was stated.

    Attributes:
        rounds: most rounds fitted.      starts: of PPGL's sums; a fit that explains them is the last.
        steps: most evaluations of a stage.      patience: the same of the other search.
        limit: unknowns (members x edges) of sums, and of IGL, beyond which it is refused.
        vertices: of one client in the clear, likewise; the time grows with the cube of them.
        dense: distances of one client up to which the Jacobian is formed.
        memory: bytes that the simulation may take.
    """

    rounds: int = 14
    starts: int = 2
    steps: int = 100
    patience: int = 12
    limit: int = 600
    vertices: int = 40
    dense: int = 60
    memory: int = 2 * 1024**3

    name: ClassVar[str] = "distances/fit"
    secret: ClassVar[str] = "distances"

    def applies(self, target: Target, observed: Observed) -> str | None:
        if not isinstance(target.algorithm, GraphMethod):
            return "It inverts steps of graph learning, and this algorithm learns none."
        features, members = target.public.features, len(observed.members)
        needed = 8 * 8 * (members + len(observed.rounds)) * features**2
        return (
            untold(observed.rounds)
            or too_large(needed, self.memory, f"The distances of {members} clients between {features} columns")
            or (self._too_many(members, features) if not _clear(target, members) else self._too_wide(features))
        )

    def _too_wide(self, features: int) -> str | None:
        if features <= self.vertices:
            return None
        return (
            f"It would fit {features * (features - 1) // 2} distances between {features} columns; the limit is "
            f"{self.vertices} columns: raise `vertices`, at a cost that grows with its cube. At 50 columns searches "
            "ended in wrong minima: that is a limit of the attack, not of the leak."
        )

    def _too_many(self, members: int, features: int) -> str | None:
        """Why nothing is fitted: a start alone is worse than a guess, and no evidence of protection."""
        edges = features * (features - 1) // 2
        if members * edges <= self.limit:
            return None
        return (
            f"It would fit {members * edges} unknowns, {members} x {edges} distances between {features} columns; the "
            f"limit is {self.limit}: raise `limit`, at a cost that grows with its cube."
        )

    def run(self, observed: Observed, target: Target, rng: np.random.Generator) -> Reconstruction:
        """Raises `TranscriptError` where the simulation would not fit into `memory`, before anything is allocated."""
        if (reason := self.applies(target, observed)) is not None:
            raise TranscriptError(reason)
        observed = unclipped(observed, target)
        system = System.of(observed, target)
        if not all(np.isfinite(seen.total).all() for seen in system.rounds):
            raise TranscriptError("the view's messages are not finite")
        if any(item.clips or any(item.noise.values()) for item in observed.rounds):
            return self._guarded(system, rng)
        chain = Chain.of(observed, target)
        if chain is None or system.edges <= self.dense:
            _, distances, jacobian = self._search(system, rng)
            return self._found(system, distances, jacobian)
        return self._opened(system, open_client(chain, rng, self.patience))

    def _search(self, system: System, rng: np.random.Generator) -> tuple[float, Array, Array]:
        """All members by a dense Jacobian: (misfit, distances, Jacobian)."""
        self._room(system)
        best: tuple[float, Array, Array] | None = None
        tries = self.starts if len(system.members) > 1 and isinstance(system.method, PPGL) else 1
        for start in islice(starts(system, rng), tries):
            fitted = self._climb(system, start)
            if best is None or not fitted[0] >= best[0]:
                best = fitted
            if best[0] <= SOLVED:
                break
        assert best is not None
        return best

    def _guarded(self, system: System, rng: np.random.Generator) -> Reconstruction:
        """Under clips or noise: exactly where that works out, else the likeliest."""
        system = system.first(self.rounds)
        others: tuple[Array, ...] = ()
        if system.determined and system.loudness < _QUIET:
            misfit, distances, jacobian = self._search(system, rng)
            if misfit <= SOLVED:
                return self._found(system, distances, jacobian)
            others = (distances,)
        self._room(system)
        end = likeliest(system, rng, self.steps, others)
        found = self._found(system, end.distances, system.misfit(end.distances)[1])
        return replace(found, diagnostics={**found.diagnostics, **(end.told() if system.loudness else {})})

    def _climb(self, system: System, start: Array) -> tuple[float, Array, Array]:
        """(misfit, distances, Jacobian) from one start, more and more rounds together."""
        most, count, point = min(self.rounds, len(system.rounds)), len(system.members), start.ravel()
        stages = _STAGES if count == 1 else (count, count + 1, 2 * count, self.rounds)
        for stage in sorted({min(k, most) for k in stages}):
            part = system.first(stage)

            def linearised(p: Array, part: System = part) -> tuple[Array, Array]:
                return part.misfit(p.reshape(start.shape))

            def residual(p: Array, part: System = part) -> Array:
                return part.misfit(p.reshape(start.shape), slope=False)[0]

            patience = Patience(_NEAR)
            end = levenberg(linearised, point, steps=self.steps, goal=_GOAL, patience=patience)
            if stage == most >= count and SOLVED < end.norm < _CRAWLS:
                end = levenberg(
                    linearised, end.point, steps=self.steps, goal=_GOAL, residual=residual,
                    patience=patience, stepper=Geodesic(residual),
                )  # fmt: skip
            if not np.isfinite(end.norm):
                break
            point = end.point
            if stage == most or end.norm > _HOPELESS * np.sqrt(stage):
                break
        found, jacobian = system.first(most).misfit(point.reshape(start.shape))
        return float(np.linalg.norm(found)), point.reshape(start.shape), jacobian

    def _found(self, system: System, distances: Array, jacobian: Array) -> Reconstruction:
        rank, condition = 0, float("nan")
        if jacobian.size and np.isfinite(jacobian).all():
            values = np.linalg.svd(jacobian, compute_uv=False)
            kept = values[values > _RANK_TOLERANCE * values[0]]
            rank, condition = int(kept.size), float(kept[0] / kept[-1]) if kept.size else float("nan")
        return self._told(system, distances, rank, condition, {})

    def _opened(self, system: System, opened: Opened) -> Reconstruction:
        counts = {"bounded only": opened.unseen}
        return self._told(system, opened.distances[None], opened.rank, float("nan"), counts)

    def _told(
        self, system: System, distances: Array, rank: int, condition: float, counts: dict[str, int]
    ) -> Reconstruction:
        edges = edges_of(system.public.features)
        largest = (2.0 * system.public.feature_bound) ** 2
        inside = np.clip(np.nan_to_num(distances), 0.0, largest)
        part = system.first(self.rounds)
        residual = float(np.linalg.norm(part.misfit(distances, slope=False)[0]) / np.sqrt(len(part.rounds)))
        return Reconstruction(
            self.secret,
            np.concatenate(edges.adjacency(inside)),
            residual=residual,
            rank=rank,
            unknowns=distances.size,
            condition=condition,
            members=frozenset(system.members),
            diagnostics={"rounds": len(part.rounds)} | counts,
        )

    def _room(self, system: System) -> None:
        count, edges = len(system.members), system.edges
        equations = min(self.rounds, len(system.rounds)) * system.rounds[0].total.size
        needed = 16 * 12 * count * edges**2 + 8 * 4 * equations * count * edges
        if needed > self.memory:
            raise TranscriptError(
                f"fitting {count} clients' distances on {edges} edges takes {needed / 1e9:.1f} GB, the limit is "
                f"{self.memory / 1e9:.1f} GB; raise memory, or take fewer rounds"
            )


def _clear(target: Target, members: int) -> bool:
    """Whether one client's graphs are seen: `Chain.of` is not `None`."""
    return members == 1 and isinstance(target.algorithm, (PPGL, FedAvg, MRMTL))
