"""Draw uniform 64-bit words from AES-256 in counter mode: secret ones, keyed by the operating system, or public ones.

Secret words make noise for differential privacy. Public words are derived from a context that all parties know, such as
the signs of a rotation; they hide nothing. The samplers of this package draw from a `SecureRandomStream`, and so do the
defences' roundings and coins.
"""

from __future__ import annotations

import hashlib
import os
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from securefed._tensors import Array


class SecureRandomStream:
    """Independent, uniform 64-bit words, each used once; every instance has a fresh key from the operating system.

    An attacker who does not break AES-256 cannot distinguish the words from uniform ones.

    The key lives in the instance, and in no file. Not promised: that a forked process continues with other words; make
    a new instance after a fork.
    """

    def __init__(self) -> None:
        self._cipher = _counter_mode(os.urandom(32))

    def words(self, count: int) -> Array:
        """Return the next `count` words (uint64)."""
        return _words(self._cipher, count)


def uniforms(stream: SecureRandomStream, count: int) -> Array:
    """Draw `count` multiples of 2^-53, uniform in [0, 1) (float64): the upper 53 bits of a word each."""
    return np.asarray((stream.words(count) >> np.uint64(11)) * 2.0**-53)


def public_words(count: int, *context: str | int) -> Array:
    """Derive `count` words (uint64) from `context` alone: public randomness, the same at every party.

    Strings of the context must not hold NUL bytes, which separate its parts.
    """
    digest = hashlib.sha256("\0".join(f"{type(part).__name__} {part}" for part in context).encode()).digest()
    return _words(_counter_mode(digest), count)


def _counter_mode(key: bytes) -> Any:
    """Start the cipher; a key encrypts one stream, so the counter starts at zero (NIST SP 800-38A)."""
    return Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()


def _words(cipher: Any, count: int) -> Array:
    """Encrypt zeros: the next bytes of the key stream, as little-endian words."""
    return np.frombuffer(cipher.update(bytes(8 * count)), "<u8")
