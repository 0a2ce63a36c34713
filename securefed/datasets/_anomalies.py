"""Split data for anomaly detection: training rows are normal, test rows are normal and anomalous.

A detector (`securefed.detection`) learns normal rows, and flags rows that it reconstructs badly.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from securefed._hyperparameters import check_integer
from securefed.datasets._base import Dataset
from securefed.datasets._loaded_dataset import LoadedDataset
from securefed.errors import DataError

NORMAL = 0
"""Label of normal rows; anomalies have others."""
TRAIN_ROLE = 0
"""Value of the fact `role` for rows to train on; other values are test rows."""


@dataclass(frozen=True)
class DetectionSplit:
    """Training and test rows of an anomaly detection task.

    Attributes:
        train: normal rows, `y` all `NORMAL`.
        test: other normal rows, and anomalies, whose labels are other integers.

    Raises:
        DataError: an anomaly among the training rows, or test rows of one kind only.
    """

    train: Dataset
    test: Dataset

    def __post_init__(self) -> None:
        """Check the kinds of rows on both sides."""
        if self.train.labels().any():
            raise DataError("training rows of a detector must all be normal (label 0); move anomalies to the test rows")
        normal = self.test.labels() == NORMAL
        if normal.all() or not normal.any():
            raise DataError(
                "test rows of a detector must be of both kinds, normal and anomalous; these are of one kind"
            )


def official(source: LoadedDataset, role: str = "role") -> DetectionSplit:
    """Return the official split of a data set: its own test rows, or its rows by their fact `role`.

    Raises:
        DataError: the data set has neither; `hold_out` draws a split.
    """
    if source.test is not None:
        return DetectionSplit(source.data.take(source.data.labels() == NORMAL), source.test)
    if role not in source.groups:
        raise DataError(f"{source.name} comes with no split for detection ({role!r}); draw one by hold_out")
    train = source.groups[role] == TRAIN_ROLE
    return DetectionSplit(source.data.take(train), source.data.take(~train))


def hold_out(data: Dataset, normal: int, rng: np.random.Generator) -> DetectionSplit:
    """Draw a split: `normal` random normal rows and all anomalies are the test rows, the other rows are for training.

    Raises:
        ConfigError: no normal row would be left on one side.
        DataError: the data hold no anomaly.
    """
    rows = rng.permutation(np.flatnonzero(data.labels() == NORMAL))
    check_integer("normal", normal, 1, len(rows) - 1, note=f"(of {len(rows)} normal rows one must be left)")
    test = np.sort(np.concatenate([rows[:normal], np.flatnonzero(data.labels() != NORMAL)]))
    return DetectionSplit(data.take(np.sort(rows[normal:])), data.take(test))
