"""Checks that every transform must pass: it plans, encodes and decodes the contributions of five clients.

A transform (a clip, noise, fixed point, ...) changes each contribution before the sum (`encode`) and the sum after it
(`decode`, then `release`), and states in the plan what it will do. Transforms are chained in the order of their stages
(`ChainStage`: SPARSIFY, CLIP, SAMPLE, NOISE, ENCODE); `composed` makes a whole chain. Before a run all parties compute
the same plan from public facts: for each tensor its shape, its bound, the largest error of its sum, and the ring that
it asks for (`wanted_rings`: the width in bits of the integers that are summed).

Each check is a function of a transform. It raises `AssertionError` with what the transform does and what it should do,
or the transform's own named error. `securefed.testing.parametrize_with_checks` runs them all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any, Final

import numpy as np

from securefed._tensors import Layout, Tensors, TensorSpec
from securefed.defenses._base import ChainStage, Defense, Transform
from securefed.defenses._chain import chain
from securefed.defenses._differential_privacy import clip
from securefed.defenses._plan import Plan
from securefed.defenses._secure_aggregation import secure_aggregation
from securefed.errors import DataError, PlanError, RangeRefused, SecureFedError

LAYOUT: Final = Layout(
    (TensorSpec("weights", (3, 4), 2.0, 64, sensitivity=0.5), TensorSpec("loss", (), 5.0, 32, sensitivity=0.5))
)
"""The tensors that the checks send through a transform: a matrix and a scalar.

`sensitivity` bounds by how much, in L2 norm, one record moves a client's tensor. Transforms that protect single records
refuse a layout without it; the checks need some positive number, and .5 has no further meaning.
"""

CLIENTS: Final = 5
_NORM: Final = 100.0
"""Clip of the chains that the checks compose for transforms that need one; no contribution of theirs is as long."""
_ROUNDING: Final = 1e-9
"""Rounding in float64 that is allowed on top of the plan's error, relative to the tensor's bound."""


def check_description(transform: Transform) -> None:
    """Check that it is a `Transform` with a name and a stage."""
    composed(transform)
    assert isinstance(transform.name, str) and transform.name, f"{transform!r}: `name` must be a non-empty text"
    stage = transform.stage
    assert isinstance(stage, ChainStage), f"{transform}: `stage` must be a member of ChainStage, not {stage!r}"
    assert str(transform), f"{transform!r}: its text is empty; it stands in the name of the defence"


def check_plan_keeps_names(transform: Transform) -> None:
    """Check that the plan keeps the layout's tensors, and lists what it adds."""
    plan = planned(transform)
    shapes = {tensor.name: tensor.shape for tensor in plan.tensors}
    for spec in LAYOUT:
        assert shapes.get(spec.name) == spec.shape, (
            f"{transform}: `plan` must keep tensor {spec.name!r} of shape {spec.shape}; it plans {shapes}"
        )
    added = set(shapes) - set(LAYOUT.names)
    assert added == set(plan.added), f"{transform}: `plan` adds {sorted(added)}; list these names in `Plan.added`"
    assert set(plan.wanted_rings) == set(shapes), (
        f"{transform}: `Plan.wanted_rings` names {sorted(plan.wanted_rings)}; it must name {sorted(shapes)}"
    )


def check_plan_is_deterministic(transform: Transform) -> None:
    """Check that two parties that plan the same exchange get the same plan."""
    assert planned(transform) == planned(transform), (
        f"{transform}: `plan` gives two plans for the same exchange; it must depend on its argument alone, since the "
        "server and each client call it apart"
    )


def check_plan_shows_parameters(transform: Transform) -> None:
    """Check that each parameter of a dataclass shows in the plan: in a number, in the name or in an assumption.

    Not checked are parameters that are no numbers, and those of which `_varied` finds no other value that the transform
    accepts, such as one that is valid only together with another.
    """
    plan = planned(transform)
    for name, other in _varied(transform):
        assert planned(other) != plan, (
            f"{transform}: the plan is the same with another {name!r}; let `plan` state it, or show it in `__str__`"
        )


def check_encode_keeps_names_and_shapes(transform: Transform) -> None:
    """Check that encoding returns what was planned, and leaves the contribution as it was."""
    defense, plan = composed(transform), planned(transform)
    for contribution in contributions():
        before = {name: value.copy() for name, value in contribution.items()}
        encoded = defense.encode(contribution, plan)  # refuses other names and shapes than planned
        assert all(np.array_equal(contribution[name], value) for name, value in before.items()), (
            f"{transform}: `encode` changed the contribution in place; return new arrays"
        )
        decoded = defense.release(defense.decode(encoded, plan, 1), plan)
        shapes = {name: np.shape(value) for name, value in decoded.items()}
        expected = {tensor.name: tensor.shape for tensor in plan.tensors}
        assert shapes == expected, f"{transform}: `decode` and `release` return {shapes}; they must return {expected}"


def check_decode_is_linear(transform: Transform) -> None:
    """Check that the decoded sum is the sum of what each encoding decodes to."""
    defense, plan = composed(transform), planned(transform)
    encoded = [defense.encode(contribution, plan) for contribution in contributions()]
    together = defense.decode(_added(encoded), plan, CLIENTS)
    apart = _added([defense.decode(one, plan, 1) for one in encoded])
    for tensor in plan.tensors:
        off = float(np.abs(np.asarray(together[tensor.name]) - apart[tensor.name]).max())
        allowed = tensor.error + _ROUNDING * CLIENTS * (tensor.bound or 1.0)
        assert off <= allowed, (
            f"{transform}: `decode` of the sum differs from the sum of decoded contributions by {off:.3g} in "
            f"{tensor.name!r}; the server sees sums alone, so `decode` must be linear"
        )


def check_sum_is_within_the_planned_error(transform: Transform) -> None:
    """Check the released sum against the exact one, for transforms that state no clip, noise or sampling."""
    defense, plan = composed(transform), planned(transform)
    stated = transform.distortion(plan, CLIENTS)
    # `noise` is that in the sum, `released` that which the server adds to it
    if stated.clips or stated.noise or stated.released or transform.stage == ChainStage.SAMPLE:
        return
    given = contributions()
    total = defense.decode(_added([defense.encode(one, plan) for one in given]), plan, CLIENTS)
    exact = _added(given)
    for name, value in defense.release(total, plan).items():
        error, bound = next((tensor.error, tensor.bound) for tensor in plan.tensors if tensor.name == name)
        off = float(np.abs(np.asarray(value) - exact.get(name, value)).max())
        assert off <= error + _ROUNDING * CLIENTS * (bound or 1.0), (
            f"{transform}: the sum of {name!r} is off by {off:.3g}, the plan allows {error:.3g}; state the error that "
            "the transform adds in `TensorPlan.error`, or its clip or noise in `distortion`"
        )


def check_values_out_of_range(transform: Transform) -> None:
    """Check that an encoder refuses values beyond its bound by `RangeRefused`; under noise it must accept them."""
    defense, plan = composed(transform), planned(transform)
    if transform.stage != ChainStage.ENCODE:
        return
    far = {spec.name: np.full(spec.shape, 1e6) for spec in LAYOUT}
    try:
        defense.encode(far, plan)
    except RangeRefused:
        assert not plan.noised, f"{transform}: under noise `encode` must not refuse a value, since that shows it"
        return
    assert plan.noised, f"{transform}: `encode` must raise RangeRefused for values beyond `TensorPlan.bound`"


def check_values_that_are_not_finite(transform: Transform) -> None:
    """Check that NaN is refused by `DataError`, and under noise replaced by a number."""
    defense, plan = composed(transform), planned(transform)
    contribution = contributions()[0] | {"weights": np.full((3, 4), math.nan)}
    try:
        encoded = defense.encode(contribution, plan)
    except DataError:
        assert not plan.noised, f"{transform}: under noise `encode` must not refuse a value, since that shows it"
        return
    assert all(np.isfinite(value).all() for value in encoded.values()), (
        f"{transform}: `encode` lets NaN through; raise DataError, or send zeros where the plan adds noise"
    )


CHECKS: Final[tuple[Callable[[Transform], None], ...]] = (
    check_description,
    check_plan_keeps_names,
    check_plan_is_deterministic,
    check_plan_shows_parameters,
    check_encode_keeps_names_and_shapes,
    check_decode_is_linear,
    check_sum_is_within_the_planned_error,
    check_values_out_of_range,
    check_values_that_are_not_finite,
)
"""All checks, each a function of a transform."""


def composed(transform: Transform) -> Defense:
    """Compose a chain for a transform, with a clip before it and masks after it where it needs them.

    What it needs shows in the plan: a chain that cannot be planned is refused by `PlanError`.
    """
    alone = chain(transform)
    if transform.stage <= ChainStage.CLIP:  # no clip fits before these stages
        return alone
    for defense in (alone, chain(clip(_NORM), transform)):
        try:
            defense.plan(LAYOUT, CLIENTS)
        except PlanError:
            continue
        return defense
    return chain(clip(_NORM), transform, secure_aggregation())


def planned(transform: Transform) -> Plan:
    """Plan an exchange of `LAYOUT` between `CLIENTS` clients under a transform."""
    return composed(transform).plan(LAYOUT, CLIENTS)


def contributions() -> list[dict[str, Any]]:
    """Draw the clients' contributions, within the layout's bounds; the same in each call."""
    rng = np.random.default_rng(1)
    return [
        {s.name: np.asarray(rng.uniform(-1, 1, s.shape) * (s.bound or 1.0)) for s in LAYOUT} for _ in range(CLIENTS)
    ]


def _added(parts: list[Tensors] | list[dict[str, Any]]) -> dict[str, Any]:
    """Add contributions tensor by tensor."""
    return {name: sum(np.asarray(part[name]) for part in parts) for name in parts[0]}


def _varied(transform: Transform) -> Iterator[tuple[str, Transform]]:
    """Yield (name, transform with this numeric parameter changed), for the first change that it accepts.

    A parameter whose every change is refused is left out.
    """
    given: Any = transform
    for field in fields(given) if is_dataclass(given) else ():
        value = getattr(transform, field.name)
        if isinstance(value, bool):
            candidates: tuple[Any, ...] = (not value,)
        elif isinstance(value, int):
            candidates = (value + 1, value - 1, 2 * value)
        elif isinstance(value, float):
            candidates = (value * 0.75, value * 1.5, value + 0.1)  # the last for 0, which no factor changes
        else:
            continue
        for candidate in (other for other in candidates if other != value):
            try:
                changed: Transform = replace(given, **{field.name: candidate})
                planned(changed)
            except SecureFedError:
                continue
            yield field.name, changed
            break
