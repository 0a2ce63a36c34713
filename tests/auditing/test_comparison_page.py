"""Two audits on one page: what changed stands under the right heading, unlike runs say so, the file needs nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from securefed._auditing.engine.results import CLIENT, FEDERATION, Cell
from securefed._auditing.engine.run_costs import RunCosts
from securefed._auditing.engine.statistics import (
    EXPOSED,
    INCONCLUSIVE,
    NOT_DETECTED,
    PARTIAL,
    Interval,
    Verdict,
    interval,
)
from securefed._auditing.report import comparison
from securefed._auditing.report.comparison_page import render, save, summary, to_json
from securefed._auditing.report.dumbbell import dumbbell
from securefed.errors import StorageError
from tests.auditing.page import sections, tables
from tests.auditing.test_report import cell, report, run


def judged(leak: float, word: str, half: float = 0.01, **changes: Any) -> Cell:
    made = cell("pca/ssi", "plain", "server", leak)
    found = Interval(leak, leak - half, leak + half, 10, 0.01)
    return replace(made, leakage=found, verdict=Verdict(word, 0.1), **changes)


def audit(*cells: Cell, costs: Sequence[RunCosts] = ()) -> dict[str, Any]:
    """As the JSON has it, infinities and all."""
    return json.loads(json.dumps(report(*cells, costs=costs).to_json(), allow_nan=False))


BEFORE = audit(
    cell("pca/ssi", "plain", "server", 0.2),
    cell("pca/ssi", "secure_aggregation", "sum only", 0.95),
    cell("pca/ssi", "secure_aggregation", "changing survivors", 0.4),
    cell("pca/ssi", "dp", "sum only", -0.5, explained=0.0),
    cell("pca/ssi", "dp", "released", 0.055),
    cell("pca/faps", "plain", "server", 0.7),
    cell("pca/faps", "plain", "server", 0.6, FEDERATION),
    costs=[
        run("pca/ssi", "secure_aggregation", 150.0),
        run("pca/ssi", "dp", epsilon=8.0, covered=("released",)),
    ],
)
AFTER = audit(
    cell("pca/ssi", "plain", "server", 0.6),
    cell("pca/ssi", "secure_aggregation", "sum only", 0.1),
    cell("pca/ssi", "secure_aggregation", "changing survivors", -0.5, explained=0.0),
    cell("pca/ssi", "dp", "sum only", 0.0),
    cell("pca/ssi", "dp", "released", 0.07),
    cell("pca/faps", "plain", "server", 0.7),
    cell("pca/faps", "paillier", "sum only", 0.5),
    costs=[
        run("pca/ssi", "plain", utility=0.5),
        run("pca/ssi", "secure_aggregation", 300.0),
        run("pca/ssi", "dp", epsilon=2.0, covered=("released",)),
    ],
)


@pytest.mark.parametrize(
    ("old", "new", "change"),
    [
        (judged(0.2, PARTIAL), judged(0.4, PARTIAL), comparison.GREW),
        (judged(0.4, PARTIAL), judged(0.2, PARTIAL), comparison.SHRANK),
        (judged(0.2, PARTIAL), judged(0.215, PARTIAL), comparison.SAME),
        (judged(-2.0, NOT_DETECTED), judged(-0.3, NOT_DETECTED), comparison.SAME),  # below the guess nothing is learned
        (judged(0.9990, EXPOSED, 0.0), judged(0.9999, EXPOSED, 0.0), comparison.SAME),  # what two decimals do not show
        (judged(-2.0, NOT_DETECTED), judged(0.3, PARTIAL), comparison.GREW),
        (judged(0.3, PARTIAL), judged(-2.0, INCONCLUSIVE), comparison.LOST),
        (judged(-2.0, INCONCLUSIVE), judged(-0.3, NOT_DETECTED), comparison.SETTLED),
        (judged(-2.0, INCONCLUSIVE), judged(0.3, PARTIAL), comparison.GREW),
        (judged(-2.0, INCONCLUSIVE), judged(0.3, INCONCLUSIVE), comparison.UNKNOWN),
    ],
)
def test_a_leak_changes_beyond_both_intervals_and_no_failed_attack_is_an_improvement(old, new, change) -> None:
    assert comparison.change_of(old, new) == change
    cells = comparison.compare(audit(old), audit(new))
    assert [row.change for row in cells] == [change]
    assert (cells[0].moved > 0) == (new.leakage.mean > max(old.leakage.mean, 0))


def test_two_audits_of_one_law_rarely_differ_at_few_seeds_and_a_large_change_shows() -> None:
    """Bootstrapped alone, 2 pairs of 20 differ at 3 seeds, for then the interval is the range: 20 +- 4 in 200."""
    rng = np.random.default_rng(4)

    def drawn(mean: float) -> Cell:
        return replace(judged(mean, PARTIAL), leakage=interval(rng.normal(mean, 0.05, 3)))

    pairs = [(drawn(0.5), drawn(0.5)) for _ in range(200)]
    apart = sum(a.leakage.high < b.leakage.low or b.leakage.high < a.leakage.low for a, b in pairs)
    assert apart > 10
    assert sum(comparison.change_of(*pair) != comparison.SAME for pair in pairs) < 6
    large = [comparison.change_of(drawn(0.2), drawn(0.7)) for _ in range(50)]
    assert large.count(comparison.GREW) > 40
    few = [
        audit(replace(cell("pca/ssi", "plain", "server", 0.5), leakage=interval(rng.normal(0.5, 0.05, n))))
        for n in (1, 3)
    ]
    assert "One seed says nothing" in render(few[0], BEFORE)
    assert "fewer than 10 seeds (here 3)" in render(few[1], BEFORE)
    assert "seeds (here" not in render(BEFORE, AFTER)


def test_a_stronger_attack_of_the_later_audit_counts_for_its_view() -> None:
    weak, strong = cell("pca/ssi", "plain", "server", 0.2), cell("pca/ssi", "plain", "server", 0.9, attack="gram/new")
    (row,) = comparison.compare_views(audit(weak), audit(weak, strong))
    assert (row.before, row.after, row.change) == (0.2, 0.9, comparison.GREW)
    assert row.attack == "gram/power, then gram/new"
    each = comparison.compare(audit(weak), audit(weak, strong))
    assert [item.change for item in each] == [comparison.SAME, comparison.ADDED]


def test_every_situation_stands_under_what_became_of_it_the_worst_first() -> None:
    found = sections(render(BEFORE, AFTER))
    seen = {name: re.findall("seen by “([^”]+)”", part) for name, part in found.items()}
    assert list(seen.items())[:7] == [
        ("What to do", []),
        ("Got worse (1)", ["server"]),
        ("No longer known (1)", ["changing survivors"]),
        ("Got better (1)", ["sum only"]),
        ("Known now (1)", ["sum only"]),
        ("Another verdict, the same leak (1)", ["released"]),
        ("Unchanged (1)", ["server"]),
    ]
    assert "0.19 to 0.21" in found["Got worse (1)"] and "0.59 to 0.61" in found["Got worse (1)"]
    assert "Paillier" in found["Only in the later audit (1)"]
    assert "all clients' pooled data" in found["Only in the earlier audit (1)"]
    for change in ("0.900 → 0.500", "150 → 300 (× 2.00)", "8 → 2"):
        assert change in found["What it costs"]
    assert "0.95" in sections(render(AFTER, BEFORE))["Got worse (2)"]


def test_a_large_move_within_wide_intervals_is_said_to_be_open() -> None:
    wide, moved = (audit(judged(leak, PARTIAL, 0.3)) for leak in (0.3, 0.6))
    assert "In 1 the mean moved by 0.1 or more, but the intervals are too wide" in render(wide, moved)
    assert "too wide to tell" not in render(wide, wide)


def test_the_summary_is_a_few_sentences_for_everybody() -> None:
    said = summary(BEFORE, AFTER)
    assert said == (
        "Of 6 situations that both audits tried, the leak grew in 1 and shrank in 1. "
        "The leak of one client's data in SSI with plain messages grew most, from 0.20 to 0.60. 1 can no longer be "
        "judged. 1 can be judged now that could not before. The later audit alone tried 1 more and found a leak in 1 "
        "of them, the largest of one client's data in FAPS under Paillier (0.50). Both ran under the same settings "
        "with the same version of securefed."
    )
    assert "alone tried" not in summary(AFTER, AFTER)
    sure = audit(cell("pca/ssi", "plain", "server", 0.6))
    assert "none gives away more or less of the data than before. " in summary(sure, sure)
    assert "more or less of the data than before. Neither audit could judge 1 of them." in summary(BEFORE, BEFORE)
    unknown = audit(cell("pca/ssi", "plain", "server", -0.5, explained=0.0))
    assert "Of 1 situation that both audits tried, neither could judge any." in summary(unknown, unknown)
    assert "nothing in common" in summary(audit(cell("pca/ssi", "plain", "server", 1.0)), audit())


def test_the_page_says_what_to_do_about_each_kind_of_change() -> None:
    said = sections(render(BEFORE, AFTER))["What to do"]
    assert "Find out why one client's data in SSI with plain messages leaks more before" in said
    assert "Do not count what can no longer be judged as safe" in said
    assert "Judge the leaks that only the later audit looked for" in said
    assert "Run both audits" not in said
    assert sections(render(BEFORE, BEFORE))["What to do"].count("Nothing: no situation") == 1
    other = json.loads(json.dumps(BEFORE))
    other["settings"]["audit"]["clients"] = 5
    assert "Run both audits under the same settings" in sections(render(BEFORE, other))["What to do"]


def test_audits_that_were_not_run_alike_say_so() -> None:
    other = json.loads(json.dumps(AFTER))
    assert "Not the same audit" not in sections(render(BEFORE, AFTER))
    other["version"] = "9"
    assert "different versions of securefed (0 and 9)" in summary(BEFORE, other)
    other["settings"]["audit"]["clients"] = 5
    other["settings"]["pca/ssi"]["hyper-parameters"]["rank"] = 9
    assert "not run alike (they differ in: clients, rank), so a change may come from that" in summary(BEFORE, other)
    said = [str(item) for item in comparison.differences(BEFORE, other)]
    assert said == ["securefed 0 before, 9 after", "audit: clients was 8, is 5", "pca/ssi: rank was 5, is 9"]
    html = render(BEFORE, other)
    assert "Not the same audit" in sections(html)
    assert ["pca/ssi", "rank", "5", "9"] in tables(html)[0]


def test_members_are_compared_by_their_intervals() -> None:
    row = {"algorithm": "pca/ssi", "defense": "plain", "adversary": "informed", "auc": [0.6, 0.55, 0.65]}
    near, other = row | {"verdict": PARTIAL}, row | {"adversary": "population", "verdict": PARTIAL}
    before = BEFORE | {"membership": [near, other]}
    far = row | {"auc": [0.9, 0.85, 0.95], "verdict": EXPOSED}
    after = before | {"membership": [far, other]}
    changes = [item.change for item in comparison.compare_members(before, after)]
    assert changes == [comparison.GREW, comparison.SAME]
    assert comparison.compare_members(after, before)[0].change == comparison.SHRANK
    assert "partial → exposed" in sections(render(before, after))["Which rows were in the data"]


def test_the_page_needs_nothing_from_elsewhere_and_is_readable_without_eyes() -> None:
    evil = json.loads(json.dumps(AFTER).replace("sum only", "<img src=x onerror=alert(1)>"))
    for html in (render(BEFORE, AFTER), render(BEFORE, evil)):
        assert not re.search(r"https?:|<script|<link|<img|@import|url\(", html)
        assert "prefers-color-scheme: dark" in html and "max-width: 900px" in html
        rows = html.count('<th role="rowheader" scope="row">')
        assert rows == html.count('role="cell" class="plot"') == html.count('role="img" aria-label="Leakage before')
        body = html.split("<body>")[1].split("</body>")[0].replace("&hellip;", "")
        ElementTree.fromstring(f"<body>{body}</body>")  # noqa: S314 - our own page: every element is closed
    label = re.search('aria-label="(Leakage before[^"]+)"', render(BEFORE, AFTER))
    assert label is not None
    assert label[1] == "Leakage before 0.20, 0.19 to 0.21, partial; after 0.60, 0.59 to 0.61, partial"


def test_a_dumbbell_ends_at_0_and_1_and_marks_what_is_unknown() -> None:
    drawn = dumbbell("a & b", [(-2.0, -3.0, -1.0), (0.5, 0.25, 2.0)], [False, True], "worse")
    assert 'aria-label="a &amp; b"' in drawn
    circles = re.findall(r'<circle class="([^"]+)" cx="([^"]+)"', drawn)
    assert circles == [("before unknown", "8.0"), ("after", "110.0")]
    assert '<line class="after" x1="59.0" x2="212.0"' in drawn


def test_the_json_beside_the_page_says_the_same(tmp_path) -> None:
    save(tmp_path / "new", BEFORE, AFTER)
    assert (tmp_path / "new" / "comparison.html").read_text() == render(BEFORE, AFTER)
    held = json.loads((tmp_path / "new" / "comparison.json").read_text())
    assert held == json.loads(json.dumps(to_json(BEFORE, AFTER)))
    assert held["summary"] == summary(BEFORE, AFTER)
    first = held["views"][0]
    assert (first["change"], first["intervals"][1]) == ("grew", [0.59, 0.61])
    assert held["views"][0].keys() == held["cells"][0].keys()
    assert first["secret"] == CLIENT
    with pytest.raises(StorageError, match="choose another folder"):
        save(tmp_path / "new" / "comparison.html", BEFORE, AFTER)


def test_an_audit_of_an_older_version_is_compared_too() -> None:
    old = json.loads(json.dumps(BEFORE))
    runs = {(one["algorithm"], one["defense"]): one for one in old.pop("costs")}
    for values in old["cells"]:  # formats 1 and 2 held all figures side by side
        for part in ("runs", "figures", "read", "reach"):
            values.update(values.pop(part))
        values.update(exposed_seeds=values.pop("exposed"), reconstructed=values.pop("whole"))
        costs = runs[values["algorithm"], values["defense"]]
        values.update({name: costs[name] for name in ("utility", "bytes_per_client_round")})
        for name in ("explained", "highest", "null_leakage"):
            del values[name]
    for name in ("membership", "environment", "settings", "format"):
        del old[name]
    assert {row.change for row in comparison.compare(old, BEFORE)} == {comparison.SAME, comparison.UNKNOWN}
    assert render(old, AFTER).count("Got worse") == 2
    json.dumps(to_json(old, AFTER), allow_nan=False)
