"""Keep what a table was read as: the part of each column, and one line that says so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from securefed._class_names import SHOWN, numbered_apart, numbering
from securefed._shape_repr import ShapeRepr
from securefed._tensors import Array
from securefed.datasets._tables.columns import Column
from securefed.datasets._tables.roles import Classes, alike, merged, remarks
from securefed.datasets._tables.table import Table, counted, named
from securefed.datasets._tables.table_format import classes_remedy


@dataclass(frozen=True, eq=False, repr=False)
class Reading(ShapeRepr):
    """A table, and the role of each of its columns.

    Attributes:
        table: all columns as they were read, those that are no features among them.
        owner: name of the column of owners, empty without one.
        label: name of the column of labels, empty without one.
        features: names of the columns of features.
        left_out: by name, why a column is neither feature, label nor owner.
        line: all of this in one line.
    """

    table: Table
    owner: str
    label: str
    features: tuple[str, ...]
    left_out: Mapping[str, str]
    line: str


def line(
    table: Table, features: tuple[Column, ...], left_out: Mapping[str, str], *, owner: Array | None = None,
    owner_column: str = "", label: Classes | None = None, label_column: str = "", columns: int = 0,
) -> str:  # fmt: skip
    """Say in one line what a table was read as.

    Args:
        table: the table.
        features: its columns of features.
        left_out: by name, why a column is left out.
        owner: (rows,) owners.
        owner_column: name of their column.
        label: the labels.
        label_column: name of their column.
        columns: number of features, where they have no columns of their own (an archive's `x`).
    """
    parts = [counted(table.rows, "row")]
    if owner is not None:
        counts = np.unique(owner, return_counts=True)[1]
        sizes = f"{counts.min()} to {counts.max()} rows" if len(set(counts)) > 1 else counted(int(counts[0]), "row")
        parts.append(f"{counted(len(counts), 'owner')} by {owner_column!r} ({sizes} each)")
    if label is not None:
        parts.append(f"label {label_column!r} ({_labels(label)})")
    parts.append(counted(columns or len(features), "feature") + named(features))
    if left_out:
        parts.append("left out: " + ", ".join(f"{name!r} ({why})" for name, why in left_out.items()))
    parts += remarks(features)
    if owner is not None:
        parts += _spellings(table.column(owner_column), owner)
    if label is not None and label_column in table.names:
        parts += _spellings(table.column(label_column), np.array(list(map(str, label.names))))
        parts += _of_this_file(label)
    return f"{Path(table.source).name}: {'; '.join(parts)}" + (f"; {table.form}" if table.form else "")


def _spellings(column: Column, values: Array) -> list[str]:
    """Say which owners or classes were one name in two spellings, or may be."""
    out = []
    if count := merged(column):
        out.append(f"{column.name!r} had {counted(count, 'spelling')} more, which differed in blanks alone")
    if pair := alike(values.astype(str)):
        out.append(f"{column.name!r} holds {pair}, which count as two")
    return out


def _labels(label: Classes) -> str:
    """Say what labels are."""
    if not label.names:
        return "real responses"
    count = len(label.names)
    words = ("1 class" if count == 1 else f"{count} classes") + " as declared" * label.declared
    if not numbered_apart(label.names):
        return words
    return f"{words}: {numbering(label.names)}"


def _of_this_file(label: Classes) -> list[str]:
    """Say that classes are numbered by the values of one file, and how parties with files of their own declare them."""
    if label.declared or not numbered_apart(label.names):
        return []
    remedy = (
        f", such as {classes_remedy(label.names)}" if len(label.names) <= SHOWN else " (--classes, classes= in Python)"
    )
    return [
        "the numbers of the classes hold for this file alone; where parties load files of their own, each declares the "
        f"same list of all their classes{remedy}"
    ]
