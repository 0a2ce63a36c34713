"""Result of the methods that solve for a FAPS client's Gram matrix S: S, and how well the messages determine it.

`consensus_attack` runs the methods one after the other and reports the first result that it accepts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from securefed._tensors import Array


@dataclass(frozen=True)
class FAPSSolution:
    """An estimate of S by one method.

    Attributes:
        gram: S, (features, features).
        method: name of the method, one of those that `ConsensusGram` in `consensus_attack` lists.
        residual: norm of (messages of a simulated client that holds `gram`) - (observed messages), relative to the
            observed ones; NaN where nothing was simulated.
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
