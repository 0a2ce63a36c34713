"""Splits for detection: normal rows to learn from, the others to be scored on."""

import numpy as np
import pytest

from securefed.datasets import _anomalies as anomalies
from securefed.datasets._base import Dataset
from securefed.datasets._loaded_dataset import LoadedDataset
from securefed.errors import ConfigError, DataError


@pytest.fixture
def data():
    return Dataset(np.arange(10.0)[:, None], np.array([0, 1, 0, 0, 1, 0, 0, 1, 0, 0]))


def source(data, **more):
    return LoadedDataset(data, "traffic", 9.0, **more)


def test_roles_and_official_test_rows_give_the_split(data):
    role = np.where(data.y, 2, np.arange(10) % 2)
    split = anomalies.official(source(data, groups={"role": role}))
    assert split.train.x[:, 0].tolist() == [0, 2, 6, 8]
    assert split.test.rows == 6
    assert split.test.y.sum() == 3
    split = anomalies.official(source(data, test=data))
    assert split.train.rows == 7
    assert split.test is data
    with pytest.raises(DataError, match="hold_out"):
        anomalies.official(source(data))


def test_anomalies_are_never_learned_from(data):
    with pytest.raises(DataError, match="must all be normal"):
        anomalies.official(source(data, groups={"role": np.arange(10) % 2}))
    with pytest.raises(DataError, match="of one kind"):
        anomalies.DetectionSplit(data.take(data.y == 0), data.take(data.y == 0))
    with pytest.raises(DataError, match="of one kind"):  # two kinds of anomalies, and no normal row
        anomalies.DetectionSplit(data.take(data.y == 0), Dataset(data.x[:2], np.array([1, 2])))


def test_a_drawn_split_holds_all_anomalies_and_the_wanted_normal_rows(data):
    split = anomalies.hold_out(data, 3, np.random.default_rng(0))
    assert not split.train.y.any()
    assert (split.train.rows, split.test.rows, split.test.y.sum()) == (4, 6, 3)
    assert sorted([*split.train.x[:, 0], *split.test.x[:, 0]]) == list(range(10))
    other = anomalies.hold_out(data, 3, np.random.default_rng(1))
    assert not np.array_equal(other.train.x, split.train.x)
    for normal in (0, 7):
        with pytest.raises(ConfigError, match="7 normal rows"):
            anomalies.hold_out(data, normal, np.random.default_rng(0))
