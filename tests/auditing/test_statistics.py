from __future__ import annotations

import numpy as np
import pytest

from securefed.auditing.statistics import EXPOSED, NOT_DETECTED, PARTIAL, Interval, interval, verdict
from securefed.errors import ConfigError


def test_intervals_cover_the_true_mean_about_as_often_as_they_say() -> None:
    """300 samples of n = 10 normals. The percentile bootstrap is known to under-cover at n = 10: about 0.90.

    Its binomial standard error is 0.017, so [0.84, 0.96] is +-3.5 of those; half the width would cover 0.66 or less.
    """
    rng = np.random.default_rng(0)
    hits = narrow = 0
    for _ in range(300):
        found = interval(rng.normal(0.3, 1.0, 10).tolist())
        hits += found.low <= 0.3 <= found.high
        half = (found.high - found.low) / 4
        narrow += abs(found.mean - 0.3) <= half
    assert 0.84 <= hits / 300 <= 0.96
    assert narrow / 300 < 0.75


def test_an_interval_of_equal_values_has_no_width_and_is_reproducible() -> None:
    assert interval([0.5] * 4) == Interval(0.5, 0.5, 0.5, 4, 0.0)
    values = [0.1, 0.5, 0.2, 0.9]
    assert interval(values) == interval(values)
    for bad in ([], [0.1, float("nan")]):
        with pytest.raises(ConfigError):
            interval(bad)


@pytest.mark.parametrize(
    ("leak", "null", "word"),
    [
        ([0.95, 0.96, 0.99], [0.0, 0.01, -0.01], EXPOSED),
        ([0.95, 0.96, 0.99], [0.97, 0.99, 0.99], NOT_DETECTED),
        ([0.2, 0.25, 0.22], [0.0, 0.01, -0.01], PARTIAL),
        ([0.2, 0.25, 0.22], [0.3, 0.3, 0.3], NOT_DETECTED),
        ([0.04, 0.03, 0.04], [-1.0, -1.0, -1.0], NOT_DETECTED),
        ([-0.5, 0.9, 0.1], [0.0, 0.0, 0.0], NOT_DETECTED),
    ],
)
def test_verdicts(leak, null, word) -> None:
    found = verdict(interval(leak), interval(null))
    assert found.word == word
    assert found.detectable >= 0.05


def test_detectable_is_what_the_same_spread_would_have_needed() -> None:
    """Shifting the sample by (detectable - mean) puts its low end on the threshold, by construction of a mean."""
    leak, null = interval([0.0, 0.02, -0.02, 0.01]), interval([0.0, 0.0, 0.0, 0.0])
    shift = verdict(leak, null).detectable - leak.mean
    above = interval([v + shift + 1e-9 for v in (0.0, 0.02, -0.02, 0.01)])
    below = interval([v + shift - 1e-3 for v in (0.0, 0.02, -0.02, 0.01)])
    assert verdict(above, null).word == PARTIAL
    assert verdict(below, null).word == NOT_DETECTED
