"""Splitting one set over clients. All functions are deterministic in the generator they are given."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from securefed.datasets.base import Dataset
from securefed.errors import ConfigError


def split(data: Dataset, share: float, rng: np.random.Generator) -> tuple[Dataset, Dataset]:
    """(rest, held out): a random `share` of the rows is held out, at least one row on each side."""
    if not 0 < share < 1 or data.rows < 2:
        raise ConfigError(f"the held-out share must lie in (0, 1) and the data hold two rows, not {share}, {data.rows}")
    order = rng.permutation(data.rows)
    held = min(max(1, round(share * data.rows)), data.rows - 1)
    return data.take(order[held:]), data.take(order[:held])


def iid(data: Dataset, clients: int, rng: np.random.Generator) -> list[Dataset]:
    """Equal shares of the shuffled rows (sizes differ by at most one)."""
    _enough(data, clients)
    return [data.take(part) for part in np.array_split(rng.permutation(data.rows), clients)]


def sized(data: Dataset, sizes: Sequence[int], rng: np.random.Generator) -> list[Dataset]:
    """Shuffled rows, `sizes[i]` of them for client i; rows left over are not used."""
    if min(sizes, default=0) < 1 or sum(sizes) > data.rows:
        raise ConfigError(f"sizes must be positive and sum to at most {data.rows} rows, not {sum(sizes)}")
    order = rng.permutation(data.rows)
    ends = np.cumsum(sizes)
    return [data.take(order[end - size : end]) for size, end in zip(sizes, ends, strict=True)]


def one_small(data: Dataset, clients: int, small: int, rng: np.random.Generator) -> list[Dataset]:
    """Client 0 holds `small` rows, the others share the rest evenly."""
    if clients < 2:
        raise ConfigError(f"one small client among others needs at least 2 clients, not {clients}")
    rest = (data.rows - small) // (clients - 1)
    return sized(data, [small] + [rest] * (clients - 1), rng)


def by_label(data: Dataset, clients: int) -> list[Dataset]:
    """Rows sorted by label, then cut into equal shares: the most unequal split of the labels."""
    _enough(data, clients)
    order = np.argsort(data.labels(), kind="stable")
    return [data.take(part) for part in np.array_split(order, clients)]


def _enough(data: Dataset, clients: int) -> None:
    if not 1 <= clients <= data.rows:
        raise ConfigError(f"{data.rows} rows can be split over 1..{data.rows} clients, not {clients}")
