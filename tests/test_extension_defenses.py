"""A transform and an aggregation as a newcomer writes them, from the templates alone; and what each misuse says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest

from extension_templates.aggregation import ZeroSumMasks
from extension_templates.transform import SoftLimit
from securefed import Dataset, Federation, Layout, Tensors, TensorSpec, secure_mean
from securefed.algorithms import SSI
from securefed.defenses import (
    Aggregation,
    ChainStage,
    Plain,
    Plan,
    TensorPlan,
    Transform,
    chain,
    clip,
    gaussian,
    quantise,
    secure_aggregation,
    skellam,
    sum_once,
)
from securefed.errors import ConfigError, PlanError, TooFewSurvivors
from securefed.testing._aggregation_checks import CHECKS as AGGREGATION_CHECKS
from securefed.testing._transform_checks import CHECKS as TRANSFORM_CHECKS

LAYOUT = Layout((TensorSpec("w", (6,), 1.0),))
WIDE = Layout((TensorSpec("w", (6,), 1.0, ring=33),))  # type: ignore[arg-type]


@dataclass(frozen=True)
class TopK(Transform):
    """Keep the k largest entries of each tensor."""

    k: int
    name: ClassVar[str] = "top_k"
    stage: ClassVar[ChainStage] = ChainStage.SPARSIFY

    def plan(self, plan: Plan) -> Plan:
        tensors = (replace(t, error=t.error + plan.clients * (t.bound or np.inf)) for t in plan.tensors)
        return replace(plan, tensors=tuple(tensors))

    def encode(self, contribution: Tensors, plan: Plan) -> Tensors:
        floors = {n: np.sort(np.abs(v), axis=None)[-min(self.k, np.size(v))] for n, v in contribution.items()}
        return {n: np.where(np.abs(v) >= floors[n], v, 0.0) for n, v in contribution.items()}


@pytest.mark.parametrize("check", TRANSFORM_CHECKS)
@pytest.mark.parametrize("transform", [TopK(3), SoftLimit(0.5)], ids=str)
def test_a_transform_written_from_the_template_passes_the_checks(transform: Transform, check: Callable[..., None]):
    check(transform)


def test_it_runs_in_a_chain_before_clip_and_masks():
    defense = chain(TopK(2), clip(10.0), secure_aggregation())
    assert defense.name == "top_k(k=2) + clip(10) + quantise + secure_aggregation"
    values = {client: {"w": np.array([0.1, -0.9, 0.2, 0.0, 0.8, 0.3])} for client in range(3)}
    np.testing.assert_allclose(sum_once(defense, LAYOUT, values).total["w"], [0, -2.7, 0, 0, 2.4, 0], atol=1e-6)


@pytest.mark.parametrize("check", AGGREGATION_CHECKS)
def test_an_aggregation_written_from_the_template_passes_the_checks(check: Callable[..., None]):
    check(ZeroSumMasks(bytes(32)))


def test_the_template_refuses_a_sum_without_a_client():
    values = {client: {"w": np.zeros(6)} for client in range(3)}
    with pytest.raises(TooFewSurvivors, match="2 of 3"):
        sum_once(chain(ZeroSumMasks(bytes(32))), LAYOUT, values, drop=lambda stage, party: party == 1)


class Renames(TopK):
    """Returns a tensor of another name."""

    def encode(self, contribution, plan):
        return {f"{name}.sparse": value for name, value in contribution.items()}


class Flattens(TopK):
    """Returns another shape."""

    def encode(self, contribution, plan):
        return {name: value.ravel()[: self.k] for name, value in contribution.items()}


class Forgets(TopK):
    """Returns no plan."""

    def plan(self, plan):
        replace(plan)


class InPlace(TopK):
    """Changes what it is given."""

    def encode(self, contribution, plan):
        for value in contribution.values():
            np.copyto(value, 0.0)
        return contribution


class Squares(TopK):
    """Decodes what is no sum."""

    def decode(self, total, plan, count):
        return {name: value**2 * 100 for name, value in total.items()}


class Unnoticed(TopK):
    """Its parameter shows nowhere."""

    def __str__(self):
        return self.name

    def plan(self, plan):
        return plan


class Staged:
    """Has the methods and not the base class."""

    name, stage = "staged", ChainStage.CLIP

    def plan(self, plan):
        return plan


class Unstaged(Transform):
    """Has no stage."""

    name = "unstaged"

    def plan(self, plan):
        return plan


class Unplanned(Transform):
    """Has no plan."""

    name, stage = "unplanned", ChainStage.CLIP


def encoded(transform: Transform) -> Any:
    defense = chain(transform)
    return defense.encode({"w": np.ones(6)}, defense.plan(LAYOUT, 3))


def failing(transform: Transform) -> None:
    for check in TRANSFORM_CHECKS:
        check(transform)


@pytest.mark.parametrize(
    ("misuse", "error", "words"),
    [
        (lambda: encoded(Renames(2)), PlanError, r"top_k.*encode.*'w.sparse'.*the plan says \{'w'"),
        (lambda: encoded(Flattens(2)), PlanError, r"top_k.*encode.*\(2,\).*the plan says \{'w': \(6,\)"),
        (lambda: chain(Forgets(2)).plan(LAYOUT, 3), PlanError, "`plan` returned NoneType; it must return a Plan"),
        (lambda: failing(InPlace(2)), AssertionError, "changed the contribution in place"),
        (lambda: failing(Squares(2)), AssertionError, "`decode` must be linear"),
        (lambda: failing(Unnoticed(2)), AssertionError, "the plan is the same with another 'k'"),
        (Unplanned, TypeError, "Unplanned.*plan"),
        (lambda: chain(Unstaged()), ConfigError, "Unstaged is a transform without `stage`.*ChainStage"),
        (lambda: chain(Staged()), ConfigError, "Staged.*a subclass of securefed.defenses.Transform"),
        (lambda: chain(clip), ConfigError, r"the function clip itself; call it.*clip\(1.0\)"),
        (lambda: chain(TopK), ConfigError, "the class TopK itself; call it"),
        (
            lambda: chain("secure_aggregation"),
            ConfigError,
            "the text 'secure_aggregation'.*securefed.defenses",
        ),
        (lambda: chain(None), ConfigError, "not None of type NoneType"),
        (lambda: chain(gaussian(1.0), clip(1.0)), ConfigError, r"SPARSIFY -> CLIP .*write chain\(clip\(1\), gaussian"),
        (lambda: chain(clip(1.0), clip(2.0)), ConfigError, "same stage, CLIP; keep one"),
        (lambda: chain(secure_aggregation(), clip(1.0)), ConfigError, "secure_aggregation must be the last link"),
        (lambda: quantise(33), ConfigError, r"ring must be 32 or 64, or 8 to 21 bits.*got 33"),
        (
            lambda: secure_mean([{"w": np.ones(2)}] * 3, defense=chain(), ring=33),
            ConfigError,
            "secure_mean: ring must be 32 .*got 33",
        ),
        (lambda: chain(quantise()).plan(WIDE, 3), ConfigError, "the layout's tensor 'w': ring must be 32 .*got 33"),
        (lambda: skellam(1.0, ring=33), ConfigError, r"skellam: ring must be 32 or 64.*got 33"),
        (lambda: clip(-1), ConfigError, r"clip: the norm must be a positive finite number, .*clip\(1.0\); got -1"),
        (lambda: clip("1"), ConfigError, "clip: the norm must be a positive finite number, .*got '1'"),
        (lambda: secure_mean([{"w": np.ones(2)}] * 3, defense="plain"), ConfigError, "the text 'plain'"),
        (lambda: secure_mean([{"w": np.ones(2)}] * 3, defense=secure_aggregation), ConfigError, "call it"),
    ],
)
def test_a_misuse_is_named_with_what_to_write_instead(misuse: Callable[[], Any], error: type[Exception], words: str):
    with pytest.raises(error, match=words):
        misuse()


def test_an_aggregation_alone_is_a_defence():
    updates = [{"w": np.full(2, float(client))} for client in range(3)]
    mean = secure_mean(updates, defense=secure_aggregation())
    np.testing.assert_allclose(mean["w"], 1.0, atol=1e-9)
    clients = [Dataset(np.random.default_rng(client).uniform(-1, 1, (9, 4))) for client in range(3)]
    alone = Federation(SSI(rank=2), clients, secure_aggregation(), seed=1).run(1)
    chained = Federation(SSI(rank=2), clients, chain(secure_aggregation()), seed=1).run(1)
    assert alone.plan == chained.plan
    assert isinstance(Plain(), Aggregation)
    assert TensorPlan("w", (2,), None, 0, 0.0, 1, 0.0).size == 2
