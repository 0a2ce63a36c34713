"""What a client remembers of a run's public key: the first one it met, so that another one is refused.

Guarantee: a client accepts one key a run, in every process that is given its memory.
Not promised: that the first key is the right one.
"""

from __future__ import annotations

import numpy as np

from securefed.errors import ContradictionError
from securefed.messages import PartyId
from securefed.tensors import Tensors, decode, encode


def first_key(memory: bytes, run: str) -> Tensors | None:
    """The key that was met first in `run`, as it was given to `met`; `None` before that."""
    if not memory:
        return None
    key, header = decode(memory)
    return key if header.get("run") == run else None


def met(memory: bytes, run: str, key: Tensors, sender: PartyId) -> bytes:
    """The memory once `key` was met in `run`.

    Raises:
        ContradictionError: another key than before; the sender is blamed.
    """
    known = first_key(memory, run)
    if known is None:
        return encode(key, {"run": run})
    if set(known) != set(key) or not all(np.array_equal(known[name], key[name]) for name in known):
        raise ContradictionError(
            sender, "it hands over another public key than the one this client met first in this run"
        )
    return memory
