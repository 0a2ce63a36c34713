"""Joint simulate-and-fit: the rows that, run through the clients' own steps, send what was observed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from securefed.attacks.base import Observed, Reconstruction, Target
from securefed.attacks.gradient_inversion.inversion import Fitting, look
from securefed.attacks.gradient_inversion.rounds import why_not


@dataclass(frozen=True)
class Fit(Fitting):
    """Levenberg-Marquardt on several rounds together, labels unknown, in the row space of the messages.

    Every member is simulated by itself, so sums over clients with several local steps are modelled exactly.
    Mini-batches and random blocks cannot be repeated: full batches stand in for them, and the residual shows it.
    """

    name: ClassVar[str] = "gradient_inversion/fit"

    def applies(self, target: Target, observed: Observed) -> str | None:
        return why_not(target, observed)

    def run(self, observed: Observed, target: Target, rng: np.random.Generator) -> Reconstruction:
        scene = look(observed, target, rounds=self.rounds)
        return self.solve(scene, rng)
