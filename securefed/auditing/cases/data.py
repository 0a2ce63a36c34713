"""How the audit splits a data set among clients: one `Preparation` for each kind of secret."""

from __future__ import annotations

import numpy as np

from securefed.algorithms.base import Public
from securefed.auditing.cases.base import Preparation, Prepared
from securefed.datasets import partition
from securefed.datasets.base import Dataset
from securefed.datasets.loaders import Source

SMALL_CLIENT = 8
"""Rows of the target of the subspace methods: fewer than features, so its Gram matrix has low rank."""
HELD_OUT = 0.2


def even_shares(source: Source, clients: int, seed: int) -> Prepared:
    """Raw rows, the same number for every client."""
    rng = _rng(seed)
    rest, test = partition.split(source.data, HELD_OUT, rng)
    return _prepared(partition.iid(rest, clients, rng), test, source.feature_bound, source.image_shape)


def one_small_client(source: Source, clients: int, seed: int) -> Prepared:
    """Raw rows; the target holds `SMALL_CLIENT` of them, the others share the rest."""
    rng = _rng(seed)
    rest, test = partition.split(source.data, HELD_OUT, rng)
    parts = partition.one_small(rest, clients, SMALL_CLIENT, rng)
    return _prepared(parts, test, source.feature_bound, source.image_shape)


def standardised(features: int | None) -> Preparation:
    """Columns of highest variance (all that vary for `None`), split evenly; every client z-scores its own rows.

    A column that is constant at a client becomes zero there.
    """

    def prepare(source: Source, clients: int, seed: int) -> Prepared:
        rng = _rng(seed)
        spread = source.data.x.std(axis=0)
        order = np.argsort(-spread, kind="stable")
        chosen = np.sort(order[: min(features or len(order), int((spread > 0).sum()))])
        rest, test = partition.split(Dataset(source.data.x[:, chosen], source.data.y), HELD_OUT, rng)
        parts = [_z_scored(part) for part in partition.iid(rest, clients, rng)]
        bound = max(float(np.abs(part.x).max()) for part in parts)
        return _prepared(parts, _z_scored(test), bound, None)

    return prepare


def _z_scored(data: Dataset) -> Dataset:
    spread = data.x.std(axis=0)
    return Dataset((data.x - data.x.mean(axis=0)) / np.where(spread > 0, spread, 1.0), data.y)


def one_sample_each(source: Source, clients: int, seed: int) -> Prepared:
    """One row for every client."""
    rng = _rng(seed)
    rest, test = partition.split(source.data, HELD_OUT, rng)
    classes = int(source.data.labels().max()) + 1
    prepared = _prepared(partition.sized(rest, [1] * clients, rng), test, source.feature_bound, source.image_shape)
    public = prepared.public
    facts = Public(public.clients, public.cohort, public.features, public.rows, classes, public.feature_bound)
    return Prepared(prepared.clients, test, facts, source.image_shape)


def _prepared(parts: list[Dataset], test: Dataset, bound: float, image_shape: tuple[int, int] | None) -> Prepared:
    return Prepared(tuple(parts), test, Public.of(parts, feature_bound=bound), image_shape)


def _rng(seed: int) -> np.random.Generator:
    return np.random.default_rng([seed, 0xDA7A])
