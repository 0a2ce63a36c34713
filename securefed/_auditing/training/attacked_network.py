"""Treat the model as the attacks on networks do: its mean loss as a function of parameters and rows.

The attacks expect the sum of weight times loss over the rows. The audited user's loss returns the mean over a batch,
which cannot weigh rows one by one, so the mean is multiplied by the sum of the weights: right for equal weights only.
`attack_inputs` and `step_probe` wrap the user's model here; attacks then differentiate the loss by both. Batch
normalisation is in the mode in which the step used it: in training mode the statistics of the batch are part of the
function, and no running ones are kept. Dropout is off: the attacker does not know its draws.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from securefed._auditing.training.local_training import LossFunction, State, TorchTraining
from securefed._process_lock import PROCESS_LOCK
from securefed.attacks._networks.flat_network import FlatNetwork
from securefed.problems._module_calls import call_with

_DROPOUT = (nn.modules.dropout._DropoutNd, nn.AlphaDropout, nn.FeatureAlphaDropout)
"""Layers that stay in evaluation mode, where they pass everything on."""


def attacked_network(training: TorchTraining, state: State, known: Tensor) -> FlatNetwork:
    """Wrap the model with a state.

    Args:
        training: model, loss, and by part of the model whether the step used it in training mode (`modes`).
        state: the state that a client receives.
        known: rows like those that the model takes. Whole numbers stay whole where the model takes no others.

    Returns:
        The loss of rows (rows, features), each as one vector; only parameters that the model trains are variables.
    """
    row_shape, row_type = tuple(known.shape[1:]), known.dtype
    whole = not row_type.is_floating_point and not follows_by_degrees(training, state, known)
    module, evaluated = training.received(state), training.received(state).eval()
    for name, part in module.named_modules():
        part.training = training.modes.get(name, part.training) and not isinstance(part, _DROPOUT)
        if isinstance(part, _DROPOUT):
            part.p = 0.0  # an attention that computes in one piece reads the number off its layer
        if isinstance(part, nn.MultiheadAttention | nn.RNNBase):  # their dropout is a number, not a layer
            part.dropout = 0.0
    for layer in batch_norms(module, training.modes).values():  # without running statistics a layer uses its batch's
        layer.track_running_stats = False
        layer.running_mean = layer.running_var = layer.num_batches_tracked = None
    # parameters that are not trained are constants of the loss
    frozen = {name: value for name, value in module.named_parameters() if name not in training.parameters}

    def output(parameters: Mapping[str, Tensor], x: Tensor) -> Tensor:
        # attention in one piece has no second derivative, which searches take; the setting is of the whole process
        with PROCESS_LOCK, sdpa_kernel(SDPBackend.MATH):
            try:
                return call_with(module, {**frozen, **parameters}, x)
            except ValueError:  # one row alone has no batch statistics: take the running ones
                if len(x) > 1:
                    raise
                return call_with(evaluated, {**frozen, **parameters}, x)

    def objective(parameters: Mapping[str, Tensor], x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
        rows = x.reshape(-1, *row_shape).to(row_type) if whole else x.reshape(-1, *row_shape)
        return mean_loss(training.loss, output(parameters, rows), y) * weights.sum()

    shapes = {name: tuple(value.shape) for name, value in module.named_parameters() if name in training.parameters}
    return FlatNetwork(shapes, objective, _precision(training))


def follows_by_degrees(training: TorchTraining, state: State, known: Tensor) -> bool:
    """Say whether the model takes real numbers as rows and its output has a derivative in them, as searches need.

    Pictures in bytes that a model turns into real numbers pass; tokens and categories do not.
    """
    row = known[:1].detach().to(_precision(training), copy=True).requires_grad_()
    try:
        with torch.enable_grad():
            output = training.received(state).eval()(row)
            (slope,) = torch.autograd.grad(output.sum(), row, allow_unused=True)
    except Exception:  # of the caller's model: it takes no real numbers, or gives no derivative
        return False
    return slope is not None


def _precision(training: TorchTraining) -> torch.dtype:
    return next(value.dtype for name, value in training.model.named_parameters() if name in training.parameters)


def mean_loss(loss: LossFunction, output: Tensor, target: Tensor) -> Tensor:
    """Return the mean of the rows' losses, also where the loss returns one a row."""
    value = loss(output, target)
    return value if value.ndim == 0 else value.mean()


def batch_norms(module: nn.Module, modes: Mapping[str, bool]) -> dict[str, nn.modules.batchnorm._BatchNorm]:
    """Return by name the layers of batch normalisation that follow their batches: in training mode, with statistics."""
    return {
        name: part
        for name, part in module.named_modules()
        if isinstance(part, nn.modules.batchnorm._BatchNorm)
        and part.running_mean is not None
        and modes.get(name, part.training)
    }
