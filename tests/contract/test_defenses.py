"""What every registered defence must do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from securefed import Layout, TensorSpec
from securefed import _catalogue as catalogue
from securefed.defenses import (
    Aggregation,
    Defense,
    Identities,
    Plain,
    PoissonSampling,
    Transform,
    adaptive_clip,
    chain,
    ckks,
    clip,
    clip_each,
    discrete_gaussian,
    gaussian,
    local_gaussian,
    local_laplace,
    poisson,
    quantise,
    records,
    secure_aggregation,
    skellam,
    sum_once,
    threshold_paillier,
)
from securefed.defenses._base import has_indicator, without_indicator
from securefed.defenses._differential_privacy import InsecureGaussian
from securefed.defenses._homomorphic import InsecurePaillier, insecure_deal
from securefed.errors import PlanError, TooFewSurvivors
from securefed.testing._aggregation_checks import CHECKS as AGGREGATION_CHECKS
from securefed.testing._transform_checks import CHECKS as TRANSFORM_CHECKS

RNG = np.random.default_rng(5)
LAYOUT = Layout((TensorSpec("a", (3, 2), 2.0, 64), TensorSpec("b", (), 5.0, 32)))
VALUES = {i: {"a": RNG.uniform(-2, 2, (3, 2)), "b": RNG.uniform(-5, 5, ())} for i in range(5)}
NAMES = catalogue.defenses.names
# The DP defences add noise by design; their own tests check that. Here they run with little: sd .02.
# Keys of the usual length take seconds, so the battery uses short ones, which their type calls insecure.
ARGUMENTS: dict[str, dict[str, Any]] = {
    "dp": {"clip_norm": 20.0, "noise_multiplier": 1e-3},
    "ddp": {"clip_norm": 20.0, "noise_multiplier": 1e-3},
    "paillier_threshold": {"keys": insecure_deal(4, 5)},
}
NOISY = ("dp", "ddp")
NOISE = 0.2  # 7.7 standard deviations of the larger (`ddp` with all clients: sd .026), for 7 entries


def make(name: str) -> Defense:
    if name == "paillier":
        return chain(InsecurePaillier(bits=512))
    return catalogue.defenses.make(name, **ARGUMENTS.get(name, {}))


def test_the_registry_is_not_empty() -> None:
    assert len(NAMES) >= 5


@pytest.mark.parametrize("name", NAMES)
def test_it_satisfies_the_protocols_and_plans_in_words(name: str) -> None:
    defense = make(name)
    assert isinstance(defense.aggregation, Aggregation)
    assert all(isinstance(link, Transform) for link in defense.transforms)
    plan = defense.plan(LAYOUT, 5)
    assert plan.defense == defense.name
    assert plan.clients == 5
    assert plan.stages
    assert defense.aggregation.upload in plan.stages
    assert plan.upload_bytes >= LAYOUT.size * 4
    assert plan.open_to
    assert plan.assumptions
    assert plan.own.names == LAYOUT.names
    assert has_indicator(plan) is (name in ("secure_aggregation", "paillier", "paillier_threshold", "ckks"))
    assert all(t.max_clients >= 5 for t in plan.tensors)
    with pytest.raises(PlanError):
        defense.plan(LAYOUT, 0)


@pytest.mark.parametrize("name", NAMES)
def test_the_sum_is_right_within_the_plan(name: str) -> None:
    defense = make(name)
    found = sum_once(defense, LAYOUT, VALUES)
    assert found.survivors == tuple(range(5))
    for tensor in without_indicator(defense.plan(LAYOUT, 5)).tensors:
        exact = sum(v[tensor.name] for v in VALUES.values())
        noise = NOISE if name in NOISY else 1e-12
        assert np.abs(found.total[tensor.name] - exact).max() <= tensor.error + noise


@pytest.mark.parametrize("name", NAMES)
def test_one_lost_upload_leaves_the_sum_of_the_others_and_all_lost_is_named(name: str) -> None:
    defense = make(name)
    found = sum_once(defense, LAYOUT, VALUES, drop=lambda stage, party: stage == "upload" and party == 2)
    assert found.survivors == (0, 1, 3, 4)
    np.testing.assert_allclose(
        found.total["a"], sum(v["a"] for i, v in VALUES.items() if i != 2), atol=NOISE if name in NOISY else 1e-8
    )
    with pytest.raises(TooFewSurvivors):
        sum_once(defense, LAYOUT, VALUES, drop=lambda stage, party: stage == "upload" and party >= 0)


AGGREGATIONS = [
    Plain(),
    secure_aggregation(),
    secure_aggregation(pipelined=True, verify=True),
    secure_aggregation(identities=Identities.generate(5)),
    InsecurePaillier(),
    threshold_paillier(keys=insecure_deal(4, 5)),
    ckks(),
]
TRANSFORMS = [
    clip(1.0),
    clip_each(norms={"weights": 1.0, "loss": 2.0}),
    adaptive_clip(0.5),
    adaptive_clip(0.5, rate=0.3, each=True),
    records(),
    poisson(0.3),
    gaussian(2.0),
    gaussian(2.0, sampler=PoissonSampling(0.2)),
    InsecureGaussian(gaussian(2.0), 4),
    quantise(),
    quantise(16, only=("loss",)),
    skellam(2.0),
    discrete_gaussian(2.0),
    local_gaussian(2.0),
    local_laplace(2.0),
]


@pytest.mark.parametrize("check", AGGREGATION_CHECKS)
@pytest.mark.parametrize("aggregation", AGGREGATIONS, ids=str)
def test_aggregations_pass_the_published_checks(aggregation: Aggregation, check: Callable[[Aggregation], None]) -> None:
    check(aggregation)


@pytest.mark.parametrize("check", TRANSFORM_CHECKS)
@pytest.mark.parametrize("transform", TRANSFORMS, ids=str)
def test_transforms_pass_the_published_checks(transform: Transform, check: Callable[[Transform], None]) -> None:
    check(transform)


def test_the_checks_run_on_every_class_that_a_registered_defence_is_made_of() -> None:
    made = [make(name) for name in NAMES]
    checked = {type(link) for link in (*AGGREGATIONS, *TRANSFORMS)}
    for link in [link for defense in made for link in (*defense.transforms, defense.aggregation)]:
        assert any(issubclass(kind, type(link)) for kind in checked), link
