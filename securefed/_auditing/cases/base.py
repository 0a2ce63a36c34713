"""What the audit runs for each algorithm: hyper-parameters, how the data is split, the secret, and the clip.

The settings are those in which the reference attacks were measured; every number is printed in the report.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from securefed._catalogue import algorithms
from securefed._public import Public
from securefed._tensors import Tensors
from securefed.algorithms._base import Algorithm
from securefed.datasets._base import Dataset
from securefed.datasets._loaders import LoadedDataset
from securefed.errors import ConfigError, UnknownNameError

Setting = Mapping[str, Any]


@dataclass(frozen=True)
class Prepared:
    """One seed's federation.

    Attributes:
        clients: one data set each; client 0 is the target.      test: held-out rows, on which utility is measured.
        public: declared facts.      image_shape: of rows that are images.
    """

    clients: tuple[Dataset, ...]
    test: Dataset
    public: Public
    image_shape: tuple[int, int] | None


Preparation = Callable[[LoadedDataset, int, int], Prepared]
"""(source, clients, seed) -> the data of one run."""


@dataclass(frozen=True)
class WideCase:
    """The same algorithm on all of the data's width.

    Attributes:
        prepare: as in `Case`.      rounds: prefix lengths at which the attack is tried.
    """

    prepare: Preparation
    rounds: tuple[int, ...]


@dataclass(frozen=True)
class Case:
    """How the audit runs one algorithm.

    Attributes:
        name: the algorithm's registry name.      setting: its hyper-parameters.
        secret: what its clients want kept, by its name in `scoring.SCORES`: their `gram` matrix, or their `samples`.
        also: further secrets, attacked and scored beside it.
        prepare: (source, clients, seed) -> data of one run.
        rounds: training rounds.      clip: L2 norm of one contribution under differential privacy.
        utility: (final broadcast, held-out rows) -> score, higher is better.      utility_name: what it measures.
        data: the split, in words.
        wide: a harder setting, traced over rounds beside the default one.
        absences: the data of the view in which the target stays away now and then; `None` without that view.
        default: whether the audit runs it where no algorithm is named (it must stay quick); all can be named.
        traced: seeds on which the attacks also see growing prefixes of the plain transcript.
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
    wide: WideCase | None = None
    absences: Preparation | None = None
    default: bool = False
    traced: int = 3
    also: tuple[str, ...] = ()

    @property
    def secrets(self) -> tuple[str, ...]:
        """All that is attacked."""
        return (self.secret, *self.also)

    def build(self) -> Algorithm[Any, Any]:
        """The algorithm with this case's hyper-parameters."""
        return algorithms.make(self.name, **self.setting)

    def describe(self) -> dict[str, Any]:
        """For the report."""
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


def case(name: str) -> Case:
    """Resolve the audit case of an algorithm.

    Args:
        name: as `securefed list` names it, or `module:Class`.

    Raises:
        UnknownNameError: there is no such algorithm, or it has no audit case.
        ConfigError: its audit case names a split or a utility that does not exist.
    """
    from securefed._auditing.cases.data import preparation, words  # noqa: PLC0415 - needs the classes above
    from securefed._auditing.cases.utilities import utility  # noqa: PLC0415

    entry = algorithms[name]
    data = entry.audit_case
    if data is None:
        if ":" in name:
            raise ConfigError(f"{name} has no audit case; give the class an attribute `audit_case = AuditCase(...)`")
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
        wide=WideCase(preparation(data.wide_split), data.wide_rounds) if data.wide_split else None,
        absences=preparation(data.absent_split) if data.absent_split else None,
        default=data.default,
        traced=data.traced,
        also=data.also,
    )


def case_names() -> tuple[str, ...]:
    """All registered algorithms with an audit case."""
    return tuple(entry.name for entry in algorithms if entry.audit_case is not None)


FAMILIES = ("pca", "optimization", "personalized", "graph", "detection")
"""In the report's order; other families follow."""


def every() -> tuple[str, ...]:
    """All algorithms with a case, in the report's order."""
    order = {family: index for index, family in enumerate(FAMILIES)}
    return tuple(sorted(case_names(), key=lambda name: order.get(name.split("/")[0], len(order))))


def defaults() -> tuple[str, ...]:
    """The algorithms of an audit that names none."""
    return tuple(name for name in every() if algorithms[name].audit_case.default)


def require_clients(clients: int) -> None:
    """The audit's smallest federation: secure aggregation needs 3, a collusion of all others leaves one."""
    if clients < 3:
        raise ConfigError(f"the audit needs at least 3 clients (secure aggregation refuses fewer), not {clients}")
