"""Recover rows from the gradients that clients of SCAFFOLD and LoSAC store: the running sums of their messages.

A client i stores a gradient (c_i in SCAFFOLD, y_i in LoSAC), 0 at first, and sends its changes. The changes up to round
k add up to the gradient that it stores then. `fitting_attack` fits the rows to these gradients.
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
from securefed.errors import TranscriptError


@dataclass(frozen=True)
class TelescopingFit(FittingAttack):
    """Fit rows to the stored gradients, which are running sums of the messages `dc` and `dphi`.

    With
    one local step, or SCAFFOLD's option I, the stored gradient is exactly the gradient at the broadcast model, and the
    rows are fitted to it as to DSGD's messages. With more local steps it is a gradient at a point on the client's path,
    which depends on the rows. Then the path is simulated, and the model change dx is fitted too.

    Attributes:
        rounds: smallest number of rounds to fit, if the view has them.
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
        if (reason := self.applies(target, observed)) is not None:
            raise TranscriptError(reason)
        problem = problem_from_view(observed, target, rounds=self.rounds, telescope=True)
        return self.solve(problem, rng)
