"""The contracts of the message layer: a defence is a chain of transforms, ended by one aggregation.

A transform (`Transform`) changes a contribution before it is summed, or the sum after it. An aggregation
(`_aggregation.Aggregation`) decides how the sum is made: in the clear, masked, or encrypted. Each of these links of the
chain states before the run what it will do, in a `Plan`, and refuses with a named error what it cannot do exactly as
planned. `Defense` holds the links and calls them: `plan` before a run, then in each exchange `encode` at every client,
`decode` and `release` at the server. In this package

    contribution   the named tensors that one client adds to a sum; "encoded" after the transforms, mostly as integers
    exchange       one sum of contributions, also one that fails ("void"); a run numbers its exchanges
    stage          one round of messages of an exchange: the server sends requests, and parties reply
    cohort         the clients invited to an exchange; its survivors are those whose contributions are in the sum
    layout         names, shapes and declared bounds of a contribution's tensors, from the algorithm
    ring           integers modulo 2^bits, in which exact aggregations sum
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cached_property
from threading import Lock
from typing import ClassVar, Final

import numpy as np

from securefed._clipping_noise import ClippingNoiseRecord
from securefed._registry import Registry
from securefed._tensors import Layout, Ring, Tensors, TensorSpec
from securefed.defenses._aggregation import Aggregation, Helper, Outgoing, link_text
from securefed.defenses._plan import (
    Plan,
    Session,
    TensorPlan,
    Unit,
    UploadContext,
    expect_stage,
    plan_digest,
)
from securefed.errors import DataError, PlanError

__all__ = [  # the parts of the plan and of the aggregation, re-exported
    "Aggregation", "Helper", "Outgoing", "Plan", "Session", "TensorPlan", "Unit", "UploadContext", "expect_stage",
    "plan_digest",
]  # fmt: skip


INDICATOR: Final = "out.indicator"
"""The tensor that shows, in the sum, that some client sat out: each client adds 0 to it, a client that is out adds
uniform numbers, as to all other tensors. A client sits out if its values are out of range or not finite, or its
computation failed; by a refusal the server would learn which client that is."""


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

    Write a subclass (a frozen dataclass of hyper-parameters) that states its `name` and `stage` and defines `plan`;
    all else has a default that changes nothing. A commented example stands in `extension_templates/transform.py`, and
    `securefed.testing.parametrize_with_checks` tests yours.

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


@dataclass(frozen=True)
class Defense:
    """A chain: transforms, then one aggregation. Made by `chain`.

    A client calls `encode` on its contribution and the aggregation's steps on the result. The server calls `decode` on
    the sum that the aggregation opens, and then `release`, which adds central noise where the plan has some.

    Where the aggregation hides single uploads and no noise is planned, a client that cannot contribute must not show
    it. Every client therefore uploads one tensor more, the indicator (`INDICATOR`): zeros, or, where the client sits
    out, uniform residues in all tensors. A sum whose indicator is not 0 is discarded. Under noise every client uploads
    a contribution, zeros if need be (`encode`), so that no indicator is needed.

    Attributes:
        transforms: the transforms, in the order in which clients apply them.
        aggregation: how the sum is made.
    """

    transforms: tuple[Transform, ...]
    aggregation: Aggregation

    @property
    def name(self) -> str:
        """The defence as composed, for instance `clip(1) + gaussian(z=3.2) + secure_aggregation`."""
        return " + ".join([*(str(t) for t in self.transforms), str(self.aggregation)])

    @cached_property
    def _adaptive(self) -> AdaptiveTransform | None:
        return next((link for link in self.transforms if isinstance(link, AdaptiveTransform)), None)

    def start(self, layout: Layout) -> tuple[float, ...]:
        """Return the numbers that the first exchange is planned with, such as a clipping norm.

        They are those of the chain's adaptive transform, of which there is one at most; without one they are empty.
        """
        return () if self._adaptive is None else self._adaptive.start(layout)

    def learn(self, released: Tensors, plan: Plan, count: int) -> tuple[float, ...]:
        """Return the adaptive transform's numbers for the next exchange; `count` contributions are in the sum."""
        return () if self._adaptive is None else self._adaptive.learn(released, plan, count)

    def plan(
        self, layout: Layout, clients: int, *, range_doublings: int = 0, learned: tuple[float, ...] | None = None
    ) -> Plan:
        """Return what will happen for this layout and number of clients; for the same arguments it is derived once.

        Args:
            layout: the tensors of one contribution.
            clients: number of clients planned for an exchange.
            range_doublings: how often the declared bounds were doubled after a client's `RangeRefused`.
            learned: what `learn` returned for the exchange before; `None` for the first one.

        Raises:
            PlanError: a guarantee cannot be kept; the message names it and the change that helps.
        """
        numbers = tuple(self.start(layout) if learned is None else learned)
        asked = (tuple(layout.specs), clients, range_doublings, numbers)
        with _PLANNING:
            plan = self._plans.get(asked)
        if plan is None:
            plan = self._derived(layout, clients, range_doublings, numbers)
            with _PLANNING:
                self._plans[asked] = plan
                while len(self._plans) > _PLANS_KEPT:
                    del self._plans[next(iter(self._plans))]
        return plan

    @cached_property
    def _plans(self) -> dict[tuple[tuple[TensorSpec, ...], int, int, tuple[float, ...]], Plan]:
        """The last plans by what they depend on, under the lock `_PLANNING`."""
        return {}

    def _derived(self, layout: Layout, clients: int, range_doublings: int, learned: tuple[float, ...]) -> Plan:
        """Derive the plan, link by link."""
        if clients < 1:
            raise PlanError(f"a cohort holds at least one client, not {clients}")
        scale = 2.0**range_doublings
        tensors = tuple(
            TensorPlan(
                s.name, s.shape, None if s.bound is None else s.bound * scale, ring=0, step=0.0, max_clients=2**31,
                error=0.0, sensitivity=s.sensitivity,
            )
            for s in layout  # in floating point, where 2^31 clients mean no limit, until a transform plans otherwise
        )  # fmt: skip
        plan = Plan(self.name, clients, tensors, wanted_rings={s.name: s.ring for s in layout}, learned=learned)
        for transform in self.transforms:
            plan = checked_plan(transform, transform.plan(plan))
        if self.aggregation.hides and not plan.noised:
            plan = with_indicator(plan)
        plan = checked_plan(self.aggregation, self.aggregation.plan(plan))
        if plan.privacy is not None and plan.privacy.noise_survivors > plan.threshold:
            raise PlanError(
                f"the clients' noise is sized for {plan.privacy.noise_survivors} survivors, and {self.aggregation} "
                f"opens sums of {plan.threshold}; raise its threshold, or lower the noise's `survivors`"
            )
        return plan

    def encode(self, contribution: Tensors, plan: Plan) -> Tensors:
        """Encode one client's contribution as the aggregation sums it.

        Under noise no value makes a client refuse: all would see the refusal, and no epsilon counts it. What is not
        finite becomes zeros before the noise (`clip`, `records`). Refused names or shapes reveal nothing about data.

        Raises:
            DataError: other names or shapes than planned; without noise also entries that are not finite.
            PlanError: a transform returned other names or shapes than it planned.
            RangeRefused: without noise, an entry beyond its planned bound.
        """
        looked_for = plan.noised or any(link.refuses_non_finite for link in self.transforms[:1])
        try:
            plan.own.check(contribution, finite=not looked_for)
        except DataError:  # the server must not see it in the time of the reply
            self._encode({spec.name: np.zeros(spec.shape) for spec in plan.own}, plan)
            raise
        return self._encode(contribution, plan)

    def _encode(self, contribution: Tensors, plan: Plan) -> Tensors:
        """Pass a contribution that was checked through all transforms."""
        inner = without_indicator(plan)
        planned = {tensor.name: tensor.shape for tensor in inner.tensors}
        shapes = {name: np.shape(value) for name, value in contribution.items()}
        for transform in self.transforms:
            contribution = transform.encode(contribution, inner)
            before, shapes = shapes, {name: np.shape(value) for name, value in contribution.items()}
            last = transform is self.transforms[-1]
            if not before.items() <= shapes.items() <= planned.items() or (last and shapes != planned):
                raise PlanError(
                    f"{transform}: `encode` returned shapes {shapes}, the plan says {planned}; return those, or let "
                    "its `plan` state what it adds (`Plan.tensors`, `Plan.wanted_rings` and `Plan.added`)"
                )
        dtype = np.int64 if self.aggregation.exact else np.float64
        return {**contribution, **{t.name: np.zeros(t.shape, dtype) for t in plan.tensors if t.name == INDICATOR}}

    def decode(self, encoded: Tensors, plan: Plan, count: int) -> Tensors:
        """Return the sum of `count` contributions as real numbers, without the indicator.

        Its units are the algorithm's; under an adaptive clip, multiples of the clipping norm, as `release` takes them.
        """
        inner = without_indicator(plan)
        encoded = without_indicator_tensor(encoded)
        for transform in reversed(self.transforms):
            encoded = transform.decode(encoded, inner, count)
        return encoded

    def release(self, total: Tensors, plan: Plan) -> Tensors:
        """Return what leaves the aggregator: the decoded sum in the algorithm's units, plus planned central noise."""
        inner = without_indicator(plan)
        for transform in reversed(self.transforms):
            total = transform.release(total, inner)
        return total

    def distortion(self, plan: Plan, count: int) -> ClippingNoiseRecord:
        """Return the clipping and noise record of an exchange with `count` survivors, of all transforms together."""
        records = [transform.distortion(plan, count) for transform in self.transforms]
        units = {name: unit for record in records for name, unit in record.units.items()}
        # links state noise in multiples of `units[name]`, the norm of an adaptive clip; here in the algorithm's units
        noise = {n: x * units.get(n, 1.0) for record in records for n, x in record.noise.items()}
        released = {
            n: x * units.get(n, 1.0) / plan.sampling_rate for record in records for n, x in record.released.items()
        }
        return ClippingNoiseRecord(tuple(clip for record in records for clip in record.clips), noise, released, units)


_PLANNING: Final = Lock()
_PLANS_KEPT: Final = 8
"""Plans that a defence keeps: of training, evaluation and doubled ranges. A learned clip makes a new one each time."""

defenses: Registry[Defense] = Registry("defense", built_in="securefed._catalogue")
"""The registered defences, by name."""


def with_indicator(plan: Plan) -> Plan:
    """Add the tensor `INDICATOR`: 64 bits of integers, or a float where sums are not made of integers (CKKS).

    There are two integers of 32 bits where some tensor has this ring, so that encryptions pack them beside its entries;
    else one of 64. A client that is out adds uniformly random integers, whose sum is 0 by chance with a probability
    of 2^-64.
    """
    rings = {tensor.ring for tensor in plan.tensors if tensor.step}
    ring: Ring = 32 if 32 in rings else 64
    indicator = TensorPlan(INDICATOR, (), 1.0, 0, 0.0, 2**31, 0.0)
    if rings:
        indicator = replace(indicator, shape=(2,) if ring == 32 else (), ring=ring, step=1.0)
    return replace(
        plan,
        tensors=(*plan.tensors, indicator),
        wanted_rings={**plan.wanted_rings, INDICATOR: ring},
        added=(*plan.added, INDICATOR),
    ).assume(
        "A client whose values are out of range or not finite, or whose computation fails, uploads uniform residues: "
        "the sum opens to noise, shows in one bit that some client was out, and the exchange is repeated."
    )


def without_indicator_tensor(tensors: Tensors) -> Tensors:
    """Remove `INDICATOR` from `tensors`."""
    return {name: value for name, value in tensors.items() if name != INDICATOR}


def some_client_out(total: Tensors, plan: Plan) -> bool:
    """Tell whether the sum of an aggregation shows that a client sat out, so that all of it is noise.

    It shows where the indicator's sum is not 0. Sums in floating point may miss 0 by the error that the aggregation
    plans for this tensor; integers are exact.
    """
    return any(bool((np.abs(total[t.name]) > t.error).any()) for t in plan.tensors if t.name == INDICATOR)


def without_indicator(plan: Plan) -> Plan:
    """Remove the indicator: the plan of the tensors that transforms work on."""
    if INDICATOR not in plan.added:
        return plan
    # `added` keeps the name, so that `has_indicator` stays true: clients upload it beside the transforms' tensors.
    return replace(plan, tensors=tuple(tensor for tensor in plan.tensors if tensor.name != INDICATOR))


def has_indicator(plan: Plan) -> bool:
    """Tell whether a client that is out of range uploads uniform residues under this plan, instead of refusing."""
    return INDICATOR in plan.added


def checked_plan(link: object, plan: object) -> Plan:
    """Return what a link's `plan` returned; `PlanError` where a third party's link returned no plan."""
    if not isinstance(plan, Plan):
        raise PlanError(
            f"{link}: `plan` returned {type(plan).__name__}; it must return a Plan, for instance the given one, "
            "`return plan`, or `return dataclasses.replace(plan, ...)`"
        )
    return plan
