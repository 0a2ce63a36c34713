"""What is read off a network's first layer: identities, and refusals to guess."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from securefed.attacks._networks import sparse_columns
from securefed.attacks._networks.flat_network import FlatNetwork
from securefed.attacks._networks.last_layer_labels import plausible_label_counts
from securefed.attacks._networks.row_separation import FirstLayerGradient, ratio, row_space, separate
from securefed.attacks.scores import sample_error
from tests.combinations import first_ones


def slopes(rows: int, outputs: int, rng: np.random.Generator, active: float) -> np.ndarray:
    """(rows, outputs) as a ReLU layer's: zero where a row is cut off."""
    return rng.normal(size=(rows, outputs)) * (rng.random((rows, outputs)) < active)


def entering(rows: int, outputs: int, seed: int, active: float = 0.5) -> tuple[FirstLayerGradient, np.ndarray]:
    rng = np.random.default_rng(seed)
    x, d = rng.random((rows, 30)), slopes(rows, outputs, rng, active)
    return FirstLayerGradient(d.T @ x, d.sum(axis=0)), x


def test_the_ratio_is_the_row() -> None:
    seen, x = entering(1, 7, seed=0)
    found = ratio(seen)
    assert found is not None
    np.testing.assert_allclose(found, x, rtol=1e-12)
    assert ratio(FirstLayerGradient(seen.weight, None)) is None


@pytest.mark.parametrize(("rows", "outputs"), first_ones([(2, 40), (5, 100), (8, 200), (10, 400)], 3))
def test_rows_behind_relu_are_separated(rows: int, outputs: int) -> None:
    seen, x = entering(rows, outputs, seed=rows)
    found = separate(seen, rows, np.random.default_rng(0))
    assert found is not None
    assert sample_error(found, x) < 1e-8


def test_rounded_messages_are_separated_too() -> None:
    seen, x = entering(6, 200, seed=1)
    rounded = FirstLayerGradient(seen.weight.astype(np.float32), np.asarray(seen.bias, np.float32))
    found = separate(rounded, 6, np.random.default_rng(0))
    assert found is not None
    assert sample_error(found, x) < 1e-4


def test_slopes_without_zeros_are_not_separated() -> None:
    seen, _ = entering(5, 100, seed=2, active=1.1)
    assert separate(seen, 5, np.random.default_rng(0), starts=500) is None


def test_dependent_rows_are_not_separated() -> None:
    rng = np.random.default_rng(3)
    x = rng.random((4, 30))
    x[3] = x[2]
    d = slopes(4, 100, rng, 0.5)
    assert separate(FirstLayerGradient(d.T @ x, d.sum(axis=0)), 4, rng) is None


def test_the_span_holds_every_row_and_nothing_else() -> None:
    seen, x = entering(5, 100, seed=4, active=1.1)
    basis = row_space(seen, 8)
    assert basis.shape == (5, 30)  # of 8 rows asked for, 5 are there
    np.testing.assert_allclose(x @ basis.T @ basis, x, atol=1e-10)


def dense(activation: type[nn.Module], *, bias: bool = True) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 20, bias=bias), activation(), nn.Linear(20, 5)).double()


def losses(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(output, target, reduction="none")


@pytest.mark.parametrize("bias", [True, False])
def test_probes_find_where_rows_enter_and_logits_leave(bias: bool) -> None:
    model = dense(nn.Tanh, bias=bias)
    network = FlatNetwork.of(model, losses)
    point = network.flatten(dict(model.named_parameters()))
    first, last = network.first_layer(point, 12, torch.tensor([0])), network.logit_layer(point, 12, 5)
    assert first is not None
    assert (first.weight, first.bias) == ("0.weight", "0.bias" if bias else None)
    assert last is not None
    assert (last.weight, last.bias) == ("2.weight", "2.bias")


def test_a_probe_finds_no_linear_entrance_behind_a_nonlinearity() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Tanh(), nn.Linear(12, 5)).double()
    network = FlatNetwork.of(model, losses)
    point = network.flatten(dict(model.named_parameters()))
    assert network.first_layer(point, 12, torch.tensor([0])) is None


@pytest.mark.parametrize("labels", [[3], [0], [0, 1, 1, 4], [2, 2, 2, 2]])
def test_labels_are_counted(labels: list[int]) -> None:
    model = dense(nn.ReLU)
    network = FlatNetwork.of(model, losses)
    point = network.flatten(dict(model.named_parameters()))
    generator = torch.Generator().manual_seed(1)
    x, y = torch.rand(len(labels), 12, generator=generator, dtype=torch.float64), torch.tensor(labels)
    weights = torch.full((len(labels),), 1.0 / len(labels), dtype=torch.float64)
    seen, at = network.split(network.gradient(point, x, y, weights)), network.split(point)
    parts = (seen["2.weight"], seen["2.bias"], at["2.weight"], at["2.bias"])
    found = next(plausible_label_counts(len(labels), *(part.numpy() for part in parts)))
    np.testing.assert_array_equal(found, np.bincount(labels, minlength=5))
    clipped = (0.01 * seen["2.weight"], 0.01 * seen["2.bias"], at["2.weight"], at["2.bias"])
    scaled = next(plausible_label_counts(len(labels), *(part.numpy() for part in clipped), scaled=True))
    np.testing.assert_array_equal(scaled, np.bincount(labels, minlength=5))


def test_rows_found_by_the_last_start_count_though_the_search_is_not_sure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparse_columns, "_COMPLETE_AFTER", 10**9)
    seen, x = entering(9, 150, seed=1)
    found = separate(seen, 9, np.random.default_rng(0), starts=500)
    assert found is not None
    assert sample_error(found, x) < 1e-8
    assert separate(seen, 9, np.random.default_rng(0), starts=1) is None  # 32 starts: not all rows yet


@pytest.mark.parametrize("rows", first_ones([16, 20]))
def test_larger_batches_are_separated_behind_wide_layers(rows: int) -> None:
    """Random sets of outputs, the search before this one, found none of these."""
    seen, x = entering(rows, 1024, seed=rows)
    found = separate(seen, rows, np.random.default_rng(0))
    assert found is not None
    assert sample_error(found, x) < 1e-8


def test_a_known_row_is_left_out_and_the_others_are_found_up_to_a_multiple_of_it() -> None:
    rng = np.random.default_rng(0)
    d, q = slopes(5, 120, rng, 0.5), rng.normal(size=(5, 5))
    columns = sparse_columns.SparseColumns(d.T @ np.linalg.inv(q), 0.0)  # L q_k is the slopes of row k
    columns.found = [(q[:, 2], d[2] == 0.0)]
    directions = columns._deflated(rng)
    overlaps = np.abs((directions / np.linalg.norm(directions, axis=1)[:, None]) @ (q / np.linalg.norm(q, axis=0)))
    assert np.mean(overlaps.max(axis=1) > 1 - 1e-9) > 0.5
    assert not (overlaps[:, 2] > 1 - 1e-9).any()
    assert set(overlaps.argmax(axis=1)) == {0, 1, 3, 4}
