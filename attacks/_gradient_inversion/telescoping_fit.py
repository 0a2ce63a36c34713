"""Recover rows from the gradients that clients of SCAFFOLD and LoSAC store: the running sums of their messages.

A client i stores a gradient (c_i in SCAFFOLD, y_i in LoSAC), 0 at first, and sends its changes. The changes up to round
k add up (telescope) to the gradient that it stores then. `row_fit_problem` turns the view into equations for the rows,
and `FittingAttack.solve` fits rows and labels to them. Audits run the attack by its name,
`gradient_inversion/telescoping`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from securefed.algorithms._optimization.losac import LoSAC
from securefed.algorithms._optimization.scaffold import Scaffold
from securefed.attacks._base import Reconstruction, Target, View
from securefed.attacks._gradient_inversion.fitting_attack import FittingAttack
from securefed.attacks._gradient_inversion.row_fit_problem import problem_from_view
from securefed.attacks._requirements import check_applies


@dataclass(frozen=True)
class TelescopingFit(FittingAttack):
    """Fit rows to the stored gradients, which are running sums of the messages `dc` and `dphi`.

    With one local step, or with SCAFFOLD's option I (a client stores the gradient of all its rows at the broadcast
    model), the stored gradient is exactly a gradient at the broadcast model. The rows are then fitted to gradients at
    known models, and no local step is simulated. With more local steps it is a gradient at points on the client's path,
    which depend on the rows. Then the path is simulated, and the model change dx is fitted too.

    Attributes:
        rounds: fewest rounds to fit, as far as the view has them; clients of many rows take more.
    """

    rounds: int = 5

    name: ClassVar[str] = "gradient_inversion/telescoping"

    def applies(self, target: Target, observed: View) -> str | None:
        """Return why the attack does not apply, or `None` if it does."""
        if not isinstance(target.algorithm, Scaffold | LoSAC):
            return "It sums up changes of stored gradients, which only SCAFFOLD and LoSAC send."
        return super().applies(target, observed)

    def run(self, observed: View, target: Target, rng: np.random.Generator) -> Reconstruction:
        """Recover the rows of data.

        Raises:
            TranscriptError: the attack does not apply to this view.
        """
        check_applies(self.applies(target, observed))
        problem = problem_from_view(observed, target, rounds=self.rounds, telescope=True)
        return self.solve(problem, rng)
