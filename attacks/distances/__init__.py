"""Attacks on graph learning: the distances between the vertices' signals. Importing this registers them."""

from __future__ import annotations

from securefed.attacks.base import attacks
from securefed.attacks.distances.fit import Fit
from securefed.attacks.distances.scaling import centred_gram, embedding

__all__ = ["Fit", "centred_gram", "embedding"]

attacks.register(
    Fit.name,
    Fit,
    summary="Every member's distances by Gauss-Newton through the projected gradient steps of its rounds",
    source="this package; ppgl (18)-(25), read backwards",
    reads="the (weighted) graphs of up to 14 rounds from the first on",
)
