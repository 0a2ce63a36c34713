"""Score rows by their reconstruction error, the anomaly score of every detector here.

A model trained on normal rows reconstructs them well and other rows badly. `AnomalyDetector` puts a threshold on it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from securefed._tensors import Array
from securefed.algorithms._pca.operators import orth
from securefed.errors import DataError

Reconstruct = Callable[[Array], Array]
"""Rows (rows, features) as a model gives them back: a projection, decoder(encoder(x)), generator(encoder(x))."""


def projection(basis: Array) -> Reconstruct:
    """Return PCA's reconstruction x -> x U U^T for U = orth(basis), (features, rank).

    The basis is orthonormalised, since the mean that FedPG and FedPE return is not orthonormal: with Z itself the score
    would depend on the norms of its columns, not only on the subspace.
    """
    U = orth(basis)
    return lambda x: np.asarray((x @ U) @ U.T)


def reconstruction_errors(reconstruct: Reconstruct, x: Array) -> Array:
    """Compute (rows,) ||x - reconstruct(x)||, the Euclidean distance row by row; higher is more anomalous.

    Raises:
        DataError: the model returns another shape, or NaN or infinity.
    """
    back = np.asarray(reconstruct(x), dtype=np.float64)
    if back.shape != x.shape:
        raise DataError(
            f"a reconstruction must have the shape of its rows, {x.shape}; got {back.shape}. Pass decode(encode(x))."
        )
    bad = np.flatnonzero(~np.isfinite(back).all(axis=1))
    if bad.size:
        raise DataError(f"{bad.size} rows are reconstructed as NaN or infinity (first: row {bad[0]}); did it diverge?")
    return np.asarray(np.linalg.norm(x - back, axis=1))
