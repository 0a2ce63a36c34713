"""What rows have to explain: the equations between simulated and observed sums, and their weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from securefed.algorithms.optimization.work import Draw
from securefed.attacks.gradient_inversion.clipping import scaled, shares
from securefed.attacks.gradient_inversion.proximal import is_proximal
from securefed.attacks.gradient_inversion.simulate import Simulation
from securefed.tensors import Array

_RANK_TOLERANCE = 1e-13
_TINY = 1e-300
_FAINTEST = 1e-6
_ROUNDING = 1e-12
_CACHED = 1 << 17
"""Numbers in a vector of derivatives."""


@dataclass(frozen=True)
class System:
    """The equations `simulated sum = observed sum`, every part scaled to its share of the data's signal.

    With G the messages' data (rounds * parts * outputs, features) and X the rows, G = R^T X: rows of one class have
    nearly the same R, and what tells them apart are the faint left directions of G, and those that G leaves empty.
    Equations along a left direction are raised by the root of its singular value (down to a floor: where noise begins),
    which narrows the valley that a search has to follow.

    Attributes:
        simulation: in coordinates of `basis` (r, features).
        scales: by part, one over the norm of the observed messages less the part that is not data.
        left: (rounds * parts * outputs, r) left directions of the messages.
        spectrum: singular values of the messages' rows, relative to the first; all of them.
        even: whether all equations count alike instead.
        apart: by round and part, what of the messages is not data.
    """

    simulation: Simulation
    basis: Array
    scales: dict[str, float]
    left: Array
    spectrum: Array
    apart: tuple[Mapping[str, Array], ...]
    even: bool = False

    @classmethod
    def build(cls, simulation: Simulation, features: int) -> System:
        """The system of a simulation in full coordinates."""
        model = simulation.model
        known = apart(simulation, features)
        signals = {
            part: np.stack([seen.total[part] - out[part] for seen, out in zip(simulation.rounds, known, strict=True)])
            for part in simulation.method.sent
        }
        norms = {part: float(np.linalg.norm(signal)) for part, signal in signals.items()}
        # What is left of rounding once everything known is subtracted is no signal.
        floors = {
            part: _ROUNDING * max(float(np.linalg.norm(s.total[part])) for s in simulation.rounds) for part in norms
        }
        scales = {part: 1.0 / norm if norm > floors[part] else 0.0 for part, norm in norms.items()}
        rows = np.stack([scales[part] * model.weight(s) for part, s in signals.items()], axis=1).reshape(-1, features)
        if is_proximal(simulation.method):
            return cls.plain(simulation, np.eye(features), scales, known)
        left, values, directions = np.linalg.svd(rows, full_matrices=False)
        kept = int(np.sum(values > _RANK_TOLERANCE * max(values[0], np.finfo(float).tiny)))
        kept = max(1, min(kept, int(simulation.sizes.sum())))
        spectrum = values / max(values[0], np.finfo(float).tiny)
        out = cls.plain(simulation, directions[:kept], scales, known)
        return replace(out, left=left[:, :kept], spectrum=spectrum)

    @classmethod
    def plain(
        cls, simulation: Simulation, basis: Array, scales: dict[str, float], known: Sequence[Mapping[str, Array]]
    ) -> System:
        """With no equation raised, in coordinates of a basis; `known` is the messages' part that is not data."""
        outputs = len(simulation.rounds) * len(scales) * simulation.model.outputs
        if basis.shape[0] < basis.shape[1] or not np.array_equal(basis, np.eye(len(basis))):
            simulation = simulation.restricted(basis)
            known = [{part: simulation.model.project(value, basis) for part, value in out.items()} for out in known]
        return cls(simulation, basis, scales, np.zeros((outputs, 0)), np.ones(1), tuple(known))

    def drawing(self, draws: tuple[Draw, ...]) -> System:
        """The same, for a client whose rounds drew these rows."""
        return replace(self, simulation=replace(self.simulation, draws=draws))

    @property
    def shape(self) -> tuple[int, int]:
        """(samples, coordinates of a sample)."""
        return int(self.simulation.sizes.sum()), len(self.basis)

    def relative(self, samples: Array, labels: Array) -> float:
        """Misfit of the observed data signal, 0 exact, 1 as bad as no samples at all."""
        parts = sum(scale > 0 for scale in self.scales.values())
        if not parts:
            return float("nan")
        x, targets = self._slotted(samples, labels)
        with np.errstate(all="ignore"):
            return float(np.linalg.norm(self._gap(self._sums(x, targets))) / np.sqrt(parts))

    @cached_property
    def levelled(self) -> System:
        """The same with all equations alike."""
        return replace(self, even=True)

    @cached_property
    def signal(self) -> float:
        """Norm of the raised data signal: the misfit of a client without data."""
        return float(np.linalg.norm(self._raised(self._gap(self.apart))))

    @cached_property
    def floor(self) -> float:
        """Norm of the raised misfit that rounding to fixed point and noise leave to the true samples; 0 without."""
        deviations = [
            scale * float(np.hypot(seen.rounding.get(part, 0.0), seen.noise.get(part, 0.0)))
            for seen in self.simulation.rounds
            for part, scale in self.scales.items()
        ]
        model, rest = self.simulation.model, self._rest
        squares = rest**2 + self.left**2 @ (self._along**2 - rest**2)  # diagonal of the square of what raises
        columns = len(self.basis) + model.bias
        return float(np.sqrt(columns * np.repeat(deviations, model.outputs) ** 2 @ squares))

    @cached_property
    def _along(self) -> Array:
        """(r,) how much equations are raised along each left direction."""
        count = self.left.shape[1]
        if self.even:
            return np.ones(count)
        noise = float(self.spectrum[count]) if count < len(self.spectrum) else 0.0
        return np.maximum(self.spectrum[:count], max(_FAINTEST, noise)) ** -0.5

    @property
    def _rest(self) -> float:
        """The same along all others."""
        return float(self._along[-1]) if len(self._along) else 1.0

    def _raised(self, gap: Array) -> Array:
        """(equations, ...) for a gap (rounds, parts, parameters, ...)."""
        model, trailing = self.simulation.model, gap.shape[3:]
        width = len(self.basis) * model.outputs
        both = [gap[:, :, :width].reshape(len(self.left), -1)]
        if model.bias:
            both.append(gap[:, :, width:].reshape(len(self.left), -1))
        out = [self._rest * g + self.left @ ((self._along - self._rest)[:, None] * (self.left.T @ g)) for g in both]
        return np.concatenate([value.reshape(-1, *trailing) for value in out])

    def _sums(self, x: Array, targets: Array) -> list[dict[str, Array]]:
        """By round and part, what the members send together."""
        return _summed(self.simulation.totals(x, targets), len(self.simulation.members))

    def _gap(self, sums: Sequence[Mapping[str, Array]]) -> Array:
        """(rounds, parts, parameters) simulated minus observed sums, scaled."""
        return np.stack(
            [
                [scale * (out[part] - seen.total[part]) for part, scale in self.scales.items()]
                for seen, out in zip(self.simulation.rounds, sums, strict=True)
            ]
        )

    def _slotted(self, samples: Array, labels: Array) -> tuple[Array, Array]:
        """Rows (members, slots, width) and targets (members, slots, outputs)."""
        simulation, slots = self.simulation, self.simulation.slots
        x = np.zeros((*slots.shape, samples.shape[1]))
        x[slots] = samples
        targets = np.zeros((*slots.shape, simulation.model.outputs))
        targets[slots] = simulation.model.targets(labels)
        return x, targets

    def misfit(self, samples: Array, labels: Array, *, slope: bool = True) -> tuple[Array, Array]:
        """Raised residual vector and its Jacobian (equations, samples * coordinates; empty without `slope`).

        Args:
            samples: (samples, coordinates).      labels: (samples,).
        """
        x, targets = self._slotted(samples, labels)
        with np.errstate(all="ignore"):
            residual = self._raised(self._gap(self._sums(x, targets)))
            return residual, self._jacobian(x, targets) if slope else np.zeros((0, 0))

    def coefficients(self, samples: Array, labels: Array) -> Array:
        """(rounds * parts * outputs, samples) how much each row counts in the equations of a coordinate, about here."""
        simulation = self.simulation
        counts = simulation.coefficients(*self._slotted(samples, labels))
        stacked = np.stack([[scale * out[part] for part, scale in self.scales.items()] for out in counts])
        by_row = stacked.transpose(0, 1, 4, 3, 2)[..., simulation.slots]
        return np.asarray(by_row.reshape(-1, samples.shape[0]))

    @cached_property
    def data(self) -> tuple[Array, Array]:
        """(rounds * parts * outputs, coordinates) the messages' weights less what is not data, and their bias."""
        gap, model = -self._gap(self.apart), self.simulation.model
        bias = gap[..., -model.outputs :].reshape(-1, 1) if model.bias else np.zeros((len(self.left), 0))
        return model.weight(gap).reshape(-1, len(self.basis)), bias

    def _jacobian(self, x: Array, targets: Array) -> Array:
        """A few slots at a time: what each step computes then stays in the cache."""
        (members, widest, width), simulation = x.shape, self.simulation
        size = simulation.model.size(width)
        slopes = np.empty((len(simulation.rounds), len(self.scales), size, members, widest, width))
        few = max(1, _CACHED // (width * members * size))
        for start in range(0, widest, few):
            part = slice(start, min(start + few, widest))
            for k, out in enumerate(simulation.sensitive(x, targets, part)):
                for which, (name, scale) in enumerate(self.scales.items()):
                    here = out[name].slopes.reshape(-1, width, members, size).transpose(3, 2, 0, 1)
                    np.multiply(here, scale, out=slopes[k, which, :, :, part])
        used = slopes if simulation.slots.all() else slopes[:, :, :, simulation.slots]
        return self._raised(used.reshape(*slopes.shape[:3], -1))


def _summed(sent: list[dict[str, Array]], members: int) -> list[dict[str, Array]]:
    """Over the members, who all send the same where nothing depends on their rows."""

    def over(value: Array) -> Array:
        return np.asarray(np.broadcast_to(value, (members, value.shape[-1])).sum(axis=0))

    return [{part: over(value) for part, value in out.items()} for out in sent]


def apart(simulation: Simulation, features: int) -> list[dict[str, Array]]:
    """By round and part, what of the messages is not data, as much as clips leave of it.

    Members whose part that is not data differs by more than a factor (rows that weigh) are taken for the mean one.
    """
    known = _summed(simulation.nobody(features), len(simulation.members))
    clips = [(k, clip) for k, seen in enumerate(simulation.rounds) for clip in seen.clips if clip.weights]
    if not clips or is_proximal(simulation.method):  # an operator mixes data with the rest
        return known
    model, parts = simulation.model, simulation.method.sent
    sizes = {part: max(_TINY, *(float(np.linalg.norm(s.total[part])) for s in simulation.rounds)) for part in parts}

    def rows(vectors: Sequence[Mapping[str, Array]]) -> Array:
        return np.stack([model.weight(out[part]) / sizes[part] for out in vectors for part in parts])

    groups = np.full((len(known), len(parts)), -1)
    for group, (k, clip) in enumerate(clips):
        groups[k, [parts.index(part) for part in clip.weights]] = group
    left = shares(rows([s.total for s in simulation.rounds]), rows(known), groups.ravel(), int(simulation.sizes.sum()))
    out = [dict(vectors) for vectors in known]
    for share, (k, clip) in zip(left, clips, strict=True):
        for part, block in clip.blocks:
            out[k][part] = scaled(out[k][part], block, share)
    return out
