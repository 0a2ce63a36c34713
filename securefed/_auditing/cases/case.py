"""Read the audit's run of each registered algorithm: hyper-parameters, data, rounds, secret, clip and utility.

Each algorithm's class holds them as `audit_case`, in which split and utility are named; `case` resolves the names to
functions. They are the settings in which the published attacks were measured, and the report prints every one. An audit
makes the data of each seed (one repetition of the run) by `Case.prepare`, and the algorithm by `Case.build`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from securefed._auditing.cases.data_splits import preparation, words
from securefed._auditing.cases.prepared_data import Preparation
from securefed._auditing.cases.utilities import utility
from securefed._catalogue import algorithms
from securefed._tensors import Tensors
from securefed.algorithms._base import Algorithm
from securefed.datasets._base import Dataset
from securefed.errors import ConfigError, UnknownNameError

Setting = Mapping[str, Any]
"""Hyper-parameters by name."""


@dataclass(frozen=True)
class Case:
    """The run of one algorithm in an audit.

    Attributes:
        name: the algorithm's registry name.
        setting: its hyper-parameters.
        secret: kind of data that its clients keep secret, by its name in `scoring.SCORES`: `gram` (X^T X of a client's
            rows X), `samples` (its rows), `distances` (between its columns) or `personal` (the model that stays there).
        prepare: (source, clients, seed) -> data of one run.
        rounds: number of training rounds.
        clip: L2 norm to which a contribution is clipped under differential privacy.
        utility: (final broadcast, held-out rows) -> score, higher is better.
        utility_name: what it measures.
        data: the split of the data, in words.
        wide: data of more columns, for a harder run that is traced over rounds beside the usual one; `None` without.
        wide_rounds: numbers of rounds after which the attacks are tried in that run.
        absences: data of the runs in which the target stays away in some rounds, so that sums can be subtracted; `None`
            for those of the other runs.
        traced: number of seeds on which the attacks also see only the first rounds, for the curves.
        also: kinds of secrets that are attacked and scored in addition to `secret`.
        split: name of the split of the rows, as the algorithm's class gives it.
    """

    name: str
    setting: Setting
    secret: str
    prepare: Preparation
    rounds: int
    clip: float
    utility: Callable[[Tensors, Dataset], float]
    utility_name: str
    data: str
    wide: Preparation | None = None
    wide_rounds: tuple[int, ...] = ()
    absences: Preparation | None = None
    traced: int = 3
    also: tuple[str, ...] = ()
    split: str = ""

    @property
    def secrets(self) -> tuple[str, ...]:
        """All kinds of secrets that are attacked."""
        return (self.secret, *self.also)

    def build(self) -> Algorithm[Any, Any]:
        """Make the algorithm with this case's hyper-parameters."""
        return algorithms.make(self.name, **self.setting)

    def describe(self) -> dict[str, Any]:
        """Return the case's settings for the report."""
        setting = {
            name: value if isinstance(value, int | float | str | bool) else str(value)
            for name, value in self.setting.items()
        }
        return {
            "hyper-parameters": setting,
            "data": self.data,
            "rounds": self.rounds,
            "secret": self.secret,
            "also attacked": ", ".join(self.also) or "nothing else",
            "clip": self.clip,
            "utility": self.utility_name,
        }


_PRIVATE = (
    ". How far its noise hides single rows: `audit_records` measures it, and `securefed advise optimization/fedavg` "
    "says what it costs. What its messages would leak without that noise: audit optimization/fedavg"
)
"""What can be asked about an algorithm whose clients add noise in their local steps, and that has no audit case."""


def case(name: str) -> Case:
    """Resolve the audit case of an algorithm.

    Args:
        name: as `securefed list` names it, or `module:Class`.

    Raises:
        UnknownNameError: there is no such algorithm.
        ConfigError: it has no audit case, or its audit case names a split or a utility that does not exist.
    """
    entry = algorithms[name]
    data = entry.audit_case
    if data is None:
        if ":" in name:
            raise ConfigError(f"{name} has no audit case; give the class an attribute `audit_case = AuditCase(...)`")
        if name in algorithms.names:
            raise ConfigError(
                f"{name} is registered but cannot be audited by name, since it has no audit case. "
                "`audit_algorithm(algorithm, clients)` attacks its messages, in Python"
                + _PRIVATE
                * name.startswith("private/")
            )
        raise UnknownNameError("algorithm", name, case_names())
    score, label = utility(data.utility, lambda: entry.make(**data.settings))
    return Case(
        name=entry.name,
        setting=data.settings,
        secret=data.secret,
        prepare=preparation(data.split),
        rounds=data.rounds,
        clip=data.clip,
        utility=score,
        utility_name=label,
        data=data.split_words or words(data.split),
        wide=preparation(data.wide_split) if data.wide_split else None,
        wide_rounds=data.wide_rounds,
        absences=preparation(data.absent_split) if data.absent_split else None,
        traced=data.traced,
        also=data.also,
        split=data.split,
    )


def case_names() -> tuple[str, ...]:
    """List all registered algorithms with an audit case."""
    return tuple(entry.name for entry in algorithms if entry.audit_case is not None)


FAMILIES = ("pca", "optimization", "personalized", "graph", "detection")
"""Families of algorithms in the report's order; others follow."""


def every() -> tuple[str, ...]:
    """List all algorithms with an audit case, in the report's order."""
    order = {family: index for index, family in enumerate(FAMILIES)}
    return tuple(sorted(case_names(), key=lambda name: order.get(name.split("/")[0], len(order))))


def defaults() -> tuple[str, ...]:
    """List the algorithms of an audit that names none."""
    return tuple(name for name in every() if algorithms[name].audit_case.default)


def require_clients(clients: int) -> None:
    """Refuse fewer than 3 clients, which secure aggregation needs."""
    if clients < 3:
        raise ConfigError(f"the audit needs at least 3 clients (secure aggregation refuses fewer), not {clients}")
