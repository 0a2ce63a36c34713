"""The conjugate gradients of the near-consensus estimate solve their normal equations, which are formed here."""

import numpy as np
import pytest

from securefed.algorithms._pca.operators import orth
from securefed.attacks._gram.coordinates import SymmetricMatrices
from securefed.attacks._gram.faps.projected_equations import ProjectedEquations

RNG = np.random.default_rng(0)


def formed(bases, weights, scalar_weight, prior, coordinates):
    """The operator's matrix in orthonormal coordinates of the symmetric matrices."""
    rows = []
    for unit in np.eye(coordinates.count):
        S = coordinates.matrix(unit)
        image = prior * S
        for Z, w in zip(bases, weights, strict=True):
            P = Z @ Z.T
            seen = w * (S - P @ S) @ P
            image = image + (seen + seen.T) / 2 + scalar_weight * np.trace(P @ S) * P
        rows.append(coordinates.coordinates(image))
    return np.array(rows)


@pytest.mark.parametrize("features", [3, 6, 15])
@pytest.mark.parametrize("decades", [0, 10])
def test_the_solution_is_that_of_the_formed_equations(features, decades):
    rank, rounds = 2, 7
    bases = np.stack([orth(RNG.normal(size=(features, rank))) for _ in range(rounds)])
    weights = np.logspace(0, decades, rounds)
    coordinates = SymmetricMatrices.of(features)
    matrix = formed(bases, weights, 1e4, 3.0, coordinates)
    truth = RNG.normal(size=coordinates.count)
    right = coordinates.matrix(matrix @ truth)
    found, iterations = ProjectedEquations.of(bases, weights, 1e4, 3.0).solve(right)
    np.testing.assert_allclose(coordinates.coordinates(found), truth, atol=1e-6 if decades else 1e-9)
    assert iterations < 200
    other, _ = ProjectedEquations.of(bases, 2 * weights, 1e4, 3.0).solve(right)
    assert np.linalg.norm(coordinates.coordinates(other) - truth) > 1e-3 * np.linalg.norm(truth)


def test_rounds_near_consensus_take_few_iterations():
    """Subspaces that approach one another, weighted by how near they are: the case of a long run."""
    features, rank, rounds = 40, 4, 60
    limit = orth(RNG.normal(size=(features, rank)))
    distances = np.concatenate([[1e-6], np.logspace(0, -6, rounds - 1)])
    bases = np.stack([orth(limit + d * RNG.normal(size=(features, rank))) for d in distances])
    bases[0] = orth(RNG.normal(size=(features, rank)))
    system = ProjectedEquations.of(bases, distances**-2, 1e8, float(features**2))
    right = RNG.normal(size=(features, features))
    assert system.solve(right + right.T)[1] < 30
