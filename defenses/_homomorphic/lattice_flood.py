"""Decrypt so that the scheme's own noise is hidden: add large random integers in the ring before anything is rounded.

The key holder of `lattice` decrypts by `open_flooded`; clients and server call the rest for the error that the plan
states. The ring is that of polynomials of degree below n = 8192 modulo x^n + 1 and q, a product of two primes just
below 2^60.

A decrypted CKKS sum shows its noise, and noise and ciphertext together determine the secret key (Li and Micciancio,
EUROCRYPT 2021). So the key holder adds flooding noise F to the sum's polynomial m + e (message, noise): 8192
coefficients, each uniform on 2^w integers. Its answer is computed from m + e + F alone, in any precision. Shifting F by
e changes its distribution by at most sum |e_i| / 2^w in statistical distance (a uniform integer shifted by e_i overlaps
with itself but for |e_i| of 2^w values), hence that of the answer too, WHATEVER m is. Noise added after decoding would
not suffice, since the rounding of m + e to doubles may depend on e.
"""

from __future__ import annotations

import math
import secrets
from typing import Any, Final

import numpy as np

from securefed._tensors import Array
from securefed.defenses._homomorphic.lattice_ring import DEGREE, SLOTS, library, moduli, scale_of, vector_of

RUN_BITS: Final = 30
"""log2 of the number of values, over all sums of a run, that the statistical distance is stated for."""
DISTANCE_BITS: Final = 40
"""-log2 of the distance between a run's answers and answers without the scheme's noise."""
_TAIL: Final = 2.0**-70
"""Probability that an entry of a sum exceeds the planned error."""
_LOW: Final = 60
"""Bits of the lower of the two words a flood's coefficient is drawn in."""


def noise_bound(count: int) -> float:
    """Compute t, ten standard deviations of the scheme's noise in one slot of a sum of `count` ciphertexts.

    Slots hold values times the scheme's scale; t is not divided by the scale.

    SEAL encrypts modulo three primes, then divides by the last one and rounds to integers. That rounding is the noise
    that counts, since the division makes the error of the encryption itself tiny. It changes each coefficient of the
    two polynomials (c_0, c_1) by a uniform error in [-1/2, 1/2], of variance 1/12. Decryption is c_0 + c_1 s; the
    secret s has coefficients -1, 0, 1, of which 2/3 are not zero, so that a coefficient has noise of variance
    (1 + 2 n / 3) / 12. A slot's real part has n / 2 times that: standard deviation 1365 at n = 8192 (measured 1365).

    Given the secret, the noise in a slot is about normal, with a variance that depends on the secret's value at that
    slot's root of unity. Over random secrets it has a Laplace distribution, which exceeds t with probability
    e^(-10 sqrt 2) = 7e-7, and 3.5 t with probability 2^-71.
    """
    return 10 * math.sqrt(count * DEGREE / 2 * (1 + 2 * DEGREE / 3) / 12)


def flood_bits(count: int) -> int:
    """Compute w, log2 of the number of integers on which a flood's coefficient is uniform, for `count` ciphertexts.

    A coefficient of the noise has a mean size of at most sqrt(count (1 + n) / 12), whatever the ternary secret. With n
    coefficients a ciphertext and 2^30 values in 2^18 ciphertexts of 2^12 slots, w keeps the run's distance below 2^-40:

        2^18 n sqrt(count (1 + n) / 12) / 2^w <= 2^-40,     below 2^-70 a value.
    """
    noise = DEGREE * math.sqrt(count * (1 + DEGREE) / 12)
    return math.ceil(DISTANCE_BITS + RUN_BITS - math.log2(SLOTS) + math.log2(noise))


def flood_error(count: int) -> float:
    """Bound what flood and scheme's noise add to a slot, not divided by the scale.

    It is exceeded with probability below 2^-69.

    A slot's real part adds n coefficients times cosines whose squares add up to n / 2. Each flooding term lies in an
    interval of length 2^w |cosine|, so the sum leaves +-2^w sqrt(n / 4 ln(2 / P)) with probability P at most (Hoeffding
    1963), P = 2^-70.
    """
    return 2.0 ** flood_bits(count) * math.sqrt(DEGREE / 4 * math.log(2 / _TAIL)) + 3.5 * noise_bound(count)


def open_flooded(context: Any, vectors: list[Any], bits: int) -> Array:
    """Decrypt ciphertexts, each with a fresh flood of `bits` bits, to slots: float64 (count, SLOTS).

    Args:
        context: TenSEAL's context with the secret key.
        vectors: ciphertexts of one scale.
        bits: w (`flood_bits`).
    """
    seal, inner = library().sealapi, context.seal_context().data
    evaluator, encoder = seal.Evaluator(inner), seal.CKKSEncoder(inner)
    decryptor, plain = seal.Decryptor(inner, context.secret_key().data), seal.Plaintext()
    zero = np.zeros((len(moduli(context)), DEGREE), np.uint64)
    one = zero.copy()
    # A flood F is added as the ciphertext (F, 0), which decrypts to F. SEAL takes no ciphertext whose second polynomial
    # is zero, so (F, 1) is added and (0, 1) subtracted.
    one[:, 0] = 1

    def ciphertext(first: Array) -> Any:
        (piece,) = vector_of(context, np.stack([first, one]), scale_of(vectors[0]), transformed=False).ciphertext()
        evaluator.transform_to_ntt_inplace(piece)
        return piece

    slots = np.zeros((len(vectors), SLOTS))
    only_one = ciphertext(zero) if vectors else None
    for row, vector in enumerate(vectors):
        (total,) = vector.ciphertext()
        evaluator.add_inplace(total, ciphertext(_flood(context, bits)))
        evaluator.sub_inplace(total, only_one)
        decryptor.decrypt(total, plain)
        slots[row] = encoder.decode_double(plain)
    return slots


def _flood(context: Any, bits: int) -> Array:
    """Draw residues (primes, DEGREE) of secret integers uniform on [-2^(bits - 1), 2^(bits - 1)), 60 < bits <= 100."""
    # Of a coefficient's two 64-bit words keep 60 low bits, and as many high ones as are left of `bits`.
    words = np.frombuffer(secrets.token_bytes(16 * DEGREE), np.uint64).reshape(2, DEGREE)
    low, high = words[0] >> np.uint64(64 - _LOW), words[1] >> np.uint64(64 + _LOW - bits)
    return residues_of(low, high, bits, moduli(context))


def residues_of(low: Array, high: Array, bits: int, primes: list[int]) -> Array:
    """Compute the residues of high 2^60 + low - 2^(bits - 1) modulo each prime.

    The primes lie closely below 2^60, so that 2^60 leaves a remainder below 2^20, and products stay below 2^64.
    """
    rows = []
    for prime in primes:
        remainder, offset = np.uint64(2**_LOW % prime), np.uint64(-(2 ** (bits - 1)) % prime)
        rows.append((high * remainder + low + offset) % np.uint64(prime))
    return np.stack(rows)
