"""Projections of one-message uploads, on which a check of norms could rest: exact, broken with signs of +-1.

No defence checks norms; `docs/explanation/norm-bound.md` is the design. A member of the committee that holds a share of
s can compute its share of P y - (P A) s = scale P x + P e, for public rows P of small integers: it is linear in s.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from securefed._sampling.random_stream import SecureRandomStream
from securefed.defenses._one_message import encryption, ring, sharing
from securefed.defenses._one_message.parameters import DEGREE, DEVIATION, MODULUS
from securefed.defenses._one_message.plaintexts import Placing
from tests.defenses.one_message.test_one_message_parameters import plan_of
from tests.house import ROOT

ROWS = 64
EXCHANGE = b"d" * 32
SCALE_BITS = 20
BITS = 30


def signs(rows: int, entries: int, rng: np.random.Generator) -> np.ndarray:
    """Entries of -1 and 1, each with probability 1/2: broken."""
    return rng.integers(0, 2, (rows, entries)) * 2 - 1


def with_zeros(rows: int, entries: int, rng: np.random.Generator) -> np.ndarray:
    """Entries of -1, 0 and 1 with probabilities 1/4, 1/2 and 1/4."""
    return rng.integers(0, 2, (rows, entries)) - rng.integers(0, 2, (rows, entries))


def projected_public(rows: np.ndarray, public: np.ndarray) -> np.ndarray:
    """P A, (rows, n): each block's polynomial a acts on s as a matrix, whose transpose is a(1 / X)."""
    out = np.zeros((len(rows), DEGREE), np.int64)
    for block, a in enumerate(public):
        turned = np.concatenate([a[:1], (MODULUS - a[:0:-1]) % MODULUS])
        for k, row in enumerate(rows[:, block * DEGREE : (block + 1) * DEGREE]):
            out[k] = ring.residues(out[k] + ring.product(turned[None], row.astype(np.int64))[0])
    return out


def projections(rows: np.ndarray, y: np.ndarray, masked: np.ndarray) -> np.ndarray:
    """P y - (P A) s, centred."""
    return ring.centred(ring.residues(np.stack([ring.dot(row % MODULUS, y) for row in rows]) - masked))


def upload(x: np.ndarray, stream: SecureRandomStream) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A client's y, its s and the public polynomials, for integers x modulo q times the scale: a liar sends any."""
    placing = Placing.of(plan_of([32], 3, x.size))
    key, public = encryption.draw_key(placing.encoding, stream), encryption.public_polynomials(placing, EXCHANGE, 0)
    error = np.rint(np.random.default_rng(1).normal(size=placing.size) * DEVIATION).astype(np.int64)
    padded = np.zeros(placing.size, np.int64)
    padded[: x.size] = x
    return ring.residues(ring.product(public, key).reshape(-1) + error + padded), key, public


def test_projections_from_shares_of_the_key_are_those_of_the_contribution() -> None:
    """Up to the projected error, of deviation 6.6 sqrt(n / 2): six of them."""
    rng, stream = np.random.default_rng(0), SecureRandomStream()
    x = rng.integers(-50, 51, 1500)
    y, key, public = upload(x << SCALE_BITS, stream)
    rows = with_zeros(4, y.size, rng)
    matrix = projected_public(rows, public)
    shares = sharing.values_at(sharing.deal(ring.residues(key), 2, stream), range(1, 8))[:, :DEGREE]
    masked = np.stack([ring.dot(row, shares) for row in matrix], axis=1)  # a member's part: k dot products a client
    found = projections(rows, y, sharing.interpolated([2, 4, 7], masked[[1, 3, 6]], 0))
    error = 6 * DEVIATION * math.sqrt(y.size / 2)
    assert np.abs(found - ((rows[:, : x.size] @ x) << SCALE_BITS)).max() < error
    assert error < 2**SCALE_BITS / 100


def half_of_the_modulus(entries: int) -> np.ndarray:
    """Two entries of q / 2: 0 in every sum of signs, and enough to destroy the sum."""
    x = np.zeros(entries, np.int64)
    x[[3, 700]] = MODULUS // 2
    return x


def norms(rows: np.ndarray, x: np.ndarray) -> np.ndarray:
    """What the check sees: the projections modulo q, centred."""
    return ring.centred(
        np.array([int(sum(int(a) * int(b) for a, b in zip(r, x, strict=True))) % MODULUS for r in rows])
    )


def test_signs_let_two_entries_of_half_the_modulus_pass_in_every_row_and_rows_with_zeros_do_not() -> None:
    rng = np.random.default_rng(0)
    x = half_of_the_modulus(800)
    chosen = [3, 700]
    assert np.abs(norms(signs(ROWS, 800, rng)[:, chosen], x[chosen])).max() <= 1
    seen = np.abs(norms(with_zeros(ROWS, 800, rng)[:, chosen], x[chosen]))
    large = int((seen > MODULUS // 4).sum())
    assert abs(large - ROWS / 2) < 6 * math.sqrt(ROWS / 4)  # one of the two entries alone: half of the rows


def test_through_a_whole_upload_the_attack_passes_with_signs_only() -> None:
    rng, stream = np.random.default_rng(2), SecureRandomStream()
    y, key, public = upload(half_of_the_modulus(800), stream)
    limit = 6 * DEVIATION * math.sqrt(y.size)
    for draw, passes in ((signs, True), (with_zeros, False)):
        rows = draw(8, y.size, rng)
        matrix = projected_public(rows, public)
        found = projections(rows, y, np.array([int(ring.dot(row, ring.residues(key))) for row in matrix]))
        assert bool(np.abs(found).max() <= limit) is passes


@pytest.mark.parametrize("entry", [MODULUS // 2, MODULUS // 3, MODULUS // 4, 3 * 2**40, MODULUS - 3 * 2**40])
@pytest.mark.parametrize("others", [0, MODULUS // 2, 2**40, -(2**41)])
def test_an_entry_beyond_twice_the_window_passes_half_of_the_rows_at_most(entry: int, others: int) -> None:
    """Whatever the other entries add: 0 has probability 1/2, and not all three cases are in the window."""
    window = 2**40
    inside = {p: abs(int(ring.centred(np.array([(others + p * entry) % MODULUS]))[0])) <= window for p in (-1, 0, 1)}
    assert inside[0] * 0.5 + (inside[1] + inside[-1]) * 0.25 <= 0.5


def threshold(rows: int, bits: int = BITS) -> float:
    """tau: an honest contribution of norm B exceeds tau B^2 k / 2 with probability 2^-bits at most.

    A row's projection is subgaussian with variance |x|^2 / 2, as (1 + cosh u) / 2 = cosh(u / 2)^2 <= exp(u^2 / 4); so
    the sum of k squares has the Chernoff bound of a chi-square: exp(-k / 2 (tau - 1 - log tau)).
    """
    low, high = 1.0, 100.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (low, middle) if rows / 2 * (middle - 1 - math.log(middle)) > bits * math.log(2) else (middle, high)
    return high


def largest_passing(rows: int, bits: int = BITS) -> float:
    """rho: a contribution of norm rho B or more, without wrap, passes with probability 2^-bits at most.

    Bernstein's bound for sums of k non-negative variables, with E Z^4 <= 3 (E Z^2)^2: exp(-k (1 - tau / rho^2)^2 / 6).
    """
    short = math.sqrt(6 * bits * math.log(2) / rows)
    return math.inf if short >= 1 else math.sqrt(threshold(rows, bits) / (1 - short))


def test_the_thresholds_of_the_design_page() -> None:
    found = [(k, round(math.sqrt(threshold(k)), 2), round(largest_passing(k), 2)) for k in (64, 128, 256, 512, 1024)]
    lines = [f"| {k} | {refused} B | {'no bound' if most == math.inf else f'{most} B'} |" for k, refused, most in found]
    assert "\n".join(lines) in (ROOT / "docs" / "explanation" / "norm-bound.md").read_text()


def test_honest_rows_stay_below_the_threshold_and_large_ones_do_not() -> None:
    rng = np.random.default_rng(3)
    x = rng.normal(size=300)
    x /= np.linalg.norm(x)
    seen = ((with_zeros(256 * 40, 300, rng) @ x) ** 2).reshape(40, 256).sum(axis=1) / 128
    assert seen.max() < threshold(256)
    assert (seen * largest_passing(256) ** 2).min() > threshold(256)
