"""Poisson cohorts: in every exchange each client contributes with probability q, by a coin of its own.

All clients answer, and those whose coin says no upload zeros: the coin never leaves the client. Under an aggregation
that hides single contributions not even the server learns who took part, no sum of few clients has to be opened, and
an empty cohort is a sum of noise like any other. The price is the upload of those who do not take part.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from securefed.defenses.differential_privacy.accountant import Poisson
from securefed.defenses.differential_privacy.stream import SecureStream, uniforms
from securefed.defenses.plan import Plan
from securefed.defenses.transform import ChainStage, Transform
from securefed.errors import PlanError
from securefed.tensors import Array, Tensors


@dataclass(frozen=True)
class PoissonCohort(Transform):
    """A client's clipped contribution with probability `sampler.rate`, else zeros; the release is divided by the rate.

    So a release estimates the sum over all clients without bias, and methods that divide by the survivors' weights
    (all of them answered) need no change. For methods whose clients remember nothing between rounds: a client does
    not hear that its coin left its contribution out.

    Attributes:
        sampler: what the accountant of the noise is told; `gaussian(z, sampler=...)` must be given the same.

    Guarantee: each coin is fair to 2^-53, from the operating system, independent of data, clients and rounds.
    Not promised: anything against whoever learns a coin: under an aggregation in the clear the server sees zeros.
    """

    sampler: Poisson
    name: ClassVar[str] = "poisson"
    stage: ClassVar[ChainStage] = ChainStage.SAMPLE

    def __str__(self) -> str:
        return f"{self.name}({self.sampler.rate:g})"

    def plan(self, plan: Plan) -> Plan:
        """Raises `PlanError` without a clip before it, or where `clip` is that of one record."""
        if plan.privacy is None or plan.privacy.unit != "client":
            raise PlanError(f"{self.name}: it samples whole clients; put a clip of contributions before it")
        tensors = tuple(replace(t, error=t.error / self.sampler.rate) for t in plan.tensors)
        return replace(plan, tensors=tensors).assume(
            f"Each client tosses a coin and contributes with probability {self.sampler.rate:g}, else it uploads zeros; "
            "sums are divided by that rate. Nobody else learns the coin, as far as the aggregation hides uploads.",
        )

    def encode(self, contribution: Tensors, plan: Plan) -> dict[str, Array]:
        joins = bool(uniforms(SecureStream(), 1)[0] < self.sampler.rate)
        return {name: np.asarray(value) if joins else np.zeros_like(value) for name, value in contribution.items()}

    def release(self, total: Tensors, plan: Plan) -> dict[str, Array]:
        return {name: np.asarray(value / self.sampler.rate) for name, value in total.items()}


def poisson(rate: float) -> PoissonCohort:
    """Each client joins each exchange with probability `rate`; see `PoissonCohort`."""
    return PoissonCohort(Poisson(rate))
