"""Fit rows to the stored gradients of SCAFFOLD and LoSAC, which are running sums of the messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from securefed.algorithms._optimization.losac import LoSAC
from securefed.algorithms._optimization.scaffold import Scaffold
from securefed.attacks._base import Reconstruction, Target, View
from securefed.attacks._gradient_inversion.fitting_attack import FittingAttack
from securefed.attacks._gradient_inversion.gradient_rounds import why_not_invertible
from securefed.attacks._gradient_inversion.row_fit_problem import problem_from_view
from securefed.errors import TranscriptError


@dataclass(frozen=True)
class TelescopingFit(FittingAttack):
    """Fit rows to running sums: sum over rounds of dc_i = c_i and of dphi_i = y_i, since both start at 0.

    With one local step, or SCAFFOLD's option I, these are exact gradients at the broadcast models, and the rows are
    fitted to them as to DSGD's messages. With more local steps the stored gradient belongs to a point on the client's
    path, which depends on the rows: then the path is simulated, and dx takes part in the fit.
    """

    rounds: int = 5

    name: ClassVar[str] = "gradient_inversion/telescoping"

    def applies(self, target: Target, observed: View) -> str | None:
        """Return why the attack does not apply, or `None` if it does."""
        if not isinstance(target.algorithm, Scaffold | LoSAC):
            return "It sums up changes of stored gradients, which only SCAFFOLD and LoSAC send."
        return why_not_invertible(target, observed)

    def run(self, observed: View, target: Target, rng: np.random.Generator) -> Reconstruction:
        """Recover the rows of data.

        Raises:
            TranscriptError: the attack does not apply to this view.
        """
        if (reason := self.applies(target, observed)) is not None:
            raise TranscriptError(reason)
        problem = problem_from_view(observed, target, rounds=self.rounds, telescope=True)
        return self.solve(problem, rng)
