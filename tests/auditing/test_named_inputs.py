"""Rows whose inputs have names, and models that return an object, are audited like any; padding hides no sequence."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from securefed import audit_training
from securefed._auditing.engine.audit_report import Report
from securefed._auditing.training.local_training import TorchTraining, TrainedRows
from securefed._auditing.training.model_inputs import InputLayout, present_as_tensors
from securefed._auditing.training.token_inputs import TokenInputs, token_inputs
from securefed.errors import ConfigError, DataError
from tests.attacks.test_text import Transformer
from tests.combinations import first_ones

LOSS = nn.CrossEntropyLoss()
PADDING, VOCABULARY, LENGTH = 0, 64, 5
TYPES = (torch.int64, torch.bool, torch.float16, torch.bfloat16, torch.float32, torch.float64)


@given(
    st.lists(st.tuples(st.sampled_from(TYPES), st.lists(st.integers(1, 3), max_size=2)), min_size=1, max_size=4),
    st.integers(1, 4),
)
def test_packed_inputs_come_back_as_they_were(inputs: list[tuple[torch.dtype, list[int]]], rows: int) -> None:
    generator = torch.Generator().manual_seed(0)
    x = {
        f"input {place}": (1e6 * torch.randn((rows, *shape), generator=generator)).to(kind)
        for place, (kind, shape) in enumerate(inputs)
    }
    layout = InputLayout.of(x)
    found = layout.unpack(layout.pack(x))
    assert list(found) == list(x)
    for name, value in x.items():
        assert found[name].dtype == value.dtype
        assert torch.equal(found[name], value)


def test_a_single_named_input_keeps_its_shape() -> None:
    x = {"pixel_values": torch.rand(2, 3, 4, 4)}
    assert InputLayout.of(x).pack(x).shape == (2, 3, 4, 4)


class Output:
    """An object that holds scores beside other things, as models of language libraries return it."""

    def __init__(self, logits: Tensor) -> None:
        self.logits, self.hidden = logits, None


class Classifier(nn.Module):
    """A decoder that scores the last token in use of each row, which the attention mask tells."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = Transformer(), nn.Linear(VOCABULARY, 3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Output:
        read = self.body(input_ids)  # causal, so that padding on the right changes nothing of what stands before it
        return Output(self.head(read[torch.arange(len(read)), attention_mask.sum(dim=1) - 1]))


def texts(rows: int, seed: int) -> tuple[dict[str, Tensor], Tensor]:
    """Rows of 2 to 5 tokens, filled up on the right."""
    rng = np.random.default_rng(seed)
    ids = torch.as_tensor(rng.integers(1, VOCABULARY, (rows, LENGTH)))
    lengths = torch.as_tensor(rng.integers(2, LENGTH + 1, rows))
    mask = (torch.arange(LENGTH) < lengths[:, None]).long()
    return {"input_ids": ids * mask, "attention_mask": mask}, torch.as_tensor(rng.integers(0, 3, rows))


def descend(model: nn.Module, x: dict[str, Tensor], y: Tensor) -> None:
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    optimiser.zero_grad()
    LOSS(model(**x).logits, y).backward()
    optimiser.step()


def classifier() -> nn.Module:
    torch.manual_seed(0)
    return Classifier().eval()


def audited(**options: Any) -> Report:
    clients = [texts(2, seed) for seed in range(3)]
    settings: dict[str, Any] = {"population": texts(60, 9), "seeds": 2, "seconds": 30.0, "view": ["server"]}
    return audit_training(classifier(), LOSS, descend, clients, **settings | options)


@pytest.fixture(scope="module")
def report() -> Report:
    return audited()


@pytest.mark.exhaustive
@pytest.mark.parametrize(("secret", "attack"), [("tokens", "text/tokens"), ("samples", "text/spans")])
def test_padded_texts_are_read_off_one_gradient(report: Report, secret: str, attack: str) -> None:
    (cell,) = [cell for cell in report.cells if (cell.secret, cell.attack) == (secret, attack)]
    assert cell.verdict.word == "exposed"
    assert cell.leakage.low > 0.999
    assert cell.null_leakage.high < 0.5  # another client's message tells nothing of these texts


@pytest.mark.exhaustive
def test_classes_of_texts_are_attacked_too(report: Report) -> None:
    assert "labels" in {cell.secret for cell in report.cells}


def test_the_step_gets_the_inputs_by_name_and_in_their_types() -> None:
    x, y = texts(3, 1)
    given_to_step: list[dict[str, Tensor]] = []

    def step(model: nn.Module, x: dict[str, Tensor], y: Tensor) -> None:
        given_to_step.append(x)
        descend(model, x, y)

    layout = InputLayout.of(x)
    training = TorchTraining(classifier(), LOSS, step, layout=layout, named_scores=True)
    training.change(training.state, TrainedRows(layout.pack(x), y), 0)
    (seen,) = given_to_step
    assert {name: value.dtype for name, value in seen.items()} == layout.types
    assert all(torch.equal(seen[name], x[name]) for name in x)


def test_attacks_see_the_callers_model_with_tensors_in_and_out() -> None:
    x, _ = texts(3, 1)
    layout, model = InputLayout.of(x), classifier()
    seen = present_as_tensors(deepcopy(model), layout)
    assert torch.equal(deepcopy(seen)(layout.pack(x)), model(**x).logits)
    assert list(seen.state_dict()) == list(model.state_dict())
    assert isinstance(seen, Classifier)
    assert type(model) is Classifier


def trained(step: Any = descend) -> tuple[TorchTraining, TrainedRows]:
    x, y = texts(40, 2)
    layout = InputLayout.of(x)
    return TorchTraining(classifier(), LOSS, step, layout=layout, named_scores=True), TrainedRows(layout.pack(x), y)


def test_tokens_are_told_from_what_stands_beside_them() -> None:
    training, rows = trained()
    text = token_inputs(training, rows)
    assert text == TokenInputs("body.token.weight", VOCABULARY, slice(0, 5), (slice(5, 10),), PADDING)
    build = text.builder(rows.x)
    assert build(torch.tensor([[7, 8, 9, -1, -1]])).tolist() == [[7, 8, 9, PADDING, PADDING, 1, 1, 1, 0, 0]]
    assert text.traced(rows.x[:1]).tolist() == [[t if t else -1 for t in rows.x[0, :5].tolist()]]


def predict_next(model: nn.Module, x: dict[str, Tensor], y: Tensor) -> None:
    """Learn to predict each next token of the text; nothing follows the last one."""
    ids = x["input_ids"]
    following = torch.where(ids[:, 1:] == PADDING, -100, ids[:, 1:])
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    optimiser.zero_grad()
    nn.functional.cross_entropy(model.body(ids)[:, :-1].flatten(0, 1), following.flatten()).backward()
    optimiser.step()


def test_a_last_token_from_which_nothing_is_predicted_is_no_secret() -> None:
    training, rows = trained(predict_next)
    text = token_inputs(training, rows)
    assert (text.padding, text.blind_end, text.blind_cut) == (PADDING, True, True)
    short = next(row for row in rows.x if row[2] != PADDING and row[3] == PADDING)
    assert text.traced(short[None]).tolist() == [[*short[:2].tolist(), -1, -1, -1]]


def test_texts_cut_to_the_length_end_otherwise_than_shorter_ones() -> None:
    """Behind a short text its end is predicted from its last token, and behind one that was cut nothing is."""

    def with_ends(model: nn.Module, x: dict[str, Tensor], y: Tensor) -> None:
        ids = x["input_ids"]
        following = torch.where(ids[:, :-1] == PADDING, -100, ids[:, 1:])  # the first padding is the end of a text
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
        optimiser.zero_grad()
        nn.functional.cross_entropy(model.body(ids)[:, :-1].flatten(0, 1), following.flatten()).backward()
        optimiser.step()

    training, rows = trained(with_ends)
    text = token_inputs(training, rows)
    assert (text.padding, text.blind_end, text.blind_cut) == (PADDING, False, True)
    short = next(row for row in rows.x if row[2] != PADDING and row[3] == PADDING)
    cut = next(row for row in rows.x if row[4] != PADDING)
    assert text.traced(short[None]).tolist() == [[*short[:3].tolist(), -1, -1]]
    assert text.traced(cut[None]).tolist() == [[*cut[:4].tolist(), -1]]


def test_a_token_that_begins_texts_may_fill_them_up_too() -> None:
    training, rows = trained()
    rows.x[:, 0] = PADDING
    text = token_inputs(training, rows)
    assert text.padding == PADDING
    assert text.traced(torch.tensor([[PADDING, 7, PADDING, 8, PADDING]])).tolist() == [[PADDING, 7, PADDING, 8, -1]]


class Masked(nn.Module):
    """A decoder that looks away from what its mask leaves out, and scores the last token."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = Transformer(), nn.Linear(VOCABULARY, 3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Output:
        body, places = self.body, torch.arange(LENGTH)
        hidden = (places[None, :] > places[:, None]) | (attention_mask == 0)[:, None, :]
        hidden &= places[None, :] != places[:, None]  # else a row of padding would look at nothing
        entered = body.token(input_ids) + body.place(places)
        return Output(self.head(body.output(body.layers(entered, mask=hidden.repeat_interleave(4, dim=0)))[:, -1]))


@pytest.mark.exhaustive
def test_padding_in_front_of_texts_is_no_secret_and_not_searched_behind() -> None:
    def moved(rows: int, seed: int) -> tuple[dict[str, Tensor], Tensor]:
        x, y = texts(rows, seed)
        return {name: value.flip(1) for name, value in x.items()}, y

    torch.manual_seed(0)
    options: dict[str, Any] = {"population": moved(60, 9), "seeds": 2, "seconds": 10.0, "view": ["server"]}
    report = audit_training(Masked().eval(), LOSS, descend, [moved(2, seed) for seed in range(3)], **options)
    (cell,) = [cell for cell in report.cells if cell.secret == "tokens"]
    assert cell.leakage.low > 0.999
    assert any("text/spans: padding stands in front" in reason for reason in report.skipped)


def test_a_last_token_that_leaves_a_trace_is_no_padding() -> None:
    def reads_all(model: nn.Module, x: dict[str, Tensor], y: Tensor) -> None:
        descend(model, {"input_ids": x["input_ids"], "attention_mask": torch.ones_like(x["attention_mask"])}, y)

    text = token_inputs(*trained(reads_all))
    assert (text.padding, text.blind_end, text.blind_cut) == (None, False, False)


def test_an_embedding_that_the_step_leaves_as_it_is_shows_no_padding() -> None:
    """Else what it never tells of, and other maps may, would be no secret."""

    def head_alone(model: nn.Module, x: dict[str, Tensor], y: Tensor) -> None:
        optimiser = torch.optim.SGD(model.head.parameters(), lr=0.1)  # type: ignore[union-attr]
        optimiser.zero_grad()
        LOSS(model(**x).logits, y).backward()
        optimiser.step()

    text = token_inputs(*trained(head_alone))
    assert (text.padding, text.blind_end, text.blind_cut) == (None, False, False)


def test_padding_is_found_where_a_step_needs_more_rows_than_a_few() -> None:
    def whole_batches(model: nn.Module, x: dict[str, Tensor], y: Tensor) -> None:
        for start in range(0, len(y) - 15, 16):  # as a loader that drops the last batch
            descend(model, {name: value[start : start + 16] for name, value in x.items()}, y[start : start + 16])

    text = token_inputs(*trained(whole_batches))
    assert (text.padding, text.blind_end, text.blind_cut) == (PADDING, False, False)


def test_tokens_in_bytes_are_marked_as_others() -> None:
    text = TokenInputs("table", VOCABULARY, slice(0, 3), (), padding=PADDING)
    assert text.traced(torch.tensor([[5, 6, PADDING]], dtype=torch.uint8)).tolist() == [[5, 6, -1]]


@pytest.mark.exhaustive
def test_a_frozen_embedding_tells_of_no_token() -> None:
    model = classifier()
    model.body.token.requires_grad_(False)
    clients = [texts(2, seed) for seed in range(2)]
    report = audit_training(model, LOSS, descend, clients, seeds=2, seconds=5.0, view=["server"])
    assert "tokens" not in {cell.secret for cell in report.cells}
    assert any("'body.token.weight' is not trained" in reason for reason in report.skipped)


def _without_mask(rows: int, seed: int) -> tuple[dict[str, Tensor], Tensor]:
    x, y = texts(rows, seed)
    return {"input_ids": x["input_ids"]}, y


def _short(rows: int, seed: int) -> tuple[dict[str, Tensor], Tensor]:
    x, y = texts(rows, seed)
    return x | {"attention_mask": x["attention_mask"][:-1]}, y


class Collected(torch.utils.data.Dataset[Any]):
    """A data set of the rows of one client."""


def _longer(rows: int, seed: int) -> tuple[dict[str, Tensor], Tensor]:
    x, y = texts(rows, seed)
    return {name: torch.cat([value, value], dim=1) for name, value in x.items()}, y


REFUSED = {
    "another length": (DataError, 'texts padded to one length: `tokenizer.*"max_length"', [texts(2, 0), _longer(2, 1)]),
    "a data set": (DataError, "got the data set Collected: .*default_collate", [Collected(), Collected()]),
    "a data set as x": (DataError, "client 0: x must .* got the data set", [(Collected(), torch.ones(2))] * 2),
    "a loader": (DataError, "got the loader DataLoader", [torch.utils.data.DataLoader(Collected(), sampler=[0])] * 2),
    "labels among the inputs": (DataError, "got dict: take the targets out of it", [{"labels": torch.ones(2)}] * 2),
    "an argument that is missing": (
        DataError, "an entry of the dict x: .*`labels`", [({"input_ids": torch.ones(2, 5).long()}, torch.ones(2))] * 2
    ),
    "another client's names": (DataError, "client 1 has as x a dict of input_ids", [texts(2, 0), _without_mask(2, 1)]),
    "a tensor": (DataError, "client 1 has as x one tensor", [texts(2, 0), (torch.ones(2, 5), torch.ones(2))]),
    "a mask too short": (DataError, "got input_ids 2, attention_mask 1, y 2", [texts(2, 0), _short(2, 1)]),
    "an empty dict": (ConfigError, "must name the model's inputs", [({}, torch.ones(2)), ({}, torch.ones(2))]),
    "an argument that the model lacks": (
        DataError, "unexpected keyword argument 'ids'", [({"ids": torch.ones(2, 5)}, torch.zeros(2))] * 2
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", list(REFUSED))
def test_rows_that_do_not_fit_are_refused_by_name(case: str) -> None:
    error, words, clients = REFUSED[case]
    with pytest.raises(error, match=words):
        audit_training(classifier(), LOSS, descend, clients, seeds=1)


def test_inputs_of_whole_numbers_are_not_searched() -> None:
    """Beside real inputs there are no tokens to read; the search for rows says what it cannot vary."""

    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.place, self.layer = nn.Embedding(4, 3), nn.Linear(6, 2)

        def forward(self, numbers: Tensor, kind: Tensor) -> Tensor:
            return self.layer(torch.cat([numbers, self.place(kind)], dim=1))

    def step(model: nn.Module, x: dict[str, Tensor], y: Tensor) -> None:
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
        LOSS(model(**x), y).backward()
        optimiser.step()

    def rows(seed: int) -> tuple[dict[str, Tensor], Tensor]:
        drawn = torch.Generator().manual_seed(seed)
        kinds = torch.randint(0, 4, (3,), generator=drawn)
        return {"numbers": torch.rand(3, 3, generator=drawn), "kind": kinds}, kinds % 2

    report = audit_training(Mixed(), LOSS, step, [rows(0), rows(1)], seeds=2, seconds=10.0, view=["server"])
    assert any("cannot vary whole numbers by degrees: kind" in reason for reason in report.skipped)
    assert "membership" in {cell.secret for cell in report.cells}


@pytest.mark.exhaustive
def test_the_null_of_pooled_rows_holds_none_of_them() -> None:
    """A sum with one client's change exchanged still gives the others' rows away: 2 in 3 of them here."""
    report = audited(view=["sum only"])
    (cell,) = [cell for cell in report.cells if cell.secret == "pooled samples"]
    assert cell.leakage.mean > 0.6
    assert cell.null_leakage.mean < 0.2
    assert cell.verdict.word in ("exposed", "partial")


class Recurrent(nn.Module):
    """Reads so many entries of each row as its length says, as `pack_padded_sequence` does; it takes no length of 0."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.out = nn.GRU(3, 6, batch_first=True), nn.Linear(6, 2)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths.reshape(-1), batch_first=True, enforce_sorted=False)
        scores: Tensor = self.out(self.cell(packed)[1][-1])
        return scores


@pytest.mark.parametrize("shape", first_ones([((),), ((1,),)]))
def test_a_model_that_takes_sequence_lengths_is_audited(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)

    def rows() -> tuple[dict[str, Tensor], Tensor]:
        return {"x": torch.randn(3, 4, 3), "lengths": torch.randint(1, 5, (3, *shape))}, torch.randint(0, 2, (3,))

    def step(model: nn.Module, x: Any, y: Tensor) -> None:
        LOSS(model(**x), y).backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()

    found = audit_training(Recurrent(), LOSS, step, [rows() for _ in range(3)], seeds=1, seconds=1, view=["server"])
    assert any(cell.secret == "labels" for cell in found.cells)
