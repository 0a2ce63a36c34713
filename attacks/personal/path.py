"""FLAME's rows from its personal models: H known steps lead from theta_i^t to theta_i^{t+1}."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from securefed.algorithms.base import Public
from securefed.algorithms.optimization.model import Model
from securefed.algorithms.optimization.stepping import PassingMethod
from securefed.algorithms.optimization.work import Memory, Vectors, Work
from securefed.algorithms.personalized.flame import FLAME
from securefed.attacks.base import Observed, Reconstruction, Target
from securefed.attacks.gradient_inversion.inversion import reconstruct, scene_of
from securefed.attacks.gradient_inversion.rounds import Seen, why_not
from securefed.attacks.gradient_inversion.search import Race
from securefed.attacks.personal.recursion import read_opened, why_not_opened
from securefed.errors import TranscriptError
from securefed.tensors import Array, Ring


@dataclass(frozen=True, kw_only=True)
class Pulled(PassingMethod):
    """theta <- theta - eta (grad f(theta) + lambda (theta - anchor)) from theta = x; `delta` is where it went (9)."""

    attraction: float = 5.0

    received: ClassVar[tuple[str, ...]] = ("x", "anchor")
    sent: ClassVar[tuple[str, ...]] = ("delta",)

    def factors(self, public: Public) -> Mapping[str, tuple[float, Ring]]:
        return {"delta": (self.learning_rate * self.most_steps(public), 64)}

    def steps(self, received: Vectors, memory: Memory, work: Work) -> tuple[dict[str, Array], Memory]:
        x, anchor = received["x"], received["anchor"]
        theta = x
        for step in range(len(work.sizes)):
            theta = theta - self.learning_rate * (work.gradient(theta, step) + self.attraction * (theta - anchor))
        return {"delta": theta - x}, memory

    def update(self, vectors: Vectors, total: Vectors, survivors: Array, public: Public) -> dict[str, Array]:
        raise NotImplementedError("no server runs this: it is a client's half round, as an attacker knows it")


@dataclass(frozen=True)
class Path:
    """Each round by itself, between two personal models that `personal/recursion` gives: no error is carried on from
    round to round, so that rounds spread over the whole run are fitted together.

    Attributes:
        rounds: fewest rounds fitted, where the view has them.      race: the search.
        limit: unknowns (rows x coordinates) beyond which the least-squares start is returned unfitted.
    """

    rounds: int = 4
    race: Race = Race()
    limit: int = 640

    name: ClassVar[str] = "personal/path"
    secret: ClassVar[str] = "samples"

    def applies(self, target: Target, observed: Observed) -> str | None:
        if not isinstance(target.algorithm, FLAME):
            return "It follows the personal models of FLAME, and this is another algorithm."
        if len(observed.members) > 1:
            return "It follows one client's personal model, and the view shows a sum of several."
        return why_not_opened(observed, target) or why_not(target, observed)

    def run(self, observed: Observed, target: Target, rng: np.random.Generator) -> Reconstruction:
        if (reason := self.applies(target, observed)) is not None:
            raise TranscriptError(reason)
        method, states = target.algorithm, read_opened(observed, target)
        assert isinstance(method, FLAME)
        model, seen = Model(method.problem, target.public), []
        for k, item in enumerate(observed.rounds):
            anchor = states.local[k] if method.anchor == "local" else model.vector("", item.broadcast)
            received = {"x": states.personal[k], "anchor": anchor}
            total = {"delta": states.personal[k + 1] - states.personal[k]}
            seen.append(Seen(received, total, tuple(item.members)))
        steps = Pulled(
            problem=method.problem,
            learning_rate=method.learning_rate,
            local_steps=method.local_steps,
            local_epochs=method.local_epochs,
            batch_size=method.batch_size,
            attraction=method.attraction,
        )
        scene = scene_of(Target(steps, target.public), tuple(seen), rounds=self.rounds)
        return reconstruct(scene, self.race, rng, limit=self.limit, bound=target.public.feature_bound)
