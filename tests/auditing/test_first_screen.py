"""The first screen says what leaks, to whom, how sure that is and what to do, and nothing that the cells do not say."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from securefed._auditing.alerts import Alert
from securefed._auditing.engine.audit_report import Report
from securefed._auditing.engine.cell_parts import RunCounts
from securefed._auditing.engine.incomplete_results import Missing
from securefed._auditing.engine.results import CLIENT, FEDERATION, Artifact
from securefed._auditing.engine.statistics import EXPOSED, NOT_DETECTED, PARTIAL, Verdict
from securefed._auditing.registered.attacker import CHANGING_SURVIVORS
from securefed._auditing.report import charts
from securefed._auditing.report.actions import actions
from securefed._auditing.report.audit_page import render
from securefed._auditing.report.decision import decision
from securefed._auditing.report.observers import observers
from securefed._auditing.report.outcomes import outcomes
from securefed._auditing.report.pooled_sentence import pooled
from securefed._auditing.report.selections import remedies
from securefed._auditing.report.sureness import gaps, sureness
from tests.auditing.page import tables, text
from tests.auditing.test_report import SMALL, cell, report, run

STUCK = cell("pca/fedpg", "secure_aggregation", "sum only", -0.4, explained=0.0)
"""An attack on sums that failed."""
OPEN = report(
    *SMALL.cells,
    cell("optimization/dsgd", "plain", "server", 1.0),
    cell("optimization/dsgd", "secure_aggregation", "sum only", 1.0),
    cell("optimization/dsgd", "secure_aggregation", "collusion(7)", 1.0),
    cell("pca/fedpg", "plain", "server", 1.0),
    STUCK,
)


def rows(made: Report) -> dict[tuple[str, str], list[list[str]]]:
    return {
        (row.protections, row.party): [[g.words for g in groups] for groups in row.cells] for row in observers(made)
    }


def test_each_party_is_named_with_what_it_finds_and_protections_with_one_effect_share_a_row() -> None:
    found = rows(OPEN)
    assert found["None", "the server, which reads every message"] == [
        ["exposed: SSI, DSGD, FedPG", "partly exposed: FAPS"],
        [],
    ]
    sums = found["Secure aggregation", "the server, which reads only sums"]
    assert sums == [
        ["exposed: DSGD", "not known: FedPG", "no leak found: FAPS, SSI"],
        ["exposed: SSI", "not attacked: FAPS, DSGD, FedPG"],
    ]
    assert found["Secure aggregation", "the server with the help of 7 of 8 clients"] == [
        ["exposed: DSGD", "not attacked: FAPS, SSI, FedPG"],
        [],
    ]
    assert found["Secure aggregation", "the server, where clients come and go"] == [
        ["partly exposed: SSI", "not attacked: FAPS, DSGD, FedPG"],
        [],
    ]
    sums = [replace(c, defense="paillier") for c in OPEN.cells if c.defense == "secure_aggregation"]
    alike = rows(report(*OPEN.cells, *(c for c in sums if c.view == "sum only")))
    assert [key[0] for key in alike if "Paillier" in key[0]] == ["Secure aggregation or Paillier"]
    apart = rows(report(*OPEN.cells, *(c for c in sums if c.view == "sum only" and c.algorithm == "pca/ssi")))
    assert [key[0] for key in apart if "Paillier" in key[0]] == ["Paillier"]


def test_a_party_that_sees_sums_before_the_noise_is_said_to() -> None:
    early = report(
        cell("pca/ssi", "dp", "sum only", 1.0),
        cell("pca/ssi", "dp", "released", 0.0),
        costs=[run("pca/ssi", "dp", epsilon=8.0, covered=("released",))],
    )
    assert [row.party for row in observers(early)] == [
        "everyone else, from what is published",
        "the server, which reads only sums, before the noise",
    ]
    shares = report(
        cell("pca/ssi", "ddp", "sum only", 0.0), costs=[run("pca/ssi", "ddp", epsilon=8.0, covered=("sum only",))]
    )
    assert [row.party for row in observers(shares)] == ["the server, which reads only sums with noise"]
    lying = report(
        cell("pca/ssi", "ddp", "active server", 0.0), costs=[run("pca/ssi", "ddp", epsilon=8.0, covered=("sum only",))]
    )
    assert [row.party for row in observers(lying)] == [
        "a server that lies, and chooses what it sends, and sees sums with noise"
    ]
    assert [group.words for row in observers(early) for group in row.cells[0]] == ["no leak found", "exposed"]


def test_the_decision_agrees_with_the_actions() -> None:
    assert decision(OPEN) == (
        "Without protection, the server can compute a client's data in SSI, DSGD and FedPG and a part of them in FAPS. "
        "With protection no more than the accepted leak is left in FAPS and SSI as long as the same clients take part "
        "in every round; they still leak in DSGD; it is not known for FedPG. 1 client or more together with the server "
        "may open it. That is about single clients: the sums give all clients' data together away in SSI. What the "
        "sums tell of all clients' data together was not attacked in FAPS."
    )
    said = [action.what for action in actions(OPEN)]
    assert said == [
        "Use secure aggregation or DP on secure aggregation for FAPS and SSI and keep the same clients in every round.",
        "Treat the messages of DSGD like the data themselves.",
        "Do not rely on a protection of FedPG yet.",
        "Decide whether the server may know all clients' data together.",
        "Keep most of the clients independent of the server.",
        "Ask which settings keep the leak of DSGD within 0.1.",
    ]


def test_a_protection_that_holds_only_while_clients_stay_is_advised_with_that_condition() -> None:
    fixed = report(*(c for c in SMALL.of("pca/ssi") if c.defense != "dp"))
    assert decision(fixed).endswith(
        "as long as the same clients take part in every round. 1 client or more together with the server may open it. "
        "That is about single clients: the sums give all clients' data together away."
    )
    first = actions(fixed)[0]
    assert first.what == "Use secure aggregation for SSI and keep the same clients in every round."
    assert first.why == (
        "No leak above 0.06 of one client's data is left that these attacks see (accepted: 0.1), at 1.5 times the "
        "bytes. That is true so far: as long as the same clients take part in every round; where clients stay away, "
        "sums over clients that come and go leak; not tested: sums over as few clients as the threshold allows; 1 "
        "client or more together with the server may open it."
    )
    leaking = [replace(c, leakage=replace(c.leakage, high=0.3)) if c.view == "sum only" else c for c in fixed.cells]
    assert actions(report(*leaking))[0].what == "Treat the messages of SSI like the data themselves."


def test_no_protection_is_advised_against_nothing_and_none_is_called_safe() -> None:
    quiet = report(cell("pca/ssi", "plain", "server", 0.0), cell("pca/ssi", "paillier", "sum only", 0.0))
    assert decision(quiet) == (
        "No attack here learnt a client's data even from unprotected messages. What the sums tell of all clients' data "
        "together was not attacked."
    )
    assert "Other attacks may find more." in actions(quiet)[0].why
    stuck = report(cell("pca/ssi", "plain", "server", 0.0, explained=0.0))
    assert decision(stuck) == (
        "Whether unprotected messages give a client's data away is not known: the attacks failed or scatter too much."
    )
    assert actions(stuck)[0].what == "Settle what is not known."


def test_how_sure_it_is_counts_runs_power_failures_and_gaps() -> None:
    runs, power, unknown, lying = sureness(OPEN)
    assert runs.startswith("Every figure is the mean of 10 runs")
    assert power == (
        "“No leak found” (4 of 13 situations) is true of leaks that these attacks can see, and they notice mean leaks "
        "of 0.06. Others may find more."
    )
    assert unknown.startswith("“Not known” (1 of 13)")
    assert lying.endswith("A server that lies was not tried: add --active to the command.")
    assert sureness(replace(OPEN, command="securefed audit --active"))[-1] == unknown
    assert gaps(OPEN) == ""
    lacking = replace(OPEN, missing=(Missing("pca/ssi", "dp", "released", "", 0, 10, "no rows"),))
    assert gaps(lacking) == "1 part of the audit did not run, or not in full"
    assert 'href="#not-run"' in render(lacking) and 'id="not-run"' in render(lacking)
    few = {**OPEN.settings, "audit": {**OPEN.settings["audit"], "seeds": 3}}
    assert "10 would make them narrower" in sureness(replace(OPEN, settings=few))[-1]
    few["audit"]["seeds"] = 1
    assert "One run only" in sureness(replace(OPEN, settings=few))[-1]


def test_numbers_below_a_guess_are_words_everywhere() -> None:
    worse = replace(cell("pca/ssi", "plain", "server", -2.28), verdict=Verdict(NOT_DETECTED, 0.1))
    page = text(render(report(worse)))
    assert not re.search(r"-\d+\.\d\d\b", page)
    assert "worse than a guess" in page
    lucky = replace(worse, verdict=Verdict(PARTIAL, 0.1), runs=RunCounts(highest=0.9999))
    assert "worse than a guess partial one run: 1.00" in text(render(report(lucky)))
    wide = replace(worse, leakage=replace(worse.leakage, mean=0.02, low=-0.3, high=0.34))
    assert "up to 0.34" in text(render(report(wide)))


def test_a_wide_interval_is_no_leak_and_no_safety() -> None:
    """Under a protection whose interval reaches above the level, without a leak that was found, nothing is known."""
    leak = cell("pca/ssi", "plain", "server", 1.0)
    quiet = cell("pca/ssi", "secure_aggregation", "sum only", 0.02)
    wide = replace(quiet, leakage=replace(quiet.leakage, high=0.3))
    found = replace(wide, verdict=Verdict(PARTIAL, 0.1))
    kinds = [outcomes(report(leak, one))[0].kind for one in (quiet, wide, found)]
    assert kinds == ["fixed", "unknown", "open"]  # clients that come and go were not attacked


def artifact(secret: str, truth: np.ndarray, shape: tuple[int, int] | None = None) -> Artifact:
    return Artifact("pca/ssi", "plain", "server", "gram/power", secret, truth, truth.copy(), shape)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "truth", "shape", "shown"),
    [
        ("samples", np.eye(3, 4), (2, 2), "<img"),
        ("samples", np.eye(3, 40), None, "record 3"),
        ("gram", np.eye(4), None, "<img"),
        ("distances", 1 - np.eye(6), None, 'class="graph"'),
        ("samples", np.array(["a cat", "a dog"]), None, "a cat"),
    ],
)
def test_what_was_recovered_stands_beside_the_original_by_its_kind(kind, truth, shape, shown) -> None:
    made = report(cell("pca/ssi", "plain", "server", 1.0))
    made.settings["pca/ssi"] = {**made.settings["pca/ssi"], "secret": kind}  # type: ignore[index]
    html = render(replace(made, artifacts=(artifact(CLIENT, truth, shape),)))
    assert shown in html[html.index("What attacks computed") : html.index("<h2>One client")]
    assert shown in html[html.index('id="pca-ssi"') :]


def test_a_graph_of_wrong_distances_shows_its_wrong_edges() -> None:
    rng = np.random.default_rng(0)
    points = rng.normal(size=(7, 2))
    true = ((points[:, None] - points[None]) ** 2).sum(axis=-1)
    made = report(cell("pca/ssi", "plain", "server", 1.0))
    made.settings["pca/ssi"] = {**made.settings["pca/ssi"], "secret": "distances"}  # type: ignore[index]
    right = artifact(CLIENT, true)
    wrong = replace(right, estimate=true.max() - true)
    pages = [render(replace(made, artifacts=(item,))) for item in (right, wrong)]
    assert [page.count('class="wrong"') > 0 for page in pages] == [False, True]


def test_pooled_data_and_helpers_are_warned_of_only_where_they_leak() -> None:
    whole = report(cell("pca/ssi", "secure_aggregation", "sum only", 0.98, FEDERATION))
    assert [action.what for action in actions(whole)] == [
        "Decide whether the server may know all clients' data together.",
        "Ask which settings keep the leak of SSI within 0.1.",
    ]
    noised = cell("pca/ssi", "ddp", "sum only", 0.0, FEDERATION)
    assert actions(report(*whole.cells, noised))[0].why.startswith("Sums give them away under secure aggregation here.")
    both = cell("pca/faps", "secure_aggregation", "sum only", 0.9, FEDERATION)
    apart = actions(report(*whole.cells, both, replace(noised, verdict=whole.cells[0].verdict)))[0].why
    assert apart.startswith(
        "Sums give them away under secure aggregation in every algorithm; under Distributed DP in SSI."
    )
    twice = replace(whole.cells[0], view=CHANGING_SURVIVORS)  # one algorithm in two views is not two algorithms
    quiet = cell("pca/faps", "secure_aggregation", "sum only", 0.0, FEDERATION)
    assert "under secure aggregation in SSI. " in actions(report(*whole.cells, twice, quiet))[0].why
    helped = report(cell("pca/ssi", "paillier", "server + key holder", 1.0))
    assert actions(helped)[0].what == "Keep the key holder independent of the server."
    assert len(actions(report(cell("pca/ssi", "paillier", "server + key holder", 0.0)))) == len(actions(helped)) - 1
    bare = report(cell("pca/ssi", "plain", "collusion(7)", 1.0))
    assert not any("independent" in action.what for action in actions(bare)), "no protection that they could undo"


def test_a_server_that_lies_is_named_and_warned_of_where_it_gets_past_a_protection() -> None:
    honest = cell("optimization/dsgd", "secure_aggregation", "sum only", 0.0)
    lying = cell("optimization/dsgd", "secure_aggregation", "active server", 0.7)
    made = report(honest, lying)
    assert [row.party for row in observers(made)][1] == "a server that lies, and chooses what it sends"
    warned = [action.what for action in actions(made)]
    assert "Make sure that the server of DSGD cannot send what it likes." in warned
    assert len(actions(report(honest, replace(lying, defense="plain")))) == len(warned) - 1
    assert "A server that lies computes a part of a client's data in spite of secure aggregation." in decision(made)
    quiet = cell("optimization/dsgd", "ddp", "active server", 0.0)
    why = next(action.why for action in actions(report(honest, lying, quiet)) if "cannot send" in action.what)
    assert why.endswith("in spite of secure aggregation. Under Distributed DP it found nothing.")
    said = decision(report(honest, quiet))
    assert (
        "A server that lies was tried by gram/power: it read at most 0.00 of a client's data. It found no leak" in said
    )
    weak = replace(quiet, verdict=Verdict(NOT_DETECTED, 0.75))
    assert "Whether it reads more under a protection is not known." in decision(report(honest, weak))
    asked = replace(report(honest), command="securefed audit --active")
    assert decision(asked).endswith(
        "asked for, but no such attack applies: none of them looks for the secret of this algorithm."
    )
    assert "A server that lies" not in decision(report(honest))


def test_a_server_that_lies_to_several_algorithms_is_said_of_each() -> None:
    """All of the data in one algorithm and a part in another; in the clear of a third, whatever leaks elsewhere."""
    exposed = cell("optimization/dsgd", "secure_aggregation", "active server", 1.0)
    partly = cell("pca/ssi", "secure_aggregation", "active server", 0.7)
    assert (exposed.verdict.word, partly.verdict.word) == (EXPOSED, PARTIAL)
    clear = cell("pca/faps", "plain", "active server", 0.7)
    one = "A server that lies computes a part of a client's data in FAPS from unprotected messages."
    assert one in decision(report(clear, cell("pca/ssi", "plain", "active server", 0.0)))  # positive control
    said = decision(report(exposed, partly, clear))
    assert one in said
    assert "a client's data in DSGD and a part of them in SSI in spite of secure aggregation." in said
    also = decision(report(exposed, replace(exposed, defense="plain"), partly))
    assert "from unprotected messages" not in also  # a protection that does not help is enough said


def test_a_curve_of_shares_is_linear_and_its_sizes_are_not() -> None:
    line = {"rounds": [1, 2, 4], "middle": [1.0, 0.5, 0.0], "low": [1.0, 0.4, 0.0], "high": [1.0, 0.6, 0.0]}
    drawn = charts.share_curve("Rows", "", {"the step": line})
    assert "by rows a client. the step: 1 at 1, 0 at 4." in drawn
    points = drawn.split('<polyline points="')[1].split('"')[0]
    places = np.array([[float(value) for value in point.split(",")] for point in points.split()])
    np.testing.assert_allclose(places[1], (places[0] + places[2]) / 2, atol=0.1)
    assert re.findall(r'text-anchor="middle">([^<]+)<', drawn) == ["1", "2", "4", "rows a client"]
    assert charts.share_curve("Rows", "", {"the step": dict.fromkeys(line, ())}) == ""


def test_rounds_whose_labels_would_touch_have_none() -> None:
    line = {"rounds": [1, 2, 32], "middle": [1.0, 0.1, 0.1], "low": [1.0, 0.1, 0.1], "high": [1.0, 0.1, 0.1]}
    drawn = charts.curve("Error", "", {"attack": line})
    assert re.findall(r'text-anchor="middle">([^<]+)<', drawn) == ["1", "32", "rounds seen"]
    assert charts.curve("Error", "", {"attack": line | {"low": [0.0] * 3, "high": [0.0] * 3}}) == ""


def test_an_audit_that_tells_secrets_apart_says_which_of_them_leak() -> None:
    """Counts of labels that are exposed do not expose the rows."""
    made = report(
        cell("step", "plain", "server", 1.0, "labels"),
        cell("step", "plain", "server", 0.3, "samples"),
        cell("step", "plain", "server", 0.0, "gram"),
        cell("step", "plain", "server", 0.6, "membership"),
        cell("step", "secure_aggregation", "sum only", 0.3, "pooled samples"),
    )
    assert decision(made) == (
        "Without protection, the server can compute a client's label counts and a part of its samples. With a record "
        "in hand and rows like the clients', the server can tell whether it was among a client's rows: right in 80% of "
        "comparisons, a coin in 50%."
    )
    assert rows(made) == {
        ("None", "the server, which reads every message"): [
            ["exposed: label counts", "partly exposed: samples", "no leak found: Gram matrix"],
            [],
            ["partly exposed"],
        ],
        ("Secure aggregation", "the server, which reads only sums"): [[], ["partly exposed: samples"], []],
    }
    hidden = report(*(replace(c, verdict=Verdict(NOT_DETECTED, 0.1)) for c in made.cells))
    assert decision(hidden) == (
        "No attack here learnt a client's data even from unprotected messages. Of all clients' data together no leak "
        "was found."
    )


def test_a_protection_under_which_a_known_leak_was_not_looked_for_is_not_advised() -> None:
    plain = [cell("step", "plain", "server", 1.0, secret) for secret in ("labels", "statistics")]
    sums = [cell("step", "secure_aggregation", "sum only", 0.0, secret) for secret in ("labels", "statistics")]
    assert outcomes(report(*plain, *sums))[0].kind == "fixed"
    assert outcomes(report(*plain, sums[0]))[0].kind == "unknown"
    assert remedies(report(*plain, sums[0]), "step", 0.1) == []
    matrix = next(found for found in tables(render(report(*plain, sums[0]))) if found[2:] and "step" in found[2][0])
    assert matrix[2:] == [
        ["step label counts", "1.00 0.99 to 1.01 exposed", "0.00 up to 0.01 not detected"],
        ["step batch statistics", "1.00 0.99 to 1.01 exposed", "not attacked"],
    ]


def test_sizes_stand_above_every_matrix_and_alerts_at_the_top() -> None:
    size = {"clients": 8, "rows of client 0": 1, "rows of the others": 1, "rounds": 6, "epochs": 2}
    settings = {name: {**values, "sizes": size} for name, values in SMALL.settings.items() if name != "audit"}
    settings["audit"] = SMALL.settings["audit"]
    alerts = [Alert("constant column", f"unit {number}", 9, "Leave it out.", f"Unit {number}.") for number in range(7)]
    html = render(replace(SMALL, settings=settings, alerts=tuple(alerts)))
    assert text(html).count("FAPS and SSI: 8 clients, 1 row each, 6 rounds, epochs 2.") == 2  # of a client, and pooled
    shown = [
        text(html).index(part) for part in ("Unit 0. Leave it out.", "Show 2 more", "Unit 6.", "Without protection")
    ]
    assert shown == sorted(shown) and "personal data" not in text(html)
    assert "Look at the data first" not in text(render(SMALL))


def test_a_secret_that_leaks_in_two_views_is_named_once_by_the_worse_of_them() -> None:
    made = report(
        cell("step", "plain", "server", 0.3, "samples"),
        cell("step", "plain", "sum only", 1.0, "samples"),
        cell("step", "plain", "server", 1.0, "labels"),
        cell("step", "plain", "sum only", 1.0, "labels"),
    )
    assert decision(made).startswith("Without protection, the server can compute a client's samples and label counts.")


def test_people_in_the_sums_of_several_algorithms_stand_in_one_sentence() -> None:
    cells = []
    for name, people in (("pca/ssi", "the mean of 3 people (age)"), ("pca/localpower", "the row of one person (ward)")):
        cells += [cell(name, "plain", "server", 1.0), cell(name, "secure_aggregation", "sum only", 0.0)]
        cells.append(cell(name, "secure_aggregation", "sum only", 1.0, "people", part=f"{people} of all clients' rows"))
    said = pooled(report(*cells))
    assert said.count("People stand in the sums") == 1
    assert "reads the mean of 3 people (age) in SSI and the row of one person (ward) in LocalPower." in said
    assert "People" not in pooled(report(*(one for one in cells if one.secret != "people")))  # the control
