"""Settings that all registered algorithms of an audit share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Settings:
    """Settings that all registered algorithms of an audit share.

    Attributes:
        data: name of the data set.
        clients: number of clients.
        defenses: names of those to run.
        attacks: names of those to run.
        epsilon: of the defence with noise, for all rounds together.
        delta: likewise.
        noise: noise multiplier that meets (epsilon, delta), by epsilon and number of rounds.
        epsilons: for the curve of leakage and utility against epsilon; may be empty.
        every_seed: whether defences without noise run themselves in every round of every seed.
        survivor_change: number of clients that come and go together where survivors change, the target among them.
        active: whether a server that chooses its broadcasts attacks too.
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
    active: bool = False

    def present(self, round: int) -> tuple[int, ...]:
        """List the clients of a round over changing survivors: all in even rounds, all but those that go in odd."""
        return tuple(range(self.clients))[self.survivor_change if round % 2 else 0 :]
