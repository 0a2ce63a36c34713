"""The page holds every line, says what is missing or stale, and is the same for the same results."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from benchmarks.ledger import page, plots, records, sources
from benchmarks.ledger.catalogue import Catalogue, discover
from benchmarks.ledger.ledger import Findings
from benchmarks.ledger.records import Kind
from tests.benchmarks.fakes import CURVE, LINE, a_record, change


@pytest.fixture
def results(fake: Path) -> tuple[Catalogue, Path]:
    """One experiment with findings, one failed, one not run."""
    catalogue = discover(fake.name, papers=("faps",))
    folder = fake.parent / "results"
    entry = catalogue.entries["faps/good"]
    digest = sources.digest(entry.module, entry.experiment)
    kind = Kind(False, (11, 12, 13), digest)
    missed = change(quantity="rounds | again", target=(None, 10.0), evidence="the printed step diverges")
    owing = change(quantity="rounds once more", target=(None, 10.0))
    lines = (LINE, missed, owing, change(quantity="accuracy", values=(0.97,), stated=False, evidence="batch size 10"))
    findings = Findings(lines, (CURVE, dataclasses.replace(CURVE, y=(1.0, 0.2, 0.05))))
    records.write(folder, records.record("faps/good", kind, 200.0, findings=findings))
    records.write(folder, records.record("faps/bad", kind, 1.0, failure="DataError: MNIST is missing"))
    return catalogue, folder


def test_the_page_holds_every_line_and_is_the_same_each_time(results: tuple[Catalogue, Path], tmp_path: Path) -> None:
    catalogue, folder = results
    first, second = (page.write(catalogue, folder=folder, docs=tmp_path / name) for name in ("one", "two"))
    assert first.read_bytes() == second.read_bytes()
    picture = Path("reproduction") / "faps-good.png"
    assert (tmp_path / "one" / picture).read_bytes() == (tmp_path / "two" / picture).read_bytes()
    text = first.read_text()
    assert (
        "| Table 2 | rounds to 85 % <sup>1</sup> | 90 | 85 (80 .. 90, 3 seeds) | ≤ 110 | reproduced |" in text
    )  # settings recur: one note
    assert (
        "| Table 2 | rounds \\| again <sup>1</sup> | 90 | 85 (80 .. 90, 3 seeds) | ≤ 10 | not reproduced <sup>2" in text
    )
    assert "rounds once more" in text
    assert "0.97 (1 seed)" in text
    for note in ("1. eta .1, T 5", "2. the printed step diverges", "3. No evidence was given", "4. batch size 10"):
        assert f"\n{note}" in text
    assert f"![Fig. 2]({picture.as_posix()})" in text
    assert "**Failed**: DataError: MNIST is missing" in text
    assert "Not run yet; `make reproduce REPRODUCE_ARGS=faps/dead`." in text
    assert "| [FAPS: a paper](#faps-a-paper) | 1 | 1 | 2 | 0 | 1 | 2 | 0 |" in text
    assert "Older than the code" not in text


def test_the_page_says_what_is_stale_and_drops_pictures_of_the_past(
    results: tuple[Catalogue, Path], fake: Path, tmp_path: Path
) -> None:
    catalogue, folder = results
    (fake / "helper.py").write_text("FACTOR = 3.0\n")
    sources.tree.cache_clear()
    left = tmp_path / "docs" / "reproduction" / "gone.png"
    left.parent.mkdir(parents=True)
    left.touch()
    text = page.write(catalogue, folder=folder, docs=tmp_path / "docs").read_text()
    assert text.count("> **Older than the code**") == 2
    assert not left.exists()


def test_quick_results_stay_off_the_page(results: tuple[Catalogue, Path], tmp_path: Path) -> None:
    catalogue, folder = results
    records.write(folder, a_record("faps/dead", quick=True))
    text = page.write(catalogue, folder=folder, docs=tmp_path / "docs").read_text()
    assert "Not run yet; `make reproduce REPRODUCE_ARGS=faps/dead`." in text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (60.0, "60"),
        (128000.0, "128000"),
        (0.9712345, "0.9712"),
        (61.3333333, "61.33"),
        (12345.67, "12346"),
        (5.04e-8, "5.04e-8"),
        (1e-7, "1e-7"),
        (-0.25, "-0.25"),
        (0.0, "0"),
        (2.5e7, "2.5e7"),
    ],
)
def test_numbers_have_as_many_digits_as_can_be_read(value: float, text: str) -> None:
    assert page.number(value) == text


def test_bands_cover_what_all_seeds_share() -> None:
    longer = dataclasses.replace(CURVE, x=(0, 1, 2, 3), y=(1.0, 0.4, 0.09, 0.01))
    x, ys = plots.shared([CURVE, longer])
    assert x.tolist() == [0, 1, 2]
    assert ys.tolist() == [[1.0, 0.1, 0.01], [1.0, 0.4, 0.09]]
    assert plots.middle(ys, log=True) == pytest.approx([1.0, 0.2, 0.03])
    assert plots.middle(ys, log=False) == pytest.approx([1.0, 0.25, 0.05])
    apart = dataclasses.replace(CURVE, x=(5, 6, 7))
    assert plots.shared([CURVE, apart])[0].tolist() == [0, 1, 2]
