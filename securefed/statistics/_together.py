"""Compute several statistics of the same rows in one exchange.

    table = Together(age=Mean(...), lab=Variance(...), wards=ContingencyTable(...))
    table.simulate(sites, secure_aggregation())["age"].value

The tensors of all statistics travel in one sum: a round with ten statistics takes as many messages as with one. Each
statistic has its own rows (it may omit some), its own bounds, and its own result; what is released of it, and from how
many rows of a party, is checked for each.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any, Final

from securefed._tensors import Array
from securefed.errors import ConfigError
from securefed.parties._result import SumResult
from securefed.parties._terms_parts import SummedTensor
from securefed.statistics._base import Statistic, check_result
from securefed.statistics._estimate import Estimates
from securefed.statistics._one_sum import OneSum, Rows

_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


@dataclass(frozen=True, init=False)
class Together(OneSum[Estimates]):
    """Several statistics in one exchange, each with its own result.

    Attributes:
        statistics: the statistics; those without a name are called after their class, `mean`, `mean_2` and so on.
        names: their names.

    Raises:
        ConfigError: no statistic, something else, or a name with other characters than letters, digits and `_`.
    """

    statistics: tuple[Statistic, ...]
    names: tuple[str, ...]

    def __init__(self, *statistics: Statistic, names: tuple[str, ...] | None = None, **named: Statistic) -> None:
        for each in (*statistics, *named.values()):
            if not isinstance(each, Statistic) or not each.one_sum:
                raise ConfigError(
                    f"Together needs statistics of one sum, such as Mean(bound=120); got {type(each).__name__}"
                )
        own = tuple(names) if names else _numbered(statistics, set(named))
        object.__setattr__(self, "statistics", (*statistics, *named.values()))
        object.__setattr__(self, "names", (*own, *named))
        if not self.statistics or len(self.names) != len(self.statistics):
            raise ConfigError(f"{len(self.statistics)} statistics and {len(self.names)} names; give one name for each")
        if wrong := [name for name in self.names if not _NAME.fullmatch(name)]:
            raise ConfigError(f"a name is a letter, then letters, digits and _; got {wrong[0]!r}")
        if len(set(self.names)) < len(self.names):
            raise ConfigError(f"each statistic has a name of its own; got {', '.join(self.names)}")

    def summed_tensors(self) -> tuple[SummedTensor, ...]:
        """Return the tensors of all statistics, each behind the name of its statistic."""
        return tuple(
            replace(tensor, name=f"{name}.{tensor.name}")
            for name, each in zip(self.names, self.statistics, strict=True)
            for tensor in each.summed_tensors()
        )

    def summand(self, x: Rows, y: Rows | None = None) -> dict[str, Array]:
        """Compute one party's part of the sum for all statistics: the update for `SumClient.receive`.

        Args:
            x: rows, as `Statistic.summand` takes them; each statistic reads its own columns of a table with names.
            y: targets, for the statistics that have them.

        Raises:
            DataError: as `Statistic.summand`.
        """
        return {
            f"{name}.{key}": value
            for name, each in zip(self.names, self.statistics, strict=True)
            for key, value in each.summand(x, y if each.takes_target else None).items()
        }

    def estimate(self, result: SumResult) -> Estimates:
        """Compute each statistic from the result of the sum.

        Raises:
            ConfigError: no result of a sum.
            DataError: the sum holds too few rows for a statistic.
        """
        check_result(result)
        parts = dict(zip(self.names, self.statistics, strict=True))
        found = {name: each.estimate(_part(result, name)) for name, each in parts.items()}
        return Estimates(found, frozenset(name for name, each in parts.items() if each.by_column))

    def _refusing(self) -> str:
        return next(filter(None, (each._refusing() for each in self.statistics)), "")


def _part(result: SumResult, name: str) -> SumResult:
    """Return the sums of one statistic, under its own names."""

    def own(values: Any) -> dict[str, Any]:
        return {key.removeprefix(f"{name}."): value for key, value in values.items() if key.startswith(f"{name}.")}

    return replace(
        result, mean=own(result.mean), total=own(result.total), error=own(result.error), noise=own(result.noise)
    )


def _numbered(statistics: tuple[Statistic, ...], taken: set[str]) -> tuple[str, ...]:
    """Return a name for each statistic after its class, numbered where one occurs again."""
    names: list[str] = []
    for each in statistics:
        name = stem = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(each).__name__).lower()
        number = 1
        while name in taken or name in names:
            number += 1
            name = f"{stem}_{number}"
        names.append(name)
    return tuple(names)
