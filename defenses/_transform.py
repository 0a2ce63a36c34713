"""The contract of a transform: one link of a defence, between the algorithm and the aggregation.

A transform changes each client's contribution (the named tensors that it adds to a sum) before it is summed, or the sum
before it is released. `Defense` calls it: `plan` before a run, then in each exchange (one sum) `encode` at every
client, `decode` and `release` at the server. Write a class of your own with `name`, `stage` and `plan`; everything else
has a default that changes nothing. A commented example stands in `extension_templates/transform.py`, and
`securefed.testing.parametrize_with_checks` tests yours.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import fields, is_dataclass
from enum import IntEnum
from typing import ClassVar

from securefed._messages import ClippingNoiseRecord
from securefed._tensors import Layout, Tensors
from securefed.defenses._plan import Plan


def link_text(name: str, link: object) -> str:
    """Write a link of a chain as its name and, where it is a dataclass, its parameters."""
    parameters = [f"{f.name}={getattr(link, f.name)}" for f in fields(link)] if is_dataclass(link) else []
    return f"{name}({', '.join(parameters)})" if parameters else name


class ChainStage(IntEnum):
    """The kinds of transforms, in the order in which a chain applies them; a chain holds at most one of each."""

    SPARSIFY = 1
    """Reduce what a client sends, before anything is bounded: keep the largest entries, drop layers."""
    CLIP = 2
    """Bound what one client, or one record, contributes; noise is sized for that bound."""
    SAMPLE = 3
    """Leave out whole clients at random."""
    NOISE = 4
    """Add noise to the sum before the aggregator releases it."""
    ENCODE = 5
    """Turn real numbers into integers, which exact aggregations sum; distributed noise does that as well."""


class Transform(ABC):
    """One link of a chain before the aggregation.

    Write a subclass (a frozen dataclass of hyper-parameters) that states its `name` and `stage` and defines `plan`.

    Attributes:
        name: the transform's name, used in messages and in the name of the defence.
        stage: the kind of transform, which gives its place in a chain.
        refuses_non_finite: whether `encode` raises `DataError` for entries that are not finite. The chain itself looks
            for them where its first transform does not.
    """

    name: ClassVar[str]
    stage: ClassVar[ChainStage]
    refuses_non_finite: ClassVar[bool] = False

    def __str__(self) -> str:
        """Return the name and the parameters, such as `top_k(k=5)`, as plans and reports show them."""
        return link_text(self.name, self)

    @abstractmethod
    def plan(self, plan: Plan) -> Plan:
        """Return the plan with what this transform changes.

        Args:
            plan: the plan as the transforms before this one left it.

        Raises:
            PlanError: the transform cannot keep its promise for this plan.
        """

    def encode(self, contribution: Tensors, plan: Plan) -> Tensors:
        """Change one client's contribution, at the client. The default returns it as it is.

        Args:
            contribution: tensors with the names and shapes of the plan.
            plan: the finished plan of the exchange.

        Raises:
            RangeRefused: a value lies outside the plan. Never raised under noise, where a refusal would leak.
        """
        return contribution

    def decode(self, total: Tensors, plan: Plan, count: int) -> Tensors:
        """Undo `encode` on the sum, at the server; transforms decode in reverse order. The default changes nothing.

        Args:
            total: the sum of the encoded contributions.
            plan: the finished plan of the exchange.
            count: the number of contributions in the sum.
        """
        return total

    def release(self, total: Tensors, plan: Plan) -> Tensors:
        """Change the decoded sum before it leaves the aggregator, in reverse order. The default changes nothing.

        Args:
            total: the decoded sum.
            plan: the finished plan of the exchange.
        """
        return total

    def distortion(self, plan: Plan, count: int) -> ClippingNoiseRecord:
        """Return the clipping and noise record of an exchange with `count` contributions in its sum; empty by default.

        A transform that changes numbers by more than rounding states it here, in public numbers: attacks and audits
        read them.
        """
        return ClippingNoiseRecord()


class AdaptiveTransform(Transform):
    """A transform with public numbers that are updated after each training release.

    Server and clients derive the plan of the next exchange from these numbers (`Plan.learned`).
    """

    @abstractmethod
    def start(self, layout: Layout) -> tuple[float, ...]:
        """Return the numbers for the first exchange with tensors of this layout; their count never changes."""

    @abstractmethod
    def learn(self, released: Tensors, plan: Plan, count: int) -> tuple[float, ...]:
        """Return the next exchange's numbers, at the server, which sends them to the clients.

        Args:
            released: what the aggregator released.
            plan: the plan of that exchange.
            count: the number of contributions in the sum.
        """
