"""Find the tokens in a text model's rows, and build rows from candidate tokens.

A row of text is a sequence of token numbers; named inputs such as an attention mask may stand beside it. Sequences
shorter than the rest are filled up with a padding token, which models look away from: it leaves no trace in what they
learn. Nor does a sequence's last token where the model learns to predict the next one, as nothing follows it. What
leaves no trace is no secret of the audit. The attacks on text (`text_attacks`) try sequences of tokens, and
`TokenInputs.builder` states what stands beside them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import torch
from torch import Tensor

from securefed._auditing.training.local_training import TorchTraining, TrainedRows
from securefed._auditing.training.lookup_tables import share_of_rows
from securefed._tensors import Array
from securefed.attacks._text.span_sites import SpanSites
from securefed.attacks._text.token_occurrence import movement_tolerance
from securefed.errors import DataError

_PROBED: Final = 4
"""Rows on which the step is run to see whether a token leaves a trace."""
_REPEATED: Final = 256
"""Rows on which the step is run instead if it fails on those, or trains nothing: more than most batches have."""
_TRIED: Final = 3
"""Tokens that are tried as padding, the most frequent ones first."""


@dataclass(frozen=True)
class TokenInputs:
    """Where tokens stand in packed rows.

    Attributes:
        table: name of the embedding that the tokens index.
        vocabulary: number of tokens.
        columns: of a row, those that hold the tokens.
        beside: columns of each further input with one number a position, such as an attention mask.
        padding: token that fills rows up and leaves no trace; `None` without one.
        front: whether padding stands in front of the text; else behind it.
        blind_end: whether the last token in front of padding leaves no trace either.
        blind_cut: whether that of a row without padding leaves none. Texts that were cut to the length may lack the end
            that is predicted behind others.
    """

    table: str
    vocabulary: int
    columns: slice
    beside: tuple[slice, ...]
    padding: int | None = None
    front: bool = False
    blind_end: bool = False
    blind_cut: bool = False

    def of(self, x: Tensor) -> Tensor:
        """Return the tokens (rows, length) in packed rows."""
        return x[:, self.columns]

    def traced(self, x: Tensor) -> Tensor:
        """Return the tokens (rows, length) in packed rows, with -1 in place of those that leave no trace."""
        tokens = self.of(x)
        used = self._in_use(tokens)
        blind = torch.where(used[:, -1:], self.blind_cut, self.blind_end)
        followed = used.flip(1).cumsum(1).flip(1) > 1  # a later position is in use
        used = used & (followed | ~blind)
        return torch.where(used, tokens.long(), -1)

    def shares(self, x: Tensor) -> Array:
        """Return (vocabulary,) the share of packed rows in which each token occurs and leaves a trace."""
        # -1, which stands for no token, becomes the place 0
        return share_of_rows(self.traced(x).numpy() + 1, self.vocabulary + 1)[1:]

    def builder(self, known: Tensor) -> Callable[[Tensor], Tensor]:
        """Make the function from tokens (n, length), -1 behind a sequence's end, to packed rows that hold them.

        What stands beside a token is what known rows have most often at that position where it is in use, and beside
        padding what they have there where it is not. Numbers that belong to no position are those of the first known
        row.

        Args:
            known: packed rows like the attacked ones.
        """
        in_use = self._in_use(self.of(known))
        filled = [_usual(known[:, place], in_use) for place in self.beside]
        empty = [_usual(known[:, place], ~in_use) for place in self.beside]

        def build(tokens: Tensor) -> Tensor:
            out, used = known[:1].repeat(len(tokens), 1), tokens >= 0
            out[:, self.columns] = torch.where(used, tokens, self.padding or 0).to(out.dtype)
            for place, within, behind in zip(self.beside, filled, empty, strict=True):
                out[:, place] = torch.where(used, within, behind)
            return out

        return build

    def _in_use(self, tokens: Tensor) -> Tensor:
        """Return for each position whether it holds text, and not padding that goes on to the row's end."""
        if self.padding is None:
            return torch.ones_like(tokens, dtype=torch.bool)
        return ~(_ending(tokens.flip(1), self.padding).flip(1) if self.front else _ending(tokens, self.padding))


def token_inputs(training: TorchTraining, rows: TrainedRows) -> TokenInputs | None:
    """Find the input that indexes the model's largest embedding, and its padding; `None` where rows are no tokens.

    Raises:
        DataError: the step fails on these rows; see `TorchTraining.change`.
    """
    row = rows.x[:1]
    if row.is_floating_point() or row.ndim != 2:
        return None
    layout = training.layout
    named = {"": slice(0, row.shape[1])} if layout is None else layout.columns
    shapes = {"": tuple(row.shape[1:])} if layout is None else layout.shapes
    sites = SpanSites(training.received(training.state), lambda _: row)  # of whatever tokens, the one row
    found: dict[str, tuple[int, str]] = {}
    for name, place in named.items():
        table = sites.embedding(row[:, place]) if len(shapes[name]) == 1 else None
        if table is not None:
            found[name] = len(training.state[table]), table
    if not found:
        return None
    tokens = max(found, key=lambda name: found[name][0])
    alike = tuple(named[name] for name in named if name != tokens and shapes[name] == shapes[tokens])
    text = TokenInputs(found[tokens][1], found[tokens][0], named[tokens], alike)
    if training.step is None or not _moves(training, text, rows):
        if (declared := _declared_padding(training, text)) is None:
            return text
        first, last = ((text.of(rows.x)[:, place] == declared).any() for place in (0, -1))
        return replace(text, padding=declared, front=bool(first and not last))
    for front in (False, True):
        side = replace(text, front=front)
        if (padding := _padding(training, side, rows)) is not None:
            text = replace(side, padding=padding)
            break
    cut = text._in_use(text.of(rows.x))[:, -1]
    return replace(
        text,
        blind_end=_is_end_blind(training, text, rows.part(~cut)),
        blind_cut=_is_end_blind(training, text, rows.part(cut)),
    )


def _declared_padding(training: TorchTraining, text: TokenInputs) -> int | None:
    """Return the token whose vector the embedding never trains; `None` without one."""
    return getattr(training.model.get_submodule(text.table.rpartition(".")[0]), "padding_idx", None)


def _moves(training: TorchTraining, text: TokenInputs, rows: TrainedRows) -> bool:
    """Whether the step changes the embedding: one that stays as it is cannot show which tokens leave a trace."""
    return text.table in training.parameters and bool(_change(training, rows.part(slice(0, _PROBED)))[text.table].any())


def _change(training: TorchTraining, rows: TrainedRows) -> dict[str, Array]:
    """Run the step on a few rows; where it does nothing with so few, on the same rows over and over.

    Loaders that drop an incomplete batch give a step nothing to do.
    """
    try:
        return training.change(training.state, rows, 0)
    except DataError:
        places = torch.arange(_REPEATED) % len(rows)
        return training.change(training.state, rows.part(places), 0)


def _padding(training: TorchTraining, text: TokenInputs, rows: TrainedRows) -> int | None:
    """Return the token that ends (or begins) rows twice in a row and leaves no trace; `None` without one.

    The step is run on rows that end so, and on the same rows with another token in its place: if the token's vector
    moves alike, as by weight decay, the model does not look at it.
    """
    tokens = text.of(rows.x).flip(1) if text.front else text.of(rows.x)
    twice = torch.nonzero(tokens[:, -1] == tokens[:, -2])[:, 0] if tokens.shape[1] > 1 else torch.zeros(0).long()
    ends, counts = torch.unique(tokens[twice, -1], return_counts=True)
    for token in ends[torch.argsort(counts, descending=True)][:_TRIED].tolist():
        chosen = rows.part(twice[tokens[twice, -1] == token][:_PROBED])
        other = chosen.x.clone()
        text.of(other)[~replace(text, padding=token)._in_use(text.of(other))] = (token + 1) % text.vocabulary
        if not _moves_otherwise(training, text, chosen, other)[token]:
            return int(token)
    return None


def _is_end_blind(training: TorchTraining, text: TokenInputs, rows: TrainedRows) -> bool:
    """Whether another last token in some rows changes nothing of what the step does to the embedding.

    Without rows no last token is blind.
    """
    if not len(rows):
        return False
    chosen = rows.part(slice(0, _PROBED))
    used, other = text._in_use(text.of(chosen.x)), chosen.x.clone()
    last = used.shape[1] - 1 - used.flip(1).long().argmax(dim=1)
    rest = {text.padding, _declared_padding(training, text), *text.of(chosen.x).flatten().tolist()}
    fresh = next((token for token in range(text.vocabulary) if token not in rest), None)
    if fresh is None:
        return False
    text.of(other)[torch.arange(len(last)), last] = fresh
    return not _moves_otherwise(training, text, chosen, other)[fresh]


def _moves_otherwise(training: TorchTraining, text: TokenInputs, rows: TrainedRows, other: Tensor) -> Array:
    """Return (vocabulary,) 1 for tokens whose vectors the step moves otherwise on other inputs, 0 for the rest."""
    sent, reference = (_change(training, TrainedRows(x, rows.y))[text.table] for x in (rows.x, other))
    table = training.state[text.table]
    apart = np.linalg.norm(sent - reference, axis=1)
    absent = ~np.isin(np.arange(text.vocabulary), torch.cat([text.of(rows.x), text.of(other)]).numpy())
    epsilon = float(torch.finfo(table.dtype).eps)
    return np.asarray(apart > movement_tolerance(table.double().numpy(), apart[absent], epsilon), np.float64)


def _ending(tokens: Tensor, token: int) -> Tensor:
    """Return for each position of (rows, length) tokens whether one token alone stands there and behind it.

    Elsewhere the same token may be a part of the text: some models begin texts with the one that fills them up.
    """
    return (tokens == token).long().flip(1).cumprod(1).flip(1).bool()


def _usual(values: Tensor, where: Tensor) -> Tensor:
    """Return (length,) the most frequent number of each position among chosen rows; of all positions where none is."""
    overall = values[where].mode().values if bool(where.any()) else values.flatten().mode().values
    out = overall.repeat(values.shape[1])
    for position in range(values.shape[1]):
        chosen = values[where[:, position], position]
        if len(chosen):
            out[position] = chosen.mode().values
    return out
