"""Centralised PCA: the leading components of all clients' rows pooled, to measure the federated methods against.

It sees every row, so it is no `Algorithm` and is not registered: a reference for users, tests and benchmarks. Rows are
samples: x = A^T (rows, features), with the Gram matrix S = x^T x = A A^T. Equation numbers are those of
fedpca_grassmann.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.linalg import eigh

from securefed._hyperparameters import check_integer
from securefed._tensors import Array
from securefed.algorithms._pca.operators import Gram, orth
from securefed.datasets._base import Dataset


@dataclass(frozen=True)
class PrincipalComponents:
    """The leading components of a Gram matrix S.

    Attributes:
        basis: (features, rank), orthonormal, leading component first; signs are arbitrary.
        captured: sum of the `rank` largest eigenvalues of S.
        total: tr S.
    """

    basis: Array
    captured: float
    total: float

    @property
    def loss(self) -> float:
        """Smallest reconstruction loss, min over orthonormal U of sum ||(I - U U^T) A||_F^2  (2)."""
        return self.total - self.captured


def leading(gram: Gram, rank: int) -> PrincipalComponents:
    """Compute the leading components of a Gram matrix; fewer rows than `rank` give some arbitrary directions.

    Raises:
        ConfigError: `rank` outside 1..features.
    """
    features = gram.x.shape[1]
    check_integer("rank", rank, 1, features, note="(the number of features)")
    if gram.matrix is not None:
        values, vectors = eigh(gram.matrix, subset_by_index=[features - rank, features - 1])
        return PrincipalComponents(vectors[:, ::-1], float(np.clip(values, 0, None).sum()), gram.trace())
    _, singular, rows = np.linalg.svd(gram.x, full_matrices=False)
    basis = rows[:rank].T
    if basis.shape[1] < rank:  # fewer rows than components: complete the basis by unit vectors
        basis = orth(np.hstack([basis, np.eye(features, rank)]))[:, :rank]
    return PrincipalComponents(basis, float(np.sum(singular[:rank] ** 2)), gram.trace())


def centralised(clients: Sequence[Dataset], rank: int, *, normalise: bool = False) -> PrincipalComponents:
    """Compute PCA of all clients' rows pooled.

    Rows are used as they are: centre them before, as for the federated methods.

    Args:
        clients: the rows of each client.
        rank: number of components.
        normalise: whether clients count alike, S = sum_i S_i / n_i, whatever their numbers of rows n_i.

    Raises:
        ConfigError: `rank` outside 1..features.
    """
    scales = [1 / np.sqrt(data.rows) if normalise else 1.0 for data in clients]
    pooled = np.concatenate([scale * data.x for scale, data in zip(scales, clients, strict=True)])
    return leading(Gram.of(pooled), rank)


def reconstruction_loss(basis: Array, clients: Sequence[Dataset], *, normalise: bool = False) -> float:
    """Return sum_i ||(I - U U^T) A_i||_F^2 for U = orth(basis)  (3), with terms divided by n_i if `normalise`."""
    U = orth(basis)
    losses = [float(np.sum((data.x - data.x @ U @ U.T) ** 2)) for data in clients]
    return sum(loss / data.rows if normalise else loss for loss, data in zip(losses, clients, strict=True))
