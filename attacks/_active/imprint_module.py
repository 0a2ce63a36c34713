"""Insert an imprint module in front of a model: the architecture that a dishonest server delivers.

An imprint module is a linear layer, a ReLU and a second linear layer. Its gradients hold single rows as soon as the
server chooses its weights, whatever the model behind is (`trap_weights`, `model_behind`). With a convolution in front
that has channels for each client, they hold single rows of each client (`client_kernels`). Where users receive a model
as code, the module is what they would have to notice; this function makes such a model, so that it can be measured.

Source: Fowl et al. 2022, Robbing the Fed (arXiv 2110.13057), sec. 3; Zhao et al. 2023, LOKI (arXiv 2303.12233), for
the convolution.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from torch import nn

from securefed._hyperparameters import check_integer, checked_integers


def insert_imprint_module(
    module: Callable[[], nn.Module], shape: tuple[int, ...], bins: int, channels: int = 0
) -> nn.Sequential:
    """Make a model that begins with an imprint module, with initial weights as torch draws them.

        TorchModule(module=partial(insert_imprint_module, Net, (1, 28, 28), bins=512))

    Args:
        module: makes the model behind, called without arguments.
        shape: the shape of a row, as that model takes it; (colours, height, width) where there are channels.
        bins: outputs of the first linear layer; the more, the more rows are alone between two thresholds.
        channels: output channels of a 3x3 convolution and a ReLU before the linear layer; 0: none. The attack with a
            kernel for each client takes (colours + 1) of them a client and round.

    Returns:
        The model: it takes rows that are flat, or of that shape.
    """
    check_integer("bins", bins, 2)
    check_integer("channels", channels, 0)
    shape = checked_integers("shape", shape, 3 if channels else len(shape))
    size, width = prod(shape), prod(shape)
    before: list[nn.Module] = [nn.Flatten()]
    if channels:
        width = channels * prod(shape[1:])
        before += [nn.Unflatten(1, shape), nn.Conv2d(shape[0], channels, 3, padding=1), nn.ReLU(), nn.Flatten()]
    imprint = [nn.Linear(width, bins), nn.ReLU(), nn.Linear(bins, size), nn.Unflatten(1, shape)]
    return nn.Sequential(*before, *imprint, module())
