"""The page shows each cell under its own heading; findings and remedies say what the cells say; two audits compare."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest

from securefed._auditing.engine.audit_report import Report
from securefed._auditing.engine.results import CLIENT, FEDERATION, NOT_COVERED, Cell
from securefed._auditing.engine.statistics import INCONCLUSIVE, NOT_DETECTED, Interval, Verdict, verdict
from securefed._auditing.report import charts, comparison
from securefed._auditing.report.algorithm_section import section
from securefed._auditing.report.audit_page import headline, render
from securefed._auditing.report.conclusions import finding, remedy, strongest, worst
from securefed.errors import DataError
from tests.auditing.page import sections, tables, text

NULL = Interval(0.0, 0.0, 0.02, 10, 0.01)
SETTING = {
    "hyper-parameters": {"rank": 5},
    "data": "rows",
    "rounds": 10,
    "secret": "gram",
    "clip": 1.0,
    "utility": "captured variance",
}


def cell(algorithm: str, defense: str, view: str, leak: float, secret: str = CLIENT, **changes: object) -> Cell:
    found = Interval(leak, leak - 0.01, leak + 0.01, 10, 0.01)
    explained = float(changes.get("explained", 1.0))  # type: ignore[arg-type]
    made = Cell(
        algorithm=algorithm,
        defense=defense,
        view=view,
        attack="gram/power",
        secret=secret,  # type: ignore[arg-type]
        leakage=found,
        null_leakage=NULL,
        error=1 - leak,
        error_median=1 - leak,
        baseline_error=1.0,
        verdict=verdict(found, NULL, explained=explained),
        utility=0.9,
        bytes_per_client_round=100.0,
        seconds_per_round=0.1,
        epsilon=None,
        failed=0,
        exposed_seeds=10 if leak > 0.9 else 0,
        residual=0.0,
        rank=1.0,
        unknowns=1,
        condition=1.0,
        explained=1.0,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def report(*cells: Cell) -> Report:
    shared = {"data": "digits", "clients": 8, "seeds": 10, "epsilon": 8.0, "delta": 1e-5, "acceptable": 0.1}
    names = dict.fromkeys(c.algorithm for c in cells)
    return Report(
        version="0",
        command="securefed audit",
        environment={"cores": "2"},
        settings=dict.fromkeys(names, SETTING) | {"audit": shared},
        cells=cells,
        facts=(),
    )


SMALL = report(
    cell("pca/faps", "plain", "server", 0.4),
    cell("pca/faps", "secure_aggregation", "sum only", 0.03, bytes_per_client_round=150.0),
    cell("pca/faps", "dp", "sum only", -0.2, utility=0.5, bytes_per_client_round=160.0),
    cell("pca/ssi", "plain", "server", 1.0),
    cell("pca/ssi", "secure_aggregation", "sum only", 0.01, bytes_per_client_round=150.0),
    cell("pca/ssi", "secure_aggregation", "sum only", 0.98, FEDERATION, bytes_per_client_round=150.0),
    cell("pca/ssi", "secure_aggregation", "changing survivors", 0.62, bytes_per_client_round=150.0),
    cell("pca/ssi", "dp", "sum only", -0.1, utility=0.5, bytes_per_client_round=160.0),
)


def test_a_number_that_json_lacks_becomes_null_inside_an_interval_too() -> None:
    unknown = replace(NULL, mean=math.nan, high=math.inf)
    values = cell("pca/ssi", "plain", "server", 0.5, null_leakage=unknown).to_json()
    assert values["null_leakage"]["mean"] is None and values["null_leakage"]["high"] is None
    assert values["null_leakage"]["low"] == NULL.low
    json.dumps(values, allow_nan=False)


def test_every_cell_stands_under_its_own_defence_and_view() -> None:
    """`changing survivors` is first met in the second row, after columns of a later defence."""
    defenses, views, faps, ssi = tables(render(SMALL))[1]
    columns = list(zip(defenses, views, strict=True))
    changing = columns.index(("Secure aggregation", "changing survivors"))
    assert (faps[0], ssi[0]) == ("FAPS Gram matrix", "SSI Gram matrix")
    assert ssi[changing] == "0.62 0.61 to 0.63 partial"
    assert faps[changing] == "not attacked"
    assert ssi[columns.index(("DP on secure aggregation", "sum only"))] == "worse than a guess not detected"


def test_each_algorithm_has_its_section_with_finding_messages_and_costs() -> None:
    series = {"rounds": [1, 2], "middle": [1.0, 0.1], "low": [0.9, 0.05], "high": [1.1, 0.2]}
    curve = {"algorithm": "pca/ssi", "title": "Error by rounds", "note": "Falls.", "series": {"power": series}}
    shown = sections(render(replace(SMALL, curves=(curve,))))
    for name, title in (("pca/ssi", "SSI"), ("pca/faps", "FAPS")):
        assert finding(SMALL, name) in shown[title]
        assert "A client sends" in shown[title]
        assert "bytes per client and round" in shown[title]
    assert "Error by rounds" in shown["SSI"] and "Error by rounds" not in shown["FAPS"]


def test_the_page_shows_what_the_json_says_of_a_cell_a_member_and_a_setting() -> None:
    quiet = cell("pca/ssi", "plain", "server", 0.01, highest=0.97)
    row = {
        "algorithm": "pca/ssi",
        "defense": "plain",
        "adversary": "informed",
        "epsilon": None,
        "verdict": "not detected",
    }
    counts = {"auc": [0.6, 0.5, 0.7], "tpr": [0.1, 0, 0.2], "null": [0.3, 0.7], "members": 12, "others": 12}
    rows = tuple(row | counts | {"detectable": value} for value in (0.5, 1.2, None))
    made = replace(report(quiet), membership=rows)
    made.settings["pca/ssi"] = SETTING | {"also attacked": "personal/network"}  # type: ignore[index]
    html = render(made)
    _, _, _, _, members, (names, values), settings = tables(html)
    assert dict(zip(names, values, strict=True))["highest"] == "0.97"
    assert [row[-1] for row in members] == ["would show", "0.75", "none", ""]
    assert dict(zip(*settings, strict=True))["also attacked"] == "personal/network"
    assert "epsilon 8, delta 1e-05 for all rounds" in text(html)


def test_the_finding_names_what_plain_messages_give_away_and_what_defences_change() -> None:
    text = finding(SMALL, "pca/ssi")
    assert text.startswith("Whoever runs the server of SSI can compute all second moments")
    hiding = (
        "Under secure aggregation, the server still comes 62% of the way to one client's data from sums over different"
    )
    assert f"{hiding} sets of clients and all clients' pooled data can still be computed." in text
    assert "learnt nothing of one client's data, at the price of captured variance: 0.50 and not 0.90." in text
    other = [replace(c, defense="paillier") for c in SMALL.cells if c.defense == "secure_aggregation"]
    assert "Under secure aggregation and Paillier, " in finding(report(*SMALL.cells, *other), "pca/ssi")
    open_ = [cell("pca/ssi", "dp", "sum only", 1.0, secret) for secret in (CLIENT, FEDERATION)]
    both = "one client's data and all clients' pooled data can still be computed."
    assert finding(report(*open_), "pca/ssi").endswith(f"Under DP on secure aggregation, {both}")
    assert finding(SMALL, "pca/faps").startswith("From 10 rounds of plain messages of FAPS the server comes 40%")
    hidden = report(cell("pca/faps", "plain", "server", 0.0))
    assert "a leak of 6% would have been noticed" in finding(hidden, "pca/faps")


def test_a_search_that_failed_is_no_safety_in_any_sentence() -> None:
    stuck = cell("pca/faps", "plain", "server", -0.4, explained=0.0, residual=0.3)
    text = finding(report(stuck), "pca/faps")
    assert "the attack did not fit the messages, with a residual of 0.3, which says nothing about whether" in text
    assert "hidden" not in text
    assert "guessed" not in text
    assert remedy(report(stuck), "pca/faps", 0.1) is None
    assert headline(report(stuck))[0].endswith("gives a client's data away is not known: the attacks failed.")
    html = render(report(stuck))
    assert re.search(r'<td [^>]*class="cell unsure"[^>]*><b>attacks failed</b><span></span>', html)
    assert re.search(r'<span class="word unsure">not known</span>', html)  # on the first screen
    defence = next(row for row in tables(html)[2] if row[0] == "Plain")
    assert defence[1] == "inconclusive, residual 0.3"
    assert 'class="bar"' not in html  # the length of a bar would say something of the data
    blind = cell("pca/faps", "plain", "server", 0.0, attack="gram/consensus", explained=float("nan"))
    assert strongest([stuck, blind]) == strongest([stuck])  # one that checks nothing does not make it good
    sighted = cell("pca/faps", "plain", "server", -0.9, attack="gram/other")
    assert strongest([stuck, sighted]) == strongest([sighted])
    found = cell("pca/faps", "plain", "server", 0.2, attack="gram/third")
    assert strongest([sighted, found]) == strongest([found])


def test_the_remedy_is_the_cheapest_defence_that_holds_in_every_view_of_the_server_alone() -> None:
    cheap = remedy(SMALL, "pca/faps", 0.1)
    assert cheap is not None
    assert (cheap.defense, cheap.bytes) == ("secure_aggregation", 1.5)
    changing = remedy(SMALL, "pca/ssi", 0.1)  # secure aggregation leaks where survivors change
    assert changing is not None
    assert changing.defense == "dp"
    assert changing.lost == pytest.approx(0.4)
    assert remedy(SMALL, "pca/ssi", -0.5) is None
    generous = remedy(SMALL, "pca/ssi", 2.0)
    assert generous is not None
    assert generous.defense == "plain"


def test_attacks_that_would_not_have_noticed_the_leak_show_no_remedy() -> None:
    quiet = cell("pca/faps", "ddp", "sum only", 0.0)
    assert quiet.verdict.word == "not detected"
    for detectable, holds in ((0.06, True), (0.43, False), (math.nan, False)):
        seen = replace(quiet, verdict=replace(quiet.verdict, detectable=detectable))
        assert (remedy(report(seen), "pca/faps", 0.1) is not None) == holds


def test_a_small_leak_found_by_a_search_that_failed_is_the_least_that_leaks_and_no_remedy() -> None:
    found = cell("pca/faps", "secure_aggregation", "sum only", 0.08)
    assert found.verdict.word == "partial"
    assert remedy(report(found), "pca/faps", 0.1) is not None
    assert remedy(report(replace(found, explained=math.nan)), "pca/faps", 0.1) is not None  # it does not check
    assert remedy(report(replace(found, explained=0.0)), "pca/faps", 0.1) is None


def test_membership_that_plain_messages_tell_must_be_attacked_under_a_remedy() -> None:
    sums = cell("pca/faps", "secure_aggregation", "sum only", 0.0)
    plain = cell("pca/faps", "plain", "server", 0.0, "membership")
    assert remedy(report(sums, plain), "pca/faps", 0.1) is not None  # nothing was told
    told = replace(plain, verdict=Verdict("exposed", 0.1))
    assert remedy(report(sums, told), "pca/faps", 0.1) is None
    tried = replace(sums, secret="membership", attack="membership")
    assert remedy(report(sums, told, tried), "pca/faps", 0.1) is not None


def test_a_collusion_does_not_count_against_a_remedy_for_the_server_alone() -> None:
    held = report(*SMALL.of("pca/faps"), cell("pca/faps", "secure_aggregation", "collusion(7)", 0.4))
    found = remedy(held, "pca/faps", 0.1)
    assert found is not None
    assert found.defense == "secure_aggregation"
    assert worst(held, "pca/faps", "secure_aggregation", CLIENT) == held.cells[1]


def test_the_headline_counts_what_is_exposed() -> None:
    assert headline(SMALL)[:2] == [
        "In the clear, the server can compute a client's data in 1 of 2 algorithms (SSI), and a part of it in 1 more "
        "(FAPS).",
        "Under secure aggregation the server sees only sums, which still give away all or part of all clients' "
        "pooled data in SSI; where clients come and go, one client's data in SSI.",
    ]
    many = [cell(f"pca/{name}", "plain", "server", 1.0) for name in ("ssi", "faps", "fedpg")]
    assert headline(report(*many)) == ["In the clear, the server can compute a client's data in all 3 algorithms."]
    quiet = cell("pca/ssi", "secure_aggregation", "sum only", 0.0)
    assert headline(report(quiet)) == [
        "Messages in the clear were not attacked.",
        "Under secure aggregation the server sees only sums, in which no leak was detected.",
    ]
    stuck = cell("pca/ssi", "secure_aggregation", "sum only", 0.0, explained=0.0)
    assert headline(report(stuck))[1].endswith(
        "and the attacks on them failed. Whether one client's data are hidden in SSI is open: attacks failed."
    )
    pooled = cell("pca/ssi", "secure_aggregation", "sum only", 0.5, FEDERATION)
    said = headline(report(stuck, pooled))[1]
    assert "pooled data in SSI. Whether one client's data are hidden in SSI is open" in said
    assert len(strongest(SMALL.cells)) == len(SMALL.cells)


def test_the_headline_calls_attacks_on_records_failed_only_where_they_are() -> None:
    quiet = cell("pca/ssi", "secure_aggregation", "sum only", 0.0, "membership")
    assert quiet.verdict.word == NOT_DETECTED
    assert headline(report(quiet))[1].endswith("sums, in which no leak was detected.")
    stuck = replace(quiet, explained=0.0, verdict=Verdict(INCONCLUSIVE, 3.0))
    assert headline(report(stuck))[1].endswith("sums, and the attacks on them failed.")
    guess = cell("pca/ssi", "secure_aggregation", "sum only", 1.0, "confirmation")  # works on all sums without noise
    assert headline(report(guess)) == ["Messages in the clear were not attacked."]
    assert headline(report(guess, quiet)) == headline(report(quiet))


def test_the_headline_tells_who_is_held_off_by_differential_privacy_and_only_where_it_was_audited() -> None:
    read = cell("optimization/dsgd", "dp", "sum only", 1.0)
    hidden = cell("optimization/dsgd", "dp", "released", -0.6)
    alone = cell("pca/fedpg", "dp", "sum only", 0.0, explained=0.0)
    assert headline(report(read, hidden, alone))[1:] == [
        "Differential privacy adds noise to what the server hands on: the server itself sees sums without it, which "
        "still give away all or part of one client's data in DSGD. Whether one client's data are hidden in FedPG is "
        "open: attacks failed. All others see sums with the noise, in which no leak was detected. FedPG was not "
        "attacked there."
    ]
    pooled = cell("pca/ssi", "dp", "released", 0.2, FEDERATION)
    assert headline(report(hidden, pooled))[1] == (
        "All others see sums with the noise, which still give away all or part of all clients' pooled data in SSI."
    )
    wide = replace(hidden, verdict=Verdict(INCONCLUSIVE, 3.0))  # explained, but no leak would have been noticed
    assert headline(report(wide))[1].endswith("is open: attacks failed or scatter too much to tell.")
    assert not [
        line for line in headline(report(*[c for c in SMALL.cells if c.defense != "dp"])) if "ifferential" in line
    ]
    page = render(report(read, hidden))
    assert "All others see sums with the noise, in which no leak was detected." in page


def test_every_note_says_of_which_views_it_is() -> None:
    first, second = (replace(cell("pca/ssi", "paillier", view, 0.0), note=f"note {view[0]}") for view in ("a", "b"))
    html = render(report(first, second, replace(second, view="c")))
    assert "Paillier (a): note a. Paillier (b, c): note b." in text(html)


def test_a_spectrum_leaves_rounding_out_and_a_matrix_of_zeros_has_none() -> None:
    gram = np.diag([1.0, 0.1, 1e-12])
    assert charts.spectrum("s", gram, gram).count("<circle") == 4
    assert charts.spectrum("s", np.zeros((3, 3)), gram) == ""


def test_a_comparison_calls_a_change_only_beyond_both_intervals() -> None:
    before = SMALL.to_json()
    after = report(
        cell("pca/faps", "plain", "server", 0.41),
        cell("pca/ssi", "plain", "server", 0.5),
        cell("pca/ssi", "secure_aggregation", "sum only", 0.4, bytes_per_client_round=300.0),
        cell("pca/ssi", "paillier", "sum only", 0.0),
    ).to_json()
    rows = {(r.algorithm, r.defense, r.view, r.secret): r for r in comparison.compare(before, after)}
    assert rows["pca/faps", "plain", "server", CLIENT].change == comparison.SAME
    assert rows["pca/ssi", "plain", "server", CLIENT].change == comparison.SHRANK
    grew = rows["pca/ssi", "secure_aggregation", "sum only", CLIENT]
    assert (grew.change, grew.bytes) == (comparison.GREW, 2.0)
    assert rows["pca/ssi", "paillier", "sum only", CLIENT].change == comparison.ADDED
    assert rows["pca/faps", "dp", "sum only", CLIENT].change == comparison.GONE
    assert not [str(item) for item in comparison.differences(before, after)]
    after["settings"]["audit"]["seeds"] = 3
    assert [str(item) for item in comparison.differences(before, after)] == ["audit: seeds was 10, is 3"]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"cells": [{"algorithm": 1}]}'])
def test_what_is_not_an_audit_is_refused_by_name(tmp_path, text) -> None:
    path = tmp_path / "audit.json"
    path.write_text(text)
    with pytest.raises(DataError, match=r"audit\.json"):
        comparison.read(path)
    path.write_text(json.dumps(SMALL.to_json()))
    assert comparison.read(path)["version"] == "0"


@pytest.mark.parametrize("written", [3, 0, "2", None])
def test_an_audit_of_a_later_format_is_refused_with_what_to_do(tmp_path, written) -> None:
    path = tmp_path / "audit.json"
    path.write_text(json.dumps(SMALL.to_json() | {"format": written}))
    with pytest.raises(DataError, match=rf"has format {written}, and this release reads formats 1 to 2; compare it"):
        comparison.read(path)
    for values in (SMALL.to_json(), {key: v for key, v in SMALL.to_json().items() if key != "format"}):
        path.write_text(json.dumps(values))
        assert len(comparison.read(path)["cells"]) == len(SMALL.cells)


def test_a_finding_under_noise_says_that_the_server_sees_the_sums_before_it() -> None:
    cells = cell("pca/ssi", "plain", "server", 1.0), cell("pca/ssi", "dp", "sum only", 1.0, epsilon=NOT_COVERED)
    said = finding(report(*cells), "pca/ssi")
    assert said.endswith(
        "Under DP on secure aggregation, where the server sees the sums before the noise, one client's data can still "
        "be computed."
    )
    assert "before the noise" not in finding(report(cells[0], replace(cells[1], epsilon=8.0)), "pca/ssi")


def test_the_costs_name_epsilon_also_where_no_attack_reads_what_it_covers() -> None:
    cells = cell("pca/fedpg", "plain", "server", 1.0), cell("pca/fedpg", "dp", "sum only", 0.0, epsilon=NOT_COVERED)
    costs = section(report(*cells), "pca/fedpg")["costs"]
    assert [row["figures"][-1] for row in costs] == ["", "8"]
