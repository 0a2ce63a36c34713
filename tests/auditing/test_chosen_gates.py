"""A gate judges the views and secrets that are named, and fails where what it is to judge was not attacked."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from securefed import algorithms
from securefed._auditing.engine.incomplete_results import Missing
from securefed._auditing.engine.results import FEDERATION
from securefed._auditing.gate.leakage_limits import reasons
from securefed._commands.cli import app
from securefed.errors import ConfigError
from securefed.testing import assert_leakage_below, parametrize_with_checks
from tests.auditing.test_report import cell, report

HELD = cell("pca/ssi", "ddp", "sum only", 0.0)
POOLED = cell("pca/ssi", "ddp", "sum only", 0.9, FEDERATION)
BEFORE_NOISE = cell("pca/ssi", "dp", "sum only", 0.9)
PUBLISHED = cell("pca/ssi", "dp", "released", 0.0)
FULL = report(HELD, POOLED, BEFORE_NOISE, PUBLISHED)
SMALL = ["--algorithms", "ssi", "--clients", "4", "--seeds", "2", "--rounds", "3", "--workers", "1"]


@pytest.mark.parametrize(
    ("views", "secrets", "says"),
    [
        (["released"], ["client"], ["did not run: pca/ssi, ddp: no attack looked at released or client under it"]),
        (["sum only"], ["client"], ["above: pca/ssi, dp, sum only, gram/power, client: up to 0.910"]),
        (
            ["sum only", "collusion(3)"],
            ["federation"],
            ["above", "did not run: pca/ssi, collusion(3): no attack", "did not run: pca/ssi, dp: "],
        ),
        (["active server"], [], ["did not run: pca/ssi, active server: no attack looked there"]),
    ],
)
def test_the_gate_judges_what_is_named_and_nothing_passes_unseen(views, secrets, says) -> None:
    found = [str(reason) for reason in reasons(FULL, 0.2, views, secrets)]
    assert len(found) == len(says)
    for reason, begins in zip(found, says, strict=True):
        assert reason.startswith(begins)
    with pytest.raises(AssertionError, match=r"leakage is not below 0\.2"):
        assert_leakage_below(0.2, FULL, views=views, secrets=secrets or ["client", "federation"])


def test_a_protection_passes_by_the_view_and_the_secret_that_it_protects() -> None:
    own = report(HELD, POOLED)
    assert not reasons(own, 0.2, ["sum only"], ["client"])
    assert assert_leakage_below(0.2, own, views="sum only", secrets=["client"]) is own
    with pytest.raises(AssertionError, match="federation: up to"):
        assert_leakage_below(0.2, own, views="sum only")


GAP = Missing("pca/faps", "ddp", "", "", 0, 10, "diverged")


def test_a_gap_counts_in_the_views_that_are_named() -> None:
    for view, fails in (("", True), ("sum only", True), ("changing survivors", False)):
        gaps = replace(report(HELD), missing=(replace(GAP, view=view),))
        assert bool(reasons(gaps, 0.2, ["sum only"], ["client"])) == fails


def test_an_audit_of_an_own_algorithm_with_a_gap_does_not_pass() -> None:
    """Its secrets have names of their own, and the other gate judges it."""
    quiet = report(cell("mine", "plain", "server", 0.0, "gram"))
    assert assert_leakage_below(0.5, quiet, secrets=["gram"]) is quiet
    with pytest.raises(ConfigError, match='attacked in the view "sum only" alone; add it to views'):
        assert_leakage_below(0.5, quiet, secrets=["gram", "pooled gram"])
    with pytest.raises(AssertionError, match="did not run all that it was asked for: FAPS, DDP"):
        assert_leakage_below(0.5, replace(quiet, missing=(GAP,)), secrets=["gram"])


def test_an_empty_list_has_no_checks_and_is_refused_and_its_remedy_works() -> None:
    with pytest.raises(ConfigError, match=r"got none. Write \[MyAlgorithm\(...\)\]"):
        parametrize_with_checks([])
    assert parametrize_with_checks([algorithms.SSI(rank=2)]).args[1]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            ["--views", "sum"],
            "--views takes server, sum only, smallest sum, changing survivors, server + key holder",
        ),
        (["--secrets", "rows"], "--secrets takes client, federation, or of an algorithm of your own gram"),
        (["--views", "collusion(many)"], "or collusion(N) for N clients that help the server; got collusion(many)"),
    ],
)
def test_unknown_names_are_refused_before_anything_runs(tmp_path: Path, options: list[str], says: str) -> None:
    done = CliRunner().invoke(app, ["audit", *SMALL, "--fail-above", "0.2", *options, "--out", str(tmp_path / "out")])
    assert done.exit_code == 2 and says in " ".join(done.output.split())
    assert not (tmp_path / "out").exists()


def test_names_without_a_gate_are_refused_and_the_gate_that_is_named_works(tmp_path: Path) -> None:
    command = ["audit", *SMALL, "--defenses", "secure_aggregation", "--out", str(tmp_path / "out")]
    chosen = ["--views", "sum only", "--secrets", "client"]
    refused = CliRunner().invoke(app, [*command, *chosen])
    assert refused.exit_code == 2 and "add --fail-above 0.2, or leave them out" in " ".join(refused.output.split())
    passed = CliRunner().invoke(app, [*command, *chosen, "--fail-above", "0.2"])
    assert passed.exit_code == 0, passed.output
    failed = CliRunner().invoke(app, [*command, "--fail-above", "0.2"], env={"COLUMNS": "200"})
    assert failed.exit_code == 3 and "federation" in failed.output  # the control: a sum gives all clients' data away
