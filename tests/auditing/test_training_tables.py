"""Categories, rows of numbers and categories, and labels of any head are read off an update as by hand."""

from __future__ import annotations

import json
from copy import deepcopy
from functools import cache, partial
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from securefed import audit_training
from securefed._auditing.engine.audit_report import Report
from securefed._auditing.engine.gathering import gather
from securefed._auditing.engine.results import Cell, RunFacts
from securefed._auditing.engine.seed_result import Place, SeedResult, judge_estimate
from securefed._auditing.engine.statistics import FOUND
from securefed._auditing.training import training_seed_run
from securefed._auditing.training.attack_inputs import AttackInputs
from securefed._auditing.training.local_training import TorchTraining, TrainedRows
from securefed._auditing.training.observed_runs import SimulatedRuns
from securefed._auditing.training.reading_attacks import learn_labels
from securefed._auditing.training.step_probe import probe_step
from securefed.attacks import Reconstruction, views
from securefed.attacks._generic import TimeBudget
from securefed.attacks.scores import relative_error
from tests.attacks.test_text import Transformer
from tests.combinations import first_ones

SIZES, NUMBERS, ROWS, CLIENTS = (5, 12, 30), 6, 4, 3
LOSS = nn.BCEWithLogitsLoss()
PACKED = pytest.mark.parametrize("packed", first_ones([False, True]))


class Patients(nn.Module):
    """Reads numbers beside categories, each of which has a table of its own, and returns one logit."""

    def __init__(self, *, bias: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tables = nn.ModuleList([nn.Embedding(size, 4) for size in SIZES])
        self.net = nn.Sequential(nn.Linear(4 * len(SIZES) + NUMBERS, 48, bias=bias), nn.ReLU(), nn.Linear(48, 1))

    def forward(self, numbers: Tensor, kinds: Tensor) -> Tensor:
        vectors = [table(kinds[:, place]) for place, table in enumerate(self.tables)]
        return self.net(torch.cat([*vectors, numbers], dim=1))


class Packed(Patients):
    """The same of rows that are one tensor."""

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x[:, len(SIZES) :], x[:, : len(SIZES)].long())


def patients(rows: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    kinds = torch.stack([torch.randint(0, size, (rows,), generator=generator) for size in SIZES], dim=1)
    numbers = torch.randn(rows, NUMBERS, generator=generator)
    return numbers, kinds, (torch.rand(rows, 1, generator=generator) < 0.4).float()


def pair(rows: int, seed: int, *, packed: bool) -> tuple[Any, Tensor]:
    numbers, kinds, y = patients(rows, seed)
    return (torch.cat([kinds.float(), numbers], dim=1) if packed else {"numbers": numbers, "kinds": kinds}), y


def descend(model: nn.Module, x: Any, y: Tensor, loss: Any = LOSS) -> None:
    trained = [value for value in model.parameters() if value.requires_grad]
    slopes = torch.autograd.grad(loss(model(**x) if isinstance(x, dict) else model(x), y), trained)
    with torch.no_grad():
        for value, slope in zip(trained, slopes, strict=True):
            value.sub_(0.1 * slope)


@cache
def of_patients(packed: bool) -> Report:
    model, known = (Packed if packed else Patients)(), pair(100, 99, packed=packed)
    clients = [pair(ROWS, seed, packed=packed) for seed in range(CLIENTS)]
    return audit_training(model, LOSS, descend, clients, population=known, seeds=CLIENTS, seconds=1.0)


def updated(seed: int) -> dict[str, Tensor]:
    """The change of the model on one client's rows, computed by hand."""
    before, after = Patients(), Patients()
    x, y = pair(ROWS, seed, packed=False)
    descend(after, x, y)
    return {name: after.state_dict()[name] - value for name, value in before.state_dict().items()}


def cells(report: Report, view: str, secret: str) -> dict[str, Cell]:
    return {cell.attack: cell for cell in report.cells if (cell.view, cell.secret) == (view, secret)}


@PACKED
def test_the_categories_of_every_column_are_read_as_by_hand(packed: bool) -> None:
    for seed in range(CLIENTS):
        _, kinds, _ = patients(ROWS, seed)
        change = updated(seed)
        for place in range(len(SIZES)):  # by hand: the rows of the table that moved are the categories
            moved = torch.nonzero(change[f"tables.{place}.weight"].abs().sum(dim=1))[:, 0]
            assert moved.tolist() == sorted(set(kinds[:, place].tolist()))
    found = cells(of_patients(packed), "server", "categories")
    assert set(found) == {f"tables/tables.{place}" for place in range(len(SIZES))}
    for cell in found.values():
        assert cell.leakage.low > 0.999
        assert cell.leakage.seeds == CLIENTS
        assert cell.null_leakage.mean < 0.5
        assert not cell.given_away  # categories alone are not all of a client's data


@PACKED
def test_a_sum_shows_which_categories_occur_at_any_client(packed: bool) -> None:
    mean = sum(updated(seed)["tables.2.weight"] for seed in range(CLIENTS))
    occurring = {int(kind) for seed in range(CLIENTS) for kind in patients(ROWS, seed)[1][:, 2]}
    assert set(torch.nonzero(mean.abs().sum(dim=1))[:, 0].tolist()) == occurring
    cell = cells(of_patients(packed), "sum only", "pooled categories")["tables/tables.2"]
    assert cell.leakage.low > 0.999
    assert cell.verdict.word == "exposed"
    assert cell.owner == "federation"
    assert cells(of_patients(packed), "sum only", "categories")["tables/tables.2"].leakage.mean < 0.5


@PACKED
def test_rows_beside_looked_up_vectors_are_found_at_least_as_by_hand(packed: bool) -> None:
    shares = []
    for seed in range(CLIENTS):
        numbers, _, _ = patients(ROWS, seed)
        change = updated(seed)
        ratios = change["net.0.weight"] / change["net.0.bias"][:, None]  # at an output that one row alone activates
        near = torch.cdist(ratios[:, -NUMBERS:].nan_to_num(1e6), numbers)
        shares.append(int((near.min(dim=0).values < 1e-2).sum()) / ROWS)
    assert np.mean(shares) > 0.4  # so by hand some rows are exact
    (cell,) = cells(of_patients(packed), "server", "samples").values()
    assert cell.verdict.word in FOUND
    # a row that is exact has no error and the others that of the guess: 1 - sqrt(share that is missing)
    assert cell.leakage.mean > np.mean([1 - np.sqrt(1 - share) for share in shares]) - 0.02
    assert cell.null_leakage.mean < 0.05
    assert "1: 100%" in str(of_patients(packed))  # one row a client is exact, numbers and categories


def test_a_table_that_tells_nothing_is_named_with_its_reason() -> None:
    model = Patients()
    model.tables[1].requires_grad_(False)
    clients = [pair(ROWS, seed, packed=False) for seed in range(CLIENTS)]
    report = audit_training(model, LOSS, descend, clients, seeds=1, seconds=1e-6, view="server")
    assert set(cells(report, "server", "categories")) == {"tables/tables.0", "tables/tables.2"}
    said = "tables/tables.1: the table 'tables.1' is not trained"
    assert any(said in reason for reason in report.skipped)


def test_no_word_of_safety_stands_without_the_rows_that_were_not_tested(tmp_path: Any) -> None:
    """A layer without a bias has no closed form, and no search varies categories by degrees."""
    model = Patients(bias=False)
    for table in model.tables:
        table.requires_grad_(False)
    clients = [pair(ROWS, seed, packed=False) for seed in range(CLIENTS)]
    report = audit_training(model, LOSS, descend, clients, seeds=1, seconds=1e-6, view="server")
    said = "A client's rows were not tested: a search cannot vary whole numbers by degrees: kinds"
    report.save(tmp_path)
    page = (tmp_path / "audit.html").read_text().replace("&#39;", "'")
    for text in (str(report), json.loads((tmp_path / "audit.json").read_text())["conclusion"], page):
        assert said in text
        calm = [part for part in text.split(". ") if "No attack here learnt" in part or "no leak was found" in part]
        assert all("not tested" in part or "too few" in part for part in calm)
    assert said not in of_patients(False).conclusion


@pytest.mark.parametrize("people", [1, 9])
def test_people_in_the_sums_of_a_training_loop_are_named_as_not_looked_for(tmp_path: Any, people: int) -> None:
    """The column of a rare category in the first layer's summed gradient is the one person's alone."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(60, 6, generator=generator)
    x[:, 5] = (torch.arange(60) % 20 < 3).float() if people > 1 else (torch.arange(60) == 7).float()
    y = (torch.rand(60, 1, generator=generator) < 0.5).float()
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))

    def step(trained: nn.Module, x: Tensor, y: Tensor) -> None:
        descend(trained, x, y, LOSS)

    clients = [(x[place : place + 20], y[place : place + 20]) for place in (0, 20, 40)]
    report = audit_training(model, LOSS, step, clients, seeds=1, seconds=1e-6)
    report.save(tmp_path)
    page = (tmp_path / "audit.html").read_text().replace("&#39;", "'")
    said = "The few people whom the alerts name were not looked for in the sums"
    for text in (str(report), json.loads((tmp_path / "audit.json").read_text())["conclusion"], page):
        assert (said in text) == (people == 1)


def head(outputs: int, loss: Any, rows: int, drawn: Any, *, bias: bool) -> tuple[Report, list[list[int]], nn.Module]:
    """Audit a network of non-negative inputs to its last layer; return the true labels of each client too."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 24), nn.ReLU(), nn.Linear(24, outputs, bias=bias))
    generator = torch.Generator().manual_seed(1)
    given = [(torch.rand(n, 10, generator=generator), drawn(n, generator)) for n in (*[rows] * 3, 150)]

    def step(trained: nn.Module, x: Tensor, y: Tensor) -> None:
        descend(trained, x, y, loss)

    report = audit_training(model, loss, step, given[:3], population=given[3], seeds=3, seconds=1e-6)
    return report, [y.flatten().long().tolist() for _, y in given[:3]], model


def _five(rows: int, generator: torch.Generator) -> Tensor:
    return torch.randint(0, 5, (rows,), generator=generator)


def _two(rows: int, generator: torch.Generator) -> Tensor:
    return (torch.rand(rows, 1, generator=generator) < 0.4).float()


HEADS = {
    "a logit": (1, LOSS, _two, True),
    "a logit without a bias": (1, LOSS, _two, False),
    "softmax without a bias": (5, nn.CrossEntropyLoss(), _five, False),
}


@pytest.mark.parametrize(
    ("case", "rows"),
    first_ones([*product(sorted(HEADS, key="a logit".__eq__), [1]), *product(HEADS, [4])], 2),
)
def test_labels_are_counted_behind_any_head(case: str, rows: int) -> None:
    outputs, loss, drawn, bias = HEADS[case]
    report, _, _ = head(outputs, loss, rows, drawn, bias=bias)
    cell = cells(report, "server", "labels")["training/last layer"]
    assert cell.leakage.low > 0.999  # of one row the label is exact; of several the counts are right here


def test_labels_that_follow_from_the_rows_are_counted_by_the_scale_of_known_rows() -> None:
    """The bias's gradient is the mean of p - y: with the mean p of known rows it counts the labels of sixty rows.

    The quotient of the gradients of weight and bias is no mean input there, since inputs and labels go together.
    """
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    generator, given = torch.Generator().manual_seed(1), []
    for shift in (0.3, -0.4, 0.1, 0.0):
        x = torch.randn(60, 8, generator=generator)
        given.append((x, (x[:, 0] + shift + 0.5 * torch.randn(60, generator=generator) > 0).long()))

    def step(trained: nn.Module, x: Tensor, y: Tensor) -> None:
        descend(trained, x, y, nn.CrossEntropyLoss())

    report = audit_training(
        model, nn.CrossEntropyLoss(), step, given[:3], population=given[3], seeds=3, seconds=1e-6, view="server"
    )
    found = cells(report, "server", "labels")["training/last layer"]
    assert found.verdict.word in FOUND and found.leakage.mean > 0.7


def test_an_estimate_that_is_the_guess_is_no_attack_that_found_nothing(tmp_path: Any) -> None:
    report, _, _ = head(5, nn.CrossEntropyLoss(), 4, _five, bias=False)
    (line,) = [line for line in str(report).splitlines() if "sum only" in line and "training/last layer" in line]
    assert "no more than a guess (The most that a sum tells of labels" in line
    assert "not detected" not in line and "noticed" not in line
    report.save(tmp_path)
    (written,) = [c for c in json.loads((tmp_path / "audit.json").read_text())["cells"]
                  if (c["view"], c["secret"]) == ("sum only", "labels")]  # fmt: skip
    assert written["detectable"] is None and "they tell nothing more" in written["reach"]["bound"]
    page = (tmp_path / "audit.html").read_text()
    assert "by argument, not by an attack" in page and "no more than a guess" in page


def test_an_attack_that_returned_nothing_has_not_looked() -> None:
    """Its user is left with the guess, whose leakage of 0 in every run is no finding."""
    result, truth, guess = SeedResult(), np.array([3.0, 1.0]), np.array([2.0, 2.0])
    for seed in range(3):
        result.facts.append(RunFacts("loop", "plain", seed, float("nan"), 0.0, 0.0, 1))
        for name, value in (("fails", np.full(2, np.nan)), ("looks", guess)):
            result.record(
                Place("loop", "plain", "server", seed, 0), name, [Reconstruction("labels", value)], [None],
                lambda estimate: [judge_estimate("labels", estimate.value, truth, guess, relative_error(guess, truth))],
            )  # fmt: skip
    words = {cell.attack: cell.verdict.word for cell in gather(result.attempts, 3)}
    assert words == {"fails": "inconclusive", "looks": "not detected"}


def test_scores_that_are_all_alike_are_no_test_of_membership(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_seed_run, "loss_drops", lambda _, records: np.zeros(len(records)))
    report, _, _ = head(1, LOSS, 4, _two, bias=True)
    assert "membership/loss drop" not in cells(report, "server", "membership")
    assert any("membership/loss drop: it gives all records the same score" in reason for reason in report.skipped)


class Pooled(nn.Module):
    """A classifier of texts."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head = Transformer(), nn.Linear(64, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x)[:, -1])


@pytest.mark.exhaustive
def test_a_sum_of_texts_shows_which_tokens_occur_at_any_client() -> None:
    loss = nn.CrossEntropyLoss()
    generator = torch.Generator().manual_seed(5)
    given = [(torch.randint(0, 64, (n, 5), generator=generator), torch.arange(n) % 3) for n in (2, 2, 2, 40)]

    def step(model: nn.Module, x: Tensor, y: Tensor) -> None:
        descend(model, x, y, loss)

    model, summed = Pooled(), torch.zeros(64)
    for x, y in given[:3]:  # by hand: the rows of the table that move in the sum are the tokens of all clients
        moved = deepcopy(model)
        step(moved, x, y)
        summed += (moved.body.token.weight - model.body.token.weight).detach().abs().sum(dim=1)
    tokens = {int(token) for x, _ in given[:3] for token in x.flatten()}
    assert set(torch.nonzero(summed)[:, 0].tolist()) == tokens
    report = audit_training(model, loss, step, given[:3], population=given[3], seeds=2, seconds=1.0, view="sum only")
    (pooled,) = cells(report, "sum only", "pooled tokens").values()
    assert pooled.leakage.low > 0.999
    assert pooled.null_leakage.high < 0.5  # clients of other rows tell nothing of these
    (own,) = cells(report, "sum only", "tokens").values()
    assert own.leakage.mean < 0.5


@pytest.mark.parametrize("outputs", [1, pytest.param(5, marks=pytest.mark.exhaustive)])
def test_label_counts_are_learned_from_one_score_as_from_several(outputs: int) -> None:
    """Several steps, of which no closed form counts labels; a regression on simulated clients does."""
    loss, drawn = (LOSS, _two) if outputs == 1 else (nn.CrossEntropyLoss(), _five)
    torch.manual_seed(0)
    model, generator = nn.Linear(10, outputs), torch.Generator().manual_seed(1)

    def given(rows: int) -> TrainedRows:
        return TrainedRows(torch.rand(rows, 10, generator=generator), drawn(rows, generator))

    def step(trained: nn.Module, x: Tensor, y: Tensor) -> None:
        for _ in range(3):
            descend(trained, x, y, loss)

    training, clients, known = TorchTraining(model, loss, step), [given(12) for _ in range(4)], given(100)
    runs, classes = SimulatedRuns(training, clients, 4), max(outputs, 2)
    off = []
    for seed, rows in enumerate(clients):
        observed = runs.observe(seed, views.SERVER_VIEW)
        facts = probe_step(training, training.state, known.part(slice(0, 12)), 0)
        inputs = AttackInputs(training, observed, (12,), known, classes, None, facts, TimeBudget.of(1e5))
        (found,) = learn_labels(inputs)(inputs)
        off.append(np.abs(found.value - np.bincount(rows.y.flatten().long(), minlength=classes)).sum() / 2)
    assert np.mean(off) <= 1  # rows that are counted wrongly, of 12


def test_a_leak_that_is_kept_small_names_the_secrets_that_were_tested() -> None:
    generator = torch.Generator().manual_seed(2)
    clients = [
        (torch.randn(12, 6, generator=generator), torch.randint(0, 2, (12,), generator=generator)) for _ in range(4)
    ]
    loss = nn.CrossEntropyLoss()
    report = audit_training(nn.Linear(6, 2), loss, partial(descend, loss=loss), clients, seeds=3, seconds=1e-6)
    (sentence,) = [part for part in report.conclusion.split(". ") if "(accepted: " in part]
    assert "of a client's label counts is left that these attacks see" in sentence
    assert sentence.endswith("and a client's rows were not tested")
