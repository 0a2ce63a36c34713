"""Audits with a server that chooses its broadcasts, and servers that tell clients different things."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

from securefed import Dataset, DeviatingServer, RunOptions, audit, audit_algorithm, chain
from securefed._auditing.active.active_attacks import _expected_refusals
from securefed.algorithms import SSI, FedAvg
from securefed.attacks import ChosenBroadcast, Dialogue, FitRows, GradientSuppression, Reconstruction, Target
from securefed.defenses import quantise, secure_aggregation
from securefed.errors import ConfigError, TranscriptError
from securefed.problems import DenseNetwork, SoftmaxRegression


@pytest.fixture(scope="module")
def report() -> Any:
    return audit(["optimization/fedavg"], ["plain", "secure_aggregation"], clients=4, seeds=1, active=True, workers=1)


def test_the_view_stands_in_the_report_and_its_json(report: Any) -> None:
    cells = [cell for cell in report.cells if cell.view == "active server"]
    assert {(cell.defense, cell.secret) for cell in cells} == {
        ("plain", "client"),
        ("secure_aggregation", "client"),
        ("secure_aggregation", "federation"),
    }
    assert all(cell.leakage.mean > 0.99 and cell.null_leakage.mean < 0.5 for cell in cells)
    assert "active server" in {cell["view"] for cell in report.to_json()["cells"]}
    assert report.command.endswith("--active")


def test_refusals_of_chosen_broadcasts_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("securefed.client")
    with caplog.at_level(logging.WARNING, logger=log.name):
        with _expected_refusals():
            log.warning("refused")
        log.warning("an honest run's refusal")
    assert [record.message for record in caplog.records] == ["an honest run's refusal"]


def test_an_audit_has_no_such_view_unless_asked(report: Any) -> None:
    quiet = audit(["optimization/fedavg"], ["plain"], clients=4, seeds=1, workers=1)
    assert "active server" not in {cell.view for cell in quiet.cells}


def test_an_algorithm_that_no_active_attack_fits_is_named_with_the_reason() -> None:
    found = audit(["graph/igl"], ["secure_aggregation"], clients=4, seeds=1, rounds=1, active=True, workers=1)
    assert "active server" not in {cell.view for cell in found.cells}
    (gap,) = (gap for gap in found.missing if gap.view == "active server")
    assert any("PPGL's clients" in refusal for refusal in gap.refusals)


@dataclass(frozen=True)
class TellOneOther:
    """Tell client 0 another model, and read the sum."""

    different: bool

    name: ClassVar[str] = "tell one other"
    secret: ClassVar[str] = "samples"

    def applies(self, target: Target, observed: Dialogue) -> str | None:
        return None

    def run(self, observed: Dialogue, target: Target, rng: np.random.Generator) -> Any:
        other = {name: value + np.arange(value.size).reshape(value.shape) for name, value in observed.honest.items()}
        seen = observed.ask(ChosenBroadcast(observed.honest, {0: other} if self.different else {}))
        return Reconstruction("samples", np.concatenate([value.reshape(-1) for value in seen.message.values()]))


def told(different: bool, defense: Any) -> Any:
    rng = np.random.default_rng(0)
    data = [Dataset(rng.uniform(size=(3, 5)), np.arange(3) % 2) for _ in range(4)]
    return DeviatingServer(FedAvg(learning_rate=0.1), data, defense, TellOneOther(different)).deceive()


def test_clients_that_are_told_different_models_are_not_summed_under_secure_aggregation() -> None:
    assert told(False, chain(secure_aggregation())).estimate is not None  # positive control
    run = told(True, chain(secure_aggregation()))
    assert run.estimate is None
    assert "clients [0] were told another broadcast" in run.refused


def test_an_attack_that_does_not_end_is_stopped_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    class Endless(TellOneOther):
        def run(self, observed: Dialogue, target: Target, rng: np.random.Generator) -> Any:
            while True:
                observed.ask(ChosenBroadcast(observed.honest))

    monkeypatch.setattr("securefed._auditing.active.deviating_server._MOST_ROUNDS", 2)
    data = [Dataset(np.random.default_rng(seed).uniform(size=(3, 5)), np.arange(3) % 2) for seed in range(4)]
    run = DeviatingServer(FedAvg(learning_rate=0.1), data, chain(), Endless(False)).deceive()
    assert run.estimate is None
    assert run.refused == "no estimate after 2 rounds"


@pytest.mark.parametrize("rounds", [0, 2])
@pytest.mark.parametrize("estimate", [None, Reconstruction("samples", np.zeros((3, 5)))], ids=["none", "one"])
def test_an_attack_may_end_at_once_and_without_an_estimate(rounds: int, estimate: Reconstruction | None) -> None:
    class Short(TellOneOther):
        def run(self, observed: Dialogue, target: Target, rng: np.random.Generator) -> Any:
            for _ in range(rounds):
                observed.ask(ChosenBroadcast(observed.honest))
            return estimate

    data = [Dataset(np.random.default_rng(seed).uniform(size=(3, 5)), np.arange(3) % 2) for seed in range(4)]
    run = DeviatingServer(FedAvg(learning_rate=0.1), data, chain(), Short(False)).deceive()
    assert run.estimate is estimate
    assert run.refused == ("the attack ended without an estimate" if estimate is None else "")
    assert len(run.observed.rounds) == len(run.broadcasts) == rounds


def test_a_client_that_was_asked_nothing_in_a_round_was_not_told_another_broadcast() -> None:
    """Client 0 takes part in the second round only; the attack has another model for it in both."""

    class Twice(TellOneOther):
        def run(self, observed: Dialogue, target: Target, rng: np.random.Generator) -> Any:
            other = {name: value + 1.0 for name, value in observed.honest.items()}
            observed.ask(ChosenBroadcast(observed.honest, {0: other}))
            observed.ask(ChosenBroadcast(observed.honest, {0: other}))
            return Reconstruction("samples", np.zeros((3, 5)))

    data = [Dataset(np.random.default_rng(seed).uniform(size=(3, 5)), np.arange(3) % 2) for seed in range(4)]
    options, method = RunOptions(schedule=lambda number: range(number == 0, 4)), FedAvg(learning_rate=0.1)
    clear = DeviatingServer(method, data, chain(), Twice(False), options=options).deceive()
    assert clear.estimate is not None and len(clear.observed.rounds) == 2
    masked = DeviatingServer(method, data, chain(secure_aggregation()), Twice(False), options=options).deceive()
    assert "clients [0] were told another broadcast" in masked.refused  # positive control: in the second round
    assert len(masked.observed.rounds) == len(masked.broadcasts) == 2


def test_broadcasts_are_those_that_were_sent() -> None:
    """The attack has a second broadcast ready when the first round already shows that it fails."""

    class Twice(TellOneOther):
        def run(self, observed: Dialogue, target: Target, rng: np.random.Generator) -> Any:
            other = {name: value + 1.0 for name, value in observed.honest.items()}
            while True:
                observed.ask(ChosenBroadcast(observed.honest, {0: other}))

    data = [Dataset(np.random.default_rng(seed).uniform(size=(3, 5)), np.arange(3) % 2) for seed in range(4)]
    run = DeviatingServer(FedAvg(learning_rate=0.1), data, chain(secure_aggregation()), Twice(False)).deceive()
    assert "clients [0] were told another broadcast" in run.refused
    assert len(run.observed.rounds) == len(run.broadcasts) == 1


def test_a_round_without_the_victim_gives_the_attack_no_message_of_an_earlier_round() -> None:
    """The victim takes part in all rounds but the third."""

    class Patient(TellOneOther):
        def run(self, observed: Dialogue, target: Target, rng: np.random.Generator) -> Any:
            rounds = []
            for _ in range(8):
                rounds.append(observed.ask(ChosenBroadcast(observed.honest)).round)
            return Reconstruction("samples", np.array(rounds))

    data = [Dataset(np.random.default_rng(seed).uniform(size=(3, 5)), np.arange(3) % 2) for seed in range(4)]
    method = FedAvg(learning_rate=0.1)
    absent = RunOptions(schedule=lambda number: range(number == 2, 4))
    run = DeviatingServer(method, data, None, Patient(False), alone=True, options=absent).deceive()
    assert run.estimate is None
    assert run.refused == "the attack reads messages of client 0, which took no part in round 2"
    whole = DeviatingServer(method, data, None, Patient(False), alone=True).deceive()  # positive control
    assert whole.estimate is not None and len(set(whole.estimate.value.tolist())) == 8


def test_gradient_suppression_reads_the_victim_where_rounds_are_not_bound_and_nothing_where_they_are() -> None:
    """The sums of integers in the clear are those of secure aggregation without its binding."""
    rng = np.random.default_rng(0)
    data = [Dataset(rng.uniform(size=(1, 12)), np.array([index % 4])) for index in range(5)]
    method = FedAvg(problem=DenseNetwork(hidden=(60,)), learning_rate=0.1, local_steps=2)
    attack = GradientSuppression()
    unbound = DeviatingServer(method, data, chain(quantise()), attack, victim=3).deceive()
    assert unbound.estimate is not None
    assert unbound.estimate.members == {3}
    np.testing.assert_allclose(unbound.estimate.value, data[3].x, atol=1e-3)
    bound = DeviatingServer(method, data, chain(secure_aggregation()), attack, victim=3).deceive()
    assert bound.estimate is None
    assert "clients [3] were told another broadcast" in bound.refused


def test_in_the_clear_they_are_summed() -> None:
    same, other = told(False, chain()).estimate.value, told(True, chain()).estimate.value
    assert np.abs(same - other).max() > 1e-3


def test_clients_refuse_a_broadcast_that_breaks_what_bounds_rest_on() -> None:
    """Subspace methods refuse a basis that is not orthonormal, whoever chose it."""

    @dataclass(frozen=True)
    class Stretch(TellOneOther):
        def run(self, observed: Dialogue, target: Target, rng: np.random.Generator) -> Any:
            observed.ask(ChosenBroadcast({name: 3 * value for name, value in observed.honest.items()}))
            raise AssertionError("a basis three times too long was answered")

    data = [Dataset(np.random.default_rng(seed).normal(size=(6, 5))) for seed in range(4)]
    run = DeviatingServer(SSI(rank=2), data, chain(secure_aggregation()), Stretch(False)).deceive()
    assert run.estimate is None
    assert run.refused


def test_an_audit_of_ones_own_algorithm_has_the_view_too() -> None:
    rng = np.random.default_rng(0)
    data = [Dataset(rng.uniform(size=(2, 6)), np.array([0, 1])) for _ in range(3)]
    method = FedAvg(problem=SoftmaxRegression(), learning_rate=0.1, local_steps=2)
    quick = FitRows(calls=200)
    report = audit_algorithm(method, data, rounds=1, seeds=1, view="sum only", fit=quick, seconds=5, active=True)
    cells = {cell.secret: cell.leakage.mean for cell in report.cells if cell.view == "active server"}
    assert cells["samples"] > 0.99
    assert cells["pooled samples"] > 0.99
    with pytest.raises(ConfigError, match="needs an Algorithm"):
        audit_algorithm(lambda rows, sent: sent, data, start={"w": np.zeros(2)}, active=True)


@pytest.mark.exhaustive
def test_an_attack_that_reads_nothing_from_permuted_messages_has_no_null_and_the_audit_goes_on() -> None:
    """The dual variables of FedPG cannot be computed from permuted messages, which ended the whole audit."""
    found = audit(["pca/fedpg"], ["plain"], seeds=2, active=True, workers=1)
    cells = [cell for cell in found.cells if cell.attack == "active/chosen_bases"]
    assert [cell.verdict.word for cell in cells] == ["exposed"]


def test_an_active_attack_that_reads_nothing_from_permuted_messages_is_compared_with_the_guess(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    usual = DeviatingServer.deceive

    def deceive(server: Any) -> Any:
        if server._shuffled:
            raise TranscriptError("the permuted messages tell nothing")
        return usual(server)

    monkeypatch.setattr(DeviatingServer, "deceive", deceive)
    rng = np.random.default_rng(0)
    data = [Dataset(rng.normal(size=(5, 4))) for _ in range(4)]
    quick = FitRows(starts=1, steps=2)
    report = audit_algorithm(SSI(rank=2), data, rounds=1, seeds=1, view="server", fit=quick, seconds=5, active=True)
    active = [cell for cell in report.cells if cell.view == "active server"]
    assert active
    assert {cell.null_leakage.mean for cell in active} == {0.0}
