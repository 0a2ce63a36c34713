"""Fit the rows behind one message by Levenberg-Marquardt, in the row space of the first layer's gradient.

The gradient of a first linear layer is D^T X, so that its row space holds the B rows X (B, features). With an
orthonormal basis V (r, features) of it, r <= B, the rows are X = C V, and only the coordinates C (B, r) are fitted:
they minimise ||simulated message of C V - observed message|| / ||observed message|| from random starts. Where labels
are unknown, several hypotheses, each the message with one guess of all labels, are compared by a few steps each. This
is the second stage of `staged_inversion`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from securefed._tensors import Array
from securefed.attacks._fitting.levenberg_marquardt import (
    GeodesicAcceleration,
    LeastSquaresFit,
    StallLimit,
    levenberg_marquardt,
)
from securefed.attacks._networks.client_simulations import ClientSimulation
from securefed.attacks._networks.flat_network import FlatNetwork
from securefed.attacks._networks.gradient_matching import InversionProblem, RowPrior
from securefed.attacks._networks.row_parametrisations import RowSpace

_STEPS, _FIRST_STEPS = 150, 6
"""Most Jacobians of a fit, and of a trial of a hypothesis. After six, residuals under right and wrong labels lie a
hundredfold apart (softmax regression, 8 rows: at most 5e-4 against at least .1)."""
_NEAR = 0.03
"""Relative residual below which a fit is given more Jacobians to halve it; it lies between the residuals of right and
wrong labels that `_FIRST_STEPS` states."""
_EXACT = 1e-12
"""Relative residual at which a fit ends."""


@dataclass(frozen=True)
class _StoppedLimit(StallLimit):
    """The same limit, with a function that may end the search earlier (`RowSpaceFit.stop`)."""

    stop: Callable[[int, float], bool] = lambda done, residual: False

    def reached(self, norm: float, waited: int) -> bool:
        """Return whether the search has to stop."""
        return super().reached(norm, waited) or self.stop(waited, norm)


@dataclass(frozen=True)
class RowSpaceFit:
    """Fit the rows to one message from random starts, under several hypotheses about their labels.

    Attributes:
        network: the model and its loss.
        simulation: computes a client's message from its rows.
        hypotheses: the message with each guess of the rows' labels or targets.
        space: the space that holds the rows.
        prior: range from which starts are drawn.
        fits: largest number of starts.
        solved: relative residual below which the rows count as found.
        stop: called before each Jacobian with the number of those since the residual last halved, and the residual;
            whether the fit ends there.
    """

    network: FlatNetwork
    simulation: ClientSimulation
    hypotheses: Sequence[InversionProblem]
    space: RowSpace
    prior: RowPrior
    fits: int
    solved: float
    stop: Callable[[int, float], bool] = lambda done, residual: False

    def __call__(self, which: int, rng: np.random.Generator, rows: Array | None = None) -> LeastSquaresFit:
        """Return the best fit under a hypothesis: its point holds the coordinates, its norm is the relative residual.

        Starts are tried until one ends within rounding errors, `fits` of them at most. A residual below `solved` is not
        enough: it may belong to a local minimum.

        Args:
            which: number of the hypothesis.
            rng: generator of the random starts.
            rows: (B, features) rows that are almost right, in place of the first random start.
        """
        rounding = min(self.solved, float(torch.finfo(self.network.dtype).eps) ** 0.5)  # a bound on rounding errors
        best = self._fit(which, self._random(rng) if rows is None else rows, _STEPS)
        jacobians = best.steps
        for _ in range(1, self.fits):
            if best.norm <= rounding or self.stop(jacobians, best.norm):
                break
            other = self._fit(which, self._random(rng), _STEPS)
            best, jacobians = min(best, other, key=lambda fit: fit.norm), jacobians + other.steps
        return LeastSquaresFit(best.point, best.norm, jacobians, best.linearised)

    def choose_hypothesis(self, rng: np.random.Generator) -> tuple[int, int]:
        """Choose a hypothesis by a few steps of a fit under each.

        Returns:
            The index of the first hypothesis with a small residual, else of the one with the smallest; and the number
            of steps taken.
        """
        jacobians, norms = 0, []
        for which in range(len(self.hypotheses)):
            trial = self._fit(which, self._random(rng), _FIRST_STEPS)
            jacobians += trial.steps
            norms.append(trial.norm)
            if trial.norm <= _NEAR or self.stop(jacobians, min(norms)):
                break
        return int(np.argmin(norms)), jacobians

    def rows(self, fit: LeastSquaresFit) -> Array:
        """Return the rows (B, features) of a fit, in the network's precision, as they were simulated."""
        coordinates = fit.point.reshape(len(self.hypotheses[0].targets), -1)
        return np.asarray(self.space.rows(torch.as_tensor(coordinates, dtype=self.network.dtype)))

    def _random(self, rng: np.random.Generator) -> Array:
        """Draw rows (B, features) that are uniform in the public range."""
        shape = (len(self.hypotheses[0].targets), self.space.basis.shape[1])
        return rng.uniform(self.prior.low, self.prior.high, shape)

    def _fit(self, which: int, rows: Array, steps: int) -> LeastSquaresFit:
        """Fit the rows under one hypothesis by Levenberg-Marquardt, from these rows."""
        problem = self.hypotheses[which]

        def difference(flat: Tensor) -> Tensor:
            x = self.space.rows(flat.reshape(len(rows), -1))
            sent = self.simulation(self.network, problem.point, x, problem.targets)
            return (sent - problem.message) / self._scale

        jacobian = torch.func.jacfwd(difference)

        def residual(flat: Array) -> Array:
            with torch.no_grad():
                return np.asarray(difference(torch.as_tensor(flat, dtype=self.network.dtype)).double())

        def linearised(flat: Array) -> tuple[Array, Array]:
            with torch.no_grad():
                slopes = jacobian(torch.as_tensor(flat, dtype=self.network.dtype))
            return residual(flat), np.asarray(slopes.double())

        # It starts at the rows' projections on the space, and ends early where the norm does not halve within 12
        # Jacobians, 40 below `_NEAR`, or 4 below the floor, where little can be gained (defaults of `StallLimit`).
        return levenberg_marquardt(
            linearised, self.space.unknowns(rows).reshape(-1), steps=steps, goal=_EXACT, residual=residual,
            patience=_StoppedLimit(_NEAR, floor=0.01 * self.solved, stop=self.stop),
            stepper=GeodesicAcceleration(residual),
        )  # fmt: skip

    @cached_property
    def _scale(self) -> float:
        """Norm of the observed message, which makes residuals relative."""
        return float(self.hypotheses[0].message.double().norm())
