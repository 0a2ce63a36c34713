"""Decrypt Paillier ciphertexts jointly: partial answers, the proof that they are right, and plaintexts from t of them.

A share holder that is asked to decrypt calls `partial` and `prove`; the server calls `combine` on t answers, and
`verify` where the result is wrong, to find the holder that lied (`threshold_server`).

n = p q is the modulus, N the number of share holders, D = N!, t the threshold. A ciphertext c = (1 + n)^M r^n mod n^2
of the plaintext M opens by the n-th root r of x = c mod n = r^n mod n, since r^n mod n^2 depends on r mod n alone
(Paillier 1999, section 5, c |-> (M, r) is a bijection), and c / r^n = 1 + M n mod n^2.

The root is an RSA operation with public exponent n, shared as Shoup shares it (EUROCRYPT 2000, section 3). The dealer
of the keys (`key_set`) drew a polynomial f of degree t - 1 with f(0) = d, the power that takes n-th roots of squares:
y^(d n) = y mod n for every square y. Holder i has the share s_i = f(i + 1), and answers x_i = x^(2 D s_i) mod n. All
parties know a generator v of the squares mod n and v_i = v^s_i (`SharedKey.base` and `verifiers`), against which
answers are proven. An answer costs about a seventh of one in the sharing of Damgard and Jurik (PKC 2001), whose answers
are powers mod n^2 with exponents twice as long.

A decryption reveals, besides M, the root r, the product of the clients' own randomness. That adds nothing about single
plaintexts where two clients are honest: given M and r, c_2 = (1 + n)^M r^n / c_1 follows from c_1, so an attacker that
finds c_1's plaintext from this view finds it from c_1 alone. And r proves the result: any party can check
c = (1 + n)^M r^n.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from secrets import randbits
from typing import Any, Final

import gmpy2

from securefed._messages import ClientId
from securefed.defenses._homomorphic.cipher import Integers, power
from securefed.defenses._homomorphic.key_set import SharedKey

CHALLENGE_BYTES: Final = 32
_WEIGHT_BYTES: Final = 16  # a wrong answer in a batch is not found with probability 2^-128


@dataclass(frozen=True)
class DecryptionProof:
    """Proof without interaction that log_v v_i = log_X Y, so that Y was made with the share s_i (`prove`).

    Attributes:
        challenge: the hash.
        response: z = s_i e + r over the integers, with e the challenge and r the prover's secret random number.
    """

    challenge: bytes
    response: int


def response_bytes(bits: int) -> int:
    """Return the bytes that hold z = s e + r < 2^(bits + 513): s < n, e < 2^256 and r < 2^(bits + 512)."""
    return bits // 8 + 2 * CHALLENGE_BYTES + 1


def partial(key: SharedKey, share: int, ciphertexts: Integers) -> list[Any]:
    """Compute a holder's partial answers, x_i = x^(2 D s_i) mod n for each ciphertext.

    Args:
        key: the public part of the threshold keys.
        share: s_i.
        ciphertexts: integers in (0, n^2), units modulo n.

    Returns:
        One integer below n for each ciphertext.
    """
    n = gmpy2.mpz(key.public.n)
    return power([c % n for c in ciphertexts], 2 * key.delta * gmpy2.mpz(share), n)


def combine(key: SharedKey, ciphertexts: Integers, partials: Mapping[ClientId, Integers]) -> list[Any] | None:
    """Open ciphertexts by the partial answers of exactly t holders; `None` where any answer is wrong.

    Let l_i be D times the Lagrange coefficient of point i + 1 at 0, an integer. As sum l_i s_i = D f(0) = D d,
    w = prod x_i^(2 l_i) = x^(4 D^2 d) has w^n = x^(4 D^2), and with a 4 D^2 + b n = 1 the root is r = w^a x^b (Shoup
    2000, section 3). That r^n = x mod n is checked, so a wrong answer never passes.

    Args:
        key: the public part of the threshold keys.
        ciphertexts: to open.
        partials: by holder, its answer to each ciphertext.

    Returns:
        One plaintext in [0, n) for each ciphertext.
    """
    n = gmpy2.mpz(key.public.n)
    square, xs = n * n, [c % n for c in ciphertexts]
    _, a, b = gmpy2.gcdext(4 * key.delta**2, n)
    a, b = a % n, (1 - (a % n) * 4 * key.delta**2) // n  # the same identity with a >= 0
    if any(gmpy2.gcd(x_i, n) != 1 for answers in partials.values() for x_i in answers):
        return None
    w = [gmpy2.mpz(1)] * len(xs)
    for holder, answers in partials.items():
        exponent = 2 * _lagrange(key.delta, holder, list(partials))
        w = [left * gmpy2.powmod(x_i, exponent, n) % n for left, x_i in zip(w, answers, strict=True)]
    roots = [left * gmpy2.powmod(x, b, n) % n for left, x in zip(power(w, a, n), xs, strict=True)]
    plaintexts = []  # c / r^n = (1 + n)^M mod n^2
    for c, zero in zip(ciphertexts, power(roots, n, square), strict=True):
        quotient = c * gmpy2.invert(zero, square) % square  # (1 + n)^M = 1 + M n
        if quotient % n != 1:
            return None
        plaintexts.append((quotient - 1) // n)
    return plaintexts


def _lagrange(delta: int, holder: ClientId, quorum: Sequence[ClientId]) -> int:
    """Compute D times the coefficient of f(holder + 1) in f(0); an integer, as D is N!."""
    numerator, denominator = delta, 1
    for other in quorum:
        if other != holder:
            numerator *= other + 1
            denominator *= other - holder
    return numerator // denominator


def prove(
    key: SharedKey, holder: ClientId, share: int, ciphertexts: Integers, answers: Integers, context: bytes
) -> DecryptionProof:
    """Prove that all `answers` were made with the share behind v_i, in one proof for the whole batch.

    One statement for the batch: x_k is the k-th ciphertext mod n, x_{i,k} holder i's answer to it. With weights e_k of
    128 bits hashed from all numbers, X = prod x_k^(4 D e_k) and Y = prod x_{i,k}^(2 e_k) have Y = X^s_i; if one answer
    were wrong this would hold with probability 2^-128 (small exponents test, Bellare, Garay and Rabin 1998). That test
    needs a group whose order has no small factors: the squares mod n have the order p' q', two large primes.

    Its proof is Chaum and Pedersen's, in a group of unknown order (Shoup 2000, section 3), with the challenge e from a
    hash of everything and `context` (Fiat and Shamir). The prover commits to v^r and X^r for a random r, and responds
    z = s_i e + r. The verifier computes v^z v_i^-e and X^z Y^-e, which are the commitments if the statement holds, and
    checks that they hash to e. r has 512 bits more than n, 256 more than s_i e, so that z hides s_i up to a statistical
    distance of about 2^-256.

    Args:
        key: the public part of the threshold keys.
        holder: i, the client that answers.
        share: s_i.
        ciphertexts: what it decrypted.
        answers: the answers, from `partial`.
        context: bytes that name run, exchange, plan and holder (`signed_uploads.context`); a proof is valid for no
            other.
    """
    n = gmpy2.mpz(key.public.n)
    base, image = _batch(key, holder, ciphertexts, answers, context)
    r = randbits(key.public.bits + 16 * CHALLENGE_BYTES)
    commitments = gmpy2.powmod(key.base, r, n), gmpy2.powmod(base, r, n)
    challenge = _challenge(key, holder, (base, image, *commitments), context)
    return DecryptionProof(challenge, share * int.from_bytes(challenge, "little") + r)


def verify(
    key: SharedKey, holder: ClientId, ciphertexts: Integers, answers: Integers, context: bytes, proof: DecryptionProof
) -> bool:
    """Return whether `proof` shows that these are the holder's right answers, in this context; arguments as `prove`."""
    n = gmpy2.mpz(key.public.n)
    if not 0 <= proof.response < 1 << 8 * response_bytes(key.public.bits):
        return False
    if any(not 0 < x_i < n or gmpy2.gcd(x_i, n) != 1 for x_i in answers):
        return False
    base, image = _batch(key, holder, ciphertexts, answers, context)
    e = int.from_bytes(proof.challenge, "little")
    commitments = (  # v^z v_i^-e and X^z Y^-e
        gmpy2.powmod(key.base, proof.response, n) * gmpy2.powmod(key.verifiers[holder], -e, n) % n,
        gmpy2.powmod(base, proof.response, n) * gmpy2.powmod(image, -e, n) % n,
    )
    return proof.challenge == _challenge(key, holder, (base, image, *commitments), context)


def _batch(
    key: SharedKey, holder: ClientId, ciphertexts: Integers, answers: Integers, context: bytes
) -> tuple[Any, Any]:
    """Compute X and Y of `prove`; the weights follow from a hash of all ciphertexts and answers."""
    n, size = gmpy2.mpz(key.public.n), key.public.ciphertext_bytes
    seed = _hash(b"weights", key, holder, context)
    for number in (*ciphertexts, *answers):
        seed.update(int(number).to_bytes(size, "little"))
    weights = hashlib.shake_256(seed.digest()).digest(_WEIGHT_BYTES * len(ciphertexts))
    base = image = gmpy2.mpz(1)
    for k, (c, answer) in enumerate(zip(ciphertexts, answers, strict=True)):
        e = int.from_bytes(weights[k * _WEIGHT_BYTES : (k + 1) * _WEIGHT_BYTES], "little")
        base = base * gmpy2.powmod(c % n, e, n) % n
        image = image * gmpy2.powmod(answer, e, n) % n
    return gmpy2.powmod(base, 4 * key.delta, n), image * image % n


def _challenge(key: SharedKey, holder: ClientId, numbers: Sequence[Any], context: bytes) -> bytes:
    """Hash X, Y and both commitments to the challenge e, 256 bits."""
    digest = _hash(b"challenge", key, holder, context)
    for number in numbers:
        digest.update(int(number).to_bytes(key.public.plaintext_bytes, "little"))
    challenge: bytes = digest.digest()
    return challenge


def _hash(purpose: bytes, key: SharedKey, holder: ClientId, context: bytes) -> Any:
    """Start a hash that is bound to purpose, key, holder and context."""
    digest = hashlib.sha256(b"securefed threshold decryption, " + purpose)
    digest.update(key.fingerprint + holder.to_bytes(8, "little"))
    digest.update(len(context).to_bytes(8, "little") + context)
    return digest
