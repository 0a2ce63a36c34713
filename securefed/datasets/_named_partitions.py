"""Split data by the name of a partition, as on the command line: `iid`, `dirichlet=0.3`, `by_group=subject`.

The splits themselves are the functions of `partition`; here the text after `=` is read into their argument.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from securefed.datasets import partition
from securefed.datasets._base import Dataset
from securefed.datasets._loaded_dataset import LoadedDataset
from securefed.errors import ConfigError, UnknownNameError

PartitionFunction = Callable[[LoadedDataset, int, np.random.Generator, str], list[Dataset]]
"""(data set, number of clients, generator, the text after `=`)."""


def _number(text: str, example: str, default: float | None = None) -> float:
    """Read the value after `=`, or take the default where there is none; `example` is for the error."""
    try:
        return float(text) if text or default is None else default
    except ValueError:
        name = example.partition("=")[0]
        raise ConfigError(f"partition {name} must have a number after `=`; got {text!r}. Write {example}.") from None


def _integer(text: str, example: str, default: int | None = None) -> int:
    """Read the whole number after `=`, as `_number` does."""
    number = float(_number(text, example, default))
    if not number.is_integer():
        name = example.partition("=")[0]
        raise ConfigError(f"partition {name} must have an integer after `=`; got {text!r}. Write {example}.")
    return int(number)


def _alone(source: LoadedDataset, name: str, text: str) -> Dataset:
    """Return the rows of a data set; raise `ConfigError` where a partition without a value is given one."""
    if text:
        raise ConfigError(f"partition {name} takes no value; got {text!r}. Write {name}.")
    return source.data


def _by_feature(source: LoadedDataset, clients: int, rng: np.random.Generator, text: str) -> list[Dataset]:
    """Split by a column that is given by its number or name."""
    column = int(text) if text.isdecimal() else source.column(text)
    return partition.by_feature(source.data, clients, column)


def _by_group(source: LoadedDataset, clients: int, rng: np.random.Generator, text: str) -> list[Dataset]:
    """Split by a grouping of the rows, such as the subject, that is given by its name."""
    if text not in source.groups:
        known = ", ".join(source.groups)
        remedy = f"its groups are {known}" if known else "it has no groups; choose another partition"
        raise ConfigError(f"{source.name} has no groups {text!r}; {remedy}")
    return partition.by_group(source.data, source.groups[text], clients)


# s is the data set, n the number of clients, and `text` what stands after `=`
PARTITIONS: dict[str, PartitionFunction] = {
    "iid": lambda s, n, rng, text: partition.iid(_alone(s, "iid", text), n, rng),
    "power_law": lambda s, n, rng, text: partition.power_law(
        s.data, n, rng, exponent=_number(text, "power_law=1", 1.0)
    ),
    "one_small": lambda s, n, rng, text: partition.one_small(s.data, n, _integer(text, "one_small=20"), rng),
    "by_label": lambda s, n, rng, text: partition.by_label(_alone(s, "by_label", text), n),
    "shards": lambda s, n, rng, text: partition.shards(s.data, n, rng, per_client=_integer(text, "shards=2", 2)),
    "partly_sorted": lambda s, n, rng, text: partition.partly_sorted(
        s.data, n, rng, share=_number(text, "partly_sorted=0.5")
    ),
    "dirichlet": lambda s, n, rng, text: partition.dirichlet(s.data, n, rng, alpha=_number(text, "dirichlet=0.3")),
    "by_feature": _by_feature,
    "by_group": _by_group,
}


def partitioned(source: LoadedDataset, how: str, clients: int, rng: np.random.Generator) -> list[Dataset]:
    """Split the rows of a data set over clients.

    Args:
        source: the data set.
        how: `NAME` or `NAME=VALUE` of `PARTITIONS`. The value is the exponent of the clients' sizes in `power_law`, the
            rows of the small client in `one_small`, the shards of a client in `shards`, the sorted share in
            `partly_sorted`, alpha in `dirichlet`, a column in `by_feature`, the name of a grouping in `by_group`. Test
            rows are not split.
        clients: number of clients.
        rng: generator of everything random.

    Raises:
        ConfigError: an unknown name or value, or a split that the data does not allow.
        DataError: a column that the data set does not have, or labels that it lacks.
    """
    name, _, text = how.partition("=")
    if name not in PARTITIONS:
        raise UnknownNameError("partition", name, PARTITIONS)
    return PARTITIONS[name](source, clients, rng, text)
