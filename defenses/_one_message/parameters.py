"""Parameters of the lattice encryption in which a client hides its contribution, and the argument that they are safe.

A client uploads y_b = A_b s + e_b + scale x_b over Z_q[X] / (X^n + 1), for blocks b of its contribution x: A_b is
public and uniform, s and e_b are drawn from the discrete Gaussian of standard deviation `DEVIATION`, s fresh in each
exchange. The committee opens S = sum of s over the survivors, so the server learns S and E_b = sum of e_b as well as
the sum of x.

Two arguments together say that an upload hides its contribution from the server, which also knows S and E:

    1  Ring learning with errors (RLWE) with n = 2048 and a modulus of at most 54 bits, or n = 4096 and 109 bits, has
       128 bits of security against classical attacks (`HOMOMORPHIC_STANDARD`; ternary secrets, the strictest row), for
       errors of standard deviation 8 / sqrt(2 pi) = 3.2 and any number of samples.
    2  Hint-MLWE (Kim, Lee, Seo, Song, CRYPTO 2023, theorem 1): RLWE whose attacker is also given the hints s + s' and
       e + e', with s' and e' of the same standard deviation d, is as hard as RLWE with standard deviation d_0, where
       1 / d_0^2 = 2 (1 / d^2 + 1 / d^2): d_0 = d / 2. The hints here are S and E less the parts of colluding clients.
       So they hold the s' and e' of one further honest client at least, and d_0 = 3.3 stays above the 3.2 of the table.
       The theorem asks that d_0 be at least sqrt(2) times the smoothing parameter of the integers (`smoothing`).

Not proven here: that the table, of 2018, stands against attacks found since (the estimates of the LWE estimator moved
by a few bits). With one honest client in a sum there is nothing to hide: the sum less the others' parts is its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from securefed.errors import PlanError

HOMOMORPHIC_STANDARD: Final = {1024: 27, 2048: 54, 4096: 109, 8192: 218}
"""Bits of q by n at 128 bits of classical security with ternary secrets: Albrecht, Chase, Chen, Ding, Goldwasser,
Gorbunov, Halevi, Hoffstein, Laine, Lauter, Lokam, Micciancio, Moody, Morrison, Sahai, Vaikuntanathan, "Homomorphic
Encryption Security Standard", HomomorphicEncryption.org, Toronto, November 2018, table 1."""
SECURITY: Final = 128
TABLE_DEVIATION: Final = 3.2
"""Standard deviation of the errors in that table."""
DEGREE: Final = 2048
"""n for each prime of the modulus: 2048 with one, 4096 with two."""
MODULUS_BITS: Final = 54
MODULI: Final = (2**MODULUS_BITS - 172031, 2**MODULUS_BITS - 188415)
"""The two largest primes below 2^54 that are 1 mod 8192 = 2 n. Modulo each of them X^n + 1 splits. q is the first, or
the product of both where a contribution needs more bits; a client's s is shared over the field of the first alone."""
MODULUS: Final = MODULI[0]
DEVIATION: Final = 6.6
"""Standard deviation of s and e. It trades bits of the sum (a fifth of a bit for each tenth) against the margin of the
smoothing condition. 6.4 would leave 3.2, at which the condition holds with an error of 2^-120 only for a million
entries; at half of it the table does not apply, at twice it a sum has one bit less."""
_FEWEST_DEVIATIONS: Final = 7.5
_WRONG_BITS: Final = 40
"""A sum of the plan's size has a wrong entry with probability 2^-40 at most."""


def smoothing(dimension: int, error_bits: int = SECURITY) -> float:
    """Bound the smoothing parameter of Z^dimension at error 2^-error_bits, as a standard deviation.

    Micciancio, Regev 2007, lemma 3.3: eta <= sqrt(ln(2 dimension (1 + 2^error_bits)) / pi), for the density
    exp(-pi x^2 / eta^2), whose standard deviation is eta / sqrt(2 pi).
    """
    logarithm = math.log(2 * dimension) + error_bits * math.log(2)
    return math.sqrt(logarithm / math.pi) / math.sqrt(2 * math.pi)


@dataclass(frozen=True)
class Encoding:
    """How integers are placed in the coefficients of a ciphertext.

    A sum may show the server nothing but the sum. So an entry is never cut into pieces that are summed apart: the sums
    of the pieces would show how many carries there were. Where entries are longer than one prime allows, q has two.

    Attributes:
        primes: number of primes of q, 1 or 2.
        scale_bits: the scale is 2^scale_bits; the summed errors of all clients stay below half of it.
        value_bits: width of the integers that a coefficient's sum can hold, with their sign.
        limb_bits: width of the pieces into which the indicator is cut, whose entries are 0 for all clients that
            contribute; sums of all clients' pieces fit.
    """

    primes: int
    scale_bits: int
    value_bits: int
    limb_bits: int

    @property
    def degree(self) -> int:
        """N."""
        return DEGREE * self.primes

    @property
    def moduli(self) -> tuple[int, ...]:
        """The primes of q."""
        return MODULI[: self.primes]

    @classmethod
    def of(cls, clients: int, entries: int, ring: int) -> Encoding:
        """Choose the modulus and the scale for a sum: the smallest that fit.

        The scale is the smallest power of two above twice the errors that are to be expected. The sum of N errors is
        subgaussian with parameter d sqrt(N) (Canonne, Kamath, Steinke 2020), so that one of `entries` sums exceeds
        k d sqrt(N) with probability 2 entries exp(-k^2 / 2) at most; k makes that 2^-40, and is 7.5 at least.

        Args:
            clients: N, the largest number of clients in the sum.
            entries: number of coefficients.
            ring: width in bits of the longest sum.

        Raises:
            PlanError: too many clients: no bits would be left for their contributions.
        """
        deviations = max(_FEWEST_DEVIATIONS, math.sqrt(2 * (math.log(2 * entries) + _WRONG_BITS * math.log(2))))
        scale_bits = math.ceil(math.log2(2 * deviations * DEVIATION * math.sqrt(clients)))
        one = MODULUS_BITS - 1 - scale_bits  # sums stay below q / 4, so that they and their errors never wrap
        limb_bits = one - 1 - clients.bit_length()
        if limb_bits < 8:
            raise PlanError(
                f"one message a client: {clients} clients leave {limb_bits} bits of a coefficient of {MODULUS_BITS} "
                "bits for a contribution; plan for fewer clients, or use secure_aggregation(graph='sparse', "
                "adversarial=0.1, dropouts=0.1)"
            )
        primes = 1 if ring <= one else 2
        return cls(primes, scale_bits, one + MODULUS_BITS * (primes - 1), limb_bits)
