"""Processes that share the making of noise. Python holds its lock during a product, so threads would not.

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
from typing import IO, TYPE_CHECKING, Any, Final, Literal

import gmpy2

from securefed.errors import SecureFedError

if TYPE_CHECKING:
    from securefed.defenses.homomorphic.keys import PublicKey

_HEADER: Final = struct.Struct("<IIB")  # bytes of n, pieces wanted, noise
_KINDS: Final[tuple[Literal["half", "short"], ...]] = ("half", "short")
_START_SECONDS: Final = 2.5
"""What a worker's start and its own table cost, generously: they must be won back by the first call."""


class WorkerError(SecureFedError, RuntimeError):
    """A worker process ended before its answer."""


class Workers:
    """`count` processes for noise, started at once, ended by `close` or as a context.

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

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            # Closes its pipes and waits; one that ended early left unread what was still to be flushed.
            with suppress(BrokenPipeError), process:
                pass

    def noises(self, public: PublicKey, count: int, noise: Literal["half", "short"]) -> list[Any]:
        """As `noise.noises`, shared out evenly."""
        size, parts = public.plaintext_bytes, len(self._processes)
        shares = [count // parts + (index < count % parts) for index in range(parts)]
        with self._lock, _named():
            for process, share in zip(self._processes, shares, strict=True):
                pipe = _pipe(process.stdin)
                pipe.write(_HEADER.pack(size, share, _KINDS.index(noise)))
                pipe.write(public.n.to_bytes(size, "little") + int(public.base).to_bytes(size, "little"))
                pipe.flush()
            data = b"".join(
                _exactly(_pipe(process.stdout), 2 * size * share)
                for process, share in zip(self._processes, shares, strict=True)
            )
        return [
            gmpy2.mpz(int.from_bytes(data[i : i + 2 * size], "little")) for i in range(0, 2 * size * count, 2 * size)
        ]


@contextmanager
def _named() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise WorkerError(f"a worker for noise ended early: {error}") from error


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None
    return pipe


def _exactly(pipe: IO[bytes], size: int) -> bytes:
    data = pipe.read(size)
    if len(data) != size:
        raise WorkerError("a worker for noise ended early; is there enough memory?")
    return data


def pays(bits: int, exponent: int, count: int, cores: int, started: bool) -> bool:
    """Whether sharing out this noise saves more than it costs.

    A product modulo n^2 takes about 5 us at 2048 bits and grows like bits^1.6 (measured: `benchmarks.paillier`).
    """
    seconds = count * (exponent / 10) * 5e-6 * (bits / 2048) ** 1.6
    return cores > 1 and seconds * (1 - 1 / cores) > (0.1 if started else _START_SECONDS)


def shared(bits: int, exponent: int, count: int) -> Workers | None:
    """This process' workers, one a core, started when they first pay; `None` where they do not."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if not pays(bits, exponent, count, cores, started=_start.cache_info().currsize > 0):
        return None
    return _start(cores, os.getpid())


@cache
def _start(cores: int, process: int) -> Workers:
    """One set a process: a forked one must not speak on its parent's pipes."""
    workers = Workers(cores)
    atexit.register(workers.close)
    return workers


def serve() -> None:
    """A worker's life: answer until the input ends."""
    from phe import PaillierPublicKey  # noqa: PLC0415 - `noise` imports this module

    from securefed.defenses.homomorphic.keys import PublicKey  # noqa: PLC0415
    from securefed.defenses.homomorphic.noise import make  # noqa: PLC0415

    while header := sys.stdin.buffer.read(_HEADER.size):
        size, count, kind = _HEADER.unpack(header)
        n, base = (int.from_bytes(sys.stdin.buffer.read(size), "little") for _ in range(2))
        for piece in make(PublicKey(PaillierPublicKey(n), base), count, _KINDS[kind]):
            sys.stdout.buffer.write(int(piece).to_bytes(2 * size, "little"))
        sys.stdout.buffer.flush()
