"""Inputs and layers that transformer models have are audited: attention in one piece, views of inputs, left padding."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from securefed import audit_training
from securefed._auditing.training.attacked_network import attacked_network
from securefed._auditing.training.local_training import TorchTraining, TrainedRows
from securefed._auditing.training.model_inputs import InputLayout
from securefed._auditing.training.token_inputs import TokenInputs, token_inputs
from tests.combinations import first_ones

LOSS = nn.CrossEntropyLoss()


class Patches(nn.Module):
    """A classifier of four patches of four numbers, whose attention is computed in one piece."""

    def __init__(self) -> None:
        super().__init__()
        self.entry, self.output = nn.Linear(4, 12), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.entry(x.reshape(-1, 1, 4, 4)).chunk(3, dim=-1)
        found: Tensor = self.output(nn.functional.scaled_dot_product_attention(query, key, value).mean(dim=(1, 2)))
        return found


def test_a_search_differentiates_twice_through_attention() -> None:
    torch.manual_seed(0)
    training = TorchTraining(Patches(), LOSS, None)
    network = attacked_network(training, training.state, torch.zeros(1, 16))
    point = network.flatten(training.state)
    x = torch.rand(2, 16).requires_grad_()
    sent = network.plain.gradient(point, x, torch.tensor([0, 1]), torch.full((2,), 0.5))
    (slope,) = torch.autograd.grad(sent.square().sum(), x)
    assert slope.abs().max() > 0


def test_a_step_may_view_named_inputs_in_another_shape() -> None:
    x = {"input_ids": torch.ones(3, 4).long(), "labels": torch.ones(3, 2).long()}
    layout = InputLayout.of(x)
    given = layout.unpack(layout.pack(x))
    assert {name: value.view(-1).shape for name, value in given.items()} == {"input_ids": (12,), "labels": (6,)}


VOCABULARY, LENGTH = 64, 5


class Summed(nn.Module):
    """A classifier of the mean vector of the tokens in use; a second part shares the table that the first one reads."""

    def __init__(self, padding: int | None = None) -> None:
        super().__init__()
        self.shared = nn.Embedding(VOCABULARY, 8, padding_idx=padding)
        self.encoder = nn.ModuleDict({"tokens": nn.Embedding(VOCABULARY, 8, padding_idx=padding)})
        self.encoder["tokens"].weight = self.shared.weight
        self.head = nn.Linear(8, 3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        mask = attention_mask[:, :, None].to(self.head.weight.dtype)
        found: Tensor = self.head((self.encoder["tokens"](input_ids) * mask).sum(dim=1) / mask.sum(dim=1))
        return found


def texts(rows: int, seed: int, shortest: int = 2) -> tuple[dict[str, Tensor], Tensor]:
    """Rows of 2 to 5 tokens, filled up on the left."""
    drawn = torch.Generator().manual_seed(seed)
    lengths = torch.randint(shortest, LENGTH + 1, (rows, 1), generator=drawn)
    mask = (torch.arange(LENGTH) >= LENGTH - lengths).long()
    ids = torch.randint(1, VOCABULARY, (rows, LENGTH), generator=drawn)
    return {"input_ids": ids * mask, "attention_mask": mask}, torch.randint(0, 3, (rows,), generator=drawn)


def descend(rate: float) -> Callable[[nn.Module, dict[str, Tensor], Tensor], None]:
    def step(model: nn.Module, x: dict[str, Tensor], y: Tensor) -> None:
        optimiser = torch.optim.SGD(model.parameters(), lr=rate)
        LOSS(model(**x), y).backward()
        optimiser.step()

    return step


def found(model: nn.Module, rate: float = 0.1, shortest: int = 2) -> TokenInputs | None:
    x, y = texts(40, 2, shortest)
    layout = InputLayout.of(x)
    return token_inputs(TorchTraining(model, LOSS, descend(rate), layout=layout), TrainedRows(layout.pack(x), y))


def test_padding_in_front_of_rows_is_no_secret() -> None:
    text = found(Summed())
    assert text is not None
    assert (text.padding, text.front, text.blind_end) == (0, True, False)
    assert text.table == "shared.weight"  # the name that the model's parameters list it under


def test_a_token_that_is_never_trained_hides_no_last_token() -> None:
    """Rows of one length hold no padding; the first token that they lack is the one that the table never trains."""
    text = found(Summed(padding=0), shortest=LENGTH)
    assert text is not None
    assert not text.blind_end


@pytest.mark.parametrize(("kind", "rate"), first_ones([(torch.bfloat16, 0.3), (torch.float32, 0.1)]))
def test_tokens_behind_padding_are_told_in_either_precision(kind: torch.dtype, rate: float) -> None:
    """In bfloat16 an entry of a vector moves by a few units of its last place at most."""
    torch.manual_seed(0)
    clients = [texts(2, seed) for seed in range(3)]
    options = {"population": texts(60, 9), "seeds": 2, "seconds": 8.0, "view": ["server"]}
    report = audit_training(Summed().to(kind), LOSS, descend(rate), clients, **options)
    (cell,) = [cell for cell in report.cells if cell.secret == "tokens"]
    assert cell.leakage.low > 0.8
    assert any("text/spans: padding stands in front of the texts" in reason for reason in report.skipped)


class Tagger(nn.Module):
    """Scores for every token."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.head = nn.Embedding(VOCABULARY, 8), nn.Linear(8, 3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        found: Tensor = self.head(self.token(input_ids))
        return found


def test_labels_of_every_token_are_named_as_not_attacked() -> None:
    def loss(scores: Tensor, tags: Tensor) -> Tensor:
        return LOSS(scores.flatten(0, 1), tags.flatten())

    def step(model: nn.Module, x: dict[str, Tensor], y: Tensor) -> None:
        loss(model(**x), y).backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()

    rows = [texts(2, seed)[0] for seed in range(2)]
    clients = [(x, torch.where(x["attention_mask"] == 1, x["input_ids"] % 3, -100)) for x in rows]
    report = audit_training(Tagger(), loss, step, clients, seeds=1, seconds=2.0, view=["server"])
    assert any("training/last layer: rows have several labels each" in reason for reason in report.skipped)
