"""What the audit runs for each algorithm: hyper-parameters, how the data is split, the secret, and the clip.

The settings are those in which the reference attacks were measured; every number is printed in the report.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from securefed.algorithms.base import Algorithm, Public
from securefed.catalogue import algorithms
from securefed.datasets.base import Dataset
from securefed.datasets.loaders import Source
from securefed.errors import ConfigError
from securefed.registry import Registry
from securefed.tensors import Tensors

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


Preparation = Callable[[Source, int, int], Prepared]
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


def accuracy(algorithm: str, setting: Setting) -> Callable[[Tensors, Dataset], float]:
    """The utility of a trained model: what its algorithm calls so, on held-out rows."""

    def utility(output: Tensors, test: Dataset) -> float:
        built: Any = algorithms.make(algorithm, **setting)
        return float(built.utility(output, test))

    return utility


cases: Registry[Case] = Registry("algorithm")


def register(case: Case) -> None:
    """Make a case known. Raises `UnknownNameError` where its algorithm is not registered."""
    entry = algorithms[case.name]
    cases.register(case.name, lambda: case, summary=entry.summary, source=entry.source)


def case(name: str) -> Case:
    """The case of an algorithm. Raises `UnknownNameError` for a name that has none."""
    return cases[name].make()


FAMILIES = ("pca", "optimization", "personalized", "graph", "detection")
"""In the report's order."""


def every() -> tuple[str, ...]:
    """All algorithms with a case, in the report's order."""
    return tuple(sorted(cases.names, key=lambda name: FAMILIES.index(name.split("/")[0])))


def defaults() -> tuple[str, ...]:
    """The algorithms of an audit that names none."""
    return tuple(name for name in every() if case(name).default)


def require_clients(clients: int) -> None:
    """The audit's smallest federation: secure aggregation needs 3, a collusion of all others leaves one."""
    if clients < 3:
        raise ConfigError(f"the audit needs at least 3 clients (secure aggregation refuses fewer), not {clients}")
