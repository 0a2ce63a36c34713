"""Compute encryptions of zero in worker processes; Python holds its lock during a product, so threads would not help.

An encryption of zero is the secret random factor of a Paillier ciphertext: with h the base in the public key (h < n)
it is h_n^e mod n^2, h_n = h^n mod n^2, for a fresh random exponent e, half as long as n (`half`) or of some 400 bits
(`short`; `encryption_randomness`). A client needs one for each ciphertext of an upload. `randomness_pool` calls
`shared_workers`.

A worker is a fresh interpreter that runs `serve`, spoken to over its pipes in raw bytes: no fork (other threads may
hold locks), no second import of the user's script, no pickle. Its secrets come from the operating system. It ends
with its standard input, hence with its owner.
"""

from __future__ import annotations

import atexit
import os
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import IO, Any, Final, Literal

import gmpy2

from securefed.defenses._homomorphic.encryption_randomness import compute_encryptions_of_zero
from securefed.defenses._homomorphic.keys import PublicKey, phe_library
from securefed.errors import SecureFedError

# A request is this header, then n and h, both below 2^(8 size); the answer is the encryptions of zero, 2 size bytes
# each. The header: size (bytes of n), encryptions of zero wanted, kind of randomness.
_HEADER: Final = struct.Struct("<IIB")
_KINDS: Final[tuple[Literal["half", "short"], ...]] = ("half", "short")
_START_SECONDS: Final = 2.5
"""Seconds that a worker takes at most until it is ready: to start, and to fill its table of powers of h_n. Workers are
started by the first call that is longer than without them by more than this."""


class WorkerError(SecureFedError, RuntimeError):
    """A worker process ended before its answer."""


class RandomnessWorkers:
    """Worker processes for encryptions of zero, started at once and ended by `close`.

    Args:
        count: number of processes.

    Raises:
        WorkerError: from any call, once a process has ended early.
    """

    def __init__(self, count: int) -> None:
        command = [sys.executable, "-c", f"from {__name__} import serve; serve()"]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        self._processes = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)  # noqa: S603
            for _ in range(count)
        ]
        self._lock = threading.Lock()

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            # Closes its pipes and waits; one that ended early left unread what was still to be flushed.
            with suppress(BrokenPipeError), process:
                pass

    def encryptions_of_zero(self, public: PublicKey, count: int, randomness: Literal["half", "short"]) -> list[Any]:
        """Make `count` fresh encryptions of zero, divided evenly among the processes.

        Args:
            public: the key: n and h.
            count: how many.
            randomness: length of the exponents, `half` or `short`.

        Returns:
            (count,) GMP integers below n^2.
        """
        size, workers = public.plaintext_bytes, len(self._processes)
        counts = [count // workers + (index < count % workers) for index in range(workers)]
        with self._lock, _pipe_errors_named():
            for process, own_count in zip(self._processes, counts, strict=True):
                pipe = _pipe(process.stdin)
                pipe.write(_HEADER.pack(size, own_count, _KINDS.index(randomness)))
                pipe.write(public.n.to_bytes(size, "little") + int(public.base).to_bytes(size, "little"))
                pipe.flush()
            data = b"".join(
                _read_exactly(_pipe(process.stdout), 2 * size * own_count)
                for process, own_count in zip(self._processes, counts, strict=True)
            )
        return [
            gmpy2.mpz(int.from_bytes(data[i : i + 2 * size], "little")) for i in range(0, 2 * size * count, 2 * size)
        ]


@contextmanager
def _pipe_errors_named() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise WorkerError(f"a worker process for encryption randomness ended early: {error}") from error


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None
    return pipe


def _read_exactly(pipe: IO[bytes], size: int) -> bytes:
    data = pipe.read(size)
    if len(data) != size:
        raise WorkerError("a worker process for encryption randomness ended early; is there enough memory?")
    return data


def workers_pay(bits: int, exponent: int, count: int, cores: int, started: bool) -> bool:
    """Decide whether worker processes save more time than they cost.

    One encryption of zero takes a product modulo n^2 for each digit of its exponent: the powers of h_n by all values of
    a digit, about 10 bits, are in a table. A product takes about 5 us at 2048 bits and grows like bits^1.6 (measured:
    `benchmarks.peers.paillier`).

    Args:
        bits: length of n.
        exponent: length of the exponents, in bits.
        count: how many encryptions of zero are wanted.
        cores: number of processes; they take 1 / `cores` of the time of one.
        started: whether they run already; if not, their start takes `_START_SECONDS`.
    """
    seconds = count * (exponent / 10) * 5e-6 * (bits / 2048) ** 1.6
    return cores > 1 and seconds * (1 - 1 / cores) > (0.1 if started else _START_SECONDS)


def shared_workers(bits: int, exponent: int, count: int) -> RandomnessWorkers | None:
    """Return this process' workers, one a core, started when they first save time; `None` where they do not."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if not workers_pay(bits, exponent, count, cores, started=_start.cache_info().currsize > 0):
        return None
    return _start(cores, os.getpid())


@cache
def _start(cores: int, process: int) -> RandomnessWorkers:
    """Start one set of workers per process: a forked process must not use its parent's pipes."""
    workers = RandomnessWorkers(cores)
    atexit.register(workers.close)
    return workers


def serve() -> None:
    """Answer requests on standard input until it ends; the main loop of a worker process."""
    while header := sys.stdin.buffer.read(_HEADER.size):
        size, count, kind = _HEADER.unpack(header)
        n, base = (int.from_bytes(sys.stdin.buffer.read(size), "little") for _ in range(2))
        key = PublicKey(phe_library().PaillierPublicKey(n), base)
        for piece in compute_encryptions_of_zero(key, count, _KINDS[kind]):
            sys.stdout.buffer.write(int(piece).to_bytes(2 * size, "little"))
        sys.stdout.buffer.flush()
