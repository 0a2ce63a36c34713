"""Telescoping: running sums of what SCAFFOLD and LoSAC send are the clients' stored gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from securefed.algorithms.optimization.losac import LoSAC
from securefed.algorithms.optimization.scaffold import Scaffold
from securefed.attacks.base import Observed, Reconstruction, Target
from securefed.attacks.gradient_inversion.inversion import Fitting, look
from securefed.attacks.gradient_inversion.rounds import why_not
from securefed.errors import TranscriptError


@dataclass(frozen=True)
class Telescoping(Fitting):
    """sum over rounds of dc_i = c_i and of dphi_i = y_i, since both start at 0.

    With one local step, or SCAFFOLD's option I, these are exact gradients at the broadcast models: the samples are
    fitted to them as to DSGD's messages. With more local steps the stored gradient stands at a point on the client's
    path, which depends on the samples: then the path is simulated with them, and dx takes part in the fit.
    """

    rounds: int = 5

    name: ClassVar[str] = "gradient_inversion/telescoping"

    def applies(self, target: Target, observed: Observed) -> str | None:
        if not isinstance(target.algorithm, Scaffold | LoSAC):
            return "It sums up changes of stored gradients, which only SCAFFOLD and LoSAC send."
        return why_not(target, observed)

    def run(self, observed: Observed, target: Target, rng: np.random.Generator) -> Reconstruction:
        if (reason := self.applies(target, observed)) is not None:
            raise TranscriptError(reason)
        scene = look(observed, target, rounds=self.rounds, telescope=True)
        return self.solve(scene, rng)
