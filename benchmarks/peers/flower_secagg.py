"""The peer of `benchmarks.peers.secure_aggregation`: the work of Flower's SecAgg with Flower's own functions.

Runs in a process of its own, imports nothing of ours, and prints one JSON object. Clients call the
stage functions of Flower's mod as the mod does, with neither messages nor state records around them; the server's loops
are those of its workflow on the complete graph (`SecAggWorkflow`), with its primitives. CPU time of all threads.

    python benchmarks/peers/flower_secagg.py round CLIENTS ENTRIES DROPPED
    python benchmarks/peers/flower_secagg.py client CLIENTS ENTRIES
    python benchmarks/peers/flower_secagg.py shamir CLIENTS
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"

import numpy as np
from flwr.common import bytes_to_ndarray, ndarrays_to_parameters
from flwr.common.secure_aggregation.crypto.shamir import combine_shares, create_shares
from flwr.common.secure_aggregation.crypto.symmetric_encryption import encrypt, generate_shared_key
from flwr.common.secure_aggregation.ndarrays_arithmetic import (
    factor_extract,
    get_parameters_shape,
    parameters_addition,
    parameters_mod,
    parameters_subtraction,
)
from flwr.common.secure_aggregation.quantization import dequantize
from flwr.common.secure_aggregation.secaggplus_constants import Key
from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen, share_keys_plaintext_concat
from flwr.supercore.primitives.asymmetric import (
    bytes_to_private_key,
    bytes_to_public_key,
    generate_key_pairs,
    private_key_to_bytes,
)

MOD = importlib.import_module("flwr.client.mod.secure_aggregation.secaggplus_mod")
CLIP, LEVELS, MODULUS, WEIGHT = 8.0, 2**22, 2**32, 1000


class Clock:
    """CPU milliseconds, added up."""

    def __init__(self) -> None:
        self.ms = 0.0

    def __call__(self, call: Callable[..., Any], *args: Any) -> Any:
        start = time.process_time()
        out = call(*args)
        self.ms += (time.process_time() - start) * 1e3
        return out


def setup(clients: int) -> dict[str, Any]:
    return {
        Key.SAMPLE_NUMBER: clients, Key.SHARE_NUMBER: clients, Key.THRESHOLD: clients // 2 + 1,
        Key.CLIPPING_RANGE: CLIP, Key.TARGET_RANGE: LEVELS, Key.MOD_RANGE: MODULUS, Key.MAX_WEIGHT: float(WEIGHT),
    }  # fmt: skip


def new_state(client: int) -> Any:
    state = MOD.SecAggPlusState()
    state.nid = client
    return state


def run_round(clients: int, entries: int, dropped: int) -> dict[str, float]:
    """A round of all clients, the last `dropped` of which do not upload."""
    rng = np.random.default_rng(0)
    client_clock, server_clock = Clock(), Clock()
    ids = list(range(1, clients + 1))
    alive = ids[: clients - dropped]
    states = {i: new_state(i) for i in ids}
    keys = {i: client_clock(MOD._setup, states[i], setup(clients)) for i in ids}
    public = {i: (keys[i][Key.PUBLIC_KEY_1], keys[i][Key.PUBLIC_KEY_2]) for i in ids}
    named = {str(i): pair for i, pair in public.items()}
    shares = {i: client_clock(MOD._share_keys, states[i], named) for i in ids}
    forwarded = server_clock(forward, ids, shares)
    exact, uploads = np.zeros(entries), {}
    for i in alive:
        update = rng.uniform(-1, 1, entries)
        exact += update / len(alive)
        config = {Key.SOURCE_LIST: forwarded[i][0], Key.CIPHERTEXT_LIST: forwarded[i][1]}
        arguments = (states[i], config, WEIGHT, ndarrays_to_parameters([update]))
        uploads[i] = client_clock(MOD._collect_masked_vectors, *arguments)[Key.MASKED_PARAMETERS]
    nbytes = sum(len(part) for part in uploads[alive[0]])
    total = server_clock(add, uploads)
    request = {Key.ACTIVE_NODE_ID_LIST: alive, Key.DEAD_NODE_ID_LIST: ids[clients - dropped :]}
    answers = {i: client_clock(MOD._unmask, states[i], request) for i in alive}
    mean = server_clock(unmask, ids, alive, public, answers, total)
    return {
        "client_ms": client_clock.ms / clients,
        "server_ms": server_clock.ms,
        "upload_bytes": nbytes,
        "error": float(np.abs(mean - exact).max()),
    }


def forward(ids: list[int], shares: dict[int, Any]) -> dict[int, tuple[list[int], list[bytes]]]:
    out: dict[int, tuple[list[int], list[bytes]]] = {i: ([], []) for i in ids}
    for source, reply in shares.items():
        for target, ciphertext in zip(reply[Key.DESTINATION_LIST], reply[Key.CIPHERTEXT_LIST], strict=True):
            out[target][0].append(source)
            out[target][1].append(ciphertext)
    return out


def add(uploads: dict[int, list[bytes]]) -> list[Any]:
    total = None
    for parts in uploads.values():
        vector = [bytes_to_ndarray(part) for part in parts]
        total = vector if total is None else parameters_addition(total, vector)
    assert total is not None
    return parameters_mod(total, MODULUS)


def unmask(
    ids: list[int], alive: list[int], public: dict[int, Any], answers: dict[int, Any], total: list[Any]
) -> np.ndarray:
    collected: dict[int, list[bytes]] = {i: [] for i in ids}
    for reply in answers.values():
        for owner, share in zip(reply[Key.NODE_ID_LIST], reply[Key.SHARE_LIST], strict=True):
            collected[owner].append(share)
    for owner, held in collected.items():
        secret = combine_shares(held)
        if owner in alive:
            mask = pseudo_rand_gen(secret, MODULUS, get_parameters_shape(total))
            total = parameters_subtraction(total, mask)
            continue
        for peer in ids:
            if peer != owner:
                key = generate_shared_key(bytes_to_private_key(secret), bytes_to_public_key(public[peer][0]))
                mask = pseudo_rand_gen(key, MODULUS, get_parameters_shape(total))
                total = (parameters_addition if owner > peer else parameters_subtraction)(total, mask)
    weight, parts = factor_extract(parameters_mod(total, MODULUS))
    vector = dequantize(parts, CLIP, LEVELS)[0]
    return (vector - (len(alive) - 1) * CLIP) * (LEVELS / weight)


def run_client(clients: int, entries: int) -> dict[str, float]:
    """All four stages of one client; what its peers would send is made outside the clock."""
    clock, me = Clock(), new_state(1)
    peers = {i: (generate_key_pairs(), generate_key_pairs()) for i in range(2, clients + 1)}
    keys = clock(MOD._setup, me, setup(clients))
    named = {"1": (keys[Key.PUBLIC_KEY_1], keys[Key.PUBLIC_KEY_2])}
    for i, pairs in peers.items():
        named[str(i)] = tuple(MOD.public_key_to_bytes(public) for _, public in pairs)
    clock(MOD._share_keys, me, named)
    threshold = clients // 2 + 1
    seed_share = create_shares(os.urandom(32), threshold, clients)[0]
    key_share = create_shares(private_key_to_bytes(generate_key_pairs()[0]), threshold, clients)[0]
    mine = bytes_to_public_key(me.pk2)
    bundles = [
        encrypt(generate_shared_key(pairs[1][0], mine), share_keys_plaintext_concat(i, 1, seed_share, key_share))
        for i, pairs in peers.items()
    ]
    update = ndarrays_to_parameters([np.random.default_rng(0).uniform(-1, 1, entries)])
    config = {Key.SOURCE_LIST: list(peers), Key.CIPHERTEXT_LIST: bundles}
    clock(MOD._collect_masked_vectors, me, config, WEIGHT, update)
    clock(MOD._unmask, me, {Key.ACTIVE_NODE_ID_LIST: [1, *peers], Key.DEAD_NODE_ID_LIST: []})
    return {"client_ms": clock.ms}


def run_shamir(clients: int) -> dict[str, float]:
    """Shares of both secrets made once, and both combined from the threshold's number of shares."""
    threshold, clock = clients // 2 + 1, Clock()
    for secret in (os.urandom(32), private_key_to_bytes(generate_key_pairs()[0])):
        shares = clock(create_shares, secret, threshold, clients)
        if clock(combine_shares, shares[:threshold]) != secret:
            raise ValueError("the peer's shares do not combine")
    return {"ms": clock.ms}


if __name__ == "__main__":
    commands: dict[str, Callable[..., dict[str, float]]] = {
        "round": run_round,
        "client": run_client,
        "shamir": run_shamir,
    }
    print(json.dumps(commands[sys.argv[1]](*map(int, sys.argv[2:]))))
