"""Tell which tokens occur in a client's rows from how the rows of the embedding table move.

A token that does not occur has no gradient: its row moves by weight decay and momentum alone, in a way that does not
depend on the data. So the attacker runs the step on rows without the token and compares; a row that moves otherwise
belongs to a token that occurs. That holds for any optimiser, also where its step shows nothing of the gradient's size.
The audit of training loops calls this for text models, on the change of the embedding that a client sends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

import numpy as np

from securefed._tensors import Array
from securefed.errors import TranscriptError

_ROUNDINGS: Final = 4.0
"""Roundings of an embedding's entries that count as no movement; sums of several clients add up a few of them."""
_EXACT: Final = 1e-9
"""Relative movement that counts as none where absent tokens move exactly alike in two runs: sums are in double
precision. In bfloat16 a movement by one unit of the last place would be lost in `_ROUNDINGS`, and it is visible."""


@dataclass(frozen=True)
class EmbeddingReference:
    """The change of the embedding in a step that the attacker ran on rows of its own.

    Attributes:
        change: (vocabulary, width).
        absent: (vocabulary,) whether the token did not occur in that run.
    """

    change: Array
    absent: Array


def occurring_tokens(table: Array, change: Array, references: Sequence[EmbeddingReference], epsilon: float) -> Array:
    """Tell which tokens occur in the rows behind a change.

    Args:
        table: (vocabulary, width) the embedding that the clients received.
        change: (vocabulary, width) how it moved.
        references: runs of the step on known rows, each token absent from one at least; without any run, a row that
            moves at all counts.
        epsilon: relative rounding of the table's type.

    Returns:
        (vocabulary,) 1 for a token that occurs, 0 for one that does not.

    Raises:
        TranscriptError: a token occurs in every reference; or tokens that do not occur move by the data too, as where
            the output layer shares the table.
    """
    if not references:
        return np.asarray(np.linalg.norm(change, axis=1) > _rounding(table, epsilon), np.float64)
    found = np.full(len(table), np.nan)
    # Two runs must move the row of a token that is absent from both alike.
    apart = [
        np.linalg.norm(one.change - other.change, axis=1) * (one.absent & other.absent)
        for one, other in combinations(references, 2)
    ]
    if any((distance > _rounding(table, epsilon)).any() for distance in apart):
        raise TranscriptError(
            "rows of the embedding move by the data also where their token does not occur: the output layer "
            "shares the table, or gradients are clipped by their norm"
        )
    tolerance = movement_tolerance(table, np.concatenate(apart) if apart else np.ones(1), epsilon)
    for reference in references:
        moved = np.linalg.norm(change - reference.change, axis=1) > tolerance
        unknown = reference.absent & np.isnan(found)
        found[unknown] = moved[unknown]
    if np.isnan(found).any():
        raise TranscriptError(
            f"{int(np.isnan(found).sum())} tokens occur in every run that the change is compared with"
        )
    return found


def movement_tolerance(table: Array, apart: Array, epsilon: float) -> Array:
    """Return (vocabulary,) by how much two runs may move a row differently that neither's data move.

    Args:
        table: (vocabulary, width) the embedding.
        apart: how differently two runs move rows whose tokens are in neither; any number of them.
        epsilon: relative rounding of the table's type.
    """
    rounding = _rounding(table, epsilon)
    return rounding if np.any(apart) else np.minimum(rounding, _EXACT * np.linalg.norm(table, axis=1))


def _rounding(table: Array, epsilon: float) -> Array:
    """Return (vocabulary,) the movement of a row that may be rounding of its entries."""
    return np.asarray(_ROUNDINGS * epsilon * np.linalg.norm(table, axis=1))
