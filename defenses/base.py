"""The protocol of the message layer: a chain of transforms, ended by one aggregation protocol.

A transform changes a contribution before it is summed, or the sum after it. An aggregation protocol decides
how the sum comes about: in the clear, masked, encrypted. Both plan before they run, and refuse by name what
they cannot do exactly as planned.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, Protocol, runtime_checkable

import numpy as np

from securefed.defenses.plan import (
    INDICATOR,
    Plan,
    TensorPlan,
    Unit,
    has_indicator,
    indicator_of,
    plan_digest,
    with_indicator,
    without_indicator,
)
from securefed.errors import ConfigError, ContradictionError, PlanError
from securefed.messages import Aggregate, ClientId, Distortion, Message, PartyId
from securefed.registry import Registry
from securefed.tensors import Layout, Tensors

__all__ = [
    "ENCODING",
    "INDICATOR",
    "Adaptive",
    "Aggregation",
    "Defense",
    "Distorting",
    "Helper",
    "Outgoing",
    "Plan",
    "Session",
    "TensorPlan",
    "Transform",
    "Unit",
    "UploadContext",
    "defenses",
    "expect_stage",
    "has_indicator",
    "plan_digest",
    "some_client_out",
    "without_indicator",
    "without_indicator_tensor",
]

ENCODING: Final = 30
"""Place in a chain of what turns contributions into integers; an exact aggregation needs one such link."""


@dataclass(frozen=True)
class UploadContext:
    """Fingerprints of what a client was told when it was asked to upload; 32 bytes each.

    Attributes:
        exchange: of the exchange's context (`Session.context`): the same at all clients that are summed.
        source: of what the contribution is computed from: kind, broadcast, and the exchange that this client's state
            counts last. Run, number, plan and cohort do not enter it, so that a contribution keeps it when an exchange
            is repeated.
    """

    exchange: bytes
    source: bytes


@dataclass(frozen=True)
class Session:
    """What binds one exchange: all parties know it, and every message is checked against it.

    Attributes:
        run: the run's identifier.      round: the exchange's number.
        cohort: ids of the invited clients, ascending.
        plan: what the defence does, the same on all sides; it learns its exchange here.
        context: fingerprint of all that clients are told before they upload (kind, broadcast, which exchange counted
            each of them last). The server knows it from the start, a client from the request for its upload on.
        previous: at the server, the survivors of the last sum that was opened; empty before any.
    """

    run: str
    round: int
    cohort: tuple[ClientId, ...]
    plan: Plan
    context: bytes = b""
    previous: tuple[ClientId, ...] = ()

    def __post_init__(self) -> None:
        if list(self.cohort) != sorted(set(self.cohort)) or not self.cohort or self.cohort[0] < 0:
            raise ConfigError(f"a cohort is a non-empty ascending list of ids from 0, not {self.cohort}")
        object.__setattr__(self, "plan", replace(self.plan, exchange=(self.run, self.round)))


Outgoing = Mapping[PartyId, Tensors]
"""Bodies to send, by receiver."""


@runtime_checkable
class Transform(Protocol):
    """One link of a chain before the aggregation."""

    name: ClassVar[str]
    order: ClassVar[int]
    """Place in a chain; a chain whose orders do not ascend is refused (clip 10, gaussian 20, integers `ENCODING`)."""

    def plan(self, plan: Plan) -> Plan:
        """The plan with what this transform changes. Raises `PlanError` where it cannot keep its promise."""
        ...

    def encode(self, contribution: Tensors, plan: Plan) -> Tensors:
        """Client side. Raises `RangeRefused` for values outside the plan; nothing about values under noise."""
        ...

    def decode(self, total: Tensors, plan: Plan, count: int) -> Tensors:
        """Server side, applied to the sum of `count` encoded contributions in reverse order."""
        ...

    def release(self, total: Tensors, plan: Plan) -> Tensors:
        """Server side, applied to the decoded sum before it leaves the aggregator, in reverse order (central noise)."""
        ...


@runtime_checkable
class Adaptive(Protocol):
    """A transform with public numbers that each training release moves. Everybody derives its plan from them."""

    def start(self, layout: Layout) -> tuple[float, ...]:
        """The numbers before the first exchange; as many for all exchanges."""
        ...

    def learn(self, released: Tensors, plan: Plan, count: int) -> tuple[float, ...]:
        """The next exchange's numbers, from the release of `count` contributions that `plan` was for."""
        ...


@runtime_checkable
class Distorting(Protocol):
    """A transform that changes numbers by more than rounding."""

    def distortion(self, plan: Plan, count: int) -> Distortion:
        """What it does to an exchange with `count` survivors, in public numbers."""
        ...


@runtime_checkable
class Aggregation(Protocol):
    """How the sum comes about. Steps are pure: state in, state out, no I/O; states pack (`securefed.state`).

    A client is asked `stages` one after the other; at the stage `upload` it is handed its encoded
    contribution. The server's first requests come from `server_open`; each stage's replies go to `server_step`,
    which returns the next requests or the aggregate. A missing reply is a dropout. A refused reply raises
    `MessageRefused` naming its sender: the caller drops that reply and calls again with the SAME state.
    """

    name: ClassVar[str]
    exact: ClassVar[bool]
    """Whether it sums integers in a ring (needs `quantise`), so that the sum is exact."""
    hides: ClassVar[bool]
    """Whether it hides single contributions from the server."""
    upload: ClassVar[str]
    beside: ClassVar[tuple[PartyId, ...]]
    """Parties that take part besides server and clients."""

    def plan(self, plan: Plan) -> Plan:
        """The plan with stages, bytes, threshold, what collusion opens, and assumptions."""
        ...

    def client_open(self, session: Session, client: ClientId) -> Any:
        """A client's protocol state for one exchange."""
        ...

    def client_step(self, state: Any, request: Message, encoded: Tensors | None) -> tuple[Any, Tensors]:
        """The reply's body. `encoded` is given at the stage `upload`, else `None`.

        At that stage it is `client_accept` and `client_upload` in one, for callers that have the contribution.

        Raises:
            MessageRefused: the request is malformed, repeats or contradicts an earlier one.
        """
        ...

    def client_accept(self, state: Any, request: Message, context: UploadContext) -> Any:
        """The state that waits for its contribution, once every check of the request for an upload has passed.

        Args:
            context: of what this client was told.

        Raises:
            MessageRefused: as `client_step`. No refusal depends on a contribution.
        """
        ...

    def client_upload(self, state: Any, encoded: Tensors | None) -> tuple[Any, Tensors]:
        """The upload's body, from a state that accepted the request.

        Args:
            encoded: the contribution; `None` for a client that sits out, where `hides`: it uploads uniform residues,
                so that the sum opens to noise.

        Raises:
            RangeRefused: an encoded entry does not fit the plan; the caller then makes the client sit out.
        """
        ...

    def server_open(self, session: Session) -> tuple[Any, str, Outgoing]:
        """The server's state, the first stage's name, and the first bodies."""
        ...

    def server_step(self, state: Any, replies: Mapping[PartyId, Message]) -> tuple[Any, str, Outgoing] | Aggregate:
        """The next state, stage and bodies, or the sum of the survivors' encoded contributions.

        Raises:
            MessageRefused: a reply is malformed or does not verify.
            TooFewSurvivors: the round cannot be completed.
        """
        ...

    def helper(self, clients: int, frozen: bytes | None = None) -> Helper | None:
        """A further party the protocol needs (the key holder), made once for a run; `None` without one.

        Args:
            clients: planned for an exchange, as `plan` is told: the helper keeps to that plan's threshold.
            frozen: what `Helper.freeze` gave in another process.
        """
        ...


class Helper(Protocol):
    """A party beside server and clients."""

    party: PartyId

    def handle(self, request: Message) -> Tensors:
        """The reply's body. Raises `MessageRefused` for what it must not answer."""
        ...

    def freeze(self) -> bytes:
        """Its whole state, secrets included, for its own next process."""
        ...


@dataclass(frozen=True)
class Defense:
    """A chain: transforms, then one aggregation protocol. Made by `chain`."""

    transforms: tuple[Transform, ...]
    aggregation: Aggregation

    @property
    def name(self) -> str:
        """As composed, for instance `clip(1) + gaussian(z=3.2) + secure_aggregation`."""
        return " + ".join([*(str(t) for t in self.transforms), str(self.aggregation)])

    def start(self, layout: Layout) -> tuple[float, ...]:
        """The public numbers that the first exchange is planned with; empty for a chain that learns nothing."""
        found = [transform for transform in self.transforms if isinstance(transform, Adaptive)]
        return found[0].start(layout) if found else ()

    def learn(self, released: Tensors, plan: Plan, count: int) -> tuple[float, ...]:
        """Those that the next exchange is planned with."""
        found = [transform for transform in self.transforms if isinstance(transform, Adaptive)]
        return found[0].learn(released, plan, count) if found else ()

    def plan(
        self, layout: Layout, clients: int, *, range_doublings: int = 0, learned: tuple[float, ...] | None = None
    ) -> Plan:
        """What will happen for this layout and cohort size.

        Args:
            range_doublings: how often the declared bounds were doubled after a client's `RangeRefused`.
            learned: what `learn` gave for the exchange before; `None` for the first one.

        Raises:
            PlanError: a promise cannot be kept; the message says which and what to change.
        """
        if clients < 1:
            raise PlanError(f"a cohort holds at least one client, not {clients}")
        scale = 2.0**range_doublings
        tensors = tuple(
            TensorPlan(s.name, s.shape, None if s.bound is None else s.bound * scale, 0, 0.0, 2**31, 0.0, s.sensitivity)
            for s in layout
        )
        known = self.start(layout) if learned is None else learned
        plan = Plan(self.name, clients, tensors, {spec.name: spec.ring for spec in layout}, learned=known)
        for transform in self.transforms:
            plan = transform.plan(plan)
        if self.aggregation.hides and not plan.noise_multiplier:
            plan = with_indicator(plan)
        plan = self.aggregation.plan(plan)
        if plan.noise_survivors > plan.threshold:
            raise PlanError(
                f"the clients' noise is sized for {plan.noise_survivors} survivors, and {self.aggregation} opens sums "
                f"of {plan.threshold}; raise its threshold, or lower the noise's `survivors`"
            )
        return plan

    def encode(self, contribution: Tensors, plan: Plan) -> Tensors:
        """Encode one client's contribution as the aggregation sums it.

        Under noise the values make no client refuse, which all would see and no epsilon counts: what is not finite is
        replaced by zeros before the noise (`clip`, `records`). A refusal of names or shapes says nothing about data.

        Raises:
            DataError: other names or shapes than planned; without noise also entries that are not finite.
            RangeRefused: without noise, an entry beyond its planned bound.
        """
        plan.own.check(contribution, finite=not plan.noise_multiplier)
        inner = without_indicator(plan)
        for transform in self.transforms:
            contribution = transform.encode(contribution, inner)
        if (indicator := indicator_of(plan)) is not None:
            dtype = np.int64 if self.aggregation.exact else np.float64
            return {**contribution, INDICATOR: np.zeros(indicator.shape, dtype)}
        return contribution

    def decode(self, encoded: Tensors, plan: Plan, count: int) -> Tensors:
        """The sum in real units, without the indicator."""
        inner = without_indicator(plan)
        encoded = without_indicator_tensor(encoded)
        for transform in reversed(self.transforms):
            encoded = transform.decode(encoded, inner, count)
        return encoded

    def release(self, total: Tensors, plan: Plan) -> Tensors:
        """What leaves the aggregator."""
        inner = without_indicator(plan)
        for transform in reversed(self.transforms):
            total = transform.release(total, inner)
        return total

    def distortion(self, plan: Plan, count: int) -> Distortion:
        """What the transforms do to the numbers of an exchange with `count` survivors."""
        parts = [t.distortion(plan, count) for t in self.transforms if isinstance(t, Distorting)]
        units = {name: unit for part in parts for name, unit in part.units.items()}

        def scaled(noise: Mapping[str, float]) -> dict[str, float]:  # added in the sum's units
            return {name: deviation * units.get(name, 1.0) for name, deviation in noise.items()}

        return Distortion(
            tuple(clip for part in parts for clip in part.clips),
            scaled({name: value for part in parts for name, value in part.noise.items()}),
            scaled({name: value for part in parts for name, value in part.released.items()}),
            units,
        )


defenses: Registry[Defense] = Registry("defense")


def without_indicator_tensor(tensors: Tensors) -> Tensors:
    """`tensors` without `INDICATOR`."""
    return {name: value for name, value in tensors.items() if name != INDICATOR}


def some_client_out(total: Tensors, plan: Plan) -> bool:
    """Whether the sum of an aggregation shows that a client sat out, so that all of it is noise."""
    indicator = indicator_of(plan)
    return indicator is not None and bool((np.abs(total[INDICATOR]) > indicator.error).any())


def expect_stage(request: Message, expected: str) -> None:
    """Raise `ContradictionError` unless `request` asks for the stage that comes next."""
    if request.stage != expected:
        raise ContradictionError(request.sender, f"asks for stage {request.stage!r}, the next one is {expected!r}")
