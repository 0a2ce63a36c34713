"""Which row has which target: read off the first layer with the rows, counted in the last one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice, product
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from securefed import Array
from securefed.attacks import InversionEffort, invert
from securefed.attacks._networks import module_inversion
from securefed.attacks._networks.first_layer import FirstLayerEvidence
from securefed.attacks._networks.flat_network import FlatNetwork
from securefed.attacks._networks.gradient_matching import GradientMatching
from securefed.attacks._networks.last_layer_labels import plausible_label_counts
from securefed.attacks.scores import sample_error
from tests.combinations import first_ones

EFFORT = InversionEffort(restarts=1, evaluations=50)
CLASSES = 4


def losses(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(output, target, reduction="none")


def squares(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (output - target).square().mean(dim=1)


def network(*last: nn.Module) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(20, 200), nn.ReLU(), *last).double()


def rows(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(count)
    labels = torch.randint(CLASSES, (count,), generator=generator)
    return torch.randn(count, 20, generator=generator, dtype=torch.float64), labels


def gradient(model: nn.Module, loss: torch.Tensor) -> list[torch.Tensor]:
    return list(torch.autograd.grad(loss, list(model.parameters())))


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each message that was simulated."""
    seen: list[int] = []
    relative = GradientMatching.relative

    def counted(self: GradientMatching, found: Array) -> float:
        seen.append(len(found))
        return relative(self, found)

    monkeypatch.setattr(GradientMatching, "relative", counted)
    return seen


@pytest.mark.parametrize("known", first_ones([False, True]))
@pytest.mark.parametrize(
    "last",
    [
        lambda: (nn.Linear(200, CLASSES),),
        lambda: (nn.Linear(200, CLASSES, bias=False),),
        lambda: (nn.Linear(200, CLASSES), nn.Tanh()),
        lambda: (nn.Linear(200, 3), nn.Linear(3, CLASSES)),
    ],
    ids=["linear", "no bias", "not linear", "narrower than the batch"],
)
def test_rows_get_their_labels_in_one_solve(
    last: Callable[[], tuple[nn.Module, ...]], known: bool, simulated: list[int]
) -> None:
    torch.manual_seed(2)  # of 150 draws of the last layer two leave rows that this batch's search does not separate
    model, (x, y) = network(*last()), rows(7)
    assert len(y.unique()) < len(y)  # labels come twice
    found, labels = invert(
        model, losses, gradient(model, losses(model(x), y).mean()), rows=7, row_shape=(20,), classes=CLASSES,
        labels=y.numpy() if known else None, effort=EFFORT,
    )  # fmt: skip
    assert found.stage == "separation"
    assert len(simulated) == 1
    np.testing.assert_array_equal(labels, y.numpy() if known else np.sort(y.numpy()))
    for label in range(CLASSES):
        own = found.rows[labels == label]
        assert sample_error(own, x[y == label].numpy()) < 1e-8


def test_rows_get_their_real_targets(simulated: list[int]) -> None:
    model, (x, _) = network(nn.Linear(200, 2)), rows(5)
    aims = torch.rand(5, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    sent = gradient(model, squares(model(x), aims).mean())
    found, _ = invert(model, squares, sent, rows=5, row_shape=(20,), targets=aims.numpy(), effort=EFFORT)
    assert len(simulated) == 1
    np.testing.assert_allclose(found.rows, x.numpy(), atol=1e-8)  # in the order of the targets


def test_a_single_row_without_a_bias_at_the_logits_gets_its_label() -> None:
    model, (x, _) = network(nn.Linear(200, CLASSES, bias=False)), rows(1)
    sent = gradient(model, losses(model(x), torch.tensor([2])).mean())
    found, labels = invert(model, losses, sent, rows=1, row_shape=(20,), classes=CLASSES, effort=EFFORT)
    assert (found.stage, labels.tolist()) == ("ratio", [2])


def softmax(seed: int) -> tuple[nn.Module, list[torch.Tensor], torch.Tensor, torch.Tensor]:
    torch.manual_seed(seed)
    model, generator = nn.Linear(12, 6).double(), torch.Generator().manual_seed(seed)
    x = torch.rand(4, 12, generator=generator, dtype=torch.float64)
    y = torch.randint(6, (4,), generator=generator).sort()[0]
    return model, gradient(model, losses(model(x), y).mean()), x, y


def counted(model: nn.Linear, sent: list[torch.Tensor]) -> list[tuple[int, ...]]:
    parts = (*sent, model.weight.detach(), model.bias.detach())
    return [tuple(n.tolist()) for n in plausible_label_counts(4, *(part.numpy() for part in parts))]


def test_counts_that_the_gradient_allows_hold_the_true_one_and_come_by_distance() -> None:
    for seed in range(20):
        model, sent, _, y = softmax(seed)
        found = counted(model, sent)  # type: ignore[arg-type]
        assert len(set(found)) == len(found) < 100  # of 126
        assert tuple(np.bincount(y.numpy(), minlength=6).tolist()) in found
        assert {sum(number) for number in found} == {4}
    values = np.array([1.4, 0.3, 2.3])
    # a bias of zero embeddings: the estimate is -3 gb + 3 p, p uniform
    nothing = np.zeros((3, 2))
    near = list(islice(plausible_label_counts(4, nothing, (1 / 3 - values / 4), nothing, np.zeros(3)), 5))
    distances = [float(np.square(number - values).sum()) for number in near]
    allowed = [n for n in product(range(5), repeat=3) if sum(n) == 4 and n[0] >= 1 and n[2] >= 1]  # n > -4 gb
    np.testing.assert_allclose(distances, sorted(float(np.square(n - values).sum()) for n in allowed)[:5])


def test_a_wrong_first_count_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """The estimate is right on all of these; the wrong count that comes first is one that the gradient allows."""
    right, passed = module_inversion.plausible_label_counts, []

    def exchanged(*parts: Any, **named: Any) -> Iterator[np.ndarray]:
        allowed = list(right(*parts, **named))
        passed.append(len(allowed) > 1)
        yield from (*allowed[1:2], allowed[0], *allowed[2:])

    monkeypatch.setattr(module_inversion, "plausible_label_counts", exchanged)
    for seed in range(6):
        model, sent, x, y = softmax(seed)
        found, labels = invert(model, losses, sent, rows=4, row_shape=(12,), classes=6, effort=EFFORT)
        np.testing.assert_array_equal(labels, y.numpy())
        assert sample_error(found.rows, x.numpy()) < 1e-6
    assert sum(passed) >= 2


class Upright(nn.Linear):
    """A linear layer that takes its rows as columns."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.weight @ x.T + self.bias[:, None]).T


@pytest.mark.parametrize("layer", [nn.Linear, Upright])
def test_residuals_tell_the_row_of_each_target_only(layer: type[nn.Linear]) -> None:
    torch.manual_seed(1)
    model, (x, y) = nn.Sequential(layer(20, 200), nn.ReLU(), nn.Linear(200, CLASSES)).double(), rows(5)
    flat = FlatNetwork.of(model, losses)
    point = flat.flatten(dict(model.named_parameters()))
    seen = flat.flatten(dict(zip(flat.shapes, gradient(model, losses(model(x), y).mean()), strict=True)))
    first = FirstLayerEvidence.of(flat, point, seen, y[:1], 5, 20, np.random.default_rng(0))
    assert first is not None
    residuals = np.sort(first.residuals(torch.arange(CLASSES)), axis=1)
    assert residuals[:, 0].max() < 1e-8
    assert residuals[:, 1].min() > 0.1
