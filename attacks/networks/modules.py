"""`invert`: rows from a gradient or an update of any `torch.nn.Module`, in one call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import nn

from securefed.attacks.networks.charts import Mixed
from securefed.attacks.networks.first_layer import FirstLayer
from securefed.attacks.networks.inversion import Cascade, Effort, Inverted
from securefed.attacks.networks.labels import plausible
from securefed.attacks.networks.matching import Prior, Problem
from securefed.attacks.networks.network import Loss, Network
from securefed.attacks.networks.steps import LocalSteps, OneGradient, mean_gradient
from securefed.public import require
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
        labels: (B,) if known; else read off the first layer with the rows, or counted in the last (`classes` of them).
        targets: (B, ...) real targets in place of labels.
        bounds: public range of the entries.
        local: the client's local steps; `None`: the message is one gradient.
        categories: columns of each one-hot coded feature of tabular rows.

    Returns:
        The rows with their misfit, and the labels or targets that were used. A misfit that stays large says that
        nothing was found, or that model, loss or local steps are not those of the client.

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
    require(all(map(torch.isfinite, sent.aminmax())), "the message holds numbers that are not finite")
    gradient = mean_gradient(simulation, sent)
    aims = torch.as_tensor(np.asarray(targets)) if targets is not None else None
    if aims is None and labels is not None:
        aims = torch.as_tensor(np.asarray(labels).astype(np.int64))
        require(aims.shape == (rows,), f"{rows} rows need as many labels, not {tuple(aims.shape)}")
    require(
        aims is None or len(aims) == rows, f"{rows} rows need as many targets, not {0 if aims is None else len(aims)}"
    )
    image = (row_shape[0], row_shape[1], row_shape[2]) if len(row_shape) == 3 else None
    columns = Mixed(features, tuple(tuple(group) for group in categories)) if categories else None
    cascade = Cascade(network, simulation, features, Prior(*bounds, image=image), effort, columns)
    cascade.require_memory(rows, 1)
    rng = np.random.default_rng(seed)
    probe = torch.zeros(1, dtype=torch.int64) if aims is None else aims[:1]
    first = FirstLayer.of(network, point, gradient, probe, rows, features, rng)
    if aims is None:
        inverted = unlabelled(cascade, point, sent, gradient, first, rows, classes, rng)
    else:
        inverted = cascade([Problem(point, sent, aims)], rng, [first])[0]
    assert inverted.targets is not None
    return replace(inverted, rows=inverted.rows.reshape(rows, *row_shape)), inverted.targets


def unlabelled(
    cascade: Cascade,
    point: torch.Tensor,
    message: torch.Tensor,
    gradient: torch.Tensor,
    first: FirstLayer | None,
    rows: int,
    classes: int,
    rng: np.random.Generator,
) -> Inverted:
    """Rows by ascending labels that nobody told: read off the first layer with the rows, else counted in the last.

    Raises:
        ConfigError: neither is to be had: no linear layer gives the logits of a cross entropy.
    """
    if first is not None and classes >= 2 and (read := cascade.read(point, message, first, classes)) is not None:
        return read
    counted = restored(cascade.network, point, gradient, rows, cascade.features, classes)
    accounts = [Problem(point, message, torch.as_tensor(labels)) for labels in islice(counted, cascade.effort.counts)]
    return cascade.among(accounts, rng, first)


def restored(
    network: Network, point: torch.Tensor, gradient: torch.Tensor, rows: int, features: int, classes: int
) -> Iterator[Array]:
    """Labels (rows,), ascending, that the gradient of the last layer allows, the likeliest first.

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
    numbers = plausible(rows, *(part.detach().double().numpy() for part in parts))
    return (np.repeat(np.arange(len(number)), number) for number in numbers)


def _named(network: Network, message: Mapping[str, Any] | Sequence[Any]) -> Mapping[str, Any]:
    if isinstance(message, Mapping):
        return message
    require(
        len(message) == len(network.shapes),
        f"the message holds {len(message)} tensors, the model trains {len(network.shapes)}",
    )
    return dict(zip(network.shapes, message, strict=True))
