"""Recover the token sequences behind one gradient of a text model by span checks on its first linear maps (DAGER).

The gradient of a weight shows the span of its inputs over all positions of all rows (`span_sites`), and the attacker
can compute the input that any sequence would cause. At a map in front of the attention the input of a position depends
on its own token: the tokens whose input lies in the span occur there, in some row. At a map behind the attention a
decoder's sequences are built from the left, each prefix kept while its input lies in the span; an encoder's are tried
whole, as long as they are few. Each step uses the map whose gradient has the largest rank. Ends of rows may leave no
trace (padding, a last token from which nothing is predicted): a prefix that no token extends has ended, and a row that
is the beginning of another is missed. With as many positions in all rows as the maps are wide, every input lies in the
spans and nothing is told apart. Source: Petrov et al. 2024, arXiv 2405.15586.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Final

import numpy as np
import torch

from securefed._tensors import Array
from securefed.attacks._text.span_sites import Span, SpanSites, span_of
from securefed.errors import TranscriptError

_MOST_TRIED: Final = 20_000
"""Most sequences or prefixes that are tried at one position. Beyond it the spans select too little, and the search
ends in an error."""
_NAMED: Final = 10**15
"""Number of sequences from which on an error does not count them: it may have hundreds of digits."""
_BATCH: Final = 2048
"""Sequences that pass through the model at a time."""
_MAPS: Final = 8
"""Maps in front of the first attention, and behind it, of which the best is chosen: those of a block with a gated
network (output of the attention, gate, up, down) and of the next attention. Each takes a singular value decomposition.
"""
_COMPARED: Final = 16
"""Sequences that are compared where spans allow more than there are rows, as a multiple of the number of rows."""
_NEW: Final = 0.03
"""Length from which the part of an input of length 1 outside the others' span is a direction of its own; the largest
tolerance of a span is .06."""
_DRAWN: Final = 64
"""Random sequences that show how far other tokens' inputs are from a span."""


@dataclass(frozen=True)
class FoundSequences:
    """Sequences that the spans allow.

    Attributes:
        tokens: (found, length), those nearest to the spans first, at most as many as there are rows; -1 behind the end
            of a sequence.
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
    open_end: bool = False,
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
        open_end: whether rows may end before `length`, as far as gradients show them.

    Raises:
        TranscriptError: the model has no such maps, or the spans do not tell tokens apart, since there are too many
            tokens for the width, the step is no single gradient, or rounding hides inputs.
    """
    # by map, in the order of a pass: whether its input at a position depends on (earlier tokens, later tokens)
    depends = sites.dependence(length, vocabulary)
    known = [name for name in depends if name in gradients]
    before, behind = [name for name in known if depends[name] == (False, False)], [n for n in known if depends[n][0]]
    if not before or not behind:
        raise TranscriptError("no linear map sees single tokens before, and tokens together after, a first attention")

    spans = {
        name: span_of(sites.oriented(name, gradients[name]), sites.oriented(name, weights[name]), scale, epsilon)
        for name in [*before[:_MAPS], *behind[:_MAPS]]
    }
    first, second = (
        _most_telling(sites, {name: spans[name] for name in names[:_MAPS]}, length, candidates)
        for names in (before, behind)
    )
    spans = {name: spans[name] for name in (first, second)}
    causal = not depends[second][1]  # a decoder's inputs do not depend on later tokens
    found = FoundSequences(np.empty((0, length), np.int64), 0)
    # Tolerances are relative distances from a span. They are tried from the strictest on until as many sequences as
    # rows are found. Each span admits the first few of the same list, so the shorter of the two lists suits both.
    for tolerance in min((span.tolerances for span in spans.values()), key=len):
        try:
            wider = _Search(sites, first, second, spans, length, tolerance, open_end)(candidates, rows, causal=causal)
        except TranscriptError:
            if not found.allowed:
                raise
            break
        found = wider if wider.allowed > found.allowed else found
        if found.allowed >= rows:
            break
    # each token that occurs has an input of its own; without any token told apart, all of them are candidates
    if not found.allowed and spans[first].rank < len(candidates) < vocabulary:
        raise TranscriptError(
            f"{len(candidates)} tokens occur, and the gradient of {first!r} shows {spans[first].rank} inputs: the rest "
            "is lost in the rounding of the model's numbers"
        )
    return found


def _most_telling(sites: SpanSites, spans: Mapping[str, Span], length: int, candidates: Array) -> str:
    """Choose the map whose span has the largest rank, and of several the one that random sequences are farthest from.

    Raises:
        TranscriptError: its span is so wide that inputs of other tokens lie in it too, or there is none.
    """
    most = max(span.rank for span in spans.values())
    complete = {name: span for name, span in spans.items() if span.rank == most}
    if not most or not len(candidates) or not any(span.selective for span in complete.values()):
        name, span = next(iter(complete.items()))
        if not most:
            raise TranscriptError(f"the gradient of {name!r} is lost in the rounding of the model's numbers")
        raise TranscriptError(
            f"the gradient of {name!r} has rank {most} of {span.most}: more tokens than it is wide, or a "
            "step that is no single gradient (Adam, weight decay)"
        )
    drawn = torch.as_tensor(np.random.default_rng(0).choice(candidates, (_DRAWN, length)))
    inputs = sites.inputs(drawn)
    selective = {name: span for name, span in complete.items() if span.selective}
    return max(selective, key=lambda name: float(np.median(selective[name].distances(inputs[name]))))


@dataclass(frozen=True)
class _Search:
    """The search at two maps, by name, with their spans and the largest distance from them."""

    sites: SpanSites
    first: str
    second: str
    spans: Mapping[str, Span]
    length: int
    tolerance: float
    open_end: bool

    def __call__(self, candidates: Array, rows: int, *, causal: bool) -> FoundSequences:
        """Return the sequences nearest to the spans, at most `rows`; build them from the left where `causal`."""
        allowed = self.tokens_at(candidates)
        sequences = sorted(self.from_the_left(allowed) if causal else self.whole(allowed), key=lambda pair: pair[0])
        found = np.array([tokens for _, tokens in sequences], np.int64).reshape(-1, self.length)
        if len(found) > rows:
            found = found[: _COMPARED * rows]
            found = found[self.most_varied(found, rows)]
        return FoundSequences(found, len(sequences))

    def most_varied(self, sequences: Array, rows: int) -> list[int]:
        """Choose sequences one by one, each time one whose inputs add most directions to those of the chosen.

        Where attention knows positions only relative to each other, the first token over and over causes the inputs of
        that token alone, which lie in the span although no such row exists; they add one direction at most.

        Args:
            sequences: (n, length), the nearest to the span first.
            rows: number to choose, at most n.
        """
        inputs = self._inputs(sequences, self.second)
        inputs = inputs / np.maximum(np.linalg.norm(inputs, axis=2, keepdims=True), 1e-300)
        inputs[sequences < 0] = 0.0  # behind a sequence's end
        chosen: list[int] = []
        for _ in range(rows):
            added = np.linalg.matrix_rank(inputs, tol=_NEW)
            added[chosen] = -1
            chosen.append(int(np.argmax(added)))
            basis = np.linalg.svd(inputs[chosen[-1]], full_matrices=False)[2][: max(int(added[chosen[-1]]), 0)]
            inputs = inputs - inputs @ basis.T @ basis
        return chosen

    def tokens_at(self, candidates: Array) -> list[list[int]]:
        """Return the tokens that the first map allows at each position."""
        tokens = np.asarray(candidates, np.int64)
        repeated = np.repeat(tokens[:, None], self.length, axis=1)
        inside = self._distances(repeated, self.first) <= self.tolerance  # an input depends on its own token alone
        return [tokens[here].tolist() for here in inside.T]

    def from_the_left(self, allowed: list[list[int]]) -> list[tuple[float, tuple[int, ...]]]:
        """Build sequences token by token; the rest of a sequence, which a decoder does not see yet, is filled up.

        Each has its mean distance from the span. Where ends are open, those that no token extends are kept.
        """
        prefixes: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
        ended: list[tuple[float, tuple[int, ...]]] = []
        for place, tokens in enumerate(allowed):
            longer = [(total, (*prefix, token)) for total, prefix in prefixes for token in tokens]
            self._refuse_too_many(len(longer), place)
            kept = []
            if longer:
                filled = np.array([prefix + (prefix[-1],) * (self.length - place - 1) for _, prefix in longer])
                distances = self._distances(filled, self.second)[:, place]
                kept = [
                    (total + float(distance), prefix)
                    for (total, prefix), distance in zip(longer, distances, strict=True)
                    if distance <= self.tolerance
                ]
            extended = {prefix[:-1] for _, prefix in kept}
            if self.open_end and place:
                ended += [(total / place, self._ended(p)) for total, p in prefixes if p not in extended]
            prefixes = kept
        return ended + [(total / self.length, prefix) for total, prefix in prefixes]

    def whole(self, allowed: list[list[int]]) -> list[tuple[float, tuple[int, ...]]]:
        """Try all sequences of allowed tokens, of any length where ends are open; each has its mean distance."""
        lengths = range(1, self.length + 1) if self.open_end else (self.length,)
        self._refuse_too_many(sum(prod(map(len, allowed[:length])) for length in lengths), self.length - 1)
        out = []
        for length in lengths:
            sequences = [self._ended(sequence) for sequence in product(*allowed[:length])]
            if not sequences:
                break
            distances = self._distances(np.array(sequences), self.second)[:, :length]
            kept = (distances <= self.tolerance).all(axis=1)
            out += [(float(distances[k].mean()), sequences[k]) for k in np.flatnonzero(kept)]
        return out

    def _ended(self, tokens: tuple[int, ...]) -> tuple[int, ...]:
        """Mark the positions behind a sequence's end."""
        return tokens + (-1,) * (self.length - len(tokens))

    def _refuse_too_many(self, count: int, place: int) -> None:
        """Raise `TranscriptError` if more sequences would be tried at a position than `_MOST_TRIED`."""
        if count > _MOST_TRIED:
            shown = str(count) if count < _NAMED else f"more than {_NAMED}"
            raise TranscriptError(
                f"{shown} sequences would have to be tried at position {place}, beyond {_MOST_TRIED}: the spans select "
                "too little"
            )

    def _distances(self, sequences: Array, name: str) -> Array:
        """Return the distance (sequences, length) of a map's inputs from its span."""
        parts = range(0, len(sequences), _BATCH)
        return np.concatenate(
            [self.spans[name].distances(self._inputs(sequences[k : k + _BATCH], name)) for k in parts]
        )

    def _inputs(self, sequences: Array, name: str) -> Array:
        """Return the inputs (sequences, length, width) of a map."""
        return self.sites.inputs(torch.as_tensor(sequences))[name]
