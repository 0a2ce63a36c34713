"""The model that the updates of a round are computed from, as the messages of the round name it: by its digest.

What clients upload is bound to the digest, so that clients which were given different models are not summed. The model
itself travels as the caller likes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Final

import numpy as np

from securefed._tensors import Array
from securefed.parties._update import model_digest

BASE: Final = "base"


def no_model(round: int) -> bytes:
    """Return what stands for the model's digest in a round that no model is bound to, 32 bytes.

    It binds an upload to its round, and says nothing of what is summed: statistics of round 0 have it in common, and
    equal contributions of two rounds do not. So no client recognises a contribution by it. Without a model all
    contributions of the same rows count as equal (`SumRule.sources`, rule B in `sum_memory`).
    """
    return hashlib.sha256(f"securefed no model\0{round}".encode()).digest()


def base_array(digest: bytes) -> Array:
    """Return the digest of a model as the tensor that requests hold, uint8 (32,)."""
    return np.frombuffer(digest, np.uint8).copy()


def broadcast_of(base: Mapping[str, Array] | None, round: int) -> dict[str, Array]:
    """Return what the requests of a round tell its clients: the digest of its model, or what stands for it."""
    return {BASE: base_array(no_model(round) if base is None else model_digest(base))}
