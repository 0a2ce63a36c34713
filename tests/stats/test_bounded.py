"""Errors of sums are carried on to values: whatever the sums are off by, the value is off by at most its bound."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from securefed.statistics import ANOVA, Correlation, GroupBy, Mean, Skewness, TTest, Variance
from securefed.statistics._bounded import Bounded
from securefed.statistics._estimate import Sums
from tests.combinations import each_value

RNG = np.random.default_rng(0)
CODES = RNG.integers(0, 2, 90)
ROWS = RNG.normal(0.3, 0.4, (90, 2)) + 0.3 * CODES[:, None]
GROUPED = np.column_stack([ROWS, CODES])
CASES: dict[str, tuple[Any, Any]] = {
    "skewness": (Skewness(2, 4.0), ROWS),
    "correlation": (Correlation(2, 4.0), ROWS),
    "variance by group": (GroupBy(Variance(2, 4.0), "g", (0, 1)), GROUPED),
    "mean by group": (GroupBy(Mean(2, 4.0), "g", (0, 1)), GROUPED),
    "welch": (TTest(4.0, "g", (0, 1), features=2), GROUPED),
    "student": (TTest(4.0, "g", (0, 1), features=2, equal_variances=True), GROUPED),
    "anova": (ANOVA(4.0, "g", (0, 1), features=2), GROUPED),
}


@pytest.mark.parametrize(("name", "size"), each_value(CASES, [1e-9, 1e-4, 1e-2]))
def test_the_error_bounds_what_any_errors_of_the_sums_do(name: str, size: float) -> None:
    statistic, rows = CASES[name]
    sums = statistic._summand(rows, None)
    true, _, _ = statistic._value(Sums(sums, dict.fromkeys(sums, 0.0), noised=False))
    largest = 0.0
    for _ in range(100):
        error = {key: size * float(RNG.uniform(0, 1)) for key in sums}
        total = {key: value + error[key] * RNG.choice([-1.0, 1.0], np.shape(value)) for key, value in sums.items()}
        value, bound, _ = statistic._value(Sums(total, error, noised=False))
        assert (np.abs(value - true) <= bound + 1e-12 * (1 + np.abs(true))).all()
        largest = max(largest, float(np.max(np.abs(value - true) / np.maximum(bound, 1e-300))))
    assert size < 1e-8 or largest > 0.01  # the bound is no more than a hundred times what happens


def test_arithmetic_of_bounded_numbers_holds_for_all_true_numbers() -> None:
    for _ in range(500):
        one, two = RNG.uniform(-2, 2, (2, 50))
        e, f = RNG.uniform(0, 0.3, (2, 50))
        true_one, true_two = one + e * RNG.uniform(-1, 1, 50), two + f * RNG.uniform(-1, 1, 50)
        a, b = Bounded(one, e), Bounded(two, f)
        for found, true in (
            (a + b, true_one + true_two),
            (a - b, true_one - true_two),
            (a * b, true_one * true_two),
            (a / b, true_one / true_two),
            (Bounded(np.abs(one), e).sqrt(), np.sqrt(np.maximum(np.abs(one) + (true_one - one), 0.0))),
            (a.monotone(np.exp), np.exp(true_one)),
        ):
            known = np.isfinite(found.value)
            assert (np.abs(found.value - true) <= found.error + 1e-12)[known].all()
