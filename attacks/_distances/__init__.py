"""Attack graph learning: recover the distances between the signals of the vertices.

Importing this package registers the attack `distances/fit`. A client's rows are signals, its columns the vertices of an
unknown graph; the learning uses of the rows only the squared distances between the columns.
"""

from __future__ import annotations

from securefed.attacks._base import attacks
from securefed.attacks._distances.classical_scaling import centred_gram, embedding
from securefed.attacks._distances.distance_fit import DistanceFit

__all__ = ["DistanceFit", "centred_gram", "embedding"]

attacks.register(
    DistanceFit.name,
    DistanceFit,
    summary="fits every member's distances through the projected gradient steps of its rounds (Levenberg-Marquardt)",
    source="this package; inverts ppgl (18)-(25)",
    reads="the (weighted) graphs of up to 14 rounds from the first on",
)
