"""Recover rows of numbers and categories from the first linear layer that takes looked-up vectors beside numbers.

A model of a table looks the categories of a row up (`lookup_tables`) and joins their vectors with the numbers; the
joined vector h enters a linear layer, whose gradient shows the h of the rows in closed form, as that of any first layer
(`row_separation`): of one row as a ratio, of several behind a ReLU by separation. Where that fails, the ratio at each
output shows the h of a row that activates this output alone; mixtures of rows are left out, since their parts are no
vectors of the tables. Of each h the columns that follow a number of the row by a x + b give the number, and the part
that is a row of a received table gives the category. The caller's own step checks rows that were all found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from securefed._auditing.training.attack_inputs import AttackInputs
from securefed._auditing.training.lookup_tables import LookupTable
from securefed._tensors import Array
from securefed.attacks._networks.row_separation import FirstLayerGradient, ratio, separate

_KNOWN: Final = 256
"""Known rows on which the columns of the layer's input are traced to the rows' columns."""
_SAME: Final = 1e-4
"""Difference, in standard deviations of a column, up to which it follows another one: rounding of single precision."""
_MATCHED: Final = 1e-2
"""Distance of a part from the nearest row of its table, as a share of that from the next, up to which it is that row.
Parts of a true row are at 1e-3 and less in single precision, mixtures of two rows at .1 and more on average."""
_STARTS: Final = 1000
"""Most starting points of the separation: where it succeeds it takes about 300; where it fails, as for 12 rows behind
48 outputs, each thousand takes about a second."""
_ALIKE: Final = 1e-3
"""Relative difference up to which two outputs show the same h."""


@dataclass(frozen=True)
class JoinedLayer:
    """A linear layer that takes numbers and looked-up vectors.

    Attributes:
        weight: name of its weight (out, width).
        bias: name of its bias.
        numbers: by column of a row, (column of h, a, b) of h = a x + b.
        lookups: by column of a row, (table, what the model adds to the number, first column of h).
    """

    weight: str
    bias: str
    numbers: dict[int, tuple[int, float, float]]
    lookups: dict[int, tuple[LookupTable, int, int]]


@dataclass(frozen=True)
class MixedRows:
    """Rows that the layer shows.

    Attributes:
        rows: (found, features); columns that do not reach the layer hold the known rows' mean, or their most frequent
            category.
        labels: (found,) their labels; `None` where targets are no classes, or some rows are missing.
        stage: the closed form: `ratio`, `separation` or `lone outputs`.
    """

    rows: Array
    labels: Array | None
    stage: str


def mixed_rows(inputs: AttackInputs, gradient: Tensor, rng: np.random.Generator) -> MixedRows | None:
    """Recover the rows behind a mean gradient (parameters,) up to a factor; `None` where no layer shows any."""
    layer = joined_layer(inputs)
    if layer is None:
        return None
    parts = inputs.network.split(gradient)
    observed = FirstLayerGradient(parts[layer.weight].detach().numpy(), parts[layer.bias].detach().numpy())
    joined = ratio(observed) if inputs.count == 1 else separate(observed, inputs.count, rng, starts=_STARTS)
    stage = "ratio" if inputs.count == 1 else "separation"
    if joined is None or not np.isfinite(joined).all() or not _matched(inputs, layer, joined).all():
        joined, stage = _lone(inputs, layer, observed), "lone outputs"
    if not len(joined):
        return None
    rows = _rows_of(inputs, layer, joined)
    whole = len(joined) == inputs.count and inputs.classes >= 2
    return MixedRows(rows, _labels(inputs, layer, observed, joined, rows) if whole else None, stage)


def joined_layer(inputs: AttackInputs) -> JoinedLayer | None:
    """Find the trained linear layer with a bias that shows most columns of a row; `None` where none shows a number."""
    x = inputs.prior.x[:_KNOWN]
    flat, best = x.reshape(len(x), -1).double().numpy(), None
    lookups = [(table, column, offset) for table in inputs.tables for column, offset in table.columns]
    categorical = {column for _, column, _ in lookups}
    for prefix, entered in _linear_inputs(inputs, x).items():
        if not {f"{prefix}weight", f"{prefix}bias"} <= set(inputs.network.shapes):
            continue
        numbers = _traced(entered, flat, [c for c in range(flat.shape[1]) if c not in categorical])
        places: dict[int, tuple[LookupTable, int, int]] = {}
        for table, column, offset in lookups:
            values = inputs.observed.state[table.name].double().numpy()[flat[:, column].astype(np.int64) + offset]
            place = _place(entered, values, {start for _, _, start in places.values()})
            if place is not None:
                places[column] = table, offset, place
        found = JoinedLayer(f"{prefix}weight", f"{prefix}bias", numbers, places)
        if len(numbers) + len(places) > (len(best.numbers) + len(best.lookups) if best else 0):
            best = found
    return best


def _linear_inputs(inputs: AttackInputs, x: Tensor) -> dict[str, Array]:
    """Return by prefix of a linear layer's parameters its inputs (rows, width) for some rows, in order of calls."""
    module, seen = inputs.training.received(inputs.observed.state).eval(), dict[str, Array]()
    for name, part in module.named_modules():
        if isinstance(part, nn.Linear):

            def note(_: nn.Module, given: Any, name: str = name) -> None:
                if given and given[0].ndim == 2 and len(given[0]) == len(x):
                    seen.setdefault(f"{name}." if name else "", given[0].detach().double().numpy())

            part.register_forward_pre_hook(note)
    with torch.no_grad():
        module(x)
    return seen


def _traced(entered: Array, flat: Array, columns: Sequence[int]) -> dict[int, tuple[int, float, float]]:
    """Trace columns of rows (rows, features) to columns of h (rows, width) that follow them by a x + b."""
    out = {}
    spread, centred = entered.std(axis=0), entered - entered.mean(axis=0)
    for column in columns:
        own = flat[:, column] - flat[:, column].mean()
        if not (energy := float(own @ own)):
            continue
        slope = own @ centred / energy
        apart = np.abs(centred - own[:, None] * slope).max(axis=0)
        follows = (apart <= _SAME * spread) & (spread > 0)
        if follows.any():
            place = int(np.argmax(follows))
            shift = float(entered[:, place].mean() - slope[place] * flat[:, column].mean())
            out[column] = place, float(slope[place]), shift
    return out


def _place(entered: Array, values: Array, taken: set[int]) -> int | None:
    """Return the first column of h from which on it holds some looked-up vectors (rows, dimension), else `None`."""
    size, width = float(np.abs(values).max()), values.shape[1]
    for start in range(entered.shape[1] - width + 1):
        if start in taken:
            continue
        if np.abs(entered[:, start : start + width] - values).max() <= _SAME * size:
            return start
    return None


def _nearest(inputs: AttackInputs, layer: JoinedLayer, column: int, joined: Array) -> tuple[Array, Array]:
    """Return the nearest row of a column's table for each h, and its distance relative to that of the next one."""
    table, _, start = layer.lookups[column]
    values = inputs.observed.state[table.name].double().numpy()
    part = joined[:, start : start + values.shape[1]]
    distances = np.linalg.norm(part[:, None] - values, axis=2)
    if len(values) == 1:
        return np.zeros(len(part), np.int64), distances[:, 0] / max(float(np.linalg.norm(values)), 1e-300)
    two = np.sort(distances, axis=1)[:, :2]
    return np.argmin(distances, axis=1), two[:, 0] / np.maximum(two[:, 1], 1e-300)


def _matched(inputs: AttackInputs, layer: JoinedLayer, joined: Array) -> Array:
    """Return for each h whether all its looked-up parts are rows of their tables."""
    out = np.ones(len(joined), bool)
    for column in layer.lookups:
        out &= _nearest(inputs, layer, column, joined)[1] <= _MATCHED
    return out


def _lone(inputs: AttackInputs, layer: JoinedLayer, observed: FirstLayerGradient) -> Array:
    """Return (found, width) the h of rows that some output shows alone: all its parts are rows of their tables."""
    assert observed.bias is not None
    bias = np.asarray(observed.bias, np.float64)
    shown = np.abs(bias) > 1e-6 * np.abs(bias).max(initial=1e-300)
    joined = np.asarray(observed.weight, np.float64)[shown] / bias[shown, None]
    if not layer.lookups or not len(joined):  # without tables nothing tells a row from a mixture
        return np.asarray(joined[:0])
    joined = joined[_matched(inputs, layer, joined) & _plausible(inputs, layer, joined)]
    kept: list[Array] = []
    for one in joined:
        if all(np.linalg.norm(one - other) > _ALIKE * np.linalg.norm(other) for other in kept):
            kept.append(one)
    return np.asarray(np.array(kept[: inputs.count]).reshape(-1, observed.weight.shape[1]))


def _plausible(inputs: AttackInputs, layer: JoinedLayer, joined: Array) -> Array:
    """Return whether the numbers lie where those of known rows do, or as far beyond as these reach: no mixtures do."""
    known, out = inputs.prior.flat, np.ones(len(joined), bool)
    for column, (place, slope, shift) in layer.numbers.items():
        values, low, high = (joined[:, place] - shift) / slope, known[:, column].min(), known[:, column].max()
        out &= (values >= low - (high - low)) & (values <= high + (high - low))
    return out


def _rows_of(inputs: AttackInputs, layer: JoinedLayer, joined: Array) -> Array:
    """Return the rows (found, features) behind some h."""
    known = inputs.prior.flat
    rows = np.repeat(known.mean(axis=0)[None], len(joined), axis=0)
    for table in inputs.tables:
        for column, _ in table.columns:
            kinds, counts = np.unique(known[:, column], return_counts=True)
            rows[:, column] = kinds[np.argmax(counts)]
    for column, (place, slope, shift) in layer.numbers.items():
        rows[:, column] = (joined[:, place] - shift) / slope
    for column, (_, offset, _) in layer.lookups.items():
        rows[:, column] = _nearest(inputs, layer, column, joined)[0] - offset
    return rows


def _labels(
    inputs: AttackInputs, layer: JoinedLayer, observed: FirstLayerGradient, joined: Array, rows: Array
) -> Array:
    """Return the label of each row whose slope at the layer's outputs agrees best with the observed one.

    Slopes are known up to a factor where the gradient is, so that directions are compared with their signs.
    """
    slopes = np.linalg.pinv(joined).T @ np.asarray(observed.weight, np.float64).T  # gW = D^T H / B
    x = torch.as_tensor(rows).to(inputs.prior.x.dtype).reshape(-1, *inputs.row_shape)
    weight, agreed = torch.ones(1, dtype=inputs.network.dtype), np.zeros((len(rows), inputs.classes))
    for place in range(len(rows)):
        for label in range(inputs.classes):
            target = inputs.targets(np.array([label]))
            found = inputs.network.plain.gradients(inputs.point, x[place : place + 1], target, weight)
            own = found[layer.bias].double().numpy()
            agreed[place, label] = own @ slopes[place] / max(float(np.linalg.norm(own)), 1e-300)
    return np.asarray(agreed.argmax(axis=1))
