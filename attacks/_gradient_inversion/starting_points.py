"""Starting points of the fit: labels from the bias, rows from the rounds read as one gradient each."""

from __future__ import annotations

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
"""Counts of labels to try: fewer miss the true ones, more take starts from the likely ones."""
_LABEL_COUNTS_OF_ONE_GRADIENT = 50
"""The same where each is cheap to fit: one client, one local step."""
_FIRST_ROUNDS = 8
"""Rounds in the second of the three averages that labels of mini-batches are counted from: the first, these, all."""
_ITERATIONS = 3
"""Alternations between rows and probabilities."""
_CLIPPED_ITERATIONS = 4
"""The same under clips, whose factors depend on the rows too."""
_BIAS_WEIGHTS = 0.05, 2.0
"""Limits of a row's estimated weight under clips, so that noise in the bias does not scale a row to infinity."""
_SINGULAR = 1e-3
"""Relative singular value below which a direction of the rows is left out of a start."""
_SCALES = 0.7, 3.0
"""Factors of repeated starts: local steps send less than as many first gradients, so that rows come out small."""
_NOISE = 0.5
"""Size of the random disturbance of a start, relative to its rows: without any, rows of one label stay equal."""


@dataclass(frozen=True)
class StartingPoint:
    """A first guess.

    Attributes:
        labels: (rows,) classes.
        samples: (rows, coordinates).
    """

    labels: Array
    samples: Array


@dataclass(frozen=True)
class StartGenerator:
    """Generate starting points for a system of equations, the likeliest labels first.

    Attributes:
        equations: the equations to solve.
        gradients: the rounds read as gradients, in coordinates.
        averages: mean gradients to count labels from where single rounds miss rows; else the first round is used.
    """

    equations: SumEquations
    gradients: tuple[GradientEstimate, ...]
    averages: tuple[GradientEstimate, ...] = ()

    @classmethod
    def of(cls, equations: SumEquations, gradients: list[GradientEstimate]) -> StartGenerator:
        """Project gradients on the coordinates of the equations."""
        model, basis = equations.simulation.model, equations.basis
        return cls(
            equations,
            tuple(
                replace(g, point=model.project(g.point, basis), gradient=model.project(g.gradient, basis))
                for g in gradients
            ),
        )

    def averaged(self) -> StartGenerator:
        """Count labels from averages over rounds, for mini-batches.

        A round misses rows. All rounds together miss none, but the model moves meanwhile, so that three averages are
        used.
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
        """Generate starts without end: each count of labels once, then the likelier half of the plausible ones."""
        plausible = self.label_counts
        repeated = cycle(plausible[: max(1, len(plausible) // 2)])
        for attempt, counts in enumerate(chain(plausible, self.further_label_counts, repeated)):
            labels = np.repeat(np.arange(len(counts)), counts)
            if attempt:
                labels = rng.permutation(labels)
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
        """Solve R X = G for the rows X by least squares, with R = p - y and p from the rows found before.

        Rows of one label come out equal.
        """
        simulation = self.equations.simulation
        if any(seen.clips for seen in simulation.rounds) and not is_proximal(simulation.method):
            return self._clipped_samples(labels)
        targets = self.model.targets(labels)
        x = np.zeros((len(labels), len(self.equations.basis)))
        for _ in range(_ITERATIONS):
            residuals, sums = [], []
            for item in self.gradients:
                residuals.append((self.model.probabilities(self.model.logits(item.point, x)) - targets).T)
                sums.append(self.model.weight(item.gradient))
            x = np.linalg.lstsq(np.concatenate(residuals), np.concatenate(sums), rcond=_SINGULAR)[0]
        return x

    def _clipped_samples(self, labels: Array) -> Array:
        """Solve for the rows under clips by least squares, with coefficients from the rows found before.

        If the bias is clipped together with the weights, it shows each row's actual weight, and rows are divided by it.
        """
        equations = self.equations
        (rows, bias), clips = equations.data, [clip for seen in equations.simulation.rounds for clip in seen.clips]
        if not all(clip.weights and len(clip.blocks) > len(clip.weights) for clip in clips):
            bias = bias[:, :0]  # clipped by itself, it says nothing about the weights
        x = np.zeros((len(labels), len(equations.basis)))
        for _ in range(_CLIPPED_ITERATIONS):
            counts = equations.coefficients(x, labels)
            both = np.linalg.lstsq(counts, np.concatenate([rows, bias], axis=1), rcond=_SINGULAR)[0]
            x = both[:, : x.shape[1]]
            if bias.shape[1]:
                x = x / np.clip(both[:, -1:], *_BIAS_WEIGHTS)
        return x

    @cached_property
    def label_counts(self) -> list[Array]:
        """Plausible numbers of rows per class, the likeliest first.

        With a bias, its gradient is sum_k p_kc - n_c. Without one, the weights' gradient summed over the features takes
        its place, up to a scale (features of one sign). Local steps shrink all of it by a common factor, so that the
        factors are tried that make the n_c integers. If labels mirror rows, class 0 throughout fits as well.
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

        After large steps the bias no longer counts rows, but it shows which classes are present if sum_k p_kc < 1: then
        n_c >= 1 exceeds it, and the gradient of the first step is negative. All rows are of these classes.
        """
        total, first, model = self._total, self.gradients[0], self.model
        several = len(self.equations.simulation.members) > 1
        if self.averages or total == 1 or not model.bias or model.logistic or several or self._one_gradient:
            return []
        present = np.flatnonzero(np.asarray(model.offset(first.gradient)) < -first.error)
        if total * self._probabilities(first).max() >= 1.0 or not 0 < len(present) <= total:
            return []
        plausible = self.label_counts
        known = {tuple(counts) for counts in plausible}
        least = np.ones(len(present), np.int64)
        nearest = islice(nearest_counts(plausible[0][present], least, total), _LABEL_COUNTS)
        possible = [np.bincount(np.repeat(present, counts), minlength=len(plausible[0])) for counts in nearest]
        return [counts for counts in possible if tuple(counts) not in known]

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
        """Return the counts that one gradient suggests, the likeliest first."""
        total, model = self._total, self.model
        number = number_of_classes(model, self.equations.simulation.public)
        if total == 1 and not model.logistic:
            return self._label_of_one_row(first, number)
        p = self._probabilities(first)
        if model.bias:
            sums, factors = np.asarray(model.offset(first.gradient)), np.linspace(1.0, 0.2, 81)
        else:
            sums = model.weight(first.gradient) @ self.equations.basis.sum(axis=1)
            largest = float(np.max(sums / p)) / total
            factors = np.abs(largest) * np.append(1.0, np.linspace(0.5, 4.0, 81))
        distances: dict[tuple[int, ...], float] = {}
        for factor in factors:
            n = total * p - sums / max(factor, 1e-300)
            n = np.array([total - n[0], n[0]]) if model.logistic else n
            counts = round_to_total(n, total)
            key = tuple(int(c) for c in counts)
            distances[key] = min(float(np.abs(n - counts).max()), distances.get(key, np.inf))
        ranked = [np.array(key) for key in sorted(distances, key=distances.__getitem__)]
        if self.averages or not model.bias or model.logistic or not self._one_gradient:
            return ranked
        least = minimum_counts(sums, first.error)
        if least.sum() > total:
            return ranked
        nearest = islice(nearest_counts(total * p - sums, least, total), _LABEL_COUNTS_OF_ONE_GRADIENT)
        return list({tuple(counts): counts for counts in (*nearest, *ranked)}.values())

    def _label_of_one_row(self, first: GradientEstimate, number: int) -> list[Array]:
        """Read one row's label: its entry of p - y is as large as all others together."""
        if number == 2:  # as large as the other one, and negative
            return [np.eye(2, dtype=np.int64)[k] for k in np.argsort(self.model.offset(first.gradient))]
        label = int(np.argmax(np.linalg.norm(self.model.weight(first.gradient), axis=1)))
        return [np.eye(number, dtype=np.int64)[label]]
