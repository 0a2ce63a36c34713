"""From messages with noise of a known size to rows: what is probable, and how well it explains them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np

from securefed.attacks.gradient_inversion.posterior import Prior, label_counts, orders, ridge, whitened
from securefed.attacks.gradient_inversion.proximal import is_proximal
from securefed.attacks.gradient_inversion.simulate import Simulation
from securefed.attacks.gradient_inversion.system import System, apart
from securefed.attacks.levenberg import Geodesic, levenberg
from securefed.tensors import Array

_EXPLAINED: Final = 1.5
"""Times the noise: a misfit up to which an estimate explains the messages."""
_CERTAIN: Final = 0.5
_HINTS: Final = 3
_STEPS: Final = 40
_LEAST: Final = 1e-4
_CORRECTIONS: Final = 4


def noisy(simulation: Simulation) -> bool:
    """Whether every part of every message holds noise of a known size, and the rows count in it linearly."""
    parts = simulation.method.sent
    known = all(seen.noise.get(part, 0.0) > 0 for seen in simulation.rounds for part in parts)
    return known and not is_proximal(simulation.method)


@dataclass(frozen=True)
class Guess:
    """Rows that messages with noise suggest.

    Attributes:
        system: all equations in units of their noise.      simulation: in all of the rows' coordinates.
        rows: (rows, features).      labels: (rows,).      prior: of rows.
        certain: how probable labels are, on average.
    """

    system: System
    simulation: Simulation
    rows: Array
    labels: Array
    prior: Prior
    certain: float

    @classmethod
    def of(cls, simulation: Simulation, hints: Sequence[Array]) -> Guess:
        """The posterior mean.

        A row whose label may as well be another one says little: it is drawn to the mean of all as far as that is so.

        Args:
            hints: further counts of labels to try, where noise leaves labels to be seen.
        """
        system = whitened(simulation, simulation.public.features)
        counts, sure = label_counts(system)
        every = np.arange(len(counts))
        tried = [counts]
        if sure[counts > 0].min() > _CERTAIN:
            tried += [hint for hint in hints[:_HINTS] if not np.array_equal(hint, counts)]
        found = [(*ridge(system, np.repeat(every, one)), one) for one in tried]
        _, prior, coordinates, counts = max(found, key=lambda item: item[0] + orders(item[-1]))
        labels = np.repeat(every, counts)
        weights = sure[labels][:, None] if counts is tried[0] else np.ones((len(labels), 1))
        certain = float(weights.mean())
        rows = weights * (coordinates @ system.basis)
        rows = rows + (1 - weights) * certain * rows.mean(axis=0)
        return cls(system, simulation, rows, labels, prior, certain)

    @property
    def coordinates(self) -> Array:
        return np.asarray(self.rows @ self.system.basis.T)

    @cached_property
    def misfit(self) -> float:
        """Squared, in units of the noise."""
        value = self.system.misfit(self.coordinates, self.labels, slope=False)[0]
        return float(value @ value) if np.isfinite(value).all() else np.inf

    @property
    def explained(self) -> bool:
        """Whether the misfit is that of noise."""
        simulation = self.simulation
        size = simulation.model.size(simulation.public.features)
        return self.misfit <= _EXPLAINED**2 * size * len(simulation.rounds) * len(simulation.method.sent)

    @property
    def objective(self) -> float:
        """Twice the negative logarithm of the posterior density, up to a constant."""
        return self.misfit + float(np.sum((self.prior.root(len(self.rows)) @ self.rows) ** 2))

    def fitted(self, rows: Array, labels: Array) -> Guess:
        """The most probable rows near these, in their span, for weaker noise: then posteriors are narrow."""
        basis = np.linalg.svd(rows, full_matrices=False)[2]
        known = apart(self.simulation, self.simulation.public.features)
        system = System.plain(self.simulation, basis, self.system.scales, known)
        root = self.prior.root(len(rows))
        shape, apiece = system.shape, np.kron(root, np.eye(len(basis)))

        def residual(point: Array) -> Array:
            value = system.misfit(point.reshape(shape), labels, slope=False)[0]
            return np.concatenate([value, apiece @ point])

        def linearised(point: Array) -> tuple[Array, Array]:
            value, slope = system.misfit(point.reshape(shape), labels)
            return np.concatenate([value, apiece @ point]), np.concatenate([slope, apiece])

        fit = levenberg(
            linearised,
            (rows @ basis.T).ravel(),
            steps=_STEPS,
            goal=0.0,
            residual=residual,
            stepper=Geodesic(residual, _CORRECTIONS),
            least=_LEAST,
        )
        return replace(self, rows=fit.point.reshape(shape) @ basis, labels=labels, certain=1.0)
