"""Recover the token sequences behind one gradient of a text model by span checks on its first linear maps (DAGER).

A linear map is a weight that multiplies a vector at every position of a text. The gradient of such a weight shows the
span of these vectors, its inputs, over all positions of all rows (`span_sites`). The attacker knows the model, so it
can compute the input that any sequence of tokens would cause, and keeps the sequences whose inputs lie in the spans.

1. At the first map the input of a position depends on its own token alone. Each token is tried at each position; those
   whose input lies in the span of the map's gradient occur there, in some row.
2. At the first map behind the attention the input depends on the earlier tokens too. In a decoder sequences are built
   from the left: each prefix is extended by every token that step 1 allows at the next position, and kept if its input
   there lies in that map's span. In an encoder the input depends on all tokens, so that whole sequences are tried, as
   long as they are few.

The spans tell tokens apart while the positions of all rows together are fewer than the maps are wide; with more, every
input lies in the span. A sum of clients is a gradient of all their rows, so that the same search recovers all of them
(Petrov et al. 2024, arXiv 2405.15586). The audit of torch loops calls `find_sequences` (`text_attacks`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import Final

import numpy as np
import torch

from securefed._tensors import Array
from securefed.attacks._text.span_sites import Span, SpanSites, span_of
from securefed.errors import TranscriptError

_MOST_TRIED: Final = 20_000
"""Sequences or prefixes that are tried at one position, so that a span that selects nothing ends in a refusal."""
_BATCH: Final = 2048
"""Sequences that pass through the model at a time."""


@dataclass(frozen=True)
class FoundSequences:
    """Sequences that the spans allow.

    Attributes:
        tokens: (found, length), those nearest to the spans first, at most as many as there are rows.
        allowed: number of sequences that lie in the spans.
    """

    tokens: Array
    allowed: int


def find_sequences(
    sites: SpanSites,
    weights: Mapping[str, Array],
    gradients: Mapping[str, Array],
    *,
    rows: int,
    length: int,
    candidates: Array,
    vocabulary: int,
    scale: float,
    epsilon: float,
) -> FoundSequences:
    """Recover the rows behind a gradient.

    Args:
        sites: the maps of the model with the weights at which the gradient was computed.
        weights: those weights by name.
        gradients: gradients of the weights by name, up to a factor; maps without one are not used.
        rows: number of rows.
        length: number of tokens of a row.
        candidates: tokens that may occur, for instance those of `occurring_tokens`.
        vocabulary: number of tokens.
        scale: number by which a sent change of the model was multiplied to give `gradients` (1 / learning rate), since
            the rounding of the weights is multiplied too; 0 where the gradients themselves were sent.
        epsilon: relative rounding of the model's floating-point type.

    Raises:
        TranscriptError: the model has no such maps, or the spans do not select: too many tokens for the width, or a
            step that is no single gradient.
    """
    # by map, in the order of a pass: whether its input at a position depends on (earlier tokens, later tokens)
    depends = sites.dependence(length, vocabulary)
    known = [name for name in depends if name in gradients]
    first = next((name for name in known if depends[name] == (False, False)), None)
    second = next((name for name in known if depends[name][0]), None)
    if first is None or second is None:
        raise TranscriptError("no linear map sees single tokens before, and tokens together after, a first attention")
    spans = {name: _selective(name, gradients[name], weights[name], scale, epsilon) for name in (first, second)}
    # A decoder is causal: inputs do not depend on later tokens. Tolerances are relative distances from a span, the
    # strictest first. The larger the rank of a span, as a share of its map's width, the nearer to it are the inputs of
    # other tokens, and the fewer of the tolerances it admits, from the strictest on (`Span.tolerances`). So the shorter
    # of the two lists is what both spans admit. They grow until as many sequences as rows are found.
    found, causal = FoundSequences(np.empty((0, length), np.int64), 0), not depends[second][1]
    for tolerance in min((span.tolerances for span in spans.values()), key=len):
        try:
            wider = _Search(sites, first, second, spans, length, tolerance)(candidates, rows, causal=causal)
        except TranscriptError:
            if not found.allowed:
                raise
            break
        found = wider if wider.allowed > found.allowed else found
        if found.allowed >= rows:
            break
    return found


def _selective(name: str, gradient: Array, weight: Array, scale: float, epsilon: float) -> Span:
    """Return the span of a map's inputs; raise where it is so wide that inputs of other tokens lie in it too."""
    span = span_of(gradient, weight, scale, epsilon)
    if span is None or not span.selective:
        rank = len(span.basis) if span is not None else 0
        raise TranscriptError(
            f"the gradient of {name!r} has rank {rank} of {gradient.shape[1]}: more tokens than it is wide, or a step "
            "that is no single gradient (Adam, weight decay)"
        )
    return span


@dataclass(frozen=True)
class _Search:
    """The search at two maps, by name, with their spans and the largest distance from them."""

    sites: SpanSites
    first: str
    second: str
    spans: Mapping[str, Span]
    length: int
    tolerance: float

    def __call__(self, candidates: Array, rows: int, *, causal: bool) -> FoundSequences:
        """Return the sequences nearest to the spans, at most `rows`."""
        allowed = self.tokens_at(candidates)
        sequences = self.from_the_left(allowed) if causal else self.whole(allowed)
        order = np.argsort([distance for distance, _ in sequences], kind="stable")[:rows]
        found = np.array([sequences[place][1] for place in order], np.int64).reshape(-1, self.length)
        return FoundSequences(found, len(sequences))

    def tokens_at(self, candidates: Array) -> list[list[int]]:
        """Return the tokens that the first map allows at each position."""
        repeated = np.repeat(np.asarray(candidates, np.int64)[:, None], self.length, axis=1)
        distances = self._distances(repeated, self.first)  # the input at a position depends on its own token alone
        inside = distances <= self.tolerance
        return [[int(token) for token in np.asarray(candidates)[inside[:, p]]] for p in range(self.length)]

    def from_the_left(self, allowed: list[list[int]]) -> list[tuple[float, tuple[int, ...]]]:
        """Build sequences token by token; the rest of a sequence, which a decoder does not see yet, is filled up."""
        prefixes: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
        for place, tokens in enumerate(allowed):
            longer = [(total, (*prefix, token)) for total, prefix in prefixes for token in tokens]
            self._refuse_too_many(len(longer), place)
            if not longer:
                return []
            filled = np.array([prefix + (prefix[-1],) * (self.length - place - 1) for _, prefix in longer])
            distances = self._distances(filled, self.second)[:, place]
            kept = distances <= self.tolerance
            prefixes = [
                (total + float(distance), prefix)
                for (total, prefix), distance, keep in zip(longer, distances, kept, strict=True)
                if keep
            ]
        return prefixes

    def whole(self, allowed: list[list[int]]) -> list[tuple[float, tuple[int, ...]]]:
        """Try all sequences of allowed tokens."""
        self._refuse_too_many(int(np.prod([float(len(tokens)) for tokens in allowed])), self.length - 1)
        sequences = list(product(*allowed))
        if not sequences:
            return []
        distances = self._distances(np.array(sequences), self.second)
        kept = (distances <= self.tolerance).all(axis=1)
        return [(float(distances[k].sum()), sequences[k]) for k in np.flatnonzero(kept)]

    def _refuse_too_many(self, count: int, place: int) -> None:
        """Raise `TranscriptError` if more sequences would be tried at a position than `_MOST_TRIED`."""
        if count > _MOST_TRIED:
            raise TranscriptError(
                f"{count} sequences would have to be tried at position {place}, beyond {_MOST_TRIED}: the spans select "
                "too little"
            )

    def _distances(self, sequences: Array, name: str) -> Array:
        """Return the distance (sequences, length) of a map's inputs from its span."""
        out = []
        for start in range(0, len(sequences), _BATCH):
            tokens = torch.as_tensor(sequences[start : start + _BATCH])
            out.append(self.spans[name].distances(self.sites.inputs(tokens)[name]))
        return np.concatenate(out)
