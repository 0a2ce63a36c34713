"""Joint simulate-and-fit: the rows that, run through the clients' own steps, send what was observed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from securefed.attacks.base import Observed, Reconstruction, Target
from securefed.attacks.gradient_inversion.inversion import look, reconstruct
from securefed.attacks.gradient_inversion.rounds import why_not
from securefed.attacks.gradient_inversion.search import Race


@dataclass(frozen=True)
class Fit:
    """Levenberg-Marquardt on several rounds together, labels unknown, in the row space of the messages.

    Every member is simulated by itself, so sums over clients with several local steps are modelled exactly.
    Mini-batches and random blocks cannot be repeated: full batches stand in for them, and the residual shows it.

    Attributes:
        rounds: fewest rounds fitted, where the view has them.      race: the search.
        limit: unknowns (rows x coordinates) beyond which the least-squares start is returned unfitted.
    """

    rounds: int = 4
    race: Race = Race()
    limit: int = 640

    name: ClassVar[str] = "gradient_inversion/fit"
    secret: ClassVar[str] = "samples"

    def applies(self, target: Target, observed: Observed) -> str | None:
        return why_not(target, observed)

    def run(self, observed: Observed, target: Target, rng: np.random.Generator) -> Reconstruction:
        scene = look(observed, target, rounds=self.rounds)
        return reconstruct(scene, self.race, rng, limit=self.limit, bound=target.public.feature_bound)
