"""Membership scores of candidate records, and their error rates."""

from __future__ import annotations

import numpy as np
import pytest

from securefed.attacks._membership import ConfirmationAttack, ShadowMembership, membership_rates
from securefed.attacks._membership.likelihood_ratio import CandidateRecord
from securefed.errors import ConfigError, DataError
from tests.attacks.test_generic import DATA, Z, product, replay

RNG = np.random.default_rng(0)


def test_rates_of_known_scores() -> None:
    perfect = membership_rates(np.arange(10) + 100, np.arange(10))
    assert (perfect.auc, perfect.tpr, perfect.leakage) == (1.0, 1.0, 1.0)
    tied = membership_rates(np.ones(5), np.ones(7))
    assert (tied.auc, tied.tpr) == (0.5, 0.0)
    assert membership_rates(np.array([1.0, 3.0]), np.array([2.0, 0.0])).auc == 0.75
    # Two unit normals one apart: AUC = Phi(1 / sqrt 2) = 0.760, TPR at 1 % FPR = Phi(1 - 2.326) = 0.092.
    found = membership_rates(RNG.normal(1, 1, 40000), RNG.normal(0, 1, 40000))
    assert found.auc == pytest.approx(0.7602, abs=0.006)
    assert found.tpr == pytest.approx(0.0924, abs=0.01)
    for bad in ((np.zeros(0), np.ones(1)), (np.ones(1), np.array([np.nan]))):
        with pytest.raises(DataError):
            membership_rates(*bad)


def records(again, strangers):
    own = DATA[1].x
    return [CandidateRecord(row, k) for k, row in enumerate(own)] + [
        CandidateRecord(row, k) for k, row in enumerate(strangers)
    ]


def test_shadows_tell_members_where_the_message_says_so_and_not_where_it_does_not() -> None:
    strangers, population = RNG.uniform(-1, 1, (4, 5)), RNG.uniform(-1, 1, (60, 5))
    prints = replay(lambda rows, b: {"p": np.sin(1e3 * rows.sum(1))}, Z, rounds=1)
    scores = ShadowMembership().score(prints, records(prints, strangers), population, RNG)
    assert membership_rates(scores[:4], scores[4:]).auc == 1.0
    blind = replay(lambda rows, b: {"n": np.array([float(len(rows))])}, Z, rounds=1)
    scores = ShadowMembership().score(blind, records(blind, strangers), population, RNG)
    assert len(set(scores.tolist())) == 1


def test_a_guess_is_confirmed_by_an_exact_message_and_not_by_a_noisy_one() -> None:
    strangers = RNG.uniform(-1, 1, (4, 5))
    exact = replay(product, Z, rounds=1)
    scores = ConfirmationAttack().score(exact, records(exact, strangers), DATA[1].x, RNG)
    assert membership_rates(scores[:4], scores[4:]).auc == 1.0
    np.testing.assert_allclose(scores[:4], 0, atol=1e-12)

    def noised(rows, broadcast, rng):
        return {"y": rows.T @ (rows @ broadcast["z"]) + rng.normal(scale=100, size=(5, 2))}

    aucs = []
    for _ in range(20):
        noisy = replay(noised, Z, rounds=1)
        scores = ConfirmationAttack(draws=2).score(noisy, records(noisy, RNG.uniform(-1, 1, (4, 5))), DATA[1].x, RNG)
        aucs.append(membership_rates(scores[:4], scores[4:]).auc)
    assert 0.3 < np.mean(aucs) < 0.7


def test_bad_input_is_refused() -> None:
    again = replay(product, Z, rounds=1)
    with pytest.raises(DataError, match="population"):
        ShadowMembership().score(again, [], DATA[0].x[:2], RNG)
    with pytest.raises(DataError, match="all 4 rows"):
        ConfirmationAttack().score(again, [], DATA[0].x[:2], RNG)
    for bad in (lambda: ShadowMembership(shadows=2), lambda: ConfirmationAttack(draws=0)):
        with pytest.raises(ConfigError, match="at least"):
            bad()
