"""A torch loop is audited as it stands: what closed forms reach is found, and what is not possible is named."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import securefed.torch
from securefed import Transcript, audit_training
from securefed._auditing.engine.audit_report import Report
from securefed._auditing.engine.results import Cell
from securefed._auditing.engine.seed_result import SeedResult
from securefed._auditing.engine.statistics import EXPOSED, FOUND, NOT_DETECTED
from securefed._auditing.report import audit_json
from securefed._auditing.report.cards import conclusion
from securefed._auditing.training import training_seed_run
from securefed._auditing.training.attack_inputs import AttackInputs
from securefed._auditing.training.local_training import TorchTraining, TrainedRows
from securefed._auditing.training.observed_runs import RecordedRuns, SimulatedRuns
from securefed._auditing.training.row_attack import ReadRows, recover_rows
from securefed._auditing.training.step_probe import probe_step
from securefed._auditing.training.training_secrets import TrainingSecrets
from securefed._auditing.training.training_seed_run import TrainingSeedRun
from securefed.attacks import RecoveredRows, views
from securefed.attacks._generic import TimeBudget
from securefed.attacks._networks.staged_inversion import StagedInversion
from securefed.errors import ConfigError, DataError, TranscriptError
from securefed.recording import Recording

LOSS = nn.CrossEntropyLoss()
CLASSES, PIXELS = 4, 5


def pictures(rows: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, CLASSES, (rows,), generator=generator)
    return torch.rand(rows, 1, PIXELS, PIXELS, generator=generator) + 0.2 * labels[:, None, None, None], labels


def clients(count: int, rows: int) -> list[tuple[Tensor, Tensor]]:
    return [pictures(rows, seed) for seed in range(count)]


def dense() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(PIXELS**2, 96), nn.ReLU(), nn.Linear(96, CLASSES))


def convolution() -> nn.Module:
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(4)
    return nn.Sequential(nn.Conv2d(1, 4, 3), norm, nn.ReLU(), nn.Flatten(), nn.Dropout(0.2), nn.Linear(36, CLASSES))


def descend(model: nn.Module, x: Tensor, y: Tensor, *, rate: float = 0.1, steps: int = 1) -> None:
    """Gradient descent on the whole batch, written without torch.optim, which takes seconds to load."""
    model.train()
    for _ in range(steps):
        slopes = torch.autograd.grad(LOSS(model(x), y), list(model.parameters()))
        with torch.no_grad():
            for value, slope in zip(model.parameters(), slopes, strict=True):
                value.sub_(rate * slope)


def signed(model: nn.Module, x: Tensor, y: Tensor) -> None:
    """Signed steps on shuffled batches, which no closed form of rows reads, as Adam's first ones."""
    model.train()
    for batch in torch.randperm(len(x)).split(8):
        slopes = torch.autograd.grad(LOSS(model(x[batch]), y[batch]), list(model.parameters()))
        with torch.no_grad():
            for value, slope in zip(model.parameters(), slopes, strict=True):
                value.sub_(1e-3 * slope.sign())


@cache
def of_descent() -> Report:
    # Closed forms need no time: the limit leaves out what would be simulated and searched for beside them.
    known = pictures(40, 9)
    return audit_training(dense(), LOSS, descend, clients(3, 2), population=known, seeds=2, seconds=1.0, view="server")


@cache
def of_signed_steps(view: str, seconds: float) -> Report:
    """Audit signed steps: of no time, what is read; of unlimited time, what is simulated too, whatever the load is."""
    known = pictures(60, 9)
    return audit_training(
        convolution(), LOSS, signed, clients(3, 5), population=known, seeds=2, seconds=seconds, view=view
    )


def cell(report: Report, view: str, attack: str) -> Cell:
    return next(c for c in report.cells if (c.view, c.attack) == (view, attack))


def test_rows_and_labels_of_one_gradient_are_found() -> None:
    report = of_descent()
    for attack in ("training/rows", "training/last layer"):
        found = cell(report, "server", attack)
        assert found.verdict.word in FOUND, attack
        assert found.leakage.mean > 0.999, attack
        assert found.null_leakage.mean < 0.9, attack
    assert "one gradient step of rate 0.1" in "; ".join(report.assumptions)
    assert "share of rows recovered by rows a client, the step: 1: 100%" in str(report)
    assert not any("100%" in line for line in report.skipped)
    (curve,) = report.curves
    assert curve["series"]["the step"]["rounds"][0] == 1


def of_sigmoids() -> tuple[AttackInputs, TrainedRows]:
    """Two rows of one client behind sigmoids, which only a search finds, and what the attacker sees of them."""
    torch.manual_seed(0)
    curved = nn.Sequential(nn.Flatten(), nn.Linear(PIXELS**2, 12), nn.Sigmoid(), nn.Linear(12, CLASSES))
    training, known = TorchTraining(curved, LOSS, descend), TrainedRows(*pictures(40, 9))
    rows = [TrainedRows(*pictures(2, k)) for k in range(2)]
    observed = SimulatedRuns(training, rows, 1).observe(0, views.SERVER_VIEW)
    facts = probe_step(training, training.state, known.part(slice(0, 2)), 0)
    return AttackInputs(training, observed, (2,), known, CLASSES, None, facts, TimeBudget.of(1e5)), rows[0]


@pytest.mark.parametrize(
    ("stage", "apart", "explained"), [("descent", 0, True), ("descent", 1, False), ("smoothed", 1, True)]
)
def test_rows_that_another_search_does_not_repeat_are_not_called_explained(
    monkeypatch, stage, apart, explained
) -> None:
    """Behind sigmoids wrong pictures send nearly the same message, so that a small residual is no proof."""

    def with_unknown_labels(inversion: Any, hypotheses: Any, rng: np.random.Generator, first: Any) -> RecoveredRows:
        rows = np.full((2, PIXELS**2), 0.5) + apart * rng.uniform(-0.2, 0.2, (2, PIXELS**2))
        return RecoveredRows(rows, 1e-5, stage)

    monkeypatch.setattr(StagedInversion, "with_unknown_labels", with_unknown_labels)
    assert recover_rows(of_sigmoids()[0], 1e5).explained == explained


def test_the_null_of_a_search_for_rows_searches_as_long(monkeypatch) -> None:
    """The null finds rows of the population; without a search it would be the guess, a leakage of 0."""
    allowed: list[int] = []
    attack = training_seed_run.recover_rows

    def recover(inputs: AttackInputs, seconds: float, **options: Any) -> ReadRows:
        found = attack(inputs, seconds, **options)
        allowed.append(found.evaluations)
        return found

    monkeypatch.setattr(training_seed_run, "recover_rows", recover)
    inputs, rows = of_sigmoids()
    result = SeedResult()
    secrets, population = TrainingSecrets([rows], None, 0, (), None), TrainedRows(*pictures(40, 8))
    TrainingSeedRun("curved", inputs, secrets, population, result, None).attack()
    searched, null = allowed
    assert searched == null > 0
    (found,) = result.attempts
    assert found.leakage > 0.99
    assert found.null_leakage < 0


def test_every_run_states_its_costs_under_its_own_number() -> None:
    assert [(fact.defense, fact.seed) for fact in of_descent().facts] == [("plain", 0), ("plain", 1)]


def test_statistics_are_found_and_rows_are_said_to_be_out_of_reach() -> None:
    report = of_signed_steps("server", 1e-6)
    found = cell(report, "server", "training/batch statistics")
    assert found.verdict.word == EXPOSED
    assert found.leakage.mean > 0.999
    membership = cell(report, "server", "membership/gradient alignment")
    assert membership.leakage.seeds == 2
    assert membership.leakage.low <= membership.leakage.mean <= membership.leakage.high
    assert not [c for c in report.cells if c.attack == "training/rows"]
    for said in ("training/rows: the rows enter no linear layer", "membership/shadow: "):
        assert any(f"server, {said}" in line for line in report.skipped), said


def test_statistics_of_several_batches_are_found_as_far_as_the_weights_stand_still() -> None:
    def leak(rate: float) -> float:
        def steps(model: nn.Module, x: Tensor, y: Tensor) -> None:
            descend(model, x, y, rate=rate, steps=3)

        report = audit_training(
            convolution(), LOSS, steps, clients(3, 4), population=pictures(60, 9), seeds=1, seconds=1e-6, view="server"
        )
        return cell(report, "server", "training/batch statistics").leakage.mean

    assert leak(1e-6) > 0.99
    assert leak(3.0) < 0.9  # the control: three steps of this size move the weights


@pytest.mark.exhaustive
def test_a_sum_hides_the_statistics_of_one_client() -> None:
    report = of_signed_steps("sum only", 1e5)
    assert cell(report, "sum only", "training/batch statistics").leakage.mean < 0.5
    counted = cell(report, "sum only", "training/last layer")  # of all clients together, which is the guess
    assert (counted.secret, counted.leakage.mean, counted.verdict.word) == ("labels", 0.0, NOT_DETECTED)
    assert "they tell nothing more" in counted.reach.bound
    assert "A client's rows were not tested." in conclusion(report)


def test_rows_that_were_attacked_are_not_said_to_be_untested() -> None:
    assert "rows were not tested" not in " ".join(conclusion(of_descent()))


@pytest.mark.exhaustive
def test_what_simulated_clients_tell_is_found_beside_it() -> None:
    report = of_signed_steps("server", 1e5)
    for attack, secret in (("training/label regression", "labels"), ("membership/shadow", "membership")):
        found = cell(report, "server", attack)
        assert (found.secret, found.leakage.seeds) == (secret, 2)


def test_the_report_is_saved_and_compared_like_any_other(tmp_path) -> None:
    of_descent().save(tmp_path)
    page = (tmp_path / "audit.html").read_text()
    assert "Share of rows recovered by rows a client" in page
    read = audit_json.read(tmp_path / "audit.json")
    assert {c["secret"] for c in read["cells"]} >= {"samples", "labels", "membership"}


def test_a_probe_tells_one_gradient_from_several() -> None:
    rows = TrainedRows(*pictures(6, 1))
    one, several, shuffled = (TorchTraining(dense(), LOSS, step) for step in (descend, _five_steps, signed))
    assert probe_step(one, one.state, rows, 0).one_gradient
    assert probe_step(one, one.state, rows, 0).rate == pytest.approx(0.1, rel=1e-4)
    assert not probe_step(several, several.state, rows, 0).one_gradient
    assert probe_step(several, several.state, rows, 0).repeatable
    twelve = TrainedRows(*pictures(12, 1))
    assert not probe_step(shuffled, shuffled.state, twelve, 0).repeatable


def _five_steps(model: nn.Module, x: Tensor, y: Tensor) -> None:
    descend(model, x, y, steps=5)


def recorded(**options) -> Transcript:
    server = convolution()
    sizes = [6, 8]
    with securefed.torch.record(rows=sizes, features=PIXELS**2, classes=CLASSES, **options) as recording:
        recording.broadcast(server.state_dict())
        for client, (x, y) in enumerate(pictures(n, k) for k, n in enumerate(sizes)):
            local = convolution()
            descend(local, x, y)
            recording.update(client, local.state_dict())
    return recording.transcript


@pytest.mark.parametrize("options", [{}, {"form": "models"}, {"weighted": False}])
def test_a_recording_shows_what_the_simulated_step_sends(options) -> None:
    rows = [TrainedRows(*pictures(n, k)) for k, n in enumerate((6, 8))]
    simulated = SimulatedRuns(TorchTraining(convolution(), LOSS, descend), rows, 2)
    runs = RecordedRuns(recorded(**options), TorchTraining(convolution(), LOSS, None), [6, 8], 10)
    assert [runs.target(seed) for seed in range(runs.count)] == [0, 1]
    for seed in range(2):
        seen = runs.observe(seed, views.SERVER_VIEW)
        assert set(seen.change) >= {"0.weight", "1.running_mean"}
        same = simulated.observe(seed, views.SERVER_VIEW)
        for change in (seen.change, same.change):
            np.testing.assert_allclose(change["1.running_mean"], _statistics_change(seed), atol=1e-6)
    both = runs.observe(0, views.SUM_ONLY)
    shares = [1 / 2, 1 / 2] if options else [6 / 14, 8 / 14]  # sums of models, or without weights, count clients alike
    mean = shares[0] * _statistics_change(0) + shares[1] * _statistics_change(1)
    np.testing.assert_allclose(both.change["1.running_mean"], mean, atol=1e-6)
    training = TorchTraining(convolution(), LOSS, descend)
    inputs = AttackInputs(training, both, (6, 8), rows[0], CLASSES, None, None, TimeBudget.of(1e5))
    sent = inputs.simulate(TrainedRows.joined(rows), 0)  # the attacker's simulation of the right rows
    np.testing.assert_allclose(sent["1.running_mean"], mean, atol=1e-6)


def _statistics_change(client: int) -> np.ndarray:
    """The change of the running means, computed by hand: .1 of the batch's means, since they start at 0."""
    model = convolution()
    x, _ = pictures((6, 8)[client], client)
    return 0.1 * model[0](x).detach().mean(dim=(0, 2, 3)).double().numpy()


def test_a_recording_without_the_step_is_audited_as_far_as_it_goes() -> None:
    given = [pictures(n, k) for k, n in enumerate((6, 8))]
    report = audit_training(
        convolution(), LOSS, None, given, recording=recorded(), population=pictures(40, 9), seconds=5.0
    )
    assert {c.attack for c in report.cells} >= {"membership/loss drop", "membership/gradient alignment"}
    assert any("there is no local step to simulate clients with" in line for line in report.skipped)
    with pytest.raises(ConfigError, match="the recording's clients have"):
        audit_training(convolution(), LOSS, None, given[::-1], recording=recorded())
    with pytest.raises(ConfigError, match="the recording lacks"):
        audit_training(dense(), LOSS, None, given, recording=recorded())


def test_a_recording_of_sums_closes_the_server_view() -> None:
    transcript = recorded()
    record = transcript.records[0]
    sums = Recording(rows=[6, 8], features=PIXELS**2, classes=CLASSES)
    sums.sums(record.broadcast, record.total, record.survivors)
    runs = RecordedRuns(sums.finish({}), TorchTraining(convolution(), LOSS, None), [6, 8], 10)
    assert runs.observe(0, views.SUM_ONLY).null is None
    with pytest.raises(TranscriptError, match="does not hold client 0's upload"):
        runs.observe(0, views.SERVER_VIEW)


def test_a_step_that_is_too_slow_is_audited_at_a_size_that_the_report_names() -> None:
    report = audit_training(dense(), LOSS, descend, clients(2, 16), seeds=1, seconds=1e-6)
    assert any("clients cut to their first 4 rows" in line for line in report.skipped)
    assert report.settings[report.algorithms[0]]["hyper-parameters"]["rows a client"] == "4"
    words = "clients cut to their first 4 rows (yours hold 16)"
    assert words in str(report).splitlines()[0] and f"Every figure is of {words}" in " ".join(conclusion(report))


def test_wrong_arguments_and_steps_are_refused_by_name() -> None:
    def nothing(model: nn.Module, x: Tensor, y: Tensor) -> None:
        model.train()

    def broken(model: nn.Module, x: Tensor, y: Tensor) -> None:
        raise ValueError("boom")

    def diverging(model: nn.Module, x: Tensor, y: Tensor) -> None:
        next(model.parameters()).data.fill_(float("inf"))

    for step, said in (
        (nothing, "left the model as it was"),
        (broken, "ValueError on 3 rows: boom"),
        (diverging, "not finite"),
    ):
        with pytest.raises(DataError, match=said):
            audit_training(dense(), LOSS, step, clients(2, 3), seeds=1, seconds=5.0)
    with pytest.raises(ConfigError, match="local_step, the function"):
        audit_training(dense(), LOSS, None, clients(2, 3))
    with pytest.raises(ConfigError, match="at least 2 clients, not 1"):
        audit_training(dense(), LOSS, descend, clients(1, 3))
    with pytest.raises(DataError, match="client 1 must be a pair"):
        audit_training(dense(), LOSS, descend, [pictures(2, 0), pictures(2, 1)[0]])  # type: ignore[list-item]
    for view in ("both", ()):
        with pytest.raises(ConfigError, match="views are"):
            audit_training(dense(), LOSS, descend, clients(2, 3), seeds=1, view=view, seconds=5.0)


@pytest.mark.exhaustive
def test_a_view_that_is_named_twice_is_attacked_once() -> None:
    report = audit_training(dense(), LOSS, descend, clients(2, 3), seeds=1, view=("server", "server"), seconds=5.0)
    assert {cell.leakage.seeds for cell in report.cells} == {1}


def test_the_callers_random_state_is_left_alone() -> None:
    training = TorchTraining(convolution(), LOSS, signed)
    random.seed(1)
    torch.manual_seed(1)
    before = torch.get_rng_state(), random.getstate()
    first, again, other = (training.change(training.state, TrainedRows(*pictures(12, 0)), seed) for seed in (5, 5, 6))
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1] == random.getstate()
    np.testing.assert_array_equal(first["0.weight"], again["0.weight"])
    assert np.any(first["0.weight"] != other["0.weight"])  # the control: another seed draws other batches


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"model": lambda: None}, "model must be a torch.nn.Module"),
        ({"loss": "cross_entropy"}, "loss must be a function of"),
        ({"local_step": nn.CrossEntropyLoss()}, "local_step must be a function local_step"),
    ],
)
def test_swapped_arguments_are_named(arguments: dict[str, Any], words: str) -> None:
    given = {"model": nn.Linear(2, 2), "loss": nn.CrossEntropyLoss(), "local_step": lambda model, x, y: None}
    rows = [(np.zeros((2, 2)), np.zeros(2, int))] * 2
    with pytest.raises(ConfigError, match=words):
        audit_training(**(given | arguments), clients=rows)


def test_a_step_that_trains_another_model_is_named() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    outside = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(given: nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
        outside.zero_grad()
        nn.functional.cross_entropy(given(x), y).backward()
        outside.step()

    rng = np.random.default_rng(0)
    rows = [(rng.normal(size=(4, 2)).astype(np.float32), np.arange(4) % 3) for _ in range(3)]
    with pytest.raises(DataError, match="moved no parameter"):
        audit_training(model, nn.CrossEntropyLoss(), step, rows, seeds=1)
