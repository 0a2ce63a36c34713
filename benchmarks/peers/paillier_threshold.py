"""Threshold decryption of 1e5 values by 3 of 5 clients: `python -m benchmarks.peers.paillier_threshold`.

Core-seconds (CPU time of all threads, so that other programs on the machine do not count) of all work in one process:
the three holders' partial answers, then the server's combination; beside them what each checks, what the proofs cost,
and what a key holder who has the whole key would take.
"""

from __future__ import annotations

import time

import numpy as np

from benchmarks.rows import Row, row, show, write
from securefed._messages import SERVER, Message
from securefed._tensors import Layout, TensorSpec
from securefed.defenses._base import Session
from securefed.defenses._chain import chain
from securefed.defenses._homomorphic import KeySet, cipher, deal, generate, threshold_cipher, threshold_paillier
from securefed.defenses._homomorphic.packing import Packing
from securefed.defenses._homomorphic.signed_uploads import decryption_request, product, read_decryption_request

RUN, VALUES, HOLDERS, THRESHOLD = "0" * 32, 100_000, 5, 3
SETTING = f"{VALUES:.0e} values, {THRESHOLD} of {HOLDERS}, 2048 bits".replace("e+0", "e")
LIMIT = 60.0


class Clock:
    """CPU time of this process since it was last read."""

    def __init__(self) -> None:
        self.start = time.process_time()

    def lap(self) -> float:
        now = time.process_time()
        self.start, passed = now, now - self.start
        return passed


def main() -> None:
    """Measure once, in full, and write `results/paillier_threshold.json`."""
    clock = Clock()
    keys = deal(THRESHOLD, HOLDERS)
    rows = [row("deal the keys", f"{THRESHOLD} of {HOLDERS}, 2048 bits, two safe primes", [clock.lap()], "core-s")]
    scheme = threshold_paillier(keys=keys, randomness="short")
    defence = chain(scheme)
    plan = defence.plan(Layout((TensorSpec("x", (VALUES,), 1.0),)), HOLDERS)
    session = Session(RUN, 0, tuple(range(HOLDERS)), plan)
    rng = np.random.default_rng(1)
    raw = {client: {"x": rng.uniform(-1, 1, VALUES)} for client in range(HOLDERS)}
    encoded = {client: defence.encode(value, plan) for client, value in raw.items()}
    uploads, steps = {}, []
    for client in range(HOLDERS):
        clock.lap()
        request = Message(RUN, 0, "upload", SERVER, client, {})
        uploads[client] = scheme.client_step(scheme.client_open(session, client), request, encoded[client])[1]
        steps.append(clock.lap())
    rows.append(row("a client encrypts and signs", SETTING + ", short noise", steps[1:], "core-s"))

    shared, packing = keys.shared, Packing.of(plan, 2048)
    clock.lap()
    body = decryption_request(uploads)
    read = read_decryption_request(shared, session, body, packing.plaintexts, SERVER)
    ciphertexts = product(shared, read)
    rows.append(row("a holder checks and multiplies 5 uploads", SETTING, [clock.lap()], "core-s"))
    partials, laps = {}, []
    for holder in range(THRESHOLD):
        partials[holder] = threshold_cipher.partial(shared, keys.shares[holder], ciphertexts)
        laps.append(clock.lap())
    plaintexts = threshold_cipher.combine(shared, ciphertexts, partials)
    combined = clock.lap()
    assert plaintexts is not None
    found = packing.unpack(plaintexts, HOLDERS, SERVER)["x"]
    np.testing.assert_array_equal(found, sum(value["x"] for value in encoded.values()))
    rows += [
        row("one holder's partial answers", SETTING, laps, "core-s"),
        row("the server combines", SETTING, [combined], "core-s"),
        _total(sum(laps) + combined),
        *_proofs(keys, ciphertexts, partials, clock),
        _key_holder(packing),
        row("upload", SETTING, [uploads[0]["ciphertexts"].nbytes / VALUES], "bytes per value"),
        row(
            "sent to a holder",
            SETTING + ", 5 survivors",
            [sum(value.nbytes for value in body.values()) / VALUES],
            "bytes per value",
        ),
    ]
    path = write("paillier_threshold", rows)
    show(rows)
    print(path)


def _total(seconds: float) -> Row:
    target = f"<= {LIMIT:g} s on one core"
    return row("decrypt in all, proofs aside", SETTING, [seconds], "core-s", target=target, met=seconds <= LIMIT)


def _proofs(
    keys: KeySet, ciphertexts: cipher.Integers, partials: dict[int, cipher.Integers], clock: Clock
) -> list[Row]:
    shared, shares = keys.shared, keys.shares
    clock.lap()
    proof = threshold_cipher.prove(shared, 0, shares[0], ciphertexts, partials[0], b"")
    proving = clock.lap()
    assert threshold_cipher.verify(shared, 0, ciphertexts, partials[0], b"", proof)
    return [
        row("a holder proves its answers", SETTING, [proving], "core-s"),
        row("the server verifies one holder's proof", SETTING, [clock.lap()], "core-s"),
    ]


def _key_holder(packing: Packing) -> Row:
    """The same number of ciphertexts under one whole key."""
    private = generate(2048)
    ciphertexts = cipher.encrypt(private.public, [1] * packing.plaintexts, "short")
    clock = Clock()
    cipher.decrypt(private, ciphertexts)
    return row("a key holder decrypts as many alone", SETTING, [clock.lap()], "core-s")


if __name__ == "__main__":
    main()
