"""Where an error under noise is stated, it covers as often as it says: in 182 of 200 draws at least, at 95 percent.

The noise is drawn by the operating system. 2000 draws at 95 percent are covered 1900 times, with a standard deviation
of 10: fewer than 1820 are eight of them away. A deviation stated at half its size would cover 67 percent of the draws.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from securefed.defenses import chain, gaussian, records
from securefed.statistics import ContingencyTable, Histogram, LinearRegression, MissingValues
from tests.combinations import first_ones
from tests.stats.tables import SEXES, WARDS, sites

NOISE = chain(records(), gaussian(4.0))
LEAST, NORMAL, DRAWS = 182 / 200, 1.96, 2000
COUNTS: dict[str, Any] = {
    "histogram": Histogram({"age": tuple(range(0, 121, 3))}, rows=300, outliers="omit"),
    "table": ContingencyTable({"ward": WARDS, "sex": SEXES}, rows=300, outliers="omit"),
    "missing": MissingValues(columns=("age", "dose", "platelets"), rows=300, outliers="omit"),
}


def simulated(statistic: Any, defense: Any = None) -> Any:
    return statistic.simulate(sites(0, gaps=True), defense)


@pytest.mark.parametrize("name", first_ones(list(COUNTS)))
def test_noise_of_counts_is_as_large_as_it_is_stated(name: str) -> None:
    statistic = COUNTS[name]
    exact = type(statistic)(**{**vars(statistic), **({"least_cell": 1} if "least_cell" in vars(statistic) else {})})
    true, within = np.ravel(simulated(exact).value), []
    while sum(map(len, within)) < DRAWS:
        found = simulated(statistic, NOISE)
        summed = found.noise if name == "missing" else {t: s for t, s in found.noise.items() if t != "count"}
        stated = np.sqrt(sum(np.ravel(sigma) ** 2 for sigma in summed.values()))
        within.append(np.abs(np.ravel(found.value) - true) / (NORMAL * stated))
    drawn = np.concatenate(within)
    assert (drawn <= 1).mean() >= LEAST > (drawn <= 0.5).mean()


@pytest.mark.exhaustive
def test_intervals_of_a_regression_under_noise_cover_its_slope() -> None:
    """Rows and noise are drawn anew each time; the interval counts both."""
    rng, covered, narrow, draws = np.random.default_rng(0), 0, 0, 1200
    model = LinearRegression(bound={"x": 1}, target="y", target_bound=4, rows=400, outliers="omit")
    for _ in range(draws):
        tables = []
        for _ in range(3):
            x = rng.uniform(-1, 1, 300)
            tables.append({"x": x, "y": (1 + 2 * x + rng.normal(0, 0.3, 300)).clip(-4, 4)})
        found = model.simulate(tables, NOISE)
        low, high = found.confidence()[-1]
        middle, half = (low + high) / 2, (high - low) / 4
        covered, narrow = covered + int(low <= 2 <= high), narrow + int(abs(2 - middle) <= half)
    assert covered / draws >= LEAST > narrow / draws
