"""Clip a client's contribution to an L2 norm, as a whole or tensor by tensor.

A contribution x (the tensors that one client sends in an exchange) becomes x min(1, C / ||x||), with C the norm that is
allowed. So adding or removing one client moves a sum by at most C, and noise is sized for that. `clip(C)` and
`clip_each(...)` make a link of a defence's chain, before sampling, noise and fixed point. Before the run the defence
calls the link's `plan`; in each exchange every client calls its `encode`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from numbers import Real
from typing import ClassVar

import numpy as np

from securefed._clipping_noise import ClippingNoiseRecord
from securefed._tensors import Array, Tensors
from securefed.defenses._base import ChainStage, Transform
from securefed.defenses._plan import Plan, PrivacyPlan
from securefed.errors import ConfigError, DataError, PlanError

_EPS = float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class Clip(Transform):
    """Scales a contribution x to x min(1, norm / ||x||), with the norm over all tensors together.

    Attributes:
        norm: the largest L2 norm that leaves a client.

    Guarantee: the exact norm of the clipped contribution is at most `norm`. A margin of about one machine epsilon per
    entry allows for rounding, so that a contribution that is scaled ends below `norm` by that much. No entry exceeds
    `norm`. `encode` does not cut entries to a smaller declared bound: the plan keeps that bound, and without noise a
    fixed point after the clip refuses entries beyond it. Under noise a contribution that is not finite becomes zeros,
    so that no client refuses because of what it computed.
    Not promised: privacy; without noise after it, clipping hides nothing.

    Raises:
        ConfigError: `norm` is not positive and finite.
    """

    norm: float
    name: ClassVar[str] = "clip"
    stage: ClassVar[ChainStage] = ChainStage.CLIP

    def __post_init__(self) -> None:
        _check_norm(self.name, self.norm)

    def __str__(self) -> str:
        return f"{self.name}({self.norm:g})"

    def plan(self, plan: Plan) -> Plan:
        """Set the bounds of the tensors, and the clip: how far adding or removing one client moves a sum (L2)."""
        return _clipped_plan(plan, dict.fromkeys((tensor.name for tensor in plan.tensors), self.norm), self.norm)

    def encode(self, contribution: Tensors, plan: Plan) -> dict[str, Array]:
        """Clip the contribution; `DataError` where it is not finite and no noise is planned."""
        return clipped(finite(contribution, plan), self.norm)

    def distortion(self, plan: Plan, count: int) -> ClippingNoiseRecord:
        """State the norms that tensors are clipped to, for the recorded transcript; `count` changes nothing here."""
        return ClippingNoiseRecord(clips=((plan.own.names, self.norm),))


@dataclass(frozen=True)
class ClipEach(Transform):
    """Scales every tensor by itself to a norm of its own, as `Clip` scales the whole contribution.

    The contribution's L2 norm is then at most the root of the sum of the squared norms; noise is sized for that.

    Attributes:
        norm: norm of every tensor that is not in `norms`; `None` where `norms` names them all.
        norms: pairs of a tensor's name and norm.

    Guarantee and what is not promised: as for `Clip`, tensor by tensor.

    Raises:
        ConfigError: a norm that is not positive and finite, or none at all.
    """

    norm: float | None
    norms: tuple[tuple[str, float], ...] = ()
    name: ClassVar[str] = "clip_each"
    stage: ClassVar[ChainStage] = ChainStage.CLIP

    def __post_init__(self) -> None:
        if self.norm is None and not self.norms:
            raise ConfigError(f"{self.name}: give a norm for all tensors, or one for each by name")
        for norm in [*dict(self.norms).values(), *([] if self.norm is None else [self.norm])]:
            _check_norm(self.name, norm)

    def __str__(self) -> str:
        named = [f"{name}={norm:g}" for name, norm in self.norms]
        return f"{self.name}({', '.join(([] if self.norm is None else [f'{self.norm:g}']) + named)})"

    def plan(self, plan: Plan) -> Plan:
        """Set the bound of each tensor, and the clip of the whole contribution.

        Raises:
            PlanError: a tensor without a norm, or a norm without a tensor.
        """
        names = [tensor.name for tensor in plan.tensors]
        if unknown := sorted(set(dict(self.norms)) - set(names)):
            raise PlanError(f"{self.name}: no tensor is called {unknown[0]!r}; the contribution holds {names}")
        norms = {name: self._limit(name) for name in names}
        return _clipped_plan(plan, norms, math.hypot(*norms.values()) * (1 + 4 * _EPS))  # a margin for its rounding

    def _limit(self, name: str) -> float:
        """Return the norm of one tensor; `PlanError` where it has none."""
        norm = dict(self.norms).get(name, self.norm)
        if norm is None:
            raise PlanError(f"{self.name}: tensor {name!r} has no norm; name it, or give one for all others")
        return norm

    def encode(self, contribution: Tensors, plan: Plan) -> dict[str, Array]:
        """Clip each tensor; `DataError` where one is not finite and no noise is planned."""
        parts = ((name, finite({name: value}, plan)) for name, value in contribution.items())
        return {name: clipped(part, self._limit(name))[name] for name, part in parts}

    def distortion(self, plan: Plan, count: int) -> ClippingNoiseRecord:
        """State the norms that tensors are clipped to, for the recorded transcript; `count` changes nothing here."""
        return ClippingNoiseRecord(clips=tuple(((name,), self._limit(name)) for name in plan.own.names))


def clip(norm: float) -> Clip:
    """Limit the L2 norm of every client's contribution; see `Clip`."""
    return Clip(norm)


def clip_each(norm: float | None = None, norms: Mapping[str, float] | None = None) -> ClipEach:
    """Limit the L2 norm of every tensor by itself: `norms` by name, `norm` for all others; see `ClipEach`."""
    return ClipEach(norm, tuple(sorted((norms or {}).items())))


def norm_of(contribution: Tensors) -> float:
    """Compute the L2 norm of finite entries over all tensors together; infinite where it overflows."""
    largest, _, norm = _in_units_of_largest(contribution)
    return largest * norm


def finite(contribution: Tensors, plan: Plan) -> Tensors:
    """Return the contribution, or under noise zeros in all of its tensors where an entry is NaN or infinite.

    Raises:
        DataError: it is not finite, and the plan has no noise that would hide that it was replaced.
    """
    if all(np.isfinite(value).all() for value in contribution.values()):
        return contribution
    if not plan.noised:
        raise DataError(f"contribution: one of {sorted(contribution)} holds NaN or infinity")
    return {name: np.zeros(np.shape(value)) for name, value in contribution.items()}


def clipped(contribution: Tensors, norm: float) -> dict[str, Array]:
    """Scale all tensors together to an L2 norm of at most `norm`."""
    largest, units, relative = _in_units_of_largest(contribution)
    # The sum of the squares, its root and the products below are off by less than this margin.
    relative *= 1 + (sum(unit.size for unit in units.values()) + 8) * _EPS
    if largest * relative <= norm:
        return {name: np.asarray(value, np.float64) for name, value in contribution.items()}
    return {name: np.asarray(unit * (norm / relative)) for name, unit in units.items()}


def _in_units_of_largest(contribution: Tensors) -> tuple[float, dict[str, Array], float]:
    """Return the largest absolute entry, the tensors divided by it, and their L2 norm: no square overflows or vanishes.

    Where all entries are 0 nothing is divided.
    """
    values = {name: np.asarray(value, np.float64) for name, value in contribution.items()}
    largest = max((float(np.abs(value).max(initial=0.0)) for value in values.values()), default=0.0)
    units = {name: value / (largest or 1.0) for name, value in values.items()}
    return largest, units, math.sqrt(sum(float(np.square(unit).sum()) for unit in units.values()))


def _clipped_plan(plan: Plan, norms: Mapping[str, float], whole: float) -> Plan:
    """Bound each tensor by its norm, and note that the whole contribution is clipped to the L2 norm `whole`."""
    tensors = tuple(
        replace(tensor, bound=norms[tensor.name] if tensor.bound is None else min(tensor.bound, norms[tensor.name]))
        for tensor in plan.tensors
    )
    return replace(plan, tensors=tensors, privacy=PrivacyPlan(whole))


def _check_norm(name: str, norm: object) -> None:
    if isinstance(norm, bool) or not isinstance(norm, Real) or not 0 < float(norm) < math.inf:
        raise ConfigError(f"{name}: the norm must be a positive finite number, for instance {name}(1.0); got {norm!r}")
