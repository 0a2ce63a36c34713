"""Remedies of defences: chains, noise, secure aggregation and encryption."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from extension_templates.transform import SoftLimit
from securefed import Layout, TensorSpec
from securefed.defenses import (
    ChainStage,
    Plain,
    Transform,
    chain,
    clip,
    gaussian,
    paillier,
    secure_aggregation,
    skellam,
)  # fmt: skip
from securefed.defenses._differential_privacy.distributed import DistributedNoise
from securefed.defenses._fixed_point import Quantise
from securefed.defenses._secure_aggregation.graph import design_sparse_graph, plan_sparse_graph
from tests.remedies.followed import Followed, arguments, evaluated, found

LAYOUT = Layout((TensorSpec("w", (6,), 1.0),))
CHAIN, BASE = "defenses/_chain.py", "defenses/_base.py"
NOISE = "defenses/_differential_privacy/distributed.py"
MASKING = "defenses/_secure_aggregation/double_masking.py"
THRESHOLDS = "defenses/_secure_aggregation/graph.py"


class Unstaged(Transform):
    """A transform without its two attributes."""

    def plan(self, plan: Any) -> Any:
        return plan

    def encode(self, contribution: Any, plan: Any) -> Any:
        return contribution


class Longer(SoftLimit):
    """A transform that returns a tensor which its plan does not state."""

    def encode(self, contribution: Any, plan: Any) -> Any:
        return {**contribution, "more": np.zeros(1)}


class Planned(Longer):
    """The same, with a plan that states it."""

    def plan(self, plan: Any) -> Any:
        more = replace(plan.tensors[0], name="more", shape=(1,))
        return replace(plan, tensors=(*plan.tensors, more), added=(*plan.added, "more"),
                       wanted_rings={**plan.wanted_rings, "more": 32})  # fmt: skip


@dataclass(frozen=True)
class Planless(SoftLimit):
    """A transform whose plan is none."""

    made: Any = None

    def plan(self, plan: Any) -> Any:
        return self.made and self.made(plan)


def staged(message: str) -> object:
    """State what the message says is missing, as it says it."""
    example = found(r"state it in the class: `(.*)`", message)
    assert re.findall("`(.*?)`", message)[:2] == ["name", "stage"]
    body: dict[str, Any] = {"name": "own"}
    exec(example, {"ClassVar": ClassVar, "ChainStage": ChainStage}, body)  # noqa: S102 - our own message
    return chain(type("Whole", (Unstaged,), {k: v for k, v in body.items() if k != "__annotations__"})())


def encoded(transform: Any) -> object:
    defense = chain(transform, Plain())
    return defense.encode({"w": np.full(6, 0.1)}, defense.plan(LAYOUT, 3))


def stated(message: str) -> None:
    """Follow both: return the planned shapes, or state what is added in the attributes that the message names."""
    plan = chain(SoftLimit(0.5), Plain()).plan(LAYOUT, 3)
    names = re.findall(r"`Plan\.(\w+)`", message)
    assert names and all(hasattr(plan, name) for name in names)
    encoded(SoftLimit(0.5))
    encoded(Planned(0.5))


def planned_by(message: str) -> None:
    """Return what the message says, in both ways."""
    for pattern, change in ((r"`return (plan)`", ""), (r"`return (dataclasses\.replace\(plan, \.\.\.\))`", "name='p'")):

        def made(plan: Any, pattern: str = pattern, change: str = change) -> Any:
            return (
                evaluated(pattern, message, plan=plan, dataclasses=dataclasses)
                if not change
                else evaluated("(.*)", found(pattern, message).replace(", ...", ""), plan=plan, dataclasses=dataclasses)
            )

        chain(Planless(0.5, made), Plain()).plan(LAYOUT, 3)


def noise(make: Any = skellam, *, threshold: int | None = None, clients: int = 5, **settings: Any) -> object:
    return chain(clip(1.0), make(1.0, **settings), secure_aggregation(threshold=threshold)).plan(LAYOUT, clients)


def sized(message: str) -> None:
    """Raise the threshold to the survivors of the noise, or lower these to the threshold."""
    survivors, opened = int(found(r"for (\d) survivors", message)), int(found(r"sums of (\d)", message))
    assert "raise its threshold" in message and "the noise's `survivors`" in message
    noise(survivors=survivors, threshold=survivors)
    noise(survivors=opened)


def fewer_colluders(message: str) -> None:
    """Assume fewer colluders than survivors, or have more survivors."""
    survivors, colluding = int(found(r"of (\d) survivors", message)), int(found(r"survivors (\d) collude", message))
    noise(colluding=survivors - 1)
    assert "raise the threshold and `survivors`" in message
    noise(colluding=colluding, survivors=colluding + 1, threshold=colluding + 1)


def masked(clients: int = 40, **settings: Any) -> object:
    return chain(secure_aggregation(**settings)).plan(LAYOUT, clients)


def lowered(message: str, named: str, clients: int, **settings: Any) -> None:
    """Lower each argument that the message names, alone."""
    names = re.findall(r"`(\w+)`", message.split("lower ")[1])
    assert names == named.split()
    for name in names:
        masked(clients, **settings | {name: 0.05})


def designed(**fewer: int) -> object:
    """Plan with a design in which the server may deviate, 600 of 2000 clients are corrupt and 800 are lost."""
    design = design_sparse_graph(2000, 0.1, 0.1)
    plan = chain(Plain()).plan(LAYOUT, 2000)
    return plan_sparse_graph(
        plan, replace(design, active=True, **{"corrupt": 600, "lost": 800} | fewer), survivor_change=1
    )


def with_a_majority(message: str) -> None:
    assert re.findall(r"`(\w+)`", message) == ["dropouts", "adversarial"]
    designed(lost=500)
    designed(corrupt=300)


DENSE = {"graph": "sparse", "adversarial": 0.3, "dropouts": 0.3}
TABLE: dict[str, Followed] = {
    "links out of order": Followed(
        CHAIN,
        "write chain(",
        lambda _: chain(gaussian(1.0), clip(1.0)),
        lambda message, _: chain(clip(1.0), gaussian(1.0)) and found(r"write chain\((clip.*gaussian)", message),
    ),
    "a link that is none": Followed(
        CHAIN, "a chain holds transforms, aggregations and defences", lambda _: chain(3),
        lambda message, _: evaluated(r"write (chain.*), or make", message).plan(LAYOUT, 5),
    ),
    "a transform without a stage": Followed(
        CHAIN, "state it in the class: ", lambda _: chain(Unstaged()), lambda message, _: staged(message)
    ),
    "tensors without a ring": Followed(
        "defenses/_fixed_point.py", "give a ring", lambda _: Quantise(only=("w",)),
        lambda *_: Quantise(ring=32, only=("w",)),
    ),
    "noise for more survivors than are summed": Followed(
        BASE, "the clients' noise is sized for ", lambda _: noise(survivors=5), lambda message, _: sized(message)
    ),
    "an encoding that was not planned": Followed(
        BASE, "or let its `plan` state", lambda _: encoded(Longer(0.5)), lambda message, _: stated(message)
    ),
    "a plan that is none": Followed(
        BASE, "it must return a Plan", lambda _: chain(Planless(0.5)).plan(LAYOUT, 3),
        lambda message, _: planned_by(message),
    ),
    "as many colluders as survivors": Followed(
        NOISE, "so no honest one is left", lambda _: noise(colluding=3), lambda message, _: fewer_colluders(message)
    ),
    "sums of Laplace shares": Followed(
        NOISE, "sums of Laplace shares are not accounted for",
        lambda _: DistributedNoise("discrete_laplace", 1.0),
        lambda message, _: [
            evaluated("use (skellam),", message)(1.0),
            DistributedNoise("discrete_laplace", 1.0, **arguments(r"or (survivors=1)$", message)),
        ],
    ),
    "short exponents of a long modulus": Followed(
        "defenses/_homomorphic/encryption_randomness.py", "is defined for a modulus of up to ",
        lambda _: paillier(4096, randomness="short"),
        lambda message, _: paillier(4096, **arguments(r"use (randomness='half')$", message)),
    ),
    "a threshold of a sparse graph": Followed(
        MASKING, "the design of a sparse graph sets the threshold",
        lambda _: masked(graph="sparse", adversarial=0.1, dropouts=0.1, threshold=21),
        lambda message, _: masked(
            adversarial=0.1, dropouts=0.1, threshold=21, **arguments("only with (graph='complete')", message)
        ),
    ),
    "a sparse graph of few clients": Followed(
        "defenses/_secure_aggregation/graph.py", "no sparse graph of ",
        lambda _: masked(20, **DENSE),
        lambda message, _: masked(20, **DENSE | arguments(r'take (graph="complete"),', message)),
    ),
    "no majority of a sparse graph": Followed(
        THRESHOLDS, "leave no majority ", lambda _: designed(), lambda message, _: with_a_majority(message)
    ),
    "half of a sparse graph": Followed(
        THRESHOLDS, "leave no more than half",
        lambda _: masked(2000, graph="sparse", adversarial=0.05, dropouts=0.55),
        lambda message, _: lowered(message, "dropouts", 2000, graph="sparse", adversarial=0.05, dropouts=0.55),
    ),
}  # fmt: skip
"""By name, the remedies that are followed."""
