"""Span checks recover token sequences exactly, and the embedding tells which tokens occur, whatever the optimiser."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from securefed import Array
from securefed.attacks._text.sequence_search import _Search, find_sequences
from securefed.attacks._text.span_sites import SpanSites, span_of
from securefed.attacks._text.token_occurrence import EmbeddingReference, occurring_tokens
from securefed.errors import TranscriptError

VOCABULARY, LENGTH, WIDTH = 64, 5, 48
EPSILON = float(torch.finfo(torch.float32).eps)


class Transformer(nn.Module):
    """A small transformer on tokens, with random weights."""

    def __init__(self, *, causal: bool = True) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.1, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.output, self.causal = nn.Linear(WIDTH, VOCABULARY), causal

    def forward(self, tokens: Tensor) -> Tensor:
        entered = self.token(tokens) + self.place(torch.arange(tokens.shape[1]))
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1]) if self.causal else None
        return self.output(self.layers(entered, mask=mask))


@dataclass(frozen=True)
class Sent:
    """Rows, the model, and the gradient that the rows send, read off a change of the model in single precision."""

    tokens: Tensor
    model: Transformer
    weights: dict[str, Array]
    gradients: dict[str, Array]

    def search(self, rows: int) -> Array:
        sites = SpanSites(self.model)
        found = find_sequences(
            sites, self.weights, self.gradients, rows=rows, length=LENGTH, candidates=np.arange(VOCABULARY),
            vocabulary=VOCABULARY, scale=10.0, epsilon=EPSILON,
        )  # fmt: skip
        return found.tokens


def sent(rows: int, *, causal: bool = True, seed: int = 0) -> Sent:
    torch.manual_seed(seed)
    model = Transformer(causal=causal)
    for part in model.modules():
        part.training = not isinstance(part, nn.Dropout)
        if isinstance(part, nn.MultiheadAttention):
            part.dropout = 0.0
    tokens = torch.randint(0, VOCABULARY, (rows, LENGTH + 1))
    loss = nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    slopes = torch.autograd.grad(loss, list(model.parameters()))
    weights = {name: value.detach() for name, value in model.named_parameters()}
    changes = {
        name: (value - 0.1 * slope) - value for (name, value), slope in zip(weights.items(), slopes, strict=True)
    }
    return Sent(
        tokens[:, :-1],
        model,
        {name: value.double().numpy() for name, value in weights.items()},
        {name: change.double().numpy() / -0.1 for name, change in changes.items()},
    )


@pytest.mark.parametrize(("rows", "causal"), [(1, True), (4, True), (7, True), (1, False), (2, False)])
def test_all_rows_of_a_batch_are_found(rows: int, causal: bool) -> None:
    observed = sent(rows, causal=causal, seed=rows)
    found = observed.search(rows)
    assert {tuple(row) for row in found.tolist()} == {tuple(row) for row in observed.tokens.tolist()}


class Separate(nn.Module):
    """One head of causal attention whose query, key and value are maps of their own, between an embedding and a head.

    With `transposed` they are those of GPT-2 in Hugging Face's transformers: weights (width, out).
    """

    def __init__(self, *, transposed: bool) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        maps = [Conv1D(WIDTH, WIDTH) if transposed else nn.Linear(WIDTH, WIDTH) for _ in range(4)]
        self.query, self.key, self.value, self.after = maps
        self.output = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        entered = self.token(tokens) + self.place(torch.arange(tokens.shape[1]))
        attention = nn.functional.scaled_dot_product_attention
        mixed = attention(self.query(entered), self.key(entered), self.value(entered), is_causal=True)
        return self.output(torch.relu(self.after(entered + mixed)))


class Conv1D(nn.Module):
    def __init__(self, nf: int, nx: int) -> None:
        super().__init__()
        self.nf, self.nx = nf, nx
        self.weight = nn.Parameter(torch.randn(nx, nf) / nx**0.5)

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


@dataclass(frozen=True)
class Separated:
    """Rows, and a search for them in the gradient of a loss at the first positions."""

    tokens: Tensor
    sites: SpanSites
    weights: dict[str, Array]
    gradients: dict[str, Array]

    @classmethod
    def of(cls, model: nn.Module, positions: int) -> Separated:
        tokens = torch.randint(1, VOCABULARY, (2, LENGTH))
        loss = nn.functional.cross_entropy(model(tokens)[:, :positions].flatten(0, 1), tokens[:, :positions].flatten())
        named = dict(model.named_parameters())
        slopes = torch.autograd.grad(loss, list(named.values()), allow_unused=True, materialize_grads=True)
        gradients = {name: slope.double().numpy() for name, slope in zip(named, slopes, strict=True)}
        weights = {name: value.detach().double().numpy() for name, value in named.items()}
        return cls(tokens, SpanSites(model, lambda given: given.clamp(min=0)), weights, gradients)

    def rank(self, name: str) -> int:
        oriented = (self.sites.oriented(name, values[name]) for values in (self.gradients, self.weights))
        return span_of(*oriented, 0.0, EPSILON).rank

    def found(self, *, open_end: bool) -> list[list[int]]:
        return find_sequences(
            self.sites, self.weights, self.gradients, rows=2, length=LENGTH, candidates=np.arange(VOCABULARY),
            vocabulary=VOCABULARY, scale=0.0, epsilon=EPSILON, open_end=open_end,
        ).tokens.tolist()  # fmt: skip


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("positions", [3, LENGTH])
def test_a_map_that_lacks_inputs_is_not_used(transposed: bool, positions: int) -> None:
    """The first position attends to itself alone, so that its query has no gradient: its rank is one less a row.

    Of three positions with a loss the rest of a row leaves no trace.
    """
    torch.manual_seed(3)
    sent = Separated.of(Separate(transposed=transposed), positions)
    assert (sent.rank("query.weight"), sent.rank("value.weight")) == (2 * (positions - 1), 2 * positions)
    wanted = [[*row[:positions], *[-1] * (LENGTH - positions)] for row in sent.tokens.tolist()]
    assert sorted(sent.found(open_end=positions < LENGTH)) == sorted(wanted)


def test_the_first_token_over_and_over_is_not_taken_for_a_row() -> None:
    """Without numbers of positions it causes the first input alone, which lies in the span."""
    torch.manual_seed(3)
    model = Separate(transposed=False)
    nn.init.zeros_(model.place.weight)
    sent = Separated.of(model, LENGTH)
    repeated = sent.tokens[:, :1].repeat(1, LENGTH)
    name = "after.weight"
    span = span_of(sent.gradients[name], sent.weights[name], 0.0, EPSILON)
    assert span.distances(sent.sites.inputs(repeated)[name]).max() < 1e-3  # the control
    assert sorted(sent.found(open_end=False)) == sorted(sent.tokens.tolist())


class Masked(Transformer):
    """An encoder that looks away from token 0 and reads the mean over the rest."""

    def forward(self, tokens: Tensor) -> Tensor:
        used = tokens > 0
        entered = self.token(tokens) + self.place(torch.arange(tokens.shape[1]))
        read = self.layers(entered, src_key_padding_mask=~used) * used[..., None]
        return self.output(read.sum(dim=1) / used.sum(dim=1, keepdim=True))


@pytest.mark.parametrize("used", [2, 3, LENGTH])
def test_an_encoders_row_is_found_with_its_length(used: int) -> None:
    torch.manual_seed(used)
    model = Masked(causal=False)
    sites = SpanSites(model, lambda given: given.clamp(min=0))  # it also turns dropout off
    tokens = torch.randint(1, VOCABULARY, (1, LENGTH)) * (torch.arange(LENGTH) < used)
    loss = nn.functional.cross_entropy(model(tokens), torch.tensor([1]))
    slopes = torch.autograd.grad(loss, list(model.parameters()))
    named = list(model.named_parameters())
    found = find_sequences(
        sites,
        {name: value.detach().double().numpy() for name, value in named},
        {name: slope.double().numpy() for (name, _), slope in zip(named, slopes, strict=True)},
        rows=1, length=LENGTH, candidates=np.arange(1, VOCABULARY), vocabulary=VOCABULARY, scale=0.0, epsilon=EPSILON,
        open_end=True,
    )  # fmt: skip
    assert found.tokens.tolist() == [[*tokens[0, :used].tolist(), *[-1] * (LENGTH - used)]]


def test_another_gradient_gives_none_of_the_rows() -> None:
    observed, other = sent(3, seed=1), sent(3, seed=1)
    swapped = Sent(observed.tokens, observed.model, observed.weights, sent(3, seed=2).gradients)
    assert not {tuple(r) for r in swapped.search(3).tolist()} & {tuple(r) for r in observed.tokens.tolist()}
    assert len(other.search(3)) == 3  # the control


def test_more_tokens_than_the_maps_are_wide_are_refused() -> None:
    with pytest.raises(TranscriptError, match=r"has rank 4\d of 48: more tokens than it is wide"):
        sent(WIDTH // LENGTH + 1).search(WIDTH // LENGTH + 1)


def test_more_sequences_than_a_number_can_count_are_refused() -> None:
    """An encoder that reads long texts and adds no positions in front of its first map allows all tokens everywhere."""
    search = _Search(SpanSites(Transformer()), "first", "second", {}, 512, 0.1, open_end=False)
    with pytest.raises(TranscriptError, match="the spans select too little"):
        search.whole([[1, 2, 3, 4]] * 512)


def test_inputs_that_rounding_hides_are_named() -> None:
    """Finding nothing then says nothing of the rows."""
    observed = sent(1)
    name = "layers.layers.0.self_attn.in_proj_weight"

    def search(kept: int) -> None:
        left, values, right = np.linalg.svd(observed.gradients[name], full_matrices=False)
        rounded = {name: (left[:, :kept] * values[:kept]) @ right[:kept]}
        find_sequences(
            SpanSites(observed.model), observed.weights, observed.gradients | rounded, rows=1, length=LENGTH,
            candidates=np.unique(observed.tokens), vocabulary=VOCABULARY, scale=10.0, epsilon=EPSILON,
        )  # fmt: skip

    with pytest.raises(TranscriptError, match=r"5 tokens occur, and the gradient of .* shows 2 inputs"):
        search(2)
    with pytest.raises(TranscriptError, match="is lost in the rounding"):
        search(0)


def test_the_rank_of_a_span_is_that_of_the_inputs() -> None:
    observed = sent(4)
    name = "layers.layers.0.linear1.weight"
    span = span_of(observed.gradients[name], observed.weights[name], 10.0, EPSILON)
    assert span.rank == 4 * LENGTH
    inputs = SpanSites(observed.model).inputs(observed.tokens)[name]
    assert span.distances(inputs).max() < 1e-4
    assert span.distances(np.random.default_rng(0).normal(size=(100, WIDTH))).min() > 0.3


def test_maps_are_told_apart_by_what_their_inputs_depend_on() -> None:
    decoder, encoder = (SpanSites(Transformer(causal=c)).dependence(LENGTH, VOCABULARY) for c in (True, False))
    assert decoder["layers.layers.0.self_attn.in_proj_weight"] == (False, False)
    assert decoder["layers.layers.0.linear1.weight"] == (True, False)
    assert encoder["layers.layers.0.linear1.weight"] == (True, True)
    assert SpanSites(Transformer()).embedding(torch.tensor([[1, 2, 3, 4, 0]])) == "token.weight"


def references(step: type[torch.optim.Optimizer], **options: float) -> tuple[Array, list[EmbeddingReference], Array]:
    """Train one table on three sets of tokens; return the table, the runs as references, and the last run's tokens."""
    table = torch.randn(12, 4, generator=torch.Generator().manual_seed(0))
    runs = []
    for seed, tokens in enumerate(([0, 2, 4], [1, 3, 5, 7], [1, 2, 9])):
        embedding = nn.Embedding.from_pretrained(table.clone(), freeze=False)
        optimiser = step(embedding.parameters(), **options)  # type: ignore[call-arg]
        target = torch.randn(len(tokens), 4, generator=torch.Generator().manual_seed(seed))
        for _ in range(3):
            optimiser.zero_grad()
            (embedding(torch.tensor(tokens)) - target).square().mean().backward()
            optimiser.step()
        absent = ~np.isin(np.arange(12), tokens)
        runs.append(EmbeddingReference((embedding.weight - table).detach().double().numpy(), absent))
    return table.double().numpy(), runs, (~runs[-1].absent).astype(float)


@pytest.mark.parametrize(
    ("step", "options"),
    [
        (torch.optim.SGD, {"lr": 0.1}),
        (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}),
        (torch.optim.Adam, {"lr": 1e-3, "weight_decay": 0.01}),
        (torch.optim.AdamW, {"lr": 1e-3}),
    ],
)
def test_the_tokens_that_occur_are_read_off_the_embedding(step, options) -> None:
    table, runs, truth = references(step, **options)
    np.testing.assert_array_equal(occurring_tokens(table, runs[2].change, runs[:2], EPSILON), truth)


def test_weight_decay_without_a_reference_looks_like_every_token() -> None:
    table, runs, truth = references(torch.optim.SGD, lr=0.1, weight_decay=0.01)
    assert occurring_tokens(table, runs[2].change, [], EPSILON).all()
    table, runs, truth = references(torch.optim.SGD, lr=0.1)
    np.testing.assert_array_equal(occurring_tokens(table, runs[2].change, [], EPSILON), truth)  # the control


def test_rows_that_move_by_the_data_without_their_token_are_refused() -> None:
    table, runs, _ = references(torch.optim.SGD, lr=0.1)
    shared = [EmbeddingReference(run.change + 0.1 * place, run.absent) for place, run in enumerate(runs)]
    with pytest.raises(TranscriptError, match="shares the table"):
        occurring_tokens(table, shared[2].change, shared[:2], EPSILON)
    never = [EmbeddingReference(run.change, run.absent & (np.arange(12) != 9)) for run in runs[:2]]
    with pytest.raises(TranscriptError, match="1 tokens occur in every run"):
        occurring_tokens(table, runs[2].change, never, EPSILON)


class Recurrent(nn.Module):
    """A language model whose recurrent layer drops numbers between its two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, WIDTH)
        self.recurrent = nn.LSTM(WIDTH, WIDTH, num_layers=2, dropout=0.5, batch_first=True)
        self.output = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.output(self.recurrent(self.token(tokens))[0])


def test_the_dropout_of_a_recurrent_layer_is_off_where_its_model_is_probed() -> None:
    """Else the inputs behind it would change from pass to pass, and seem to depend on later tokens."""
    assert SpanSites(Recurrent()).dependence(LENGTH, VOCABULARY)["output.weight"] == (True, False)
