"""Noise of a simulation that is the same on every machine."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from securefed import Array, Tensors
from securefed.defenses import Plan
from securefed.defenses._differential_privacy import InsecureGaussian
from securefed.defenses._differential_privacy.gaussian import _release, seeded


@dataclass(frozen=True)
class SteadyGaussian(InsecureGaussian):
    """Noise by seed and number of the release, for one federation.

    That of `InsecureGaussian` hangs on every digit of the sum, so that another processor's rounding draws another.
    """

    drawn: list[int] = field(default_factory=list, init=False, repr=False, compare=False)

    def release(self, total: Tensors, plan: Plan) -> dict[str, Array]:
        rng = np.random.default_rng([self.seed, len(self.drawn)])
        self.drawn.append(len(self.drawn))
        return _release(total, plan, seeded(rng))
