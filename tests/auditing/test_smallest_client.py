"""The client with fewest rows is attacked in every run, has a line of its own, and no conclusion forgets it."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from securefed import TrainingSetup, audit
from securefed._auditing.advice.candidates import Candidate
from securefed._auditing.advice.search import _Question, _Search
from securefed._auditing.advice.trials import Trials
from securefed._auditing.cases import case
from securefed._auditing.cases.own_setup import OwnSetup
from securefed._auditing.engine.audit_result import SmallestClient
from securefed._auditing.engine.cell_parts import RunCounts
from securefed._auditing.engine.statistics import INCONCLUSIVE, interval, verdict
from securefed._auditing.gate.leakage_limits import reasons
from securefed._auditing.registered.smallest_client import smallest_client
from securefed._auditing.report.audit_page import render
from securefed._auditing.report.cards import conclusion
from securefed._auditing.report.smallest_client import of_smallest, with_smallest
from securefed.datasets import load
from tests.auditing.page import text
from tests.auditing.test_report import cell, report


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four owners, one of them with 4 rows in all."""
    rng = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("rows") / "rows.npz"
    x = rng.normal(size=(184, 6))
    np.savez(path, x=x, y=(x[:, 0] > 0).astype(int), hospital=np.repeat([0, 1, 2, 3], (60, 4, 60, 60)))
    return path


def test_the_smallest_client_is_attacked_in_every_run_of_an_audit(hospitals: Path, tmp_path: Path) -> None:
    found = audit(
        ["ssi"], ["plain", "secure_aggregation"], data=str(hospitals), owner_column="hospital", seeds=3, rounds=2,
        settings={"rank": 2}, workers=1,
    )  # fmt: skip
    assert found.smallest and all(one.cell.leakage.seeds == 3 for one in found.smallest)
    assert {one.cell.read.client for one in found.smallest} == {0}  # it takes the target's place
    assert all(1 <= one.least <= one.most <= 4 for one in found.smallest)
    assert {one.cell.view for one in found.smallest} >= {"server", "sum only", "changing survivors"}
    found.save(tmp_path)
    assert '"smallest": [' in (tmp_path / "audit.json").read_text()
    assert "was attacked in every run (3). Without protection, " in text((tmp_path / "audit.html").read_text())


def test_even_clients_have_no_line(hospitals: Path) -> None:
    even = audit(["ssi"], ["plain"], data=str(hospitals), seeds=1, rounds=1, settings={"rank": 2}, workers=1)
    assert even.smallest == () and not list(of_smallest(even, "pca/ssi"))
    assert smallest_client((60, 59, 60)) is None and smallest_client((60, 4, 60, 4)) == 1


def test_no_conclusion_says_that_nothing_was_learnt_where_the_smallest_client_leaks() -> None:
    silent = report(cell("ssi", "plain", "server", 0.0), cell("ssi", "secure_aggregation", "sum only", 0.0))
    assert "No attack here learnt a client's data" in " ".join(conclusion(silent))
    small = [SmallestClient(4, 4, cell("ssi", "plain", "server", 1.0))]
    small.append(SmallestClient(4, 4, cell("ssi", "secure_aggregation", "sum only", 0.0)))
    leaky = replace(silent, smallest=tuple(small))
    page = text(render(leaky))
    assert "No attack here learnt" not in page
    assert "The smallest client (4 rows) was attacked in every run" in page
    assert "Without protection, its data can be computed." in page
    assert "Under secure aggregation no leak of it was found." in page
    assert not reasons(silent, 0.5) and reasons(with_smallest(leaky), 0.5)


def test_a_secret_whose_interval_reaches_far_is_not_known_of_the_smallest_client() -> None:
    rows = cell("ssi", "plain", "server", 0.0)
    counts = replace(rows, secret="labels", runs=RunCounts(), leakage=interval([-1.0, 0.93, -0.4, 0.6, -0.3]))
    counts = replace(counts, verdict=verdict(counts.leakage, counts.null_leakage))
    made = replace(report(rows), smallest=tuple(SmallestClient(4, 4, one) for one in (rows, counts)))
    assert counts.verdict.word == INCONCLUSIVE
    assert str(list(of_smallest(made, "ssi"))[1]) == "Without protection, it is not known what leaks of it."


def search(hospitals: Path, monkeypatch: pytest.MonkeyPatch, leaks: dict[int, float]) -> _Search:
    """Return a search whose attacks reach, of a client of so many rows, the leak in `leaks`, and else .01."""
    own = OwnSetup(None, 1, (("rank", 2),), False, "hospital")
    trials = Trials(own.apply(case("ssi")), own, load(hospitals, owner="hospital"), 1e-5)

    def attacked(
        self: Trials, candidate: Candidate, result: object, seed: int, client: int, pooled: object
    ) -> list[object]:
        rows = self.prepare(candidate, seed).public.rows[client]
        return [("fit", max((leak for most, leak in leaks.items() if rows <= most), default=0.01), True)]

    monkeypatch.setattr(Trials, "_attacked", attacked)
    setup = TrainingSetup(data=str(hospitals), owner_column="hospital", rounds=1, settings={"rank": 2})
    asked = _Question("pca/ssi", setup, 4, 0, 1, 4, 0.1, 0.9, ())
    return _Search(trials, asked, (Candidate("secure_aggregation", 4, None, 1, threshold=4),))


def test_an_advice_measures_the_smallest_client_in_every_run_and_holds_only_if_it_holds(
    hospitals: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fine = search(hospitals, monkeypatch, {}).setting(0)
    assert fine.smallest_runs == 4 and fine.smallest_leak == pytest.approx(0.01)
    assert fine.holds and fine.smallest_upper <= 0.1
    leaky = search(hospitals, monkeypatch, {4: 0.09 + 0.2}).setting(0)
    assert leaky.smallest_leak == pytest.approx(0.29) and not leaky.holds
    assert leaky.smallest_rows <= 4 and not math.isnan(leaky.smallest_upper)
