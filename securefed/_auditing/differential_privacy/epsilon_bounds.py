"""Compute lower bounds on epsilon from the number of bits that an adversary guessed right.

A mechanism runs with or without a canary (a record or client that the auditor made up; a bit each), and the adversary
guesses the bits from the output. Each bound is one-sided: with probability at least `confidence` it lies below the
mechanism's true epsilon. All are at least 0. `noise_audit` and `record_audit` run the mechanisms and call these.

- `clopper_pearson`: many independent runs, one bit each.
- `tradeoff`: the same runs, tighter: it bounds the parameter of Gaussian trade-off curves (Dong, Roth, Su,
  arXiv 1905.02383). `noise_tests` tests the noise itself where its size is known.
- `one_run`: one run with m independent bits (Steinke, Nasr, Jagielski, arXiv 2305.08846, theorem 5.2).
- `one_run_f`: the same, tighter: it rejects whole trade-off curves (Mahloujifar, Melis, Chaudhuri, arXiv 2410.22235).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy.special import ndtr, ndtri
from scipy.stats import beta, binom, rankdata

from securefed._public import require
from securefed._tensors import Array

CONFIDENCE: Final = 0.95
Count = tuple[int, int]
"""(Number of runs in which a test said "in", number of runs.)"""
_LARGEST: Final = 50.0  # epsilon at which the search for a bound ends; no privacy is left there
_PRECISION: Final = 1e-4  # width at which the bisection ends, far below what reports show


@dataclass(frozen=True)
class Guesses:
    """Guesses of an adversary in a game of m independent fair bits.

    Which bits are guessed, and how, may depend on the mechanism's output in any way, but not on the bits otherwise.

    Attributes:
        canaries: m, the number of bits.
        made: number of guesses; the adversary abstained from the other bits.
        right: number of guesses that were right.
    """

    canaries: int
    made: int
    right: int

    def __post_init__(self) -> None:
        require(
            0 <= self.right <= self.made <= self.canaries,
            f"right <= made <= canaries must hold, not {self.right}, {self.made}, {self.canaries}",
        )

    @classmethod
    def of(cls, scores: Array, bits: Array, made: int | None = None) -> Guesses:
        """Guess 1 for the `made` / 2 highest scores and 0 for as many of the lowest; all by default.

        Args:
            scores: (m,) higher where the bit is more likely 1.
            bits: (m,) of 0 and 1.
            made: number of guesses; by default m, or m - 1 if that is odd.
        """
        values, truth = np.asarray(scores, np.float64), np.asarray(bits, bool)
        require(values.shape == truth.shape and values.ndim == 1, "scores and bits are two vectors of one length")
        count = (len(values) if made is None else made) // 2
        require(0 < count <= len(values) // 2, f"2 to {len(values)} guesses can be made, not {made}")
        order = np.argsort(values, kind="stable")
        right = int(np.sum(~truth[order[:count]]) + np.sum(truth[order[-count:]]))  # guessed 0, guessed 1
        return cls(len(values), 2 * count, right)


def clopper_pearson(
    inside: tuple[int, int], outside: tuple[int, int], delta: float, confidence: float = CONFIDENCE
) -> float:
    """Bound epsilon by a fixed test that says "in" or "out" after each of many independent runs.

    (epsilon, delta)-privacy means TPR <= e^epsilon FPR + delta and 1 - FPR <= e^epsilon (1 - TPR) + delta, where TPR
    and FPR are the rates of "in" with and without the canary. Each rate gets a Clopper-Pearson bound at half the error.
    The test must be fixed before the runs that are counted here, or chosen on other runs.

    Args:
        inside: (times the test said "in", runs) with the canary.
        outside: the same without it.
        delta: the delta of the privacy guarantee.
        confidence: the confidence of the bound.

    Raises:
        ConfigError: counts, delta or confidence are out of range.
    """
    _require_levels(delta, confidence)
    for said, runs in (inside, outside):
        require(0 <= said <= runs and runs > 0, f"a count must lie in 0..runs with runs > 0, not {said} of {runs}")
    tpr, fpr = _rates(inside, outside, confidence)
    return max(0.0, _log_ratio(tpr - delta, fpr), _log_ratio(1 - fpr - delta, 1 - tpr))


def tradeoff_mu(inside: tuple[int, int], outside: tuple[int, int], confidence: float = CONFIDENCE) -> float:
    """Bound mu of Gaussian privacy by a fixed test, as `clopper_pearson` bounds epsilon; at least 0.

    mu-Gaussian privacy means TPR <= Phi(Phi^-1(FPR) + mu) (Dong, Roth, Su, definition 2.6), so that
    mu >= Phi^-1(TPR) - Phi^-1(FPR). Each rate gets a Clopper-Pearson bound at half the error.

    Args:
        inside: (times the test said "in", runs) with the canary.
        outside: the same without it.
        confidence: the confidence of the bound.
    """
    tpr, fpr = _rates(inside, outside, confidence)
    return max(0.0, float(ndtri(tpr) - ndtri(fpr))) if tpr > 0 and fpr < 1 else 0.0


def tradeoff(inside: Array, outside: Array, delta: float, confidence: float = CONFIDENCE) -> float:
    """Bound epsilon by `tradeoff_mu`, with the test chosen on the first half of the scores and counted on the other.

    It is a bound only for mechanisms whose trade-off curve is Gaussian, as `one_run_f`.

    Args:
        inside: (runs,) scores with the canary; of (runs, statistics) the best statistic is chosen too.
        outside: the same without it.
        delta: the delta of the privacy guarantee.
        confidence: the confidence of the bound.
    """
    _require_levels(delta, confidence)
    return gaussian_epsilon(
        _tuned(inside, outside, 0.5, lambda ins, outs: tradeoff_mu(ins, outs, confidence)),
        delta,
    )


def from_scores(
    inside: Array, outside: Array, delta: float, confidence: float = CONFIDENCE, *, tune: float = 0.5
) -> float:
    """Bound epsilon by `clopper_pearson`, with the test chosen on some of the scores and counted on the others.

    Args:
        inside: (runs,) scores with the canary, or (runs, statistics), of which the best statistic is chosen too.
        outside: the same without it.
        delta: the delta of the privacy guarantee.
        confidence: the confidence of the bound.
        tune: share of the scores, from the first on, on which statistic and threshold are chosen.
    """
    return _tuned(inside, outside, tune, lambda ins, outs: clopper_pearson(ins, outs, delta, confidence))


def _rates(inside: tuple[int, int], outside: tuple[int, int], confidence: float) -> tuple[float, float]:
    """Return a lower bound on the true positive rate and an upper one on the false positive rate.

    Both are Clopper-Pearson: of k in n the lower end is a quantile of Beta(k, n - k + 1), the upper of Beta(k + 1,
    n - k).
    """
    level = (1 - confidence) / 2  # half of the error for each
    tpr = 0.0 if inside[0] == 0 else float(beta.ppf(level, inside[0], inside[1] - inside[0] + 1))
    fpr = 1.0 if outside[0] == outside[1] else float(beta.ppf(1 - level, outside[0] + 1, outside[1] - outside[0]))
    return tpr, fpr


def _tuned(inside: Array, outside: Array, tune: float, bound_of: Callable[[Count, Count], float]) -> float:
    """Choose statistic and threshold on the first scores, and bound by the counts of the others.

    Args:
        inside: (runs,) or (runs, statistics) scores with the canary.
        outside: the same without it.
        tune: share of the scores to choose on.
        bound_of: (counts with the canary, counts without) -> the bound; the threshold that makes it largest is taken.
    """
    require(0 < tune < 1, f"tune must lie between 0 and 1, not {tune}")
    first, second = (np.asarray(x, np.float64).reshape(len(x), -1) for x in (inside, outside))
    a, b = int(len(first) * tune), int(len(second) * tune)
    require(min(a, b) >= 1 and a < len(first) and b < len(second), "too few scores to tune a threshold and count")
    chosen = int(np.argmax(_separation(first[:a], second[:b]))) if first.shape[1] > 1 else 0
    first, second = first[:, chosen], second[:, chosen]

    def bound(threshold: float, ins: Array, outs: Array) -> float:
        counts = [(int(np.sum(x > threshold)), len(x)) for x in (ins, outs)]
        return bound_of(counts[0], counts[1])

    seen = np.sort(np.concatenate([first[:a], second[:b]]))
    thresholds = seen[np.unique(np.linspace(0, len(seen) - 1, 201).astype(int))]  # half per cents of all scores
    best = max(thresholds, key=lambda t: bound(float(t), first[:a], second[:b]))
    return bound(float(best), first[a:], second[b:])


def _separation(inside: Array, outside: Array) -> Array:
    """Compute the mean rank of each statistic's scores with the canary, which is the AUC up to constants."""
    return np.asarray(rankdata(np.concatenate([inside, outside]), axis=0)[: len(inside)].mean(axis=0))


def one_run(guesses: Guesses, delta: float, confidence: float = CONFIDENCE) -> float:
    """Bound epsilon by one run with many bits: the largest epsilon at which so many right guesses are too unlikely.

    Steinke, Nasr, Jagielski, arXiv 2305.08846, theorem 5.2.

    Args:
        guesses: the guesses of the adversary.
        delta: the delta of the privacy guarantee.
        confidence: the confidence of the bound.

    Raises:
        ConfigError: delta or confidence is out of range.
    """
    _require_levels(delta, confidence)
    return _largest_rejected(lambda epsilon: one_run_p_value(guesses, epsilon, delta) <= 1 - confidence)


def one_run_p_value(guesses: Guesses, epsilon: float, delta: float) -> float:
    """Bound the probability of that many right guesses under (epsilon, delta)-privacy.

    Given the output, each bit is right with odds of at most e^epsilon, whatever the others are: the right guesses are
    dominated by W ~ Binomial(made, e^eps / (1 + e^eps)), plus F exceptions of mean at most 2 m delta. P[W + F >= v] is
    largest when F has one size i besides 0, which costs 2 m delta / i: hence the maximum over i.

    Args:
        guesses: v `right` of r `made` guesses, of m bits.
        epsilon: the epsilon of the privacy guarantee.
        delta: the delta of the privacy guarantee.
    """
    v, r = guesses.right, guesses.made
    q = 1 / (1 + math.exp(-epsilon))
    tail = float(binom.sf(v - 1, r, q))
    if v == 0 or delta == 0:
        return min(1.0, tail)
    just_below = np.cumsum(binom.pmf(np.arange(v - 1, -1, -1), r, q))  # P[v > W >= v - i], i = 1..v
    exceptions = float(np.max(just_below / np.arange(1, v + 1)))
    return min(1.0, tail + 2 * guesses.canaries * delta * exceptions)


def one_run_f(guesses: Guesses, delta: float, confidence: float = CONFIDENCE) -> float:
    """Bound epsilon by the least private Gaussian trade-off curve that the guesses reject.

    It bounds mechanisms whose trade-off curve is Gaussian: composed Gaussian noise, and up to a small distance Skellam
    and discrete Gaussian noise. For other mechanisms it is no bound; use `one_run`.

    Args:
        guesses: the guesses of the adversary.
        delta: the delta of the privacy guarantee.
        confidence: the confidence of the bound.

    Raises:
        ConfigError: delta or confidence is out of range.
    """
    _require_levels(delta, confidence)
    mu = _largest_rejected(lambda value: rejects_gaussian(guesses, value, confidence))
    return gaussian_epsilon(mu, delta)


def rejects_gaussian(guesses: Guesses, mu: float, confidence: float = CONFIDENCE) -> bool:
    """Whether the guesses reject Gaussian privacy of parameter `mu` = sensitivity / standard deviation.

    Args:
        guesses: the guesses of the adversary.
        mu: parameter of the trade-off curve.
        confidence: 1 - the probability that a true curve is rejected.
    """
    return rejects(guesses, lambda x: gaussian_least(x, mu), 1 - confidence)


def gaussian_least(power: float, mu: float) -> float:
    """Return the least false positive rate at the true positive rate `power`: Phi(Phi^-1(power) - mu)."""
    return float(ndtr(ndtri(power) - mu)) if power > 0 else 0.0


def rejects(guesses: Guesses, least: Callable[[float], float], level: float) -> bool:
    """Whether P[at least `right` of `made` guesses are right] > level contradicts a trade-off curve.

    If it does, so many right guesses had a probability of at most `level` under the curve, which is rejected.

    Let q_a = P[a guesses are right]. Of m canaries draw one at random: r_a is the probability that it is guessed right
    and at least a guesses are right in all, h_a that it is guessed wrong and at least a are right. Summing over a,

        r_a - r_{a+1} = q_a a / m,    h_a - h_{a+1} = q_a (made - a) / m,    r_0 + h_0 = made / m.

    The event "this canary is guessed v, and at least a of the others are guessed right" counts for r_{a+1} if the
    canary's bit is v, and for h_a if it is not. Since the curve bounds how differently one event behaves under the two
    bits, h_a >= least(r_{a+1}); the mean over canaries keeps this, as `least` is convex (Jensen).

    The recursion starts with all of `level` at a = `right`, and goes down to a = 0 with the smallest h_a allowed at
    each a. If even these exceed r + h = made / m, no distribution of guesses fits both the curve and the level.

    Args:
        guesses: the guesses of the adversary.
        least: true positive rate -> least false positive rate; convex and increasing.
        level: probability that counts as too small.
    """
    m, made, right = guesses.canaries, guesses.made, guesses.right
    if right == 0:
        return False
    hit, miss = level * right / m, level * (made - right) / m  # r_a and h_a at a = right, where q_a = level
    for a in range(right - 1, -1, -1):
        needed = max(least(min(hit, 1.0)), miss)  # the least h_a, given r_{a+1} and h_{a+1}
        hit += a / (made - a) * (needed - miss)  # r_a - r_{a+1} = q_a a / m, with q_a / m from h_a - h_{a+1}
        miss = needed
        if hit + miss > made / m:
            return True
    return False


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Compute epsilon at `delta` of Gaussian privacy `mu` (Balle and Wang 2018, theorem 8)."""
    if mu <= 0:
        return 0.0
    from securefed.defenses._differential_privacy import epsilon_of  # noqa: PLC0415 - one auditor needs it

    return epsilon_of(1 / mu, 1, delta)


def _log_ratio(above: float, below: float) -> float:
    return math.log(above / below) if above > 0 and below > 0 else 0.0


def _largest_rejected(rejected: Callable[[float], bool]) -> float:
    """Find the largest value that is rejected, from below, by bisection; all smaller values are rejected too."""
    if not rejected(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while rejected(high):
        low, high = high, 2 * high
        if high > _LARGEST:
            return low
    while high - low > _PRECISION:
        middle = (low + high) / 2
        low, high = (middle, high) if rejected(middle) else (low, middle)
    return low


def _require_levels(delta: float, confidence: float) -> None:
    require(0 <= delta < 1, f"delta must lie in [0, 1), not {delta}")
    require(0 < confidence < 1, f"confidence must lie between 0 and 1, not {confidence}")
