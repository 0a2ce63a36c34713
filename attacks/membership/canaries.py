"""Record membership as a game of many bits: each of a client's rows is its own, or a stand-in from the population.

One run plays as many bits as the client has rows (after Steinke, Nasr, Jagielski, arXiv 2305.08846). Two adversaries
score every bit by a log likelihood ratio, own row against stand-in, and both know the stand-ins, every other client's
rows, the noise's size and the algorithm. `informed` knows the client's other rows too, the adversary of differential
privacy; `population` knows the population that they come from (LiRA's shadow runs, Carlini et al., S&P 2022).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from securefed.attacks.generic.replay import Replay
from securefed.attacks.membership.lira import gaussian_log
from securefed.datasets.base import Dataset
from securefed.errors import DataError
from securefed.tensors import Array

_FLOOR = 1e-9


@dataclass(frozen=True)
class Canaries:
    """The bits of one run, at the client's first rows.

    Attributes:
        own, stand_ins: (bits, features) the two rows that may stand at each place.
        inside: (bits,) whether it is the client's own.
    """

    own: Array
    stand_ins: Array
    inside: Array

    def planted(self, data: Dataset) -> Dataset:
        """The client's data as the bits say."""
        rows = data.x.copy()
        rows[: len(self.own)] = np.where(self.inside[:, None], self.own, self.stand_ins)
        return Dataset(rows, data.y)


def plant(data: Dataset, population: Dataset, bits: Sequence[bool], rng: np.random.Generator) -> Canaries:
    """Canaries at the first rows of `data`; stand-ins have the label of the row that they stand in for.

    Raises:
        DataError: the population has no row of some label.
    """
    count = min(len(bits), data.rows)
    places: list[int] = []
    for place in range(count):
        fits = np.flatnonzero(alike(population, data, place))
        free = np.setdiff1d(fits, places)
        if not free.size:
            raise DataError("the population has no row left with the label of a canary; give more held-out rows")
        places.append(int(rng.choice(free)))
    return Canaries(data.x[:count].copy(), population.x[places], np.asarray(bits[:count], bool))


def alike(population: Dataset, data: Dataset, place: int) -> Array:
    """(population rows,) which may stand at a place: those of its label, all where there are none."""
    if data.y is None or population.y is None or data.y.dtype.kind not in "iu":
        return np.ones(population.rows, bool)
    return np.asarray(population.y == data.y[place])


@dataclass(frozen=True)
class Game:
    """One client's part of the messages, and what an adversary makes of it.

    Attributes:
        replay: the observed rounds as a function of rows; `replay.members[member]` is the client.
        seen: (numbers,) its part of all messages, noise included.
        noise: standard deviation of the numbers, or of each.
        data: the client's data as planted.      canaries: the bits.
    """

    replay: Replay
    member: int
    seen: Array
    noise: float | Array
    data: Dataset
    canaries: Canaries

    def informed(self) -> Array:
        """(bits,) scores of the adversary who knows all other rows: higher means rather the own row."""
        noisy = bool(np.any(self.noise))
        unit = np.sqrt(2) * self.noise if noisy else float(np.linalg.norm(self.seen)) or 1.0
        out = []
        for place, pair in enumerate(zip(self.canaries.own, self.canaries.stand_ins, strict=True)):
            own, other = (self._off(self._with(self.data.x, place, row), unit) for row in pair)
            out.append(other - own)
        return np.array(out)

    def population(self, population: Dataset, shadows: int, rng: np.random.Generator) -> Array:
        """(bits,) scores of the adversary who draws the client's other rows from the population, `shadows` times."""
        draws = [self._drawn(population, rng) for _ in range(shadows)]
        floor = self.noise**2 + _FLOOR * float(np.linalg.norm(self.seen)) ** 2 / self.seen.size
        out = []
        for place, pair in enumerate(zip(self.canaries.own, self.canaries.stand_ins, strict=True)):
            logs = []
            for row in pair:
                runs = np.stack([self._sent(self._with(rows, place, row)) for rows in draws])
                logs.append(gaussian_log(self.seen, runs, floor))
            out.append(float(np.sum(logs[0] - logs[1])))
        return np.array(out)

    def _drawn(self, population: Dataset, rng: np.random.Generator) -> Array:
        return np.stack(
            [population.x[rng.choice(np.flatnonzero(alike(population, self.data, k)))] for k in range(self.data.rows)]
        )

    def _with(self, rows: Array, place: int, row: Array) -> Array:
        changed = rows.copy()
        changed[place] = row
        return changed

    def _sent(self, rows: Array) -> Array:
        return self.replay.alone(self.member, Dataset(rows, self.data.y))

    def _off(self, rows: Array, unit: float | Array) -> float:
        return float(np.sum(((self.seen - self._sent(rows)) / unit) ** 2))
