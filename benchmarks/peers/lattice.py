"""CKKS behind our interface beside TenSEAL itself and beside packed Paillier: `python -m benchmarks.peers.lattice`.

Ours is the whole client step (context read and checked, entries scaled, encryption, wire format) and the whole opening
(ciphertexts read and checked, decryption, flood, unpacking); TenSEAL's is `ckks_vector` and `decrypt` of the same
vectors. CPU time.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any

import numpy as np

from benchmarks.rows import cpu, row, show, write
from securefed._messages import SERVER, Message
from securefed._tensors import Array, Layout, TensorSpec
from securefed.defenses._base import Session
from securefed.defenses._chain import chain
from securefed.defenses._homomorphic import LatticeKeyHolder, ckks
from securefed.defenses._homomorphic.lattice import scale
from securefed.defenses._homomorphic.lattice_ring import SLOTS, library

RUN, CLIENTS, CHUNKS = "0" * 32, 8, 16
VALUES = CHUNKS * SLOTS - 1  # the indicator takes the last slot
SETTING = f"{VALUES} values, degree {2 * SLOTS}"


def main() -> None:
    """Measure and write `results/lattice.json`."""
    scheme, holder = ckks(), LatticeKeyHolder()
    defense = chain(scheme)
    plan = defense.plan(Layout((TensorSpec("x", (VALUES,), 1.0),)), CLIENTS)
    session = Session(RUN, 0, tuple(range(CLIENTS)), plan)
    rng = np.random.default_rng(1)
    raw = {client: defense.encode({"x": rng.uniform(-1, 1, VALUES)}, plan) for client in range(CLIENTS)}

    def upload(client: int = 0) -> Mapping[str, Array]:
        request = Message(RUN, 0, "upload", SERVER, client, holder.public_body())
        return scheme.client_step(scheme.client_open(session, client), request, raw[client])[1]

    body = upload()
    direct_encrypt, direct_decrypt = _direct(raw[0]["x"])
    per_value = 1e6 / VALUES
    encrypt = [s * per_value for s in cpu(upload, 5)]
    opened = [s * per_value for s in cpu(lambda: holder.opened(body["ciphertexts"], CLIENTS, SERVER), 5)]
    total = holder.opened(_sum(holder, [upload(c)["ciphertexts"] for c in raw]), CLIENTS, SERVER)["plaintexts"]
    error = float(np.abs(total.reshape(-1)[:VALUES] - sum(value["x"] for value in raw.values())).max())
    planned = plan.tensors[0].error
    peer: dict[str, Any] = {"peer_name": "TenSEAL itself"}
    rows = [
        row("make a key", "context and public key", cpu(LatticeKeyHolder, 3), "s"),
        row("encrypt", SETTING, encrypt, "us per value", peer=direct_encrypt * per_value, **peer),
        row("decrypt the sum", SETTING, opened, "us per value", peer=direct_decrypt * per_value, **peer),
        row("upload", SETTING, [body["ciphertexts"].nbytes / VALUES], "bytes per value"),
        row(
            "largest error of a sum",
            f"{SETTING}, {CLIENTS} clients, bound 1",
            [error],
            "",
            target=f"<= {planned:.3g} (the plan)",
            met=error <= planned,
        ),
    ]
    path = write("lattice", rows)
    show(rows)
    print(path)


def _direct(x: Array) -> tuple[float, float]:
    """CPU seconds of TenSEAL alone, at our parameters."""
    tenseal = library()
    context = tenseal.context(tenseal.SCHEME_TYPE.CKKS, poly_modulus_degree=2 * SLOTS, coeff_mod_bit_sizes=[60] * 3)
    context.global_scale = scale(CLIENTS)
    chunks = np.append(x, 0.0).reshape(-1, SLOTS)
    vectors = [tenseal.ckks_vector(context, chunk) for chunk in chunks]
    encrypt = cpu(lambda: [tenseal.ckks_vector(context, chunk) for chunk in chunks], 5)
    return median(encrypt), median(cpu(lambda: [vector.decrypt() for vector in vectors], 5))


def _sum(holder: LatticeKeyHolder, uploads: list[Array]) -> Array:
    """The server's sum, on the wire."""
    scheme = ckks()
    plan = chain(scheme).plan(Layout((TensorSpec("x", (VALUES,), 1.0),)), CLIENTS)
    state, _, _ = scheme.server_open(Session(RUN, 0, tuple(range(CLIENTS)), plan))
    key = Message(RUN, 0, "key", -2, SERVER, holder.public_body())
    step = scheme.server_step(state, {-2: key})
    assert isinstance(step, tuple)
    replies = {c: Message(RUN, 0, "upload", c, SERVER, {"ciphertexts": rows}) for c, rows in enumerate(uploads)}
    asked = scheme.server_step(step[0], replies)
    assert isinstance(asked, tuple)
    return asked[2][-2]["ciphertexts"]


if __name__ == "__main__":
    main()
