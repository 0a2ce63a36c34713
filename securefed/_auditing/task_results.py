"""What the tasks of an audit are told, and what they find."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from securefed._auditing.audit_cells import RunFacts, Score, Secret


@dataclass(frozen=True)
class Settings:
    """What all tasks of an audit share.

    Attributes:
        data: name of the data set.      clients: N.
        defenses, attacks: names to run.
        epsilon, delta: of the DP defence, for all rounds together.
        noise: noise multiplier that meets (epsilon, delta), by epsilon and number of rounds.
        epsilons: for the curve of leakage and utility against epsilon; may be empty.
        every_seed: run the exact defences themselves on every seed.
        survivor_change: how many clients come and go together where survivors change: the target, and others with it.
    """

    data: str
    clients: int
    defenses: tuple[str, ...]
    attacks: tuple[str, ...]
    epsilon: float
    delta: float
    noise: Mapping[tuple[float, int], float]
    epsilons: tuple[float, ...]
    every_seed: bool
    survivor_change: int = 1

    def present(self, round: int) -> tuple[int, ...]:
        """Who takes part in a round where survivors change: all, and in every second one all but those that go."""
        return tuple(range(self.clients))[self.survivor_change if round % 2 else 0 :]


@dataclass(frozen=True)
class Task:
    """One seed of one algorithm; `first` runs the exact defences themselves and keeps pictures."""

    algorithm: str
    seed: int
    first: bool
    settings: Settings


@dataclass(frozen=True)
class Artifact:
    """A secret and its reconstruction, for pictures."""

    algorithm: str
    defense: str
    view: str
    attack: str
    secret: Secret
    truth: np.ndarray[Any, Any]
    estimate: np.ndarray[Any, Any]
    image_shape: tuple[int, int] | None


@dataclass(frozen=True)
class Trace:
    """One attack on growing prefixes of one plain transcript.

    Attributes:
        setting: what the run was, for the chart's legend.      rounds: prefix lengths.
        errors, conditions: of the client's secret, one for each prefix (NaN where the attack did not apply yet).
    """

    setting: str
    algorithm: str
    attack: str
    rounds: tuple[int, ...]
    errors: tuple[float, ...]
    conditions: tuple[float, ...]


@dataclass(frozen=True)
class Tradeoff:
    """One run of the DP defence at one epsilon.

    Attributes:
        leakage: of the client's secret, by the strongest attack on what leaves the aggregator; NaN where none applies.
        utility: of the final model on held-out rows.
    """

    algorithm: str
    epsilon: float
    seed: int
    leakage: float
    utility: float


@dataclass(frozen=True)
class Gap:
    """What a task was to run and did not.

    Attributes:
        algorithm, defense, seed: of the task.
        view, attack: which part of it; empty where the run itself ended.
        reason: in a sentence.
    """

    algorithm: str
    defense: str
    view: str
    attack: str
    seed: int
    reason: str


@dataclass(frozen=True)
class TaskResult:
    """What a task found."""

    scores: tuple[Score, ...]
    facts: tuple[RunFacts, ...]
    artifacts: tuple[Artifact, ...]
    skipped: tuple[str, ...]
    traces: tuple[Trace, ...]
    tradeoffs: tuple[Tradeoff, ...]
    gaps: tuple[Gap, ...] = ()
