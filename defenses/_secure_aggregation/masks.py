"""Mask a client's integers by adding key streams, one stream for each mask secret and tensor.

The input is a contribution as flat arrays of unsigned integers modulo 2^32 or 2^64 (residues), one a tensor, which are
changed in place. A mask secret belongs to one exchange and one pair of clients (or one client, for its self mask); a
tensor's stream is AES under HKDF of that secret and the tensor's name; a tensor of 32 bytes or fewer is masked by
HKDF's output itself. So no stream serves two rounds, pairs or tensors. Of a pair the client with the lower id adds the
stream and the other subtracts it (Bonawitz et al. 2017, sec. 4).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from securefed._messages import ClientId
from securefed._tensors import Array
from securefed.defenses._base import Plan
from securefed.defenses._fixed_point import wire_dtype, wire_size
from securefed.defenses._secure_aggregation.primitives import KEY_BYTES, hkdf, label, mask_stream

_CHUNK = 1 << 17  # bytes; three buffers of them stay in a core's second-level cache
_ZEROS = memoryview(bytes(_CHUNK))


@dataclass(frozen=True)
class SignedMask:
    """A mask's secret, and whether its streams are added or subtracted.

    Attributes:
        secret: 32 bytes from which the streams derive.
        sign: +1 or -1.
    """

    secret: bytes
    sign: int


@dataclass(frozen=True, eq=False)
class PrecomputedMasks:
    """The sum of all masks of one client for one exchange, computed ahead, so that one addition is left.

    Attributes:
        masks: the masks.
        sums: their sums by tensor, flat, in the plan's order and rings.
    """

    masks: tuple[SignedMask, ...] = field(repr=False)
    sums: tuple[Array, ...] = field(repr=False)

    @classmethod
    def of(cls, masks: Sequence[SignedMask], plan: Plan) -> PrecomputedMasks:
        """Add up the masks for the tensors of a plan."""
        sums = tuple(np.zeros(wire_size(t.size, t.ring), wire_dtype(t.ring)) for t in plan.tensors)
        apply_masks(sums, plan, masks)
        return cls(tuple(masks), sums)

    def apply(self, residues: Sequence[Array]) -> None:
        """Add every mask to the residues, in place."""
        for flat, total in zip(residues, self.sums, strict=True):
            np.add(flat, total, out=flat)


def pair_mask(agreement: bytes, exchange: bytes, client: ClientId, peer: ClientId) -> SignedMask:
    """Derive the mask of `client` for its pair with `peer`; `exchange` is the digest of the exchange."""
    low, high = sorted((client, peer))
    return SignedMask(hkdf(agreement, label("pair mask", exchange, low, high)), 1 if client == low else -1)


def self_mask(seed: bytes, exchange: bytes, client: ClientId) -> SignedMask:
    """Derive the self mask of `client`."""
    return SignedMask(hkdf(seed, label("self mask", exchange, client)), 1)


def tensor_key(secret: bytes, use: bytes) -> bytes:
    """Derive 32 bytes for one mask secret, tensor and use: a small tensor's mask, or the key of its stream."""
    return hkdf(secret, use)


def apply_masks(residues: Sequence[Array], plan: Plan, masks: Sequence[SignedMask], *, remove: bool = False) -> None:
    """Add every mask to flat residues in the plan's order, in place (`remove`: subtract it)."""
    for tensor, flat in zip(plan.tensors, residues, strict=True):
        adds = [(mask.sign < 0) is remove for mask in masks]
        if flat.nbytes <= KEY_BYTES:  # as long as a key at most: no stream is started for it
            use = label("small tensor", tensor.name)
            words = b"".join([tensor_key(mask.secret, use)[: flat.nbytes] for mask in masks])
            _apply_words(flat, words, np.array(adds))
        else:
            use = label("tensor", tensor.name)
            streams = [mask_stream(tensor_key(mask.secret, use)) for mask in masks]
            _apply_streams(flat, list(zip(streams, adds, strict=True)))


def _apply_words(flat: Array, words: bytes, adds: Array) -> None:
    """Add masks to a small tensor: `words` holds one after the other, `adds` whether each is added or subtracted."""
    rows = np.frombuffer(words, flat.dtype.newbyteorder("<")).reshape(len(adds), flat.size)
    flat += rows[adds].sum(axis=0, dtype=flat.dtype) - rows[~adds].sum(axis=0, dtype=flat.dtype)


def _apply_streams(flat: Array, streams: Sequence[tuple[object, bool]]) -> None:
    """Add streams chunk by chunk, so that a chunk stays in the cache while every stream passes over it."""
    buffer = bytearray(_CHUNK + 15)  # update_into wants room for one block more than it fills
    words = np.frombuffer(buffer, flat.dtype.newbyteorder("<"), _CHUNK // flat.itemsize)
    for start in range(0, flat.size, words.size):
        chunk = flat[start : start + words.size]
        zeros, mask = _ZEROS[: chunk.nbytes], words[: chunk.size]
        for stream, adds in streams:
            stream.update_into(zeros, buffer)  # type: ignore[attr-defined]
            (np.add if adds else np.subtract)(chunk, mask, out=chunk)
