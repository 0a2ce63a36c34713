"""Find the linear maps of a text model whose inputs span-check attacks compare, and the span of their inputs.

A row of text is a sequence of tokens; the model turns each position into a vector z, and multiplies it by weights. The
gradient of a weight W (out, width) that is applied at every position is sum_k d_k z_k^T over the positions k of all
rows, with d_k the derivative of the loss by the output at k: its row space is spanned by the inputs z_k, as long as
these are fewer than the width. A candidate token is checked by the distance of its own input from that span: 0, up to
rounding, if the token occurs (Petrov et al. 2024, DAGER, arXiv 2405.15586). `sequence_search` does the search.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from securefed._tensors import Array

_SAME: Final = 1e-5
"""Relative difference up to which two inputs of a map count as equal when its dependence on tokens is probed."""
_ROUNDED: Final = 0.3
"""Standard deviation of rounding to a type, in units of its relative precision: .29 at a power of 2, .14 before the
next."""
_NOISES: Final = 3.0
"""Singular values below this multiple of the rounding's expected norm count as noise; the norm itself varies by a few
per cent, and the rounding inside the computation of a gradient is several times that of its entries."""
_TOLERANCES: Final = (1e-3, 4e-3, 1.6e-2, 6e-2)
"""Tolerances that are tried. Two layers of width 128 to 256, 6 and 12 rows of 16 tokens, changes of a model in single
precision: inputs of the batch are at 4e-5 at most, those behind one wrong token at .01 and more."""
_NEAR: Final = 0.3
"""Largest tolerance, as a share of the mean distance of other tokens' inputs from the span. Of 40,960 random inputs in
64 dimensions the nearest is at .74 of that mean from a span of rank 16, at .42 of it at rank 48, at .19 at rank 56."""
_FULL: Final = 0.9
"""Rank, as a share of the largest that is possible, from which on the span holds nearly everything or lacks some."""
_FUSED: Final = (nn.TransformerEncoder, nn.TransformerEncoderLayer, nn.MultiheadAttention)
"""Parts that compute in one piece, past the hooks on their maps, where they are in evaluation mode."""


@dataclass(frozen=True)
class Span:
    """The span of the inputs of one linear map.

    Attributes:
        basis: (rank, width) orthonormal rows.
        most: largest rank that the gradient can have, the smaller of its sides; at that rank inputs may be missing.
    """

    basis: Array
    most: int

    @property
    def rank(self) -> int:
        """Number of independent inputs that the span holds."""
        return len(self.basis)

    @property
    def tolerances(self) -> tuple[float, ...]:
        """Relative distances up to which an input counts as lying in the span, the strictest first.

        Inputs of other tokens are at sqrt(1 - rank / width) on average, of which at most `_NEAR` is allowed.
        """
        rank, width = self.basis.shape
        return tuple(one for one in _TOLERANCES if one <= _NEAR * float(np.sqrt(1 - rank / width)))

    @property
    def selective(self) -> bool:
        """Whether all inputs lie in the span, and those of other tokens clearly outside."""
        return 0 < self.rank <= _FULL * self.most and bool(self.tolerances)

    def distances(self, inputs: Array) -> Array:
        """Return the relative distance (...) of inputs (..., width) from the span."""
        within = inputs @ self.basis.T
        rest = np.maximum(np.square(inputs).sum(axis=-1) - np.square(within).sum(axis=-1), 0.0)
        return np.asarray(np.sqrt(rest / np.maximum(np.square(inputs).sum(axis=-1), 1e-300)))


def span_of(gradient: Array, weight: Array, scale: float, epsilon: float) -> Span:
    """Compute the row space of a gradient, as far as rounding allows; of rank 0 where it is rounding alone.

    Args:
        gradient: (out, width), up to a factor.
        weight: (out, width) at which it was computed.
        scale: number by which a sent change of the model was multiplied to give this gradient (1 / learning rate); the
            change carries the rounding of the weights, which is multiplied too. 0 where the gradient itself was sent.
        epsilon: relative rounding of the model's type.
    """
    _, values, directions = np.linalg.svd(gradient, full_matrices=False)
    sides = np.sqrt(gradient.shape[0]) + np.sqrt(gradient.shape[1])  # spectral norm of random entries of deviation 1
    rounding = epsilon * max(_ROUNDED * scale * _rms(weight), _rms(gradient)) * sides
    return Span(directions[: int(np.sum(values > _NOISES * rounding))], min(gradient.shape))


class SpanSites:
    """The linear maps of a module that see every position, in the order in which a pass calls them.

    Args:
        module: takes rows; it is changed: put into a mode without dropout.
        rows: function from tokens (n, length) to the rows that the module takes for them; by default the tokens.
    """

    def __init__(self, module: nn.Module, rows: Callable[[Tensor], Tensor] = lambda tokens: tokens) -> None:
        self.module, self.rows = module.eval(), rows
        for part in module.modules():
            if isinstance(part, _FUSED):  # their fused paths of evaluation mode would bypass the hooks
                part.training = True
            if isinstance(part, nn.MultiheadAttention):  # it holds no layer of dropout
                part.dropout = 0.0

    def _pass(self, tokens: Tensor, hooks: list[Any]) -> None:
        """Run the module on tokens, and remove the hooks that listen to it."""
        try:
            with torch.no_grad():
                self.module(self.rows(tokens))
        finally:
            for hook in hooks:
                hook.remove()

    def inputs(self, tokens: Tensor) -> dict[str, Array]:
        """Return by name of a weight the inputs (rows, length, width) of its map for some tokens (rows, length).

        Maps whose input has another shape, as behind a mean over positions, are left out; of a map that is called
        several times the first input counts.
        """
        seen: dict[str, Array] = {}
        hooks: list[Any] = []
        for name, part in self.module.named_modules():
            weight = _weight(name, part)
            if weight is None:
                continue

            def note(called: nn.Module, given: Any, named: Any, weight: str = weight) -> None:
                value = given[0] if given else next(iter(named.values()))
                first = not isinstance(called, nn.MultiheadAttention) or called.batch_first
                value = value if first else value.transpose(0, 1)
                if value.ndim == 3 and value.shape[:2] == tokens.shape and weight not in seen:
                    seen[weight] = value.detach().double().numpy()

            hooks.append(part.register_forward_pre_hook(note, with_kwargs=True))
        self._pass(tokens, hooks)
        return seen

    def oriented(self, name: str, matrix: Array) -> Array:
        """Return a weight, or its gradient, as (out, width)."""
        part = self.module.get_submodule(name.rpartition(".")[0])
        return matrix.T if _is_transposed(part) else matrix

    def embedding(self, tokens: Tensor) -> str | None:
        """Return the name of the table that the tokens (n, length) themselves index; `None` without one.

        A table that several parts share has the name under which the module's parameters list it.
        """
        found: list[str] = []
        hooks: list[Any] = []
        names = {id(value): name for name, value in self.module.named_parameters()}
        for part in self.module.modules():
            if isinstance(part, nn.Embedding):

                def note(part: nn.Module, given: Any) -> None:
                    if given and given[0].shape == tokens.shape and torch.equal(given[0], tokens.to(given[0].dtype)):
                        found.append(names[id(part.weight)])

                hooks.append(part.register_forward_pre_hook(note))
        self._pass(tokens, hooks)
        return found[0] if found else None

    def dependence(self, length: int, vocabulary: int) -> dict[str, tuple[bool, bool]]:
        """Tell of each map whether its input at a position depends on earlier tokens, and on later ones.

        The first token of a random row is changed, and the last one; then the inputs at the other end are compared.
        """
        generator = torch.Generator().manual_seed(0)
        tokens = torch.randint(0, vocabulary, (1, length), generator=generator)
        first, last = tokens.clone(), tokens.clone()
        first[0, 0] = (first[0, 0] + 1) % vocabulary
        last[0, -1] = (last[0, -1] + 1) % vocabulary
        plain, early, late = (self.inputs(given) for given in (tokens, first, last))
        return {
            name: (not _close(plain[name][0, -1], early[name][0, -1]), not _close(plain[name][0, 0], late[name][0, 0]))
            for name in plain
        }


def _rms(values: Array) -> float:
    return float(np.sqrt(np.mean(np.square(values))))


def _weight(name: str, part: nn.Module) -> str | None:
    """Return the name of the weight that the inputs of a part enter; `None` for other parts."""
    prefix = f"{name}." if name else ""
    if isinstance(part, nn.MultiheadAttention):
        return f"{prefix}in_proj_weight" if part.in_proj_weight is not None else None
    return f"{prefix}weight" if isinstance(part, nn.Linear) or _is_transposed(part) else None


def _is_transposed(part: nn.Module) -> bool:
    """Whether a part is a linear map with a weight (width, out), as those of GPT-2 in Hugging Face's transformers."""
    return type(part).__name__ == "Conv1D" and isinstance(getattr(part, "nx", None), int)


def _close(one: Array, other: Array) -> bool:
    return bool(np.linalg.norm(one - other) <= _SAME * np.linalg.norm(other))
