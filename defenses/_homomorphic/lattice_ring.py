"""Set the parameters of CKKS, and make ciphertexts from residues that SEAL did not draw.

CKKS encrypts vectors of real numbers ("slots") so that ciphertexts add up; `lattice` sums contributions under it.
TenSEAL is the Python package, SEAL the library beneath it. TenSEAL's context holds parameters and keys, its "vector" is
one ciphertext here.

A ciphertext is two polynomials (c_0, c_1) of degree below 8192 modulo q = q_1 q_2, a product of two primes; c_0 + c_1
s, with s the secret key, is the message times the scale, plus a small error. Two ciphertexts are made from residues
(coefficients or values modulo the primes) that are chosen here, which SEAL offers no function for: the uniform one of a
client that sits out, and the noise that the key holder adds before it decrypts, since the small error would otherwise
tell about its key (`lattice_flood`). SEAL reads ciphertexts from bytes, which is how the residues get in: a header, the
parameters' fingerprint, sizes, the scale, BGV's correction factor (1 under CKKS), and the residues, 64 bits each. This
layout is that of SEAL 4, tried with 4.3; SEAL 3 has no correction factor. The header is given the version of the SEAL
that is installed, so that none is refused for its number: a SEAL of another layout raises where fields or sizes do not
fit, and every decryption in `tests/defenses/test_lattice.py` passes through a ciphertext made here.

SEAL keeps polynomials as their values at the roots of unity modulo each prime (number-theoretic transform), so that
products are taken value by value.
"""

from __future__ import annotations

import secrets
import struct
from functools import cache
from typing import Any, Final

import numpy as np

from securefed._tensors import Array
from securefed.errors import ConfigError

DEGREE: Final = 8192
SLOTS: Final = DEGREE // 2
PRIMES: Final = (60, 60, 60)
"""Bits of the primes. At this degree 218 bits in all are allowed for 128-bit security (homomorphicencryption.org,
2018), and these are 180. SEAL encrypts modulo all three and then divides by the last, which divides the error of
encryption too; so sums are taken modulo the first two, 120 bits."""

# Bits of an integer that protobuf writes in one byte.
_VARINT: Final = 7


@cache
def library() -> Any:
    """Import TenSEAL; `ConfigError` where it is not installed."""
    try:
        import tenseal  # noqa: PLC0415 - optional
        import tenseal.sealapi  # noqa: PLC0415 - gives ciphertexts their scale
    except ImportError as error:
        raise ConfigError("ckks() needs TenSEAL: pip install 'securefed[lattice]'") from error
    return tenseal


def new_context() -> Any:
    """Make TenSEAL's context with a fresh pair of keys, drawn by SEAL's own generator."""
    tenseal = library()
    context = tenseal.context(tenseal.SCHEME_TYPE.CKKS, poly_modulus_degree=DEGREE, coeff_mod_bit_sizes=list(PRIMES))
    context.global_scale = 1.0  # part of the parameters; senders set their own
    return context


def uniform_vector(context: Any, scale: float) -> Any:
    """Draw a ciphertext of two uniform polynomials, from the operating system, for a client that sits out.

    A client sits out if its values are out of range or its computation failed, and must not show that by itself. Under
    the assumption of ring learning with errors (RLWE), its upload looks like a fresh ciphertext. Once it is added,
    the sum decrypts to a uniform polynomial modulo q, whatever the other clients sent.

    The server knows the uniform (c_0, c_1), and the key holder's answer depends on c_0 + c_1 s + F plus the other
    clients' terms, with F the key holder's noise. c_1 s + F is a sample of RLWE with the error F: it looks uniform to
    the server, and so hides the terms that are added to it.

    Args:
        context: TenSEAL's context.
        scale: the scale that the ciphertext carries, which must be that of the ciphertexts it is added to.
    """
    residues = np.stack([[_uniform(prime, DEGREE) for prime in moduli(context)] for _ in range(2)])
    return vector_of(context, residues, scale, transformed=True)


def vector_of(context: Any, residues: Array, scale: float, *, transformed: bool) -> Any:
    """Make TenSEAL's vector with these residues.

    Args:
        context: TenSEAL's context.
        residues: uint64 (2, primes, DEGREE), below their primes.
        scale: the scale that the ciphertext carries.
        transformed: whether they are values at roots of unity; else they are coefficients.
    """
    data = context.seal_context().data.first_context_data()  # of the two primes modulo which sums are taken
    values = np.ascontiguousarray(residues, "<u8").tobytes()
    content = struct.pack("<4Q?3Qd", *data.parms_id(), transformed, 2, DEGREE, residues.shape[1], scale)
    array = _headed(struct.pack("<Q", residues.size) + values)
    ciphertext = _headed(content + struct.pack("<Q", 1) + array)  # 1: BGV's correction factor, idle under CKKS
    # TenSEAL's protobuf message: field 1 sizes (packed), 2 ciphertexts, 3 scale. The byte before each is 8 times the
    # field's number plus its type: 2 for bytes with a length, 1 for 64 bits.
    sizes = _varint(SLOTS)
    message = b"\x0a" + _varint(len(sizes)) + sizes + b"\x12" + _varint(len(ciphertext)) + ciphertext
    return library().ckks_vector_from(context, message + b"\x19" + struct.pack("<d", scale))


def _headed(content: bytes) -> bytes:
    """Put SEAL's header, which states the length, before the content; not compressed."""
    header = library().sealapi.Serialization.SEALHeader()
    size = header.header_size
    # the zeros: the compression mode, which is none, and two bytes that SEAL reserves
    head = header.magic, size, header.version_major, header.version_minor, 0, 0, size + len(content)
    return struct.pack("<HBBBBHQ", *head) + content


def _varint(value: int) -> bytes:
    """Encode an integer as protobuf does."""
    out = b""
    while value >> _VARINT:
        out += bytes([value & 0x7F | 0x80])
        value >>= _VARINT
    return out + bytes([value])


def scale_of(vector: Any) -> float:
    """Return the scale that a vector's ciphertext carries."""
    return float(vector.ciphertext()[0].scale)


def moduli(context: Any) -> list[int]:
    """Return the primes modulo which sums are kept."""
    parameters = context.seal_context().data.first_context_data().parms()
    return [int(prime.value()) for prime in parameters.coeff_modulus()]


def _uniform(bound: int, count: int) -> Array:
    """Draw integers uniform below `bound` by rejection, uint64 (count,)."""
    shift = np.uint64(64 - bound.bit_length())
    accepted = np.zeros(0, np.uint64)
    while accepted.size < count:
        drawn = np.frombuffer(secrets.token_bytes(8 * count), np.uint64) >> shift
        accepted = np.concatenate([accepted, drawn[drawn < bound]])
    return accepted[:count]
