"""Register the attack on graph learning, which recovers the distances between the vertices' signals."""

from __future__ import annotations

from securefed.attacks.base import attacks
from securefed.attacks.distances.classical_scaling import centred_gram, embedding
from securefed.attacks.distances.distance_fit import DistanceFit

__all__ = ["DistanceFit", "centred_gram", "embedding"]

attacks.register(
    DistanceFit.name,
    DistanceFit,
    summary="fits every member's distances through the projected gradient steps of its rounds (Levenberg-Marquardt)",
    source="this package; inverts ppgl (18)-(25)",
    reads="the (weighted) graphs of up to 14 rounds from the first on",
)
