"""Every registered attack on transcripts that lack something: it says what and at which cost, before it allocates."""

from __future__ import annotations

import re
import tracemalloc
from collections.abc import Iterator
from dataclasses import fields, replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from securefed import Dataset, Federation, Public
from securefed import _catalogue as catalogue
from securefed._auditing.cases import case_names
from securefed.algorithms import DSGD, FAPS, FedPG, LocalPower
from securefed.attacks import Attack, Target, View, views
from securefed.attacks._diagnosis import diagnose, explained, resolution
from securefed.attacks._gradient_inversion.multistart_search import MultiStartSearch
from securefed.attacks._requirements import unbroken
from securefed.errors import TranscriptError
from securefed.testing._attack_checks import views_of
from tests.attacks.test_networks import NETWORK
from tests.attacks.test_networks import seen as seen_network
from tests.combinations import first_ones

NAMES = catalogue.attacks.names
SINGLE = float(np.finfo(np.float32).eps)
HUGE = 10**9
SETTINGS = {
    "LocalPower, two steps": LocalPower(rank=2, local_steps=(2,)),
    "FAPS, two clients": FAPS(rank=2, inner_steps=1),
    "FedPG, two clients": FedPG(rank=2, rho=1.0, step_size=0.01, local_steps=1),
}
ALL = (*case_names(), *SETTINGS)
SLOW = ("detection/fedae", "detection/fedbigan", "detection/fedbigan-2")
"""Networks, of which one stands for all where an attack runs to its end."""
FEW = (
    "pca/ssi",
    "pca/localpower",
    "pca/fedpg",
    "pca/fedpe",
    "optimization/dsgd",
    "optimization/fedavg",
    "optimization/scaffold",
    "personalized/flame",
    "personalized/pfedme",
    "graph/ppgl",
)
"""An algorithm of each family of attacks."""
SHORT = MultiStartSearch(steps=40, budget=40)
QUICK: dict[str, dict[str, Any]] = {
    "gradient_inversion/fit": {"search": SHORT},
    "networks/inversion": {"evaluations": 5},
}
WEAK = ("gradient_inversion/naive", "gradient_inversion/dlg", "gradient_inversion/telescoping", "personal/replay")
"""They fit what `gradient_inversion/fit` fits, or by it."""


@cache
def scene(algorithm: str) -> tuple[Target, dict[str, View]]:
    """Views of one short run: of the audit's case, or of a setting that only some attack is for."""
    if algorithm in case_names():
        return views_of(algorithm)
    rng = np.random.default_rng(4)
    clients = [Dataset(rng.uniform(0, 1, (5, 4))) for _ in range(2)]
    public = Public.of(clients)
    transcript = Federation(SETTINGS[algorithm], clients, public=public, seed=0).run(6).transcript
    looks = {"server": views.server(transcript, 0), "sum only": views.sum_only(transcript, 0)}
    return Target(SETTINGS[algorithm], public), looks | {"changing": views.output_only(transcript, 0)}


def attacked(algorithm: str, *, quick: bool = False) -> Iterator[tuple[Attack, Target, View]]:
    """Every attack that applies, on the strongest view that it applies to; where it runs to its end, the quick ones."""
    target, looks = scene(algorithm)
    for name in NAMES:
        if quick and name in WEAK:
            continue
        attack = catalogue.attacks.make(name, **QUICK.get(name, {}) if quick else {})
        for view in ("server", "changing", "sum only"):
            if attack.applies(target, looks[view]) is None:
                yield attack, target, looks[view]
                break


def silenced(observed: View, *places: int) -> View:
    """The same view without the broadcasts of these rounds."""
    rounds = list(observed.rounds)
    for place in places:
        rounds[place] = replace(rounds[place], broadcast={})
        if place:
            rounds[place - 1] = replace(rounds[place - 1], followed={})
    return replace(observed, rounds=tuple(rounds))


def test_every_attack_has_its_turn_here() -> None:
    met = {attack.name for algorithm in ALL for attack, *_ in attacked(algorithm)}
    assert met | {"networks/inversion", "personal/network"} == set(NAMES)  # networks have tests of their own


@pytest.mark.parametrize("algorithm", ALL)
def test_a_view_without_broadcasts_is_refused_with_the_cost(algorithm: str) -> None:
    for attack, target, observed in attacked(algorithm):
        blind = silenced(observed, *range(len(observed.rounds)))
        reason = attack.applies(target, blind)
        assert reason is not None, attack.name
        assert "no broadcast" in reason
        assert "costs" in reason
        with pytest.raises(TranscriptError, match="no broadcast"):
            attack.run(blind, target, np.random.default_rng(0))


@pytest.mark.parametrize("algorithm", [name for name in ALL if name not in SLOW])
def test_a_gap_is_named_or_left_out_and_the_rounds_before_it_are_attacked(algorithm: str) -> None:
    for attack, target, observed in attacked(algorithm, quick=True):
        gap = silenced(observed, 3)
        reason = attack.applies(target, gap)
        if reason is None:  # each round by itself: the rest are used, and the report says how many are not
            found = attack.run(gap, target, np.random.default_rng(0))
            assert np.isfinite(found.value).all()
            assert any("1 of" in line and "left out" in line for line in diagnose(found, gap, target)), attack.name
            continue
        if "broadcast" not in reason:  # the rounds that are left are too few for it, as it says
            assert attack.name == "gram/difference"
            continue
        assert f"exchange {observed.rounds[3].round}" in reason
        assert "only the 3" in reason
        before = unbroken(gap)
        assert len(before.rounds) == 3
        assert attack.applies(target, before) is None


def recast(observed: View, kind: type) -> View:
    """The same view with messages of another type."""
    return replace(
        observed,
        rounds=tuple(
            replace(o, message={name: np.asarray(value, kind) for name, value in o.message.items()})
            for o in observed.rounds
        ),
    )


@pytest.mark.parametrize("algorithm", first_ones(FEW, 5))
def test_float32_messages_are_attacked_and_the_cost_is_said(algorithm: str) -> None:
    for attack, target, observed in attacked(algorithm, quick=True):
        coarse = recast(observed, np.float32)
        found = attack.run(coarse, target, np.random.default_rng(0))
        assert np.isfinite(found.value).all(), attack.name
        assert SINGLE <= resolution(coarse) < 1e-3
        assert any("digits, not 16" in line for line in diagnose(found, coarse, target))
        assert resolution(observed) < 1e-15
        assert not any("digits" in line for line in diagnose(found, observed, target))


WRONG = ("learning_rate", "rho", "step_size", "penalty", "attraction", "beta_scale", "local_steps", "inner_steps")


def mistaken(target: Target) -> Iterator[tuple[str, Target]]:
    """The target with one hyper-parameter that is wrong by a tenth, or by one step."""
    for item in fields(target.algorithm):
        value = getattr(target.algorithm, item.name)
        if item.name in WRONG and isinstance(value, int | float) and value:
            wrong = value + 1 if isinstance(value, int) else value * 1.1
            yield item.name, replace(target, algorithm=replace(target.algorithm, **{item.name: wrong}))


@pytest.mark.parametrize("algorithm", first_ones(FEW, 5))
def test_wrong_hyper_parameters_show_in_the_misfit_or_change_nothing(algorithm: str) -> None:
    solved = False
    for attack, target, observed in attacked(algorithm, quick=True):
        right = attack.run(observed, target, np.random.default_rng(0))
        solved |= explained(right, observed) is True
        for name, wrong in mistaken(target):
            if attack.applies(wrong, observed) is not None:
                continue  # with these it is another attack's case, and it says so
            try:
                found = attack.run(observed, wrong, np.random.default_rng(0))
            except TranscriptError as refusal:
                assert "fit" in str(refusal) or "explain" in str(refusal), refusal
                continue
            known = explained(found, observed)
            said = diagnose(found, observed, wrong)
            if known is None:
                assert any("would not show" in line for line in said), attack.name
            elif known:  # it does not use the parameter
                np.testing.assert_allclose(found.value, right.value, rtol=1e-5, err_msg=f"{attack.name}, {name}")
            else:
                assert any("not those given" in line for line in said)
    assert solved, "the control: with the right ones some attack explains every message"


def widened(value: object, before: int) -> object:
    """A tensor whose dimensions that follow the number of features are huge; it takes no memory."""
    shape = np.shape(value)  # type: ignore[arg-type]
    edges = before * (before - 1) // 2
    wide = tuple(HUGE if n == before else HUGE * (HUGE - 1) // 2 if n == edges > 2 else n for n in shape)
    return np.broadcast_to(np.asarray(value).reshape(-1)[0], wide)


@pytest.mark.parametrize("algorithm", ALL)
def test_sizes_beyond_memory_are_refused_with_size_and_limit_before_anything_is_allocated(algorithm: str) -> None:
    for attack, target, observed in attacked(algorithm):
        before = target.public.features
        public = replace(target.public, features=HUGE)
        rounds = tuple(
            replace(
                o,
                **{
                    part: {name: widened(value, before) for name, value in getattr(o, part).items()}
                    for part in ("broadcast", "message", "followed")
                },
            )
            for o in observed.rounds
        )
        tracemalloc.start()
        try:
            with pytest.raises(TranscriptError) as refused:
                attack.run(replace(observed, rounds=rounds), replace(target, public=public), np.random.default_rng(0))
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < 2**24, attack.name
        said = str(refused.value)
        assert re.search("limit|cannot determine", said), f"{attack.name}: {said}"
        assert re.search(r"\d", said), said


def test_networks_are_held_to_the_same() -> None:
    attack = catalogue.attacks.make("networks/inversion", **QUICK["networks/inversion"])
    target, observed, *_ = seen_network(DSGD(problem=NETWORK), 2)
    with pytest.raises(TranscriptError, match="no broadcast"):
        attack.run(silenced(observed, 0), target, np.random.default_rng(0))
    huge = replace(target, public=replace(target.public, features=HUGE))
    with pytest.raises(TranscriptError, match="limit"):
        attack.run(observed, huge, np.random.default_rng(0))
    coarse = recast(observed, np.float32)
    found = attack.run(coarse, target, np.random.default_rng(0))
    assert any("digits, not 16" in line for line in diagnose(found, coarse, target))
