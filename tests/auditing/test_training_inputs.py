"""An audit of a torch loop names what it cannot audit, and compares members with other rows of their class."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from securefed import audit_training
from securefed._auditing.own.global_seed import global_seed
from securefed._auditing.training import training_seed_run
from securefed._auditing.training.attacked_network import attacked_network
from securefed._auditing.training.local_training import TorchTraining, TrainedRows
from securefed._auditing.training.membership_scores import Records, alike_pairs, without_rows
from securefed._auditing.training.training_seed_run import TrainingSeedRun
from securefed.errors import ConfigError, DataError

FEATURES, CLASSES = 5, 3
LOSS = nn.CrossEntropyLoss()


def rows(count: int = 4, features: int = FEATURES, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, features, generator=generator), torch.arange(count) % CLASSES


def clients() -> list[tuple[Tensor, Tensor]]:
    return [rows(seed=seed) for seed in range(3)]


def dense() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.ReLU(), nn.Linear(8, CLASSES))


def descend(model: nn.Module, x: Tensor, y: Tensor) -> None:
    slopes = torch.autograd.grad(LOSS(model(x), y), list(model.parameters()))
    with torch.no_grad():
        for value, slope in zip(model.parameters(), slopes, strict=True):
            value.sub_(0.1 * slope)


class Scores:
    """An object that holds the scores, as models of language libraries return it."""

    def __init__(self, logits: Tensor) -> None:
        self.logits = logits


class Wrapped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = dense()

    def forward(self, x: Tensor) -> Scores:
        return Scores(self.inner(x))


class WithoutScores(Wrapped):
    def forward(self, x: Tensor) -> list[Tensor]:  # type: ignore[override]
        return [super().forward(x).logits]


class Rotated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.phase = dense(), nn.Parameter(torch.ones(1, dtype=torch.cfloat))

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) * self.phase.abs()


def frozen() -> nn.Module:
    return dense().requires_grad_(False)


def transposed(model: nn.Module, x: Tensor, y: Tensor) -> nn.Module:
    model[0].weight = nn.Parameter(model[0].weight.T.contiguous())  # type: ignore[index, union-attr, operator]
    return model


def dividing(output: Tensor, target: Tensor) -> Tensor:
    raise ZeroDivisionError("division by zero")


REFUSED: dict[str, tuple[type[Exception], str, dict[str, Any]]] = {
    "nothing trains": (DataError, "requires_grad is False for all", {"model": frozen}),
    "complex": (DataError, "'phase' is of type torch.complex64", {"model": Rotated}),
    "an object": (
        DataError,
        "returns list; attacks need one tensor, or an object whose `logits`",
        {"model": WithoutScores},
    ),
    "a loss of the object": (
        DataError,
        "of an object, to its `logits`",
        {"model": Wrapped, "loss": lambda out, y: LOSS(out.logits, y)},
    ),
    "loss raises": (DataError, r"loss\(model\(x\), y\).*raised ZeroDivisionError", {"loss": dividing}),
    "another shape": (DataError, "'0.weight' in another shape", {"local_step": transposed}),
    "widths": (ConfigError, "client 1 has rows of the shapes", {"clients": [rows(), rows(features=4), rows()]}),
    "population": (ConfigError, "population has rows of the shapes", {"population": rows(features=4)}),
    "too few classes": (ConfigError, "hold the label 2; give 3", {"classes": 2}),
    "classes as text": (ConfigError, "classes", {"classes": "3"}),
    "half a seed": (ConfigError, "seeds", {"seeds": 2.5}),
}


@pytest.mark.parametrize("case", list(REFUSED))
def test_what_cannot_be_audited_is_refused_by_name(case: str) -> None:
    error, words, given = REFUSED[case]
    wanted: dict[str, Any] = {"model": dense, "loss": LOSS, "local_step": descend, "clients": clients()} | given
    first = wanted.pop("model")(), *(wanted.pop(name) for name in ("loss", "local_step", "clients"))
    with pytest.raises(error, match=words):
        audit_training(*first, **{"seeds": 1, "seconds": 1.0} | wanted)


def test_copies_of_a_member_are_no_other_records() -> None:
    (x, y), (other, classes) = rows(4), rows(4, seed=1)
    drawn = TrainedRows(torch.cat([other, x[:2], x[:1]]), torch.cat([classes, y[:2], y[:1] + 1]))
    left = without_rows(drawn, TrainedRows(x, y))
    assert torch.equal(left.x, torch.cat([other, x[:1]]))  # the same input of another class is another record
    assert torch.equal(left.y, torch.cat([classes, y[:1] + 1]))


def test_no_score_tells_members_from_others_by_their_class() -> None:
    """Members are of class 0 and the others mostly of class 1: the class alone would tell them apart."""
    rng = np.random.default_rng(0)
    own, absent = np.zeros(10, int), np.repeat([0, 1], [12, 88])
    places, order = rng.permutation(10), rng.permutation(100)
    inside, outside = alike_pairs(own, absent, places, order)
    assert len(inside) == 10
    assert len(set(outside)) == 10
    np.testing.assert_array_equal(absent[outside], own[inside])
    assert (absent[order[:10]] != 0).mean() > 0.5  # a draw without regard to class would not do


def test_members_without_a_partner_of_their_class_are_left_out() -> None:
    inside, outside = alike_pairs(np.array([0, 1, 1]), np.array([1, 2]), np.arange(3), np.arange(2))
    assert (inside.tolist(), outside.tolist()) == ([1], [0])
    inside, outside = alike_pairs(None, None, np.arange(3), np.arange(2))
    assert (inside.tolist(), outside.tolist()) == ([0, 1], [0, 1])  # targets that are no classes


@pytest.mark.exhaustive
def test_an_audit_scores_members_against_other_rows_of_their_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The population holds copies of every client's rows, and other rows that are mostly of one class."""
    seen: list[Records] = []

    def watched(inputs: Any, records: Records, first: int) -> Any:
        seen.append(records)
        raise DataError("watched")

    monkeypatch.setattr(training_seed_run, "shadow_ratios", watched)
    given = clients()
    other, _ = rows(40, seed=9)
    classes = torch.tensor([0] * 34 + [1, 2] * 3)
    population = torch.cat([*(x for x, _ in given), other]), torch.cat([*(y for _, y in given), classes])
    audit_training(dense(), LOSS, descend, given, population=population, seeds=3, seconds=20.0)
    assert seen
    for records in seen:
        assert torch.equal(records.inside.y, records.outside.y) and len(records.inside) > 1
        target = next(x for x, _ in given if any(torch.equal(row, records.inside.x[0]) for row in x))
        assert not any(torch.equal(row, own) for row in records.outside.x for own in target)


class Recurrent(nn.Module):
    """A classifier of short series, whose recurrent layer drops numbers between its two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrent = nn.GRU(3, 4, num_layers=2, dropout=0.5, batch_first=True)
        self.output = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.output(self.recurrent(x)[0][:, -1])
        return found


def test_the_dropout_of_a_recurrent_layer_is_off_in_the_attacks_objective() -> None:
    """Else the fit of rows would chase a new function at every step."""
    training = TorchTraining(Recurrent(), LOSS, None)
    network = attacked_network(training, training.state, torch.zeros(1, 2, 3))
    x, y, weights = torch.linspace(-1, 1, 30).reshape(5, 6), torch.tensor([0, 1, 2, 0, 1]), torch.full((5,), 0.2)
    values = {float(network.objective(training.state, x, y, weights)) for _ in range(4)}
    assert len(values) == 1


class OnAnotherDevice(Tensor):
    """Numbers that cannot be computed with before they are copied to the CPU, and have no double precision there."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in (Tensor.double, Tensor.sub, Tensor.__sub__, Tensor.__rsub__, Tensor.numpy):
            raise RuntimeError("Expected all tensors to be on the same device")
        found = super().__torch_function__(function, types, args, kwargs or {})
        return found.as_subclass(Tensor) if function is Tensor.cpu else found


def test_a_step_may_leave_the_model_on_another_device() -> None:
    model = dense()

    def step(given: nn.Module, x: Tensor, y: Tensor) -> nn.Module:
        descend(given, x, y)
        for layer in (given[0], given[2]):
            layer.weight = nn.Parameter(layer.weight.detach().as_subclass(OnAnotherDevice))
        return given

    found, expected = (
        TorchTraining(model, LOSS, one).change(model.state_dict(), TrainedRows(*rows()), 0) for one in (step, descend)
    )
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value)


def test_a_seeded_step_leaves_the_generators_of_cuda_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for CUDA with two devices; `torch.manual_seed` seeds them too."""
    states = {0: torch.tensor([7], dtype=torch.uint8), 1: torch.tensor([8], dtype=torch.uint8)}
    before = {device: state.clone() for device, state in states.items()}
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(states))
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: states[device].clone())
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, device: states.update({device: state}))
    monkeypatch.setattr(torch.cuda, "manual_seed_all", lambda seed: states.update(dict.fromkeys(states, seed)))
    with global_seed(3):
        assert set(states.values()) == {3}
    assert {device: state.item() for device, state in states.items()} == {d: s.item() for d, s in before.items()}


class Pixels(nn.Module):
    """Takes pictures in bytes; or reads categories, which the output follows by no degrees."""

    def __init__(self, *, categories: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(256, 1) if categories else None
        self.inner = nn.Sequential(nn.Linear(FEATURES, 8), nn.Sigmoid(), nn.Linear(8, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x.float() / 255 if self.table is None else self.table(x.long().unsqueeze(1)).flatten(1))


def _bytes(seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (2, FEATURES), generator=generator).to(torch.uint8), torch.arange(2)


@pytest.mark.exhaustive
def test_pictures_in_bytes_are_recovered_like_others() -> None:
    given = {"seeds": 2, "seconds": 10.0, "view": ["server"]}
    report = audit_training(Pixels(), LOSS, descend, [_bytes(seed) for seed in range(3)], **given)
    (cell,) = [cell for cell in report.cells if cell.secret == "samples"]
    assert cell.leakage.mean > 0.9


def test_rows_that_the_output_follows_by_no_degrees_are_not_searched() -> None:
    given = {"seeds": 2, "seconds": 5.0, "view": ["server"]}
    report = audit_training(Pixels(categories=True), LOSS, descend, [_bytes(seed) for seed in range(3)], **given)
    assert any("training/rows" in reason and "by degrees" in reason for reason in report.skipped)


def test_rows_of_a_sum_count_where_the_null_cannot_be_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step may fail on some draws of the population, such as those without a class."""

    def fails(*_: Any) -> None:
        raise DataError("local_step raised ValueError on 2 rows: no row of class 1")

    monkeypatch.setattr(TrainingSeedRun, "_null", fails)
    options: dict[str, Any] = {"population": rows(20, seed=9), "seeds": 2, "seconds": 5.0, "view": ["sum only"]}
    report = audit_training(dense(), LOSS, descend, [rows(1, seed=seed) for seed in range(2)], **options)
    (cell,) = [cell for cell in report.cells if cell.secret == "pooled samples"]
    assert cell.leakage.seeds == 2
