"""People are read from exact second moments and gradients of all clients together, whatever names their columns."""

from __future__ import annotations

import re

import numpy as np

from securefed import Dataset, Public, audit
from securefed._auditing.engine.statistics import EXPOSED
from securefed._auditing.implied.column_sums import is_centred
from securefed._auditing.implied.pooled_people import people_in_moments
from securefed._auditing.implied.truth import Truth


def _pooled(columns: np.ndarray) -> list[str]:
    """Name the people that the exact second moments of a table give away, with columns lab0, lab1, ... before it."""
    rng = np.random.default_rng(6)
    labs = rng.normal(size=(len(columns), 5))
    labs -= labs.mean(axis=0)
    table = np.column_stack([labs, columns])
    data = [Dataset(part) for part in np.array_split(table, 3)]
    truth = Truth(data, None, table[:0], Public.of(data), 0)
    found = people_in_moments(table.T @ table, table, truth)
    return [] if found is None or found.leakage < 0.9 else [found.words]


def test_published_scaling_hides_no_quantity_that_few_people_have() -> None:
    dose = np.zeros(300)
    dose[[3, 140, 222]] = 2.5, 1.25, 4.0
    assert _pooled(dose) == ["the mean of 3 people (column 5 is not 0)"]
    assert _pooled((dose - dose.mean()) / dose.std()) == ["the mean of 3 people (column 5 is not at its usual value)"]
    assert _pooled(-dose) == ["the mean of 3 people (column 5 is not 0)"]
    dose[222] = -4.0  # a difference of people is no mean of them
    assert not _pooled(dose)


def test_columns_that_add_up_to_one_in_every_row_give_the_sums_that_an_omitted_level_needs() -> None:
    ward, stage = np.eye(3)[np.arange(300) % 3], np.eye(3)[np.arange(300) // 3 % 3]
    stage[99] = 0
    uncentred = np.random.default_rng(7).normal(3, 1, size=(300, 1))
    who = "none of column 10, column 11 and column 9"
    assert _pooled(np.column_stack([uncentred, ward, stage])) == [f"the row of one person ({who})"]
    who = "none of column 6, column 7 and column 8"  # the sum of the uncentred column is not known
    assert _pooled(np.column_stack([uncentred, stage])) == [f"the row of one person in 5 of 6 other columns ({who})"]


def test_a_row_that_dominates_a_column_and_one_that_breaks_a_copy_are_read() -> None:
    rng = np.random.default_rng(8)
    heavy = rng.normal(size=300)
    heavy[7] = 400.0
    assert _pooled(heavy) == ["the row of one person (the one who dominates column 5)"]
    first = rng.normal(size=300)
    second = first.copy()
    second[9] += 3.0
    assert _pooled(np.column_stack([first, second])) == ["the row of one person (column 5 is not as column 6 says)"]
    heavy[200] = 390.0
    assert _pooled(heavy - heavy.mean()) == ["the mean of 2 people (the 2 who dominate column 5)"]
    assert not _pooled(rng.normal(size=(300, 2)))


def test_a_row_that_breaks_a_total_is_read() -> None:
    rng = np.random.default_rng(8)
    parts = rng.normal(size=(300, 2))
    total = parts.sum(axis=1)
    assert not _pooled(np.column_stack([parts, total]))
    total[9] += 3.0
    who = "a weighted sum of column 5, column 6 and column 7 is not the usual one"
    assert _pooled(np.column_stack([parts, total])) == [f"the row of one person ({who})"]


def test_a_row_that_is_far_from_what_a_second_visit_or_a_ratio_says_is_read() -> None:
    rng = np.random.default_rng(8)
    first = rng.normal(78, 15, 300)
    second = first + rng.normal(0, 0.1, 300)
    assert not _pooled(_scaled(first, second))
    second[9] -= 31.0
    (said,) = _pooled(_scaled(first, second))
    assert re.fullmatch(r"the row of one person \(column [56] is far from what column [65] says\)", said)
    height = rng.normal(1.7, 0.02, 300)
    index = first / height**2
    index[9] += 30.0
    table = _scaled(*rng.normal(size=(5, 300)), first, height, index)
    truth = Truth([Dataset(table)], None, table[:0], Public.of([Dataset(table)]), 0)
    found = people_in_moments(table.T @ table, table, truth)
    assert found is not None and found.leakage > max(0.6, found.chance + 0.2)
    assert found.words.startswith("the row of one person (column ") and " is far from what " in found.words


def test_a_person_who_dominates_a_principal_component_is_read_and_five_people_are_not() -> None:
    """The profile of a patient who stands out in ten columns, and in none alone, is an eigenvector of the moments."""
    rng = np.random.default_rng(3)
    for people, found in ((1, True), (5, False)):
        table = rng.normal(size=(300, 4)) @ rng.normal(size=(4, 40)) + rng.normal(size=(300, 40))
        table[:people, 5:15] += 12.0
        table = _scaled(*table.T)
        truth = Truth([Dataset(table)], None, table[:0], Public.of([Dataset(table)]), 0)
        read = people_in_moments(table.T @ table, table, truth)
        assert (read is not None and read.leakage > max(0.3, read.chance + 0.2)) == found
        if found:
            assert re.fullmatch(r"the row of one person \(the one who dominates principal component \d\)", read.words)


def _scaled(*columns: np.ndarray) -> np.ndarray:
    table = np.column_stack(columns)
    return (table - table.mean(axis=0)) / table.std(axis=0)


def test_means_that_a_paper_prints_are_enough_to_read_who_dominates_a_column_as_it_stands() -> None:
    """The server computes the row from second moments and rounded means alone; without means it is far off."""
    rng = np.random.default_rng(3)
    columns = rng.normal((130, 60, 5, 80, 90), (18, 20, 1, 25, 20), size=(300, 5))
    columns[[30, 222], 4] = 2900, 2300
    columns[30, :4], columns[222, :4] = (171, 21, 7.4, 139), (180, 30, 6.9, 121)
    truth = Truth([Dataset(columns)], None, columns[:0], Public.of([Dataset(columns)]), 0)
    found = people_in_moments(columns.T @ columns, columns, truth)
    assert found is not None and found.leakage > max(0.8, found.chance + 0.2)
    assert found.words == "the mean of 2 people (the 2 who dominate column 4, by means of columns to 3 digits)"


def test_a_count_that_is_zero_but_for_few_is_not_taken_as_centred() -> None:
    rng = np.random.default_rng(10)
    count = np.zeros(3000)
    count[[5, 900, 1700, 2100, 2500, 2998]] = 40, 1, 1, 2, 1, 1
    wide = rng.normal(200, 1500, 3000)
    rows = np.column_stack([count, wide - wide.mean() + 20, rng.normal(size=(3000, 1))])
    assert is_centred(rows).tolist() == [False, False, True]
    labs = rng.normal((130, 60, 5), (18, 20, 1), size=(3000, 3))
    table = np.column_stack([labs, count])
    truth = Truth([Dataset(table)], None, table[:0], Public.of([Dataset(table)]), 0)
    found = people_in_moments(table.T @ table, table, truth)
    assert found is not None and found.leakage > 0.9 and "the one who dominates column 3" in found.words


def test_the_row_of_the_one_person_of_a_class_is_read_where_columns_are_scaled_over_the_clients_rows(tmp_path) -> None:
    """Sites scale by the rows that they train on, so that their sum is 0 and a gradient holds this row alone."""
    rng = np.random.default_rng(9)
    label = rng.integers(0, 2, 300)
    label[150] = 2
    lines = [",".join([*(f"lab{place}" for place in range(6)), "label"])]
    lines += [",".join([*map(str, row), str(one)]) for row, one in zip(rng.normal(size=(300, 6)), label, strict=True)]
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    made = audit(
        ["optimization/dsgd"], ["secure_aggregation"], ["gradient_inversion/naive"], data=str(tmp_path / "t.csv"),
        seeds=2, workers=1, rounds=1, standardise=True, rows_per_client=40, clients=6,
    )  # fmt: skip
    (found,) = [
        one
        for one in made.cells
        if one.attack.endswith("class_sums") and (one.secret, one.view) == ("people", "sum only")
    ]
    assert found.verdict.word == EXPOSED and found.leakage.low > 0.999 and "(class 2)" in found.read.part


def test_a_score_of_rare_items_that_one_row_breaks_is_read() -> None:
    """Each item has few rows, and is constant in most small sets of rows."""
    for seed in range(6):
        rng = np.random.default_rng(seed)
        items = np.zeros((240, 6))
        for place in range(6):
            items[rng.permutation(240)[: 6 + place], place] = 1
        score = items @ np.arange(1.0, 7)
        score[61] += 3
        table = np.column_stack([rng.normal(size=(240, 3)), items, score])
        table = _scaled(*table.T)
        truth = Truth([Dataset(table)], None, table[:0], Public.of([Dataset(table)]), 0)
        found = people_in_moments(table.T @ table, table, truth)
        assert found is not None and found.leakage > 0.999 and "a weighted sum of " in found.words
