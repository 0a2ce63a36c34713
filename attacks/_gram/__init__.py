"""Reconstruct Gram matrices S = A A^T of clients' data A from the products with S that PCA methods send.

Importing this package registers its attacks. A^T holds a client's rows; Z is the orthonormal basis that the server
broadcasts in a round, and Y the client's message or a sum of messages. The methods are SSI (subspace iteration, Y = S
Z), LocalPower (several products with S a round) and FAPS (projection splitting, a masked product), all from the FAPS
paper.
"""

from __future__ import annotations

from securefed.attacks._base import attacks
from securefed.attacks._gram.faps.consensus_attack import ConsensusGram
from securefed.attacks._gram.faps.summed_clients import JointGram
from securefed.attacks._gram.local_power import LocalPowerGram
from securefed.attacks._gram.subspace_iteration import PowerGram
from securefed.attacks._gram.survivor_differences import DifferenceGram

__all__ = ["ConsensusGram", "DifferenceGram", "JointGram", "LocalPowerGram", "PowerGram"]

attacks.register(
    "gram/power",
    PowerGram,
    summary="solves S Z = Y over the rounds of subspace iteration",
    source="faps proposition 2; noise-aware least squares over S >= 0 instead of its normal equations",
    applies_to="pca/ssi, pca/localpower",
    reads="the products S Z of every round beside the basis Z that was sent",
)
attacks.register(
    "gram/local-power",
    LocalPowerGram,
    summary="solves S^q from rounds of q local products, and fits S, its root, to them",
    source="S^q Z = Y R with R triangular: elimination of R by symmetry",
    applies_to="pca/localpower with several local steps, single clients",
    reads="the last product of every round beside the basis that was sent; tr(Z^T S Z) gives the scale",
)
attacks.register(
    "gram/difference",
    DifferenceGram,
    summary="separates one client from sums over changing survivors",
    source="linearity of faps eq. (2); alternating projections onto S_i >= 0",
    applies_to="pca/ssi, pca/localpower, where survivors change",
    reads="the sums of every round with the ids of their survivors, beside the basis that was sent",
)
attacks.register(
    "gram/consensus",
    ConsensusGram,
    summary="estimates S near FAPS' consensus; for single clients solves round by round, or fits a simulated client",
    source="against faps proposition 5: eqs. (12)-(20) near X_i = Z, and inverted by Levenberg-Marquardt",
    applies_to="pca/faps",
    reads="the product of every round beside the basis that was sent; round 0 alone gives beta and a block of S",
)
attacks.register(
    "gram/joint",
    JointGram,
    summary="fits all clients of a sum at once: masked products are not linear, so their sum determines each matrix",
    source="this package; faps Algorithm 1 simulated, Levenberg-Marquardt",
    applies_to="pca/faps with a fixed number of inner steps, sums of few clients with few features",
    reads="the sums of every round, the same clients in each, beside the basis that was sent",
)
