"""Sample each exchange's clients by Poisson sampling: every client contributes with probability q, by its own coin.

`poisson(q)` makes a link of a defence's chain, between the clip and the noise. Its purpose is privacy amplification:
where an observer does not know who took part, an accountant (`accountant.PoissonSampling`) states a smaller epsilon.

All clients answer, and a client whose coin leaves it out uploads zeros: the coin never leaves the client. If the
aggregation hides single contributions, not even the server learns which clients took part, no sum of few clients has to
be opened, and an empty cohort gives a sum of noise like any other. The price is that clients that are left out upload
too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from securefed._sampling.random_stream import SecureRandomStream, uniforms
from securefed._tensors import Array, Tensors
from securefed.defenses._base import ChainStage, Transform
from securefed.defenses._differential_privacy.accountant import PoissonSampling
from securefed.defenses._plan import Plan
from securefed.errors import PlanError


@dataclass(frozen=True)
class PoissonCohort(Transform):
    """Sends a client's clipped contribution with probability `sampler.rate`, else zeros; divides the sum by the rate.

    So a release estimates the sum over all clients without bias. Methods that divide by the survivors' weights need no
    change: all clients answer, so all are survivors. It is for methods whose clients remember nothing between rounds: a
    client's algorithm does not learn the coin, and would update its memory as if the contribution had counted.

    Attributes:
        sampler: the sampling rate, as the accountant takes it; give the same object to the noise,
            `gaussian(z, sampler=...)`, so that it counts the amplification.

    Guarantee: each coin shows heads with probability `sampler.rate` up to 2^-53; it comes from the operating system,
    independent of data and of every other coin.
    Not promised: anything against a party that learns a coin: under an aggregation in the clear the server sees zeros.
    """

    sampler: PoissonSampling
    name: ClassVar[str] = "poisson"
    stage: ClassVar[ChainStage] = ChainStage.SAMPLE

    def __str__(self) -> str:
        return f"{self.name}({self.sampler.rate:g})"

    def plan(self, plan: Plan) -> Plan:
        """State the rate. Planned errors stay those of the decoded sum, which `release` divides by the rate.

        Raises:
            PlanError: no clip of whole contributions stands before it; a clip of single records is not enough.
        """
        if plan.privacy is None or plan.privacy.unit != "client":
            raise PlanError(f"{self.name}: it samples whole clients; put a clip of contributions before it")
        return replace(plan, sampling_rate=self.sampler.rate).assume(
            f"Each client tosses a coin and contributes with probability {self.sampler.rate:g}, else it uploads zeros; "
            "sums are divided by that rate, and so are their errors and the noise. No other party learns the coin, as "
            "far as the aggregation hides uploads."
        )

    def encode(self, contribution: Tensors, plan: Plan) -> dict[str, Array]:
        """Toss the coin at the client; return the contribution, or zeros of its shapes."""
        contributes = bool(uniforms(SecureRandomStream(), 1)[0] < self.sampler.rate)
        return {name: np.asarray(x) if contributes else np.zeros_like(x) for name, x in contribution.items()}

    def release(self, total: Tensors, plan: Plan) -> dict[str, Array]:
        """Divide the sum by the rate, at the server, after the noise was added."""
        return {name: np.asarray(value / self.sampler.rate) for name, value in total.items()}


def poisson(rate: float) -> PoissonCohort:
    """Let each client contribute to each exchange with probability `rate`, in (0, 1]; see `PoissonCohort`."""
    return PoissonCohort(PoissonSampling(rate))
