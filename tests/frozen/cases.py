"""The cases of the protocol vectors: every aggregation with its stages, messages around sums in a run, and Flower."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from securefed import chain
from securefed.defenses import Identities, ckks, public_identity, quantise, secure_aggregation, threshold_paillier
from securefed.defenses._homomorphic import InsecurePaillier, insecure_deal
from securefed.parties import SumTerms
from tests.frozen.recorded import Choosing, RunCase, SumCase
from tests.frozen.recorded_flower import FlowerCase

CLIENTS = 4
KEYS = {i: bytes([i + 1]) * 32 for i in range(CLIENTS)}
PINNED = Identities({i: public_identity(key) for i, key in KEYS.items()})
SPARSE = secure_aggregation(graph="sparse", adversarial=0.1, dropouts=0.1, security=8)
EXAMPLE = {"w": np.zeros((3, 2)), "n": np.array(0)}


def update(client: int, number: int) -> dict[str, Any]:
    """Multiples of an eighth, so that every sum and mean is exact on every processor."""
    return {"w": (np.arange(6.0).reshape(3, 2) - client + number) / 8, "n": np.array(client + number)}


def given(client: int, number: int) -> dict[str, Any]:
    return {"update": update(client, number)}


def weighed(client: int, number: int) -> dict[str, Any]:
    return given(client, number) | {"weight": float(2**client), "metrics": {"loss": client / 4}}


def base(number: int) -> dict[str, Any]:
    return {"w": np.full((3, 2), number / 2), "n": np.array(number)}


def terms(defense: Any, clients: int = CLIENTS, **settings: Any) -> SumTerms:
    made = defense() if callable(defense) else defense
    return SumTerms.like(EXAMPLE, clients=clients, defense=made, **{"base": False, "bounds": 16.0} | settings)


def masks(**settings: Any) -> SumCase:
    """Two rounds of masks, of which the second is prepared by the first."""
    return SumCase(partial(terms, secure_aggregation(**settings)), given, rounds=2)


def pinned(**settings: Any) -> SumCase:
    case = partial(terms, secure_aggregation(identities=PINNED, **settings))
    return SumCase(case, given, rounds=2, identities=KEYS)


def is_lost(stage: str) -> Any:
    """In the first exchange, client 1 is lost from this stage on."""
    order = ("keys", "shares", "upload", "confirm", "unmask")
    return lambda number, now, party: number <= 1 and party == 1 and order.index(now) >= order.index(stage)


def fails(client: int, number: int) -> dict[str, Any]:
    """Client 2 is beyond its bound, sits out, and the round is repeated with twice that."""
    values = update(client, number)
    return {"update": values | {"w": values["w"] + (20.0 if client == 2 else 0.0)}}


SUMS: dict[str, SumCase] = {
    "in the clear": SumCase(partial(terms, None), given),
    "quantised": SumCase(partial(terms, lambda: chain(quantise())), given),
    "weights, metrics and a base": SumCase(
        partial(terms, secure_aggregation(), base=True, largest_weight=8, metrics={"loss": 4.0}), weighed, base
    ),
    "differences in 32 bits": SumCase(
        partial(terms, secure_aggregation(), base=True, differences=True, ring=32), given, base
    ),
    "masks": masks(),
    "masks, not prepared": SumCase(partial(terms, secure_aggregation(), pipelined=False), given, rounds=2),
    "masks, sparse graph": SumCase(partial(terms, SPARSE, clients=8), given),
    "masks, verified": masks(verify=True),
    "masks, identities": pinned(),
    "masks, identities, verified": pinned(verify=True),
    "masks, void and repeated": SumCase(partial(terms, secure_aggregation()), fails),
    **{
        f"masks, client lost at {stage}": SumCase(partial(terms, secure_aggregation()), given, lost=is_lost(stage))
        for stage in ("keys", "shares", "upload", "unmask")
    },
    "masks, identities, client lost at confirm": SumCase(
        partial(terms, secure_aggregation(identities=PINNED)), given, lost=is_lost("confirm"), identities=KEYS
    ),
    "requests signed": SumCase(partial(terms, secure_aggregation()), given, signed=bytes(range(32))),
    **{
        f"Paillier, {kind} exponents": SumCase(partial(terms, InsecurePaillier(512, kind)), given)
        for kind in ("full", "half", "short")
    },
    "Paillier with a threshold": SumCase(
        partial(terms, lambda: threshold_paillier(keys=insecure_deal(3, CLIENTS))), given, rounds=2
    ),
    "CKKS": SumCase(partial(terms, ckks(), metrics={}), given, own_randomness=True),
}
RUNS: dict[str, RunCase] = {
    "run in the clear": RunCase(lambda: None),
    "run under masks": RunCase(secure_aggregation),
    "run under masks, prepared": RunCase(lambda: secure_aggregation(pipelined=True)),
    "run under masks, verified": RunCase(lambda: secure_aggregation(pipelined=True, verify=True)),
    "run of a cohort that is drawn": RunCase(secure_aggregation, options={"cohort": 3}),
    "run of clients that are chosen": RunCase(lambda: None, Choosing(), {"cohort": 3}),
    "run with a client that misses the outcome": RunCase(
        secure_aggregation, lost=lambda number, stage, party: stage == "commit" and party == 1
    ),
}
CASES: dict[str, SumCase | RunCase | FlowerCase] = {**SUMS, **RUNS, "Flower": FlowerCase()}
