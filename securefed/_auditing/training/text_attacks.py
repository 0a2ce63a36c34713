"""Recover tokens and sequences of text models: which tokens occur, then whole rows by span checks.

The attacks read the change that local training makes of the model. A client's row is a sequence of token numbers,
(length,). The vector of a token in the embedding table has a gradient only where the token occurs; elsewhere it moves
by weight decay and the like, as it does when the attacker runs the local step on rows without the token. So a vector
that moves otherwise belongs to a token that occurs (`occurring_tokens`).

Sequences are built from these tokens by DAGER (Petrov et al. 2024; `find_sequences`): the gradient of a linear map is a
sum of products with its inputs, so its rows span them, if there are fewer positions in all rows than the map is wide.
A candidate sequence whose inputs lie in the span occurs. This needs one gradient step.

`training_seed_run` calls `read_tokens` and `text_rows`, and the curve of sizes (`measure_sizes`) `recover_sequences`.
In `AttackInputs`, `facts` is what runs of the local step showed, such as the rate c of a change = -c gradient. It is
`None` where there is no step to run, as of a recorded loop; the rate then counts as 1, as only spans are compared.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import torch

from securefed._auditing.training.attack_inputs import AttackInputs
from securefed._auditing.training.local_training import TrainedRows
from securefed._auditing.training.token_inputs import TokenInputs
from securefed._tensors import Array
from securefed.attacks._base import Reconstruction
from securefed.attacks._text.sequence_search import FoundSequences, find_sequences
from securefed.attacks._text.span_sites import SpanSites
from securefed.attacks._text.token_occurrence import EmbeddingReference, occurring_tokens
from securefed.errors import TranscriptError

_PARITIES: Final = (0, 1, 0)
"""Runs of the step that the embedding is compared with: on sequences of even token numbers alone, of odd ones, and of
even ones again. Every token is absent from one run at least, and the odd ones from two; if an absent token's vector
differs between these two, it moves by the data even where the token does not occur, and the attack refuses."""


def read_tokens(inputs: AttackInputs) -> list[Reconstruction]:
    """Tell which tokens occur.

    Raises:
        TranscriptError: the model has no embedding of the tokens, or vectors of tokens that do not occur move by the
            data too, so that movement tells nothing (as where the output layer shares the table).
    """
    return [Reconstruction("tokens", _occurring(inputs, _text_of(inputs)))]


def _occurring(inputs: AttackInputs, text: TokenInputs) -> Array:
    """Return (vocabulary,) 1 for tokens that occur, 0 for others; without a step to run, all vectors that moved count.

    The runs that it compares with are on as many rows as the clients have, with random tokens of one parity.
    """
    if text.table not in inputs.training.parameters:
        raise TranscriptError(f"the embedding {text.table!r} is not trained, so that its vectors tell of no token")
    table = inputs.observed.state[text.table]
    references = []
    for number, parity in enumerate(_PARITIES if inputs.facts is not None else ()):
        rng = inputs.rng(70 + number)  # 70, 71, 72: streams of random numbers of their own
        rows, tokens = inputs.draw(rng, inputs.count), np.arange(parity, len(table), 2)
        drawn = torch.as_tensor(rng.choice(tokens, tuple(text.of(rows.x).shape))).to(rows.x.dtype)
        absent = ~np.isin(np.arange(len(table)), drawn.numpy())
        filled = TrainedRows(text.builder(rows.x)(drawn), rows.y)
        references.append(EmbeddingReference(inputs.simulate(filled, 70 + number)[text.table], absent))
    epsilon = float(torch.finfo(table.dtype).eps)
    return occurring_tokens(table.double().numpy(), inputs.observed.change[text.table], references, epsilon)


def recover_sequences(inputs: AttackInputs) -> FoundSequences:
    """Recover the token sequences behind a change.

    Raises:
        TranscriptError: the step is no single gradient, padding stands in front of the texts, or as `find_sequences`.
    """
    if inputs.facts is not None and not inputs.one_gradient:
        raise TranscriptError(f"span checks need one gradient step, and the step is {inputs.facts.kind}")
    text = _text_of(inputs)
    if text.front:
        raise TranscriptError("padding stands in front of the texts, and span checks need it behind them")
    table = text.table
    state, change = inputs.observed.state, inputs.observed.change
    try:
        candidates = np.flatnonzero(_occurring(inputs, text))
    except TranscriptError:  # movement tells nothing: every token is a candidate
        candidates = np.arange(len(state[table]))
    trained = [part for part in inputs.training.parameters if part in change]
    rate = inputs.facts.rate if inputs.facts is not None else 1.0
    return find_sequences(
        SpanSites(inputs.training.received(state), text.builder(inputs.prior.x)),
        {part: state[part].double().numpy() for part in trained},
        {part: -change[part] / rate for part in trained},
        rows=inputs.count,
        length=text.of(inputs.prior.x).shape[1],
        candidates=candidates,
        vocabulary=len(state[table]),
        scale=1.0 / rate,
        epsilon=float(torch.finfo(state[table].dtype).eps),
        open_end=text.padding is not None or text.blind_end or text.blind_cut,
    )


def text_rows(inputs: AttackInputs) -> list[Reconstruction]:
    """Recover sequences as an estimate of the rows; it counts as explaining the message where all rows are found."""
    found = recover_sequences(inputs)
    # allowed: number of sequences whose inputs lie in the spans, of which `rows` are kept
    diagnostics = {"explained": len(found.tokens) == inputs.count, "allowed": found.allowed}
    return [Reconstruction("samples", found.tokens.astype(np.float64), diagnostics=diagnostics)]


def _text_of(inputs: AttackInputs) -> TokenInputs:
    if inputs.text is None:
        raise TranscriptError("the model has no embedding that the rows' tokens index")
    if inputs.text.table not in inputs.observed.change:
        raise TranscriptError(f"the messages lack the embedding {inputs.text.table!r}")
    return inputs.text
