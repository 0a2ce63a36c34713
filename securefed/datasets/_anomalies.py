"""Split data for anomaly detection: training rows are normal, test rows are normal and anomalous.

A detector (`securefed.detection`) learns normal rows, and flags rows that it reconstructs badly.
"""

from __future__ import annotations

from dataclasses import dataclass

from securefed._shape_repr import ShapeRepr
from securefed.datasets._base import Dataset
from securefed.errors import DataError

NORMAL = 0
"""Label of normal rows; anomalies have others."""


@dataclass(frozen=True, repr=False)
class DetectionSplit(ShapeRepr):
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
