"""The updates, terms and expected means that the tests of sums share."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from securefed import chain
from securefed.defenses import (
    Identities,
    ckks,
    clip,
    secure_aggregation,
    skellam,
)
from securefed.defenses._homomorphic import InsecurePaillier
from securefed.parties import SumClient, SumHelper, SumTerms

CLIENTS = 5


RNG = np.random.default_rng(0)


BASE = {"w": RNG.normal(size=(3, 2)), "b": RNG.normal(size=2), "seen": np.array(3)}


UPDATES = {i: {"w": RNG.normal(size=(3, 2)), "b": RNG.normal(size=2), "seen": np.array(10 + i)} for i in range(CLIENTS)}


WEIGHTS = dict(enumerate((600, 1, 20, 77, 300)))


IDENTITIES = Identities.generate(CLIENTS)


DEFENSES = {
    "plain": None,
    "masks": secure_aggregation(),
    "masks, verified": secure_aggregation(verify=True),
    "masks, active": secure_aggregation(identities=IDENTITIES),
    "paillier": InsecurePaillier(bits=512),
    "ckks": ckks(),
}


def parties(terms: SumTerms) -> dict[int, Any]:
    members: dict[int, Any] = {i: SumClient(terms, i) for i in range(terms.clients)}
    for party in terms.defense.aggregation.beside:
        members[party] = SumHelper(terms)
    return members


def given(updates: Any = UPDATES, **more: Any) -> dict[int, dict[str, Any]]:
    return {i: {"update": u, "weight": WEIGHTS[i], "metrics": {"loss": 1.5 * i}, "base": BASE} | more
            for i, u in updates.items()}  # fmt: skip


def mean_of(clients: Any) -> dict[str, np.ndarray]:
    weights = [WEIGHTS[i] for i in clients]
    return {name: np.average([UPDATES[i][name] for i in clients], axis=0, weights=weights) for name in BASE}


def check(result: Any, clients: Any, atol: float = 1e-7) -> None:
    expected = mean_of(clients)
    assert result.survivors == tuple(clients)
    for name in ("w", "b"):
        np.testing.assert_allclose(result.mean[name], expected[name], atol=atol)
    assert result.mean["seen"] == np.rint(expected["seen"])
    assert result.weight == pytest.approx(sum(WEIGHTS[i] for i in clients), abs=atol * 2**20)
    assert result.metrics["loss"] == pytest.approx(1.5 * sum(clients), abs=atol * 2**20)


COARSE: dict[str, Any] = {"bounds": 32.0, "metrics": {"loss": 16.0}, "largest_weight": 1024}
"""The bounds that CKKS needs declared, near the true values."""


def terms_of(defense: Any = None, **more: Any) -> SumTerms:
    settings = {"metrics": ("loss",), "largest_weight": 2**20, **more}
    return SumTerms.like(BASE, clients=CLIENTS, defense=defense, **settings)


def private_terms(**more: Any) -> SumTerms:
    defense = chain(clip(1.0), skellam(1.0), secure_aggregation())
    return SumTerms.like(BASE, clients=CLIENTS, defense=defense, local=("seen",), **more)
