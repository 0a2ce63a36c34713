"""Packed Paillier beside phe, value by value, in one run: `python -m benchmarks.paillier`.

Ours is the whole client step (key check, packing, encryption, wire format) and the whole opening (decryption and
unpacking) of a contribution; phe's is `encrypt` and `decrypt` of one float at a time, as its documentation shows.
Both use the same 2048-bit key. Wall clock, one thread, but for our decryption, which gives each of the two primes a
thread. The table of powers is made before the clock starts; its cost is a row of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

import gmpy2
import numpy as np

from benchmarks.rows import Row, row, timed, write
from securefed.defenses.base import Plan, Session
from securefed.defenses.compose import chain
from securefed.defenses.fixed_point import Quantise
from securefed.defenses.homomorphic import KeyHolder, Noise, Paillier, PublicKey, cipher, generate, paillier
from securefed.defenses.homomorphic.packing import Packing
from securefed.messages import SERVER, Message
from securefed.tensors import Layout, Ring, Tensors, TensorSpec

RUN = "0" * 32
CLIENTS = 8
PHE_VALUES = 20
CIPHERTEXTS: dict[str, int] = {"half": 64, "full": 12}


def main() -> None:
    """Measure and write `results/paillier.json`."""
    private = generate(2048)
    floats = np.random.default_rng(0).standard_normal(PHE_VALUES).tolist()
    scalars = [private.public.phe.encrypt(x) for x in floats]
    encrypt = median(timed(lambda: [private.public.phe.encrypt(x) for x in floats], 3)) / PHE_VALUES * 1e6
    decrypt = median(timed(lambda: [private.phe.decrypt(c) for c in scalars], 3)) / PHE_VALUES * 1e6
    rows = [*_once(private.public)]
    settings: list[tuple[Noise, Ring]] = [("half", 32), ("half", 64), ("full", 32), ("full", 64)]
    for noise, ring in settings:
        rows += _case(KeyHolder(private), noise, ring, encrypt, decrypt)
    path = write("paillier", rows)
    for r in rows:
        beside = f"  phe {r.peer:10.4g}  x {r.ratio:7.1f}" if r.peer is not None and r.ratio is not None else ""
        print(f"{r.quantity:42} {r.setting:34} {r.ours:10.4g} {r.unit:14}{beside}")
    print(path)


def _once(public: PublicKey) -> Iterator[Row]:
    """What is paid once a key."""
    yield row("make a key", "2048 bits", timed(lambda: generate(2048), 5), "s")
    square = gmpy2.mpz(public.n) ** 2
    base = gmpy2.powmod(public.base, public.n, square)
    yield row("fill the table of powers", "2048 bits, once a process", timed(lambda: _table(base, square), 3), "s")


def _table(base: object, square: object) -> cipher.FixedBase:
    return cipher.FixedBase(base, square, 128)


def _case(holder: KeyHolder, noise: Noise, ring: Ring, phe_encrypt: float, phe_decrypt: float) -> Iterator[Row]:
    scheme = paillier(noise=noise)
    defence = chain(Quantise(ring), scheme)
    count = CIPHERTEXTS[noise]
    values = count * (2047 // ring)
    plan = defence.plan(Layout((TensorSpec("x", (values,), 1.0, ring),)), CLIENTS)
    encoded = defence.encode({"x": np.random.default_rng(1).uniform(-1, 1, values)}, plan)
    setting = f"2048 bits, {ring}-bit slots, {noise} noise"
    body = _upload(scheme, holder, plan, encoded)
    public, packing = holder.public, Packing.of(plan, 2048)
    ciphertexts = cipher.from_wire(body["ciphertexts"], count, public.ciphertext_bytes, 0)

    seconds = np.asarray(timed(lambda: _upload(scheme, holder, plan, encoded), 5))
    yield _cost("encrypt", setting, seconds / values * 1e6, "us per value", phe_encrypt, 50)
    yield row(
        "encrypt, per ciphertext",
        setting,
        (seconds / count * 1e3).tolist(),
        "ms",
        target="< 1 ms" if noise == "half" else None,
        met=bool(np.median(seconds) / count < 1e-3) if noise == "half" else None,
    )
    fresh, plaintexts = cipher.noises(public, count, noise), packing.pack(encoded)
    n, square = gmpy2.mpz(public.n), gmpy2.mpz(public.n) ** 2
    online = timed(lambda: [(1 + m * n) * r % square for m, r in zip(plaintexts, fresh, strict=True)], 5)
    yield row("encrypt with noise made ahead", setting, [s / values * 1e6 for s in online], "us per value")
    opened = np.asarray(timed(lambda: packing.unpack(holder.decrypt_upload(ciphertexts), 1, SERVER), 5))
    yield _cost("decrypt the sum", f"{setting}, 2 threads", opened / values * 1e6, "us per value", phe_decrypt, 50)
    added = timed(lambda: cipher.multiply(public, ciphertexts, ciphertexts), 5)
    yield row("add one client at the server", setting, [s / values * 1e6 for s in added], "us per value")
    per_value = body["ciphertexts"].nbytes / values
    limit = 8.3 if ring == 32 else 16.6
    yield row(
        "upload",
        setting,
        [per_value],
        "bytes per value",
        peer=float(public.ciphertext_bytes),
        peer_name="phe, scalar",
        target=f"<= {limit} bytes",
        met=per_value <= limit,
    )


def _upload(scheme: Paillier, holder: KeyHolder, plan: Plan, encoded: Tensors) -> Tensors:
    state = scheme.client_open(Session(RUN, 0, tuple(range(CLIENTS)), plan), 0)
    request = Message(RUN, 0, "upload", SERVER, 0, holder.public.to_body())
    return scheme.client_step(state, request, encoded)[1]


def _cost(quantity: str, setting: str, ours: np.ndarray, unit: str, peer: float, factor: float) -> Row:
    met = bool(peer / np.median(ours) >= factor)
    return row(
        quantity,
        setting,
        ours.tolist(),
        unit,
        peer=peer,
        peer_name="phe, scalar",
        target=f">= {factor:g} x phe",
        met=met,
    )


if __name__ == "__main__":
    main()
