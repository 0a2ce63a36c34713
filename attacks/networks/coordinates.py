"""Levenberg-Marquardt on few numbers a row: rows in a known span, fitted to what the message says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from securefed.attacks.levenberg import Fit, Geodesic, Patience, levenberg
from securefed.attacks.networks.charts import Span
from securefed.attacks.networks.matching import Prior, Problem
from securefed.attacks.networks.network import Network
from securefed.attacks.networks.steps import Simulation
from securefed.tensors import Array

_STEPS, _OPENING = 150, 6
"""Jacobians of a fit, and of a first look, after which misfits under right and wrong labels lie a hundredfold apart
(softmax regression, 8 rows: 5e-4 at most against .1 at least)."""
_NEAR = 0.03
"""Relative misfit below which a fit is waited for longer."""
_EXACT = 1e-12


@dataclass(frozen=True)
class Coordinates:
    """Fits of one message from random starts.

    Attributes:
        accounts: the message with what its rows may have been compared with.
        chart: the span that holds the rows.      prior: where starts are drawn.
        fits: starts at most.      solved: relative misfit that counts as found.
    """

    network: Network
    simulation: Simulation
    accounts: Sequence[Problem]
    chart: Span
    prior: Prior
    fits: int
    solved: float

    def __call__(self, which: int, rng: np.random.Generator) -> Fit:
        """The best fit under an account; its point is the coordinates row by row, its norm the relative misfit.

        A misfit that counts as found, yet is more than rounding leaves, may lie in a valley beside the rows: then the
        other starts are run too.
        """
        sure = min(self.solved, float(torch.finfo(self.network.dtype).eps) ** 0.5)
        best = self._fit(which, rng, _STEPS)
        spent = best.steps
        for _ in range(1, self.fits):
            if best.norm <= sure:
                break
            other = self._fit(which, rng, _STEPS)
            best, spent = min(best, other, key=lambda fit: fit.norm), spent + other.steps
        return Fit(best.point, best.norm, spent, best.linearised)

    def first(self, rng: np.random.Generator) -> tuple[int, int]:
        """The first account under which a few steps come near, else the one under which they come nearest; steps."""
        spent, norms = 0, []
        for which in range(len(self.accounts)):
            look = self._fit(which, rng, _OPENING)
            spent += look.steps
            norms.append(look.norm)
            if look.norm <= _NEAR:
                break
        return int(np.argmin(norms)), spent

    def rows(self, fit: Fit) -> Array:
        """(B, features) of a fit."""
        return np.asarray(self.chart.rows(torch.as_tensor(fit.point.reshape(len(self.accounts[0].targets), -1))))

    def _fit(self, which: int, rng: np.random.Generator, steps: int) -> Fit:
        problem = self.accounts[which]
        count, features = len(problem.targets), self.chart.basis.shape[1]

        def gap(flat: Tensor) -> Tensor:
            x = self.chart.rows(flat.reshape(count, -1))
            sent = self.simulation(self.network, problem.point, x, problem.targets)
            return (sent - problem.message) * self._mask / self._scale

        jacobian = torch.func.jacfwd(gap)

        def residual(flat: Array) -> Array:
            with torch.no_grad():
                return np.asarray(gap(torch.as_tensor(flat, dtype=self.network.dtype)).double())

        def linearised(flat: Array) -> tuple[Array, Array]:
            with torch.no_grad():
                slopes = jacobian(torch.as_tensor(flat, dtype=self.network.dtype))
            return residual(flat), np.asarray(slopes.double())

        start = self.chart.unknowns(rng.uniform(self.prior.low, self.prior.high, (count, features)))
        return levenberg(
            linearised, start.reshape(-1), steps=steps, goal=_EXACT, residual=residual,
            patience=Patience(_NEAR, floor=0.01 * self.solved), stepper=Geodesic(residual),
        )  # fmt: skip

    @cached_property
    def _mask(self) -> Tensor:
        return self.network.mask().repeat(self.simulation.copies())

    @cached_property
    def _scale(self) -> float:
        return float(self.accounts[0].message.double().norm())
