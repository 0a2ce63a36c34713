"""One's own algorithm, audited without attack code."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from securefed import Dataset, audit_algorithm
from securefed._auditing.engine.statistics import EXPOSED, FOUND
from securefed._auditing.gate.grown_leaks import growth
from securefed._auditing.gate.leakage_limits import has_label_counts
from securefed._auditing.gate.self_check import (
    PLANTED,
    check,
    check_alerts,
    check_gaps,
    check_noise,
    check_settings,
    check_tables,
    failures,
)
from securefed._auditing.report import audit_json
from securefed._commands.cli import app
from securefed.algorithms import DSGD, SSI, algorithms
from securefed.attacks import FitRows, Reconstruction
from securefed.attacks._generic import StepClock, on_clock
from securefed.errors import ConfigError, DataError
from securefed.testing import assert_leakage_below
from tests.auditing.hand_clock import HandClock
from tests.auditing.page import text
from tests.auditing.test_report import SMALL


def clients(seed, count=3):
    return list(np.random.default_rng(seed).uniform(-1, 1, (count, 4, 4)))


def product(rows, broadcast):
    return {"y": rows.T @ (rows @ broadcast["z"])}


def noise(rows, broadcast, rng):
    return {"y": rng.normal(size=3)}


START = {"z": np.eye(4, 2)}
QUICK = {"fit": FitRows(starts=1, steps=8), "rounds": 3, "seeds": 4}


def follow(broadcast, total, count):
    return {"z": np.linalg.qr(total["y"])[0]}


@pytest.mark.exhaustive
def test_every_planted_leak_is_found_and_planted_safety_passes() -> None:
    done = CliRunner().invoke(app, ["audit", "--self-check"])
    assert done.exit_code == 0, done.output
    planted = len(PLANTED) + sum(
        map(len, (check_tables(), check_settings(), check_gaps(), check_noise(), check_alerts()))
    )
    assert done.output.count("right  planted") == planted
    assert planted > 40


@pytest.mark.exhaustive
def test_the_self_check_fails_where_the_audit_would_be_wrong() -> None:
    clear, safe = PLANTED[0], next(planted for planted in PLANTED if planted.secret is None and not planted.refused)
    swapped = (check(replace(safe, secret="samples", words=(EXPOSED,)), 3), check(replace(clear, secret=None), 3))
    assert len(failures(swapped)) == 2


def test_a_class_that_satisfies_the_protocol_is_audited() -> None:
    found = audit_algorithm(SSI(rank=2), clients, rounds=4, seeds=3, view=["server"])
    gram = next(cell for cell in found.cells if cell.secret == "gram")
    assert gram.verdict.word == EXPOSED
    assert gram.figure("error") < 1e-4
    assert found.worst is gram


@pytest.mark.exhaustive
def test_labelled_clients_of_a_registered_method_are_fitted() -> None:
    def labelled(seed):
        rng = np.random.default_rng(seed)
        return [Dataset(rng.uniform(0.2, 1, (1, 4)), rng.integers(0, 2, 1)) for _ in range(3)]

    method = algorithms.make("optimization/dsgd", problem="logistic", learning_rate=0.5)
    assert isinstance(method, DSGD)
    found = audit_algorithm(method, labelled, rounds=3, seeds=4, view=["server"])
    best = max((cell for cell in found.cells if cell.secret == "samples"), key=lambda cell: cell.leakage.mean)
    assert best.leakage.mean > 0.99
    assert any(line.startswith("labels are known to whoever attacks rows") for line in found.assumptions)


def test_the_gate_passes_safety_and_fails_leaks_and_weak_audits() -> None:
    arguments = {"start": START, "combine": follow, **QUICK}
    found = assert_leakage_below(0.95, noise, clients, start=START, **QUICK)
    assert assert_leakage_below(0.95, found) is found
    with pytest.raises(AssertionError, match=r"not below 0\.9"):
        assert_leakage_below(0.9, product, clients, **arguments)
    searched = [cell for cell in found.cells if cell.secret != "confirmation" and not cell.reach.derived]
    power = max(cell.verdict.detectable for cell in searched)
    tops = max(cell.leakage.high for cell in found.cells if cell.secret != "confirmation")
    assert tops < power  # so there are limits that the leakage stays below, but that the audit could not see
    with pytest.raises(AssertionError, match="too weak"):
        assert_leakage_below((max(tops, 0.0) + power) / 2, found)


def test_a_gate_refuses_what_it_cannot_judge() -> None:
    with pytest.raises(ConfigError, match="limit"):
        assert_leakage_below(1.5, noise, clients, start=START)
    with pytest.raises(ConfigError, match="clients"):
        assert_leakage_below(0.5, noise)
    with pytest.raises(ConfigError, match="labels: the clients' data hold no counts"):
        assert_leakage_below(0.5, noise, clients, start=START, secrets=["labels"], **QUICK)
    with pytest.raises(ConfigError, match=r"a finished audit is judged as it is; leave out clients, seeds"):
        assert_leakage_below(0.5, SMALL, clients, seeds=3)


ROUNDS = {"k": np.zeros(())}


def count(broadcast, total, clients):
    return {"k": broadcast["k"] + 1}


def audit(function, given=clients, **arguments):
    return audit_algorithm(function, given, **{"start": START, "view": ["server"], **QUICK, **arguments})


def cell(found, attack, view="server"):
    return next(c for c in found.cells if c.attack == attack and c.view == view)


@pytest.mark.exhaustive
def test_a_function_that_changes_what_it_is_given_is_audited_as_one_that_does_not() -> None:
    def impolite(rows, broadcast):
        broadcast["z"] += 1.0
        rows *= 2.0
        return {"y": rows.T @ (rows @ (broadcast["z"] - 1.0)) / 4}

    mine, other = (cell(audit(f, combine=follow), "generic/probe") for f in (impolite, product))
    assert mine.leakage.mean == pytest.approx(other.leakage.mean, abs=1e-6)
    assert mine.leakage.mean > 0.5


@pytest.mark.exhaustive
def test_a_step_that_fails_on_rows_that_the_attacker_tries_is_attacked_all_the_same() -> None:
    def roots(rows, broadcast):
        if (rows < 0).any():
            raise RuntimeError("no root")
        return {"y": np.sqrt(rows)}

    found = audit(roots, lambda seed: [rows + 1.1 for rows in clients(seed)])
    assert cell(found, "generic/fit").verdict.word == EXPOSED


@pytest.mark.exhaustive
def test_rows_behind_a_large_constant_and_rounded_moments_are_found() -> None:
    hidden = audit(lambda rows, b: {"count": np.full(3, 1e8), "y": 1e-6 * np.tanh(rows)})
    assert cell(hidden, "generic/fit").verdict.word == EXPOSED
    for kind in (np.float32, np.float16):
        rounded = audit(lambda rows, b, kind=kind: {"y": (rows.T @ rows).astype(kind)})
        assert cell(rounded, "generic/probe").verdict.word == EXPOSED


def test_a_client_that_alone_is_given_away_is_named_and_fails_the_gate() -> None:
    def given(seed):
        data = clients(seed)
        return [*data[:-1], np.abs(data[-1])]

    def betrays(rows, broadcast):
        return {"y": rows if rows.min() >= 0 else np.zeros_like(rows)}

    found = audit(betrays, given, fit=FitRows(starts=1, steps=8), seeds=7)
    read = cell(found, "generic/clear")
    assert read.leakage.high < 0.9
    assert (read.verdict.word, read.read.client, read.read.whole) == ("partial", 2, True)
    assert "Client 2 was reconstructed" in str(found)
    with pytest.raises(AssertionError, match="client 2 was reconstructed"):
        assert_leakage_below(0.95, found)


@pytest.mark.exhaustive
def test_torch_steps_without_a_derivative_are_attacked_by_differences() -> None:
    torch = pytest.importorskip("torch")

    def backward(rows, broadcast, labels):
        w = broadcast["z"][:, 0].clone().requires_grad_(True)
        torch.nn.functional.softplus(rows @ w * (1 - 2 * labels)).sum().backward()
        return {"y": w.grad}

    def left(rows, broadcast):
        return {"y": torch.tensor(np.tanh(rows.detach().numpy()))}

    def noisy(rows, broadcast):
        return {"y": torch.tanh(rows) + 1e-9 * torch.randn(rows.shape, dtype=torch.float64)}

    def labelled(seed):
        return [Dataset(rows[:1], np.array([1])) for rows in clients(seed)]

    for function, given in ((backward, labelled), (left, clients), (noisy, clients)):
        found = audit(function, given, backend="torch", rounds=1, seeds=2)
        assert cell(found, "generic/fit").leakage.mean > 0.99, function.__name__
    with pytest.raises(DataError, match='backend="torch"'):
        audit(lambda rows, b: {"y": torch.relu(rows)})


def test_a_slow_step_ends_the_attacks_in_the_time_given() -> None:
    def slow(rows, broadcast):
        return {"y": np.tanh(rows).sum(0)}

    with on_clock(StepClock(step=0.01)):
        found = audit(slow, rounds=1, seeds=2, seconds=0.5)
    assert any("more `seconds`" in reason for reason in found.skipped)
    with pytest.raises((AssertionError, ConfigError), match="seconds"):
        assert_leakage_below(0.5, found)


def test_a_gate_does_not_pass_where_no_attack_could_have_seen() -> None:
    wide = audit(lambda rows, b: {"y": np.tanh(rows).mean(0)}, fit=FitRows(most=3))
    with pytest.raises(AssertionError, match=r"samples: no attack would have seen.*16 unknowns"):
        assert_leakage_below(0.99, wide, secrets=["samples"])
    stepwise = audit(lambda rows, b: {"y": np.floor(9 * rows)}, rounds=1)
    assert cell(stepwise, "generic/fit").runs.explained == 0
    with pytest.raises(AssertionError, match="explained 0%"):
        assert_leakage_below(0.99, stepwise, secrets=["samples"])
    with pytest.raises(AssertionError, match=r"membership: no attack.*give `population`"):
        moments = audit(product, view=["sum only"], combine=follow)
        assert_leakage_below(0.99, moments, views="sum only", secrets=["gram", "membership"])
    with pytest.raises(ConfigError, match="all clients' pooled rows"):
        assert_leakage_below(0.5, product, [np.ones((3, 4))] * 3, start=START, **QUICK)
    for wrong in ({"secrets": ["sampels"]}, {"secrets": []}, {"views": ["sum"]}):
        with pytest.raises(ConfigError, match="must be of"):
            assert_leakage_below(0.5, moments, **wrong)


def test_the_report_of_an_own_algorithm_is_saved_as_that_of_a_registered_one(tmp_path) -> None:
    found = audit_algorithm(SSI(rank=2), clients, rounds=4, seeds=3)
    found.save(tmp_path)
    saved = audit_json.read(tmp_path / "audit.json")
    assert [cell.verdict.word for cell in audit_json.cells_of(saved)] == [cell.verdict.word for cell in found.cells]
    page = text((tmp_path / "audit.html").read_text())
    assert "Without protection, the server can compute" in page
    assert "decide whether the server may know them" in page
    assert "nan" not in page.split()
    assert not growth(saved, saved)
    assert {item.secret for item in found.artifacts} >= {"gram", "samples", "pooled gram"}
    assert "Recovered: One client" in page and "Recovered: All clients together" in page


@pytest.mark.exhaustive
def test_labels_in_the_clear_fail_the_gate_that_is_asked_for_nothing_else() -> None:
    def clients(seed):
        rng = np.random.default_rng(seed)
        return [Dataset(rng.uniform(0, 1, (6, 3)), rng.choice(3, 6, p=np.roll([0.7, 0.2, 0.1], i))) for i in range(4)]

    def told(rows, broadcast, labels):
        return {"y": labels}

    def silent(rows, broadcast, labels):
        return {"y": np.ones(3)}

    start = {"round": np.zeros(1)}
    found = audit_algorithm(told, clients, start=start, rounds=1, seeds=5)
    labels = [cell for cell in found.cells if (cell.view, cell.secret) == ("server", "labels")]
    cell = max(labels, key=lambda cell: cell.leakage.low)
    assert cell.verdict.word in FOUND and cell.leakage.low > 0.99
    with pytest.raises(AssertionError, match="labels"):
        assert_leakage_below(0.3, found)
    quiet = audit_algorithm(silent, clients, start=start, rounds=1, seeds=5)
    assert assert_leakage_below(0.3, quiet, secrets=["labels"]) is quiet and has_label_counts(quiet)
    assert any("a secret of its own" in line for line in quiet.assumptions)


def test_the_null_of_a_search_has_as_much_time_as_the_search() -> None:
    """A clock that client steps drive: the null's search would end after half of its steps."""
    clock, ended = HandClock(step=1.0), []

    def curved(rows, broadcast):
        return {"y": np.tanh(broadcast["z"] @ rows.T).sum(axis=1)}

    class Search(FitRows):
        def run(self, replay, target, rng):
            for _ in range(100):
                rows = replay.likely(rng)
                replay(rows)
            ended.append(clock.seconds)
            return Reconstruction("samples", rows)

    def audited(seconds):
        clock.seconds = 0.0
        ended.clear()
        given = {"z": np.random.default_rng(0).normal(size=(6, 4))}
        options = {"start": given, "rounds": 1, "seeds": 1, "view": ["server"], "fit": Search(), "seconds": seconds}
        with on_clock(clock):
            audit_algorithm(curved, clients, **options)
        return len(ended)

    assert audited(1e9) == 2
    attack = ended[0]
    assert audited(attack + 50.0) == 2
