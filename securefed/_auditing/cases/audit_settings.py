"""Settings of an audit of registered algorithms: what the user asks, and what follows from it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from securefed._auditing.cases.case import Case, case, require_clients
from securefed._auditing.cases.setup import SetupOptions, TrainingSetup
from securefed._auditing.cases.utility_floors import for_these_classes
from securefed._auditing.engine.audit_report import ACCEPTABLE
from securefed._hyperparameters import check_integer
from securefed.errors import ConfigError


class AuditOptions(SetupOptions, total=False):
    """The fields of `AuditSettings`, as keyword arguments of `audit`; the class says what each means."""

    seeds: int
    epsilon: float
    epsilons: Sequence[float]
    acceptable: float
    every_seed: bool
    survivor_change: int
    colluders: int
    membership: bool
    active: bool


@dataclass(frozen=True, kw_only=True)
class AuditSettings(TrainingSetup):
    """All that a user can ask of an audit beside the algorithms, defences and attacks.

    The first fields, from `data` to `classes`, are those of `TrainingSetup`: the training.

    Attributes:
        seeds: runs of each cell; a report to rely on needs 10.
        epsilon: the epsilon of the defences with noise, over all rounds together.
        epsilons: the epsilons for curves of leakage and utility against epsilon, over three seeds.
        acceptable: leakage to the server up to which a defence counts as a remedy in the report.
        every_seed: run secure aggregation and Paillier themselves in every round of every seed. Otherwise they run the
            first rounds of the first seed, whose sums are checked against a run that only quantises; that run stands
            for all others.
        survivor_change: number of clients that come and go together where survivors change, the target among them, as
            `secure_aggregation(survivor_change=...)` requires of them.
        colluders: number of clients that tell the server what they sent; the attacker of every view of sums has it. A
            word of safety then holds against the server with their help, and says that one more may be too many.
        membership: also ask which rows the target has, under every kind of noise (`membership_audit`).
        active: also attack with a server that chooses its broadcasts (view `active server`).

    Raises:
        ConfigError: a value is out of range.
    """

    seeds: int = field(default=10, repr=False)  # what changes no single run is not in the `digest`
    epsilon: float = 8.0
    epsilons: Sequence[float] = ()
    acceptable: float = field(default=ACCEPTABLE, repr=False)
    every_seed: bool = False
    survivor_change: int = 1
    colluders: int = 0
    membership: bool = field(default=False, repr=False)
    active: bool = False

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise ConfigError(f"an audit needs at least one seed, not {self.seeds}")
        if self.membership and self.seeds < 2:
            raise ConfigError("membership rates are over seeds: they need at least two seeds")
        for epsilon in (self.epsilon, *self.epsilons):
            if not 0 < epsilon < math.inf:
                raise ConfigError(f"epsilon must be positive and finite, not {epsilon}; 1 to 10 are usual")
        if not 0 < self.delta < 1:
            raise ConfigError(f"delta must lie between 0 and 1, not {self.delta}; 1e-5 is usual")


@dataclass(frozen=True, kw_only=True)
class Settings(AuditSettings):
    """Settings that all registered algorithms of an audit share: those of the user, and what follows from them.

    Attributes:
        clients: number of clients.
        defenses: names of those to run.
        attacks: names of those to run.
        noise: by (epsilon, number of rounds) the noise multiplier that meets (epsilon, delta): the noise's standard
            deviation over the clipping norm.
        clips: by (algorithm, rows of every client or `None`) the clipping norm under noise, where it is measured
            (`registered_subject.measured_clips`).
    """

    clients: int
    defenses: tuple[str, ...]
    attacks: tuple[str, ...]
    noise: Mapping[tuple[float, int], float] = field(default_factory=dict)
    clips: Mapping[tuple[str, int | None], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        require_clients(self.clients)
        most = max((self.clients - 1) // 2, 1)
        if not 1 <= self.survivor_change <= most:
            raise ConfigError(
                f"survivor_change must lie in 1..{most} for {self.clients} clients, not {self.survivor_change}: secure "
                "aggregation opens sums of more than half of them"
            )
        check_integer("colluders", self.colluders, 0, self.clients - 2)

    def case(self, algorithm: str, rows: int | None = None) -> Case:
        """Return an algorithm's audit case with what the user changes of it.

        Args:
            algorithm: its name.
            rows: the number of rows of every client, where they are not those of `own`.
        """
        own = self.own if rows is None else replace(self.own, rows=rows)
        found = for_these_classes(own.apply(case(algorithm)), self.source().data)
        return replace(found, clip=self.clips.get((algorithm, rows), found.clip))

    def present(self, round: int) -> tuple[int, ...]:
        """List the clients of a round over changing survivors: all in even rounds, all but the first few in odd.

        Those that stay away are clients 0 to `survivor_change` - 1; client 0 is the target.
        """
        return tuple(range(self.clients))[self.survivor_change if round % 2 else 0 :]

    def joining(self, round: int) -> tuple[int, ...]:
        """List the clients of a round over changing survivors where the first few stay away in even rounds instead."""
        return self.present(round + 1)

    def columns(self, count: int) -> tuple[str, ...]:
        """Return the names of the data's columns; none where a run has another number of columns than the data."""
        names = self.source().features
        return names if len(names) == count else ()
