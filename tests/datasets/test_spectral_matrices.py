"""FAPS' test matrices: their singular values, that V is orthonormal by either route, and what generating them costs."""

import tracemalloc

import numpy as np
import pytest

from securefed.datasets import _spectral_matrices as spectral_matrices
from securefed.errors import ConfigError


def matrix(problem):
    """A, (n, m)."""
    return np.concatenate([client.x for client in problem.clients]).T


@pytest.mark.parametrize("sizes", [[20], [15] * 4, [40 * i for i in range(1, 5)]], ids=["square", "QR", "Cholesky"])
def test_the_matrix_has_the_singular_values_and_vectors_it_should(sizes):
    values = spectral_matrices.geometric(20, 1.1)
    problem = spectral_matrices.spectral(values, sizes, np.random.default_rng(0))
    assert [client.x.shape for client in problem.clients] == [(size, 20) for size in sizes]
    A = matrix(problem)
    assert np.allclose(np.linalg.svd(A, compute_uv=False), values, rtol=0, atol=1e-13)
    assert np.allclose(problem.basis.T @ problem.basis, np.eye(20), atol=1e-13)
    assert np.allclose(A @ A.T, (problem.basis * values**2) @ problem.basis.T, atol=1e-13)
    assert np.abs(A).max() <= problem.feature_bound == 1.0


def test_how_the_columns_are_cut_does_not_change_the_matrix():
    values = spectral_matrices.arithmetic(10, 100.0)
    one, many = (
        matrix(spectral_matrices.spectral(values, sizes, np.random.default_rng(1))) for sizes in ([90], [20, 1, 69])
    )
    assert np.allclose(one, many, rtol=0, atol=1e-14)
    other = matrix(spectral_matrices.spectral(values, [90], np.random.default_rng(2)))
    assert not np.allclose(one, other, atol=1e-2)


def test_both_routes_to_orthonormal_columns_give_the_same(monkeypatch):
    values = spectral_matrices.geometric(12, 1.05)
    cholesky = matrix(spectral_matrices.spectral(values, [30, 30], np.random.default_rng(3)))
    monkeypatch.setattr(spectral_matrices, "TALL", 1000)
    qr = matrix(spectral_matrices.spectral(values, [30, 30], np.random.default_rng(3)))
    assert np.allclose(cholesky, qr, rtol=0, atol=1e-13)
    assert not np.array_equal(cholesky, qr)  # two routes, or this test compares one with itself


def test_generating_takes_little_beside_the_rows():
    """A second copy of the 16 MB of rows would be seen; a few n x n matrices, a chunk and a mask of it are allowed."""
    n, sizes = 100, [2500] * 8
    data = 8 * n * sum(sizes)
    tracemalloc.start()
    problem = spectral_matrices.spectral(spectral_matrices.geometric(n, 1.01), sizes, np.random.default_rng(0))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert sum(client.x.nbytes for client in problem.clients) == data
    assert peak < data + 8 * n * spectral_matrices.CHUNK + 8 * 8 * n * n + 2500 * n * 2


def test_the_spectra_are_the_papers():
    assert np.allclose(spectral_matrices.geometric(4, 2.0), [1, 1 / 2, 1 / 4, 1 / 8])
    assert np.allclose(spectral_matrices.arithmetic(5, 10.0), [1, 0.775, 0.55, 0.325, 0.1])
    assert spectral_matrices.arithmetic(1000, 1000.0)[-1] == pytest.approx(1e-3)


@pytest.mark.parametrize(
    ("call", "condition"),
    [
        (lambda: spectral_matrices.geometric(3, 1.0), "a finite number above 1"),
        (lambda: spectral_matrices.geometric(0, 2.0), "at least 1"),
        (lambda: spectral_matrices.arithmetic(1, 2.0), "at least 2"),
        (lambda: spectral_matrices.arithmetic(3, 0.5), "at least 1"),
        (lambda: spectral_matrices.spectral(np.ones(4), [1, 2], np.random.default_rng(0)), "n = 4 in all, not 3"),
        (lambda: spectral_matrices.spectral(np.ones(4), [9, 0], np.random.default_rng(0)), "a column each"),
        (lambda: spectral_matrices.spectral(-np.ones(4), [9], np.random.default_rng(0)), "singular values"),
        (lambda: spectral_matrices.spectral(np.zeros(4), [9], np.random.default_rng(0)), "singular values"),
    ],
)
def test_what_cannot_be_made_is_refused(call, condition):
    with pytest.raises(ConfigError, match=condition):
        call()
