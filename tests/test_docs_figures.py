"""Every figure and table of the papers is accounted for, and a paper's page tells truthfully what was measured."""

from __future__ import annotations

import fnmatch
import re
from pathlib import Path

import pytest

from benchmarks.ledger import page, records
from benchmarks.ledger.catalogue import discover
from benchmarks.ledger.definitions import Sources
from benchmarks.ledger.sources import digest
from docs.generators import figure_counts
from docs.generators.paper_figures import CAPTIONS, MEASURED, OPEN, OUTSIDE, PARTS, UNAVAILABLE, Part

DOCS = Path(__file__).parents[1] / "docs"
PRINTED = {"faps": (4, 4), "fedpca": (11, 1), "flame": (7, 3), "ppgl": (8, 5), "losac": (7, 2)}
"""Figures and tables of each paper, counted in the papers."""
ROMAN = ("I", "II", "III", "IV", "V")
EACH = [
    pytest.param(paper, part, id=f"{paper}: {part.place}, {part.shows}") for paper in PARTS for part in PARTS[paper]
]


def panels(part: Part) -> tuple[str, str]:
    """The figure or table of a part, and the letters of its panels."""
    place, _, letters = part.place.rstrip(")").partition("(")
    if "-" in letters:
        return place, "".join(map(chr, range(ord(letters[0]), ord(letters[-1]) + 1)))
    return place, letters.replace(",", "")


@pytest.mark.parametrize("paper", PRINTED)
def test_the_captions_are_all_of_a_paper(paper: str) -> None:
    figures, tables = PRINTED[paper]
    numbers = ROMAN if any("I" in place for place in CAPTIONS[paper] if place.startswith("Table")) else tuple("12345")
    expected = [f"Fig. {number}" for number in range(1, figures + 1)]
    assert list(CAPTIONS[paper]) == expected + [f"Table {number}" for number in numbers[:tables]]


@pytest.mark.parametrize("paper", PRINTED)
def test_every_panel_of_every_figure_is_in_a_part(paper: str) -> None:
    covered: dict[str, set[str]] = {}
    for part in PARTS[paper]:
        place, letters = panels(part)
        assert set(letters) <= set(CAPTIONS[paper][place][0])
        covered.setdefault(place, set()).update(letters)
    assert covered == {place: set(letters) for place, (letters, _) in CAPTIONS[paper].items()}


@pytest.mark.parametrize(("paper", "part"), EACH)
def test_a_part_is_measured_by_an_experiment_or_says_why_not(paper: str, part: Part) -> None:
    assert part.otherwise in (UNAVAILABLE, OUTSIDE, OPEN)
    if part.experiments:
        assert any(fnmatch.fnmatch(name, part.experiments) for name in discover().entries)
        assert part.experiments.startswith(f"{paper}/")
    else:
        assert part.why


def test_a_part_counts_as_measured_where_a_stored_line_is_its_own_and_nowhere_else() -> None:
    part = next(part for part in PARTS["losac"] if part.shows == "rank and error of the matrix")
    assert figure_counts.outcome("losac", part) == MEASURED
    assert figure_counts.outcome("losac", Part("Fig. 7", "", OPEN, "", "losac/fig7-*", "^Fig. 99")) == OPEN
    assert figure_counts.outcome("losac", Part("Fig. 7", "", OUTSIDE, "a drawing")) == OUTSIDE


@pytest.mark.parametrize("paper", PRINTED)
def test_a_page_begins_with_the_counts_and_leads_to_the_reasons(paper: str) -> None:
    _, begin, *_ = (DOCS / "papers" / f"{paper}.md").read_text().split("\n\n")
    assert begin == f"```{{include}} /generated/papers/{paper}-counts.md\n```"
    words = figure_counts.sentence(paper)
    parts, *counts = map(int, re.findall(r"(\d+) (?:parts|measured|not|out)", words))
    assert sum(counts) == parts == len(PARTS[paper])
    assert f"{PRINTED[paper][0]} figures and {PRINTED[paper][1]} table" in words
    every = (DOCS / "papers" / "every-figure.md").read_text()
    assert f"\n## {paper}\n" in every.lower()
    assert f"/generated/papers/{paper}-figures.md" in every
    assert figure_counts.table(paper).count("\n| ") == len(PARTS[paper]) + 1


def flagged(text: str) -> set[str]:
    """The experiments that a page of the ledger calls older than the code."""
    old = [section for section in re.split(r"^### ", text, flags=re.MULTILINE) if "**Older than the code**" in section]
    return {re.findall(r"REPRODUCE_ARGS=(\S+?)`", section)[0] for section in old}


def test_the_pages_tell_truthfully_which_results_are_older_than_the_code() -> None:
    """Against digests of sources that are read anew."""
    catalogue, texts = discover(), Sources()
    stored = {name: records.read(records.FULL, name) for name in catalogue.entries}
    old = {
        name
        for name, result in stored.items()
        if result is not None
        and result.kind.digest != digest(catalogue.entries[name].module, catalogue.entries[name].experiment, texts)
    }
    assert flagged(page.text(catalogue, {name: result for name, result in stored.items() if result})) == old
    kept = (DOCS / "reproduction.md").read_text()
    assert flagged(kept) == old or "/generated/" in kept, "write the page again: python -m benchmarks.ledger --page"
    for paper in PARTS:
        assert set(figure_counts.older(paper)) == {name for name in old if name.startswith(f"{paper}/")}
