"""Errors on rows, labels and partitions: each names what was given, what is allowed and what to write."""

from pathlib import Path

import numpy as np
import pytest

from securefed import Dataset
from securefed.datasets import load, partition, partitioned
from securefed.datasets._loaders import digits
from securefed.errors import ConfigError, DataError, SecureFedError

X = np.arange(12.0).reshape(6, 2)


@pytest.mark.parametrize(
    ("x", "says"),
    [
        (None, r"got None. Write Dataset\(x\)"),
        ([[1, 2], [3]], "rows of different lengths.*same number of features"),
        (X[0], r"got shape \(2,\). Write x\[None, :\]"),
        (np.ones((2, 3, 4)), r"got shape \(2, 3, 4\). Write one Dataset for each client"),
        (X * np.nan, "6 of 6 rows hold NaN.*drop these rows"),
    ],
)
def test_rows_of_another_form_are_refused_with_a_remedy(x, says):
    with pytest.raises(DataError, match=says):
        Dataset(x)


@pytest.mark.parametrize(
    ("y", "says"),
    [
        (np.array(list("abcabc")), r"labels of type <U1.*numpy.unique\(y, return_inverse=True\)\[1\]"),
        (np.ones(6, bool), r"labels of type bool.*y.astype\(int\)"),
        (np.eye(3, dtype=int)[[0, 1, 2, 0, 1, 2]], r"shape \(6, 3\).*y.argmax\(axis=1\)"),
        (np.arange(6) - 1, "the label -1.*numpy.unique"),
        (np.arange(3), r"for each of 6 rows; got shape \(3,\)"),
        (np.full(6, np.inf), "responses must be finite"),
    ],
)
def test_labels_of_another_form_are_refused_with_a_remedy(y, says):
    with pytest.raises(DataError, match=says):
        Dataset(X, y)


def test_the_remedies_for_labels_are_labels():
    for y in (np.unique(np.array(list("abcabc")), return_inverse=True)[1], np.ones(6, bool).astype(int)):
        assert Dataset(X, y).labels().shape == (6,)


def test_float_labels_are_refused_where_classes_are_needed():
    with pytest.raises(DataError, match=r"float labels.*Dataset\(x, y.astype\(int\)\)"):
        Dataset(X, np.arange(6.0)).labels()
    with pytest.raises(DataError, match=r"Dataset\(x, y\), y one integer a row"):
        Dataset(X).labels()
    with pytest.raises(DataError, match=r"Dataset\(x, y.astype\(float\)\)"):
        Dataset(X, np.arange(6)).responses()


@pytest.mark.parametrize(
    ("split", "says"),
    [
        (lambda rng: partition.iid(Dataset(X[:3]), 8, rng), r"integer between 1 and 3 \(3 rows\); got 8"),
        (lambda rng: partition.iid(Dataset(X), 2.5, rng), "integer between 1 and 6.*got 2.5"),
        (lambda rng: partition.iid(X, 2, rng), r"must be a securefed.Dataset; got ndarray. Write Dataset\(x, y\)"),
        (
            lambda rng: partition.dirichlet(Dataset(X), 2, rng, alpha=1, minimum=4),
            "between 1 and 1 .6 rows, 4 for each",
        ),
        (lambda rng: partition.split(Dataset(X), 2.0, rng), "between 0 and 1.*got 2.0 of 6 rows"),
    ],
)
def test_impossible_partitions_are_refused_with_what_is_possible(split, says):
    with pytest.raises(SecureFedError, match=says):
        split(np.random.default_rng(0))


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("dirichlet", "got ''. Write dirichlet=0.3"),
        ("shards=x", "got 'x'. Write shards=2"),
        ("one_small=2.5", "an integer after `=`; got '2.5'. Write one_small=20"),
        ("by_group=subject", "it has no groups; choose another partition"),
        ("by_feature=name", "have no names, but the numbers 0 to 63"),
        ("by_feature=\u00b2", "have no names, but the numbers 0 to 63"),
        ("iid=5", "takes no value"),
        ("by_label=x", "takes no value"),
        ("idd", "the nearest known one is 'iid'"),
    ],
)
def test_misspelt_partitions_are_refused_with_an_example(how, says):
    with pytest.raises(SecureFedError, match=says):
        partitioned(digits(), how, 4, np.random.default_rng(0))


def test_files_that_are_missing_or_of_another_kind_are_refused_with_what_to_give(tmp_path: Path):
    with pytest.raises(DataError, match=r"there is no such file; give the path of an .npz file"):
        load(str(tmp_path / "rows.npz"))
    with pytest.raises(
        DataError, match=r"must be .npz archives, .csv or .parquet tables; got 'rows.xlsx'. Write numpy.savez"
    ):
        load("rows.xlsx")
    np.savez(tmp_path / "rows.npz", x=X)
    assert load(tmp_path / "rows.npz").data.rows == 6
    with pytest.raises(ConfigError, match="the nearest known one is 'digits'"):
        load("digit")
