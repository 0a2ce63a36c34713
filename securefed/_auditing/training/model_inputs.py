"""Present models with named inputs, or with an output object, as attacks need them: one tensor in, one tensor out.

A tokenizer returns a dict of tensors that a model takes as named arguments: `model(**x)`. Attacks and scores hold a
client's rows as one tensor. An `InputLayout` says where each named input lies in it, and turns one form into the other.
Models of Hugging Face return an object whose `logits` are the scores; to attacks such a model returns these alone.

`audit_training` packs the rows. `TorchTraining` unpacks them for the caller's step, and lets attacks see the model
through `present_as_tensors`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import reduce
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from securefed.errors import DataError


@dataclass(frozen=True)
class InputLayout:
    """Where the named inputs of a model lie in rows that are one tensor.

    Attributes:
        shapes: shape of one row of each input by name, in their order in the tensor.
        types: type of each input by name.
        ranges: by name, the least and the largest value of inputs that are one whole number a row, such as a length.
    """

    shapes: Mapping[str, tuple[int, ...]]
    types: Mapping[str, torch.dtype]
    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict, compare=False)

    @classmethod
    def of(cls, x: Mapping[str, Tensor]) -> InputLayout:
        """Return the layout of rows, given by name, each (rows, ...)."""
        return cls({name: tuple(v.shape[1:]) for name, v in x.items()}, {name: v.dtype for name, v in x.items()})

    def covering(self, held: Sequence[Mapping[str, Tensor]]) -> InputLayout:
        """Return the layout with the ranges of single whole numbers in all of these rows."""
        single = [name for name in self.whole_numbers if prod(self.shapes[name]) == 1]
        found = {name: torch.cat([x[name].reshape(-1) for x in held if name in x]) for name in single}
        return replace(self, ranges={name: (int(v.min()), int(v.max())) for name, v in found.items() if len(v)})

    @property
    def columns(self) -> dict[str, slice]:
        """The place of each input in a row that is one vector."""
        out, start = {}, 0
        for name, shape in self.shapes.items():
            out[name] = slice(start, start + prod(shape))
            start += prod(shape)
        return out

    @property
    def whole_numbers(self) -> tuple[str, ...]:
        """Names of the inputs that hold whole numbers, such as tokens, which no search can vary by degrees."""
        return tuple(name for name, kind in self.types.items() if not kind.is_floating_point)

    def __str__(self) -> str:
        named = (
            f"{name} {shape} {str(self.types[name]).removeprefix('torch.')}" for name, shape in self.shapes.items()
        )
        return ", ".join(named)

    def pack(self, x: Mapping[str, Tensor]) -> Tensor:
        """Return named inputs as one tensor: (rows, numbers), or a single input as it is.

        Whole numbers beside real ones are held in double precision, which keeps them exact up to 2^53.
        """
        if len(x) == 1:
            return next(iter(x.values()))
        kinds = {kind.is_floating_point for kind in self.types.values()}
        common = torch.float64 if len(kinds) > 1 else reduce(torch.promote_types, self.types.values())
        return torch.cat([x[name].reshape(len(x[name]), -1).to(common) for name in self.shapes], dim=1)

    def unpack(self, x: Tensor) -> dict[str, Tensor]:
        """Return the named inputs in rows that are one tensor, each of its own shape and type, and contiguous.

        Models reshape inputs by `view`, which takes no slice of a wider tensor.
        """
        flat = x.reshape(len(x), -1)
        return {
            name: flat[:, place].reshape(-1, *self.shapes[name]).to(self.types[name]).contiguous()
            for name, place in self.columns.items()
        }

    def unpack_guess(self, x: Tensor) -> dict[str, Tensor]:
        """Return the named inputs in rows that an attacker guesses: single whole numbers moved into their range.

        A model that reads as many entries as a length says takes no length of 0.
        """
        return {
            name: value.clamp(*self.ranges[name]) if name in self.ranges else value
            for name, value in self.unpack(x).items()
        }


def present_as_tensors(module: nn.Module, layout: InputLayout | None) -> nn.Module:
    """Change a module, in place, to take rows as one tensor and to return its scores.

    Its class becomes a subclass with another `forward`, so that names of parameters and parts, copies and hooks stay
    as they are.

    Args:
        module: of the caller.
        layout: of its named inputs; `None` where it takes one tensor.
    """
    kind: Any = type(module)

    def forward(self: nn.Module, x: Tensor) -> Tensor:
        given = kind.forward(self, x) if layout is None else kind.forward(self, **layout.unpack_guess(x))
        return scores(given)

    module.__class__ = type(kind.__name__, (kind,), {"forward": forward})
    return module


def returns_object(model: nn.Module, x: Tensor, layout: InputLayout | None) -> bool:
    """Say whether a model returns no tensor for a row; false where it fails, which `scores` and its caller report."""
    module = deepcopy(model).cpu().eval()
    try:
        with torch.no_grad():
            return not torch.is_tensor(module(x) if layout is None else module(**layout.unpack(x)))
    except Exception:
        return False


def scores(output: Any) -> Tensor:
    """Return a model's output, or its `logits` where it is an object that has them.

    Raises:
        DataError: it is neither a tensor nor such an object.
    """
    found = output if torch.is_tensor(output) else getattr(output, "logits", None)
    if found is None and isinstance(output, Mapping):
        found = output.get("logits")
    if not torch.is_tensor(found):
        raise DataError(
            f"the model returns {type(output).__name__}; attacks need one tensor, or an object whose `logits` are one: "
            "wrap the model in a module that returns its scores"
        )
    return found
