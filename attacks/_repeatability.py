"""Estimate how wrong an attack's estimate may be, by repeating the attack on messages changed by their own rounding.

A small residual says that an estimate explains the messages; it does not say that no other estimate does. In FedPG, for
instance, messages in float32 are explained to all their digits by Gram matrices many times the true one. Here every
message is changed at random by as much as rounding, fixed point and stated noise may have changed it, and the attack
runs again, once with the same random starts and once with others. The distance between the estimates shows how far the
messages leave the secret open. That holds for every attack, whatever its equations, and needs no truth. The audit calls
it for estimates that explain their messages.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from securefed._tensors import Array, Tensors
from securefed.attacks._base import Attack, Reconstruction, RoundView, Target, View
from securefed.attacks._diagnosis import explained
from securefed.attacks._precision import before_change
from securefed.attacks.scores import match, relative_error
from securefed.errors import SecureFedError

SMALL: Final = 0.05
"""Largest relative error of an estimate that is called recovered. Of pictures of digits, whose entries have a root mean
square of .45 of their range, it is a peak signal-to-noise ratio of 33 dB, -20 log10(.45 * .05). Half of it would be
39 dB, and twice it 27 dB, where errors are plain to see."""
HIDDEN_ERROR: Final = "hidden error"
"""Key of `Reconstruction.diagnostics` for the relative error that an attack itself expects of its estimate."""
_AS_LARGE: Final = 3.0
"""A repetition fits the messages too if its residual is at most this many times that of the estimate, which was found
to explain them."""
_UNIFORM = 1 / math.sqrt(12)
"""Standard deviation of a fixed-point rounding error, in units of the last digit."""
_HALF: Final = 0.5
"""Change of a floating-point number, in units of its relative precision. Rounding errors have .29 of it; with less than
half, rounding the changed number to its type would undo most changes."""


@dataclass(frozen=True)
class Repeatability:
    """Spread of an attack's estimates over messages that differ by their rounding.

    Attributes:
        error: largest relative distance of a repetition's estimate from the estimate, and at least the error that the
            attack itself expects. Of rows it is that of the worst row, relative to the rows' root mean square norm,
            after matching. NaN where no repetition explains its messages.
        labels: whether all repetitions give the rows the same labels; `True` where there are none.
    """

    error: float
    labels: bool = True


def repeatability(attack: Attack, observed: View, target: Target, found: Reconstruction, seed: int) -> Repeatability:
    """Repeat an attack on perturbed messages.

    Args:
        attack: the attack whose estimate is `found`.
        observed: the view that it was made from.
        target: as given to the attack.
        found: the estimate; it explains the messages.
        seed: the seed of the attack's own draws, which were those of `default_rng([seed, 1])`, and of the
            perturbations.

    Returns:
        The spread. An attack that states its own expected error is repeated once, others twice.
    """
    stated = float(found.diagnostics.get(HIDDEN_ERROR, math.nan))
    distances, labels = [], True
    for draw in (1,) if math.isfinite(stated) else (1, 3):  # 1: the attack's own draws as before; 3: others
        view = perturbed(observed, np.random.default_rng([seed, 4, draw]))
        try:
            again = attack.run(view, target, np.random.default_rng([seed, draw]))
        except (SecureFedError, np.linalg.LinAlgError):
            continue
        fits = explained(again, view) is not False or again.residual <= _AS_LARGE * found.residual
        if not fits or again.value.shape != found.value.shape:
            continue
        distances.append(_distance(again, found))
        labels = labels and _same_labels(again, found)
    known = [value for value in (*distances, stated) if not math.isnan(value)]
    return Repeatability(max(known) if distances else math.nan, labels)


def perturbed(observed: View, rng: np.random.Generator) -> View:
    """Return the view with every message changed by as much as rounding and stated noise may have changed it."""
    return replace(observed, rounds=tuple(_changed(item, rng) for item in observed.rounds))


def _changed(item: RoundView, rng: np.random.Generator) -> RoundView:
    """Add normal noise to a round's message, with the standard deviation of its rounding, fixed point and noise."""
    message = {}
    for name, value in item.message.items():
        exact = np.asarray(value)
        if exact.dtype.kind != "f":
            message[name] = exact
            continue
        deviation = np.hypot(_rounding(name, exact, item.broadcast), item.noise.get(name, 0.0))
        fixed_point = item.step.get(name, 0.0) * _UNIFORM * math.sqrt(len(item.members))
        change = np.hypot(deviation, fixed_point) * rng.normal(size=exact.shape)
        message[name] = np.asarray(exact + change, exact.dtype if fixed_point == 0 else np.float64)
    return replace(item, message=message)


def _rounding(name: str, value: Array, broadcast: Tensors) -> Array:
    """Return by how much each entry is changed, as a standard deviation.

    Changes of a broadcast tensor in float32 (`delta.weight` of `weight`) were rounded at the size of that tensor.
    """
    unit = float(np.finfo(np.float64).eps)
    size = np.abs(np.asarray(value, np.float64))
    if value.dtype.itemsize <= np.dtype(np.float32).itemsize or np.array_equal(value, value.astype(np.float32)):
        kind = value.dtype if value.dtype.itemsize <= np.dtype(np.float32).itemsize else np.dtype(np.float32)
        unit = float(np.finfo(kind).eps)
        before = before_change(name, broadcast)
        if name.startswith("delta") and before is not None and np.shape(before) == value.shape:
            size = np.maximum(size, np.abs(np.asarray(before, np.float64)))
    return np.asarray(_HALF * unit * size)


def _distance(again: Reconstruction, found: Reconstruction) -> float:
    """Return the relative distance of a repetition's estimate, as `Repeatability.error` defines it."""
    if not np.isfinite(again.value).all():
        return math.inf
    if found.secret == "samples":
        norm = math.sqrt(float(np.mean(np.sum(found.value**2, axis=1))))
        differences = np.linalg.norm(match(again.value, found.value) - found.value, axis=1)
        return float(differences.max() / norm) if norm > 0 else math.inf
    if found.secret == "distances":  # of several clients, in an order that the messages may leave open
        ours, theirs = (np.stack(list(_blocks(item))) for item in (found, again))
        return relative_error(match(theirs, ours), ours)
    return relative_error(again.value, found.value) if np.any(found.value) else math.inf


def _blocks(found: Reconstruction) -> Iterator[Array]:
    """Yield the (vertices, vertices) distance matrix of each client, flat; they are stacked below each other."""
    width = found.value.shape[1]
    for begin in range(0, len(found.value), width):
        yield found.value[begin : begin + width].reshape(-1)


def _same_labels(again: Reconstruction, found: Reconstruction) -> bool:
    """Return whether a repetition gives the rows the same labels; true where either has none for each row."""
    if found.secret != "samples" or found.labels is None or again.labels is None:
        return True
    if np.shape(found.labels) != (len(found.value),) or np.shape(again.labels) != np.shape(found.labels):
        return True
    # The label is one more column, so that equal rows with different labels are matched by their labels.
    tagged = match(np.column_stack([again.value, again.labels]), np.column_stack([found.value, found.labels]))
    return bool(np.array_equal(np.round(tagged[:, -1]), np.asarray(found.labels)))
