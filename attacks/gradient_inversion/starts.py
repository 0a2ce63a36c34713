"""Where a search begins: labels from the bias, samples from the rounds read as one gradient each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations_with_replacement, count, islice, zip_longest
from math import comb

import numpy as np

from securefed.attacks.gradient_inversion.glm import LinearModel, classes
from securefed.attacks.gradient_inversion.proximal import is_proximal
from securefed.attacks.gradient_inversion.rounds import Gradients, local_steps
from securefed.attacks.gradient_inversion.system import System
from securefed.attacks.label_counts import fewest, mean_entering, nearest_counts, round_to
from securefed.tensors import Array

_CANDIDATES, _OF_ONE_GRADIENT = 12, 50
_FEW = 8
_TURNS = 4
_SHARES = 0.05, 2.0
_PLACEMENTS = 60
_SOME = 4
"""Starts before labels are tried that the bias does not count."""
_ROUND_OFF = 1e-9
_SCALES = 0.4 * 1.12 ** np.arange(28)


@dataclass(frozen=True)
class Start:
    """Labels (samples,) and coordinates (samples, width) of a guess."""

    labels: Array
    samples: Array


@dataclass(frozen=True)
class Starts:
    """Guesses for a system, best first.

    Attributes:
        gradients: rounds read as gradients, in coordinates.
        averages: what labels are counted from where rounds miss rows; else it is the first round.
    """

    system: System
    gradients: tuple[Gradients, ...]
    averages: tuple[Gradients, ...] = ()

    @classmethod
    def of(cls, system: System, gradients: list[Gradients]) -> Starts:
        model = system.simulation.model
        basis = system.basis
        return cls(
            system,
            tuple(
                replace(g, point=model.project(g.point, basis), gradient=model.project(g.gradient, basis))
                for g in gradients
            ),
        )

    def averaged(self) -> Starts:
        """For mini-batches: a round misses rows, all of them together do not, but the model moves meanwhile."""

        def mean(part: tuple[Gradients, ...]) -> Gradients:
            return Gradients(np.mean([g.point for g in part], axis=0), np.mean([g.gradient for g in part], axis=0))

        return replace(self, averages=tuple(mean(self.gradients[:count]) for count in (1, _FEW, len(self.gradients))))

    @property
    def model(self) -> LinearModel:
        return self.system.simulation.model

    def __call__(self, rng: np.random.Generator) -> Iterator[Start]:
        """Guesses without end, disturbed anew each time: see `_in_turn` for their labels."""
        scales = dict[bytes, Array]()
        for attempt, counts in enumerate(self._in_turn()):
            labels = np.repeat(np.arange(len(counts)), counts)
            if attempt:
                labels = rng.permutation(labels)
            samples = self.samples(labels)
            if attempt:  # several local steps send less than as many first gradients: guesses are rather too small
                if len(samples) > 1:
                    samples = samples * rng.uniform(0.7, 3)
                else:  # the same labels have the same scales
                    key = labels.tobytes()
                    if key not in scales:
                        scales[key] = self._scales(samples, labels)
                    samples = samples * scales[key][(attempt - 1) % len(_SCALES)]
            spread = float(np.sqrt(np.mean(np.sum(samples**2, axis=1))))
            if len(samples) == 1:
                spread = 0.0
            yield Start(labels, samples + rng.normal(0.0, 0.5 * spread / np.sqrt(samples.shape[1]), samples.shape))

    def _in_turn(self) -> Iterator[Array]:
        """Each plausible count of labels once, then the likelier half again; what few rows allow besides comes in
        between, once the plausible ones have had some starts."""
        candidates = self.label_counts
        half = candidates[: max(1, len(candidates) // 2)]
        some = max(len(candidates), _SOME)
        yield from candidates
        yield from (half[attempt % len(half)] for attempt in range(len(candidates), some))
        yield from self.further_counts
        yield from (half[attempt % len(half)] for attempt in count(some))

    def _scales(self, sample: Array, labels: Array) -> Array:
        """One row in one coordinate: a grid of scales, those that fit best first."""
        with np.errstate(all="ignore"):
            misfits = np.nan_to_num([self.system.relative(scale * sample, labels) for scale in _SCALES], nan=np.inf)
        return np.asarray(_SCALES[np.argsort(misfits)])

    def samples(self, labels: Array) -> Array:
        """Least squares through R X = G with R = p - y, p from the samples found before; ties stay equal."""
        simulation = self.system.simulation
        if any(seen.clips for seen in simulation.rounds) and not is_proximal(simulation.method):
            return self._clipped_samples(labels)
        targets = self.model.targets(labels)
        x = np.zeros((len(labels), len(self.system.basis)))
        for _ in range(3):
            residuals, sums = [], []
            for item in self.gradients:
                residuals.append((self.model.probabilities(self.model.logits(item.point, x)) - targets).T)
                sums.append(self.model.weight(item.gradient))
            x = np.linalg.lstsq(np.concatenate(residuals), np.concatenate(sums), rcond=1e-3)[0]
        return x

    def _clipped_samples(self, labels: Array) -> Array:
        """Least squares through the messages themselves: how much rows count in them follows from the rows found
        before. Where a bias tells how much each counts indeed, a row that is too small for its norm is not scaled up
        twice."""
        (rows, bias), clips = self.system.data, [clip for seen in self.system.simulation.rounds for clip in seen.clips]
        if not all(clip.weights and len(clip.blocks) > len(clip.weights) for clip in clips):
            bias = bias[:, :0]  # which is clipped by itself, and tells nothing
        x = np.zeros((len(labels), len(self.system.basis)))
        for _ in range(_TURNS):
            counts = self.system.coefficients(x, labels)
            both = np.linalg.lstsq(counts, np.concatenate([rows, bias], axis=1), rcond=1e-3)[0]
            x = both[:, : x.shape[1]]
            if bias.shape[1]:
                x = x / np.clip(both[:, -1:], *_SHARES)
        return x

    @cached_property
    def label_counts(self) -> list[Array]:
        """Plausible numbers of rows per class, the likeliest first.

        With a bias, sum_k p_kc - n_c is its gradient. Without one, the weights' gradient summed over the features
        takes its place, up to a scale (features of one sign). Local steps shrink all of it by a common factor, so
        the factors are tried that make the n_c integers. Where labels mirror samples, class 0 throughout fits as well.
        """
        total, number = self.system.shape[0], classes(self.model, self.system.simulation.public)
        if self.model.mirrored:
            return [np.array([total] + [0] * (number - 1))]
        if not self.averages:
            return self._counts(self.gradients[0])[: _OF_ONE_GRADIENT if self._one_gradient else _CANDIDATES]
        ranked = zip_longest(*(self._counts(item) for item in self.averages))
        unique = {tuple(counts): counts for place in ranked for counts in place if counts is not None}
        return list(unique.values())[:_CANDIDATES]

    @cached_property
    def further_counts(self) -> list[Array]:
        """What the bias allows besides after several steps of one client with few rows: the likeliest first.

        Then it no longer counts rows, but it shows which classes there are: n_c >= 1 exceeds sum_k p_kc, and the first
        step's gradient is negative. All rows are of those.
        """
        total, first, several = self.system.shape[0], self.gradients[0], len(self.system.simulation.members) > 1
        if self.averages or total == 1 or not self.model.bias or self.model.logistic or several or self._one_gradient:
            return []
        p, sums = self._expected(first), np.asarray(self.model.offset(first.gradient))
        present = (sums < -max(first.error, _ROUND_OFF * np.abs(sums).max())).astype(int)
        if total * p.max() >= 1.0:
            return []
        plausible = self.label_counts
        known = {tuple(counts) for counts in plausible}
        found = _placed(present, np.flatnonzero(present), total - int(present.sum()))
        return [counts for counts in _nearest(found, plausible[0]) if tuple(counts) not in known][:_CANDIDATES]

    @property
    def enough(self) -> int:
        """Starts after which every count of labels had one."""
        further = len(self.further_counts)
        return further + max(len(self.label_counts), _SOME if further else 0)

    @property
    def _one_gradient(self) -> bool:
        simulation = self.system.simulation
        return len(simulation.members) == 1 and local_steps(simulation.method) == 1

    def _expected(self, first: Gradients) -> Array:
        """(classes,) probabilities of about the mean row; of a row of zeros where no bias tells it."""
        model, row = self.model, np.zeros((1, len(self.system.basis)))
        if model.bias and not model.logistic and np.any(sums := np.asarray(model.offset(first.gradient))):
            row = mean_entering(model.weight(first.gradient), sums)[None]
        return np.asarray(model.probabilities(model.logits(first.point, row))[0])

    def _counts(self, first: Gradients) -> list[Array]:
        """All that are found in one gradient, the likeliest first."""
        total, number = self.system.shape[0], classes(self.model, self.system.simulation.public)
        if total == 1 and not self.model.logistic:  # the label's entry of p - y is as large as all others together
            if number == 2:  # as large as the other one: it is the negative one
                return [np.eye(2, dtype=np.int64)[k] for k in np.argsort(self.model.offset(first.gradient))]
            label = int(np.argmax(np.linalg.norm(self.model.weight(first.gradient), axis=1)))
            return [np.eye(number, dtype=np.int64)[label]]
        p = self._expected(first)
        if self.model.bias:
            sums, factors = np.asarray(self.model.offset(first.gradient)), np.linspace(1.0, 0.2, 81)
        else:
            sums = self.model.weight(first.gradient) @ self.system.basis.sum(axis=1)
            largest = float(np.max(sums / p)) / total
            factors = np.abs(largest) * np.append(1.0, np.linspace(0.5, 4.0, 81))
        found: dict[tuple[int, ...], float] = {}
        for factor in factors:
            n = total * p - sums / max(factor, 1e-300)
            n = np.array([total - n[0], n[0]]) if self.model.logistic else n
            counts = round_to(n, total)
            misfit = float(np.abs(n - counts).max())
            key = tuple(int(c) for c in counts)
            found[key] = min(misfit, found.get(key, np.inf))
        ranked = [np.array(key) for key in sorted(found, key=found.__getitem__)]
        if self.averages or not self.model.bias or self.model.logistic or not self._one_gradient:
            return ranked
        least = fewest(sums, first.error)
        if least.sum() > total:
            return ranked
        nearest = islice(nearest_counts(total * p - sums, least, total), _OF_ONE_GRADIENT)
        return list({tuple(counts): counts for counts in (*nearest, *ranked)}.values())


def _placed(least: Array, among: Array, left: int) -> Iterator[Array]:
    """`least` and `left` more of some classes, unless `_PLACEMENTS` do not hold them all."""
    if left >= 0 and len(among) and comb(len(among) + left - 1, left) <= _PLACEMENTS:
        for place in combinations_with_replacement(among, left):
            yield least + np.bincount(np.array(place, int), minlength=len(least))


def _nearest(counts: Iterable[Array], to: Array) -> list[Array]:
    return sorted(counts, key=lambda one: float(np.abs(one - to).sum()))
