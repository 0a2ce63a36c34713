"""A random stream that depends on a seed, so that statistical tests draw the same words in every run."""

from __future__ import annotations

import hashlib

from securefed._sampling.random_stream import SecureRandomStream, _counter_mode


class SeededStream(SecureRandomStream):
    """Random words that depend on a seed only."""

    def __init__(self, seed: int) -> None:
        self._cipher = _counter_mode(hashlib.sha256(f"insecure stream {seed}".encode()).digest())
