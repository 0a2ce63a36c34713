"""Each statistic of several sites is that of their pooled rows, as other packages compute it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from securefed.defenses import secure_aggregation
from securefed.statistics._settings import STATISTICS
from tests.combinations import each_value
from tests.stats.battery import ENTRIES, OF, Entry
from tests.stats.tables import SEEDS, pooled, sites

STEPS = {"ResidualProducts", "NewtonStep", "EventCounts", "CoxStep"}
"""Statistics that a model asks for on its way; their numbers stand in the model's."""


def read(found: Any, name: str) -> Any:
    if name in ("value",) or name.endswith("_"):
        return getattr(found, name)
    return found.detail[name]


def check(entry: Entry, found: Any, expected: Any) -> None:
    for name, numbers in expected.items():
        got, value = np.asarray(read(found, name)), np.asarray(numbers, np.float64)
        assert got.shape == value.shape, name
        if name == "value":
            known = np.isfinite(value)
            room = np.asarray(found.error) + (0 if entry.within else 1e-8 * (1 + np.abs(value))) + 1e-9
            assert (np.isnan(got) == ~known).all()
            assert (np.abs(got - value) <= room)[known].all(), (name, got, value, room)
            assert entry.within or (found.error <= entry.most_error * (1 + np.abs(value)))[known].all()
        else:
            np.testing.assert_allclose(got, value, rtol=1e-7, atol=1e-8, err_msg=name)


@pytest.mark.parametrize(("name", "seed"), each_value(ENTRIES, SEEDS))
def test_a_statistic_is_that_of_the_pooled_rows(name: str, seed: int) -> None:
    entry = ENTRIES[name]
    tables = sites(seed, gaps=entry.gaps)
    check(entry, entry.statistic.simulate(tables, secure_aggregation()), entry.expected(pooled(tables)))


def test_every_statistic_has_an_entry_in_the_battery() -> None:
    assert ENTRIES
    assert set(STATISTICS) - STEPS - {"Together"} <= set(OF.values())


def test_a_statistic_of_other_rows_fails_the_battery() -> None:
    """The positive control: one row less."""
    entry = ENTRIES["mean by column"]
    tables = sites(0, gaps=True)
    fewer = pooled(tables).iloc[1:]
    with pytest.raises(AssertionError):
        check(entry, entry.statistic.simulate(tables, secure_aggregation()), entry.expected(fewer))
