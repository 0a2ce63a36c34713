"""Draw secrets from named streams in place of the operating system's, so that messages can be compared byte for byte.

Secrets are drawn by `os.urandom`, by `secrets` (which is `random.SystemRandom`, so `random._urandom`), and by
`generate` of X25519 and Ed25519 keys. These four are replaced while the context lasts, and in tests only: the package
has no parameter for it. Each party has a stream of its own for every length of a draw, so that its bytes depend neither
on what other parties draw nor on the order of its draws of different lengths.
"""

from __future__ import annotations

import hashlib
import os
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from securefed.defenses._homomorphic import randomness_pool


class FixedRandomness:
    """Streams of one test.

    Args:
        name: a part of every stream's seed.

    Attributes:
        party: the party that draws now.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self.party: int | str = "set-up"
        self._drawn: Counter[tuple[int | str, str, int]] = Counter()

    def draw(self, count: int, kind: str = "bytes") -> bytes:
        """Return the next bytes of the party's stream of this kind and length."""
        place = (self.party, kind, count)
        self._drawn[place] += 1
        name = f"{self._name} {self.party} {kind} {count} {self._drawn[place]}"
        return hashlib.shake_256(name.encode()).digest(count)

    @contextmanager
    def of(self, party: int | str) -> Iterator[None]:
        """Let a party draw in the block."""
        before, self.party = self.party, party
        yield
        self.party = before


@contextmanager
def fixed_randomness(name: str = "frozen") -> Iterator[FixedRandomness]:
    """Replace the operating system's randomness in the block. SEAL (CKKS) has randomness of its own and keeps it."""
    drawn = FixedRandomness(name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "urandom", drawn.draw)
        patch.setattr(random, "_urandom", drawn.draw)
        for kind in (X25519PrivateKey, Ed25519PrivateKey):
            made = kind.from_private_bytes
            patch.setattr(kind, "generate", lambda made=made, kind=kind: made(drawn.draw(32, kind.__name__)))
        patch.setattr(randomness_pool, "shared_workers", lambda *_: None)  # other processes would draw their own
        yield drawn
