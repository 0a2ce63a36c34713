"""The real experiments: every paper has some, they can be told apart, and together they fit into the hour."""

from __future__ import annotations

import heapq

import pytest

from benchmarks.ledger import losac_grid, losac_tables
from benchmarks.ledger.catalogue import CORE_MINUTES, PAPERS, Catalogue, discover
from benchmarks.ledger.ledger import Experiment

HOUR = 60.0  # minutes that all experiments but the nightly ones may take on two cores
NIGHT = 180.0  # and what the nightly ones may take


@pytest.fixture(scope="module")
def catalogue() -> Catalogue:
    return discover()


def of(paper: str, catalogue: Catalogue) -> list[Experiment]:
    return [entry.experiment for name, entry in catalogue.entries.items() if name.startswith(f"{paper}/")]


def finish(minutes: list[float], workers: int) -> float:
    """When the last of these ends, if a worker that falls idle takes the longest that is left."""
    busy = [0.0] * workers
    for length in sorted(minutes, reverse=True):
        heapq.heapreplace(busy, busy[0] + length)
    return max(busy)


def test_every_module_of_a_paper_is_collected(catalogue: Catalogue) -> None:
    assert not catalogue.broken


@pytest.mark.parametrize("paper", PAPERS)
def test_a_paper_has_experiments_within_its_budget(paper: str, catalogue: Catalogue) -> None:
    experiments = of(paper, catalogue)
    assert experiments
    assert sum(one.core_minutes for one in experiments if not one.nightly) <= CORE_MINUTES[paper]


@pytest.mark.parametrize("paper", PAPERS)
def test_a_paper_is_one_section_of_the_page_and_its_experiments_differ_by_name_and_title(
    paper: str, catalogue: Catalogue
) -> None:
    experiments = of(paper, catalogue)
    assert len({experiment.paper for experiment in experiments}) == 1
    for part in ("name", "title"):
        assert len({getattr(experiment, part) for experiment in experiments}) == len(experiments)


def test_all_of_them_fit_into_the_hour(catalogue: Catalogue) -> None:
    minutes = [entry.experiment.core_minutes for entry in catalogue.select([])]
    assert finish(minutes, workers=2) <= HOUR


def test_the_longest_are_left_to_a_night_unless_they_are_asked_for(catalogue: Catalogue) -> None:
    usual, every = catalogue.select([]), catalogue.select([], nightly=True)
    nightly = [entry.experiment for entry in every if entry.experiment.nightly]
    assert nightly and not any(entry.experiment.nightly for entry in usual)
    assert len(usual) + len(nightly) == len(every) == len(catalogue.entries)
    name = nightly[0].name
    assert [entry.experiment.name for entry in catalogue.select([name])] == [name]
    assert name not in {entry.experiment.name for entry in catalogue.select([name.partition("/")[0]])}
    assert finish([one.core_minutes for one in nightly], workers=2) <= NIGHT


def test_the_reckoning_of_the_hour() -> None:
    assert finish([30.0, 30.0, 20.0], workers=2) == 50.0
    assert finish([70.0, 1.0], workers=2) > HOUR
    assert sum(CORE_MINUTES.values()) / 2 <= HOUR


def test_the_full_table_of_losac_agrees_with_its_headline_cells() -> None:
    assert sum(len(figures) for row in losac_grid.PRINTED.values() for figures in row) == 162
    for table in (losac_tables.MNIST, losac_tables.HAR, losac_tables.ESR):
        for row in table.rows[:2]:
            rounds, _, accuracy = losac_grid.PRINTED[table.where.rpartition(" ")[2], row.method, 5][0]
            assert (rounds, accuracy) == (row.rounds, row.accuracy)
