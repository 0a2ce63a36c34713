"""Make the words of mask streams, AES-128 in counter mode, by whichever cipher of two is faster on this processor.

`PATHS` are two routes through OpenSSL to the same words. GCM computes them nearly twice as fast as counter mode on
processors for which OpenSSL has code with the newest vector AES, and on others less than half as fast, as it also
computes an authentication tag, which is not used here. So the first stream that a process starts measures both, for a
few milliseconds. What is sent does not depend on the path: two clients, or the server, may use different ones.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Protocol

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from securefed._tensors import Array
from securefed.errors import ConfigError

LONGEST: Final = 16 * (2**32 - 2)
"""Bytes of one stream at most: the counter has 32 bits and starts at 2 (NIST SP 800-38D, sec. 5.2.1.1)."""
CHUNKS: Final = (1 << 17, 1 << 18)
"""Bytes made at a time. Three buffers of them stay in a second-level cache of 512 kB, or of 1 MB and more."""
_FIRST_BLOCK: Final = (2).to_bytes(4, "big")
_LINE: Final = 64
"""Bytes of a cache line, to which buffers are aligned: additions that straddle lines take a third longer."""
_TRIAL_BYTES, _TRIALS = 1 << 20, 4
"""Each path and chunk makes a megabyte 4 times; the fastest time counts, so that an interruption does not.
Twice as many bytes take 10 ms instead of 5 and choose no better; half as many confuse chunks 5 % apart in speed."""


class Encryptor(Protocol):
    """A cipher that has been started; encrypting zeros gives the next bytes of its stream."""

    def update(self, data: bytes, /) -> bytes:
        """Encrypt `data`."""

    def update_into(self, data: Any, buffer: Any, /) -> int:
        """Encrypt `data` into `buffer`, which needs room for 15 bytes more."""


def _by_gcm(seed: bytes) -> Encryptor:
    return Cipher(algorithms.AES(seed[:16]), modes.GCM(seed[16:28])).encryptor()


def _by_ctr(seed: bytes) -> Encryptor:
    return Cipher(algorithms.AES(seed[:16]), modes.CTR(seed[16:28] + _FIRST_BLOCK)).encryptor()


PATHS: Final[Mapping[str, Callable[[bytes], Encryptor]]] = {"GCM": _by_gcm, "CTR": _by_ctr}
"""By name, how a stream is started from 28 bytes or more: 16 of key, then 12 of nonce."""


@dataclass(frozen=True)
class Choice:
    """The path and the chunk by which this process makes its streams.

    Attributes:
        path: name in `PATHS`.
        chunk: bytes made at a time.
        speeds: 32-bit words made and added a second, by path and chunk; empty where the choice was forced.
    """

    path: str
    chunk: int
    speeds: Mapping[tuple[str, int], float]


class ChunkBuffers:
    """Buffers in which streams are made and added, chunk by chunk.

    Args:
        dtype: the words' type, little-endian unsigned integers.
        nbytes: length of a chunk, at most that of the longest in `CHUNKS`.
    """

    def __init__(self, dtype: np.dtype[Any], nbytes: int) -> None:
        self._zeros = _zeros()
        # `update_into` wants room for one block more than it fills
        self._made, self._first = _aligned(nbytes + 15), _aligned(nbytes + 15)
        self._words, self._total = self._made[:nbytes].view(dtype), self._first[:nbytes].view(dtype)
        self.size = self._total.size

    def sum(self, streams: Sequence[tuple[Encryptor, bool]], count: int) -> Array:
        """Add up the next `count` words of every stream.

        Args:
            streams: for each mask its encryptor, and whether it is added (or subtracted).
            count: at most `size`.

        Returns:
            The sum, valid until the next call.
        """
        zeros, words, total = self._zeros[: count * self._total.itemsize], self._words[:count], self._total[:count]
        if starts := bool(streams) and streams[0][1]:
            streams[0][0].update_into(zeros, self._first)
        else:
            total[:] = 0
        for stream, adds in streams[starts:]:
            stream.update_into(zeros, self._made)
            (np.add if adds else np.subtract)(total, words, total)
        return total


def mask_stream(seed: bytes) -> Encryptor:
    """Make the encryptor of a mask's stream: AES-128 in counter mode.

    The first 16 bytes of `seed` (32 bytes, used for one stream) are the key, the next 12 the nonce; the counter starts
    at 2. Those are the blocks that AES-GCM encrypts with (NIST SP 800-38D, sec. 7.1).
    """
    return PATHS[choice().path](seed)


_lock = threading.Lock()
_choice: Choice | None = None


def choice() -> Choice:
    """Return the path and chunk of this process. The first call measures them, in whichever thread it is made."""
    global _choice  # noqa: PLW0603
    if _choice is None:
        with _lock:
            if _choice is None:
                _choice = _fastest(measure())
    return _choice


def measure() -> dict[tuple[str, int], float]:
    """Measure 32-bit words made and added a second by each path and chunk; takes a few milliseconds."""
    fastest: dict[tuple[str, int], float] = {}
    for chunk in CHUNKS:
        buffers = ChunkBuffers(np.dtype("<u4"), chunk)
        for _ in range(_TRIALS):
            for path, start in PATHS.items():
                streams = [(start(bytes(28)), True)]
                began = time.perf_counter()
                for _ in range(_TRIAL_BYTES // chunk):
                    buffers.sum(streams, buffers.size)
                seconds = max(time.perf_counter() - began, 1e-9)
                fastest[path, chunk] = max(fastest.get((path, chunk), 0.0), _TRIAL_BYTES / 4 / seconds)
    return fastest


def _fastest(speeds: Mapping[tuple[str, int], float]) -> Choice:
    path, chunk = max(speeds, key=lambda one: speeds[one])
    return Choice(path, chunk, speeds)


@contextmanager
def forced(path: str, chunk: int = CHUNKS[0]) -> Iterator[None]:
    """Make all streams of this process by one path in a `with` block, for tests and benchmarks.

    Args:
        path: name in `PATHS`.
        chunk: bytes made at a time: a multiple of 8, at most the longest in `CHUNKS`.

    Raises:
        ConfigError: there is no such path, or no such chunk.
    """
    global _choice  # noqa: PLW0603
    if path not in PATHS or chunk % 8 or not 0 < chunk <= max(CHUNKS):
        raise ConfigError(f"no stream by {path!r} in chunks of {chunk} bytes; paths are {', '.join(PATHS)}")
    before, _choice = _choice, Choice(path, chunk, {})
    try:
        yield
    finally:
        _choice = before


@cache
def _zeros() -> Array:
    """Return what is encrypted, the same for all: the longest chunk's zeros, read only."""
    zeros = _aligned(max(CHUNKS))
    zeros[:] = 0
    zeros.flags.writeable = False
    return zeros


def _aligned(nbytes: int) -> Array:
    """Allocate bytes that begin at a cache line."""
    raw = np.empty(nbytes + _LINE, np.uint8)
    first = -raw.ctypes.data % _LINE
    return raw[first : first + nbytes]
