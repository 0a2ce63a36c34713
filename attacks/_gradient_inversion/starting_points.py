"""Choose starting points for the fit of a client's rows.

The searches (`multistart_search`, `dlg`) fit the rows behind the messages of logistic or softmax regression from one
start after the other. A start is a guess of all labels and rows. With predicted probabilities p_k and labels y_k of row
x_k, k = 1..n, the gradients of the loss summed over the rows are, of weights and bias,

    G = sum_k (p_k - y_k) x_k^T = R X,    g = sum_k (p_k - y_k) = sum_k p_k - (n_c),

with p_k - y_k as the columns of R, (classes, n), and the label counts n_c, the numbers of rows of each class c. The
counts are estimated from g, with all p_k taken as that of a mean row: n_c is near n p_c - g_c, and an integer. For
given labels, the rows X are estimated from G by linear least squares, each round's message being treated as one
gradient. Logistic regression has one output in place of the classes, the probability of class 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, cycle, islice, zip_longest

import numpy as np

from securefed._tensors import Array
from securefed.attacks._fitting.label_counts import mean_layer_input, minimum_counts, nearest_counts, round_to_total
from securefed.attacks._gradient_inversion.gradient_rounds import GradientEstimate, local_steps
from securefed.attacks._gradient_inversion.linear_model import LinearModel, number_of_classes
from securefed.attacks._gradient_inversion.proximal_derivatives import is_proximal
from securefed.attacks._gradient_inversion.sum_equations import SumEquations

_LABEL_COUNTS = 12
"""Label counts to try: with fewer the true one may be missing, with more the likely ones get fewer starts."""
_LABEL_COUNTS_OF_ONE_GRADIENT = 50
"""Label counts to try for one client with one local step, whose messages are plain gradients, cheap to fit."""
_FIRST_ROUNDS = 8
"""With mini-batches, labels are counted from three averages: of the first round, of so many rounds, and of all."""
_ITERATIONS = 3
"""Alternations between computing the probabilities from the rows and solving for the rows."""
_CLIPPED_ITERATIONS = 4
"""Alternations if contributions are clipped, because the clipping factors depend on the rows too."""
_BIAS_WEIGHTS = 0.05, 2.0
"""Limits of the estimated factors s_k of `_clipped_samples`, by which rows are divided: noise may bring one near 0."""
_SINGULAR = 1e-3
"""Relative singular value below which a direction of the rows is left out of a start."""
_SCALES = 0.7, 3.0
"""Range of the random factor on the rows of repeated starts. With several local steps the least-squares rows come out
too small, since later gradients are smaller than the first."""
_REDRAWN = 20
"""Orders of the labels to draw at most until one differs from those before: of eight rows, one of which belongs to a
member that comes and goes, at most eight do."""
_ORDERS_PER_ROW = 1.5
"""Orders of the labels to try before a search gives up where members come and go, for each row. Eight rows, of which
one comes and goes, were found from the fifth to the eighth order; with half as many the search gave up before."""
_NOISE = 0.5
"""Size of the random disturbance of a start, relative to its rows: without any, rows of one label stay equal."""


@dataclass(frozen=True)
class StartingPoint:
    """First guess of a fit.

    Attributes:
        labels: (rows,) classes.
        samples: (rows, coordinates) first guess of the rows, in the coordinates of the equations (`SumEquations`).
    """

    labels: Array
    samples: Array


@dataclass(frozen=True)
class StartGenerator:
    """Generate starting points for a system of equations, the likeliest labels first.

    Attributes:
        equations: the equations to solve.
        gradients: one gradient estimate for each round, in the coordinates of the equations.
        averages: mean gradients from which labels are counted if a single round does not use all rows (mini-batches);
            if empty, labels are counted from the first round.
    """

    equations: SumEquations
    gradients: tuple[GradientEstimate, ...]
    averages: tuple[GradientEstimate, ...] = ()

    @classmethod
    def of(cls, equations: SumEquations, gradients: list[GradientEstimate]) -> StartGenerator:
        """Create a generator from gradients over all features, which are projected on the equations' coordinates."""
        model, basis = equations.simulation.model, equations.basis
        return cls(
            equations,
            tuple(
                replace(g, point=model.project(g.point, basis), gradient=model.project(g.gradient, basis))
                for g in gradients
            ),
        )

    def averaged(self) -> StartGenerator:
        """Return a generator that counts labels from averages over rounds, for mini-batches.

        A single round does not use all rows. All rounds together do, but the model changes between them. Averages over
        three numbers of rounds are used as a compromise.
        """

        def mean(part: tuple[GradientEstimate, ...]) -> GradientEstimate:
            points, gradients = [g.point for g in part], [g.gradient for g in part]
            return GradientEstimate(np.mean(points, axis=0), np.mean(gradients, axis=0))

        lengths = (1, _FIRST_ROUNDS, len(self.gradients))
        return replace(self, averages=tuple(mean(self.gradients[:count]) for count in lengths))

    @property
    def model(self) -> LinearModel:
        """The linear model."""
        return self.equations.simulation.model

    def __call__(self, rng: np.random.Generator) -> Iterator[StartingPoint]:
        """Yield an endless sequence of starts: each label count once, then the likelier half of the plausible ones.

        From the second start on the order of the labels (which row belongs to which member) and the rows' size are
        random; members who are in the same rounds may exchange their rows, so that an order which only does that is
        drawn again. All starts but those of a single row are disturbed by normal noise.
        """
        tried = set[tuple[tuple[tuple[int, ...], ...], ...]]()
        plausible = self.label_counts
        repeated = cycle(plausible[: max(1, len(plausible) // 2)])
        for attempt, counts in enumerate(chain(plausible, self.further_label_counts, repeated)):
            labels = np.repeat(np.arange(len(counts)), counts)
            if attempt:
                labels = rng.permutation(labels)
                for _ in range(_REDRAWN if len(self._alike) > 1 else 0):
                    if self._assigned(labels) not in tried:
                        break
                    labels = rng.permutation(labels)
                else:
                    tried.clear()  # once more from the first
            tried.add(self._assigned(labels))
            samples = self.samples(labels)
            if attempt:
                samples = samples * rng.uniform(*_SCALES)
            length = float(np.sqrt(np.mean(np.sum(samples**2, axis=1))))
            if len(samples) == 1:
                length = 0.0
            yield StartingPoint(
                labels, samples + rng.normal(0.0, _NOISE * length / np.sqrt(samples.shape[1]), samples.shape)
            )

    def samples(self, labels: Array) -> Array:
        """Solve G = R X for the rows X by least squares, all rounds stacked.

        R (outputs, rows) has the columns p_k - y_k. The p_k are computed from the rows found before, zero at first.
        Rows of one label come out equal.

        Args:
            labels: (rows,) classes.

        Returns:
            (rows, coordinates).
        """
        simulation = self.equations.simulation
        if any(item.clips for item in simulation.rounds) and not is_proximal(simulation.method):
            return self._clipped_samples(labels)
        targets = self.model.targets(labels)
        x = np.zeros((len(labels), len(self.equations.basis)))
        for _ in range(_ITERATIONS):
            residuals, sums = [], []
            for item, there in zip(self.gradients, self._there, strict=True):
                residuals.append(there * (self.model.probabilities(self.model.logits(item.point, x)) - targets).T)
                sums.append(self.model.weight(item.gradient))
            x = np.linalg.lstsq(np.concatenate(residuals), np.concatenate(sums), rcond=_SINGULAR)[0]
        return x

    def _clipped_samples(self, labels: Array) -> Array:
        """Solve for the rows under clips by least squares, with coefficients from the rows found before.

        A clip scales a member's whole message, weights and bias alike. So the sums are sum_k s_k c_k x_k^T (weights)
        and sum_k s_k c_k (bias): c_k is the coefficient of row k, clip included, as simulated with the rows found
        before, and s_k the ratio of the true clip factor to the simulated one, taken as the same in all rounds. Least
        squares gives s_k x_k and s_k side by side, and x_k is their ratio. Where a clip does not scale the bias with
        the weights, s_k is taken as 1.
        """
        equations = self.equations
        weights, bias = equations.data
        clips = [clip for item in equations.simulation.rounds for clip in item.clips]
        # a clip scales its blocks (a part's weights, or its bias) together; besides weights they must hold a bias
        if not all(clip.weights and len(clip.blocks) > len(clip.weights) for clip in clips):
            bias = bias[:, :0]  # no columns: s_k is taken as 1
        x = np.zeros((len(labels), len(equations.basis)))
        for _ in range(_CLIPPED_ITERATIONS):
            # the c_k as columns, one line for each round, part of a message and output; observed sums likewise
            coefficients = equations.coefficients(x, labels)
            both = np.linalg.lstsq(coefficients, np.concatenate([weights, bias], axis=1), rcond=_SINGULAR)[0]
            x = both[:, : x.shape[1]]  # s_k x_k; the last column is s_k
            if bias.shape[1]:
                x = x / np.clip(both[:, -1:], *_BIAS_WEIGHTS)
        return x

    @cached_property
    def label_counts(self) -> list[Array]:
        """Plausible label counts n_c (number of rows of each class c), each (classes,), the likeliest first.

        They come from one gradient (`_counts`), or in turn from each of several averages. If a row x with one label has
        the gradient of -x with the other (`LinearModel.mirrored`: two classes, no bias), labels are not determined, and
        all rows are given class 0.
        """
        total, number = self._total, number_of_classes(self.model, self.equations.simulation.public)
        if self.model.mirrored:
            return [np.array([total] + [0] * (number - 1))]
        if not self.averages:
            limit = _LABEL_COUNTS_OF_ONE_GRADIENT if self._one_gradient else _LABEL_COUNTS
            return self._counts(self.gradients[0])[:limit]
        ranked = zip_longest(*(self._counts(item) for item in self.averages))
        unique = {tuple(counts): counts for place in ranked for counts in place if counts is not None}
        return list(unique.values())[:_LABEL_COUNTS]

    @cached_property
    def further_label_counts(self) -> list[Array]:
        """Further possible numbers of rows per class after several local steps of one client, the likeliest first.

        After large steps the bias no longer counts rows. It still shows which classes are present, if sum_k p_kc < 1 in
        every class c: the gradient of the first step, sum_k p_kc - n_c, is then negative exactly where n_c >= 1. These
        counts have at least one row of each class that is present, none of another, and are those nearest to the
        likeliest of `label_counts`.
        """
        total, first, model = self._total, self.gradients[0], self.model
        several = len(self.equations.simulation.members) > 1
        if self.averages or total == 1 or not model.bias or model.logistic or several or self._one_gradient:
            return []
        present = np.flatnonzero(np.asarray(model.offset(first.gradient)) < -first.error)
        if total * self._probabilities(first).max() >= 1.0 or not 0 < len(present) <= total:
            return []
        likeliest, known = self.label_counts[0], {tuple(counts) for counts in self.label_counts}
        out, one_each = [], np.ones(len(present), np.int64)
        for of_present in islice(nearest_counts(likeliest[present], one_each, total), _LABEL_COUNTS):
            counts = np.zeros_like(likeliest)
            counts[present] = of_present
            if tuple(counts) not in known:
                out.append(counts)
        return out

    def _assigned(self, labels: Array) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """Return by group of members who are in the same rounds, in a fixed order, the labels of each member's rows."""
        ends = np.cumsum(self.equations.simulation.sizes)
        own = [tuple(sorted(map(int, part))) for part in np.split(labels, ends[:-1])]
        return tuple(tuple(sorted(own[place] for place in group)) for group in self._alike)

    @cached_property
    def _there(self) -> list[Array]:
        """By round, (rows,) whether the row's member is in it."""
        simulation = self.equations.simulation
        present = ([member in item.members for member in simulation.members] for item in simulation.rounds)
        return [np.repeat(np.array(members, float), simulation.sizes) for members in present]

    @cached_property
    def _alike(self) -> list[list[int]]:
        """Places of the members by the rounds that they are in."""
        simulation = self.equations.simulation
        groups: dict[tuple[bool, ...], list[int]] = {}
        for place, member in enumerate(simulation.members):
            groups.setdefault(tuple(member in item.members for item in simulation.rounds), []).append(place)
        return list(groups.values())

    @property
    def fewest(self) -> int:
        """Number of starts that try every plausible label count; and orders of them where members come and go."""
        counts = len(self.label_counts) + len(self.further_label_counts)
        return counts if len(self._alike) == 1 else counts + math.ceil(_ORDERS_PER_ROW * self._total)

    @property
    def _total(self) -> int:
        return self.equations.shape[0]

    @property
    def _one_gradient(self) -> bool:
        simulation = self.equations.simulation
        return len(simulation.members) == 1 and local_steps(simulation.method) == 1

    def _probabilities(self, first: GradientEstimate) -> Array:
        """Return (classes,) probabilities of about the mean row, or of a row of zeros if the bias does not show it."""
        model, row = self.model, np.zeros((1, len(self.equations.basis)))
        if model.bias and not model.logistic and np.any(sums := np.asarray(model.offset(first.gradient))):
            row = mean_layer_input(model.weight(first.gradient), sums)[None]
        return np.asarray(model.probabilities(model.logits(first.point, row))[0])

    def _counts(self, first: GradientEstimate) -> list[Array]:
        """Return the counts that one gradient suggests, the likeliest first.

        The gradient shows sums = f g with an unknown factor f (`_sums_and_factors`). At the right f the numbers
        sum_k p_k - sums / f are the n_c, hence integers but for the error of p. Several f are tried, and the counts
        ranked by how near the numbers come to them.
        """
        total, model = self._total, self.model
        number = number_of_classes(model, self.equations.simulation.public)
        if total == 1 and not model.logistic:
            return self._label_of_one_row(first, number)
        p = self._probabilities(first)
        sums, factors = self._sums_and_factors(first, p)
        distances: dict[tuple[int, ...], float] = {}
        for factor in factors:
            n = total * p - sums / max(factor, 1e-300)
            n = np.array([total - n[0], n[0]]) if model.logistic else n  # its one output is the probability of class 1
            counts = round_to_total(n, total)
            key = tuple(int(c) for c in counts)
            distances[key] = min(float(np.abs(n - counts).max()), distances.get(key, np.inf))
        ranked = [np.array(key) for key in sorted(distances, key=distances.__getitem__)]
        if self.averages or not model.bias or model.logistic or not self._one_gradient:
            return ranked
        # Probabilities are positive, so that n_c >= -sums_c; counts above these bounds, nearest to the estimate.
        least = minimum_counts(sums, first.error)
        if least.sum() > total:
            return ranked
        nearest = islice(nearest_counts(total * p - sums, least, total), _LABEL_COUNTS_OF_ONE_GRADIENT)
        return list({tuple(counts): counts for counts in (*nearest, *ranked)}.values())

    def _sums_and_factors(self, first: GradientEstimate, p: Array) -> tuple[Array, Array]:
        """Return sums = f g (outputs,), and guesses of the positive factor f.

        With a bias, the sums are its gradient: f is 1 after one local step, and less after several, which shrink the
        gradient. Without one they are the weights' gradient summed over the features, sum_k (p_k - y_k) (sum of the
        entries of x_k): f is about the mean sum of a row's entries, where no feature is negative.
        """
        if self.model.bias:
            return np.asarray(self.model.offset(first.gradient)), np.linspace(1.0, 0.2, 81)
        sums = self.model.weight(first.gradient) @ self.equations.basis.sum(axis=1)
        # No n_c = total p_c - sums_c / f is negative, so that f >= sums_c / (total p_c), with equality for a class
        # without rows: where there is one, f is the largest of these. p is approximate, hence guesses on both sides.
        largest = float(np.max(sums / p)) / self._total
        return sums, np.abs(largest) * np.append(1.0, np.linspace(0.5, 4.0, 81))

    def _label_of_one_row(self, first: GradientEstimate, number: int) -> list[Array]:
        """Read one row's label: the entries of p - y add up to 0, and only that of the label is negative.

        It is the largest in size, and so is its row of the weights' gradient (p - y) x^T.
        """
        if number == 2:  # both entries are equally large; the label's is negative
            return [np.eye(2, dtype=np.int64)[k] for k in np.argsort(self.model.offset(first.gradient))]
        label = int(np.argmax(np.linalg.norm(self.model.weight(first.gradient), axis=1)))
        return [np.eye(number, dtype=np.int64)[label]]
