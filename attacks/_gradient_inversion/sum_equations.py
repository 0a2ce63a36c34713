"""The equations that the unknown rows must satisfy: simulated sums equal observed sums.

Members are the clients whose messages an observed sum holds. With X their rows, y their labels, and m_kp(X, y) the
simulated sum of their messages in round k and part p (a part is one copy of all parameters, such as `delta`, or `dx`
and `dc` in SCAFFOLD), the residual stacks over all k and p

    scale_p (m_kp(X, y) - observed_kp),      scale_p = 1 / || observed_p - what members without rows would send ||.

Less that data-free part (such as momentum), the weights of logistic and softmax regression are a combination of the
rows, so that the messages reveal the rows' span: each row is given by its coordinates in an orthonormal basis of it, at
most B unknowns for B rows. A simulation works on arrays (members, slots, ...) with as many slots as the largest member
has rows; indexing by `simulation.slots` gives the rows of all members one after the other, their order everywhere else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from securefed._tensors import Array
from securefed.algorithms._optimization.local_steps import BatchDraw
from securefed.attacks._gradient_inversion.proximal_derivatives import is_proximal
from securefed.attacks._gradient_inversion.round_simulation import RoundSimulation, summed_over_members

_RANK_TOLERANCE = 1e-13
"""Singular values below this share of the largest count as round-off in the span of the rows."""
_ROUND_OFF = 1e-12
"""Size of a part's data-dependent share, relative to the part, below which it counts as round-off."""
_CACHED = 1 << 17
"""Numbers in a batch of derivatives: a megabyte, which stays in the processor's cache (affects speed only)."""


@dataclass(frozen=True)
class SumEquations:
    """The equations `simulated sum = observed sum`, each part scaled by the size of its data-dependent share.

    There are (rounds * parts * parameters) equations, parameters counted in coordinates of `basis`, for the unknowns
    (rows, coordinates).

    Attributes:
        simulation: the members' rounds as a function of their rows, in coordinates of `basis`.
        basis: (coordinates, features) orthonormal rows that span the unknown rows; rows = coordinates @ basis.
        scales: by part, scale_p; 0 where the data-dependent share of the observed messages is no more than round-off.
        data_free: by round and part, the share of the sums that follows from what the members received, without their
            rows (`RoundSimulation.data_free`).
    """

    simulation: RoundSimulation
    basis: Array
    scales: dict[str, float]
    data_free: tuple[Mapping[str, Array], ...]

    @classmethod
    def in_row_space(cls, simulation: RoundSimulation) -> SumEquations:
        """Build the equations in the row space of the messages; in all coordinates if the method is proximal.

        A proximal operator, applied after each local step, mixes the rows with the rest.
        """
        model, features, known = simulation.model, simulation.public.features, simulation.data_free
        signals = {
            part: np.stack([item.total[part] - out[part] for item, out in zip(simulation.rounds, known, strict=True)])
            for part in simulation.method.sent
        }
        norms = {part: float(np.linalg.norm(signal)) for part, signal in signals.items()}
        # A remainder as small as round-off is no signal.
        floors = {
            part: _ROUND_OFF * max(float(np.linalg.norm(s.total[part])) for s in simulation.rounds) for part in norms
        }
        scales = {part: 1.0 / norm if norm > floors[part] else 0.0 for part, norm in norms.items()}
        rows = np.stack([scales[part] * model.weight(s) for part, s in signals.items()], axis=1).reshape(-1, features)
        if is_proximal(simulation.method):
            return cls.in_basis(simulation, np.eye(features), scales)
        values, directions = np.linalg.svd(rows, full_matrices=False)[1:]
        kept = int(np.sum(values > _RANK_TOLERANCE * max(values[0], np.finfo(float).tiny)))
        kept = max(1, min(kept, int(simulation.sizes.sum())))
        return cls.in_basis(simulation, directions[:kept], scales)

    @classmethod
    def in_basis(cls, simulation: RoundSimulation, basis: Array, scales: dict[str, float]) -> SumEquations:
        """Build the equations in coordinates of `basis` from a simulation in all coordinates."""
        data_free = simulation.data_free
        if basis.shape[0] < basis.shape[1] or not np.array_equal(basis, np.eye(len(basis))):
            simulation = simulation.restricted(basis)
            model = simulation.model
            data_free = [{part: model.project(value, basis) for part, value in out.items()} for out in data_free]
        return cls(simulation, basis, scales, tuple(data_free))

    def with_draws(self, draws: tuple[BatchDraw, ...]) -> SumEquations:
        """Return the equations for another guess of the rows that each local step used, one draw a round."""
        return replace(self, simulation=replace(self.simulation, draws=draws))

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, coordinates of a row)."""
        return int(self.simulation.sizes.sum()), len(self.basis)

    def relative_residual(self, samples: Array, labels: Array) -> float:
        """Return the residual relative to the data's signal: 0 is exact, 1 as bad as a client without data."""
        # scale_p makes the signal of each part 1, so that of all parts is the root of their number
        parts = sum(scale > 0 for scale in self.scales.values())
        if not parts:
            return float("nan")
        return float(np.linalg.norm(self.residual(samples, labels)) / np.sqrt(parts))

    @cached_property
    def signal(self) -> float:
        """Norm of the residual of a client without data, in the coordinates of `basis`."""
        return float(np.linalg.norm(self._gap(self.data_free)))

    @cached_property
    def floor(self) -> float:
        """Norm of the residual of the true rows, caused by fixed-point rounding and noise; 0 without either."""
        deviations = [
            scale * float(np.hypot(item.rounding.get(part, 0.0), item.noise.get(part, 0.0)))
            for item in self.simulation.rounds
            for part, scale in self.scales.items()
        ]
        return float(np.sqrt(self.simulation.model.size(len(self.basis))) * np.linalg.norm(deviations))

    def residual(self, samples: Array, labels: Array) -> Array:
        """Return the residuals (equations,).

        Args:
            samples: (rows, coordinates).
            labels: (rows,) classes.
        """
        return self._residual(*self._slotted(samples, labels))

    def linearised(self, samples: Array, labels: Array) -> tuple[Array, Array]:
        """Return the residuals and their Jacobian (equations, rows * coordinates)."""
        with np.errstate(all="ignore"):
            return self._residual_and_jacobian(*self._slotted(samples, labels))

    def coefficients(self, samples: Array, labels: Array) -> Array:
        """Return (rounds * parts * outputs, rows): the coefficients scale_p c_kpr of the rows in the messages' weights.

        With `data`, they give the linear equations `coefficients @ samples = data` that the rows satisfy for given
        coefficients.
        """
        simulation = self.simulation
        counts = simulation.coefficients(*self._slotted(samples, labels))
        stacked = np.stack([[scale * out[part] for part, scale in self.scales.items()] for out in counts])
        # (rounds, parts, slots, members, outputs) to (rounds, parts, outputs, members, slots), without the empty slots
        by_row = stacked.transpose(0, 1, 4, 3, 2)[..., simulation.slots]
        return np.asarray(by_row.reshape(-1, samples.shape[0]))

    @cached_property
    def data(self) -> tuple[Array, Array]:
        """Observed messages less their data-free part, scaled, one line for each round, part and output.

        The weights, (rounds * parts * outputs, coordinates), and the bias, (rounds * parts * outputs, 1), or (..., 0)
        for a model without one. A vector of parameters holds the weights first, then the bias.
        """
        gap, model = -self._gap(self.data_free), self.simulation.model
        weights = model.weight(gap).reshape(-1, len(self.basis))
        return weights, gap[..., -model.outputs :].reshape(-1, 1) if model.bias else np.zeros((len(weights), 0))

    def _residual(self, x: Array, targets: Array) -> Array:
        with np.errstate(all="ignore"):
            totals = self.simulation.totals(x, targets)
            return self._gap(summed_over_members(totals, len(self.simulation.members))).ravel()

    def _gap(self, sums: Sequence[Mapping[str, Array]]) -> Array:
        """Return (rounds, parts, parameters): the given minus the observed sums, scaled."""
        given = np.array([[out[part] for part in self.scales] for out in sums])
        return np.asarray((given - self._observed) * np.array(list(self.scales.values()))[:, None])

    @cached_property
    def _observed(self) -> Array:
        """The observed sums, (rounds, parts, parameters)."""
        return np.array([[item.total[part] for part in self.scales] for item in self.simulation.rounds])

    def _slotted(self, samples: Array, labels: Array) -> tuple[Array, Array]:
        """Arrange rows as (members, slots, width) and labels as probabilities (members, slots, outputs).

        Every member has as many slots as the largest has rows; slots without a row stay zero.
        """
        simulation, slots = self.simulation, self.simulation.slots
        x = np.zeros((*slots.shape, samples.shape[1]))
        x[slots] = samples
        targets = np.zeros((*slots.shape, simulation.model.outputs))
        targets[slots] = simulation.model.targets(labels)
        return x, targets

    def _residual_and_jacobian(self, x: Array, targets: Array) -> tuple[Array, Array]:
        """Compute what `linearised` returns, a few slots at a time, so that intermediate results stay in the cache.

        Args:
            x: rows, as `_slotted` arranges them.
            targets: labels, in the same arrangement.
        """
        (members, widest, width), simulation = x.shape, self.simulation
        rounds, size = len(simulation.rounds), simulation.model.size(width)
        slopes = np.empty((rounds, len(self.scales), size, members, widest, width))
        few = max(1, _CACHED // (width * members * size))
        for start in range(0, widest, few):
            part = slice(start, min(start + few, widest))
            sent = simulation.totals_by_rows(x, targets, part)
            for k, out in enumerate(sent):
                for which, (name, scale) in enumerate(self.scales.items()):
                    # (slots * width, members, size) to (size, members, slots, width)
                    first = np.moveaxis(out[name].slopes, -1, 0)
                    here = first.reshape(-1, width, members, size).transpose(3, 2, 0, 1)
                    np.multiply(here, scale, out=slopes[k, which, :, :, part])
        values = [{part: dual.value for part, dual in out.items()} for out in sent]
        used = slopes if simulation.slots.all() else slopes[:, :, :, simulation.slots]
        return self._gap(summed_over_members(values, members)).ravel(), used.reshape(
            rounds * len(self.scales) * size, -1
        )
