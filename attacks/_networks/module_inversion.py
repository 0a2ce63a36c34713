"""Reconstruct a client's rows from a gradient or a model update of any `torch.nn.Module`, in one call.

`invert` is for users who hold a message and the model, from any framework; attacks on recorded runs of this package are
in `view_inversion`. Both search for rows whose simulated message is the observed one (`staged_inversion` has the method
and its sources).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import nn

from securefed._public import require
from securefed._tensors import Array
from securefed.attacks._networks.client_simulations import LocalSteps, OneGradient, mean_gradient
from securefed.attacks._networks.first_layer import FirstLayerEvidence
from securefed.attacks._networks.flat_network import FlatNetwork, Loss
from securefed.attacks._networks.gradient_matching import InversionProblem, RowPrior
from securefed.attacks._networks.last_layer_labels import plausible_label_counts
from securefed.attacks._networks.row_parametrisations import MixedColumns
from securefed.attacks._networks.staged_inversion import InversionEffort, RecoveredRows, StagedInversion

_EFFORT = InversionEffort()


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
    effort: InversionEffort = _EFFORT,
    seed: int = 0,
) -> tuple[RecoveredRows, Array]:
    """Reconstruct the rows behind one message.

    Args:
        model: the model with the parameters that the client received.
        loss: function (output, target) -> (rows,) losses.
        message: the mean gradient over the rows, or, if `local` is given, the update (final minus initial parameters).
            A mapping by parameter name, or a sequence in the order of `model.named_parameters()`.
        rows: number B of the client's rows.
        row_shape: shape of one row as the model takes it.
        labels: (B,) labels if they are known. If not, they are recovered from the gradient of the first layer together
            with the rows, or counted from the gradient of the last layer.
        classes: number of classes, needed where `labels` are not given.
        targets: (B, ...) real-valued targets in place of labels, for regression.
        bounds: public range (low, high) of the rows' entries.
        local: the client's local steps; `None` if the message is one gradient.
        categories: for tabular rows, the columns of each one-hot coded feature.
        effort: limits on the number of searches and of their steps.
        seed: seed of the random starts.

    Returns:
        The rows with their residual, and the labels or targets that were used. A large residual means that
        the search failed, or that the model, the loss or the local steps are not those of the client. A small one is
        no proof that every row of a batch is right (`RecoveredRows.residual`).

    Raises:
        ConfigError: the message does not fit the model, the labels can be recovered from neither layer, or the searches
            need more memory than the limit.
    """
    require(rows >= 1, f"rows must be at least 1, not {rows}")
    require(bounds[0] < bounds[1], f"bounds are (low, high) with low < high, not {bounds}")
    features = int(np.prod(row_shape))
    network = FlatNetwork.of(model, loss, input_shape=tuple(row_shape) if len(row_shape) > 1 else None)
    simulation: LocalSteps | OneGradient = local or OneGradient()
    point = network.flatten(dict(model.named_parameters()))
    vector = network.flatten(_named(network, message))
    require(all(map(torch.isfinite, vector.aminmax())), "the message holds numbers that are not finite")
    gradient = mean_gradient(simulation, vector)
    known_targets = _known_targets(rows, labels, targets)
    image = (row_shape[0], row_shape[1], row_shape[2]) if len(row_shape) == 3 else None
    columns = MixedColumns(features, tuple(tuple(group) for group in categories)) if categories else None
    inversion = StagedInversion(network, simulation, features, RowPrior(*bounds, image=image), effort, columns)
    inversion.require_memory(rows)
    rng = np.random.default_rng(seed)
    # any target of the right type: the first layer is found by a trial run of the network on one row
    probe = torch.zeros(1, dtype=torch.int64) if known_targets is None else known_targets[:1]
    first = FirstLayerEvidence.of(network, point, gradient, probe, rows, features, rng)
    if known_targets is None:
        recovered = invert_unlabelled(inversion, point, vector, gradient, first, rows, classes, rng)
    else:
        recovered = inversion(InversionProblem(point, vector, known_targets), rng, first)
    assert recovered.targets is not None
    return replace(recovered, rows=recovered.rows.reshape(rows, *row_shape)), recovered.targets


def invert_unlabelled(
    inversion: StagedInversion,
    point: torch.Tensor,
    message: torch.Tensor,
    gradient: torch.Tensor,
    first: FirstLayerEvidence | None,
    rows: int,
    classes: int,
    rng: np.random.Generator,
    *,
    scaled: bool = False,
) -> RecoveredRows:
    """Reconstruct rows whose labels are not known, ordered by label.

    The labels are recovered from the gradient of the first layer together with the rows; if that fails, they are
    counted from the gradient of the last layer.

    Args:
        inversion: the network, the simulation and the effort.
        point: (parameters,) initial parameters of the clients.
        message: (copies * parameters,) message of the clients; in SCAFFOLD it holds two vectors of all parameters, its
            copies.
        gradient: (parameters,) mean gradient estimated from the message.
        first: evidence from the first layer's gradient; `None` if the first layer is not linear.
        rows: number B of rows.
        classes: number of classes.
        rng: generator of the random starts.
        scaled: whether the gradient is known up to a positive factor only, as a clip leaves it.

    Returns:
        The rows, with their labels as `targets`.

    Raises:
        ConfigError: the labels cannot be counted, since no linear layer gives the logits of a cross entropy.
    """
    if (
        first is not None
        and classes >= 2
        and (closed_form := inversion.from_first_layer(point, message, first, classes)) is not None
    ):
        return closed_form
    counted = count_labels(inversion.network, point, gradient, rows, inversion.features, classes, scaled=scaled)
    hypotheses = [
        InversionProblem(point, message, torch.as_tensor(labels)) for labels in islice(counted, inversion.effort.counts)
    ]
    return inversion.with_unknown_labels(hypotheses, rng, first)


def count_labels(
    network: FlatNetwork, point: torch.Tensor, gradient: torch.Tensor, rows: int, features: int, classes: int,
    *, scaled: bool = False,
) -> Iterator[Array]:  # fmt: skip
    """Yield possible labels (rows,) of the batch, each in ascending order, the likeliest first.

    Args:
        network: the model and its loss.
        point: (parameters,) where the gradient was computed.
        gradient: (parameters,) mean gradient of the rows; that of the last layer is used.
        rows: number of rows.
        features: width of a row.
        classes: number of classes.
        scaled: whether the gradient is known up to a positive factor only.

    Raises:
        ConfigError: no linear layer gives the logits of a cross entropy.
    """
    layer = network.logit_layer(point, features, classes)
    require(
        layer is not None,
        f"labels of {classes} classes cannot be recovered: the model needs a last linear layer with a bias and a cross "
        "entropy loss; pass labels, or the number of classes",
    )
    assert layer is not None and layer.bias is not None
    observed, parameters = network.split(gradient), network.split(point)
    parts = (observed[layer.weight], observed[layer.bias], parameters[layer.weight], parameters[layer.bias])
    counts = plausible_label_counts(rows, *(part.detach().double().numpy() for part in parts), scaled=scaled)
    return (np.repeat(np.arange(len(count)), count) for count in counts)


def _known_targets(rows: int, labels: Array | Sequence[int] | None, targets: Array | None) -> torch.Tensor | None:
    """Return the labels or targets of the rows, or `None` if neither is known."""
    if targets is not None:
        known_targets = torch.as_tensor(np.asarray(targets))
        require(len(known_targets) == rows, f"{rows} rows need as many targets, not {len(known_targets)}")
        return known_targets
    if labels is None:
        return None
    known_targets = torch.as_tensor(np.asarray(labels).astype(np.int64))
    require(known_targets.shape == (rows,), f"{rows} rows need as many labels, not {tuple(known_targets.shape)}")
    return known_targets


def _named(network: FlatNetwork, message: Mapping[str, Any] | Sequence[Any]) -> Mapping[str, Any]:
    """Return the message's tensors by parameter name."""
    if isinstance(message, Mapping):
        return message
    require(
        len(message) == len(network.shapes),
        f"the message holds {len(message)} tensors, the model trains {len(network.shapes)}",
    )
    return dict(zip(network.shapes, message, strict=True))
