"""Every mechanism's epsilon, as its plan states it, beside an accountant that shares no code with ours, within .01."""

from __future__ import annotations

import pytest

from benchmarks.peers.accountants import CASES
from securefed.defenses import _differential_privacy as differential_privacy
from tests.combinations import first_ones


@pytest.mark.parametrize("name", first_ones(sorted(CASES, key=lambda name: "cohorts" in name), 2))
def test_epsilon_is_what_an_independent_accountant_says(name: str) -> None:
    case = CASES[name]
    link = case.make(case.noise)
    plan, less = (case.defense(factor).plan(case.layout, 10) for factor in (1.0, case.wrong))
    stated, wrong = dict(plan.epsilon), dict(less.epsilon)
    told_apart = []
    for rounds in case.rounds:
        other = case.other(link, plan, rounds)
        assert stated[rounds] == pytest.approx(other, abs=0.01)
        told_apart.append(abs(wrong[rounds] - other) > 0.02)
    assert all(told_apart)


def test_every_mechanism_that_adds_noise_is_in_the_table() -> None:
    makers = {"gaussian", "skellam", "discrete_gaussian", "local_gaussian", "local_laplace"}
    assert makers <= set(differential_privacy.__all__)
    made = {name.split(",")[0].replace(" ", "_") for name in CASES}
    assert made == makers
    assert {type(case.start[0]).__name__ for case in CASES.values()} == {
        "Clip",
        "ClipEach",
        "AdaptiveClip",
        "RecordPrivacy",
    }
