"""Public facts of a federation: what every party may know before a run starts.

Shapes of messages, the bounds of their fixed point and the noise follow from these facts alone, so that all parties
derive the same plan and no size of a message depends on data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Protocol

import numpy as np

from securefed._class_names import ClassName, class_names, common_class_names
from securefed._hyperparameters import check_integer, check_number
from securefed._tensors import Array
from securefed.errors import ConfigError, DataError


class ClientRows(Protocol):
    """The part of a client's data set that public facts are read from; `securefed.Dataset` has it."""

    @property
    def x(self) -> Array:
        """(rows, features)."""

    @property
    def rows(self) -> int:
        """Number of rows."""

    @property
    def features(self) -> int:
        """Number of columns."""

    @property
    def classes(self) -> int:
        """Number of labels; 0 where there are none."""


@dataclass(frozen=True, repr=False)
class Public:
    """Numbers and declared bounds that every party knows; never a row of any client.

    Attributes:
        clients: N, the number of clients enrolled.
        cohort: S, the number of clients PLANNED for a round; a constant of the run, never the number of survivors.
        features: number of columns of every client's rows.
        rows: n_i, the number of rows of each client.
        classes: number of labels; 0 where the task has none.
        feature_bound: every entry of every row lies in [-feature_bound, feature_bound].
        class_names: the value that stands for each class in the parties' tables, in the order of the classes
            (`load(..., classes=...)`); empty where the labels in the tables are 0, 1, ... themselves.

    Raises:
        ConfigError: class names that are no such list, or not one for each class.
    """

    clients: int
    cohort: int
    features: int
    rows: tuple[int, ...]
    classes: int
    feature_bound: float
    class_names: tuple[ClassName, ...] = ()

    def __post_init__(self) -> None:
        """Bring the class names into their one form."""
        object.__setattr__(self, "class_names", class_names(self.class_names))
        if self.class_names and len(self.class_names) != self.classes:
            raise ConfigError(
                f"class_names must name each of {self.classes} classes; got {len(self.class_names)} names"
            )

    def __repr__(self) -> str:
        # terms are fingerprinted by it: facts without names of classes have the fingerprint that they always had
        shown = (field.name for field in fields(self) if field.name != "class_names" or self.class_names)
        return f"Public({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"

    @classmethod
    def of(
        cls, clients: Sequence[ClientRows], *, cohort: int | None = None, feature_bound: float | None = None
    ) -> Public:
        """Read the public facts off simulated clients.

        Args:
            clients: the clients' rows.
            cohort: S; all clients by default.
            feature_bound: the declared range of the data. Where it is left out, the largest absolute entry of all
                clients is used (1 where all entries are 0); in a real deployment the parties have to agree on it.

        Returns:
            The facts; `classes` is the largest number of labels of any client.

        Raises:
            DataError: there are no clients, clients have different numbers of features or number their classes
                differently, or an entry lies beyond `feature_bound`.
            ConfigError: the cohort is larger than the number of clients.
        """
        if not clients:
            raise DataError("a federation needs at least one client; got an empty list")
        for index, data in enumerate(clients):
            if not hasattr(data, "features"):
                kind = type(data).__name__
                raise DataError(f"client {index} must be a data set; got {kind}. Write securefed.Dataset(x, y).")
        widths = {data.features for data in clients}
        if len(widths) != 1:
            first = clients[0].features
            odd = next(i for i, data in enumerate(clients) if data.features != first)
            raise DataError(
                f"client {odd} has {clients[odd].features} features, client 0 has {first}; align the columns"
            )
        size = len(clients) if cohort is None else cohort
        check_integer("cohort", size, 1, len(clients), note="(the number of clients)")
        if feature_bound is not None:
            check_number("feature_bound", feature_bound, 0)
        bound = max(float(np.abs(data.x).max()) for data in clients) if feature_bound is None else feature_bound
        for index, data in enumerate(clients):
            largest = float(np.abs(data.x).max())
            if largest > bound:
                raise DataError(
                    f"client {index} has an entry of {largest:g}, beyond the declared feature_bound {bound}"
                )
        names = common_class_names(clients)
        classes = max(data.classes for data in clients)
        rows = tuple(data.rows for data in clients)
        return cls(len(clients), size, clients[0].features, rows, classes, bound or 1.0, names)


def require(condition: bool, message: str) -> None:
    """Raise `ConfigError(message)` unless `condition` holds."""
    if not condition:
        raise ConfigError(message)
