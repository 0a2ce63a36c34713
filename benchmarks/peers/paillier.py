"""Packed Paillier beside phe, value by value, in one run: `python -m benchmarks.peers.paillier`.

Ours is the whole client step (key check, packing, encryption, wire format) and the whole opening (decryption and
unpacking) of a contribution; phe's is `encrypt` and `decrypt` of one float at a time, as its documentation shows,
timed right before each of our cases under the same key. CPU time of all threads, so that neither several cores nor
other programs on the machine count for or against anybody; worker processes alone are timed by the wall clock.
Tables of powers are made before the clock starts; their cost is a row of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Literal

import numpy as np

from benchmarks.rows import Row, clocked, cpu, row, show, write
from benchmarks.rows import timed as wall
from securefed._messages import SERVER, Message
from securefed._tensors import Layout, Ring, Tensors, TensorSpec
from securefed.defenses._base import Plan, Session
from securefed.defenses._chain import chain
from securefed.defenses._fixed_point import Quantise
from securefed.defenses._homomorphic import (
    KeyHolder,
    Paillier,
    cipher,
    encryption_randomness,
    generate,
    paillier,
)
from securefed.defenses._homomorphic.encryption_randomness import (
    RandomnessKind,
    compute_encryptions_of_zero,
    exponent_bits,
)
from securefed.defenses._homomorphic.key_holder_protocol import EncryptingClient
from securefed.defenses._homomorphic.keys import PrivateKey
from securefed.defenses._homomorphic.packing import Packing
from securefed.defenses._homomorphic.randomness_workers import RandomnessWorkers

RUN = "0" * 32
CLIENTS = 8
PHE_VALUES = 12
CIPHERTEXTS: dict[RandomnessKind, int] = {"short": 160, "half": 64, "full": 12}
TARGETS: dict[RandomnessKind, float | None] = {"short": 1000, "half": 50, "full": 50}


@dataclass(frozen=True)
class Case:
    """One setting: a key, a noise, a slot width."""

    private: PrivateKey
    noise: RandomnessKind
    ring: Ring

    @property
    def scheme(self) -> Paillier:
        return paillier(self.private.public.bits, self.noise)

    @property
    def words(self) -> str:
        return f"{self.private.public.bits} bits, {self.ring}-bit slots, {self.noise} noise"


def main() -> None:
    """Measure and write `results/paillier.json`."""
    rows: list[Row] = []
    for bits in (2048, 3072):
        private = generate(bits)
        rows += _once(private)
        rings: list[tuple[RandomnessKind, Ring]] = [("short", 32), ("half", 32), ("full", 32)]
        rings += [("half", 64)] if bits == 2048 else []
        for noise, ring in rings:
            rows += _case(Case(private, noise, ring))
    rows += _workers(generate(2048))
    path = write("paillier", rows)
    show(rows)
    print(path)


def _once(private: PrivateKey) -> Iterator[Row]:
    """What is paid once a key."""
    public = private.public
    yield row("make a key", f"{public.bits} bits", cpu(lambda: generate(public.bits), 3), "s")
    encryptions_of_zero: tuple[RandomnessKind, ...] = ("half", "short")
    for noise in encryptions_of_zero:

        def fill(noise: RandomnessKind = noise) -> None:
            encryption_randomness.power_table.cache_clear()
            encryption_randomness.power_table(public.n, public.base, noise)

        yield row("fill the table of powers", f"{public.bits} bits, {noise}, once a process", cpu(fill, 1), "s")


def _case(case: Case) -> Iterator[Row]:
    bits, public, holder = case.private.public.bits, case.private.public, KeyHolder(case.private)
    defence = chain(Quantise(case.ring), case.scheme)
    count = CIPHERTEXTS[case.noise]
    values = count * ((bits - 1) // case.ring) - 64 // case.ring  # the indicator's 64 bits take the last slots
    plan = defence.plan(Layout((TensorSpec("x", (values,), 1.0, case.ring),)), CLIENTS)
    encoded = defence.encode({"x": np.random.default_rng(1).uniform(-1, 1, values)}, plan)
    scheme, packing = case.scheme, Packing.of(plan, bits)
    assert packing.plaintexts == count
    body = _upload(scheme, holder, plan, encoded)
    ciphertexts = cipher.from_wire(body["ciphertexts"], count, public.ciphertext_bytes, 0)
    peer_encrypt, peer_decrypt = _phe(case.private)

    seconds = np.asarray(cpu(lambda: _upload(scheme, holder, plan, encoded), 5))
    yield _cost("encrypt", case.words, seconds / values * 1e6, "us per value", peer_encrypt, TARGETS[case.noise])
    yield row("encrypt, per ciphertext", case.words, (seconds / count * 1e3).tolist(), "ms")
    online = np.asarray(list(_online(scheme, holder, plan, encoded)))
    yield _cost("encrypt, noise made ahead", case.words, online / values * 1e6, "us per value", peer_encrypt, None)
    factor = 25 if case.ring == 64 else 50  # of 31 and 63 values a ciphertext
    opened = np.asarray(cpu(lambda: packing.unpack(holder.decrypt_upload(ciphertexts), 1, SERVER), 3))
    yield _cost("decrypt the sum", case.words, opened / values * 1e6, "us per value", peer_decrypt, factor)
    added = cpu(lambda: cipher.multiply(public, ciphertexts, ciphertexts), 5)
    yield row("add one client at the server", case.words, [s / values * 1e6 for s in added], "us per value")
    checked = cpu(lambda: cipher.check(public, ciphertexts, 0), 5)
    yield row("check one client's ciphertexts", case.words, [s / values * 1e6 for s in checked], "us per value")
    per_value = body["ciphertexts"].nbytes / values
    limit = 8.3 if case.ring == 32 else 16.6
    yield row(
        "upload",
        case.words,
        [per_value],
        "bytes per value",
        peer=float(public.ciphertext_bytes),
        peer_name="phe, scalar",
        target=f"<= {limit} bytes",
        met=per_value <= limit,
    )


def _phe(private: PrivateKey) -> tuple[float, float]:
    """Microseconds a value that phe takes to encrypt and to decrypt."""
    floats = np.random.default_rng(0).standard_normal(PHE_VALUES).tolist()
    scalars = [private.public.phe.encrypt(x) for x in floats]
    calls: tuple[Callable[[], object], ...] = (
        lambda: [private.public.phe.encrypt(x) for x in floats],
        lambda: [private.phe.decrypt(c) for c in scalars],
    )
    encrypt, decrypt = (median(cpu(call, 3)) / PHE_VALUES * 1e6 for call in calls)
    return encrypt, decrypt


def _answer(scheme: Paillier, holder: KeyHolder, plan: Plan, encoded: Tensors) -> tuple[EncryptingClient, Tensors]:
    state = scheme.client_open(Session(RUN, 0, tuple(range(CLIENTS)), plan), 0)
    request = Message(RUN, 0, "upload", SERVER, 0, holder.public.to_body())
    return scheme.client_step(state, request, encoded)


def _upload(scheme: Paillier, holder: KeyHolder, plan: Plan, encoded: Tensors) -> Tensors:
    return _answer(scheme, holder, plan, encoded)[1]


def _online(scheme: Paillier, holder: KeyHolder, plan: Plan, encoded: Tensors) -> Iterator[float]:
    """Seconds of the same client step with its noise in pool."""
    state, _ = _answer(scheme, holder, plan, encoded)  # a client that knows the run's key
    for _ in range(3):
        scheme.client_prepare(state)
        assert scheme.pool.ready(holder.public, scheme.randomness)
        _, seconds = clocked(_upload, scheme, holder, plan, encoded)
        assert not scheme.pool.ready(holder.public, scheme.randomness)
        yield seconds


def _workers(private: PrivateKey) -> Iterator[Row]:
    """When worker processes pay: their start against what two save."""
    public, count = private.public, 1600
    kinds: tuple[Literal["half", "short"], ...] = ("half", "short")
    for noise in kinds:
        setting = f"2048 bits, {noise} noise, {count} ciphertexts ({exponent_bits(2048, noise)}-bit exponents)"
        alone = median(wall(partial(compute_encryptions_of_zero, public, count, noise), 1))
        started = wall(lambda: RandomnessWorkers(2).close(), 1)
        with closing(RandomnessWorkers(2)) as two:
            shared = wall(partial(two.encryptions_of_zero, public, count, noise), 1)
        yield row("noise by 2 worker processes", setting, shared, "s", peer=alone, peer_name="one process")
        yield row("start and end 2 worker processes", setting, started, "s")


def _cost(quantity: str, setting: str, ours: np.ndarray, unit: str, peer: float, factor: float | None) -> Row:
    target = None if factor is None else f">= {factor:g} x phe"
    met = None if factor is None else bool(peer / np.median(ours) >= factor)
    return row(quantity, setting, ours.tolist(), unit, peer=peer, peer_name="phe, scalar", target=target, met=met)


if __name__ == "__main__":
    main()
