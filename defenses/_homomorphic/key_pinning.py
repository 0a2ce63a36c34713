"""Pin the public key of a run at first use (trust on first use), and refuse every other key later in that run.

A client of an encrypted sum (`paillier_protocol`, `lattice`) receives the public key with each request for an upload,
and calls `pin` before it computes anything. If the server could hand it another one later, it could decrypt what the
client encrypts under it.

Guarantee: a client accepts one key per run, in every process that is given its memory. The memory holds public values
only; it need not be secret, but a party that can alter it can make the client accept another key.
Not promised: that the first key is the key holder's. A server that hands a client a key of its own at first can decrypt
all of that client's uploads of the run.
"""

from __future__ import annotations

import numpy as np

from securefed._messages import PartyId
from securefed._tensors import Tensors, decode, encode
from securefed.errors import ContradictionError


def pinned_key(memory: bytes, run: str) -> Tensors | None:
    """Return the key that is pinned for `run`, in the form given to `pin`; `None` where none is."""
    if not memory:
        return None
    key, header = decode(memory)
    return key if header.get("run") == run else None


def pin(memory: bytes, run: str, key: Tensors, sender: PartyId) -> bytes:
    """Pin `key` for `run`, or check that it is the one that is pinned already.

    Args:
        memory: what the client remembers; empty before its first key.
        run: identifier of the run.
        key: the public key as named arrays.
        sender: the party that handed over the key, named in a refusal.

    Returns:
        The memory with the pinned key.

    Raises:
        ContradictionError: another key is pinned for this run.
    """
    pinned = pinned_key(memory, run)
    if pinned is None:
        return encode(key, {"run": run})
    if set(pinned) != set(key) or not all(np.array_equal(pinned[name], key[name]) for name in pinned):
        raise ContradictionError(
            sender, "it hands over another public key than the one that this client pinned first in this run"
        )
    return memory
