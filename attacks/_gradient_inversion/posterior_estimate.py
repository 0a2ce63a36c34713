"""Estimate rows from messages with noise of known size, and check how well they explain the messages.

The noise is what a defence added to the messages of logistic or softmax regression; its standard deviation is public.
The labels are counted first, then the rows' posterior mean is computed by ridge regression (`row_posterior`). The
estimate explains the messages if the residual, in units of the noise, is about the square root of their number of
entries. Under weak noise, where the posterior mean may leave more, the rows are fitted to the posterior's mode.
`fitting_attack` calls this where messages hold noise.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np

from securefed._tensors import Array
from securefed.attacks._fitting.levenberg_marquardt import GeodesicAcceleration, levenberg_marquardt
from securefed.attacks._gradient_inversion.proximal_derivatives import is_proximal
from securefed.attacks._gradient_inversion.round_simulation import RoundSimulation
from securefed.attacks._gradient_inversion.row_posterior import (
    GaussianRowPrior,
    likeliest_label_counts,
    ridge,
    whitened_equations,
)
from securefed.attacks._gradient_inversion.sum_equations import SumEquations

_EXPLAINED: Final = 1.5
"""Residual, in units of the noise, up to which an estimate explains the messages."""
_STEPS: Final = 40
"""Jacobians of the fit under weak noise."""
_SPAN_TOLERANCE: Final = 1e-10
"""Singular values of the rows below this share of the largest count as zero; round-off leaves about 1e-16."""
_LEAST_PROGRESS: Final = 1e-4
"""Relative decrease of the objective below which that fit ends."""
_GEODESIC_CORRECTIONS: Final = 4
"""Further corrections of a step with the same Jacobian, one residual each: where the objective has a narrow, curved
valley, they lead the step back to its floor."""


def has_known_noise(simulation: RoundSimulation) -> bool:
    """Return whether every part of every message holds known noise, and the method applies no proximal operator."""
    parts = simulation.method.sent
    known = all(item.noise.get(part, 0.0) > 0 for item in simulation.rounds for part in parts)
    return known and not is_proximal(simulation.method)


@dataclass(frozen=True)
class PosteriorEstimate:
    """Rows estimated from messages with noise.

    Attributes:
        equations: all equations in units of their noise.
        simulation: the simulation in all coordinates of the rows.
        rows: (rows, features).
        labels: (rows,) classes.
        prior: prior of the rows.
        certain: mean probability that a label is right; 1 after a fit.
    """

    equations: SumEquations
    simulation: RoundSimulation
    rows: Array
    labels: Array
    prior: GaussianRowPrior
    certain: float

    @classmethod
    def of(cls, simulation: RoundSimulation) -> PosteriorEstimate:
        """Compute the posterior mean under the likeliest counts of labels.

        With p_k the probability that the label of row x_k is right and q the mean of the p_k, the estimate of x_k is
        p_k x_k + (1 - p_k) q m, with m the mean of all p_k x_k. So a row of uncertain label is shrunk to the mean of
        the rows, and that mean to zero where most labels are uncertain: opposite labels with negated rows explain the
        weights as well, so that its sign is uncertain too.

        Args:
            simulation: the simulation in all coordinates of the rows.
        """
        equations = whitened_equations(simulation)
        counts, sure = likeliest_label_counts(equations)  # both by class: numbers of rows, and p
        labels = np.repeat(np.arange(len(counts)), counts)
        prior, coordinates = ridge(equations, labels)
        weights = sure[labels][:, None]
        certain = float(weights.mean())
        rows = weights * (coordinates @ equations.basis)
        rows = rows + (1 - weights) * certain * rows.mean(axis=0)
        return cls(equations, simulation, rows, labels, prior, certain)

    @property
    def coordinates(self) -> Array:
        """Coordinates of the rows in the basis of the equations."""
        return np.asarray(self.rows @ self.equations.basis.T)

    @cached_property
    def squared_residual(self) -> float:
        """Squared norm of the residual, in units of the noise."""
        value = self.equations.residual(self.coordinates, self.labels)
        return float(value @ value) if np.isfinite(value).all() else np.inf

    @property
    def explained(self) -> bool:
        """Return whether the residual is as small as noise leaves it."""
        simulation = self.simulation
        size = simulation.model.size(simulation.public.features)
        return self.squared_residual <= _EXPLAINED**2 * size * len(simulation.rounds) * len(simulation.method.sent)

    @property
    def objective(self) -> float:
        """Twice the negative logarithm of the posterior density, up to a constant."""
        return self.squared_residual + float(np.sum((self.prior.root(len(self.rows)) @ self.rows) ** 2))

    def fitted(self, rows: Array, labels: Array) -> PosteriorEstimate:
        """Return the posterior mode near these rows, in their span; for weak noise, whose posteriors are narrow.

        The unknowns are the rows' coordinates in that span. It has few directions however many features the rows have,
        since the search found the rows among combinations of the messages: a round of a model with one output shows a
        single direction. Levenberg-Marquardt minimises `objective`: the squared residual plus the squared entries of
        root X, with root^T root the prior's precision.

        Args:
            rows: (rows, features) an estimate by a search without a prior.
            labels: (rows,) their classes.
        """
        values, directions = np.linalg.svd(rows, full_matrices=False)[1:]
        basis = directions[: max(1, int(np.sum(values > _SPAN_TOLERANCE * values[0])))]
        equations = SumEquations.in_basis(self.simulation, basis, self.equations.scales)
        root = self.prior.root(len(rows))
        # root_by_entry times the flattened coordinates is the flattened root X
        shape, root_by_entry = equations.shape, np.kron(root, np.eye(len(basis)))

        def residual(point: Array) -> Array:
            value = equations.residual(point.reshape(shape), labels)
            return np.concatenate([value, root_by_entry @ point])

        def linearised(point: Array) -> tuple[Array, Array]:
            value, slope = equations.linearised(point.reshape(shape), labels)
            return np.concatenate([value, root_by_entry @ point]), np.concatenate([slope, root_by_entry])

        fit = levenberg_marquardt(
            linearised,
            (rows @ basis.T).ravel(),
            steps=_STEPS,
            goal=0.0,
            residual=residual,
            stepper=GeodesicAcceleration(residual, _GEODESIC_CORRECTIONS),
            least=_LEAST_PROGRESS,
        )
        return replace(self, rows=fit.point.reshape(shape) @ basis, labels=labels, certain=1.0)
