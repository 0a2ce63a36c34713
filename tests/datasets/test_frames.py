"""Data frames are read by the tables' reader: into data sets, rows of statistics, labels and targets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from securefed.datasets import Dataset, load
from securefed.defenses import secure_aggregation
from securefed.errors import DataError
from securefed.statistics import ContingencyTable, Histogram, LinearRegression, Mean, Variance
from tests.datasets.frames import FRAMES, Columns

BIG = 2**53
PEOPLE: Columns = [
    ("age", [61.5, 48.0, 50.0]), ("ill", [True, False, True]), ("visits", [1, 2, 2]), ("sex", ["f", "m", "f"]),
    ("site", ["north", " north", "south"]),
]  # fmt: skip
NUMBERS = PEOPLE[:3]
ROWS = [[61.5, 1, 1], [48, 0, 2], [50, 1, 2]]
Frame = Callable[[Columns], Any]
frames = pytest.mark.parametrize("frame", FRAMES.values(), ids=FRAMES)


@frames
def test_floats_integers_and_truth_values_are_real_numbers(frame: Frame) -> None:
    np.testing.assert_array_equal(Dataset(frame(NUMBERS)).x, ROWS)
    found = Mean(features=3, bound=100.0, rows=10).simulate([frame(NUMBERS)] * 3, secure_aggregation())
    np.testing.assert_allclose(found.value, np.mean(ROWS, axis=0), atol=found.error.max())


@frames
def test_a_column_of_text_is_refused_by_its_name_and_type(frame: Frame) -> None:
    for ask in (Dataset, Mean(features=4, bound=100.0).summand, Histogram((0.0, 50.0, 100.0), features=4).summand):
        with pytest.raises(DataError, match=r"'sex' \(\S.*; 'f'; 3 of 3 rows\).*give columns of numbers alone"):
            ask(frame(PEOPLE[:4]))
        ask(frame([*NUMBERS, ("female", [1, 0, 1])]))  # as the refusal asks for


@frames
def test_a_frame_has_owners_and_labels_as_a_file_has(frame: Frame) -> None:
    source = load(frame(PEOPLE), owner="site", label="sex")
    np.testing.assert_array_equal(source.data.x, ROWS)
    assert source.groups["site"].tolist() == ["north", "north", "south"]
    assert source.data.labels().tolist() == [0, 1, 0] and source.class_names == ("f", "m")
    assert "3 rows; 2 owners by 'site'" in source.summary and "differed in blanks alone" in source.summary
    assert source.reading is not None
    assert [column.kind for column in source.reading.table.columns] == ["real", "boolean", "integer", "text", "text"]


@frames
def test_large_integers_stay_exact_or_are_refused(frame: Frame) -> None:
    labels = ("y", [BIG + 1, BIG, BIG + 1])
    assert load(frame([NUMBERS[0], labels])).data.labels().tolist() == [1, 0, 1]
    assert len(set(load(frame([NUMBERS[0], labels]), owner="y").groups["y"].tolist())) == 2
    for beside in ([BIG + 1, 1, 1], [BIG + 1, None, 1]):
        with pytest.raises(DataError, match=rf"'dose' holds {BIG + 1}, which float64 does not tell"):
            Mean(features=2, bound=2.0**60).summand(frame([NUMBERS[0], ("dose", beside)]))


@frames
def test_keys_and_row_numbers_are_no_features(frame: Frame) -> None:
    key, numbers = ("patient_id", [7, 3, 9]), ("Unnamed: 0", [0, 1, 2])
    source = load(frame([numbers, key, *NUMBERS]))
    assert source.features == ("age", "ill", "visits") and set(source.reading.left_out) == {"Unnamed: 0", "patient_id"}
    for column, words in ((key, "'patient_id' is a key"), (numbers, "'Unnamed: 0' has no name of its own")):
        with pytest.raises(DataError, match=words):
            Dataset(frame([column, *NUMBERS]))
    with pytest.raises(DataError, match="no name of its own"):
        Mean(features=4, bound=100.0).summand(frame([numbers, *NUMBERS]))


@frames
def test_a_missing_value_is_left_out_or_refused(frame: Frame) -> None:
    gap = frame([("age", [61.5, None, 50.0]), ("visits", [1, 2, None])])
    with pytest.raises(DataError, match="2 of 3 rows hold NaN"):
        Dataset(gap)
    with pytest.raises(DataError, match=r"'age' .*an empty cell; 1 of 3 rows"):
        load(gap)
    found = Variance(features=2, bound=100.0, outliers="omit").simulate([gap, frame(NUMBERS[::2])])
    assert found.count == 4


@frames
def test_labels_and_targets_are_columns_of_frames(frame: Frame) -> None:
    assert Dataset(np.eye(3), frame([("y", [1, 0, 2])])).labels().tolist() == [1, 0, 2]
    with pytest.raises(DataError, match="y must be one column; got 2: y, z"):
        Dataset(np.eye(3), frame([("y", [1, 0, 2]), ("z", [1, 0, 2])]))
    x, y = frame([("x", [1.0, 2.0, 3.0])]), frame([("y", [2.0, 4.0, 6.0])])
    np.testing.assert_allclose(LinearRegression(1, 4.0, 8.0).simulate([(x, y)]).value, [2.0])


@pytest.mark.parametrize("frame", [made for name, made in FRAMES.items() if name != "polars"])
def test_two_columns_of_one_name_are_refused(frame: Frame) -> None:
    twice = frame([("age", [1.0, 2.0]), ("age", [3.0, 4.0])])
    for ask in (load, Dataset, Mean(features=2, bound=9.0).summand):
        with pytest.raises(DataError, match=r"2 columns named 'age' \(columns 1, 2\)"):
            ask(twice)


def test_an_array_of_objects_is_read_column_by_column() -> None:
    np.testing.assert_array_equal(Dataset(np.array([[1.5, True], [2.0, False]], object)).x, [[1.5, 1], [2, 0]])
    with pytest.raises(DataError, match=r"'0' \(object; 'f'; 2 of 2 rows\)"):
        ContingencyTable((2, 2)).summand(np.array([["f", 1], ["m", 0]], object))


def test_integers_that_float64_does_not_hold_are_refused_in_arrays_too() -> None:
    for ask in (Dataset, Mean(features=1, bound=2.0**60).summand):
        with pytest.raises(DataError, match=f"it holds {BIG + 1}"):
            ask(np.array([[BIG + 1], [1]]))
        ask(np.array([[BIG], [1]]))


def test_codes_are_no_labels_of_a_data_set() -> None:
    with pytest.raises(DataError, match=r"73211009.*numpy.unique\(y, return_inverse=True\)\[1\]"):
        Dataset(np.eye(2), np.array([73211009, 38341003]))
    assert Dataset(np.eye(2), np.unique([73211009, 38341003], return_inverse=True)[1]).classes == 2
    with pytest.raises(DataError, match=r"shape \(2, 1\).*y\[:, 0\]"):
        Dataset(np.eye(2), np.array([[1], [0]]))
    assert Dataset(np.eye(2), np.array([[1], [0]])[:, 0]).labels().tolist() == [1, 0]
