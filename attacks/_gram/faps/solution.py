"""Result of the attacks on FAPS: a Gram matrix, and how well the messages determine it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from securefed._tensors import Array


@dataclass(frozen=True)
class FAPSSolution:
    """An estimate of S by one method.

    Attributes:
        gram: S.
        method: name of the method, one of those that `ConsensusGram` lists.
        residual: relative residual of the messages; NaN where nothing was simulated.
        rank: rank of the method's linear system or Jacobian.
        unknowns: number of unknowns of that system.
        condition: condition number of that system.
        notes: further diagnostics, by name.
    """

    gram: Array
    method: str
    residual: float = math.nan
    rank: int = 0
    unknowns: int = 0
    condition: float = math.nan
    notes: Mapping[str, object] = field(default_factory=dict)
