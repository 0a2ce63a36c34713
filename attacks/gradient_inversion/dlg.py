"""Deep leakage from gradients, done well: the exact ratio first, then L-BFGS through the simulated local steps.

Sources: Zhu et al., Deep Leakage from Gradients; Zhao et al., iDLG (labels from signs); Geng et al. (simulated local
steps); Phong et al. (the ratio of weight to bias gradients).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from securefed.attacks.base import Observed, Reconstruction, Target
from securefed.attacks.gradient_inversion.inversion import Fitting, Scene, look
from securefed.attacks.gradient_inversion.rounds import why_not
from securefed.attacks.gradient_inversion.search import SOLVED, Race
from securefed.tensors import Array


@dataclass(frozen=True)
class DLG(Fitting):
    """One row with a bias: weights' over bias' gradient is the row, whatever the local steps were. Otherwise, or where
    the ratio does not explain the messages, L-BFGS with a strong-Wolfe line search from several starts on the messages
    of several rounds together, polished by Levenberg-Marquardt.

    The samples searched are those in the row space of the messages.
    """

    rounds: int = 5
    race: Race = Race(entrants=2, opening=25, finalists=1, budget=120, descent=True)

    name: ClassVar[str] = "gradient_inversion/dlg"

    def applies(self, target: Target, observed: Observed) -> str | None:
        return why_not(target, observed)

    def run(self, observed: Observed, target: Target, rng: np.random.Generator) -> Reconstruction:
        scene = look(observed, target, rounds=self.rounds)
        exact = self._ratio(scene)
        if exact is not None:
            return exact
        return self.solve(scene, rng)

    @staticmethod
    def _ratio(scene: Scene) -> Reconstruction | None:
        """The row by the ratio, if it explains the messages."""
        system, model = scene.system, scene.system.simulation.model
        if system.shape[0] != 1 or not model.bias:
            return None
        weights = np.concatenate([model.weight(item.gradient) for item in scene.starts.gradients])
        biases = np.concatenate([np.asarray(model.offset(item.gradient)) for item in scene.starts.gradients])
        energy = float(biases @ biases)
        if energy == 0.0:
            return None
        row: Array = (biases @ weights / energy)[None]
        counts = scene.starts.label_counts[0]
        labels = np.repeat(np.arange(len(counts)), counts)
        residual = system.relative(row, labels)
        if not residual <= SOLVED:
            return None
        return Reconstruction(
            "samples",
            row @ system.basis,
            labels=labels,
            residual=residual,
            rank=1,
            unknowns=1,
            condition=1.0,
            members=frozenset(system.simulation.members),
            diagnostics={"ratio": True},
        )
