from __future__ import annotations

import numpy as np
import pytest

from securefed._auditing.engine.statistics import (
    EXPOSED,
    FOUND,
    INCONCLUSIVE,
    NOT_DETECTED,
    PARTIAL,
    Interval,
    interval,
    upper,
    verdict,
)
from securefed.errors import ConfigError
from tests.combinations import each_value


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


@pytest.mark.parametrize("seeds", [3, 5])
def test_upper_ends_of_few_seeds_miss_the_true_mean_as_rarely_as_they_say(seeds) -> None:
    """300 samples: at 2.5 % more than 18 misses have probability .0004. The bootstrap alone misses 13 % and 9 %."""
    rng = np.random.default_rng(4)
    found = [interval(rng.normal(0.2, 0.1, seeds)) for _ in range(300)]
    assert sum(upper(one) < 0.2 for one in found) <= 18 < sum(one.high < 0.2 for one in found)


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
        ([0.95, 0.96, 0.99], [0.97, 0.99, 0.99], INCONCLUSIVE),
        ([0.2, 0.25, 0.22], [0.0, 0.01, -0.01], PARTIAL),
        ([0.2, 0.25, 0.22], [0.3, 0.3, 0.3], NOT_DETECTED),
        ([0.04, 0.03, 0.04], [-1.0, -1.0, -1.0], NOT_DETECTED),
        ([-0.5, 0.9, 0.1], [0.0, 0.0, 0.0], INCONCLUSIVE),  # not even a full leak would have been noticed
    ],
)
def test_verdicts(leak, null, word) -> None:
    found = verdict(interval(leak), interval(null))
    assert found.word == word
    assert found.detectable >= 0.05


def laws(rng):
    return {
        "normal": lambda n: rng.normal(0.3, 0.1, n),
        "skewed": lambda n: 0.3 - rng.exponential(0.2, n),
        "rare": lambda n: np.where(rng.random(n) < 0.2, 0.9, 0.0),
    }


@pytest.mark.parametrize(("law", "seeds"), each_value(["normal", "skewed", "rare"], [2, 3, 5, 10]))
def test_false_positives_stay_at_two_percent_where_leakage_is_the_null(seeds, law) -> None:
    """250 pairs of one law; 12 or more hits have probability .005 at 2 %. (Student's intervals alone, at n = 2.)"""
    draw = laws(np.random.default_rng(1))[law]
    wrong = sum(verdict(interval(draw(seeds)), interval(draw(seeds))).word in FOUND for _ in range(250))
    assert wrong < 12


def test_the_rate_is_a_property_of_the_test_and_not_of_deafness() -> None:
    rng = np.random.default_rng(2)
    found = sum(
        verdict(interval(rng.normal(0.6, 0.1, 10)), interval(rng.normal(0.3, 0.1, 10))).word == PARTIAL
        for _ in range(50)
    )
    assert found > 45


def test_the_detectable_leak_is_called_in_eight_of_ten_repetitions() -> None:
    """Binomial standard error of 200 repetitions at .8: .028; half the distance to the threshold is called rarely."""
    rng = np.random.default_rng(3)
    null = interval([0.0] * 10)
    power = verdict(interval(rng.normal(0.0, 0.2, 10)), null).detectable
    spread = interval(np.random.default_rng(3).normal(0.0, 0.2, 10)).deviation
    called = [
        sum(verdict(interval(rng.normal(mean, spread, 10)), null).word == PARTIAL for _ in range(200)) / 200
        for mean in (power, power / 2)
    ]
    assert 0.68 < called[0] < 0.92
    assert called[1] < 0.5


def test_one_seed_has_no_power_to_state() -> None:
    assert np.isnan(verdict(interval([0.0]), interval([0.0])).detectable)
    assert verdict(interval([1.0]), interval([0.0])).word == EXPOSED


def test_one_seed_above_chance_is_no_finding_unless_it_is_a_reconstruction() -> None:
    assert verdict(interval([0.44]), interval([0.1])).word == INCONCLUSIVE
    assert verdict(interval([0.44, 0.45]), interval([0.1, 0.1])).word == PARTIAL
    assert verdict(interval([0.44]), interval([0.1]), highest=0.9995).word == PARTIAL
    assert verdict(interval([0.05]), interval([0.1])).word == NOT_DETECTED
