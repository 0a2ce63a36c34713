"""Split one data set over clients.

Users call these functions to simulate clients; each returns one `Dataset` for each client. Splits by label, by a column
or by size make clients unlike each other, as they are in practice. The same generator gives the same split. Unless the
docstring says otherwise, every row goes to exactly one client, and every client gets at least one row. A split that the
rows do not allow is a `ConfigError`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from securefed._hyperparameters import check_integer, check_number, check_positive
from securefed._tensors import Array
from securefed.datasets._base import Dataset
from securefed.errors import ConfigError, DataError

DIRICHLET_DRAWS = 100
"""Number of draws after which a Dirichlet split is given up; a hundred draws take less than a second."""


def split(data: Dataset, share: float, rng: np.random.Generator) -> tuple[Dataset, Dataset]:
    """Hold out a random `share` of the rows; return (rest, held out), at least one row each."""
    rest, held = split_rows(data.rows, share, rng)
    return data.take(rest), data.take(held)


def split_rows(rows: int, share: float, rng: np.random.Generator) -> tuple[Array, Array]:
    """Return the positions of the rows that `split` takes, (rest, held out), for this number of rows."""
    if not 0 < share < 1 or rows < 2:
        raise ConfigError(
            f"the held-out share must lie between 0 and 1 and the rows be at least 2; got {share} of {rows} rows"
        )
    order = rng.permutation(rows)
    held = min(max(1, round(share * rows)), rows - 1)
    return order[held:], order[:held]


# by number of rows


def iid(data: Dataset, clients: int, rng: np.random.Generator) -> list[Dataset]:
    """Give equal shares of the shuffled rows (sizes differ by at most one)."""
    _check(data, clients, rng)
    return _cut(data, rng.permutation(data.rows), clients)


def sized(data: Dataset, sizes: Sequence[int], rng: np.random.Generator) -> list[Dataset]:
    """Give client i `sizes[i]` shuffled rows; rows left over are not used."""
    if min(sizes, default=0) < 1 or sum(sizes) > data.rows:
        raise ConfigError(f"sizes must be positive and sum to at most {data.rows} rows, not {sum(sizes)}")
    return [data.take(part) for part in np.split(rng.permutation(data.rows), np.cumsum(sizes))[:-1]]


def one_small(data: Dataset, clients: int, small: int, rng: np.random.Generator) -> list[Dataset]:
    """Give client 0 `small` rows, and the others equal shares of the rest; up to clients - 2 rows are not used."""
    check_integer("clients", clients, 2, note="(one small client among others)")
    rest = (data.rows - small) // (clients - 1)
    return sized(data, [small] + [rest] * (clients - 1), rng)


def power_law(data: Dataset, clients: int, rng: np.random.Generator, *, exponent: float = 1.0) -> list[Dataset]:
    """Give client i shuffled rows in proportion to (i + 1)^-exponent; exponent 0 gives equal shares."""
    _check(data, clients, rng)
    check_number("exponent", exponent, 0)
    return sized(data, apportion(data.rows, np.arange(1.0, clients + 1) ** -exponent), rng)


def apportion(rows: int, weights: Sequence[float] | Array) -> list[int]:
    """Divide `rows` into whole numbers in proportion to positive `weights`, by largest remainders, at least one each.

    Raises:
        ConfigError: fewer rows than weights, or a weight that is not positive and finite.
    """
    parts = np.asarray(weights, np.float64)
    if not parts.size or not (np.isfinite(parts) & (parts > 0)).all():
        raise ConfigError("weights of clients must be positive and finite, at least one")
    if rows < parts.size:
        raise ConfigError(f"{rows} rows cannot give {parts.size} clients one each")
    quota = parts / parts.sum() * rows
    sizes = np.maximum(np.floor(quota), 1).astype(np.int64)
    # Give the rows still lacking to the largest remainders. Where "at least one each" gave out too many, take rows back
    # from the parts that are furthest above their quota and have more than one row.
    while lacking := rows - int(sizes.sum()):
        step = 1 if lacking > 0 else -1
        due = np.where((sizes > 1) | (step > 0), (quota - sizes) * step, -np.inf)
        first_due = np.argsort(-due, kind="stable")[: np.isfinite(due).sum()]
        sizes[first_due[: abs(lacking)]] += step
    return [int(size) for size in sizes]


# by label


def by_label(data: Dataset, clients: int) -> list[Dataset]:
    """Sort rows by label and cut them into equal shares: the most unequal split of the labels."""
    _check(data, clients)
    return _cut(data, np.argsort(data.labels(), kind="stable"), clients)


def shards(
    data: Dataset, clients: int, rng: np.random.Generator, *, per_client: int = 2, pure: bool = False
) -> list[Dataset]:
    """Sort rows by label, cut them into equal shards, and give each client `per_client` random ones.

    Source: McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, sec. 3, with
    200 shards of 300 rows and two a client; FLAME, sec. 5.1, whose code cuts `pure` shards.

    Args:
        data: labelled rows.
        clients: number of clients.
        rng: generator of everything random.
        per_client: shards of each client.
        pure: every label gives the same number of shards (to within one) of its own rows only, so that shards differ
            in size but a client has at most `per_client` labels; otherwise a shard may straddle two.
    """
    check_integer("per_client", per_client, 1)
    _check(data, clients, rng, each=per_client)
    total = clients * per_client
    order = np.argsort(data.labels(), kind="stable")
    cut = _pure_shards(order, data.labels()[order], total) if pure else np.array_split(order, total)
    dealt = rng.permutation(total).reshape(clients, per_client)
    return [data.take(np.concatenate([cut[shard] for shard in hand])) for hand in dealt]


def _pure_shards(order: Array, labels: Array, total: int) -> list[Array]:
    """Cut rows into `total` shards of one label each.

    Args:
        order: positions of the rows, sorted by label.
        labels: their labels, in that order.
        total: number of shards.
    """
    counts = np.unique(labels, return_counts=True)[1]
    if total < len(counts):
        raise ConfigError(f"{total} pure shards cannot hold {len(counts)} labels; take more clients or shards")
    each = apportion(total, np.ones(len(counts)))
    if (counts < each).any():
        raise ConfigError(f"a label with {counts.min()} rows cannot give {max(each)} shards; take fewer of them")
    runs = np.split(order, np.cumsum(counts)[:-1])
    return [shard for run, pieces in zip(runs, each, strict=True) for shard in np.array_split(run, pieces)]


def partly_sorted(data: Dataset, clients: int, rng: np.random.Generator, *, share: float) -> list[Dataset]:
    """Sort a random `share` of the rows by label and shuffle the rest; give each client an equal cut of both.

    Source: LoSAC, sec. 5.2.1 (its c %). Share 0 is `iid`, share 1 is `by_label`; sizes differ by at most one.
    """
    _check(data, clients, rng)
    check_number("the sorted share", share, 0, most=1)
    order = rng.permutation(data.rows)
    mixed = order[: data.rows - round(share * data.rows)]
    rest = np.sort(order[len(mixed) :])
    rest = rest[np.argsort(data.labels()[rest], kind="stable")]
    # Cut all rows evenly, and the shuffled ones; the sorted ones fill up each client's share. If shuffled and sorted
    # rows were both cut evenly, the first clients could get one row more of each.
    whole, even = _ends(data.rows, clients), _ends(len(mixed), clients)
    return [
        data.take(np.concatenate(pair))
        for pair in zip(np.split(mixed, even), np.split(rest, whole - even), strict=True)
    ]


def dirichlet(
    data: Dataset, clients: int, rng: np.random.Generator, *, alpha: float, minimum: int = 1
) -> list[Dataset]:
    """Divide each label's rows in shares from Dirichlet(alpha, ..., alpha): even for large alpha, one client for small.

    The draw is repeated, all labels anew, until every client has `minimum` rows.

    Source: Yurochkin et al., Bayesian Nonparametric Federated Learning of Neural Networks (ICML 2019), sec. 4.

    Raises:
        ConfigError: none of `DIRICHLET_DRAWS` draws gives every client `minimum` rows, or there are too few rows.
    """
    check_positive("alpha", alpha)
    check_integer("minimum", minimum, 1)
    _check(data, clients, rng, each=minimum)
    labels = data.labels()
    by_class = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    for _ in range(DIRICHLET_DRAWS):
        owner = np.empty(data.rows, np.int64)
        for rows in by_class:
            ends = np.rint(np.cumsum(rng.dirichlet(np.full(clients, alpha))) * len(rows)).astype(np.int64)[:-1]
            for client, part in enumerate(np.split(rng.permutation(rows), ends)):
                owner[part] = client
        if np.bincount(owner, minlength=clients).min() >= minimum:
            return [data.take(np.flatnonzero(owner == client)) for client in range(clients)]
    raise ConfigError(
        f"no draw of {DIRICHLET_DRAWS} from Dirichlet({alpha}) gave each of {clients} clients {minimum} rows of "
        f"{data.rows}; raise alpha, or lower the number of clients or the minimum"
    )


# by a column or by groups


def by_feature(data: Dataset, clients: int, column: int) -> list[Dataset]:
    """Sort rows by one column and cut them into equal shares: each client holds a range of it.

    FedPCA, sec. V-A1, splits UNSW-NB15 by `by_feature(data, 100, source.column("ct_srv_src"))`.
    One client for each distinct value is `by_group(data, data.x[:, column])`.
    """
    _check(data, clients)
    check_integer("column", column, 0, data.features - 1)
    return _cut(data, np.argsort(data.x[:, column], kind="stable"), clients)


def by_group(data: Dataset, groups: Array, clients: int | None = None) -> list[Dataset]:
    """Give each distinct entry of `groups` to a client of its own, or whole groups to `clients` evenly.

    Args:
        data: the rows.
        groups: (rows,) the subject, recording or service of each row.
        clients: fewer than the groups: each group, largest first, goes to the client with the fewest rows so far.

    Raises:
        DataError: `groups` does not have one entry a row.
        ConfigError: more clients than groups.
    """
    if groups.shape != (data.rows,):
        raise DataError(f"groups must be one entry for each of {data.rows} rows, not of shape {groups.shape}")
    owner = np.unique(groups, return_inverse=True)[1]
    if clients is not None:
        owner = _dealt(np.bincount(owner), clients)[owner]
    order = np.argsort(owner, kind="stable")
    return [data.take(part) for part in np.split(order, np.cumsum(np.bincount(owner))[:-1])]


def _dealt(sizes: Array, clients: int) -> Array:
    """Deal groups of these sizes, largest first, each to the client with the fewest rows; return their clients."""
    if not 1 <= clients <= len(sizes):
        raise ConfigError(
            f"the rows are of {len(sizes)} owners (groups); give 1 to {len(sizes)} clients, not {clients}"
        )
    held, owner = np.zeros(clients, np.int64), np.empty(len(sizes), np.int64)
    for group in np.argsort(-sizes, kind="stable"):
        owner[group] = held.argmin()
        held[owner[group]] += sizes[group]
    return owner


def _cut(data: Dataset, order: Array, clients: int) -> list[Dataset]:
    """Cut the rows, in this order, into equal shares."""
    return [data.take(part) for part in np.array_split(order, clients)]


def _ends(rows: int, clients: int) -> Array:
    """Return where equal shares of `rows` end, (clients - 1,); the first shares are longer by one if need be."""
    return np.cumsum([len(share) for share in np.array_split(np.arange(rows), clients)])[:-1]


def _check(data: Dataset, clients: int, *rngs: np.random.Generator, each: int = 1) -> None:
    """Raise an error if an argument is of a wrong kind, or `data` has fewer than `each` rows for each client."""
    if not isinstance(data, Dataset):
        raise DataError(f"data must be a securefed.Dataset; got {type(data).__name__}. Write Dataset(x, y).")
    rows = f"{data.rows} rows" + (f", {each} for each client" if each > 1 else "")
    check_integer("clients", clients, 1, data.rows // each, note=f"({rows})")
    for rng in rngs:
        if not isinstance(rng, np.random.Generator):
            raise ConfigError(f"rng must be a generator of numpy; got {rng!r}. Write numpy.random.default_rng(0).")
