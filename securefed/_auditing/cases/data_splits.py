"""Split a data set among the clients of an audit.

A split is named in an algorithm's audit case, such as `even_shares` or `one_small=8`; `preparation` finds its function.
`own_setup`, for the data of a user, calls some of these functions itself, and the advice for larger cohorts calls
`resampled`. A split sets a fifth of the rows aside for utility, and gives the others to the clients at random. Every
function (source, clients, seed) returns the same data for the same arguments. Raw rows are those of the source, with
entries in [-source.feature_bound, source.feature_bound].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from securefed._auditing.cases.held_out import HELD_OUT, split_with_classes
from securefed._auditing.cases.prepared_data import Preparation, Prepared
from securefed._public import Public
from securefed.datasets import partition
from securefed.datasets._base import Dataset
from securefed.datasets._loaded_dataset import LoadedDataset
from securefed.errors import ConfigError, DataError

SMALL_CLIENT = 8
"""Rows of the target of the subspace methods: fewer than features, so that its Gram matrix has low rank."""


def even_shares(source: LoadedDataset, clients: int, seed: int) -> Prepared:
    """Give every client the same number of raw rows."""
    rng = _rng(seed)
    rest, test = partition.split(source.data, HELD_OUT, rng)
    return _prepared(partition.iid(rest, clients, rng), test, source.feature_bound, source.image_shape)


def one_small(rows: int) -> Preparation:
    """Give the target `rows` raw rows, and the other clients even shares of the rest."""

    def prepare(source: LoadedDataset, clients: int, seed: int) -> Prepared:
        rng = _rng(seed)
        rest, test = partition.split(source.data, HELD_OUT, rng)
        parts = partition.one_small(rest, clients, rows, rng)
        return _prepared(parts, test, source.feature_bound, source.image_shape)

    return prepare


def standardised(features: int | None, rows: int | None = None) -> Preparation:
    """Select the columns of highest variance; every client z-scores its own rows.

    A column that is constant at a client becomes zero there.

    Args:
        features: number of columns; all that vary for `None`.
        rows: the number of rows of each client; even shares for `None`.
    """

    def prepare(source: LoadedDataset, clients: int, seed: int) -> Prepared:
        rng = _rng(seed)
        rest, test = partition.split(most_varied(source.data, features), HELD_OUT, rng)
        shares = partition.iid(rest, clients, rng) if rows is None else partition.sized(rest, [rows] * clients, rng)
        parts = [_z_scored(part) for part in shares]
        bound = max(float(np.abs(part.x).max()) for part in parts)
        return _prepared(parts, _z_scored(test), bound, None)

    return prepare


def most_varied(data: Dataset, features: int | None) -> Dataset:
    """Select the `features` columns of highest variance, in their order (`None`: all that vary)."""
    spread = data.x.std(axis=0)
    order = np.argsort(-spread, kind="stable")  # constant columns come last
    chosen = np.sort(order[: min(features or len(order), int((spread > 0).sum()))])
    return replace(data, x=data.x[:, chosen])


def _z_scored(data: Dataset) -> Dataset:
    spread = data.x.std(axis=0)
    return replace(data, x=(data.x - data.x.mean(axis=0)) / np.where(spread > 0, spread, 1.0))


def rows_each(rows: int, *, labelled: bool = True) -> Preparation:
    """Give every client `rows` raw rows. All labels of the set are declared, even those that no client holds.

    Args:
        rows: the number of rows of each client.
        labelled: whether data without labels are refused.
    """

    def prepare(source: LoadedDataset, clients: int, seed: int) -> Prepared:
        rng = _rng(seed)
        rest, test = (source.data.take(places) for places in split_with_classes(source.data, rng))
        if rows * clients > rest.rows:
            raise ConfigError(
                f"{clients} clients with {rows} rows each need {clients * rows} rows; {source.name} has {rest.rows} "
                f"beside those held out. Give at most {max(rest.rows // clients, 1)} rows a client, or fewer clients."
            )
        parts = partition.sized(rest, [rows] * clients, rng)
        return _with_classes(_prepared(parts, test, source.feature_bound, source.image_shape), source, labelled)

    return prepare


def by_owner(owner: str, most: int | None = None, *, labelled: bool = True) -> Preparation:
    """Give every client the rows of one owner; a fifth of all rows is held out.

    Where every owner is a client, they are attacked in turn, the one with fewest rows at seed 0, since its rows usually
    leak most. Otherwise owners are drawn anew for every seed.

    Args:
        owner: name of the column of `source.groups` that holds each row's owner.
        most: rows of a client at most, drawn at random; all for `None`.
        labelled: whether data without labels are refused.
    """

    def prepare(source: LoadedDataset, clients: int, seed: int) -> Prepared:
        rng = _rng(seed)
        rest, held_out = split_with_classes(source.data, rng, source.groups[owner])
        whose = source.groups[owner][rest]
        owners = np.unique(whose)
        if clients > len(owners):
            raise ConfigError(f"{source.name} has rows of {len(owners)} owners ({owner}), fewer than {clients} clients")
        parts = []
        order = rng.choice(owners, clients, replace=False)
        if clients == len(owners):
            held = [np.sum(source.groups[owner] == name) for name in owners]
            first = owners[np.argsort(held, kind="stable")][seed % clients]
            order = np.concatenate([[first], order[order != first]])
        for name in order:
            parts.append(source.data.take(rng.permutation(rest[whose == name])[:most]))
        test = source.data.take(held_out)
        return _with_classes(_prepared(parts, test, source.feature_bound, source.image_shape), source, labelled)

    return prepare


def resampled(prepare: Preparation, of: int, rows: int | None) -> Preparation:
    """Give every client rows drawn with replacement, to simulate cohorts that the data are too few for.

    Args:
        prepare: splits the rows over a cohort that the data suffice for; its clients' rows, scaled as they are, are
            drawn from.
        of: number of clients of that cohort.
        rows: the number of rows of each client; `None` takes the mean of that cohort.
    """

    def simulate(source: LoadedDataset, clients: int, seed: int) -> Prepared:
        rng, known = _rng(seed), prepare(source, of, seed)
        x = np.concatenate([data.x for data in known.clients])
        labels = [data.y for data in known.clients if data.y is not None]
        pool = Dataset(x, np.concatenate(labels) if labels else None)
        each = rows or max(pool.rows // of, 1)
        parts = [pool.take(rng.integers(0, pool.rows, each)) for _ in range(clients)]
        made = _prepared(parts, known.test, known.public.feature_bound, known.image_shape)
        return replace(made, public=replace(made.public, classes=known.public.classes))

    return simulate


def _with_classes(prepared: Prepared, source: LoadedDataset, labelled: bool) -> Prepared:
    """Declare all labels of a set, even those that no client holds.

    Raises:
        DataError: the set has none, and must have.
    """
    if labelled:
        source.data.labels()
    classes = source.data.classes
    return replace(prepared, public=replace(prepared.public, classes=classes)) if classes else prepared


# "Changing survivors" is the report's name of the runs in which the target stays away in some rounds (`Case.absences`).
_SPLITS: dict[str, tuple[Callable[[int | None], Preparation], str]] = {
    "even_shares": (lambda _: even_shares, "raw rows in even shares"),
    "one_small": (
        lambda rows: one_small(rows or SMALL_CLIENT),
        "raw rows; client 0 (the target) holds {}, the others share the rest evenly (changing survivors: even shares)",
    ),
    "standardised": (
        standardised,
        "the {} columns of highest variance, even shares, z-scored by each client",
    ),
    "rows_each": (lambda rows: rows_each(rows or 1), "{} for every client; utility on held-out rows"),
}
"""By name, the function that makes a split from its number, and the description of the split in the report."""


def preparation(split: str) -> Preparation:
    """Find a split of the data by its name, such as `even_shares` or `one_small=8`.

    Raises:
        ConfigError: there is no such split, or its number is no positive integer.
    """
    name, number = _parsed(split)
    return _SPLITS[name][0](number)


def words(split: str) -> str:
    """Describe a split for the report."""
    name, number = _parsed(split)
    text = "one row" if (name, number) == ("rows_each", 1) else number
    return _SPLITS[name][1].format(text)


def _parsed(split: str) -> tuple[str, int | None]:
    name, equals, number = split.partition("=")
    if name not in _SPLITS or (equals and not number.isdecimal()):
        raise ConfigError(f"split must be one of {', '.join(_SPLITS)}, with =NUMBER where it has one; got {split!r}")
    return name, int(number) if equals else None


def _prepared(parts: list[Dataset], test: Dataset, bound: float, image_shape: tuple[int, int] | None) -> Prepared:
    """Collect a split and its public facts; raise `DataError` where all clients' rows are the same."""
    first = parts[0].x[0]
    if all((part.x == first).all() for part in parts):
        raise DataError(
            "all rows are the same, so a guess knows every client's rows without a message and an audit would measure "
            "nothing; give data whose rows differ"
        )
    return Prepared(tuple(parts), test, Public.of(parts, feature_bound=bound), image_shape)


def _rng(seed: int) -> np.random.Generator:
    return np.random.default_rng([seed, 0xDA7A])
