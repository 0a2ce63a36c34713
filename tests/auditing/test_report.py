"""The page shows each cell under its own heading; findings and remedies say what the cells say; two audits compare."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import fields, replace

import numpy as np
import pytest

from securefed._auditing.engine.audit_report import Report
from securefed._auditing.engine.cell_parts import EstimateFigures, Reach, Read, RunCounts
from securefed._auditing.engine.results import CLIENT, FEDERATION, Cell
from securefed._auditing.engine.run_costs import RunCosts
from securefed._auditing.engine.statistics import Interval, Verdict, verdict
from securefed._auditing.gate.leakage_limits import leaks
from securefed._auditing.report import audit_json, charts, comparison
from securefed._auditing.report.algorithm_section import section
from securefed._auditing.report.audit_page import render
from securefed._auditing.report.cards import cards
from securefed._auditing.report.selections import Remedy, remedies, strongest, worst
from securefed.errors import DataError
from tests.auditing.page import sections, tables, text
from tests.auditing.test_advice_values import ADVICE

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
    """Make a cell of ten runs; the fields of its parts are given by their names."""
    found = Interval(leak, leak - 0.01, leak + 0.01, 10, 0.01)
    explained = float(changes.get("explained", 1.0))  # type: ignore[arg-type]
    parts = {
        "runs": RunCounts(exposed=10 if leak > 0.9 else 0, explained=1.0),
        "figures": EstimateFigures(1 - leak, 1 - leak, 1.0, 0.0, 1.0, 1, 1.0),
        "read": Read(),
        "reach": Reach(),
    }
    own = {}
    for part, values in parts.items():
        names = {field.name for field in fields(values)} & changes.keys()
        own[part] = replace(values, **{name: changes.pop(name) for name in names})  # type: ignore[type-var]
    made = Cell(
        algorithm=algorithm,
        defense=defense,
        view=view,
        attack="gram/power",
        secret=secret,  # type: ignore[arg-type]
        leakage=found,
        null_leakage=NULL,
        verdict=verdict(found, NULL, explained=explained),
        **own,  # type: ignore[arg-type]
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def run(algorithm: str, defense: str, bytes_: float = 100.0, utility: float = 0.9, **more: object) -> RunCosts:
    return RunCosts(algorithm, defense, "", utility, bytes_, 0.1, **more)  # type: ignore[arg-type]


def report(*cells: Cell, costs: Sequence[RunCosts] = ()) -> Report:
    shared = {"data": "digits", "clients": 8, "seeds": 10, "epsilon": 8.0, "delta": 1e-5, "acceptable": 0.1}
    names = dict.fromkeys(c.algorithm for c in cells)
    places = dict.fromkeys((c.algorithm, c.defense) for c in cells)
    known = {(one.algorithm, one.defense) for one in costs}
    return Report(
        version="0",
        command="securefed audit",
        environment={"cores": "2"},
        settings=dict.fromkeys(names, SETTING) | {"audit": shared},
        cells=cells,
        facts=(),
        costs=(*costs, *(run(*place) for place in places if place not in known)),
    )


def remedy(made: Report, algorithm: str, level: float) -> Remedy | None:
    """Return the cheapest defence that holds."""
    return next(iter(remedies(made, algorithm, level)), None)


SMALL = report(
    cell("pca/faps", "plain", "server", 0.4),
    cell("pca/faps", "secure_aggregation", "sum only", 0.03),
    cell("pca/faps", "dp", "sum only", -0.2),
    cell("pca/ssi", "plain", "server", 1.0),
    cell("pca/ssi", "secure_aggregation", "sum only", 0.01),
    cell("pca/ssi", "secure_aggregation", "sum only", 0.98, FEDERATION),
    cell("pca/ssi", "secure_aggregation", "changing survivors", 0.62),
    cell("pca/ssi", "dp", "sum only", -0.1),
    costs=[
        run(name, *values)
        for name in ("pca/faps", "pca/ssi")
        for values in (("secure_aggregation", 150.0), ("dp", 160.0, 0.5))
    ],
)


def test_a_number_that_json_lacks_becomes_null_inside_an_interval_too() -> None:
    unknown = replace(NULL, mean=math.nan, high=math.inf)
    values = cell("pca/ssi", "plain", "server", 0.5, null_leakage=unknown).to_json()
    assert values["null_leakage"]["mean"] is None and values["null_leakage"]["high"] is None
    assert values["null_leakage"]["low"] == NULL.low
    json.dumps(values, allow_nan=False)


def test_every_cell_stands_under_its_own_defence_and_view() -> None:
    """`changing survivors` is first met in the second row, after columns of a later defence."""
    defenses, views, faps, ssi = tables(render(SMALL))[0]
    columns = list(zip(defenses, views, strict=True))
    changing = columns.index(("Secure aggregation", "changing survivors"))
    assert (faps[0], ssi[0]) == ("FAPS Gram matrix", "SSI Gram matrix")
    assert ssi[changing] == "0.62 0.61 to 0.63 partial"
    assert faps[changing] == "not attacked"
    assert ssi[columns.index(("DP on secure aggregation", "sum only"))] == "worse than a guess not detected"


def test_each_algorithm_has_its_section_with_actions_messages_and_costs() -> None:
    series = {"rounds": [1, 2], "middle": [1.0, 0.1], "low": [0.9, 0.05], "high": [1.1, 0.2]}
    curve = {"algorithm": "pca/ssi", "title": "Error by rounds", "note": "Falls.", "series": {"power": series}}
    shown = sections(render(replace(SMALL, curves=(curve,))))
    for name, title in (("pca/ssi", "SSI"), ("pca/faps", "FAPS")):
        (card,) = (one for one in cards(SMALL) if one.algorithm == name)
        assert card.answer in text(render(SMALL)) and card.anchor == name.replace("/", "-")
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
    _, _, _, members, (names, values), settings = tables(html)
    assert dict(zip(names, values, strict=True))["highest"] == "0.97"
    assert [row[-1] for row in members] == ["would show", "0.75", "none", ""]
    assert dict(zip(*settings, strict=True))["also attacked"] == "personal/network"
    assert "epsilon 8, delta 1e-05 for all rounds" in text(html)


def test_batch_statistics_that_are_worse_than_a_guess_say_which_guess_and_why() -> None:
    read = cell("step", "plain", "server", -0.4, "statistics")
    assert "guessed are mean and variance of all clients' rows together" in read.remarks
    assert read.remarks.count("over several batches the weights move") == 1
    assert "a sum shows the mean over its clients" in replace(read, view="sum only").remarks
    assert "guessed" not in cell("step", "plain", "server", 0.4, "statistics").remarks
    assert "guessed" not in cell("step", "plain", "server", -0.4, "samples").remarks
    assert "which a client's own are near" in text(render(report(read)))


def test_a_search_that_failed_is_no_safety_in_any_sentence() -> None:
    stuck = cell("pca/faps", "plain", "server", -0.4, explained=0.0, residual=0.3)
    assert cards(report(stuck))[0].answer == "Not known, and no protection was tried"
    assert remedy(report(stuck), "pca/faps", 0.1) is None
    html = render(report(stuck))
    assert re.search(r'<td [^>]*class="cell unsure"[^>]*><b>attacks failed</b><span></span>', html)
    assert re.search(r'<p class="answer unsure">', html)  # on the first screen
    defence = next(row for row in tables(html)[1] if row[0] == "Plain")
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
    fewer_bytes = cell("pca/faps", "paillier", "sum only", 0.03)
    beside = remedies(
        report(*SMALL.cells, fewer_bytes, costs=[run("pca/faps", "paillier", 120.0), *SMALL.costs]), "pca/faps", 0.1
    )  # it needs a key holder whom all trust
    assert [one.defense for one in beside] == ["secure_aggregation", "paillier", "dp"]
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


def test_few_seeds_are_judged_by_students_upper_end() -> None:
    sums = cell("pca/faps", "secure_aggregation", "sum only", 0.085)  # up to .095, by Student's up to .11 of 3 seeds
    for seeds, holds in ((10, True), (3, False)):
        made = report(replace(sums, leakage=replace(sums.leakage, seeds=seeds)))
        assert (remedy(made, "pca/faps", 0.1) is not None) == holds
        assert (leaks(made, 0.1, ["sum only"], [CLIENT]) == []) == holds


def test_a_small_leak_found_by_a_search_that_failed_is_the_least_that_leaks_and_no_remedy() -> None:
    found = cell("pca/faps", "secure_aggregation", "sum only", 0.08)
    assert found.verdict.word == "partial"
    assert remedy(report(found), "pca/faps", 0.1) is not None
    assert (
        remedy(report(replace(found, runs=RunCounts(explained=math.nan))), "pca/faps", 0.1) is not None
    )  # it does not check
    assert remedy(report(replace(found, runs=RunCounts(explained=0.0))), "pca/faps", 0.1) is None


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


def test_every_note_says_of_which_views_it_is() -> None:
    cells = [cell("pca/ssi", "paillier", view, 0.0) for view in ("a", "b", "c")]
    costs = [replace(run("pca/ssi", "paillier", note=f"note {note}"), view=view) for view, note in ("aa", "bb", "cb")]
    html = render(report(*cells, costs=costs))
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
        cell("pca/ssi", "secure_aggregation", "sum only", 0.4),
        cell("pca/ssi", "paillier", "sum only", 0.0),
        costs=[run("pca/ssi", "secure_aggregation", 300.0)],
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
        audit_json.read(path)
    path.write_text(json.dumps(SMALL.to_json()))
    assert audit_json.read(path)["version"] == "0"


@pytest.mark.parametrize("written", [4, 0, "2", None])
def test_an_audit_of_a_later_format_is_refused_with_what_to_do(tmp_path, written) -> None:
    path = tmp_path / "audit.json"
    path.write_text(json.dumps(SMALL.to_json() | {"format": written}))
    with pytest.raises(DataError, match=rf"has format {written}, and this release reads formats 1 to 3; compare it"):
        audit_json.read(path)
    now = SMALL.to_json()
    for values in (now, {key: v for key, v in now.items() if key != "format"}, now | {"advice": [ADVICE.to_json()]}):
        path.write_text(json.dumps(values))
        read = audit_json.read(path)
        assert len(read["cells"]) == len(SMALL.cells)
        assert not list(comparison.differences(read, now))  # earlier releases could keep advice in the file


def test_the_costs_name_epsilon_also_where_no_attack_reads_what_it_covers() -> None:
    cells = cell("pca/fedpg", "plain", "server", 1.0), cell("pca/fedpg", "dp", "sum only", 0.0)
    made = report(*cells, costs=[run("pca/fedpg", "dp", epsilon=8.0, covered=("released",))])
    costs = section(made, "pca/fedpg")["costs"]
    assert [row["figures"][-1] for row in costs] == ["", "8"]
