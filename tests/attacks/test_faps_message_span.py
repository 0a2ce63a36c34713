"""FAPS' clients of few rows: the span that their messages move in, what is known of S there, and noise told apart."""

from dataclasses import replace

import numpy as np
import pytest

from securefed import Dataset
from securefed.algorithms import FAPS
from securefed.attacks import ConsensusGram
from securefed.attacks._gram.faps.client_fit import estimate_of_low_rank
from securefed.attacks._gram.faps.message_span import first_message_noise, span_basis, span_width
from securefed.attacks._gram.faps.near_consensus import near_consensus
from securefed.attacks.scores import relative_error
from tests.attacks.subspaces import digits, gram, observe


def few(rows, rounds=6, rank=3, features=50):
    first, *others = digits(features, "random")
    clients = [Dataset(first.x[:rows]), *others]
    observed, target = observe(FAPS(rank), clients, rounds)
    return observed, target, clients[0]


def noisy(observed, size):
    rng = np.random.default_rng(0)

    def spoil(Y):
        return Y + size * np.sqrt(np.mean(Y**2)) * rng.normal(size=Y.shape)

    rounds = [replace(o, message={**o.message, "product": spoil(o.message["product"])}) for o in observed.rounds]
    return replace(observed, rounds=tuple(rounds))


def test_rows_and_messages_lie_in_the_span_and_its_width_does_not_depend_on_the_features():
    for features in (30, 50):
        observed, _, client = few(5, features=features)
        basis = span_basis(observed.rounds[:3], 5)
        assert basis.shape == (features, span_width(features, 3, 5, 3)) == (features, 14)
        np.testing.assert_allclose(basis.T @ basis, np.eye(14), atol=1e-12)
        for part in (client.x.T, *(o.message["product"] for o in observed.rounds[:3])):
            assert np.linalg.norm(part - basis @ (basis.T @ part)) < 1e-10 * np.linalg.norm(part)
        late = observed.rounds[5].broadcast["basis"]
        assert np.linalg.norm(late - basis @ (basis.T @ late)) > 1e-4


def test_without_a_smaller_span_the_basis_is_complete():
    observed, _, _ = few(5)
    cases = [(observed.rounds[:3], 0), (observed.rounds[:1], 5), (observed.rounds[:3], 45)]
    for rounds, rows in [*cases, (noisy(observed, 1e-3).rounds[:3], 5)]:
        basis = span_basis(rounds, rows)
        np.testing.assert_allclose(basis.T @ basis, np.eye(50), atol=1e-12)


@pytest.mark.parametrize("size", [1e-9, 1e-5])
def test_the_first_message_shows_its_noise(size):
    observed, _, _ = few(5)
    assert first_message_noise(observed.rounds[0]) == 0
    assert 0.4 * size < first_message_noise(noisy(observed, size).rounds[0]) < 2 * size
    assert first_message_noise(few(5, rank=1)[0].rounds[0]) == 0


def test_what_is_known_of_few_rows_leaves_a_fraction_of_the_error():
    observed, target, client = few(6, rounds=12)
    S = gram(client)
    plain = near_consensus(observed.rounds, 0.15, 6).gram
    within = estimate_of_low_rank(observed.rounds, target.algorithm, 6, 600)
    assert relative_error(within, S) < 0.5 * relative_error(plain, S)
    assert estimate_of_low_rank(observed.rounds, target.algorithm, 6, 10) is None
    assert estimate_of_low_rank(noisy(observed, 1e-6).rounds, target.algorithm, 6, 600) is None


def test_exact_messages_are_never_taken_for_noise():
    """One of another round cannot be noise, since the first shows none; what is left is said to be a guess."""
    observed, target, _ = few(2)
    swapped = replace(observed.rounds[1], message=observed.rounds[4].message)
    rounds = (observed.rounds[0], swapped, *observed.rounds[2:])
    got = ConsensusGram(starts=1).run(replace(observed, rounds=rounds), target, np.random.default_rng(0))
    assert got.diagnostics["method"] == "near consensus" and "noise" not in got.diagnostics
