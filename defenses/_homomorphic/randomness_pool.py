"""Make encryptions of zero, in worker processes where that is faster, and keep a pool of them made ahead of time.

An encryption of zero is the random factor of a Paillier ciphertext (`encryption_randomness`), and most of its cost. It
is secret and serves one ciphertext: two ciphertexts with the same factor show the difference of their plaintexts.
A client fills its pool while it waits or trains (`client_prepare`) and empties it with its uploads (`cipher.encrypt`).
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from typing import Any

from securefed.defenses._homomorphic.encryption_randomness import (
    RandomnessKind,
    compute_encryptions_of_zero,
    exponent_bits,
)
from securefed.defenses._homomorphic.keys import PublicKey
from securefed.defenses._homomorphic.randomness_workers import shared_workers


def encryptions_of_zero(public: PublicKey, count: int, randomness: RandomnessKind) -> list[Any]:
    """Make `count` fresh encryptions of zero, integers below n^2, in worker processes where they save time.

    Workers serve the kinds of randomness that use tables of powers, which each worker makes once per key. This process
    computes the kind `full`, which raises a fresh number to the power n each time.

    Args:
        public: the public key, with the modulus n.
        count: how many.
        randomness: how they are drawn; kinds with shorter exponents are faster, under a further assumption.

    Raises:
        WorkerError: a worker process ended before its answer.
    """
    if randomness != "full":
        workers = shared_workers(public.bits, exponent_bits(public.bits, randomness), count)
        if workers is not None:
            return workers.encryptions_of_zero(public, count, randomness)
    return compute_encryptions_of_zero(public, count, randomness)


class RandomnessPool:
    """Encryptions of zero that a client computes while it is idle; encrypting then costs one product a ciphertext.

    Guarantee: `take` returns each encryption of zero once. A copied pool, an unpickled one and the one in a forked
    process are empty. A pool lives in memory only.
    Not promised: that memory is wiped after use.
    """

    def __init__(self) -> None:
        # by modulus n, the base h of the key, and kind of randomness
        self._ready: dict[tuple[int, int, RandomnessKind], deque[Any]] = {}
        self._lock = threading.Lock()
        _POOLS.add(self)

    def __reduce__(self) -> tuple[type[RandomnessPool], tuple[()]]:
        """Make copying and pickling give an empty pool."""
        return RandomnessPool, ()

    def prepare(self, public: PublicKey, randomness: RandomnessKind, count: int) -> None:
        """Compute until `count` encryptions of zero are ready under this key."""
        fresh = encryptions_of_zero(public, max(count - self.ready(public, randomness), 0), randomness)
        with self._lock:
            self._ready.setdefault((public.n, public.base, randomness), deque()).extend(fresh)

    def ready(self, public: PublicKey, randomness: RandomnessKind) -> int:
        """Count the encryptions of zero that are ready under this key."""
        with self._lock:
            return len(self._ready.get((public.n, public.base, randomness), ()))

    def take(self, public: PublicKey, randomness: RandomnessKind, count: int) -> list[Any]:
        """Return `count` encryptions of zero: first those that are ready, the rest computed now."""
        with self._lock:
            ready = self._ready.get((public.n, public.base, randomness), deque())
            taken = [ready.popleft() for _ in range(min(count, len(ready)))]
        return taken + encryptions_of_zero(public, count - len(taken), randomness)

    def clear(self) -> None:
        """Discard everything that is ready."""
        self._lock = threading.Lock()  # in a forked process a thread that no longer exists may hold the old one
        self._ready = {}


_POOLS: weakref.WeakSet[RandomnessPool] = weakref.WeakSet()


def _clear_all() -> None:
    for pool in list(_POOLS):
        pool.clear()


os.register_at_fork(after_in_child=_clear_all)
