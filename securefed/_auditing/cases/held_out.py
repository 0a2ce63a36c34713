"""Choose the rows that are held out, so that a rare class is among them and among the clients' rows in every run.

Balanced accuracy is the mean over the classes of the held-out rows. Were a class held out in some runs only, runs would
not be comparable, and a run without the rare class would score as if there were none. So a class of two rows or more
always has a held-out row, and one of a single row none, which the clients then train on.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from securefed._tensors import Array
from securefed.datasets import partition
from securefed.datasets._base import Dataset
from securefed.datasets._loaded_dataset import LoadedDataset
from securefed.datasets._loaders import LOADERS

HELD_OUT: Final = 0.2
"""Share of the rows on which utility is measured."""


def dealt_rows(data: str, source: LoadedDataset, clients: int) -> int | None:
    """Return how many rows each client has where those of a file, less what is held out, are dealt out evenly.

    Sets of this package are audited at the sizes of each algorithm's audit case: `None`. For a user's rows such a size
    would mislead: one row a client leaks what sixty rows do not.

    Args:
        data: name of a set, or path of a file.
        source: its rows.
        clients: number of clients.
    """
    if data in LOADERS:
        return None
    return max((source.data.rows - round(HELD_OUT * source.data.rows)) // clients, 1)


def split_with_classes(data: Dataset, rng: np.random.Generator, owners: Array | None = None) -> tuple[Array, Array]:
    """Return the places of the clients' rows and of the held-out ones, (rest, held out), in random order.

    Args:
        data: all rows; without classes, or with classes that chance holds out anyway, the split is `partition`'s.
        rng: draws the split.
        owners: (rows,) whose each row is; a row to hold out is taken from the owner with most rows.
    """
    rest, held = partition.split_rows(data.rows, HELD_OUT, rng)
    y = data.y
    if y is None or y.ndim != 1 or y.dtype.kind not in "iu":
        return rest, held
    sizes = np.ones(data.rows) if owners is None else _sizes(owners)
    classes, counts = np.unique(y, return_counts=True)
    for one, count in zip(classes, counts, strict=True):
        if (y[held] == one).any() == (count > 1):
            continue
        common = classes[np.argmax(counts)]
        to_hold, to_keep = (common, one) if count == 1 else (one, common)
        inner = np.flatnonzero(y[rest] == to_hold)
        outer = np.flatnonzero(y[held] == to_keep)
        if len(inner) and len(outer):
            place = inner[np.argmax(sizes[rest[inner]])]
            rest[place], held[outer[0]] = held[outer[0]], rest[place]
    return rest, held


def _sizes(owners: Array) -> Array:
    """Return for each row how many rows its owner has."""
    _, inverse, counts = np.unique(owners, return_inverse=True, return_counts=True)
    return np.asarray(counts[inverse])
