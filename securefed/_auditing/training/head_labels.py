"""Count labels from the gradient of the last linear layer, whatever the number of its outputs, with a bias or without.

Row k enters the layer as e_k and has the slope s_k of its loss at the outputs, so that the mean gradients of bias and
weight are gb = mean_k s_k and gW = mean_k s_k e_k^T. Of a softmax with a bias the counts follow by
`plausible_label_counts`, which knows nothing of the rows and is good for few of them. Rows that the attacker knows are
a scale: with s_c the slopes of known rows of class c, and n_c the counts of B rows,

    gb = sum_c (n_c / B) mean s_c,    gW m = sum_c (n_c / B) mean s_c (e . m),    m the mean of known e_k,

are solved for the counts by least squares; exact where rows of a class are alike, and off by the root of B times the
scatter of s_c elsewhere. Where both apply the attacker takes the one that is nearer on clients drawn from known rows.
Behind a ReLU the inputs e are not negative. Then one row's label is exact without a bias too: s_c e^T m has the sign of
s_c, which is negative for the row's own class alone (of one output: negative for class 1).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from securefed._auditing.training.attack_inputs import AttackInputs
from securefed._auditing.training.attacked_network import mean_loss
from securefed._auditing.training.training_secrets import labels_of
from securefed._tensors import Array
from securefed.attacks._fitting.label_counts import nearest_counts
from securefed.attacks._networks.last_layer_labels import plausible_label_counts
from securefed.errors import TranscriptError

_KNOWN: Final = 200
"""Most known rows that make the scale; their mean slope then has an error of a tenth of the rows' scatter."""
_ENOUGH: Final = 5
"""Known rows of a class from which on they alone stand for it."""
_DRAWN: Final = 30
"""Clients drawn from known rows, on which two ways to count are compared."""


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
        given = [part.detach().double().numpy() for part in parts]
        known = _head(inputs) if inputs.count > 1 else None
        if known is None or known.weight != layer.weight or not _scale_is_nearer(inputs, known, given[2], given[3]):
            return plausible_label_counts(inputs.count, *given)
        return _by_scale(inputs, known, observed)
    head = _head(inputs)
    if head is None:
        raise TranscriptError("no trained linear layer outputs the scores of the classes, or of one of two classes")
    if inputs.count == 1:
        return iter((np.eye(inputs.classes, dtype=np.int64)[_label(inputs, head, observed)],))
    return _by_scale(inputs, head, observed)


def _by_scale(inputs: AttackInputs, head: Head, observed: dict[str, Tensor]) -> Iterator[Array]:
    """Return counts by the scale of known rows, the likeliest first."""
    gradients = {name: observed[name].numpy() for name in (head.weight, head.bias) if name is not None}
    estimate = _shares(_Scale.of(inputs, head), gradients) * inputs.count
    return nearest_counts(estimate, np.zeros(inputs.classes, np.int64), inputs.count)


def _scale_is_nearer(inputs: AttackInputs, head: Head, at_weight: Array, at_bias: Array) -> bool:
    """Return whether a scale from half of the known rows counts better on clients drawn from the other half.

    The other way is `plausible_label_counts`. Their classes are drawn with shares that differ widely.
    """
    labels = labels_of(inputs.prior)
    if labels is None or head.bias is None:
        return False
    whole, rng = _Scale.of(inputs, head), inputs.rng(83)
    half = rng.permutation(len(whole.labels)) % 2 == 0
    scale, kept = whole.part(half), whole.part(~half)
    present = np.unique(kept.labels)
    if len(present) < 2 or len(np.unique(scale.labels)) < len(present):
        return False
    errors = np.zeros(2)
    for _ in range(_DRAWN):
        drawn = present[rng.choice(len(present), inputs.count, p=rng.dirichlet(np.ones(len(present))))]
        places = np.array([rng.choice(np.flatnonzero(kept.labels == label)) for label in drawn])
        slopes, true = kept.slopes[drawn, places], np.bincount(drawn, minlength=inputs.classes)
        weight, bias = slopes.T @ kept.entered[places] / len(places), slopes.mean(axis=0)
        shares = _shares(scale, {head.weight: weight, head.bias: bias})
        by_scale = next(nearest_counts(shares * inputs.count, np.zeros(inputs.classes, np.int64), inputs.count))
        alone = next(plausible_label_counts(inputs.count, weight, bias, at_weight, at_bias))
        errors += [np.linalg.norm(by_scale - true), np.linalg.norm(alone - true)]
    return bool(errors[0] < errors[1])


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


@dataclass(frozen=True)
class _Scale:
    """What known rows show of a head.

    Attributes:
        head: the head.
        slopes: (classes, rows, outputs) as of `_slopes`.
        entered: (rows, width) what enters the layer.
        labels: (rows,) the classes of the rows; -1 where they are not known.
    """

    head: Head
    slopes: Array
    entered: Array
    labels: Array

    @classmethod
    def of(cls, inputs: AttackInputs, head: Head) -> _Scale:
        """Take the rows that the attacker knows."""
        entered, labels = head.entered.double().numpy(), labels_of(inputs.prior)
        known = np.full(len(entered), -1) if labels is None else labels[: len(entered)]
        return cls(head, _slopes(inputs, head.outputs), entered, known)

    def part(self, places: Array) -> _Scale:
        """Take some of the rows."""
        return replace(self, slopes=self.slopes[:, places], entered=self.entered[places], labels=self.labels[places])

    def of_class(self, label: int) -> Array:
        """Return which rows stand for a class: its own where they are enough, else all."""
        own = self.labels == label
        return own if own.sum() >= _ENOUGH else np.ones(len(own), bool)


def _shares(scale: _Scale, observed: dict[str, Array]) -> Array:
    """Return (classes,) the shares of each class, by least squares; real numbers that sum to 1."""
    head, classes = scale.head, range(len(scale.slopes))
    mean = scale.entered.mean(axis=0)
    along = np.ones(len(scale.entered)) if head.bias is not None else scale.entered @ mean
    seen = observed[head.bias] if head.bias is not None else observed[head.weight] @ mean
    means = [np.mean(scale.slopes[c, own] * along[own, None], axis=0) for c in classes for own in [scale.of_class(c)]]
    by_class = np.stack(means)  # (classes, outputs)
    others = np.linalg.lstsq((by_class[1:] - by_class[0]).T, seen - by_class[0], rcond=None)[0]
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
