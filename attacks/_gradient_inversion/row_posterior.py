"""Estimate the rows behind messages with noise of known size, where a plain fit would amplify the noise.

The model is logistic or softmax regression, and a defence added Gaussian noise to the messages. The weights' part of a
message is, for each output,

    data = sum_k c_k x_k + noise,

with the unknown rows x_k and coefficients c_k (the model's residuals p_k - y_k, summed over the local steps). For given
c_k it is linear in the rows, feature by feature, so that under a Gaussian prior their posterior mean is a ridge
regression. The c_k follow from the rows and labels, and the two alternate. The labels enter by their counts, the
numbers of rows of each class. The variances of the prior, and the label counts, maximise the marginal likelihood of the
messages (the density of the messages after the rows are integrated out).

The unknowns of the likelihood are either the single rows or, which is cheaper, the sum of the rows of each class; the
numbers of rows that each unknown sums up (`summed`) show which: all 1, or the label counts. A fit asks
`posterior_estimate` where a defence states noise, which calls `whitened_equations`, `likeliest_label_counts` and
`ridge` in this order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product

import numpy as np
from scipy.special import gammaln

from securefed._tensors import Array
from securefed.attacks._fitting.label_counts import round_to_total
from securefed.attacks._gradient_inversion.linear_model import number_of_classes
from securefed.attacks._gradient_inversion.round_simulation import RoundSimulation
from securefed.attacks._gradient_inversion.sum_equations import SumEquations

_SQUARES = 1 / 3, 1 / 4, 1 / 6, 1 / 10, 1 / 20, 1 / 50
"""Mean squares of an entry to try, in units of the squared feature bound. 1/3 is that of a uniform distribution, the
largest of a usual one; 1/50 is that of pictures that are mostly background. The posterior averages over them."""
_USUAL_SQUARE = 1 / 5
"""Mean square of an entry that is assumed while labels are counted, a value in the middle of `_SQUARES`."""
_OWN_SHARES = 0.8, 0.4, 0.2, 0.1
"""Shares of the mean square to try for what is a row's own, not common to all rows: a grid with factors of 2."""
_LEVEL_SHARES = 0.1, 0.5
"""Shares of the common part to try for the level, which all features have in common: nearly none, and half."""
_NEIGHBOURS = 8
"""Label counts that are compared by single rows, beside the likeliest ones; each costs one linearisation."""
_ALTERNATIONS = 5
"""Alternations between rows and their coefficients: each shrinks the change several-fold, and noise is what is left."""


@dataclass(frozen=True)
class GaussianRowPrior:
    """Prior of rows x_i = level 1 + mean + own_i: a multiple of (1, ..., 1), a common vector, and one of each row.

    All three are normal with mean 0.

    Attributes:
        level: variance of the level, one number for all features and rows.
        mean: variance of an entry of the mean row.
        own: variance of an entry of a row's own part.
    """

    level: float
    mean: float
    own: float

    def shared(self, features: int) -> tuple[float, float]:
        """Return what any two rows have in common: their covariance along (1, ..., 1), and orthogonal to it.

        A row's own variance, `own`, comes on top, so that the covariance C over the rows is own I + shared 1 1^T.
        """
        return self.mean + features * self.level, self.mean

    def root(self, rows: int) -> Array:
        """Return (rows, rows) R with R^T R = C^-1, C the covariance over the rows of one entry of each.

        The level, which ties the features together, counts as part of the mean here.
        """
        average = np.full((rows, rows), 1.0 / rows)  # the projection onto (1, ..., 1)
        along = self.own + rows * self.shared(1)[0]
        return np.asarray((np.eye(rows) - average) / np.sqrt(self.own) + average / np.sqrt(along))


def priors_with(square: float) -> list[GaussianRowPrior]:
    """Return the priors to compare whose entries have this mean square."""
    return [
        GaussianRowPrior(square * level * (1 - own), square * (1 - level) * (1 - own), square * own)
        for own, level in product(_OWN_SHARES, _LEVEL_SHARES)
    ]


@dataclass(frozen=True)
class LinearMessages:
    """Messages as linear functions of the unknowns: data = coefficients unknowns + noise of variance 1.

    Attributes:
        features: number of features.
        coefficients: (equations, unknowns) c_k, for each unknown.
        data: (equations, coordinates) messages, the first coordinate along (1, ..., 1).
        bias: (equations, 0 or 1) the messages of the bias: the coefficients summed over the rows, plus noise.
    """

    features: int
    coefficients: Array
    data: Array
    bias: Array

    @cached_property
    def _reduced(self) -> tuple[Array, Array]:
        """Return R and Q^T data of the QR decomposition Q R of the coefficients."""
        Q, R = np.linalg.qr(self.coefficients)
        return R, Q.T @ self.data

    def likelihoods(self, priors: Sequence[GaussianRowPrior], summed: Array) -> Array:
        """Return (priors, m) log marginal likelihoods, up to a constant, for m alternatives of what the unknowns are.

        Unknown j of an alternative is a sum of e_j rows. With coefficients = Q R, the columns d of Q^T data, one for
        each coordinate, are independent with covariance I + own M + v u u^T, where M = R diag(e) R^T, u = R e, and v =
        mean (in the coordinate along (1, ..., 1): mean + features level). With the eigenvalues mu and eigenvectors A of
        M, scales s = 1 + own mu, and w = A^T u / s, the matrix determinant lemma and the Sherman-Morrison formula give

            log det = sum log s + log(1 + v u^T A w),
            d^T cov^-1 d = sum (A^T d)^2 / s - v (w^T A^T d)^2 / (1 + v u^T A w),

        so that one eigendecomposition of M serves all priors. The log likelihood of d is minus half their sum.

        Args:
            priors: priors to compare.
            summed: (m, unknowns) numbers of rows e.
        """
        R, data = self._reduced
        values, axes = np.linalg.eigh((R * summed[:, None]) @ R.T)  # mu and A of each alternative
        shift = ((summed @ R.T)[:, None] @ axes)[:, 0]  # A^T u
        scales = 1.0 + np.array([prior.own for prior in priors])[:, None, None] * np.maximum(values, 0.0)  # s
        # Shapes: out is (priors, m), the alternatives' k x k matrices and vectors are (m, k, k) and (m, k), scales and
        # weights are (priors, m, k), k being the number of unknowns. What Q projects away from the data is noise under
        # every prior and counts the same.
        out = np.full((len(priors), len(summed)), np.sum(data**2) - np.sum(self.data**2))
        if self.bias.size:
            out -= np.sum((self.bias - self.coefficients @ summed.T) ** 2, axis=0)
        weights = shift / scales  # w
        squares = np.sum(shift * weights, axis=-1)  # u^T A w
        levels = np.array([[prior.mean + self.features * prior.level, prior.mean] for prior in priors])  # v
        # twice: the coordinate along (1, ..., 1), then all others, with their v (priors, 1)
        for level, part, width in zip(levels.T[..., None], *self._split(data), strict=True):
            turned = np.swapaxes(axes, -1, -2) @ part
            inner = turned @ np.swapaxes(turned, -1, -2)  # A^T d d^T A, summed over the coordinates
            common = 1.0 + level * squares
            out -= width * (np.sum(np.log(scales), axis=-1) + np.log(common))
            out -= np.sum(np.diagonal(inner, axis1=-2, axis2=-1) / scales, axis=-1)
            along = (weights[..., None, :] @ inner @ weights[..., None])[..., 0, 0]  # w^T A^T d d^T A w
            out += level * along / common
        return np.asarray(out / 2)

    def _split(self, data: Array) -> tuple[tuple[Array, Array], tuple[int, int]]:
        """Split into the part along (1, ..., 1) and the orthogonal part; also return their numbers of directions.

        The orthogonal part has fewer coordinates than directions: in the others the messages are zero, and their
        variance counts all the same.
        """
        return (data[:, :1], data[:, 1:]), (1, self.features - 1)

    def best(self, square: float, summed: Array) -> tuple[float, GaussianRowPrior]:
        """Return the largest log likelihood of the priors with this mean square of an entry, and its prior."""
        priors = priors_with(square)
        values = self.likelihoods(priors, summed[None])[:, 0]
        return float(values.max()), priors[int(values.argmax())]

    def rows(self, prior: GaussianRowPrior) -> Array:
        """Return (rows, coordinates + 1) the posterior means, and in the last column the posterior deviation.

        The deviation is the square root of the expected squared length minus the squared length of the mean.
        """
        R, data = self._reduced
        out, spread = [], np.zeros(self.coefficients.shape[1])  # spread: posterior variance, summed over all directions
        # twice: the coordinate along (1, ..., 1), then all others
        for shared, part, width in zip(prior.shared(self.features), *self._split(data), strict=True):
            # With C the prior covariance: posterior mean C R^T (R C R^T + I)^-1 Q^T data, posterior covariance
            # C - C R^T (R C R^T + I)^-1 R C. C = own I + shared 1 1^T is as large as the square of all rows: only its
            # product with R^T, and its diagonal, are formed.
            gain = prior.own * R.T + shared * R.sum(axis=1)
            kept = gain @ np.linalg.inv(R @ gain + np.eye(len(R)))
            out.append(kept @ part)
            spread += width * (prior.own + shared - np.sum(kept * gain, axis=1))
        return np.concatenate([*out, np.sqrt(np.maximum(spread, 0.0))[:, None]], axis=1)


def whitened_equations(simulation: RoundSimulation) -> SumEquations:
    """Return the equations in units of their noise, in coordinates that span the messages.

    The first coordinate is along (1, ..., 1). The last one is orthogonal to everything that the messages show: it holds
    the length of a row's unknown part. After the first local step that length changes the row's residuals (through its
    norm), and the direction of the unknown part does not.
    """
    parts, model, features = simulation.method.sent, simulation.model, simulation.public.features
    sizes = {part: np.sqrt(np.mean([item.noise[part] ** 2 for item in simulation.rounds])) for part in parts}
    rows = [np.ones((1, features))]
    for item, out in zip(simulation.rounds, simulation.data_free, strict=True):
        rows += [model.weight(item.total[part] - out[part]) for part in parts]
    basis = np.linalg.qr(np.concatenate(rows).T)[0].T
    basis = np.concatenate([basis, np.zeros((1, features))])  # the direction of the unknown part is not known
    return SumEquations.in_basis(simulation, basis, {part: 1.0 / sizes[part] for part in parts})


def linear_messages(equations: SumEquations, rows: Array, labels: Array) -> LinearMessages:
    """Linearise the messages at these rows: fix the coefficients that they have there."""
    data, bias = equations.data
    return LinearMessages(equations.basis.shape[1], equations.coefficients(rows, labels), data[:, :-1], bias)


def ridge(equations: SumEquations, labels: Array) -> tuple[GaussianRowPrior, Array]:
    """Return the posterior means of the prior and of the rows under these labels.

    The prior is the mean over all priors tried, weighted by their likelihoods at rows of which only the length is
    known.

    Args:
        equations: as `whitened_equations` returns them.
        labels: (rows,) classes.

    Returns:
        The prior, and the rows (rows, coordinates).
    """
    bound, count = equations.simulation.public.feature_bound, equations.shape[0]
    priors, values = list[GaussianRowPrior](), list[float]()
    for square in _SQUARES:
        messages = linear_messages(equations, uninformed_rows(equations, square), labels)
        tried = priors_with(bound**2 * square)
        values += messages.likelihoods(tried, np.ones((1, count)))[:, 0].tolist()
        priors += tried
    weights = np.exp(np.array(values) - max(values))
    weights /= weights.sum()
    prior = GaussianRowPrior(
        *(float(weights @ [getattr(one, of) for one in priors]) for of in ("level", "mean", "own"))
    )
    rows = uninformed_rows(equations, (prior.level + prior.mean + prior.own) / bound**2)
    for _ in range(_ALTERNATIONS):
        rows = linear_messages(equations, rows, labels).rows(prior)
    return prior, rows


def uninformed_rows(equations: SumEquations, square: float) -> Array:
    """Return rows of which only the length is known: zero but for the last coordinate (see `whitened_equations`).

    Their entries have the mean square `square`, in units of the squared feature bound.
    """
    public, (count, width) = equations.simulation.public, equations.shape
    rows = np.zeros((count, width))
    rows[:, -1] = public.feature_bound * np.sqrt(square * public.features)
    return rows


def likeliest_label_counts(equations: SumEquations) -> tuple[Array, Array]:
    """Return the likeliest label counts, and by class the probability that a row's label is right; both (classes,).

    A local search moves one row at a time to another class; its unknowns are the sums of the rows of each class. It
    starts from equal counts and from those that the bias suggests. It starts again from the complement of each result,
    frequent classes made rare, because negated residuals c_k with negated rows explain the messages of the weights as
    well. The best result and its neighbours are then compared with single rows as unknowns.
    """
    simulation, total = equations.simulation, equations.shape[0]
    number = number_of_classes(simulation.model, simulation.public)
    square = simulation.public.feature_bound**2 * _USUAL_SQUARE
    rows = uninformed_rows(equations, _USUAL_SQUARE)
    # The coefficients of a row of each class, at rows of which only the length is known. The mean over such rows is the
    # coefficient of the sum of a class's rows.
    labelled = [linear_messages(equations, rows, np.full(total, label)) for label in range(number)]
    columns = [messages.coefficients.mean(axis=1) for messages in labelled]
    by_class = replace(labelled[0], coefficients=np.stack(columns, axis=1))
    starts = [np.full(number, total / number)]
    if by_class.bias.size:
        starts.append(np.linalg.lstsq(by_class.coefficients, by_class.bias[:, 0], rcond=None)[0])
    climbed = [_climb(by_class, square, round_to_total(start, total)) for start in starts]
    climbed += [_climb(by_class, square, round_to_total(counts.max() - counts, total)) for _, _, counts, _ in climbed]
    _, prior, climbed_counts, near = max(climbed, key=lambda one: one[0])

    alone = int(simulation.sizes.max()) == 1  # a row's coefficients depend on other rows of its client only

    def by_single_rows(counts: Array) -> float:
        labels = np.repeat(np.arange(number), counts)
        if alone:
            columns = [labelled[label].coefficients[:, row] for row, label in enumerate(labels)]
            messages = replace(labelled[0], coefficients=np.stack(columns, axis=1))
        else:
            messages = linear_messages(equations, rows, labels)
        return messages.best(square, np.ones(total))[0] + log_orderings(counts)

    judged = {tuple(one): by_single_rows(one) for one in (climbed_counts, *near[:_NEIGHBOURS])}
    counts = np.array(max(judged, key=judged.__getitem__))
    return counts, _right_by_class(by_class, prior, counts, judged)


def _right_by_class(
    by_class: LinearMessages, prior: GaussianRowPrior, counts: Array, judged: Mapping[tuple[int, ...], float]
) -> Array:
    """Return by class 1 / (1 + the odds of all other label counts that have one row fewer in it), (classes,).

    Args:
        by_class: the messages, with the sum of each class's rows as unknowns.
        prior: the rows' prior.
        counts: the likeliest label counts.
        judged: log likelihoods with single rows as unknowns, of `counts` and some others; they replace those of
            `by_class` where they are known.
    """
    others = _exchanges(counts)
    values = by_class.likelihoods([prior], np.stack([counts, *others]))[0]
    values += [log_orderings(one) for one in (counts, *others)]
    odds = np.zeros(len(counts))
    for other, value in zip(others, values[1:], strict=True):
        known = judged.get(tuple(other))
        log_odds = value - values[0] if known is None else known - judged[tuple(counts)]
        odds[np.argmin(other - counts)] += np.exp(min(log_odds, 0.0))  # the class that loses a row
    return np.asarray(1.0 / (1.0 + odds))


def _climb(
    by_class: LinearMessages, square: float, counts: Array
) -> tuple[float, GaussianRowPrior, Array, list[Array]]:
    """Move one row at a time to the class where the messages are likeliest, as long as that helps.

    Returns:
        The log likelihood, the prior, the counts, and their neighbours (one row moved), likeliest first.
    """
    best, prior = by_class.best(square, counts)
    while True:
        near = _exchanges(counts)
        found = by_class.likelihoods([prior], np.stack(near))[0] + [log_orderings(one) for one in near]
        near = [near[k] for k in np.argsort(-found, kind="stable")]
        value, other = by_class.best(square, near[0])
        if value + log_orderings(near[0]) <= best + log_orderings(counts):
            return best + log_orderings(counts), prior, counts, near
        best, prior, counts = value, other, near[0]


def log_orderings(counts: Array) -> float:
    """Return the logarithm of the number of orderings of the labels, up to a constant: rows have no order."""
    return float(-np.sum(gammaln(counts + 1.0)))


def _exchanges(counts: Array) -> list[Array]:
    """Return all counts with one row moved to another class."""
    out = []
    for one, other in product(np.flatnonzero(counts), range(len(counts))):
        if one != other:
            moved = counts.copy()
            moved[one] -= 1
            moved[other] += 1
            out.append(moved)
    return out
