"""Numbers outside their domain are refused by name where a defence, a limit or a statistic is made, not in a run."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from securefed import DataUsage, Limits, RunOptions, defenses, statistics
from securefed._runtime.exchange_header import ExchangeSchedule
from securefed.errors import SecureFedError
from securefed.parties import SummedTensor

ODD = ["1", True, float("nan"), float("inf"), -1, 0, 1.5, [1], None, np.array([1.0, 2.0])]
"""Texts, truth values, no numbers, negative ones, fractions, lists."""
NEEDED: dict[str, Any] = {
    "noise_multiplier": 1.0, "norm": 1.0, "quantile": 0.5, "rate": 0.5, "cohort": 2, "clients": 5, "threshold": 3,
    "holders": 5, "epsilon": 1.0, "delta": 1e-5, "rounds": 3, "shape": (3,), "name": "w", "bound": 1.0,
    "levels": (2, 3), "masking": defenses.secure_aggregation(), "groups": 3, "committee": range(5),
    "identities": defenses.Identities.generate(5),
    "edges": (0.0, 1.0), "features": 2, "by": "arm", "statistic": statistics.Mean(2), "times": (1.0, 2.0, 3.0),
}  # fmt: skip
"""Values of the parameters that have no default."""
GIVEN = {"features", "times", "by", "levels"}
"""Parameters whose default stands for columns that are named instead; here they are always given."""
MADE_BY_THE_PACKAGE = {
    "Estimate", "KeyHolder", "KeySet", "MaskingPlan", "Plan", "PrivacyPlan", "Session", "TensorPlan", "sum_once",
    "Statistic", "Fitted", "Aggregation", "Transform", "AdaptiveTransform", "Defense",
}  # fmt: skip
"""Results, plans and base classes, whose numbers come from the package."""
FITS: dict[str, list[Any]] = {
    "int": [], "float": [1.5], "exchanges": [0], "colluding": [0], "survivor_change": [], "ddof": [0],
    "adversarial": [0], "dropouts": [0], "ridge": [0, 1.5], "shift": [0, -1, 1.5, np.array([1.0, 2.0])],
    "target_shift": [0, -1, 1.5], "rounds": [0],
    "DataUsage.epsilon": [0, 1.5, float("inf")], "DataUsage.delta": [0], "Limits.epsilon": [1.5, float("inf"), None],
    "Limits.delta": [], "Budget.epsilon": [1.5, float("inf")], "timeout": [1.5, float("inf")], "delta": [], "rate": [],
    "adaptive_clip.rate": [1.5], "quantile": [], "share": [], "calibrate.rounds": [], "evaluate_every": [0],
    "FixedSizeSampling.clients": [], "clip_each.norm": [1.5], "ring": [], "edges": [np.array([1.0, 2.0])],
    "one_message.lost": [0], "times": [[1], np.array([1.0, 2.0])], "probabilities": [],
}  # fmt: skip
"""Which odd values fit a parameter: by its name, where it stands, or its type."""


def makers() -> Iterator[tuple[str, Callable[..., Any]]]:
    for module in (defenses, statistics):
        for name in module.__all__:
            if name not in MADE_BY_THE_PACKAGE and callable(made := getattr(module, name)):
                yield name, made
    yield from ((made.__name__, made) for made in (Limits, DataUsage, RunOptions, SummedTensor, ExchangeSchedule))


def numbers() -> Iterator[Any]:
    for name, made in makers():
        try:
            parameters = inspect.signature(made).parameters.values()
        except ValueError:  # a Literal
            continue
        for parameter in parameters:
            kind = str(parameter.annotation)
            if (
                any(word in kind for word in ("int", "float", "Ring"))
                and "tuple[int" not in kind
                and "Mapping" not in kind
            ):
                yield pytest.param(made, parameter, id=f"{name}.{parameter.name}")


def fitting(made: Callable[..., Any], parameter: inspect.Parameter) -> list[Any]:
    kind = "int" if str(parameter.annotation).startswith("int") else "float"
    place = f"{made.__name__}.{parameter.name}"
    if place in FITS:
        return FITS[place]
    found = FITS.get(parameter.name, FITS[kind])
    return [*found, None] if "None" in str(parameter.annotation) else found


def singular(name: str) -> str:
    return f"{name.removesuffix('ies')}y" if name.endswith("ies") else name.removesuffix("s")


@pytest.mark.parametrize(("made", "parameter"), list(numbers()))
def test_a_number_outside_its_domain_is_named(made: Callable[..., Any], parameter: inspect.Parameter) -> None:
    given = {
        name: NEEDED[name]
        for name, other in inspect.signature(made).parameters.items()
        if name in GIVEN or (other.default is other.empty and other.kind is not other.VAR_KEYWORD and name in NEEDED)
    }
    fits = fitting(made, parameter)
    for value in ODD:
        if any(type(value) is type(other) and np.array_equal(value, other) for other in fits):
            made(**given | {parameter.name: value})
            continue
        with pytest.raises(SecureFedError) as refused:
            made(**given | {parameter.name: value})
        said = str(refused.value)
        assert parameter.name in said or f"a {singular(parameter.name)}" in said, said


def test_many_numbers_are_looked_at() -> None:
    assert len(list(numbers())) > 50
