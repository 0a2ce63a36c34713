"""Reconstruction error of a row: the anomaly score of every detector here."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from securefed.algorithms.pca.operators import orth
from securefed.errors import DataError
from securefed.tensors import Array

Reconstruct = Callable[[Array], Array]
"""Rows (rows, features) as a model gives them back: a projection, decoder(encoder(x)), generator(encoder(x))."""


def projection(basis: Array) -> Reconstruct:
    """PCA's reconstruction x -> x U U^T for U = orth(basis), (features, rank).

    The basis is orthonormalised because the mean that FedPG and FedPE put out is not orthonormal: with Z itself,
    rows of a wandering norm would be measured, not subspaces.
    """
    U = orth(basis)
    return lambda x: np.asarray((x @ U) @ U.T)


def reconstruction_errors(reconstruct: Reconstruct, x: Array) -> Array:
    """(rows,) ||x - reconstruct(x)||, the Euclidean distance row by row; higher is more anomalous.

    Raises:
        DataError: the model gives back another shape, or NaN or infinity.
    """
    back = np.asarray(reconstruct(x), dtype=np.float64)
    if back.shape != x.shape:
        raise DataError(f"a reconstruction of rows {x.shape} has their shape, not {back.shape}; pass decode(encode(x))")
    bad = np.flatnonzero(~np.isfinite(back).all(axis=1))
    if bad.size:
        raise DataError(f"{bad.size} rows are reconstructed as NaN or infinity (first: row {bad[0]}); did it diverge?")
    return np.asarray(np.linalg.norm(x - back, axis=1))
