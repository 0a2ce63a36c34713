"""Tables with one planted fault each, by which `self_check` checks the alerts on the data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np

from securefed._auditing.alerts import TableColumn, TableFacts
from securefed._auditing.alerts import alert as kinds
from securefed._tensors import Array

ROWS: Final = 300


def clean() -> TableFacts:
    """Make a table without fault: normal columns, a category, a code, classes and parties, none of them rare."""
    rng = np.random.default_rng(35)
    place = np.arange(ROWS)
    columns = {f"lab {number}": rng.normal(size=ROWS) for number in range(4)}
    columns |= {"smoker": rng.permutation(place % 2).astype(float), "stage": rng.permutation(place % 4).astype(float)}
    columns["blood"] = rng.permutation(np.array(["A", "B", "AB", "0"])[place % 4])
    made = tuple(TableColumn(name, values) for name, values in columns.items())
    parties = {"north": 120, "south": 100, "east": 80}
    return TableFacts(made, rng.permutation(place % 2), "outcome", parties, "hospital")


def planted_tables() -> Mapping[str, tuple[TableFacts, str, str]]:
    """Return, by what was planted, the table, the kind of the one alert that is right, and the column it must name."""
    values = {column.name: column.values for column in clean().columns}

    def few(count: int) -> Array:
        return (np.arange(ROWS) < count).astype(float)

    heavy = values["lab 1"] * np.where(np.arange(ROWS) == 7, 200.0, 1.0)
    gaps: Any = values["lab 3"].copy()
    gaps[5] = np.nan
    wanted = {
        "a category of one person": ("rare", few(1), kinds.RARE_CATEGORY),
        "a category that all but two have": ("rare", 1 - few(2), kinds.RARE_CATEGORY),
        "a scaled column of a rare category": ("rare", (few(4) - 4 / ROWS) / few(4).std(), kinds.RARE_CATEGORY),
        "a rare category in words": ("blood", np.where(few(3) > 0, "Bombay", values["blood"]), kinds.RARE_CATEGORY),
        "a code that three have": ("stage", np.where(few(3) > 0, 9.0, values["stage"]), kinds.RARE_CATEGORY),
        "a ward of 26 that two have": ("ward", _wards(), kinds.RARE_CATEGORY),
        "a count that is 0 but for four": ("visits", few(4) * (np.arange(ROWS) + 1.5), kinds.RARE_CATEGORY),
        "a row that dominates": ("lab 1", heavy, kinds.DOMINATED),
        "two rows that dominate": ("lab 1", np.where(few(2) > 0, 300.0, values["lab 1"]), kinds.DOMINATED),
        "a constant": ("unit", np.full(ROWS, 3.0), kinds.CONSTANT),
        "a number of the patient": ("patient", np.random.default_rng(1).permutation(ROWS) + 7001, kinds.KEY),
        "names": ("name", np.array([f"patient {number}" for number in range(ROWS)]), kinds.KEY),
        "a gap": ("lab 3", gaps, kinds.MISSING),
        "a copy": ("lab 9", values["lab 2"].copy(), kinds.DUPLICATE),
    }
    tables = {name: (_with(column, cells), kind, column) for name, (column, cells, kind) in wanted.items()}
    facts = clean()
    total = TableColumn("total", values["lab 0"] + values["lab 1"] + 3.0 * few(1))
    broken = replace(facts, columns=(*facts.columns, total))
    tables["a total that one row breaks"] = (broken, kinds.COMBINATION, "lab 0 with lab 1 with total")
    copy = TableColumn("lab 9", 10.0 * values["lab 2"] + 1.0 + few(2))
    tables["a copy in other units that two rows break"] = (
        replace(facts, columns=(*facts.columns, copy)), kinds.COMBINATION, "lab 2 with lab 9",
    )  # fmt: skip
    noise = 0.02 * np.random.default_rng(2).normal(size=ROWS)
    visit = TableColumn("lab 9", values["lab 2"] + noise + 2.0 * few(1))
    tables["a second visit that is far off in one row"] = (
        replace(facts, columns=(*facts.columns, visit)), kinds.COMBINATION, "lab 2 with lab 9",
    )  # fmt: skip
    tables["a patient who stands out in many columns"] = (_outlier(facts), kinds.DOMINATED, "principal component 1")
    wide = TableColumn("smoker ever", np.maximum(values["smoker"], few(9) * (np.arange(ROWS) > 5)))
    tables["two categories that few people tell apart"] = (
        replace(facts, columns=(*facts.columns, wide)), kinds.COMBINATION, "smoker with smoker ever",
    )  # fmt: skip
    unscaled = "standard deviations of columns differ by a factor of 1000"
    tables["columns that are not scaled"] = replace(facts, not_scaled=unscaled), kinds.NOT_SCALED, ""
    ward = np.where(np.arange(ROWS) == 11, 3, np.arange(ROWS) % 3)
    levels = tuple(TableColumn(f"ward_{name}", (ward == level).astype(float)) for level, name in enumerate("abc"))
    tables["a level of one person that has no column"] = (
        replace(facts, columns=(*facts.columns, *levels)), kinds.COMBINATION, "ward_a with ward_b with ward_c",
    )  # fmt: skip
    twice = replace(facts, columns=tuple(TableColumn(one.name, one.values[[*range(ROWS), 5]]) for one in facts.columns))
    tables["a patient who comes twice"] = replace(twice, classes=None), kinds.REPEATED, ""
    tables["a hospital of four"] = (replace(facts, parties={**facts.parties, "west": 4}), kinds.SMALL_PARTY, "west")
    for name, count, kind in (("a class of three", 3, kinds.SMALL_CLASS), ("98 to 2", 6, kinds.MINORITY)):
        tables[name] = replace(facts, classes=few(count).astype(int)), kind, "outcome"
    tables["a table of three rows"] = _first(facts, 3), kinds.FEW_ROWS, ""
    return tables


def _with(name: str, cells: Array) -> TableFacts:
    """Return the clean table with one column replaced or added."""
    facts = clean()
    others = tuple(column for column in facts.columns if column.name != name)
    return replace(facts, columns=(*others, TableColumn(name, cells)))


def _outlier(facts: TableFacts) -> TableFacts:
    """Add columns in each of which one row has 8 standard deviations, and of which no other row has much in common."""
    rng, first = np.random.default_rng(3), np.arange(ROWS) == 7
    more = [TableColumn(f"gene {number}", rng.normal(size=ROWS) + 8.0 * first) for number in range(12)]
    return replace(facts, columns=(*facts.columns, *more))


def _wards() -> Array:
    """Number wards from 1 on; 25 of them have eleven or twelve rows, and the last has two."""
    return np.where(np.arange(ROWS) < 2, 26.0, np.random.default_rng(4).permutation(np.arange(ROWS) % 25) + 1.0)


def _first(facts: TableFacts, rows: int) -> TableFacts:
    columns = tuple(TableColumn(column.name, column.values[:rows]) for column in facts.columns)
    return replace(facts, columns=columns, classes=None, parties={})
