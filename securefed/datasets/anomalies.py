"""Rows for anomaly detection: a detector learns from normal rows alone and is scored on both kinds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from securefed.datasets.base import Dataset
from securefed.datasets.source import Source
from securefed.errors import ConfigError, DataError

NORMAL, TRAIN_ROLE = 0, 0


@dataclass(frozen=True)
class Detection:
    """Training and test rows of an anomaly detection task.

    Attributes:
        train: normal rows, `y` all 0.
        test: other normal rows and all anomalies, `y` 0 or 1.
    """

    train: Dataset
    test: Dataset

    def __post_init__(self) -> None:
        if self.train.labels().any():
            raise DataError("a detector learns from normal rows alone (label 0); these hold anomalies")
        if self.test.labels().min() == self.test.labels().max():
            raise DataError("a detector is scored on normal rows and anomalies; these are of one kind")


def official(source: Source, role: str = "role") -> Detection:
    """The split that comes with a set: normal training rows against its test rows, or by its group `role`.

    Raises:
        DataError: a set without either; `hold_out` draws a split.
    """
    if source.test is not None:
        return Detection(source.data.take(source.data.labels() == NORMAL), source.test)
    if role not in source.groups:
        raise DataError(f"{source.name} comes with no split for detection ({role!r}); draw one by hold_out")
    train = source.groups[role] == TRAIN_ROLE
    return Detection(source.data.take(train), source.data.take(~train))


def hold_out(data: Dataset, normal: int, rng: np.random.Generator) -> Detection:
    """`normal` random normal rows and all anomalies are the test rows, the other normal rows are learned from.

    Raises:
        ConfigError: no normal row would be left on one side.
    """
    rows = rng.permutation(np.flatnonzero(data.labels() == NORMAL))
    if not 1 <= normal < len(rows):
        raise ConfigError(f"of {len(rows)} normal rows at least one must be held out and one left, not {normal}")
    test = np.sort(np.concatenate([rows[:normal], np.flatnonzero(data.labels() != NORMAL)]))
    return Detection(data.take(np.sort(rows[normal:])), data.take(test))
