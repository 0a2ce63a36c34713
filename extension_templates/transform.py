"""Template of a transform: copy this file, rename the class, and change the lines marked EDIT.

A transform changes each client's contribution before it is summed, or the sum before it is released. This one keeps
the sign of a contribution and makes all its large entries smaller: x becomes limit * tanh(x / limit).

Test yours with `securefed.testing.parametrize_with_checks([YourTransform()])`, see README.md, and use it in a chain:

    chain(SoftLimit(1.0), secure_aggregation())
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from securefed import Tensors
from securefed.defenses import ChainStage, Plan, Transform
from securefed.errors import ConfigError, PlanError


@dataclass(frozen=True)  # parameters are public: server and clients agree on them before the run
class SoftLimit(Transform):
    """Move entries smoothly into [-limit, limit]. EDIT: what yours does, what it guarantees, and what it does not.

    Attributes:
        limit: largest absolute entry after the transform.

    Raises:
        ConfigError: `limit` is not positive.
    """

    limit: float
    name: ClassVar[str] = "soft_limit"  # EDIT: its name in plans and reports
    stage: ClassVar[ChainStage] = ChainStage.SPARSIFY  # EDIT: its kind, which sets its place in a chain

    def __post_init__(self) -> None:
        if not self.limit > 0:
            raise ConfigError(f"{self.name}: limit must be positive; got {self.limit}")

    def plan(self, plan: Plan) -> Plan:
        """Return the plan with the changes that this transform makes.

        Here these are the bound of each tensor, and `error`, the largest distance of the sum from the exact one. Names
        and shapes of tensors must not change. A transform that adds a tensor lists it in `tensors`, `wanted_rings` and
        `added`.
        """
        # EDIT: raise PlanError if you cannot give your guarantee
        if any(tensor.bound is None for tensor in plan.tensors):
            raise PlanError(f"{self.name}: a tensor declares no bound; declare one in the algorithm's layout")
        tensors = tuple(
            replace(t, bound=min(t.bound or 0.0, self.limit), error=t.error + plan.clients * (t.bound or 0.0))
            for t in plan.tensors
        )
        return replace(plan, tensors=tensors)

    def encode(self, contribution: Tensors, plan: Plan) -> Tensors:
        """Change one client's contribution, at the client. Return new arrays; leave this method out to change nothing.

        Randomness comes from the operating system, never from a default seed.
        """
        return {name: self.limit * np.tanh(np.asarray(value) / self.limit) for name, value in contribution.items()}

    # EDIT: write `decode(total, plan, count)` if `encode` has to be undone. It receives the SUM of the clients' encoded
    # contributions, so it must be linear. Write `release(total, plan)` to change the decoded sum before it leaves the
    # aggregator, for instance to add central noise. By default, as here, both change nothing.
    #
    # Write `distortion(plan, count)` if the transform clips or adds noise: it states both in public numbers, for
    # attacks and audits.
