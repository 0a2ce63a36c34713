"""The base class of networks that classify rows: the loss is the cross entropy, and predictions are the largest logits.

Dense and convolutional networks derive from it and define `logits`; `TorchProblem` computes gradients by torch, and
gradient methods (securefed.algorithms) train them. Parameters are torch tensors by name.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import numpy as np
import torch

from securefed._tensors import Array, Tensors
from securefed.problems._base import Classifier
from securefed.problems._torch_problem import TorchProblem, TorchTensors, tensor


@dataclass(frozen=True, kw_only=True)
class TorchClassifier(TorchProblem, Classifier):
    """Base class of networks that classify: labels 0..classes-1, the loss is the cross entropy of the logits."""

    @abstractmethod
    def logits(self, parameters: TorchTensors, x: torch.Tensor) -> torch.Tensor:
        """Compute the (rows, classes) logits of the rows `x` (rows, features)."""

    def row_losses(self, parameters: TorchTensors, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Compute the (rows,) losses of the rows `x`."""
        return torch.nn.functional.cross_entropy(self.logits(parameters, x), y, reduction="none")

    def predict(self, parameters: Tensors, x: Array) -> Array:
        """Predict the (rows,) int64 labels."""
        with torch.no_grad():
            z = self.logits(self.tensors(parameters), tensor(np.asarray(x, self.dtype)))
            return np.asarray(z.argmax(dim=1).numpy())
