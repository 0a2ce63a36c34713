"""Estimate rows from messages, by a regression that is trained on simulated clients.

This is for client steps that no fit can follow: clients that draw at random, or messages that are step functions of the
rows. The attacker draws rows like those that it has (the prior), runs the client's code on them with draws of its own,
and learns rows as a function of messages by kernel ridge regression, with the kernel (linear or quadratic) and the
ridge of smallest leave-one-out error. Where messages are independent of the rows, the estimate is the prior's mean. An
audit of a user's own algorithm calls `RegressRows.simulated` once, and gives the simulated clients to `LearnedRows` and
`LearnedGram`. Source: Saunders, Gammerman, Vovk, Ridge Regression Learning Algorithm in Dual Variables (1998);
leave-one-out errors in closed form: Hastie, Tibshirani, Friedman, The Elements of Statistical Learning, 7.10.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from securefed._public import require
from securefed._tensors import Array
from securefed.attacks._base import Reconstruction, Target, View
from securefed.attacks._generic.client_replay import Replay
from securefed.attacks._gram.linear import nearest_psd
from securefed.errors import SecureFedError, TranscriptError

_NORMAL_WEIGHT = 0.5
"""A simulated row is the prior's mean plus sqrt(1 - w^2) times the deviation of a row of the prior plus w times a
normal vector of the prior's covariance, with this w: it has the prior's mean and covariance, and is no row of the
prior.
"""
_FEWEST = 50
"""Smallest number of simulated clients from which anything is learned."""
_PER_EQUATION = 4
"""Number of simulated clients for each equation, that is, entry of the messages, within `fewest` and `most`."""
_RIDGES = np.logspace(-13, 2, 16)
"""Ridges that are tried, relative to the kernel's largest eigenvalue."""


@dataclass(frozen=True)
class RegressRows:
    """Regress all members' rows on all messages of simulated clients, by kernel ridge regression.

    For rows like the prior's, the estimate is no worse than their mean, up to the error of the leave-one-out estimate.
    Nothing beyond quadratic functions of the messages is found, and nothing is promised for rows unlike the prior's.
    Steps that do not depend on the order of the rows give the mean of the rows alone.

    Attributes:
        fewest: smallest number of simulated clients.
        most: largest number of simulated clients; between the two, four for each entry of the messages are simulated.
        calls: largest number of runs of a client step; the attack refuses if it is too small for 50 clients. An audit
            takes it from the fitting attack: `audit_algorithm(..., fit=FitRows(calls=100_000))`.
    """

    fewest: int = 200
    most: int = 800
    calls: int = 20_000
    name: ClassVar[str] = "generic/regression"
    secret: ClassVar[str] = "samples"

    def __post_init__(self) -> None:
        require(
            _FEWEST <= self.fewest <= self.most,
            f"fewest must be at least {_FEWEST} and at most `most`, not {self.fewest} (most={self.most})",
        )
        require(self.calls >= 1, f"calls must be at least 1, not {self.calls}")

    def run(self, observed: View | Replay, target: Target, rng: np.random.Generator) -> Reconstruction:
        """Estimate the rows behind the observed messages; raises what `simulated` raises."""
        replay = Replay.of(observed, target)
        rows, _, sent = self.simulated(replay, rng)
        return LearnedRows(KernelRidge.of(sent, rows)).run(replay, target, rng)

    def simulated(
        self, replay: Replay, rng: np.random.Generator, labels: Array | None = None
    ) -> tuple[Array, Array, Array]:
        """Simulate clients with rows like the prior's.

        Args:
            replay: the observed rounds.
            rng: generator of the simulated clients.
            labels: labels of the prior's rows, which are drawn with the rows; by default every simulated client has the
                members' own labels.

        Returns:
            Rows (clients, rows * features), labels (clients, rows), or (clients, 0) if unknown, and messages (clients,
            equations).

        Raises:
            TranscriptError: too few client steps are allowed, or they fail on rows like the prior's, or take too long.
        """
        steps = sum(len(observation.members) for observation in replay.observed.rounds)
        count = min(self.most, max(self.fewest, _PER_EQUATION * len(replay.messages)), self.calls // max(steps, 1))
        if count < _FEWEST:
            raise TranscriptError(
                f"{_FEWEST} simulated federations take {_FEWEST * steps} client steps, more than {self.calls}; allow "
                f"them by audit_algorithm(..., fit=FitRows(calls={_FEWEST * steps})) with FitRows from "
                "securefed.attacks, or audit fewer clients or rounds"
            )
        clients = [client for client in _simulated(replay, rng, count, labels) if client is not None]
        if len(clients) < _FEWEST:
            raise TranscriptError("the client step fails on rows like those that the attacker has")
        rows, drawn, sent = zip(*clients, strict=True)
        return np.stack(rows).reshape(len(rows), -1), np.stack(drawn), np.stack(sent)


@dataclass(frozen=True)
class LearnedRows:
    """Learned attack on rows; see `RegressRows`.

    The residual of its results is the expected error: the leave-one-out error on the simulated clients' rows, relative
    to their standard deviation; it is 1 where messages are independent of the rows.

    Attributes:
        model: regression of the rows on messages.
    """

    model: KernelRidge
    name: ClassVar[str] = RegressRows.name
    secret: ClassVar[str] = RegressRows.secret

    def run(self, observed: View | Replay, target: Target, rng: np.random.Generator) -> Reconstruction:
        """Estimate the rows from the observed messages."""
        replay = Replay.of(observed, target)
        bound = replay.target.public.feature_bound
        rows = self.model(replay.messages).reshape(replay.rows, replay.features)
        return _reconstruction(self.secret, np.clip(rows, -bound, bound), self.model, replay)


@dataclass(frozen=True)
class LearnedGram:
    """Learned attack on the Gram matrix of all members' rows, which messages may reveal without revealing any row.

    Attributes:
        model: regression of the matrix on messages.
    """

    model: KernelRidge
    name: ClassVar[str] = RegressRows.name
    secret: ClassVar[str] = "gram"

    @classmethod
    def of(cls, rows: Array, sent: Array, features: int) -> LearnedGram:
        """Learn from simulated clients' rows (clients, rows * features) and messages (clients, equations)."""
        x = rows.reshape(len(rows), -1, features)
        i, j = np.triu_indices(features)
        return cls(KernelRidge.of(sent, np.einsum("kri,krj->kij", x, x)[:, i, j]))

    def run(self, observed: View | Replay, target: Target, rng: np.random.Generator) -> Reconstruction:
        """Estimate the Gram matrix from the observed messages."""
        replay = Replay.of(observed, target)
        gram = np.zeros((replay.features, replay.features))
        i, j = np.triu_indices(replay.features)
        gram[i, j] = gram[j, i] = self.model(replay.messages)
        return _reconstruction(self.secret, nearest_psd(gram, min(replay.rows, replay.features)), self.model, replay)


def _reconstruction(secret: str, value: Array, model: KernelRidge, replay: Replay) -> Reconstruction:
    """Report an estimate with the regression's expected error as its residual."""
    return Reconstruction(
        secret,
        value,
        residual=model.expected,
        unknowns=value.size,
        members=frozenset(replay.members),
        diagnostics={
            "simulated clients": len(model.known),
            "kernel": "quadratic" if model.quadratic else "linear",
            # Where random draws change messages as much as other rows do, no residual tells whether an estimate
            # explains them. It counts as explaining them if the draws only add to the messages, as noise does, since
            # no attack does much better than regression there. Other draws, such as which half of its rows a client
            # used, an attack might still find out.
            **({"explained": replay.additive} if replay.units.noise_dominates else {}),
        },
    )


@dataclass(frozen=True)
class KernelRidge:
    """Kernel ridge regression of values on messages, with each entry of a message scaled by its standard deviation.

    Attributes:
        weights: dual weights, (clients, values).
        known: scaled messages of the simulated clients, (clients, equations).
        units: for each equation its mean over the simulated clients, its unit (the standard deviation times the root of
            the number of equations, so that <a, a> is about 1), and whether it varies at all.
        centre: mean of the values, (values,).
        expected: leave-one-out error of a client's values, relative to their spread.
        quadratic: whether the kernel is quadratic.
    """

    weights: Array
    known: Array
    units: tuple[Array, Array, Array]
    centre: Array
    expected: float
    quadratic: bool

    @classmethod
    def of(cls, sent: Array, values: Array) -> KernelRidge:
        """Choose the kernel and the ridge with the smallest leave-one-out error.

        Args:
            sent: messages, (clients, equations).
            values: what is regressed on them, (clients, values).
        """
        mean, spread = sent.mean(axis=0), sent.std(axis=0)
        varies = spread > np.finfo(np.float64).eps * np.abs(mean)
        unit = np.where(varies, spread, 1.0) * np.sqrt(max(int(varies.sum()), 1))
        scaled, centre = _in_units(sent, (mean, unit, varies)), values.mean(axis=0)
        models = [
            (*_best_ridge(_kernel(scaled, scaled, quadratic), values - centre), quadratic)
            for quadratic in (False, True)
        ]
        squared_error, weights, quadratic = min(models, key=lambda model: model[0])
        variance = float(np.mean((values - centre) ** 2)) or 1.0
        return cls(
            weights=weights,
            known=scaled,
            units=(mean, unit, varies),
            centre=centre,
            expected=float(np.sqrt(squared_error / variance)),
            quadratic=quadratic,
        )

    def __call__(self, message: Array) -> Array:
        """Estimate the values (values,) of one client from its messages (equations,)."""
        row = _kernel(_in_units(message, self.units)[None], self.known, self.quadratic)[0]
        return np.asarray(self.centre + row @ self.weights)


def _in_units(sent: Array, units: tuple[Array, Array, Array]) -> Array:
    """Return messages less their mean, in these units (`KernelRidge.units`); entries that do not vary become 0."""
    mean, unit, varies = units
    return np.asarray(np.where(varies, sent - mean, 0.0) / unit)


def _best_ridge(kernel: Array, values: Array) -> tuple[float, Array]:
    """Return the mean squared leave-one-out error and the weights, for the ridge with the smallest error.

    With G = (K + ridge I)^-1, client i's values less their estimate from all others are (G V)_i / G_ii (Hastie et al.).

    Args:
        kernel: (clients, clients) K.
        values: (clients, values) V, less their mean.
    """
    eigenvalues, vectors = np.linalg.eigh(kernel)
    eigenvalues = np.maximum(eigenvalues, 0.0)
    rotated, squared = vectors.T @ values, vectors**2
    best: tuple[float, Array] | None = None
    for ridge in _RIDGES * (float(eigenvalues[-1]) or 1.0):  # G = vectors diag(1 / (eigenvalues + ridge)) vectors^T
        weights = vectors @ (rotated / (eigenvalues + ridge)[:, None])
        squared_error = float(np.mean((weights / (squared @ (1 / (eigenvalues + ridge)))[:, None]) ** 2))
        if best is None or squared_error < best[0]:
            best = squared_error, weights
    assert best is not None
    return best


def _kernel(some: Array, others: Array, quadratic: bool) -> Array:
    """Return the kernel <a, b>, or (1 + <a, b>)^2, of messages a, b, which are scaled so that <a, a> is about 1."""
    product = some @ others.T
    return np.asarray((1 + product) ** 2 if quadratic else product)


def _simulated(
    replay: Replay, rng: np.random.Generator, count: int, labels: Array | None
) -> Iterator[tuple[Array, Array, Array] | None]:
    """Yield rows, labels and messages of simulated clients, or `None` where the client step fails.

    Each client has random draws (and noise of a defence) of its own. The simulation ends early if most clients fail.
    """
    failed = 0
    for number in range(count):
        if failed > max(_FEWEST, number / 2):
            return
        rows, prior_rows = _rows(replay, rng)
        labels_drawn = replay.labels if labels is None else labels[prior_rows]
        seed = None if replay.deterministic else int(rng.integers(2**62))
        try:
            message = replay(rows, seed, labels_drawn)
            message = message + replay.noise * rng.normal(size=message.shape) if replay.noise.any() else message
        except SecureFedError:
            if replay.budget is not None:
                replay.budget.check()
            message = np.full(1, np.nan)
        if np.isfinite(message).all():
            yield rows, np.zeros(0) if labels_drawn is None else labels_drawn, message
        else:
            failed += 1
            yield None


def _rows(replay: Replay, rng: np.random.Generator) -> tuple[Array, Array]:
    """Return rows (rows, features) with the prior's mean and covariance, and (rows,) the prior row behind each.

    No row is one of the prior's (`_NORMAL_WEIGHT`). Without a prior rows are uniform within the bound.
    """
    if replay.prior is None:
        return replay.sample(rng), np.zeros(0, np.int64)
    centre = replay.prior.mean(axis=0)
    deviations = replay.prior - centre
    prior_rows = rng.integers(len(deviations), size=replay.rows)
    normal = rng.normal(size=(replay.rows, len(deviations))) @ deviations / np.sqrt(len(deviations))
    bound = replay.target.public.feature_bound
    mixed = centre + np.sqrt(1 - _NORMAL_WEIGHT**2) * deviations[prior_rows] + _NORMAL_WEIGHT * normal
    return np.asarray(np.clip(mixed, -bound, bound)), prior_rows
