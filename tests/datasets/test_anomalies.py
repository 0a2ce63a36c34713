"""Splits for detection: normal rows to learn from, the others to be scored on."""

import numpy as np
import pytest

from securefed import Dataset
from securefed.datasets import DetectionSplit
from securefed.errors import DataError


def test_anomalies_are_never_learned_from():
    data = Dataset(np.arange(10.0)[:, None], np.array([0, 1, 0, 0, 1, 0, 0, 1, 0, 0]))
    with pytest.raises(DataError, match="must all be normal"):
        DetectionSplit(data.take(np.arange(10) % 2 == 0), data)
    with pytest.raises(DataError, match="of one kind"):
        DetectionSplit(data.take(data.y == 0), data.take(data.y == 0))
    with pytest.raises(DataError, match="of one kind"):  # two kinds of anomalies, and no normal row
        DetectionSplit(data.take(data.y == 0), Dataset(data.x[:2], np.array([1, 2])))
