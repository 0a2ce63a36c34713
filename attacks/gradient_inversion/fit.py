"""Joint simulate-and-fit: the rows that, run through the clients' own steps, send what was observed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from securefed.algorithms.optimization.work import Draw
from securefed.attacks.base import Observed, Reconstruction, Target
from securefed.attacks.gradient_inversion.between import between
from securefed.attacks.gradient_inversion.draws import Alternation, number
from securefed.attacks.gradient_inversion.glm import LinearModel
from securefed.attacks.gradient_inversion.inversion import Fitting, Scene, finish, look
from securefed.attacks.gradient_inversion.proximal import is_proximal
from securefed.attacks.gradient_inversion.rounds import method_of, read, why_not
from securefed.attacks.gradient_inversion.search import SOLVED, run


@dataclass(frozen=True)
class Fit(Fitting):
    """Levenberg-Marquardt on several rounds together, labels unknown, in the row space of the messages.

    Every member is simulated by itself, so sums over clients with several local steps are modelled exactly.
    One client's mini-batches and random blocks are searched for together with its rows (`draws`): then
    `diagnostics["batches"]` holds the rows of every step of every round, numbered as they are estimated. Where that
    fails, and of sums, full batches stand in for them: the residual shows it, and `diagnostics["draws"]` says why. Such
    an estimate is no evidence of protection.

    Attributes:
        draws: the search for draws.
    """

    draws: Alternation = Alternation()

    name: ClassVar[str] = "gradient_inversion/fit"

    def applies(self, target: Target, observed: Observed) -> str | None:
        return why_not(target, observed)

    def run(self, observed: Observed, target: Target, rng: np.random.Generator) -> Reconstruction:
        scene = look(observed, target, rounds=self.rounds)
        if scene.repeatable:
            return self._between(observed, target, scene, rng) or self.solve(scene, rng)
        reason = self._why_no_draws(scene)
        if reason is None:
            found = self._with_draws(observed, target, rng)
            if found.residual <= np.sqrt(SOLVED):
                return found
            reason = f"searched for in vain: they leave a residual of {found.residual:.1e}"
        plain = self.solve(scene, rng)
        return replace(plain, diagnostics={**plain.diagnostics, "draws": reason})

    def _between(
        self, observed: Observed, target: Target, scene: Scene, rng: np.random.Generator
    ) -> Reconstruction | None:
        """Rows fitted to gradients at known points and then to the messages, or `None` where that explains nothing."""
        model = LinearModel.of(target)
        assert model is not None  # `look` refuses other models
        known = between(method_of(target), model, target.public, read(observed, target), self.rounds)
        if known is None or int(np.prod(known.system.shape)) > self.limit:
            return None
        found, system = self.race(known.system, known.starts, rng), scene.system
        rows = found.fit.point.reshape(known.system.shape) @ known.system.basis @ system.basis.T
        fit = run(system, found.labels, rows.ravel(), self.race.closing)
        out = finish(scene, fit.point.reshape(system.shape), found.labels, replace(found, fit=fit))
        return out if out.residual <= np.sqrt(SOLVED) else None

    def _why_no_draws(self, scene: Scene) -> str | None:
        simulation = scene.system.simulation
        if len(simulation.members) > 1:
            return "not searched for: the view shows a sum of several clients"
        if any(seen.noise for seen in simulation.rounds):
            return "not searched for: noise hides them"
        if is_proximal(simulation.method):
            return "not searched for: local steps pass through a proximal operator"
        if int(np.prod(scene.system.shape)) > self.limit:
            return "not searched for: too many rows"
        options = number(simulation.method, int(simulation.sizes[0]))
        if options > self.draws.options:
            return f"not searched for: a round has {options:.3g}, the limit is {self.draws.options}"
        return None

    def _with_draws(self, observed: Observed, target: Target, rng: np.random.Generator) -> Reconstruction:
        scene = look(observed, target, rounds=self.draws.rounds)
        system, found = self.draws(
            scene.system, look(observed, target, rounds=self.draws.rounds, plain=True).starts, rng
        )
        known = replace(scene, system=system, repeatable=True)
        out = finish(known, found.fit.point.reshape(system.shape), found.labels, found)
        batches = tuple(_batches(draw, int(system.shape[-2])) for draw in system.simulation.draws or ())
        return replace(out, diagnostics={**out.diagnostics, "draws": "found", "batches": batches})


def _batches(draw: Draw, rows: int) -> tuple[tuple[int, ...], ...]:
    """The rows of each local step, numbered as they are estimated."""
    return tuple(tuple(int(row) for row in np.arange(rows)[part]) for part in draw.parts)
