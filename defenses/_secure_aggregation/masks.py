"""Turn a contribution into residues, and mask them by key streams, one for each mask secret and width of integers.

A contribution is a client's tensors in fixed point: signed int64, within bounds of the plan. For masking they become
residues modulo 2^ring, flat arrays of unsigned integers, one a tensor; a ring is the width in bits that the plan gives
a tensor's sum (`_fixed_point`). A client masks its upload; the server removes the masks that are left in the sum.
Client i adds one self mask and one mask for each neighbour j (Bonawitz et al. 2017, CCS, sec. 4), modulo 2^32 or 2^64:

    y_i = x_i + PRG(self_i) + sum_{j > i} PRG(pair_ij) - sum_{j < i} PRG(pair_ij)

So of a pair the client with the lower id adds the stream, the other subtracts it, and they cancel in a sum over both.
Who is whose neighbour `neighbourhoods` draws from all clients' keys; they also hold shares of each other's secrets.

PRG is the key stream of a secret. Every client dealt shares of its seed and its mask key before. For a client that then
does not upload (it is lost) the streams that its neighbours added or subtracted stay in the sum until they are opened.
To open a mask, the server rebuilds its secret from shares that the survivors send, and takes the stream off the sum:

    secret    derived from                                      known to                       opened by the server
    self_i    a random seed of client i, the exchange's digest  client i                       if i uploaded
    pair_ij   X25519 of the mask keys of i and j, the digest    clients i and j                if just one uploaded

A secret serves one exchange. x_i are residues, changed in place. The tensors of one width stand one after the other, in
the plan's order, under one stream, which the plan names: AES under HKDF of secret and width, where 32 bytes or fewer
are masked by HKDF's output itself, or ChaCha20 (`chacha_stream`). So no part of a stream serves two rounds, pairs or
tensors, and a network of many tensors costs no more than one of few.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

import numpy as np

from securefed._messages import ClientId
from securefed._tensors import Array, Tensors
from securefed.defenses._fixed_point import lanes, to_ring, wire_dtype, wire_size
from securefed.defenses._plan import Plan, TensorPlan
from securefed.defenses._secure_aggregation.chacha_stream import AES, ChaChaStream
from securefed.defenses._secure_aggregation.mask_streams import (
    CHUNKS,
    LONGEST,
    ChunkBuffers,
    Encryptor,
    choice,
    mask_stream,
)
from securefed.defenses._secure_aggregation.primitives import KEY_BYTES, hkdf, key_stream, label
from securefed.errors import DataError, RangeRefused

_PART: Final = 1 << 15
"""Entries converted at a time; 256 kB, which stay in a core's second-level cache."""
_BLOCK: Final = 16
_ZEROS: Final = memoryview(bytes(8 * _PART))
"""Zeros, encrypted to make the uniform integers of a part; an integer has 8 bytes at most."""


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

    It is as secret as the contribution that it will mask, and serves one upload.

    Attributes:
        masks: the masks' secrets and signs, kept for the tag of an upload whose sum is verified.
        sums: their signed sum by tensor: flat unsigned arrays of the size and type that the plan's tensors have on the
            wire, in the plan's order.
    """

    masks: tuple[SignedMask, ...] = field(repr=False)
    sums: tuple[Array, ...] = field(repr=False)

    @classmethod
    def of(cls, masks: Sequence[SignedMask], plan: Plan) -> PrecomputedMasks:
        """Add up the masks for the tensors of a plan."""
        sums = tuple(np.zeros(wire_size(t.size, t.ring), wire_dtype(t.ring)) for t in plan.tensors)
        apply_masks(sums, masks, stream=stream_of(plan))
        return cls(tuple(masks), sums)

    def apply(self, residues: Sequence[Array]) -> None:
        """Add every mask to the residues, in place."""
        for flat, total in zip(residues, self.sums, strict=True):
            np.add(flat, total, out=flat)


def pair_mask(agreement: bytes, exchange: bytes, client: ClientId, peer: ClientId) -> SignedMask:
    """Derive the mask of `client` for its pair with `peer`.

    Args:
        agreement: X25519 secret of the two clients' mask keys.
        exchange: digest of all that the clients were told (`share_dealers_digest`): where it differs between the two,
            their masks do not cancel.
        client: id of the client whose upload is masked; with the lower id it adds the stream, else it subtracts it.
        peer: id of the other client.
    """
    low, high = sorted((client, peer))
    return SignedMask(hkdf(agreement, label("pair mask", exchange, low, high)), 1 if client == low else -1)


def self_mask(seed: bytes, exchange: bytes, client: ClientId) -> SignedMask:
    """Derive the self mask of `client` from its seed and the digest of the exchange."""
    return SignedMask(hkdf(seed, label("self mask", exchange, client)), 1)


def stream_of(plan: Plan) -> str:
    """Return the name of the stream that the masks of a plan are made of."""
    return AES if plan.masking is None else plan.masking.stream


def stream_key(secret: bytes, width: int) -> bytes:
    """Derive 32 bytes from a mask's secret, for integers of `width` bytes: an AES stream's key, or a short mask."""
    return hkdf(secret, label("mask", width))


def apply_masks(
    residues: Sequence[Array], masks: Sequence[SignedMask], *, remove: bool = False, stream: str = AES
) -> None:
    """Add every mask to residues, in place.

    Args:
        residues: flat unsigned arrays, one for each tensor, in the plan's order.
        masks: secrets with their signs.
        remove: whether to subtract them instead.
        stream: name of the stream that the masks are made of (`chacha_stream.STREAMS`).
    """
    adds = [(mask.sign < 0) is remove for mask in masks]  # added: sign +1, or sign -1 where masks are removed
    for dtype in sorted({flat.dtype for flat in residues}, key=lambda dtype: dtype.itemsize):
        flats = [flat for flat in residues if flat.dtype == dtype]
        if stream != AES:
            started = [ChaChaStream(mask.secret, dtype.itemsize) for mask in masks]
            _apply_streams(flats, list(zip(started, adds, strict=True)), CHUNKS[0])
            continue
        keys = [stream_key(mask.secret, dtype.itemsize) for mask in masks]
        if sum(flat.nbytes for flat in flats) <= KEY_BYTES:  # as long as a key at most: no stream is started
            _apply_words(flats, keys, np.array(adds, bool))
        else:
            _check_length(flats)
            _apply_streams(flats, list(zip(map(mask_stream, keys), adds, strict=True)), choice().chunk)


def _apply_words(flats: Sequence[Array], keys: Sequence[bytes], adds: Array) -> None:
    """Add masks to a few integers: the key's 32 bytes, read as words, are the mask.

    Args:
        flats: residues of one width, 32 bytes in all at most.
        keys: the keys of each mask, from `stream_key`.
        adds: whether the mask is added or subtracted, bool (masks,).
    """
    dtype = flats[0].dtype.newbyteorder("<")
    rows = np.frombuffer(b"".join(keys), dtype).reshape(len(keys), KEY_BYTES // dtype.itemsize)
    total = rows[adds].sum(axis=0, dtype=rows.dtype) - rows[~adds].sum(axis=0, dtype=rows.dtype)
    _add_part(flats, 0, total)


def _check_length(flats: Sequence[Array]) -> None:
    """Raise `DataError` where residues of one width are longer than an AES stream."""
    if (nbytes := sum(flat.nbytes for flat in flats)) > LONGEST:
        raise DataError(
            f"tensors of one width take {nbytes} bytes, and a mask's stream has {LONGEST} at most; sum them in several "
            "exchanges, or under secure_aggregation(stream='chacha20'), whose streams have no end"
        )


def _apply_streams(flats: Sequence[Array], streams: Sequence[tuple[Encryptor, bool]], chunk: int) -> None:
    """Add up the streams chunk by chunk, so that a chunk stays in the cache while every stream passes over it.

    Args:
        flats: residues of one width; the stream runs over them one after the other.
        streams: for each mask its encryptor, and whether it is added or subtracted.
        chunk: bytes made at a time.
    """
    size, dtype = sum(flat.size for flat in flats), flats[0].dtype.newbyteorder("<")
    if not size:
        return
    buffers = ChunkBuffers(dtype, min(chunk, size * dtype.itemsize))
    for start in range(0, size, buffers.size):
        _add_part(flats, start, buffers.sum(streams, min(buffers.size, size - start)))


def _add_part(flats: Sequence[Array], start: int, part: Array) -> None:
    """Add `part` to the integers from place `start` on, of arrays that stand one after the other."""
    for flat in flats:  # `start` is the place of `part` relative to this array: negative once it began in one before
        here = flat[max(start, 0) : max(start + part.size, 0)]
        if here.size:
            begin = max(-start, 0)
            np.add(here, part[begin : begin + here.size], out=here)
        start -= flat.size


def upload_residues(encoded: Tensors | None, plan: Plan) -> list[Array]:
    """Return the integers that a client masks: of its contribution, or uniform ones where it sits out.

    The steps are the same in either case: else a server that times replies would see who sat out.

    Args:
        encoded: the contribution, int64 tensors in fixed point; `None` for a client that sits out.
        plan: shapes and rings.

    Raises:
        DataError, RangeRefused: as `residues_of`.
    """
    # zeros without memory of their own, where the arrays of a contribution are in memory: fresh pages would take longer
    nothing = np.zeros((), np.int64)
    zeros = {t.name: np.broadcast_to(nothing, t.shape) for t in plan.tensors}
    residues = residues_of(zeros if encoded is None else encoded, plan)
    add_uniform(residues, encoded is None)
    return residues


def residues_of(encoded: Tensors, plan: Plan) -> list[Array]:
    """Convert an encoded contribution to flat residues, in the plan's order, which share no memory with it.

    Args:
        encoded: int64 tensors in fixed point, named as in the plan.
        plan: shapes and rings.

    Raises:
        DataError: other names, types or shapes than the plan's.
        RangeRefused: an entry does not fit its ring.
    """
    tensors = plan.tensors
    if set(encoded) != {tensor.name for tensor in tensors}:
        raise DataError(f"encoded tensors {sorted(encoded)} are not those of the plan")
    out = []
    for tensor in tensors:
        value = encoded[tensor.name]
        if value.shape != tensor.shape or value.dtype != np.int64:
            raise DataError(
                f"encoded {tensor.name!r} is {value.dtype} of shape {value.shape}, not int64 {tensor.shape}"
            )
        out.append(_residues(value.reshape(-1), tensor, plan.clients))
    return out


def _residues(flat: Array, tensor: TensorPlan, clients: int) -> Array:
    """Check that all entries fit the ring, and convert them; a part at a time, which is read once from memory."""
    least, most = -(2 ** (tensor.ring - 1)), 2 ** (tensor.ring - 1) - 1
    whole = lanes(tensor.ring) == 1
    if not whole:  # a sum beyond its ring would spill into the next lane, so each client has its share
        least, most = -(most // clients), most // clients
    out = np.empty(flat.size if whole else 0, wire_dtype(tensor.ring))
    for start in range(0, flat.size, _PART):
        part = np.ascontiguousarray(flat[start : start + _PART])
        if not least <= part.min() <= part.max() <= most:
            raise RangeRefused(f"encoded {tensor.name!r} does not fit a ring of {tensor.ring} bits")
        if whole:
            np.copyto(out[start : start + _PART], part.view(np.uint64), casting="unsafe")  # the low bits, as `to_ring`
    return out if whole else to_ring(flat, tensor.ring)


def add_uniform(residues: Sequence[Array], used: bool) -> None:
    """Draw uniform integers for a client that sits out: a stream under a fresh key from the operating system.

    A sum with them is uniform, and reveals nothing of its other terms. They are made a part at a time, in a buffer that
    stays in the cache, and take no memory beside the residues.

    Args:
        residues: flat unsigned arrays, changed in place.
        used: whether the integers are added; else they are made and multiplied by zero, which takes as long.
    """
    stream = key_stream(secrets.token_bytes(KEY_BYTES))
    buffer = np.empty(len(_ZEROS) + _BLOCK, np.uint8)  # `update_into` wants room for one block more than it fills
    for flat in residues:
        for start in range(0, flat.size, _PART):
            part = flat[start : start + _PART]
            stream.update_into(_ZEROS[: part.nbytes], buffer)
            drawn = buffer[: part.nbytes].view(part.dtype)
            part += np.multiply(drawn, part.dtype.type(used), out=drawn)


def neighbours(seed: bytes, members: int, degree: int, row: int) -> tuple[int, ...]:
    """Return the rows of `row`'s neighbours and `row` itself, ascending; all rows where `degree` is 0.

    Args:
        seed: 32 bytes that all parties derive from all advertised keys.
        members: number of clients that advertised keys.
        degree: k, even; 0 is the complete graph.
        row: the client's place among them.
    """
    return tuple(neighbourhoods(seed, members, degree, [row])[0].tolist())


def neighbourhoods(seed: bytes, members: int, degree: int, rows: Sequence[int]) -> Array:
    """Return the neighbours of several rows at once, int64 (rows, k + 1), or (rows, members) on the complete graph."""
    if not degree or members <= degree + 1:
        return np.tile(np.arange(members), (len(rows), 1))
    order, place = _circle(seed, members)
    half = degree // 2
    # order[place] is the row that stands at a place of the circle: take the places from half before to half after.
    near = order[(place[np.asarray(rows)][:, None] + np.arange(-half, half + 1)) % members]
    return np.sort(near, axis=1)


@lru_cache(maxsize=8)
def _circle(seed: bytes, members: int) -> tuple[Array, Array]:
    """Draw a uniform order of the rows, and the place of each in it, by 128-bit labels from the seed's key stream.

    Equal labels, which would favour an order, have probability below members^2 / 2^129.
    """
    labels = np.frombuffer(key_stream(seed).update(bytes(16 * members)), "<u8").reshape(members, 2)
    order = np.lexsort((labels[:, 1], labels[:, 0]))
    place = np.empty(members, np.int64)
    place[order] = np.arange(members)
    for shared in (order, place):  # by later calls and other threads
        shared.setflags(write=False)
    return order, place
