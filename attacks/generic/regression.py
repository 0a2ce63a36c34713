"""Learn what messages say of rows: simulate many clients, regress their rows on what they would have sent.

For steps that no fit can follow: clients draw at random, and only the sum of what is known and what is drawn is seen,
or the messages are steps of their rows, so that derivatives are zero. The attacker draws rows like those of the prior,
and draws where the clients draw, runs the client step, and learns rows as a function of messages by kernel ridge
regression, of the kernel (linear, quadratic) and the ridge that predict the rows of simulated clients best whose own
messages were left out. That is the best linear (or quadratic) estimate of the rows in the mean square, and where
messages say nothing it is the prior's mean.

Source: Saunders, Gammerman, Vovk, Ridge Regression Learning Algorithm in Dual Variables (1998); leave-one-out errors
in closed form: Hastie, Tibshirani, Friedman, The Elements of Statistical Learning, 7.10.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from securefed.attacks.base import Observed, Reconstruction, Target
from securefed.attacks.generic.replay import Replay
from securefed.attacks.gram.linear import nearest_psd
from securefed.errors import SecureFedError, TranscriptError
from securefed.public import require
from securefed.tensors import Array

_SMOOTH = 0.5
_FEWEST = 50
_PER_EQUATION = 4
_RIDGES = np.logspace(-13, 2, 16)


@dataclass(frozen=True)
class RegressRows:
    """Kernel ridge regression of all members' rows on all messages, over simulated clients.

    Attributes:
        fewest, most: clients simulated, times four the number of equations between them.
        calls: client steps that this may take; it refuses where they are too few for 50 clients.

    Guarantee: over rows like the prior's, the estimate is no worse than their mean, up to what leaving one out of so
    many simulated clients is off by. Not promised: anything beyond quadratic functions of the messages, or for rows
    unlike the prior's. Steps that do not depend on the rows' order give the rows' mean alone.
    """

    fewest: int = 200
    most: int = 800
    calls: int = 20_000
    name: ClassVar[str] = "generic/regression"
    secret: ClassVar[str] = "samples"

    def __post_init__(self) -> None:
        require(_FEWEST <= self.fewest <= self.most, f"{_FEWEST} <= fewest <= most, not {self.fewest}, {self.most}")
        require(self.calls >= 1, f"calls must be at least 1, not {self.calls}")

    def applies(self, target: Target, observed: Observed) -> str | None:
        return None if observed.rounds else "The view holds no round."

    def run(self, observed: Observed, target: Target, rng: np.random.Generator) -> Reconstruction:
        return self.attack(Replay(observed, target), rng)

    def attack(self, replay: Replay, rng: np.random.Generator) -> Reconstruction:
        """As `run`, on a replay. Raises as `learn`."""
        return self.learn(replay, rng).attack(replay)

    def learn(self, replay: Replay, rng: np.random.Generator) -> Learned:
        """What any messages to the replay's broadcasts say; the messages seen themselves do not enter.

        Raises:
            TranscriptError: too few client steps are allowed, or they fail on rows like the prior's, or take too long.
        """
        rows, _, sent = self.simulated(replay, rng)
        return Learned(Ridge.of(sent, rows))

    def simulated(
        self, replay: Replay, rng: np.random.Generator, labels: Array | None = None
    ) -> tuple[Array, Array, Array]:
        """Rows (clients, rows * features) like the prior's, labels (clients, rows), and messages (clients, equations).

        Args:
            labels: of the prior's rows, one each: drawn with the rows. The members' own where there are none; (clients,
                0) where those are unknown too.

        Raises:
            TranscriptError: as `learn`.
        """
        steps = sum(len(observation.members) for observation in replay.observed.rounds)
        wanted = min(self.most, max(self.fewest, _PER_EQUATION * len(replay.seen)), self.calls // max(steps, 1))
        if wanted < _FEWEST:
            raise TranscriptError(
                f"{_FEWEST} simulated federations take {_FEWEST * steps} client steps, more than {self.calls}; raise "
                "`calls`, or audit fewer clients or rounds"
            )
        found = [client for client in _simulated(replay, rng, wanted, labels) if client is not None]
        if len(found) < _FEWEST:
            raise TranscriptError("the client step fails on rows like those that the attacker has")
        rows, drawn, sent = zip(*found, strict=True)
        return np.stack(rows).reshape(len(rows), -1), np.stack(drawn), np.stack(sent)


@dataclass(frozen=True)
class Learned:
    """An attack that has learned; see `RegressRows.learn`. The residual of what it finds is the error that it expects:
    of simulated clients' rows by all others', relative to their spread, 1 where messages say nothing."""

    model: Ridge
    name: ClassVar[str] = RegressRows.name
    secret: ClassVar[str] = RegressRows.secret

    def applies(self, target: Target, observed: Observed) -> str | None:
        return None

    def attack(self, replay: Replay) -> Reconstruction:
        """The rows that the replay's messages speak for."""
        bound = replay.target.public.feature_bound
        rows = self.model(replay.seen).reshape(replay.rows, replay.features)
        return _said(self.secret, np.clip(rows, -bound, bound), self.model, replay)


@dataclass(frozen=True)
class LearnedGram:
    """An attack that has learned the Gram matrix of all members' rows; messages may tell it and no row."""

    model: Ridge
    name: ClassVar[str] = RegressRows.name
    secret: ClassVar[str] = "gram"

    @classmethod
    def of(cls, rows: Array, sent: Array, features: int) -> LearnedGram:
        """From simulated clients' rows (clients, rows * features) and messages (clients, equations)."""
        x = rows.reshape(len(rows), -1, features)
        i, j = np.triu_indices(features)
        return cls(Ridge.of(sent, np.einsum("kri,krj->kij", x, x)[:, i, j]))

    def applies(self, target: Target, observed: Observed) -> str | None:
        return None

    def attack(self, replay: Replay) -> Reconstruction:
        """The Gram matrix that the replay's messages speak for."""
        gram = np.zeros((replay.features, replay.features))
        i, j = np.triu_indices(replay.features)
        gram[i, j] = gram[j, i] = self.model(replay.seen)
        return _said(self.secret, nearest_psd(gram, min(replay.rows, replay.features)), self.model, replay)


def _said(secret: str, value: Array, model: Ridge, replay: Replay) -> Reconstruction:
    return Reconstruction(
        secret,
        value,
        residual=model.expected,
        unknowns=value.size,
        members=frozenset(replay.members),
        diagnostics={
            "simulated clients": len(model.known),
            "kernel": "quadratic" if model.quadratic else "linear",
            # where noise is added and any rows would explain it, this attack sees what there is to be seen
            **({"explained": replay.additive} if replay.units.drowned else {}),
        },
    )


@dataclass(frozen=True)
class Ridge:
    """Kernel ridge regression of values on messages, each message number in units of its spread.

    Attributes:
        weights: (clients, values) in the kernel's dual.      known: (clients, equations) their messages, scaled.
        units: mean, unit and whether it varies at all, of each equation.      centre: (values,) their mean.
        expected: error of a client's values by all other clients, relative to the values' spread.
    """

    weights: Array
    known: Array
    units: tuple[Array, Array, Array]
    centre: Array
    expected: float
    quadratic: bool

    @classmethod
    def of(cls, sent: Array, values: Array) -> Ridge:
        """The kernel and ridge of least left-out error; `sent` (clients, equations), `values` (clients, values)."""
        mean, spread = sent.mean(axis=0), sent.std(axis=0)
        told = spread > np.finfo(np.float64).eps * np.abs(mean)
        unit = np.where(told, spread, 1.0) * np.sqrt(max(int(told.sum()), 1))
        known, centre = _scaled(sent, (mean, unit, told)), values.mean(axis=0)
        found = [
            (*_solved(_kernel(known, known, quadratic), values - centre), quadratic) for quadratic in (False, True)
        ]
        left, weights, quadratic = min(found, key=lambda model: model[0])
        variance = float(np.mean((values - centre) ** 2)) or 1.0
        return cls(weights, known, (mean, unit, told), centre, float(np.sqrt(left / variance)), quadratic)

    def __call__(self, seen: Array) -> Array:
        """(values,) of one client's messages (equations,)."""
        row = _kernel(_scaled(seen, self.units)[None], self.known, self.quadratic)[0]
        return np.asarray(self.centre + row @ self.weights)


def _scaled(sent: Array, units: tuple[Array, Array, Array]) -> Array:
    mean, unit, told = units
    return np.asarray(np.where(told, sent - mean, 0.0) / unit)


def _solved(kernel: Array, values: Array) -> tuple[float, Array]:
    """Mean squared error left out one by one, and weights, of the ridge for which the former is least."""
    eigenvalues, vectors = np.linalg.eigh(kernel)
    eigenvalues = np.maximum(eigenvalues, 0.0)
    turned, squared = vectors.T @ values, vectors**2
    best: tuple[float, Array] | None = None
    for ridge in _RIDGES * (float(eigenvalues[-1]) or 1.0):
        weights = vectors @ (turned / (eigenvalues + ridge)[:, None])
        left = float(np.mean((weights / (squared @ (1 / (eigenvalues + ridge)))[:, None]) ** 2))
        if best is None or left < best[0]:
            best = left, weights
    assert best is not None
    return best


def _kernel(some: Array, others: Array, quadratic: bool) -> Array:
    """<a, b>, or (1 + <a, b>)^2, of messages whose mean square is about 1."""
    product = some @ others.T
    return np.asarray((1 + product) ** 2 if quadratic else product)


def _simulated(
    replay: Replay, rng: np.random.Generator, wanted: int, labels: Array | None
) -> Iterator[tuple[Array, Array, Array] | None]:
    """Rows, labels and messages under draws (and a defence's noise) of their own; `None` where the client step fails.
    No more than twice the fewest are tried where most fail."""
    failed = 0
    for number in range(wanted):
        if failed > max(_FEWEST, number / 2):
            return
        rows, places = _rows(replay, rng)
        drawn = replay.labels if labels is None else labels[places]
        seed = None if replay.deterministic else int(rng.integers(2**62))
        try:
            message = replay(rows, seed, drawn)
            message = message + replay.noise * rng.normal(size=message.shape) if replay.noise.any() else message
        except SecureFedError:
            if replay.allowance is not None:
                replay.allowance.check()
            message = np.full(1, np.nan)
        if np.isfinite(message).all():
            yield rows, np.zeros(0) if drawn is None else drawn, message
        else:
            failed += 1
            yield None


def _rows(replay: Replay, rng: np.random.Generator) -> tuple[Array, Array]:
    """Rows whose mean and covariance are the prior's, and none of which is one of its rows; the row nearest to each."""
    if replay.prior is None:
        return replay.sample(rng), np.zeros(0, np.int64)
    centre = replay.prior.mean(axis=0)
    apart = replay.prior - centre
    places = rng.integers(len(apart), size=replay.rows)
    normal = rng.normal(size=(replay.rows, len(apart))) @ apart / np.sqrt(len(apart))
    bound = replay.target.public.feature_bound
    mixed = centre + np.sqrt(1 - _SMOOTH**2) * apart[places] + _SMOOTH * normal
    return np.asarray(np.clip(mixed, -bound, bound)), places
