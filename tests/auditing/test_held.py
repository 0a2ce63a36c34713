"""A word of safety covers every view that the setting allows, and names what it does not cover."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from securefed import Layout, TensorSpec, audit, chain
from securefed._auditing.advice.advised_words import answers
from securefed._auditing.advice.candidates import Candidate
from securefed._auditing.advice.limits import limits
from securefed._auditing.engine.allowed_views import KEPT, LATE, Allowance, default_threshold, judge
from securefed._auditing.engine.audit_result import AUDIT
from securefed._auditing.engine.incomplete_results import NOT_ATTACKED
from securefed._auditing.engine.results import CLIENT, FEDERATION, Artifact
from securefed._auditing.engine.statistics import EXPOSED
from securefed._auditing.gate.planted_settings import PLANTED_SETTINGS, check_setting
from securefed._auditing.report.audit_page import render
from securefed._auditing.report.cards import cards, conclusion
from securefed._auditing.report.held_settings import to_paste
from securefed._commands.cli import app
from securefed.attacks.views import CHANGING_SURVIVORS, SMALLEST_SUM, SUM_ONLY
from securefed.defenses import ckks, paillier, secure_aggregation, threshold_paillier
from securefed.errors import ConfigError
from tests.auditing import page
from tests.auditing.test_advice_values import ADVICE, SETTING
from tests.auditing.test_report import cell, report

LOCALPOWER = "pca/localpower"
_ABSENT = (SMALLEST_SUM, CHANGING_SURVIVORS)


@pytest.mark.parametrize("clients", [2, 3, 4, 5, 8, 30])
def test_the_threshold_that_a_word_is_judged_by_is_the_protections_own(clients: int) -> None:
    """The smallest sum that the audit attacks is never larger than one that the plan would open."""
    layout, judged = Layout((TensorSpec("x", (4,), 8.0, 64),)), default_threshold(clients)
    for made in (secure_aggregation(), paillier(), ckks())[clients == 2 :]:  # masks of two hide nothing: refused
        assert chain(made).plan(layout, clients).threshold == judged
    assert chain(threshold_paillier()).plan(layout, clients).threshold >= judged
    assert judged >= min(3, clients)  # of a sum over two, each has the other's part


NAMED = {LOCALPOWER: "LocalPower", "pca/faps": "FAPS"}


@pytest.fixture(
    scope="module",
    params=[
        pytest.param([LOCALPOWER], id="LocalPower"),
        pytest.param(list(NAMED), id="with FAPS", marks=pytest.mark.exhaustive),
    ],
)
def swept(request):
    """An audit of LocalPower, or of it and FAPS, under secure aggregation, of three runs."""
    return audit(request.param, ["plain", "secure_aggregation"], seeds=3, workers=1)


def leak(found, view: str, algorithm: str = LOCALPOWER) -> float:
    """The most that an attack reads of one client under secure aggregation in a view."""
    cells = [c for c in found.of(algorithm) if (c.view, c.secret, c.defense) == (view, "client", "secure_aggregation")]
    return max(c.leakage.mean for c in cells)


def test_the_report_advises_localpower_and_faps_only_while_the_same_clients_take_part(swept) -> None:
    assert leak(swept, CHANGING_SURVIVORS) > 0.7
    assert leak(swept, SUM_ONLY) < 0.1
    made = cards(swept)
    assert [card.name for card in made] == [NAMED[name] for name in swept.algorithms]
    for card in made:
        assert card.answer == "Only if the same clients take part in every round, with secure aggregation"
        assert "threshold=8" in card.paste
        assert "threshold=5" not in card.paste
        limits = " ".join(card.parts["What that does not cover"])
        assert "1 client or more together with the server may open a sum." in limits
    assert "Where clients stay away, sums over clients that come and go leak" in " ".join(conclusion(swept))
    assert "as long as the same clients take part in every round" in " ".join(conclusion(swept))


def test_the_json_says_of_every_setting_what_was_attacked_and_what_was_not(swept) -> None:
    held = {(item["algorithm"], item["defense"]): item for item in swept.to_json()["held"]}
    found = held[LOCALPOWER, "secure_aggregation"]
    assert found["word"] == "fixed"
    assert found["allowed"] == [SUM_ONLY, SMALLEST_SUM, CHANGING_SURVIVORS]
    assert CHANGING_SURVIVORS in found["leaks"]
    if "pca/faps" in swept.algorithms:
        assert CHANGING_SURVIVORS in held["pca/faps", "secure_aggregation"]["not known"]


@pytest.mark.exhaustive
def test_every_default_algorithm_is_attacked_where_clients_come_and_go_or_said_not_to_be() -> None:
    names = ["pca/fedpg", "optimization/dsgd", "optimization/losac"]
    found = audit(names, ["plain", "secure_aggregation"], seeds=2, workers=1)
    for name in names[1:]:
        assert leak(found, CHANGING_SURVIVORS, name) > 0.5
    (left,) = [item for item in found.missing if item.view == CHANGING_SURVIVORS]
    assert (left.algorithm, left.kind) == ("pca/fedpg", NOT_ATTACKED)


@pytest.mark.parametrize("planted", PLANTED_SETTINGS, ids=lambda planted: planted.name)
def test_planted_settings_get_their_word(planted) -> None:
    right, said = check_setting(planted)
    assert right, said


def test_colluders_are_declared_attacked_and_named(tmp_path) -> None:
    given = ["--algorithms", "ssi", "--defenses", "secure_aggregation,ddp", "--seeds", "3", "--workers", "1"]
    run = CliRunner().invoke(app, ["audit", *given, "--colluders", "2", "--out", str(tmp_path)])
    assert run.exit_code == 0, run.output
    found = json.loads((tmp_path / "audit.json").read_text())
    assert "--colluders 2" in found["command"]
    assert {c["view"] for c in found["cells"] if c["defense"] == "ddp"} >= {"collusion(2)", CHANGING_SURVIVORS}
    assert {item["colluders"] for item in found["held"]} == {2}
    held = next(item for item in found["held"] if item["defense"] == "secure_aggregation")
    assert held["allowed"][0] == "collusion(2)"
    assert "3 clients or more together with the server may open a sum" in " ".join(run.output.split())


def test_noise_is_advised_for_the_declared_colluders() -> None:
    seen = cell("pca/ssi", "ddp", "sum only", 0.0)
    made = report(seen)
    noised = dict(made.settings["pca/ssi"]) | {"clip": 300.0, "noise multipliers": {"ddp": 2.0}}
    made = replace(made, settings={"pca/ssi": noised, AUDIT: made.settings[AUDIT] | {"colluders": 2}})
    pasted = to_paste(made, "pca/ssi", "ddp")
    assert "--defense-set colluding=2" in pasted
    assert "survivors=5, colluding=2)" in pasted


@pytest.mark.parametrize("colluders", [-1, 7])
def test_a_number_of_colluders_that_leaves_nobody_to_attack_is_refused(colluders: int) -> None:
    with pytest.raises(ConfigError, match="colluders must be an integer"):
        audit(["pca/ssi"], ["plain"], seeds=1, workers=1, colluders=colluders)


def test_the_rule_knows_what_threshold_schedule_and_key_holder_allow() -> None:
    loose, strict = Allowance("paillier", 8, 5), Allowance("secure_aggregation", 8, 8)
    assert loose.allowed == (SUM_ONLY, SMALLEST_SUM, CHANGING_SURVIVORS)
    assert replace(loose, rounds=1).allowed == (SUM_ONLY, SMALLEST_SUM)
    assert strict.allowed == (SUM_ONLY,)
    assert judge(strict, {SUM_ONLY: KEPT}).word == "held"
    assert judge(loose, {SUM_ONLY: KEPT}).word == "fixed"
    assert judge(loose, {}).word == "not tested"
    assert "as long as the key holder does not help the server" in " ".join(judge(loose, {SUM_ONLY: KEPT}).limits)


def test_the_advice_obeys_the_same_rule() -> None:
    loose = Candidate("secure_aggregation", 8, 8, 10, threshold=5)
    assert "Not tested under secure aggregation: sums over clients that come and go." in limits(loose, holds=True)
    assert "as long as the same clients take part in every round" in limits(loose, holds=True)
    strict = limits(replace(loose, threshold=8, colluding=2), holds=True)
    assert "same clients" not in strict
    assert "3 clients or more together with the server may open a sum" in strict
    assert limits(loose, holds=False) == ""
    advised = replace(SETTING, holds=True, limits=limits(loose, holds=True))
    advice = replace(ADVICE, advised=None, tried=(advised,), sentences=("None is usable.", "So it is."))
    assert any(advised.limits in answer.words for answer in answers(advice))


def test_messages_that_no_attack_reads_are_not_attacked_and_the_run_counts_as_complete() -> None:
    found = audit(["pca/fedpg"], ["ddp"], seeds=1, workers=1)
    (left,) = found.missing
    assert (left.kind, left.defense) == (NOT_ATTACKED, "ddp")
    assert ";" not in left.said
    assert len(left.refusals) > 3
    shown = page.text(render(found))
    assert "did not run" not in shown
    assert "1 part of the audit ran and no attack here reads the messages." in shown
    given = ["--algorithms", "fedpg", "--defenses", "ddp", "--seeds", "1", "--workers", "1"]
    run = CliRunner().invoke(app, ["audit", *given])
    assert "did not run" not in run.output
    assert "(1) not attacked: no attack here reads such messages" in run.output


@pytest.mark.parametrize(
    ("secret", "says"), [(CLIENT, "one client's Gram matrix"), (FEDERATION, "all clients' Gram matrix")]
)
def test_pictures_are_named_by_what_they_show(secret, says) -> None:
    matrix, seen = np.eye(4), cell("pca/ssi", "plain", "server", 1.0, secret)
    kept = Artifact("pca/ssi", "plain", "server", seen.attack, secret, matrix, matrix, None)
    shown = page.text(render(replace(report(seen), artifacts=(kept,))))
    assert f"SSI, without protection: {says}" in shown
    assert "client's rows. Left" not in shown


def test_a_method_whose_clients_keep_a_state_says_that_late_joiners_were_not_tested() -> None:
    """FedAvg's clients keep nothing, and the audit attacks a client of SCAFFOLD that joins late."""
    names = [f"optimization/{name}" for name in ("fedsaga", "fedavg", "scaffold")]
    found = audit(names, ["plain", "secure_aggregation"], ["gradient_inversion/naive"], seeds=1, workers=1)
    held = {one["algorithm"]: one for one in found.to_json()["held"] if one["defense"] == "secure_aggregation"}
    assert {name: LATE in one["not tested"] for name, one in held.items()} == dict.fromkeys(names, False) | {
        names[0]: True
    }
    ruling = judge(Allowance("secure_aggregation", 8, 5, late=True), dict.fromkeys((SUM_ONLY, *_ABSENT), KEPT))
    assert ruling.word == "fixed" and "sums that a client joins after the first round." in " ".join(ruling.limits)
    assert judge(Allowance("secure_aggregation", 8, 8, late=True), {SUM_ONLY: KEPT}).word == "held"


@pytest.mark.parametrize(("name", "late"), [("pca/faps", True), ("pca/fedpg", True), ("pca/localpower", False)])
def test_methods_of_pca_whose_clients_keep_a_state_name_late_joiners_too(name: str, late: bool) -> None:
    made = audit([name], ["secure_aggregation"], seeds=1, workers=1)
    (held,) = [one for one in made.to_json()["held"] if one["defense"] == "secure_aggregation"]
    assert (LATE in held["not tested"]) == late


def test_rows_are_found_in_sums_over_clients_that_come_and_go() -> None:
    """Which of the members has which label decides: a search that tries half of the orders gives up before it knows."""
    made = audit(["optimization/dsgd"], ["secure_aggregation"], ["gradient_inversion/fit"], seeds=2, workers=1)
    (found,) = [
        one
        for one in made.cells
        if (one.view, one.attack, one.secret) == ("changing survivors", "gradient_inversion/fit", "client")
    ]
    assert found.verdict.word == EXPOSED and found.leakage.low > 0.99
