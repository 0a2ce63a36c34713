"""A utility stands beside its floor: where the model in the clear does not exceed it, there is no model to protect."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from securefed import audit
from securefed._auditing.advice import search
from securefed._auditing.advice.advised_words import answers, no_model_sentences, sentences
from securefed._auditing.advice.candidates import candidates
from securefed._auditing.advice.cohorts import CohortUtility
from securefed._auditing.cases import case
from securefed._auditing.cases.own_setup import OwnSetup
from securefed._auditing.cases.utilities import ACCURACY, BALANCED, BALANCED_OF_SOME, balanced
from securefed._auditing.cases.utility_floors import MAJORITY, OWN_ROWS, RANDOM_BASIS, floors, for_these_classes
from securefed._auditing.engine.kept_utility import Kept, floor_sentence, kept
from securefed.datasets import Dataset, LoadedDataset, load
from tests.auditing.page import text
from tests.auditing.test_advice_values import ADVICE, SETTING

ONE = {"floor": 0.5}


def rare_class(path: Path) -> Path:
    """Write 600 rows with 2 % of one class, of which no column knows anything."""
    rng = np.random.default_rng(3)
    np.savez(path, x=rng.normal(size=(600, 6)), y=(rng.permutation(600) < 12).astype(int))
    return path


def test_98_to_2_has_no_model_to_protect_and_nothing_is_advised(tmp_path: Path, monkeypatch) -> None:
    data = str(rare_class(tmp_path / "rows.npz"))
    monkeypatch.setattr(search, "candidates", lambda *sizes: candidates(*sizes)[:2])
    monkeypatch.setattr(search, "record_settings", lambda *arguments: ((), "Not tried."))
    settings = {"problem": "logistic", "learning_rate": 0.5, "local_steps": 5}
    found = search.advise("optimization/fedavg", data=data, seeds=3, rounds=3, settings=settings, cohorts=())
    assert found.measure == BALANCED and found.advised is None
    assert not any(one.model or one.usable for one in found.tried)
    (answer,) = answers(found)
    assert "There is no model to protect here: in the clear the balanced accuracy is 0.500" in answer.words
    assert found.tried[0].floor == pytest.approx(0.5)
    assert json.loads(json.dumps(found.to_json()))["tried"][0]["floor_name"] == MAJORITY


def test_the_page_and_the_json_of_an_audit_show_the_floor_beside_the_utility(tmp_path: Path) -> None:
    report = audit(["ssi"], ["plain", "secure_aggregation"], seeds=4, workers=1)
    report.save(tmp_path)
    found = json.loads((tmp_path / "audit.json").read_text())["utilities"]["pca/ssi"]
    assert set(found["floors"]) == {RANDOM_BASIS, OWN_ROWS}
    assert found["floors"][RANDOM_BASIS] < 0.2 < found["floors"][OWN_ROWS] < found["clear"]
    assert found["kept"]["secure_aggregation"]["share"] == pytest.approx(1.0, abs=1e-3)
    page = text((tmp_path / "audit.html").read_text())
    assert "Floor of the utility: in the clear the captured variance is 0.996, and a model of the client's own" in page
    assert "kept above it" in page


def test_noise_that_looks_like_a_gain_keeps_nothing_above_a_random_basis() -> None:
    """A basis of noise scores what random directions score, however much that is."""
    source = load("breast_cancer")
    prepared = case("pca/ssi").prepare(source, 4, 0)
    known = floors(case("pca/ssi"), prepared, 0)
    noise = {"basis": np.random.default_rng(9).normal(size=(prepared.public.features, 5))}
    scores = [case("pca/ssi").utility(noise, prepared.test), known[RANDOM_BASIS]]
    assert abs(scores[0] - scores[1]) < 0.35
    found = kept([scores[1]] * 4, [0.99, 0.98, 0.99, 0.985], [{RANDOM_BASIS: scores[1]}] * 4)
    assert found.model and found.share == pytest.approx(0.0, abs=1e-9) and not found.keeps(0.9)


@pytest.mark.parametrize(
    ("algorithm", "names"),
    [
        ("optimization/fedavg", {MAJORITY, OWN_ROWS}),
        ("pca/fedpg", {RANDOM_BASIS, OWN_ROWS}),
        ("graph/ppgl", {OWN_ROWS}),
        ("pca/self", set()),
    ],
)
def test_every_kind_of_utility_has_its_floors(algorithm: str, names: set[str]) -> None:
    what = case(algorithm)
    assert set(floors(what, what.prepare(load("digits"), 8, 0), 0)) == names


def test_accuracy_is_balanced_only_where_a_class_is_rare() -> None:
    what, even = case("optimization/fedavg"), load("digits").data
    assert for_these_classes(what, even).utility_name == ACCURACY
    rare = Dataset(even.x, (np.arange(even.rows) < 20).astype(int))
    assert for_these_classes(what, rare).utility_name == BALANCED
    always_zero = balanced(lambda output, test: float(np.mean(test.labels() == 0)))
    assert always_zero({}, rare) == pytest.approx(0.5)
    assert for_these_classes(case("pca/ssi"), rare).utility_name == "captured variance"


@pytest.mark.parametrize("owner", ["", "ward"])
@pytest.mark.parametrize("rare", [2, 6, 1])
def test_every_run_holds_a_rare_class_out_and_trains_on_it(owner: str, rare: int) -> None:
    """By chance six of 300 rows are not held out in every fourth run, which then scored as if there were one class."""
    x = np.random.default_rng(0).normal(size=(300, 4))
    y = np.where(np.arange(300) < rare, 1, np.where(np.arange(300) < 100, 2, 0))
    source = LoadedDataset(Dataset(x, y), "t", 10.0, groups={"ward": np.arange(300) % 4})
    what = for_these_classes(OwnSetup(60, owner=owner).apply(case("optimization/fedavg")), source.data)
    assert what.utility_name == (BALANCED if rare > 1 else BALANCED_OF_SOME)
    for seed in range(20):
        prepared = what.prepare(source, 4, seed)
        held = np.unique(prepared.test.labels()).tolist()
        assert held == ([0, 1, 2] if rare > 1 else [0, 2])
        assert floors(what, prepared, seed)[MAJORITY] == 1 / len(held)
        if seed == 0 and not owner:
            assert any((one.labels() == 1).any() for one in prepared.clients)


def test_a_share_is_of_what_the_clear_adds_to_its_best_floor() -> None:
    clear = [0.9, 0.92, 0.88, 0.9]
    low = [{"a": 0.5, "b": 0.2, "c": 0.1}] * 3 + [{"a": 0.5, "b": 0.2}]
    assert kept(clear, clear, low) == Kept(0.5, "a", True, pytest.approx(1.0), pytest.approx(1.0))
    half = kept([0.7, 0.71, 0.69, 0.7], clear, low)
    assert half.share == pytest.approx(0.5) and half.low <= half.share and half.keeps(0.4) and not half.keeps(0.6)
    assert not kept(clear, clear, [{"own": 0.9}] * 4).model  # no better than alone
    assert kept(clear, clear, [{}] * 4) == Kept()  # no floor is known: the older rule counts
    assert kept([0.9], [0.9], [ONE]).keeps(0.9) and not kept([-math.inf], [0.9], [ONE]).keeps(0.9)


@given(st.integers(0, 2**32 - 1), st.floats(0.1, 1.0), st.integers(3, 20))
def test_the_lower_bound_agrees_with_a_test_of_the_paired_differences(seed: int, share: float, runs: int) -> None:
    """At the bound, and nowhere else, Student's lower end of the mean of left - s added is 0."""
    from scipy.stats import t  # noqa: PLC0415

    rng = np.random.default_rng(seed)
    clear = 0.8 + 0.01 * rng.standard_normal(runs)
    utilities = 0.5 + share * (clear - 0.5) + 0.02 * rng.standard_normal(runs)
    found = kept(utilities.tolist(), clear.tolist(), [ONE] * runs)

    def lower(s: float) -> float:
        values = utilities - 0.5 - s * (clear - 0.5)
        return float(values.mean() - t.ppf(0.95, runs - 1) * values.std(ddof=1) / math.sqrt(runs))

    assert abs(lower(found.low)) < 1e-9
    assert lower(found.low - 0.01) > 0 > lower(found.low + 0.01)


def test_the_bound_lies_above_the_true_share_in_one_case_of_twenty() -> None:
    """2000 draws of ten runs, within five standard errors; without a margin it would lie above it in half of them."""
    rng = np.random.default_rng(0)
    above = 0
    for _ in range(2000):
        clear = 0.8 + 0.02 * rng.standard_normal(10)
        noised = 0.5 + 0.9 * (clear - 0.5) + 0.03 * rng.standard_normal(10)
        above += kept(noised.tolist(), clear.tolist(), [ONE] * 10).low > 0.9
    assert abs(above / 2000 - 0.05) < 5 * math.sqrt(0.05 * 0.95 / 2000)


def test_a_cohort_is_usable_only_above_its_floor() -> None:
    good = CohortUtility(32, (0.89,) * 3, (0.9,) * 3, (0.5,) * 3)
    assert good.interval(0.9)[0] >= 0
    assert replace(good, noised=(0.85,) * 3).interval(0.9)[0] < 0  # .85 is 94 % of .9, and 88 % of what is above .5
    assert replace(good, floor=(0.95,) * 3, noised=(0.97,) * 3).interval(0.9)[0] == -math.inf


def test_what_is_said_of_floors() -> None:
    known = Kept(0.983, MAJORITY, model=False)
    said = floor_sentence("accuracy", 0.933, known)
    assert said == (
        "There is no model to protect here: in the clear the accuracy is 0.933, and always naming the largest class "
        "reaches 0.983."
    )
    assert floor_sentence("accuracy", 0.99, known).startswith("The runs do not show that there is a model to protect")
    assert floor_sentence("accuracy", 0.99, Kept()) == ""
    floored = replace(SETTING, floor=0.6, floor_name=MAJORITY, share=0.93, share_low=0.9)
    costs = sentences([SETTING, floored], floored, None, 0.1, 0.9, 0)[1]
    assert "That is 93% (at least 90%) of what the model adds to its floor of 0.600. A client sends" in costs
    useless = replace(floored, usable=False)
    assert "none is shown to keep 90% of what the model adds" in sentences([useless], None, None, 0.1, 0.9, 0)[0]
    nothing = replace(floored, model=False, usable=False, holds=True)
    said = no_model_sentences(nothing, "accuracy")
    advice = replace(ADVICE, advised=None, tried=(nothing,), sentences=said)
    assert [one.words for one in answers(advice)] == [" ".join(said)]
