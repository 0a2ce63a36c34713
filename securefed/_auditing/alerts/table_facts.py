"""The input of the alerts: columns by name, classes, and the rows of every party, as a reader of tables knows them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from securefed._class_names import ClassName
from securefed._tensors import Array
from securefed.datasets._base import Dataset
from securefed.datasets._loaded_dataset import LoadedDataset
from securefed.datasets._row_tables import scaling_warning


@dataclass(frozen=True)
class TableColumn:
    """One column of a table.

    Attributes:
        name: its name.
        values: its cells, (rows,): numbers, or texts and other objects. `None`, NaN and blank text are gaps.
        codes: whether its numbers are known to be codes of categories, as those that index a lookup table are.
    """

    name: str
    values: Array
    codes: bool = False


@dataclass(frozen=True)
class TableFacts:
    """Facts of a table that alerts are drawn from.

    Attributes:
        columns: the columns of features: raw categories where the reader has them, or the columns made of them.
        classes: the class of each row; `None` where labels are quantities or there are none.
        label: name of the column of classes.
        parties: by name of a party, its number of rows; empty where these are not known.
        party: word for a party, such as the name of the column of owners.
        pictures: whether columns are pixels, whose levels are no categories.
        not_scaled: a sentence where columns are not scaled; empty where they are.
    """

    columns: tuple[TableColumn, ...]
    classes: Array | None = None
    label: str = "label"
    parties: Mapping[str, int] = field(default_factory=dict)
    party: str = "party"
    pictures: bool = False
    not_scaled: str = ""

    @property
    def rows(self) -> int:
        """Number of rows of the table."""
        return len(self.columns[0].values) if self.columns else 0


def facts_of(
    source: LoadedDataset, *, owner: str = "", label: str = "", parties: Sequence[int] = (), standardised: bool = False
) -> TableFacts:
    """Collect the facts of a loaded data set.

    Args:
        source: the data set.
        owner: name of the column of owners, each of which is a party; empty for none.
        label: name of the column of labels, where the user gave one.
        parties: rows of each party, where parties are no owners and their rows are known.
        standardised: whether the run scales every column.
    """
    held = {f"party {number}": rows for number, rows in enumerate(parties)}
    if owner:
        owners, counts = np.unique(source.groups[owner].astype(str), return_counts=True)
        held = {str(name): int(count) for name, count in zip(owners, counts, strict=True)}
    return TableFacts(
        _columns(source),
        classes=_named(_classes(source.data.y), source.data.class_names),
        label=label or (source.reading.label if source.reading else "") or "label",
        parties=held,
        party=owner or "party",
        pictures=source.image_shape is not None,
        not_scaled="" if standardised else scaling_warning(source.data),
    )


def _columns(source: LoadedDataset) -> tuple[TableColumn, ...]:
    """Return the columns of features and those that the reader left out, such as keys, with their gaps as `None`."""
    if source.reading is None or not source.reading.features:
        names = source.features or tuple(f"column {number}" for number in range(source.data.features))
        return tuple(TableColumn(name, source.data.x[:, number]) for number, name in enumerate(names))
    wanted = {*source.reading.features, *source.reading.left_out}
    columns = [column for column in source.reading.table.columns if column.name in wanted]
    return tuple(TableColumn(column.name, _with_gaps(column.values, column.missing)) for column in columns)


def _with_gaps(values: Array, missing: Array) -> Array:
    """Return values with `None` in place of the missing ones."""
    if not missing.any():
        return values
    out: Array = values.astype(object)
    out[missing] = None
    return out


def facts_of_clients(clients: Sequence[Dataset], names: Sequence[str] = (), codes: Collection[str] = ()) -> TableFacts:
    """Collect the facts of clients' rows that were given without a table: parties have numbers.

    Args:
        clients: each client's rows.
        names: names of the columns; without them columns have numbers too.
        codes: names of the columns whose numbers are codes of categories.
    """
    x = np.concatenate([np.asarray(one.x, np.float64) for one in clients])
    named = list(names) or [f"column {number}" for number in range(x.shape[1])]
    scaled = x[:, [name not in codes for name in named]]
    labels = [one.y for one in clients if one.y is not None]
    classes = _classes(np.concatenate(labels)) if len(labels) == len(clients) else None
    return TableFacts(
        tuple(TableColumn(name, x[:, place], name in codes) for place, name in enumerate(named)),
        classes=classes,
        parties={f"client {number}": one.rows for number, one in enumerate(clients)},
        party="client",
        not_scaled=scaling_warning(Dataset(scaled)) if scaled.shape[1] else "",
    )


def _named(classes: Array | None, names: Sequence[ClassName]) -> Array | None:
    """Return classes by their names, where these are texts."""
    if classes is None or not names or not all(isinstance(name, str) for name in names):
        return classes
    return np.array(names)[classes]


def _classes(y: Array | None) -> Array | None:
    """Return labels that are classes; `None` for responses."""
    return y if y is not None and y.ndim == 1 and y.dtype.kind in "iub" else None
