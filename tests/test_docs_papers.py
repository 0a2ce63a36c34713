"""The papers' digests take every figure from results, and their sentences agree with the verdicts."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from benchmarks.ledger.ledger import MISSED, Line
from docs.generators import paper_claims, papers, which_leaks
from docs.generators.paper_claims import PAPERS, Claim, Paper

DOCS = Path(__file__).parents[1] / "docs"
SHOWN = [pytest.param(paper, id=paper.page) for paper in PAPERS]
CLAIMS = [pytest.param(paper, claim, id=f"{paper.page}: {claim.text}") for paper in PAPERS for claim in paper.claims]

SENTENCES = {
    ("pca/fedpg", "client", "sums only"): "inconclusive",
    ("pca/fedpg", "federation", "sums only"): "partial",
    ("personalized/flame", "client", "sums only"): "exposed",
    ("personalized/flame", "client", "central noise: all others"): "not detected",
    ("pca/faps", "client", "in the clear: the server"): "exposed",
    ("pca/faps", "client", "sums only"): "not detected",
    ("pca/faps", "client", "sums, seven of eight collude"): "exposed",
    ("pca/faps", "federation", "sums only"): "partial",
    ("graph/ppgl", "client", "in the clear: the server"): "exposed",
    ("graph/ppgl", "client", "sums only"): "inconclusive",
    ("graph/ppgl", "federation", "sums only"): "exposed",
    ("optimization/losac", "client", "in the clear: the server"): "exposed",
    ("optimization/losac", "client", "sums only"): "exposed",
    ("optimization/losac", "client", "central noise: the server"): "exposed",
    ("optimization/losac", "client", "central noise: all others"): "not detected",
}
"""Verdicts that sentences of the digests rest on; where one changes, the page has to say something else."""


def prose(paper: Paper) -> str:
    page = (DOCS / "papers" / f"{paper.page}.md").read_text()
    return re.sub(r"```.*?```|`[^`]*`|\]\([^)]*\)", "", page, flags=re.DOTALL)


@pytest.mark.parametrize(("paper", "claim"), CLAIMS)
def test_a_claim_rests_on_lines_and_says_why_exactly_where_one_was_missed(paper: Paper, claim: Claim) -> None:
    lines = papers.lines_of_claim(paper, claim)
    assert lines
    assert bool(claim.why) == any(line.verdict == MISSED for line in lines)


@pytest.mark.parametrize("paper", SHOWN)
def test_a_digest_includes_its_tables_one_plot_and_no_figure_of_its_own(paper: Paper) -> None:
    page = (DOCS / "papers" / f"{paper.page}.md").read_text()
    assert re.findall(r"include} /generated/(\S+)", page) == [
        f"papers/{paper.page}-counts.md",
        f"papers/{paper.page}-claims.md",
        f"papers/{paper.page}-leaks.md",
    ]
    (picture,) = re.findall(r"!\[[^\]]+\]\(\.\./(reproduction/\S+\.png)\)", page)
    assert (DOCS / picture).is_file()
    assert re.findall(r"\d\.\d|\d ?%", prose(paper)) == []
    assert re.findall(r"\d\.\d|\d ?%", papers.claims(paper)) != []  # the control
    assert len(prose(paper).split()) < 450


@pytest.mark.parametrize(("cell", "word"), SENTENCES.items())
def test_the_sentences_on_leaks_agree_with_the_last_audit(cell: tuple[str, str, str], word: str) -> None:
    name, owner, column = cell
    shown = which_leaks.shown_of(json.loads(which_leaks.RESULTS.read_text()), name, owner)
    assert word in shown[column]


def test_every_paper_of_the_ledger_has_a_digest_and_a_section() -> None:
    families = {path.name.partition("-")[0] for path in papers.RESULTS.glob("*.json")}
    assert {paper.page for paper in PAPERS} == families
    assert {path.stem for path in (DOCS / "papers").glob("*.md")} == families | {"index", "every-figure"}
    assert len({papers.anchor(paper) for paper in PAPERS}) == len(PAPERS)


def test_figures_stand_beside_the_number_of_seeds() -> None:
    table = papers.claims(paper_claims.LOSAC)
    assert re.search(r"SCAFFOLD over rounds of LoSAC.*\d, \d\.\d+, \d\.\d+ \(3 seeds each\)", table)
    line = Line("Fig. 0", "a ratio", "made up", None, (0.5, 0.7), (None, None))
    assert (
        papers.table_row(Claim("one", "", ""), [line], "") == "| one |  | 0.6 (0.5 .. 0.7, 2 seeds) | for comparison |"
    )
