"""Attacks that reconstruct Gram matrices from products with them."""

from __future__ import annotations

from securefed.attacks.base import attacks
from securefed.attacks.gram.difference import DifferenceGram
from securefed.attacks.gram.power import PowerGram

__all__ = ["DifferenceGram", "PowerGram"]

attacks.register(
    "gram/power",
    PowerGram,
    summary="solves S Z = Y over the rounds of subspace iteration",
    source="faps proposition 2; noise-aware least squares over S >= 0 instead of its normal equations",
    applies_to="pca/ssi, pca/localpower",
)
attacks.register(
    "gram/difference",
    DifferenceGram,
    summary="separates one client from sums over changing survivors",
    source="linearity of faps eq. (2); alternating projections onto S_i >= 0",
    applies_to="pca/ssi, pca/localpower, where survivors change",
)
