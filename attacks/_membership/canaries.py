"""Test record membership with canaries: each of a client's first rows is its own or a stand-in from the population.

For each canary a coin decides whether the client trains on its own row or on the stand-in, and an adversary guesses the
coin from the client's messages. One run tests one bit per canary (after Steinke, Nasr, Jagielski, arXiv 2305.08846).
Two adversaries score every bit by the log likelihood ratio of own row against stand-in. Both know the stand-ins, the
other clients' rows, the size of the noise and the algorithm. The adversary `informed` also knows the client's other
rows, as differential privacy assumes. The adversary `population` knows only the population that they come from (shadow
runs as in LiRA, Carlini et al., S&P 2022). The audit of membership plays this game for each algorithm and seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from securefed._tensors import Array
from securefed.attacks._generic.client_replay import Replay
from securefed.attacks._membership.likelihood_ratio import gaussian_log
from securefed.datasets._base import Dataset
from securefed.errors import DataError

_VARIANCE_FLOOR = 1e-9
"""Smallest variance of a number, relative to the mean square: keeps constant numbers from dividing by zero."""


@dataclass(frozen=True)
class Canaries:
    """The canaries of one run, at the client's first rows.

    Attributes:
        own: (bits, features) the client's own rows.
        stand_ins: (bits, features) the rows that may replace them.
        inside: (bits,) whether the client keeps its own row.
    """

    own: Array
    stand_ins: Array
    inside: Array

    def planted(self, data: Dataset) -> Dataset:
        """Return the client's data with the stand-ins in place."""
        rows = data.x.copy()
        rows[: len(self.own)] = np.where(self.inside[:, None], self.own, self.stand_ins)
        return Dataset(rows, data.y)


def plant(data: Dataset, population: Dataset, bits: Sequence[bool], rng: np.random.Generator) -> Canaries:
    """Choose a stand-in of the same label for each of the first rows of `data`.

    Args:
        data: the client's data.
        population: held-out rows that stand-ins are drawn from.
        bits: whether the client keeps its own row, one bit a canary.
        rng: source of randomness.

    Raises:
        DataError: the population has too few rows of some label.
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
    """Return a mask over the population: rows with the label of the row at `place`; all without class labels."""
    if data.y is None or population.y is None or data.y.dtype.kind not in "iu":
        return np.ones(population.rows, bool)
    return np.asarray(population.y == data.y[place])


@dataclass(frozen=True)
class CanaryGame:
    """Score the canaries of one client from its part of the messages.

    Attributes:
        replay: the observed rounds as a function of rows.
        member: index of the client in `replay.members`.
        messages: (numbers,) the client's part of all messages, noise included.
        noise: standard deviation of the noise, one for all numbers or a positive one each; 0 where there is no noise.
        data: the client's data with the canaries planted.
        canaries: the canaries.
    """

    replay: Replay
    member: int
    messages: Array
    noise: float | Array
    data: Dataset
    canaries: Canaries

    def informed(self) -> Array:
        """Return (bits,) scores of the adversary that knows all other rows; higher means the own row is more likely."""
        # Under normal noise the log likelihood of a row is minus the squared distance over 2 noise^2; without noise the
        # distance alone orders the rows.
        noisy = bool(np.any(self.noise))
        unit = np.sqrt(2) * self.noise if noisy else float(np.linalg.norm(self.messages)) or 1.0
        out = []
        for place, pair in enumerate(zip(self.canaries.own, self.canaries.stand_ins, strict=True)):
            own, other = (self._off(self._with(self.data.x, place, row), unit) for row in pair)
            out.append(other - own)
        return np.array(out)

    def population(self, population: Dataset, shadows: int, rng: np.random.Generator) -> Array:
        """Return (bits,) scores of the adversary that draws the client's other rows from the population.

        Args:
            population: rows that the client's rows may come from.
            shadows: number of draws.
            rng: source of randomness.
        """
        draws = [self._drawn(population, rng) for _ in range(shadows)]
        floor = self.noise**2 + _VARIANCE_FLOOR * float(np.linalg.norm(self.messages)) ** 2 / self.messages.size
        out = []
        for place, pair in enumerate(zip(self.canaries.own, self.canaries.stand_ins, strict=True)):
            logs = []
            for row in pair:
                runs = np.stack([self._sent(self._with(rows, place, row)) for rows in draws])
                logs.append(gaussian_log(self.messages, runs, floor))
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
        return float(np.sum(((self.messages - self._sent(rows)) / unit) ** 2))
