"""`invert`: rows from a gradient or an update of any `torch.nn.Module`, in one call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from securefed.algorithms.base import require
from securefed.attacks.networks.charts import Mixed
from securefed.attacks.networks.inversion import Cascade, Effort, Inverted, entering_layer
from securefed.attacks.networks.labels import counts
from securefed.attacks.networks.matching import Prior, Problem
from securefed.attacks.networks.network import Loss, Network
from securefed.attacks.networks.steps import LocalSteps, OneGradient, mean_gradient
from securefed.tensors import Array

_EFFORT = Effort()


def invert(
    model: nn.Module,
    loss: Loss,
    message: Mapping[str, Any] | Sequence[Any],
    *,
    rows: int,
    row_shape: tuple[int, ...],
    labels: Array | Sequence[int] | None = None,
    classes: int = 0,
    targets: Array | None = None,
    bounds: tuple[float, float] = (0.0, 1.0),
    local: LocalSteps | None = None,
    categories: Sequence[Sequence[int]] = (),
    effort: Effort = _EFFORT,
    seed: int = 0,
) -> tuple[Inverted, Array]:
    """Reconstruct the rows behind one message.

    Args:
        model: as the client received it.
        loss: (output, target) -> (rows,) losses.
        message: the mean gradient, or with `local` the update (end minus start): by parameter name, or in their order.
        rows: B.      row_shape: shape in which the model takes a row.
        labels: (B,) if known; else restored from the last layer (`classes` of them).
        targets: (B, ...) real targets in place of labels.
        bounds: public range of the entries.
        local: the client's local steps; `None`: the message is one gradient.
        categories: columns of each one-hot coded feature of tabular rows.

    Returns:
        The rows with their misfit, and the labels that were used. A misfit that stays large says that nothing was
        found, or that model, loss or local steps are not those of the client.

    Raises:
        ConfigError: a message that does not fit the model, labels that cannot be had, or searches beyond the memory
            limit, before anything is allocated.
    """
    require(rows >= 1, f"rows must be at least 1, not {rows}")
    require(bounds[0] < bounds[1], f"bounds are (low, high) with low < high, not {bounds}")
    features = int(np.prod(row_shape))
    network = Network.of(model, loss, input_shape=tuple(row_shape) if len(row_shape) > 1 else None)
    simulation: LocalSteps | OneGradient = local or OneGradient()
    point = network.flatten(dict(model.named_parameters()))
    sent = network.flatten(_named(network, message))
    require(bool(torch.isfinite(sent).all()), "the message holds numbers that are not finite")
    gradient = mean_gradient(simulation, sent)
    if targets is None:
        found = (
            np.asarray(labels) if labels is not None else restored(network, point, gradient, rows, features, classes)
        )
        require(found.shape == (rows,), f"{rows} rows need as many labels, not {found.shape}")
        aims = torch.as_tensor(found.astype(np.int64))
    else:
        found = np.asarray(targets)
        require(len(found) == rows, f"{rows} rows need as many targets, not {len(found)}")
        aims = torch.as_tensor(found)
    image = (row_shape[0], row_shape[1], row_shape[2]) if len(row_shape) == 3 else None
    columns = Mixed(features, tuple(tuple(group) for group in categories)) if categories else None
    cascade = Cascade(network, simulation, features, Prior(*bounds, image=image), effort, columns)
    cascade.require_memory(rows, 1)
    layer = network.entrance(point, features, aims[:1])
    inverted = cascade(
        [Problem(point, sent, aims)], np.random.default_rng(seed), [entering_layer(network, layer, gradient)]
    )[0]
    return replace(inverted, rows=inverted.rows.reshape(rows, *row_shape)), found


def restored(
    network: Network, point: torch.Tensor, gradient: torch.Tensor, rows: int, features: int, classes: int
) -> Array:
    """(rows,) labels read off the gradient of the last layer, ascending.

    Raises:
        ConfigError: no linear layer gives the logits of a cross entropy.
    """
    layer = network.exit(point, features, classes)
    require(
        layer is not None,
        f"labels of {classes} classes cannot be read off: no last linear layer with a bias and cross entropy was found;"
        " pass labels, or the number of classes",
    )
    assert layer is not None and layer.bias is not None
    seen, at = network.split(gradient), network.split(point)
    parts = (seen[layer.weight], seen[layer.bias], at[layer.weight], at[layer.bias])
    number = counts(rows, *(part.detach().double().numpy() for part in parts))
    return np.repeat(np.arange(len(number)), number)


def _named(network: Network, message: Mapping[str, Any] | Sequence[Any]) -> Mapping[str, Any]:
    if isinstance(message, Mapping):
        return message
    require(
        len(message) == len(network.shapes),
        f"the message holds {len(message)} tensors, the model trains {len(network.shapes)}",
    )
    return dict(zip(network.shapes, message, strict=True))
