"""Hold a loaded data set: its rows, official test rows, declared range and facts of every row.

`load` returns one; `partitioned` splits its rows over clients. The declared range becomes a public fact of a run, from
which bounds of messages follow.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from securefed._shape_repr import ShapeRepr
from securefed._tensors import Array
from securefed.datasets._base import Dataset
from securefed.datasets._tables.reading import Reading
from securefed.errors import DataError


@dataclass(frozen=True, repr=False)
class LoadedDataset(ShapeRepr):
    """A loaded data set with its official test rows, declared range and groups.

    Attributes:
        data: the rows; the training rows where the set has an official split.
        name: name of the data set.
        feature_bound: the declared range: every entry of `data` and `test` lies in [-feature_bound, feature_bound].
        image_shape: (height, width) where rows are images, else `None`.
        test: the official test rows, `None` where the set has no official split.
        groups: facts of the rows of `data`, (rows,) each, by which rows can be grouped or chosen: the subject, the
            recording, the service. The docstring of the set's loader explains the names.
        features: the names of the columns, empty where they have none.
        class_names: of a user's table the value that stands for each class, in the order of the classes; empty
            elsewhere.
        reading: of a user's table what each column was read as, with all columns as they are; `None` elsewhere.

    Raises:
        DataError: an entry lies beyond the declared range or is not a number, the test rows have another number of
            features, a fact does not have one value for each row, or there is not one name for each column.
    """

    data: Dataset
    name: str
    feature_bound: float
    image_shape: tuple[int, int] | None = None
    test: Dataset | None = None
    groups: Mapping[str, Array] = field(default_factory=dict)
    features: tuple[str, ...] = ()
    class_names: tuple[Any, ...] = field(default=(), repr=False)
    reading: Reading | None = field(default=None, repr=False, compare=False)

    @property
    def summary(self) -> str:
        """Say in one line what was read: rows, owners, labels, columns and their types."""
        if self.reading is not None:
            return self.reading.line
        return f"{self.name}: {self.data.rows} rows, {self.data.features} columns"

    def __post_init__(self) -> None:
        """Check range, widths and groups."""
        for part in (self.data, self.test):
            if part is None:
                continue
            if part.features != self.data.features:
                raise DataError(f"{self.name}: test rows have {part.features} features, not {self.data.features}")
            largest = max(float(part.x.max()), -float(part.x.min()))
            if not largest <= self.feature_bound:  # NaN too
                raise DataError(
                    f"{self.name}: an entry of size {largest:g} lies beyond the declared range {self.feature_bound:g}; "
                    "were the files replaced or altered?"
                )
        for fact, values in self.groups.items():
            if values.shape != (self.data.rows,):
                raise DataError(
                    f"{self.name}: {fact!r} has shape {values.shape}, not one value for {self.data.rows} rows"
                )
        if self.features and len(self.features) != self.data.features:
            raise DataError(f"{self.name}: {len(self.features)} names for {self.data.features} columns")

    def column(self, feature: str) -> int:
        """Return the index of a named column; raise `DataError` for a name that the data set does not have."""
        if feature not in self.features:
            numbers = f"its columns have no names, but the numbers 0 to {self.data.features - 1}"
            known = f"its columns are {', '.join(self.features)}" if self.features else numbers
            raise DataError(f"{self.name} has no column {feature!r}; {known}")
        return self.features.index(feature)
