"""Every figure and table of the papers is accounted for, and a paper's page tells truthfully what was measured."""

from __future__ import annotations

import fnmatch
import re
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.ledger import page, records
from benchmarks.ledger.catalogue import discover
from benchmarks.ledger.definitions import Sources
from benchmarks.ledger.paper_figures import CAPTIONS, FILE, MEASURED, OUTCOMES, OUTSIDE, PARTS, Part
from benchmarks.ledger.sources import digest
from docs.generators import figure_counts
from securefed.errors import ConfigError

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
    for part in filter(lambda part: part.printed, PARTS[paper]):
        place, letters = panels(part)
        assert set(letters) <= set(CAPTIONS[paper][place][0])
        covered.setdefault(place, set()).update(letters)
    assert covered == {place: set(letters) for place, (letters, _) in CAPTIONS[paper].items()}


def fresh(paper: str, part: Part) -> list[str]:
    """The results of a part's experiments that the code has not outrun, and which so have all lines of today."""
    old = figure_counts.older(paper)
    names = [result.name for result in figure_counts.results(paper) if result.name not in old]
    return [name for name in names if fnmatch.fnmatch(name, part.experiments)]


@pytest.mark.parametrize(("paper", "part"), EACH)
def test_a_part_is_measured_by_an_experiment_or_says_why_not(paper: str, part: Part) -> None:
    assert part.outcome in OUTCOMES
    if part.outcome == MEASURED:
        assert any(fnmatch.fnmatch(name, part.experiments) for name in discover().entries)
        assert part.experiments.startswith(f"{paper}/")
        assert figure_counts.measuring(paper, part) or not fresh(paper, part), (
            "no line of a fresh result is of this part"
        )
    else:
        assert part.why


@pytest.mark.parametrize("paper", PRINTED)
def test_every_line_and_every_plot_of_the_ledger_belongs_to_a_part(paper: str) -> None:
    shown = [
        (result.name, name) for result in figure_counts.results(paper) for name in figure_counts.names_shown(result)
    ]
    assert shown
    assert [each for each in shown if not any(part.measures(*each) for part in PARTS[paper])] == []
    assert not any(part.measures(f"{paper}/another", "Fig. 1 | rounds") for part in PARTS[paper])  # the control


@pytest.mark.parametrize("paper", PRINTED)
def test_every_experiment_is_of_a_part(paper: str) -> None:
    names = [name for name in discover().entries if name.startswith(f"{paper}/")]
    patterns = [part.experiments for part in PARTS[paper]]
    assert [name for name in names if not any(fnmatch.fnmatch(name, pattern) for pattern in patterns)] == []


ROW = {"place": "Fig. 1", "shows": "a", "outside": "a drawing"}


@pytest.mark.parametrize(
    "wrong",
    [
        {"place": "Fig. 1", "shows": "a"},
        ROW | {"unavailable": "no data"},
        ROW | {"measured": "faps/table1", "lines": "^Fig"},
        ROW | {"lines": "^Fig"},
        {"place": "Fig. 1", "shows": "a", "measured": "faps/table1"},
        ROW | {"outside": " "},
    ],
)
def test_a_part_has_exactly_one_of_the_three_outcomes(wrong: dict[str, str]) -> None:
    assert Part.of(ROW).outcome == OUTSIDE
    with pytest.raises(ConfigError, match=re.escape(FILE.name)):
        Part.of(wrong)


def test_a_part_counts_as_measured_where_a_stored_line_is_its_own_and_nowhere_else() -> None:
    part = next(part for part in PARTS["losac"] if part.shows == "rank and error of the matrix")
    assert figure_counts.measuring("losac", part)
    assert figure_counts.measuring("losac", replace(part, lines="^Fig. 99")) == []


@pytest.mark.parametrize("paper", PRINTED)
def test_a_page_begins_with_the_counts_and_leads_to_the_reasons(paper: str) -> None:
    _, begin, *_ = (DOCS / "papers" / f"{paper}.md").read_text().split("\n\n")
    assert begin == f"```{{include}} /generated/papers/{paper}-counts.md\n```"
    words = figure_counts.sentence(paper)
    counts = {
        what: int(number) for number, what in re.findall(r"(\d+) (parts|measured|not to be had|out of scope)", words)
    }
    printed = [part for part in PARTS[paper] if part.printed]
    for outcome, what in figure_counts.WORDS.items():
        assert counts.get(what, 0) == sum(part.outcome == outcome for part in printed)
    assert counts["parts"] == len(printed)
    unrun = [part for part in printed if part.outcome == MEASURED and not figure_counts.measuring(paper, part)]
    assert re.findall(r"(\d+) of them not yet run", words) == [str(len(unrun))] * bool(unrun)
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
