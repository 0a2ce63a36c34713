"""The real experiments: every paper has some, they can be told apart, and together they fit into the hour."""

from __future__ import annotations

import heapq

import pytest

from benchmarks.ledger.catalogue import CORE_MINUTES, PAPERS, Catalogue, discover
from benchmarks.ledger.ledger import Experiment

HOUR = 60.0  # minutes that all experiments may take on two cores


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
    assert sum(experiment.core_minutes for experiment in experiments) <= CORE_MINUTES[paper]


@pytest.mark.parametrize("paper", PAPERS)
def test_a_paper_is_one_section_of_the_page_and_its_experiments_differ_by_name_and_title(
    paper: str, catalogue: Catalogue
) -> None:
    experiments = of(paper, catalogue)
    assert len({experiment.paper for experiment in experiments}) == 1
    for part in ("name", "title"):
        assert len({getattr(experiment, part) for experiment in experiments}) == len(experiments)


def test_all_of_them_fit_into_the_hour(catalogue: Catalogue) -> None:
    minutes = [entry.experiment.core_minutes for entry in catalogue.entries.values()]
    assert finish(minutes, workers=2) <= HOUR


def test_the_reckoning_of_the_hour() -> None:
    assert finish([30.0, 30.0, 20.0], workers=2) == 50.0
    assert finish([70.0, 1.0], workers=2) > HOUR
    assert sum(CORE_MINUTES.values()) / 2 <= HOUR
