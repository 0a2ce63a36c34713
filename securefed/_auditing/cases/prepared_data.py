"""The data of one run of an audit, and the type of the functions that make them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from securefed._public import Public
from securefed.datasets._base import Dataset
from securefed.datasets._loaders import LoadedDataset


@dataclass(frozen=True)
class Prepared:
    """The data of one seed's federation.

    Attributes:
        clients: one data set each; client 0 is the target, which attacks aim at.
        test: held-out rows, on which utility is measured.
        public: facts that every party knows: numbers of clients, rows, features and classes, and the range of the data.
        image_shape: (height, width) of rows that are images; `None` otherwise.
    """

    clients: tuple[Dataset, ...]
    test: Dataset
    public: Public
    image_shape: tuple[int, int] | None

    @property
    def smallest(self) -> int:
        """Rows of the smallest client; 0 where all clients have as many."""
        rows = self.public.rows
        return 0 if len(set(rows)) == 1 else int(min(rows))


Preparation = Callable[[LoadedDataset, int, int], Prepared]
"""(source, clients, seed) -> the data of one run: the source's rows split over so many clients."""
