"""Inputs and layers that transformer models have are audited: attention in one piece, views of inputs, left padding."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from securefed._auditing.training.attacked_network import attacked_network
from securefed._auditing.training.local_training import TorchTraining
from securefed._auditing.training.model_inputs import InputLayout

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
