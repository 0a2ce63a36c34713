"""Count labels from the gradient of the last linear layer, whatever the number of its outputs, with a bias or without.

Row k enters the layer as e_k and has the slope s_k of its loss at the outputs, so that the mean gradients of bias and
weight are gb = mean_k s_k and gW = mean_k s_k e_k^T. Of a softmax with a bias the counts follow by
`plausible_label_counts`. Elsewhere (one output that tells two classes apart, a layer without a bias) rows that the
attacker knows are a scale: with s_c the slopes of known rows if all were of class c, and n_c the counts of B rows,

    gb = sum_c (n_c / B) mean s_c,    gW m = sum_c (n_c / B) mean s_c (e . m),    m the mean of known e_k,

are solved for the counts by least squares; exact where rows are alike. Behind a ReLU the inputs e are not negative.
Then one row's label is exact without a bias too: s_c e^T m has the sign of s_c, which is negative for the row's own
class alone (of one output: negative for class 1).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from securefed._auditing.training.attack_inputs import AttackInputs
from securefed._auditing.training.attacked_network import mean_loss
from securefed._tensors import Array
from securefed.attacks._fitting.label_counts import nearest_counts
from securefed.attacks._networks.last_layer_labels import plausible_label_counts
from securefed.errors import TranscriptError

_KNOWN: Final = 200
"""Most known rows that make the scale; their mean slope then has an error of a tenth of the rows' scatter."""


@dataclass(frozen=True)
class Head:
    """The linear layer whose outputs are the model's.

    Attributes:
        weight: name of its weight (outputs, width).
        bias: name of its bias; `None` without one.
        entered: (rows, width) its inputs for known rows.
        outputs: (rows, ...) the model's outputs for them.
    """

    weight: str
    bias: str | None
    entered: Tensor
    outputs: Tensor


def label_counts(inputs: AttackInputs, gradient: Tensor) -> Iterator[Array]:
    """Return counts of labels (classes,) that a mean gradient (parameters,) of all rows allows, the likeliest first.

    Raises:
        TranscriptError: targets are no classes, or no linear layer outputs their scores.
    """
    if inputs.classes < 2:
        raise TranscriptError("targets are no classes")
    observed = {name: part.detach().double() for name, part in inputs.network.split(gradient).items()}
    features = int(np.prod(inputs.row_shape))
    whole = not inputs.prior.y.is_floating_point()
    layer = inputs.network.plain.logit_layer(inputs.point, features, inputs.classes) if whole else None
    if layer is not None and layer.bias is not None:
        at = inputs.network.split(inputs.point)
        parts = (observed[layer.weight], observed[layer.bias], at[layer.weight], at[layer.bias])
        return plausible_label_counts(inputs.count, *(part.detach().double().numpy() for part in parts))
    head = _head(inputs)
    if head is None:
        raise TranscriptError("no trained linear layer outputs the scores of the classes, or of one of two classes")
    if inputs.count == 1:
        return iter((np.eye(inputs.classes, dtype=np.int64)[_label(inputs, head, observed)],))
    estimate = _shares(inputs, head, observed) * inputs.count
    return nearest_counts(estimate, np.zeros(inputs.classes, np.int64), inputs.count)


def _head(inputs: AttackInputs) -> Head | None:
    """Find the linear layer whose outputs are the model's, on known rows; `None` without a trained one."""
    module = inputs.training.received(inputs.observed.state).eval()
    seen: dict[str, tuple[Tensor, Tensor]] = {}
    hooks = []
    for name, part in module.named_modules():
        if isinstance(part, nn.Linear):

            def note(_: nn.Module, given: Any, output: Tensor, name: str = name) -> None:
                if given and given[0].ndim == 2:
                    seen[name] = given[0].detach(), output.detach()

            hooks.append(part.register_forward_hook(note))
    with torch.no_grad():
        outputs = module(inputs.prior.x[:_KNOWN])
    for hook in hooks:
        hook.remove()
    trained = inputs.network.shapes
    for name, (entered, output) in reversed(seen.items()):
        prefix = f"{name}." if name else ""
        same = output.numel() == outputs.numel() and torch.equal(output.flatten(), outputs.flatten())
        if same and f"{prefix}weight" in trained:
            bias = f"{prefix}bias"
            return Head(f"{prefix}weight", bias if bias in trained else None, entered, outputs)
    return None


def _slopes(inputs: AttackInputs, outputs: Tensor) -> Array:
    """Return (classes, rows, outputs) the slope of each row's loss at its outputs, if it were of each class."""
    rows = len(outputs)
    found = []
    for label in range(inputs.classes):
        at = outputs.detach().clone().requires_grad_()
        with torch.enable_grad():
            value = mean_loss(inputs.training.loss, at, inputs.targets(np.full(rows, label)))
            (slope,) = torch.autograd.grad(value * rows, at)
        found.append(slope.reshape(rows, -1).double().numpy())
    return np.stack(found)


def _shares(inputs: AttackInputs, head: Head, observed: dict[str, Tensor]) -> Array:
    """Return (classes,) the shares of each class, by least squares; real numbers that sum to 1."""
    slopes, entered = _slopes(inputs, head.outputs), head.entered.double().numpy()
    if head.bias is not None:
        seen, scale = observed[head.bias].numpy(), slopes.mean(axis=1)
    else:
        mean = entered.mean(axis=0)
        along = entered @ mean
        seen, scale = observed[head.weight].numpy() @ mean, np.einsum("cko,k->co", slopes, along) / len(along)
    others = np.linalg.lstsq((scale[1:] - scale[0]).T, seen - scale[0], rcond=None)[0]
    return np.array([1.0 - others.sum(), *others])


def _label(inputs: AttackInputs, head: Head, observed: dict[str, Tensor]) -> int:
    """Return the label of the only row; the module says when it is exact."""
    weight = observed[head.weight].numpy()
    if head.bias is not None:
        bias = observed[head.bias].numpy()
        entered = bias @ weight / max(float(bias @ bias), 1e-300)
        at = inputs.network.split(inputs.point)
        outputs = at[head.weight].double().numpy() @ entered + at[head.bias].double().numpy()
        shaped = torch.as_tensor(outputs).to(head.outputs.dtype).reshape(1, *head.outputs.shape[1:])
        slopes = _slopes(inputs, shaped)[:, 0]
        return int(np.argmin(np.linalg.norm(slopes - bias, axis=1)))
    direction = np.linalg.svd(weight, full_matrices=False)[2][0]
    if direction @ head.entered.double().numpy().mean(axis=0) < 0:
        direction = -direction
    signs = np.sign(_slopes(inputs, head.outputs).mean(axis=1))  # (classes, outputs)
    agreed = np.stack([signs @ (side * weight @ direction) for side in (1, -1)])
    return int(np.unravel_index(np.argmax(agreed), agreed.shape)[1])  # of equals the first: inputs not negative
