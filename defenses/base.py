"""The protocol of the message layer: a chain of transforms, ended by one aggregation protocol.

A transform changes a contribution before it is summed, or the sum after it. An aggregation protocol decides
how the sum comes about: in the clear, masked, encrypted. Both plan before they run, and refuse by name what
they cannot do exactly as planned.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, Literal, Protocol, runtime_checkable

import numpy as np

from securefed.defenses.wording import plan_text
from securefed.errors import ConfigError, ContradictionError, PlanError
from securefed.messages import Aggregate, ClientId, Distortion, Message, PartyId
from securefed.registry import Registry
from securefed.tensors import Layout, Ring, Tensors, TensorSpec

Unit = Literal["client", "record"]
ENCODING: Final = 30
"""Place in a chain of what turns contributions into integers; an exact aggregation needs one such link."""


@dataclass(frozen=True)
class TensorPlan:
    """What happens to one tensor.

    Attributes:
        name, shape: as in the layout.
        bound: largest absolute entry a client may send; beyond it the client refuses with `RangeRefused`.
        ring: integer width of the sum in bits, 0 where it is summed in floating point.
        step: value of one integer unit (a power of two), 0 where it is not quantised.
        max_clients: largest number of clients whose sum cannot wrap.
        error: largest absolute difference, in the decoded SUM, to the exact sum, per entry.
        sensitivity: L2 distance by which one of a client's records moves it, declared by the layout, or `None`.
    """

    name: str
    shape: tuple[int, ...]
    bound: float | None
    ring: int
    step: float
    max_clients: int
    error: float
    sensitivity: float | None = None

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))


@dataclass(frozen=True)
class Plan:
    """What a defence will do for one layout and cohort, said before the run.

    Attributes:
        defense: its name, as composed.
        clients: size of the planned cohort.
        tensors: per tensor: bound, ring, step, largest N without wrap, error bound.
        wanted_rings: the ring each tensor asks for.
        stages: names of the exchanges of a round, in order.
        upload_bytes: bytes a client sends in a round, all stages, headers left out.
        threshold: survivors a round needs.
        degree: neighbours that a client masks with and deals its secrets to, 0 for everybody.
        shares: shares that open a client's secret, 0 where secrets are not shared.
        open_to: collusions that open single contributions, in words.
        verified: whether clients check the sum that the server announces.
        clip: L2 norm of what one unit of privacy contributes, `None` where it is not bounded: the norm that a
            contribution is clipped to, or what one record moves it by.
        unit: whose contribution `clip` bounds: a whole "client", or one "record" of a client.
        added: names of tensors that transforms add to a contribution; they are released, and no algorithm sees them.
        learned: public numbers that transforms drew from earlier releases of the run (`Adaptive`).
        noise_multiplier: standard deviation of the server's noise over the sensitivity (`clip`, and what rounding adds
            to it: `differential_privacy.sensitivity`), 0 without.
        noise_survivors: survivors that the clients' own noise is sized for, 0 without; at most `threshold`.
        epsilon: (rounds, epsilon) pairs of the mechanism for what leaves the aggregator (with `noise_survivors`: for
            what the server sees).
        exchange: the run and number of the exchange it is used in, set by `Session`; `None` before there is one.
        assumptions: what is assumed, one sentence each.
    """

    defense: str
    clients: int
    tensors: tuple[TensorPlan, ...]
    wanted_rings: Mapping[str, Ring]
    stages: tuple[str, ...] = ()
    upload_bytes: int = 0
    threshold: int = 1
    degree: int = 0
    shares: int = 0
    open_to: str = ""
    verified: bool = False
    clip: float | None = None
    unit: Unit = "client"
    added: tuple[str, ...] = ()
    learned: tuple[float, ...] = ()
    noise_multiplier: float = 0.0
    noise_survivors: int = 0
    epsilon: tuple[tuple[int, float], ...] = ()
    exchange: tuple[str, int] | None = None
    assumptions: tuple[str, ...] = ()

    def __str__(self) -> str:
        return plan_text(self)

    @property
    def steps(self) -> dict[str, float]:
        """Value of one integer unit by tensor; empty where nothing is quantised."""
        return {tensor.name: tensor.step for tensor in self.tensors if tensor.step}

    @property
    def layout(self) -> Layout:
        return Layout(tuple(TensorSpec(t.name, t.shape, t.bound, self.wanted_rings[t.name]) for t in self.tensors))

    @property
    def own(self) -> Layout:
        """What the algorithm contributes: without the tensors that transforms add."""
        return Layout(tuple(spec for spec in self.layout if spec.name not in self.added))

    def assume(self, *sentences: str) -> Plan:
        """This plan with further assumptions."""
        return replace(self, assumptions=self.assumptions + sentences)


def plan_digest(plan: Plan) -> bytes:
    """SHA-256 of every number of a plan that moves what a client sends or what is made of it; no words, no exchange.

    A server that opens an exchange says to each client how often the range was doubled and what was learned. Clients
    that were told different plans must not be summed: one whose step or clip is a million times another's is alone in
    the sum. So protocols against a server that deviates bind what they mask, sign and open to this digest.
    """

    def exact(value: float | None) -> str | None:
        return None if value is None else float(value).hex()

    numbers = (
        plan.clients,
        [(t.name, t.shape, exact(t.bound), t.ring, exact(t.step)) for t in plan.tensors],
        (plan.stages, plan.threshold, plan.degree, plan.shares, bool(plan.verified), plan.added, plan.unit),
        (exact(plan.clip), exact(plan.noise_multiplier), plan.noise_survivors, [exact(x) for x in plan.learned]),
    )
    return hashlib.sha256(json.dumps(numbers, default=int).encode()).digest()


@dataclass(frozen=True)
class Session:
    """What binds one exchange: all parties know it, and every message is checked against it.

    Attributes:
        run: the run's identifier.      round: the exchange's number.
        cohort: ids of the invited clients, ascending.
        plan: what the defence does, the same on all sides; it learns its exchange here.
    """

    run: str
    round: int
    cohort: tuple[ClientId, ...]
    plan: Plan

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
        """Client side. Raises `RangeRefused` for values outside the plan."""
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

        Raises:
            MessageRefused: the request is malformed, repeats or contradicts an earlier one.
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

    def helper(self, frozen: bytes | None = None) -> Helper | None:
        """A further party the protocol needs (the key holder), made once for a run; `None` without one.

        Args:
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
        plan = self.aggregation.plan(plan)
        if plan.noise_survivors > plan.threshold:
            raise PlanError(
                f"the clients' noise is sized for {plan.noise_survivors} survivors, and {self.aggregation} opens sums "
                f"of {plan.threshold}; raise its threshold, or lower the noise's `survivors`"
            )
        return plan

    def encode(self, contribution: Tensors, plan: Plan) -> Tensors:
        """What the aggregation sums for one client."""
        plan.own.check(contribution)
        for transform in self.transforms:
            contribution = transform.encode(contribution, plan)
        return contribution

    def decode(self, encoded: Tensors, plan: Plan, count: int) -> Tensors:
        """The sum in real units."""
        for transform in reversed(self.transforms):
            encoded = transform.decode(encoded, plan, count)
        return encoded

    def release(self, total: Tensors, plan: Plan) -> Tensors:
        """What leaves the aggregator."""
        for transform in reversed(self.transforms):
            total = transform.release(total, plan)
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


def expect_stage(request: Message, expected: str) -> None:
    """Raise `ContradictionError` unless `request` asks for the stage that comes next."""
    if request.stage != expected:
        raise ContradictionError(request.sender, f"asks for stage {request.stage!r}, the next one is {expected!r}")
