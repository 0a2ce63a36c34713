"""A user's own rows: .npz, .csv and .parquet files with labels and a column that says whose row it is."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from securefed.datasets import load
from securefed.datasets._row_tables import scaling_warning, standardised
from securefed.errors import ConfigError, DataError

TABLE = "age,dose,hospital,outcome\n30,0.5,north,well\n41,1.5,south,ill\n52,2.5,north,well\n"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "rows.csv"
    path.write_text(TABLE)
    return path


def test_a_table_gives_features_numbered_labels_and_owners(table: Path) -> None:
    source = load(table, owner="hospital", label="outcome")
    assert source.features == ("age", "dose")
    np.testing.assert_array_equal(source.data.x, [[30, 0.5], [41, 1.5], [52, 2.5]])
    np.testing.assert_array_equal(source.data.labels(), [1, 0, 1])  # ill, well
    assert source.groups["hospital"].tolist() == ["north", "south", "north"]
    assert source.feature_bound == 52


def test_columns_that_are_no_numbers_or_not_there_are_refused_by_name(table: Path) -> None:
    with pytest.raises(DataError, match=r"'hospital' \('north'; 3 of 3 rows\).*--owner-column"):
        load(table, label="outcome")
    with pytest.raises(DataError, match=r"no column 'clinic'.*age, dose, hospital, outcome"):
        load(table, owner="clinic", label="outcome")
    with pytest.raises(ConfigError, match="has its own labels"):
        load("digits", label="y")
    with pytest.raises(DataError, match="no column 'hospital' that says whose row it is"):
        load("digits", owner="hospital")


def test_one_error_names_all_columns_without_numbers_and_what_to_do(table: Path) -> None:
    table.write_text("id,age,dose,y\nA1,30,0.5,1\nA2,,1.5,0\nA3,52,NA,1\n")
    with pytest.raises(DataError) as refused:
        load(table)
    named = "'id' ('A1'; 3 of 3 rows), 'age' (an empty cell; 1 of 3 rows), 'dose' ('NA'; 1 of 3 rows)"
    assert named in str(refused.value) and "leave out" in str(refused.value)


def test_semicolons_separate_fields_where_the_header_has_no_comma(table: Path) -> None:
    table.write_text(TABLE.replace(",", ";"))
    assert load(table, owner="hospital", label="outcome").features == ("age", "dose")
    table.write_text(TABLE.replace("dose", "dose;mg"))  # a name of a table with commas
    assert load(table, owner="hospital", label="outcome").features == ("age", "dose;mg")


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (np.array([0, 2, 1]), [0, 2, 1]),
        (np.array([-1, 1, -1]), [0, 1, 0]),
        (np.array(["b", "a", "b"]), [1, 0, 1]),
        (np.array([0.5, 1.0, 2.0]), [0.5, 1.0, 2.0]),
    ],
)
def test_labels_of_an_archive_become_classes_or_responses(tmp_path: Path, written, read) -> None:
    np.savez(tmp_path / "rows.npz", x=np.eye(3), y=written, site=np.array([7, 7, 8]))
    source = load(tmp_path / "rows.npz", owner="site")
    np.testing.assert_array_equal(source.data.y, read)
    assert source.groups["site"].tolist() == [7, 7, 8]


@pytest.mark.parametrize("column", ["hospital", "outcome"])
@pytest.mark.parametrize("labels", ["texts", "numbers"])
def test_rows_without_label_or_owner_are_refused_and_become_no_class_or_client(table: Path, column, labels) -> None:
    text = TABLE if labels == "texts" else TABLE.replace("well", "1").replace("ill", "0")
    cell = "south" if column == "hospital" else text.splitlines()[2].rsplit(",", 1)[1]
    row = text.splitlines()[2]
    table.write_text(text.replace(row, row.replace(cell, " " if labels == "texts" else "")))
    with pytest.raises(DataError, match=rf"1 of 3 rows have no value in column '{column}' \(first: row 1\)"):
        load(table, owner="hospital", label="outcome")
    table.write_text(text)  # control
    assert load(table, owner="hospital", label="outcome").data.rows == 3


def test_a_quantity_as_label_is_said_to_be_many_classes(table: Path, caplog: pytest.LogCaptureFixture) -> None:
    table.write_text("dose,age\n" + "".join(f"{row % 7},{row % 60}\n" for row in range(240)))
    assert load(table, label="age").data.classes == 60
    assert "'age' has 60 values over 240 rows, and each counts as a class" in caplog.text
    caplog.clear()
    table.write_text(
        "dose,age\n" + "".join(f"{row % 7},{row % 60 // 6}\n" for row in range(240))
    )  # control: ages by decade
    assert load(table, label="age").data.classes == 10 and not caplog.text


def test_infinite_labels_are_refused_and_become_no_class(table: Path) -> None:
    table.write_text(TABLE.replace("well", "1").replace("ill", "inf"))
    with pytest.raises(DataError, match="responses must be finite"):
        load(table, owner="hospital", label="outcome")


def test_a_parquet_file_without_the_package_says_what_to_install(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DataError, match="pip install pyarrow"):
        load(tmp_path / "rows.parquet")


def test_standardising_scales_columns_and_ends_the_warning(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "rows.npz", x=rng.normal(size=(50, 2)) * [1.0, 1e4], y=np.arange(50) % 2)
    source = load(tmp_path / "rows.npz")
    assert "not scaled" in scaling_warning(source.data)
    scaled = standardised(source)
    np.testing.assert_allclose(scaled.data.x.std(axis=0), 1)
    assert scaled.feature_bound == np.abs(scaled.data.x).max()
    assert scaling_warning(scaled.data) == ""
    assert scaling_warning(load("digits").data) == ""
