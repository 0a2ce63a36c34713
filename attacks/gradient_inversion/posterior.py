"""Noise of a known size: rows by their posterior, where a fit of the messages alone would amplify what is not there.

Given how much each row counts in the messages, these are linear in the rows, feature by feature, with Gaussian noise:
the posterior mean of a Gaussian prior is a ridge regression. What rows count follows from the rows, so the two take
turns. The prior's variances, and the labels, are those under which the messages are most probable.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product

import numpy as np
from scipy.special import gammaln

from securefed.attacks.gradient_inversion.glm import classes
from securefed.attacks.gradient_inversion.simulate import Simulation
from securefed.attacks.gradient_inversion.system import System, apart
from securefed.attacks.label_counts import round_to
from securefed.tensors import Array

_SQUARES = 1 / 3, 1 / 4, 1 / 6, 1 / 10, 1 / 20, 1 / 50
"""Mean squares of an entry, in units of the squared feature bound; the first is that of a uniform law."""
_USUAL = 1 / 5
_NEIGHBOURS = 8
_OWN = 0.8, 0.4, 0.2, 0.1
_LEVEL = 0.1, 0.5
"""Shares of the mean square: of what rows have of their own, and of the rest."""
_TURNS = 5


@dataclass(frozen=True)
class Prior:
    """Rows x_i = level 1 + mean + own_i, all three normal around 0: variances of their entries."""

    level: float
    mean: float
    own: float

    def covariance(self, counts: Array, features: int) -> Array:
        """(2, ..., k, k) of sums of (..., k) rows each: along (1, ..., 1) of length 1, and in all other directions."""
        both = counts[..., :, None] * counts[..., None, :]
        rest = self.own * counts[..., None] * np.eye(counts.shape[-1]) + self.mean * both
        return np.stack([rest + features * self.level * both, rest])

    def root(self, rows: int) -> Array:
        """(rows, rows) a root of the precision of an entry of single rows, the common level among what they share."""
        values, vectors = np.linalg.eigh(self.covariance(np.ones(rows), 1)[0])
        return np.asarray((vectors / np.sqrt(values)).T)


@dataclass(frozen=True)
class Linear:
    """Messages as they depend on rows that count so much: data = counts rows + noise of variance 1.

    Attributes:
        features: number of all coordinates.
        counts: (equations, rows).      data: (equations, coordinates), the first along (1, ..., 1).
        bias: (equations, 0 or 1) counts summed over the rows, with noise.
    """

    features: int
    counts: Array
    data: Array
    bias: Array

    @cached_property
    def _reduced(self) -> tuple[Array, Array]:
        turn, root = np.linalg.qr(self.counts)
        return root, turn.T @ self.data

    def likelihood(self, prior: Prior, each: Array) -> float:
        """Logarithm, up to a constant, of the messages' probability, each unknown a sum of so many rows, (k,)."""
        return float(self.likelihoods(prior, each[None])[0])

    def likelihoods(self, prior: Prior, each: Array) -> Array:
        """(m,) of several, (m, k)."""
        root, data = self._reduced
        out = np.full(len(each), np.sum(data**2) - np.sum(self.data**2))
        if self.bias.size:
            out -= np.sum((self.bias - self.counts @ each.T) ** 2, axis=0)
        for cov, part, width in zip(prior.covariance(each, self.features), *self._split(data), strict=True):
            values, vectors = np.linalg.eigh(root @ cov @ root.T)
            values = 1.0 + np.maximum(values, 0.0)
            along = np.sum((part @ part.T @ vectors) * vectors, axis=-2)
            out = out - width * np.sum(np.log(values), axis=-1) - np.sum(along / values, axis=-1)
        return np.asarray(out / 2)

    def _split(self, data: Array) -> tuple[tuple[Array, Array], tuple[int, int]]:
        """Along (1, ..., 1), and in all other directions; how many directions that are."""
        return (data[:, :1], data[:, 1:]), (1, self.features - 1)

    def priors(self, square: float, each: Array) -> list[tuple[float, Prior]]:
        """How probable the messages are under priors with this mean square of an entry."""
        tried = (
            Prior(square * level * (1 - own), square * (1 - level) * (1 - own), square * own)
            for own, level in product(_OWN, _LEVEL)
        )
        return [(self.likelihood(prior, each), prior) for prior in tried]

    def best(self, square: float, each: Array) -> tuple[float, Prior]:
        """The one of them under which the messages are most probable."""
        return max(self.priors(square, each), key=lambda one: one[0])

    def rows(self, prior: Prior) -> Array:
        """Single rows, (rows, coordinates + 1): their posterior mean, and the root of what is expected of their squared
        length beyond that of the mean."""
        (root, data), out, spread = self._reduced, [], np.zeros(self.counts.shape[1])
        covariances = prior.covariance(np.ones(len(spread)), self.features)
        for cov, part, width in zip(covariances, *self._split(data), strict=True):
            gain = cov @ root.T
            kept = gain @ np.linalg.inv(root @ gain + np.eye(len(root)))
            out.append(kept @ part)
            spread += width * np.diag(cov - kept @ gain.T)
        return np.concatenate([*out, np.sqrt(np.maximum(spread, 0.0))[:, None]], axis=1)


def whitened(simulation: Simulation, features: int) -> System:
    """All equations, in units of their noise, in coordinates of what they say of the rows.

    The first one is along (1, ..., 1). The last one is beside all features: what is not known of a row counts in its
    norm, and nowhere else.
    """
    known, parts, model = apart(simulation, features), simulation.method.sent, simulation.model
    sizes = {part: np.sqrt(np.mean([seen.noise[part] ** 2 for seen in simulation.rounds])) for part in parts}
    rows = [np.ones((1, features))]
    for seen, out in zip(simulation.rounds, known, strict=True):
        rows += [model.weight(seen.total[part] - out[part]) for part in parts]
    basis = np.linalg.qr(np.concatenate(rows).T)[0].T
    basis = np.concatenate([basis, np.zeros((1, features))])
    return System.plain(simulation, basis, {part: 1.0 / sizes[part] for part in parts}, known)


def linear(system: System, rows: Array, labels: Array) -> Linear:
    """About these rows."""
    data, bias = system.data
    return Linear(system.basis.shape[1], system.coefficients(rows, labels), data[:, :-1], bias)


def ridge(system: System, labels: Array) -> tuple[float, Prior, Array]:
    """Rows of these labels: how probable the messages are with them at best, the mean prior, and the rows."""
    bound, count = system.simulation.public.feature_bound, system.shape[0]
    found = list[tuple[float, Prior]]()
    for square in _SQUARES:
        about = linear(system, gray(system, square), labels)
        found += about.priors(bound**2 * square, np.ones(count))
    likelihoods, priors = zip(*found, strict=True)
    weights = np.exp(np.array(likelihoods) - max(likelihoods))
    weights /= weights.sum()
    prior = Prior(*(float(weights @ [getattr(one, of) for one in priors]) for of in ("level", "mean", "own")))
    rows = gray(system, (prior.level + prior.mean + prior.own) / bound**2)
    for _ in range(_TURNS):
        rows = linear(system, rows, labels).rows(prior)
    return max(likelihoods), prior, rows


def gray(system: System, square: float) -> Array:
    """Rows of entries of this mean square, in units of the squared bound, of which nothing else is known."""
    public, (count, width) = system.simulation.public, system.shape
    rows = np.zeros((count, width))
    rows[:, -1] = public.feature_bound * np.sqrt(square * public.features)
    return rows


def label_counts(system: System) -> tuple[Array, Array]:
    """Rows per class, as all rounds together suggest, and how probable it is by class that such a row is of no other.

    By exchanges, of classes as rows of one size: from an even share and from what the bias says, and again from the
    opposite of where that led, for with the opposite labels rows turned around explain the weights as well. The best
    and its neighbours are then judged by single rows.
    """
    simulation, total = system.simulation, system.shape[0]
    number, square = classes(simulation.model, simulation.public), simulation.public.feature_bound**2 * _USUAL
    rows, each = gray(system, _USUAL), np.ones(total)
    columns = [linear(system, rows, np.full(total, label)).counts.mean(axis=1) for label in range(number)]
    by_class = replace(linear(system, rows, np.zeros(total, np.int64)), counts=np.stack(columns, axis=1))
    starts = [np.full(number, total / number)]
    if by_class.bias.size:
        starts.append(np.linalg.lstsq(by_class.counts, by_class.bias[:, 0], rcond=None)[0])
    climbed = [_climb(by_class, square, round_to(start, total)) for start in starts]
    climbed += [_climb(by_class, square, round_to(counts.max() - counts, total)) for _, _, counts, _ in climbed]
    best, prior, counts, near = max(climbed, key=lambda one: one[0])

    def single(counts: Array) -> float:
        now = linear(system, rows, np.repeat(np.arange(number), counts))
        return now.best(square, each)[0] + orders(counts)

    judged = {tuple(one): single(one) for one in (counts, *near[:_NEIGHBOURS])}
    counts, odds = np.array(max(judged, key=judged.__getitem__)), np.zeros(number)
    others = _exchanges(counts)
    values = by_class.likelihoods(prior, np.stack(others)) + [orders(other) for other in others]
    for other, reached in zip(others, values, strict=True):
        known = judged.get(tuple(other))
        less = reached - best if known is None else known - judged[tuple(counts)]
        odds[np.argmin(other - counts)] += np.exp(min(less, 0.0))
    return counts, 1.0 / (1.0 + odds)


def _climb(by_class: Linear, square: float, counts: Array) -> tuple[float, Prior, Array, list[Array]]:
    """Where exchanges lead while they help: how probable that is, the prior, the counts, and neighbours, best first."""
    while True:
        prior = by_class.best(square, counts)[1]
        best, near = _value(by_class, prior, counts), _exchanges(counts)
        found = by_class.likelihoods(prior, np.stack(near)) + [orders(one) for one in near]
        near = [near[k] for k in np.argsort(-found, kind="stable")]
        if by_class.best(square, near[0])[0] + orders(near[0]) <= best:
            return best, prior, counts, near
        counts = near[0]


def _value(by_class: Linear, prior: Prior, counts: Array) -> float:
    return by_class.likelihood(prior, counts) + orders(counts)


def orders(counts: Array) -> float:
    """Logarithm of in how many orders the rows may come."""
    return float(-np.sum(gammaln(counts + 1.0)))


def _exchanges(counts: Array) -> list[Array]:
    """All counts with one row in another class."""
    out = []
    for one, other in product(np.flatnonzero(counts), range(len(counts))):
        if one != other:
            moved = counts.copy()
            moved[one] -= 1
            moved[other] += 1
            out.append(moved)
    return out
