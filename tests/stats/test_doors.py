"""Through each door a statistic is that of the pooled rows, and ten statistics take as many exchanges as one."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from securefed.defenses import secure_aggregation
from securefed.flower import SecureQueries
from tests.stats.battery import ENTRIES
from tests.stats.doors import DOORS, flower_grid
from tests.stats.tables import SEEDS, pooled, sites
from tests.stats.test_pooled import check
from tests.stats.test_together import TEN

QUICK = {"mean by column", "table", "quantiles", "mean by ward", "least squares, HC3", "logistic", "cox", "welch"}
"""Statistics that `make test` takes through every door, one of each kind of settings and each kind of model."""


def combinations() -> list[object]:
    """All statistics, doors and tables.

    Of most statistics `make test` has one door and one table, in turn, and `make test-all` every door and one table.
    """
    doors, made = list(DOORS), []
    for place, name in enumerate(ENTRIES):
        for door, seed in product(doors, SEEDS):
            turn = door == doors[place % len(doors)] and seed == place % len(SEEDS)
            own = seed == (place + doors.index(door)) % len(SEEDS)
            quick = turn or (name in QUICK and own)
            marks = [] if quick else [pytest.mark.exhaustive] if own else [pytest.mark.exhaustive, pytest.mark.nightly]
            made.append(pytest.param(name, door, seed, marks=marks))
    return made


@pytest.mark.parametrize(("name", "door", "seed"), combinations())
def test_a_statistic_is_that_of_the_pooled_rows_through_each_door(
    name: str, door: str, seed: int, tmp_path: Path
) -> None:
    entry = ENTRIES[name]
    tables = sites(seed, gaps=entry.gaps)
    ask = DOORS[door](tables, tmp_path)
    found = entry.statistic.fit(ask) if hasattr(entry.statistic, "fit") else ask(entry.statistic)
    check(entry, found, entry.expected(pooled(tables)))


def test_ten_statistics_over_flower_take_as_many_exchanges_as_one() -> None:
    tables = sites(0, gaps=True)
    secure = SecureQueries(flower_grid(tables), secure_aggregation(), poll=0.001, patience=0.05)
    one, ten = secure.ask(ENTRIES["mean by column"].statistic), secure.ask(TEN)
    assert len(ten) == 10 and one.count > 0
    assert secure.history[0].exchanges == secure.history[1].exchanges > 0
