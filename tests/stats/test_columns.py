"""Named columns: read from any table, with bounds of their own, agreed levels, and labelled results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from securefed import chain
from securefed.datasets import read_table
from securefed.defenses import gaussian, records, secure_aggregation
from securefed.errors import ConfigError, DataError
from securefed.statistics import ContingencyTable, Covariance, GroupBy, Histogram, Mean, Together, Variance
from tests.datasets.frames import ArrowLike, PandasLike, PolarsLike

VALUES: dict[str, list[Any]] = {
    "ward": ["icu", "surgery", "icu", "icu"], "age": [61.0, 48.0, 70.0, 33.0], "platelets": [200.0, 310.0, 150.0, 90.0]
}  # fmt: skip
AGES = Mean(bound={"platelets": (0, 1500), "age": (0, 120)}, rows=10)


def tables(tmp_path: Path) -> dict[str, Any]:
    """The same table in each form that is read."""
    columns = list(VALUES.items())
    pd.DataFrame(VALUES).to_csv(tmp_path / "site.csv", index=False)
    return {
        "mapping": VALUES, "file": read_table(tmp_path / "site.csv"), "pandas": pd.DataFrame(VALUES),
        "pandas-like": PandasLike(columns), "polars": PolarsLike(columns), "arrow": ArrowLike(columns),
    }  # fmt: skip


def test_columns_are_read_by_name_from_every_kind_of_table(tmp_path: Path) -> None:
    for table in tables(tmp_path).values():
        found = AGES.simulate([table] * 3, secure_aggregation())
        np.testing.assert_allclose(found.value, [187.5, 53.0], atol=1e-9)
        assert found.labels == (("platelets", "age"),)
        counts = ContingencyTable({"ward": ("surgery", "icu")}, rows=10, least_cell=1).simulate([table] * 3)
        np.testing.assert_array_equal(counts.value, [3, 9])


def test_each_column_pays_for_its_own_bound_alone() -> None:
    """Error and noise of ages are the same beside platelets as alone; with one bound for both they are 12 times."""
    rows = [{"age": np.full(9, 50.0), "platelets": np.full(9, 200.0)}] * 3
    both = Mean(bound={"age": 120, "platelets": 1500}, rows=9, outliers="omit")
    one = Mean(bound=1500.0, columns=("age", "platelets"), rows=9, outliers="omit")
    alone = Mean(bound={"age": 120}, rows=9, outliers="omit")
    error = [each.simulate(rows, secure_aggregation()).error[0] for each in (both, one, alone)]
    assert error[0] <= 2 * error[2] < 0.5 * error[1]
    noise = chain(records(), gaussian(1.0), secure_aggregation())
    own, of_one = (np.ravel(each.simulate(rows, noise).noise["sum"]) for each in (both, one))
    assert own[0] == pytest.approx(own[1] * 128 / 2048)
    assert own[0] < 0.2 * of_one[0]


def test_a_level_that_was_not_agreed_is_named_with_its_column() -> None:
    table = ContingencyTable({"ward": ("icu", "surgery")}, rows=10, least_cell=1)
    with pytest.raises(DataError, match=r"'ward' holds 'maternity' in 2 of 3 rows.*'icu', 'surgery'"):
        table.summand({"ward": ["icu", "maternity", "maternity"]})
    omitting = ContingencyTable({"ward": ("icu", "surgery")}, rows=10, least_cell=1, outliers="omit")
    np.testing.assert_array_equal(omitting.simulate([{"ward": ["icu", "maternity", None]}]).value, [1, 0])
    with pytest.raises(DataError, match="'ward' holds 'maternity'"):
        GroupBy(Mean(bound={"age": 120}), "ward", ("icu", "surgery")).summand({"ward": ["maternity"], "age": [3.0]})
    with pytest.raises(DataError, match="not finite"):  # a missing level is no level
        table.summand({"ward": ["icu", None]})


@pytest.mark.parametrize(
    ("levels", "values"),
    [((0, 1), [1, 0, 1]), ((0, 1), [1.0, 0.0, 1.0]), ((False, True), [True, False, True]), (("0", "1"), [1, 0, 1])],
)
def test_levels_are_numbers_or_texts(levels: Any, values: Any) -> None:
    found = ContingencyTable({"a": levels}, rows=9, least_cell=1).simulate([{"a": values}])
    np.testing.assert_array_equal(found.value, [1, 2])


def test_an_entry_is_left_out_of_its_own_column_alone() -> None:
    rows = [{"age": [50.0, 60.0, np.nan], "platelets": [np.nan, 200.0, 1e9]}] * 3
    found = Mean(bound={"age": 120, "platelets": 1500}, rows=9, outliers="omit entries").simulate(rows)
    np.testing.assert_allclose(found.value, [55.0, 200.0])
    np.testing.assert_array_equal(found.detail["counts"], [6, 3])
    np.testing.assert_array_equal(found.detail["missing"], [3, 6])
    assert found.count == 9
    by_row = Mean(bound={"age": 120, "platelets": 1500}, rows=9, outliers="omit").simulate(rows)
    np.testing.assert_allclose(by_row.value, [60.0, 200.0])  # the control
    with pytest.raises(ConfigError, match="whole rows"):
        Covariance(outliers="omit entries")


def test_results_are_labelled_frames() -> None:
    sites = [VALUES] * 3
    found = Together(
        mean=AGES,
        variance=Variance(bound={"age": 120}, rows=10),
        ages=Histogram({"age": (0, 50, 120)}, rows=10, least_cell=1),
        wards=ContingencyTable({"ward": ("icu", "surgery")}, rows=10, least_cell=1),
        by=GroupBy(Mean(bound={"age": 120}, rows=10), "ward", ("icu", "surgery"), least_cell=1),
    ).simulate(sites)
    mean = found["mean"].to_frame()
    assert mean.loc["age", "value"] == pytest.approx(53.0)
    assert list(found["wards"].to_frame().index) == ["icu", "surgery"]
    assert found["by"].to_frame().loc["surgery", "age"] == pytest.approx(48.0)
    assert found["ages"].to_frame().loc["age"].to_dict() == {"[0, 50)": 6.0, "[50, 120]": 6.0}
    table = found.to_frame()
    assert table.loc["age", "mean"] == pytest.approx(53.0)
    assert np.isnan(table.loc["platelets", "variance"])
    assert table.loc["age", "ages [0, 50)"] == 6
    cells = ContingencyTable((2, 2, 2), rows=9, least_cell=1).simulate([np.zeros((4, 3))]).to_frame()
    assert cells.loc[("0", "0", "0"), "value"] == 4
    assert Mean().simulate([np.ones((3, 1))]).to_frame().loc["column 0", "value"] == 1


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: AGES.summand({"age": [1.0]}), DataError, "has no column 'platelets'; it has age"),
        (lambda: AGES.summand({"age": ["x"], "platelets": [1.0]}), DataError, "'age'.*declared by its levels"),
        (lambda: AGES.summand({"age": [130.0], "platelets": [1.0]}), DataError, "age from 0 to 120"),
        (lambda: Mean(bound={"age": (120, 0)}), ConfigError, "lowest value comes first"),
        (lambda: Mean(bound={"age": 0}), ConfigError, "bound of 'age' must be a positive"),
        (lambda: Mean(bound={"age": 120}, columns=("dose",)), ConfigError, "name the same ones"),
        (lambda: Mean(bound={"age": (0, 120)}, shift=3.0), ConfigError, "leave shift out"),
        (lambda: Mean(bound=(1.0, 2.0), features=3), ConfigError, "one number or 3"),
        (lambda: Mean(features=3, columns=("a", "b")), ConfigError, "2 names of columns"),
        (lambda: Mean(columns=("a", "a")), ConfigError, "different names"),
        (lambda: Mean(columns="age"), ConfigError, "a list of names"),
        (lambda: ContingencyTable({"ward": ("icu", "icu")}), ConfigError, "different texts or numbers"),
        (lambda: GroupBy(Mean(), "ward", ("icu",)), ConfigError, "at least two different"),
        (lambda: Histogram({"a": (0, 1), "b": (0, 1, 2)}), ConfigError, "as many bins"),
    ],
)
def test_misuse_is_named(call: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()
