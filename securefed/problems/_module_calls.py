"""Evaluate torch modules with other parameters, one thread at a time."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from securefed._process_lock import PROCESS_LOCK


def call_with(module: nn.Module, parameters: Mapping[str, torch.Tensor], rows: torch.Tensor) -> torch.Tensor:
    """Return the module's output for `rows`, with `parameters` by name in the place of its own.

    `torch.func.functional_call` puts the parameters into the module, calls it, and takes them out again. Without the
    lock a second thread in the same module, or in one that shares its layers, would compute with the first's.
    """
    with PROCESS_LOCK:
        found: torch.Tensor = torch.func.functional_call(module, dict(parameters), rows)
    return found
