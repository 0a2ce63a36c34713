"""Read CKKS contexts and ciphertexts that other parties sent, and check that they have this library's parameters.

Client, server and key holder of `lattice` call it for each message. A context is TenSEAL's object with the scheme's
parameters and a key; a vector is TenSEAL's object with one ciphertext. Fields have a constant size, padded with zeros,
so that their length shows nothing.

Not promised: that TenSEAL's own parsers are safe on bytes that another party sent. The checks here follow the parsing.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any, Final

import numpy as np

from securefed._messages import PartyId
from securefed._persistence.packing import from_bytes
from securefed._tensors import Array, Tensors
from securefed.defenses._homomorphic.lattice_ring import DEGREE, PRIMES, SLOTS, library, new_context
from securefed.errors import MalformedError

CONTEXT: Final = "context"
CHUNK_BYTES: Final = 2 * DEGREE * 2 * 8 + 256
"""Bytes of a ciphertext on the wire: two polynomials modulo two primes, 8 bytes a coefficient, and room for headers."""
CONTEXT_BYTES: Final = 2 * DEGREE * 3 * 8 + 1024
"""Bytes of a public key on the wire: two polynomials modulo three primes, 8 bytes a coefficient, and room for the
parameters."""


def read_context(body: Tensors, sender: PartyId) -> Any:
    """Read a public context; `MalformedError` unless it has exactly this library's parameters.

    All who read the same key in one process get the same object: no caller may change it.
    """
    if set(body) != {CONTEXT}:
        raise MalformedError(sender, f"a public key holds {CONTEXT!r}, not {sorted(body)}")
    data = _unpadded(body[CONTEXT][None], CONTEXT_BYTES, sender)[0]
    try:
        return _checked_context(data)
    except (RuntimeError, ValueError) as error:
        raise MalformedError(sender, str(error)) from error


@lru_cache(maxsize=1)  # a key serves a whole run, and reading it takes 6 ms, twice for each client of a simulation
def _checked_context(data: bytes) -> Any:
    """Read a public context from its bytes; `ValueError` or `RuntimeError` unless it has this library's parameters."""
    try:
        context = library().context_from(data)
    except (RuntimeError, ValueError) as error:
        raise ValueError(f"its bytes are not a CKKS context: {error}") from error
    if not context.has_public_key():  # a context with a secret key as well is too long for its field
        raise ValueError("the context has no public key")
    if serialized(context, key=False) != _parameters():
        raise ValueError("the context's parameters are not those of the plan")
    return context


def serialized(context: Any, *, key: bool) -> bytes:
    """Write a context as bytes, with its public key or without."""
    data: bytes = context.serialize(
        save_public_key=key, save_secret_key=False, save_galois_keys=False, save_relin_keys=False
    )
    return data


@cache
def _parameters() -> bytes:
    """Return this library's parameters as bytes, without a key."""
    return serialized(new_context(), key=False)


def padded(data: bytes, size: int) -> Array:
    """Pad data to a field of constant size: its length in four bytes, the data, zeros."""
    assert len(data) <= size - 4
    return from_bytes((len(data).to_bytes(4, "little") + data).ljust(size, b"\0"))


def _unpadded(rows: Array, size: int, sender: PartyId) -> list[bytes]:
    """Take the data out of padded fields, uint8 (count, size); `MalformedError` for other fields or padding."""
    if rows.dtype != np.uint8 or rows.ndim != 2 or rows.shape[1] != size:
        raise MalformedError(sender, f"fields are {rows.dtype} of shape {rows.shape}, not uint8 of (any, {size})")
    out = []
    for row in rows:
        data = row.tobytes()
        length = int.from_bytes(data[:4], "little")
        if not 0 < length <= size - 4 or any(data[4 + length :]):
            raise MalformedError(
                sender, "a padded field states a length that it cannot hold, or its padding is not zero"
            )
        out.append(data[4 : 4 + length])
    return out


def to_wire(vectors: list[Any]) -> Array:
    """Write ciphertexts as uint8 (count, CHUNK_BYTES)."""
    rows = [padded(vector.serialize(), CHUNK_BYTES) for vector in vectors]
    return np.stack(rows) if rows else np.zeros((0, CHUNK_BYTES), np.uint8)


def from_wire(context: Any, rows: Array, count: int | None, sender: PartyId) -> list[Any]:
    """Read ciphertexts that `to_wire` wrote.

    Args:
        context: TenSEAL's context with the parameters.
        rows: uint8 (ciphertexts, CHUNK_BYTES).
        count: how many ciphertexts there must be; `None` admits any number.
        sender: the party named in the error.

    Raises:
        MalformedError: anything else, or another count.
    """
    pieces = _unpadded(rows, CHUNK_BYTES, sender)
    if count is not None and len(pieces) != count:
        raise MalformedError(sender, f"{len(pieces)} ciphertexts, not {count}")
    try:
        vectors = [library().ckks_vector_from(context, piece) for piece in pieces]
        faults = {_fault(vector) for vector in vectors} - {None}
    except (RuntimeError, ValueError) as error:
        raise MalformedError(sender, f"its bytes are not a CKKS ciphertext: {error}") from error
    if faults:
        raise MalformedError(
            sender, f"a vector is neither a fresh ciphertext nor a sum of them: {', '.join(sorted(map(str, faults)))}"
        )
    return vectors


def _fault(vector: Any) -> str | None:
    """Return the reason why a vector is neither a fresh ciphertext nor a sum of them; `None` if it is one."""
    if vector.size() != SLOTS:
        return f"it holds {vector.size()} slots, not {SLOTS}"
    (inner,) = vector.ciphertext()
    # minus one: encryption divides by the last prime (`lattice_ring.PRIMES`)
    if (inner.size(), inner.coeff_modulus_size()) != (2, len(PRIMES) - 1):
        return f"it has {inner.size()} polynomials modulo {inner.coeff_modulus_size()} primes"
    return "it is transparent: its values stand in the clear" if inner.is_transparent() else None
