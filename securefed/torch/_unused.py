"""Let a parameter that a batch does not use count as one whose gradient is zero.

DistributedDataParallel waits for the gradient of every parameter. One that a rank's batch did not use (a head of
another task, a dropped layer, an expert that no token chose) has none, so the backward pass would not end. With
`find_unused_parameters=True` ranks tell each other in the clear which parameters their data used. Here the outputs of
the model pass through one node of the graph that has every parameter among its inputs. In the backward pass the node
gives each parameter nothing: the gradient of a used one stays as it is, at no cost, and an unused one arrives as zeros,
which are masked as all others.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_flatten, tree_unflatten  # as DistributedDataParallel reads a model's outputs


class _ReachAll(torch.autograd.Function):
    """Return copies of the outputs; in the backward pass reach all parameters, and add nothing to their gradients."""

    @staticmethod
    def forward(ctx: Any, parameters: int, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Copy the outputs, which stand after the parameters; a view could not be changed in place afterwards."""
        ctx.parameters = parameters
        ctx.set_materialize_grads(False)
        return tuple(output.clone() for output in inputs[parameters:])

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        """Pass the gradients of the outputs on."""
        return (None, *[None] * ctx.parameters, *gradients)


def reach_all_parameters(module: nn.Module, inputs: Any, outputs: Any) -> Any:
    """Attach all trained parameters to the outputs: a forward hook of the network inside DistributedDataParallel.

    Args:
        module: the network.
        inputs: unused.
        outputs: tensors, or lists, tuples and dicts of them (of any kind that torch's own pytrees know).

    Returns:
        Equal outputs; `None`, for the outputs as they are, where none of them has a gradient.
    """
    leaves, form = tree_flatten(outputs)
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    if not places or not torch.is_grad_enabled() or torch.compiler.is_compiling():
        return None
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    reach: Any = _ReachAll.apply  # torch has no types for it
    reached = reach(len(trained), *trained, *[leaves[i] for i in places])
    for place, output in zip(places, reached, strict=True):
        leaves[place] = output
    return tree_unflatten(leaves, form)
