"""Gates that do not pass blind: every estimate scored for what follows, and nothing that did not run taken for safe."""

from __future__ import annotations

import json

import numpy as np
import pytest
from sklearn.datasets import load_digits
from typer.testing import CliRunner

from securefed import Dataset, audit_algorithm
from securefed._auditing.engine.statistics import EXPOSED
from securefed._auditing.gate.leakage_limits import reasons, require_limit, unsearched
from securefed._auditing.gate.planted_leaks import PLANTED, clients, labelled
from securefed._auditing.gate.self_check import check, check_gaps, failures
from securefed._commands.cli import app
from securefed.attacks import FitRows
from securefed.errors import ConfigError, DataError
from securefed.testing import assert_leakage_below
from tests.auditing.test_report import cell as audited
from tests.auditing.test_report import report
from tests.combinations import first_ones

RUNNER = CliRunner()
START = {"round": np.zeros(1)}
QUICK = {"start": START, "fit": FitRows(starts=1, steps=8), "seeds": 5, "rounds": 1}


def many(seed):
    """Clients of eight rows, of which nobody's row is read off by luck."""
    rng = np.random.default_rng(seed)
    return [Dataset(rng.normal(size=(8, 4)), rng.integers(0, 2, 8)) for _ in range(5)]


def responses(seed):
    return [Dataset(data.x, data.x @ np.arange(4.0) + data.y) for data in many(seed)]


def statistics(rows, broadcast, labels):
    return {"gram": rows.T @ rows, "products": rows.T @ labels}


def scaled(rows, broadcast):
    """Tells the Gram matrix and no row, and is no sum over rows."""
    gram = rows.T @ rows
    return {"y": gram / (1 + np.trace(gram) / 40)}


def found(function, given=many, **arguments):
    return audit_algorithm(function, given, **{"view": ["server"], **QUICK, **arguments})


def best(audit, secret, view="server"):
    cells = [cell for cell in audit.cells if (cell.secret, cell.view) == (secret, view)]
    return max(cells, key=lambda cell: cell.leakage.mean)


@pytest.mark.exhaustive
@pytest.mark.parametrize("given", first_ones([responses, many]))
def test_sufficient_statistics_with_labels_fail_the_gate_by_their_gram_matrix(given) -> None:
    with pytest.raises(AssertionError, match=r"server, gram, generic/probe: up to 1\.00"):
        assert_leakage_below(0.7, statistics, given, **{**QUICK, "seeds": 10})
    assert best(found(statistics, given), "gram").verdict.word == EXPOSED


@pytest.mark.exhaustive
def test_an_estimate_of_rows_is_scored_for_its_gram_matrix() -> None:
    """Rows are open up to a rotation, and the probe refuses: only the fit's own Gram matrix gives it away."""
    audit = found(scaled, clients, seeds=4, fit=FitRows(starts=1, steps=20))
    (gram,) = [cell for cell in audit.cells if (cell.attack, cell.secret) == ("generic/fit", "gram")]
    assert gram.reach.derived and gram.verdict.word == EXPOSED and gram.figure("error") < 1e-3
    assert best(audit, "samples").leakage.mean < 0.5
    assert not any(cell.attack == "generic/probe" for cell in audit.cells)


@pytest.mark.exhaustive
def test_a_gram_matrix_under_noise_is_looked_for_by_itself() -> None:
    def blurred(rows, broadcast, rng):
        return {"gram": rows.T @ rows + rng.normal(size=(4, 4))}

    audit = found(blurred, seeds=10)
    assert best(audit, "gram").leakage.low > 0.5 > best(audit, "samples").leakage.high


def test_what_was_not_scored_was_not_looked_for() -> None:
    audit = found(lambda rows, b: {"y": np.tanh(rows).mean(0)}, clients, fit=FitRows(most=3), view=["server"])
    assert any(cell.secret == "gram" for cell in audit.cells)  # by regression, which sees not all there is
    for secret in ("gram", "samples"):
        assert "no attack would have seen a leak" in (unsearched(audit, "server", secret) or "")
        with pytest.raises(AssertionError, match=f"{secret}: no attack would have seen"):
            assert_leakage_below(0.99, audit, secrets=[secret])
    assert unsearched(audit, "server", "pooled gram") is None  # the server's view is of one client
    seen = found(scaled, clients, fit=FitRows(starts=1, steps=20))
    assert unsearched(seen, "server", "gram") is None and unsearched(seen, "server", "samples") is None


@pytest.mark.exhaustive
def test_a_sum_of_gram_matrices_is_everybodys_and_no_clients() -> None:
    audit = found(lambda rows, b: {"gram": rows.T @ rows}, clients, view=["sum only"], seeds=10)
    assert best(audit, "pooled gram", "sum only").verdict.word == EXPOSED
    assert best(audit, "gram", "sum only").leakage.high < 0.05
    with pytest.raises(AssertionError, match="all clients' data was reconstructed"):
        assert_leakage_below(0.7, audit, views="sum only", secrets=["gram", "pooled gram"])
    assert assert_leakage_below(0.7, audit, views="sum only", secrets=["gram", "samples"]) is audit


@pytest.mark.exhaustive
def test_the_baseline_of_pooled_data_knows_no_two_columns_relation() -> None:
    def moments(rows, broadcast):
        return {"y": np.concatenate([rows.sum(0), (rows**2).sum(0)])}

    audit = found(moments, clients, view=["sum only"], seeds=10)
    assert abs(best(audit, "pooled gram", "sum only").leakage.mean) < 0.2  # means and spreads are in the guess


WORDS = ("order", "last", "weight", "rounded")
UNUSUAL = [planted for planted in PLANTED if any(word in planted.name for word in WORDS)]


@pytest.mark.parametrize("planted", first_ones(UNUSUAL), ids=[planted.name for planted in UNUSUAL])
def test_unusual_leaks_are_found(planted) -> None:
    assert not failures([check(planted, 4)])


def test_the_order_of_the_tensors_is_a_message_too() -> None:
    def ordered(rows, broadcast):
        names = ("x", "y") if rows[0, 0] > 0 else ("y", "x")
        return {name: np.ones(2) for name in names}

    with pytest.raises(DataError, match=r"client \d, round 0 .*order .* gives them away: return every message in one"):
        found(ordered, clients)
    found(lambda rows, b: {"y": np.ones(2), "x": rows.sum(0)}, clients, seeds=1)  # one order, whichever


@pytest.mark.exhaustive
def test_numbers_of_labels_are_solved_for_where_messages_are_moments() -> None:
    def sums(rows, broadcast, labels):
        return {"y": np.eye(3)[labels].T @ rows, "n": np.bincount(labels, minlength=3)}

    audit = found(sums, labelled, seeds=4)
    probed = next(cell for cell in audit.cells if (cell.attack, cell.secret) == ("generic/probe", "labels"))
    assert probed.leakage.low > 0.999
    blind = found(lambda rows, b, labels: {"y": rows.T @ rows}, labelled, seeds=2)
    assert any("probe of labels: the messages do not depend on labels" in reason for reason in blind.skipped)


# --- what did not run -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def broken(tmp_path_factory):
    """The issue's file: data times 1e12, on which every run of DSGD leaves the numbers."""
    path = tmp_path_factory.mktemp("data") / "large.npz"
    digits = load_digits()
    np.savez(path, x=digits.data * 1e12, y=digits.target)
    return str(path)


def audit_of(*arguments):
    quick = ["--defenses", "plain", "--seeds", "2", "--clients", "4", "--workers", "1"]
    return RUNNER.invoke(app, ["audit", *quick, *arguments], env={"COLUMNS": "200"})


@pytest.mark.exhaustive
def test_an_audit_of_which_nothing_ran_fails_and_shows_why(broken, tmp_path) -> None:
    arguments = ["--data", broken, "--algorithms", "optimization/dsgd", "--out", str(tmp_path)]
    done = audit_of(*arguments, "--fail-above", "0.2")
    assert done.exit_code == 3, done.output
    saved = json.loads((tmp_path / "audit.json").read_text())
    assert not saved["cells"]
    assert [(item["ran"], item["asked"]) for item in saved["missing"]] == [(0, 2)]
    shown = " ".join(done.output.split())
    assert "0 of 2 seeds ran: client" in shown and "did not run: DSGD, Plain: 0 of 2 seeds ran" in shown
    assert "diverged" in (tmp_path / "audit.html").read_text()
    assert audit_of(*arguments).exit_code == 0  # no gate was asked for
    same = ["compare", *[str(tmp_path / "audit.json")] * 2]
    assert RUNNER.invoke(app, [*same, "--fail-on-growth"]).exit_code == 3
    assert RUNNER.invoke(app, same).exit_code == 0


@pytest.mark.exhaustive
def test_one_algorithm_that_did_not_run_among_others_fails_the_gate(broken, tmp_path) -> None:
    both = ["--data", broken, "--algorithms", "optimization/dsgd,pca/ssi", "--attacks", "gram/power"]
    # fresh noise leaves an error of about 1e-3 in the pooled second moments, so that some audits leak up to .9995
    done = audit_of(*both, "--defenses", "dp", "--fail-above", "0.999999", "--out", str(tmp_path))
    assert done.exit_code == 3
    said = " ".join(done.output.split())
    assert "did not run: DSGD, DP+SA: 0 of 2 seeds ran" in said and "above" not in said.split("Report:")[1]


def test_what_the_data_do_not_suit_fails_a_gate_that_names_nothing(tmp_path) -> None:
    np.savez(tmp_path / "bare.npz", x=np.random.default_rng(0).uniform(0, 1, (60, 4)))
    bare = ["--data", str(tmp_path / "bare.npz"), "--out", str(tmp_path / "out"), "--fail-above", "0.99"]
    done = audit_of(*bare)
    assert done.exit_code == 3
    assert "did not run: DSGD: 0 of 2 seeds ran: this algorithm needs labels" in " ".join(done.output.split())


@pytest.mark.parametrize("limit", ["1.5", "-0.1", "1", "nan", "inf"])
def test_limits_that_are_no_leakage_are_refused_by_name(limit, tmp_path) -> None:
    refused = audit_of("--algorithms", "ssi", "--out", str(tmp_path / "none"), "--fail-above", limit)
    assert refused.exit_code == 2
    said = " ".join(refused.output.split())
    assert "--fail-above takes a leakage of at least 0" in said and f"got {float(limit):g}" in said
    assert not (tmp_path / "none").exists()
    with pytest.raises(ConfigError, match="got"):
        require_limit(float(limit), "a limit")
    require_limit(0.0, "a limit")


def test_a_gate_has_a_reason_for_each_gap_and_none_without() -> None:
    assert len(check_gaps()) == 7 and not failures(check_gaps())
    quiet = report(audited("pca/ssi", "plain", "server", 0.01))
    assert not reasons(quiet, 0.5)
    (above,) = reasons(report(audited("pca/ssi", "plain", "server", 0.8)), 0.5)
    assert str(above).startswith("above: pca/ssi, plain, server, gram/power, client: up to")
    (empty,) = reasons(report(), 0.5)
    assert str(empty) == "did not run: the audit: it holds no cell"
