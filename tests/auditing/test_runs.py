"""One seed of one algorithm: what is run, what is not run twice, and a run that ends early."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from securefed import Dataset, Federation, Result
from securefed._auditing.cases.audit_settings import Settings
from securefed._auditing.engine.defense_names import DP, PAILLIER, PLAIN, SECURE_AGGREGATION
from securefed._auditing.engine.results import RunFacts
from securefed._auditing.engine.seed_result import SeedResult
from securefed._auditing.registered import audited_defenses
from securefed._auditing.registered import seed_run as runs
from securefed._auditing.registered.audited_defenses import QUANTISED, identical_sums
from securefed._auditing.registered.registered_subject import RegisteredSubject
from securefed.algorithms import PPGL, SSI
from securefed.defenses import KeyHolder
from securefed.errors import DivergenceError

NOISE = {(8.0, 6): 1e-3, (8.0, 10): 1e-3}
"""By epsilon and rounds: so little that no run ends unless a test ends it."""


def outcome(
    algorithm: str,
    *defenses: str,
    attacks: tuple[str, ...] = (),
    seed: int = 5,
    first: bool = False,
    every_seed: bool = False,
) -> SeedResult:
    settings = Settings(clients=4, defenses=defenses, attacks=attacks, noise=NOISE, every_seed=every_seed)
    subject = RegisteredSubject(algorithm, settings)
    return runs.SeedRun(algorithm, subject.case, settings, subject.prepare(seed), seed, first).run()


def diverges(after: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let so many rounds pass, and none after them."""
    usual, passed = PPGL.update, []

    def update(self, *arguments):
        if len(passed) == after:
            raise DivergenceError("noise outweighs the weights")
        passed.append(1)
        return usual(self, *arguments)

    monkeypatch.setattr(PPGL, "update", update)


def test_a_run_that_noise_ends_early_is_audited_as_far_as_it_went(monkeypatch) -> None:
    diverges(2, monkeypatch)
    found = outcome("graph/ppgl", DP)
    assert [fact.rounds for fact in found.facts] == [2]
    early, absences = found.skipped
    assert "only 2 of 6 rounds: noise outweighs" in early
    assert (
        absences == "graph/ppgl, dp, seed 5: noise outweighs the weights"
    )  # the run over changing survivors, all of it


def test_a_run_without_a_good_round_is_left_out_and_the_others_go_on(monkeypatch) -> None:
    diverges(6, monkeypatch)
    found = outcome("graph/ppgl", PLAIN, DP)
    assert [fact.defense for fact in found.facts] == [PLAIN]
    assert found.skipped == ["graph/ppgl, dp, seed 5: noise outweighs the weights"]


def test_what_exact_defences_share_is_run_once(monkeypatch) -> None:
    """Plain, quantised, and quantised with changing survivors: two defences, each with two views of them."""
    made: list[str] = []
    usual = Federation.run
    monkeypatch.setattr(Federation, "run", lambda self, *a, **k: made.append(self.defense.name) or usual(self, *a, **k))
    found = outcome("pca/ssi", PLAIN, SECURE_AGGREGATION, PAILLIER, attacks=("gram/difference",))
    assert made == ["plain", "quantise + plain", "quantise + plain"]
    assert {(s.defense, s.view) for s in found.attempts} == {
        (SECURE_AGGREGATION, "changing survivors"),
        (PAILLIER, "changing survivors"),
    }


def test_a_real_run_over_changing_clients_makes_two_pairs_of_rounds_which_cost_what_all_of_them_do() -> None:
    def costs(**how: bool) -> RunFacts:
        facts = outcome("pca/ssi", SECURE_AGGREGATION, first=True, attacks=("gram/difference",), **how).facts
        return next(fact for fact in facts if fact.view == "changing survivors")

    few, every = costs(), costs(every_seed=True)
    assert (few.rounds, every.rounds) == (2 * runs.REAL_ROUNDS, runs.ABSENCE_ROUNDS)
    assert few.identical and every.identical
    assert few.bytes_per_client_round == pytest.approx(every.bytes_per_client_round)


def test_one_key_serves_all_runs_and_answers_each_apart(monkeypatch) -> None:
    audited_defenses.key_holder.cache_clear()
    generate = KeyHolder.generate
    made: list[int] = []
    monkeypatch.setattr(KeyHolder, "generate", lambda bits: made.append(bits) or generate(bits))
    for algorithm in ("graph/ppgl", "graph/igl"):
        facts = outcome(algorithm, PAILLIER, first=True).facts
        assert [(fact.identical, fact.rounds) for fact in facts] == [(True, runs.REAL_ROUNDS)]
    assert made == [2048]


def test_a_run_counts_as_identical_only_as_far_as_it_went_and_in_every_sum() -> None:
    rows = np.random.default_rng(0).uniform(0, 1, (3, 5, 4))

    def run(rounds: int) -> Result:
        return Federation(SSI(rank=2), [Dataset(x) for x in rows], QUANTISED, seed=0).run(rounds)

    three, two = run(3), run(2)
    assert identical_sums(two, three, whole=False) and identical_sums(three, run(3), whole=True)
    assert not identical_sums(two, three, whole=True)  # ended early
    assert not identical_sums(three, two, whole=False)  # nothing to compare the last with
    last = two.transcript.records[-1]
    two.transcript.records[-1] = replace(last, encoded={name: value + 1 for name, value in last.encoded.items()})
    assert not identical_sums(two, three, whole=False)
    two.transcript.records.clear()
    assert not identical_sums(two, three, whole=False)
