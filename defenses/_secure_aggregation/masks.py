"""Mask a client's integers by adding key streams, one stream for each mask secret and width of integers.

The input is a contribution as flat arrays of unsigned integers modulo 2^32 or 2^64 (residues), one a tensor, which are
changed in place. A mask secret belongs to one exchange and one pair of clients (or one client, for its self mask). The
tensors of one width stand one after the other, in the plan's order, under one stream: AES under HKDF of that secret and
the width; 32 bytes or fewer are masked by HKDF's output itself. So no part of a stream serves two rounds, pairs or
tensors, and a network of many tensors costs no more than one of few. Of a pair the client with the lower id adds the
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
        apply_masks(sums, masks)
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


def stream_key(secret: bytes, width: int) -> bytes:
    """Derive 32 bytes for one mask secret and integers of `width` bytes: the key of their stream, or a short mask."""
    return hkdf(secret, label("mask", width))


def apply_masks(residues: Sequence[Array], masks: Sequence[SignedMask], *, remove: bool = False) -> None:
    """Add every mask to flat residues in the plan's order, in place (`remove`: subtract it)."""
    adds = [(mask.sign < 0) is remove for mask in masks]
    for dtype in sorted({flat.dtype for flat in residues}, key=lambda dtype: dtype.itemsize):
        flats = [flat for flat in residues if flat.dtype == dtype]
        keys = [stream_key(mask.secret, dtype.itemsize) for mask in masks]
        if sum(flat.nbytes for flat in flats) <= KEY_BYTES:  # as long as a key at most: no stream is started
            _apply_words(flats, keys, np.array(adds, bool))
        else:
            _apply_streams(flats, list(zip(map(mask_stream, keys), adds, strict=True)))


def _apply_words(flats: Sequence[Array], keys: Sequence[bytes], adds: Array) -> None:
    """Add masks to a few integers: the first words of each key, one after the other, added or subtracted."""
    dtype = flats[0].dtype.newbyteorder("<")
    rows = np.frombuffer(b"".join(keys), dtype).reshape(len(keys), KEY_BYTES // dtype.itemsize)
    total = rows[adds].sum(axis=0, dtype=rows.dtype) - rows[~adds].sum(axis=0, dtype=rows.dtype)
    _add_part(flats, 0, total)


def _apply_streams(flats: Sequence[Array], streams: Sequence[tuple[object, bool]]) -> None:
    """Add up the streams chunk by chunk, so that a chunk stays in the cache while every stream passes over it."""
    buffer = bytearray(_CHUNK + 15)  # update_into wants room for one block more than it fills
    size, dtype = sum(flat.size for flat in flats), flats[0].dtype.newbyteorder("<")
    words, total = np.frombuffer(buffer, dtype, _CHUNK // dtype.itemsize), np.empty(_CHUNK // dtype.itemsize, dtype)
    for start in range(0, size, words.size):
        count = min(words.size, size - start)
        zeros, mask, part = _ZEROS[: count * dtype.itemsize], words[:count], total[:count]
        part[:] = 0
        for stream, adds in streams:
            stream.update_into(zeros, buffer)  # type: ignore[attr-defined]
            (np.add if adds else np.subtract)(part, mask, out=part)
        _add_part(flats, start, part)


def _add_part(flats: Sequence[Array], start: int, part: Array) -> None:
    """Add `part` to the integers from `start` on, of arrays that stand one after the other."""
    for flat in flats:
        here = flat[max(start, 0) : max(start + part.size, 0)]
        if here.size:
            begin = max(-start, 0)
            np.add(here, part[begin : begin + here.size], out=here)
        start -= flat.size
