"""Make one record of a client the unit of privacy: size the noise for what replacing a record changes.

`records()` makes a link of a defence's chain that stands where a clip would: `chain(records(), gaussian(z), ...)`. A
record is one row of a client's data, a contribution the tensors that a client sends in an exchange.

The algorithm's layout declares, for each tensor, the L2 distance s_k by which one record of a client can move it. The
noise that follows in the chain is sized for sqrt(sum_k s_k^2), instead of for the norm of a clipped contribution.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from securefed._tensors import Array, Tensors
from securefed.defenses._base import ChainStage, Transform
from securefed.defenses._plan import Plan, PrivacyPlan
from securefed.errors import PlanError

_EPS = float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class RecordPrivacy(Transform):
    """Takes the place of a clip: the layout bounds what one record changes, so contributions need no clipping.

    The layout declares that bound tensor by tensor (`TensorSpec.sensitivity`); the wrapper `record_level(algorithm,
    norm)` clips records and derives the bound, for algorithms where a proof is known.

    Guarantee: with noise after it, epsilon for one record of one client replaced by zeros, how many records a client
        has being public. Records of different clients do not add up: every record is with one client.
    Range: under noise an entry beyond its declared bound is cut to it, and one that is no number becomes 0, so that no
        client refuses because of its records. Cutting brings no two messages further apart, so epsilon holds.
    Not promised: anything for a client's records together (at one delta, k of them cost more than k epsilon).
    """

    name: ClassVar[str] = "records"
    stage: ClassVar[ChainStage] = ChainStage.CLIP

    def plan(self, plan: Plan) -> Plan:
        """Set the sensitivity and the unit of privacy; the factor 1 + 4 eps covers the rounding of the root.

        Raises:
            PlanError: a tensor whose change by one record, or whose range, is not declared.
        """
        for tensor in plan.tensors:
            if tensor.sensitivity is None or tensor.bound is None:
                raise PlanError(
                    f"{self.name}: the layout declares no bound on what one record changes in {tensor.name!r}; "
                    "wrap the algorithm in record_level(algorithm, norm), or clip whole contributions with clip(...)"
                )
        distance = math.hypot(*(tensor.sensitivity or 0.0 for tensor in plan.tensors)) * (1 + 4 * _EPS)
        tensors = tuple(replace(tensor, declared=tensor.bound) for tensor in plan.tensors)
        return replace(plan, tensors=tensors, privacy=PrivacyPlan(distance, "record")).assume(
            f"The unit of privacy is one record of a client: replaced by zeros it moves a contribution by "
            f"{distance:.4g} at most. Clients clip their records to the declared norm."
        )

    def encode(self, contribution: Tensors, plan: Plan) -> Tensors:
        """Cut entries to their declared range, under noise; without noise return them as they are."""
        if not plan.noised:
            return contribution
        return {tensor.name: _cut(contribution[tensor.name], tensor.declared) for tensor in plan.tensors}


def _cut(value: Array, bound: float | None) -> Array:
    """Replace each entry by the nearest number within the bound, and NaN by 0."""
    assert bound is not None
    return np.clip(np.nan_to_num(np.asarray(value, np.float64), nan=0.0, posinf=bound, neginf=-bound), -bound, bound)


def records() -> RecordPrivacy:
    """Size the noise that follows for one record instead of one client; see `RecordPrivacy`."""
    return RecordPrivacy()
