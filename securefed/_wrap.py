"""Average updates securely in existing training code: `secure_mean` replaces the averaging line of a federated loop.

new = secure_mean([client.state_dict() for client in clients], weights=sizes, defense=chain(secure_aggregation()))
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from securefed._tensors import Array, Layout, Ring, TensorSpec, is_torch, real_array
from securefed.defenses._chain import Link, as_defense
from securefed.defenses._fixed_point import check_ring
from securefed.defenses._simulation import sum_once
from securefed.defenses._transform import ChainStage
from securefed.errors import ConfigError, DataError

T = TypeVar("T")
_WEIGHT = "weight"
_LARGEST = 1e300
_SMALLEST = float(np.finfo(np.float32).tiny)


def secure_mean(
    updates: Sequence[Mapping[str, T]],
    weights: Sequence[float] | None = None,
    defense: Link | None = None,
    *,
    bound: float | Mapping[str, float] | None = None,
    ring: Ring = 64,
) -> dict[str, T]:
    """Compute the weighted mean of the clients' updates, each sent through the defence as a real client's would be.

    Args:
        updates: one mapping for each client, of NumPy arrays or torch tensors (bfloat16 and float16 too): same names
            and shapes.
        weights: one number >= 0 for each client (sample counts); all equal by default. They are summed inside the
            defence: the server learns their total only.
        defense: how the sum is made, for instance `chain(secure_aggregation())`; in the clear without one.
        bound: largest absolute entry of a tensor in any update, a public fact of your training (a clipping norm): by
            the tensors' names, or one number for all. Exact defences round each tensor by its own bound, so that
            weights beside a large counter keep their precision if each has its own. By default the largest entry of
            each tensor in `updates`, rounded up to a power of two: right in a simulation, where this process sees all
            updates; in a deployment the clients have to agree on it beforehand.
        ring: width in bits of the integers that exact defences sum.

    Returns:
        The mean, in the updates' own types, dtypes and devices; integer tensors (counters) rounded to nearest.
        In the clear exact to float64 rounding; under an exact defence within `TensorPlan.error` of that.

    Raises:
        DataError: no updates, other names or shapes, entries that are not finite, complex numbers, or other types than
            real numbers.
        ConfigError: weights of a wrong number, negative, or all zero; bounds of other names than the tensors', or not
            positive; a ring of another width; a defence that sparsifies, clips or adds noise, or what is no defence.
        RangeRefused: an entry beyond its bound.
        TooFewSurvivors: fewer updates than the defence needs.
        PlanError: the defence cannot keep its promise for these updates.
    """
    if not updates:
        raise DataError("secure_mean needs at least one update")
    chosen = as_defense(defense)
    check_ring(ring, "secure_mean")
    if any(transform.stage < ChainStage.ENCODE for transform in chosen.transforms):
        raise ConfigError(
            f"{chosen.name} would sparsify, clip or noise the weights too; do that to the updates before, or use "
            "Federation"
        )
    try:
        arrays = [
            {name: np.asarray(real_array(v, f"update {index}: {name!r}"), np.float64) for name, v in update.items()}
            for index, update in enumerate(updates)
        ]
        given = np.ones(len(arrays)) if weights is None else np.asarray(weights, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"updates and weights must be numbers: {error}") from error
    if given.shape != (len(arrays),) or not np.isfinite(given).all() or (given < 0).any() or not given.any():
        raise ConfigError(f"{len(arrays)} updates need as many finite weights >= 0, not all zero; got {weights!r}")
    for index, update in enumerate(arrays):
        Layout.of(arrays[0]).check(update, where=f"update {index}")
    relative = given / given.max()  # in [0, 1], so that a weighted entry obeys the same bound as the entry
    limits = _bounds(arrays, bound)
    specs = [TensorSpec(f"update.{name}", value.shape, limits[name], ring) for name, value in arrays[0].items()]
    layout = Layout((*specs, TensorSpec(_WEIGHT, (), 1.0, ring)))
    contributions = {
        index: {f"update.{name}": w * value for name, value in update.items()} | {_WEIGHT: np.asarray(w)}
        for index, (update, w) in enumerate(zip(arrays, relative, strict=True))
    }
    total = sum_once(chosen, layout, contributions).total
    return {name: _like(total[f"update.{name}"] / total[_WEIGHT], value) for name, value in updates[0].items()}


def _bounds(updates: Sequence[Mapping[str, Array]], bound: float | Mapping[str, float] | None) -> dict[str, float]:
    """Find the bound of each tensor, by name."""
    largest = {name: max(float(np.abs(update[name]).max(initial=0)) for update in updates) for name in updates[0]}
    for name, value in largest.items():
        if value > _LARGEST:
            raise DataError(f"an entry of {value:.3g} in {name!r} is too large to be summed; scale the updates")
    if bound is None:
        return {name: 2.0 ** math.ceil(math.log2(max(value, _SMALLEST))) for name, value in largest.items()}
    bounds = dict(bound) if isinstance(bound, Mapping) else dict.fromkeys(largest, bound)
    if odd := sorted(set(bounds) ^ set(largest)):
        raise ConfigError(f"bounds are needed for exactly the tensors {sorted(largest)}; these differ: {odd}")
    if wrong := [name for name, value in bounds.items() if not 0 < value < math.inf]:
        raise ConfigError(f"a bound must be positive and finite; that of {wrong[0]!r} is {bounds[wrong[0]]!r}")
    return bounds


def _like(mean: Array, example: T) -> T:
    """Convert `mean` to the type, dtype and device of `example`."""
    if is_torch(example):
        import torch  # noqa: PLC0415 - only where the caller uses it

        tensor: Any = example
        value = torch.from_numpy(np.asarray(mean))
        out: Any = (value if tensor.is_floating_point() else value.round()).to(tensor.dtype).to(tensor.device)
        return out  # type: ignore[no-any-return]
    dtype = np.asarray(example).dtype
    rounded: Any = np.asarray(mean if np.issubdtype(dtype, np.floating) else np.rint(mean)).astype(dtype)
    return rounded  # type: ignore[no-any-return]
