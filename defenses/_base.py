"""The contracts of the message layer: a defence is a chain of transforms, ended by one aggregation.

A transform (`_transform.Transform`) changes a contribution before it is summed, or the sum after it. An aggregation
decides how the sum is made: in the clear, masked, or encrypted. Each of these links of the chain states before the run
what it will do, in a `Plan`, and refuses with a named error what it cannot do exactly as planned. In this package

    contribution   the named tensors that one client adds to a sum; "encoded" after the transforms, mostly as integers
    exchange       one sum of contributions, also one that fails ("void"); a run numbers its exchanges
    stage          one round of messages of an exchange: the server sends requests, and parties reply
    cohort         the clients invited to an exchange; its survivors are those whose contributions are in the sum
    layout         names, shapes and declared bounds of a contribution's tensors, from the algorithm
    ring           integers modulo 2^bits, in which exact aggregations sum
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

import numpy as np

from securefed._messages import SERVER, Aggregate, ClientId, ClippingNoiseRecord, Message, PartyId
from securefed._registry import Registry
from securefed._tensors import Layout, Tensors
from securefed.defenses._plan import (
    INDICATOR,
    Plan,
    TensorPlan,
    Unit,
    checked_plan,
    has_indicator,
    indicator_of,
    plan_digest,
    some_client_out,
    with_indicator,
    without_indicator,
    without_indicator_tensor,
)
from securefed.defenses._survivor_blocks import SumsSoFar
from securefed.defenses._transform import AdaptiveTransform, Transform, link_text
from securefed.errors import ConfigError, ContradictionError, DataError, PlanError

__all__ = [  # the plan's part, re-exported
    "INDICATOR", "Plan", "TensorPlan", "Unit", "has_indicator", "plan_digest", "some_client_out", "without_indicator",
    "without_indicator_tensor",
]  # fmt: skip


@dataclass(frozen=True)
class UploadContext:
    """Hashes of what the server sent a client before its upload, 32 bytes each; an aggregation may ignore them.

    Attributes:
        exchange: fingerprint of the exchange's context (`Session.context`), the same at clients that were told the
            same. Masking derives its masks from it, so that uploads made from different broadcasts do not sum.
        source: fingerprint of what the contribution is computed from: kind of exchange, broadcast and, for clients with
            memory, the last exchange that counted them; a repeated exchange keeps it. By it a masking client with an
            identity recognises a contribution, and refuses to have it summed with another set of clients.
    """

    exchange: bytes
    source: bytes


@dataclass(frozen=True)
class Session:
    """The identity of one exchange: all parties know it, and every message is checked against it.

    Attributes:
        run: the run's identifier.
        round: the number of the exchange.
        cohort: ids of the invited clients, ascending.
        plan: what the defence does, the same on all sides. Run and number are written in: some transforms rotate
            contributions by a random matrix that all sides derive from them.
        context: fingerprint of all that clients receive before they upload (kind, broadcast, the last exchange whose
            sum counted each of them). The server knows it from the start, a client from the request for its upload on.
        so_far: at the server, which clients the run's sums tell apart; masking opens no sum that clients would refuse.

    Raises:
        ConfigError: the cohort is empty, not ascending, or holds a negative id.
    """

    run: str
    round: int
    cohort: tuple[ClientId, ...]
    plan: Plan
    context: bytes = b""
    so_far: SumsSoFar = SumsSoFar()

    def __post_init__(self) -> None:
        """Check the cohort, and write the exchange into the plan."""
        if list(self.cohort) != sorted(set(self.cohort)) or not self.cohort or self.cohort[0] < 0:
            raise ConfigError(f"a cohort is a non-empty ascending list of ids from 0, not {self.cohort}")
        object.__setattr__(self, "plan", replace(self.plan, exchange=(self.run, self.round)))


Outgoing = Mapping[PartyId, Tensors]
"""Message bodies to send, by receiver."""


class Aggregation(ABC):
    """A protocol that sums contributions. Its steps are pure: they take a state and return a new one, without I/O.

    The runtime calls the steps: the server's round engine, and a client for each request. It packs states
    (`_persistence.packing.pack`), so that another process can go on from them. A client is asked for the stages of the
    plan in order; at the stage `upload` it is given its encoded contribution. The server's first requests come from
    `server_open`; the replies of each stage go to `server_step`, which returns the next requests or the aggregate. A
    missing reply is a dropout. On `MessageRefused` the caller drops its sender's reply and repeats with the same state.

    What an aggregation may offer beyond this stands in `_capabilities`. A commented example stands in
    `extension_templates/aggregation.py`, and `securefed.testing.parametrize_with_checks` tests yours.

    Attributes:
        name: the aggregation's name, used in messages and in the name of the defence.
        exact: whether it sums integers in a ring, so that the sum is exact; the chain then gets `quantise()`.
        hides: whether it hides single contributions from the server.
        upload: the name of the stage at which clients upload.
        beside: parties that take part beside the server and the clients.
    """

    name: ClassVar[str]
    exact: ClassVar[bool]
    hides: ClassVar[bool]
    upload: ClassVar[str] = "upload"
    beside: ClassVar[tuple[PartyId, ...]] = ()

    def __str__(self) -> str:
        """Return the name and the parameters, as plans and reports show them."""
        return link_text(self.name, self)

    @abstractmethod
    def plan(self, plan: Plan) -> Plan:
        """Return the plan with stages, bytes, threshold, what collusion opens, and assumptions.

        Raises:
            PlanError: the aggregation cannot keep its promise for this plan.
        """

    @abstractmethod
    def client_open(self, session: Session, client: ClientId) -> Any:
        """Return a client's protocol state for one exchange."""

    def client_step(self, state: Any, request: Message, encoded: Tensors | None) -> tuple[Any, Tensors]:
        """Answer a request, and return the new state and the body of the reply.

        At the stage `upload` it is `client_accept` and `client_upload` in one, for callers (tests) that have the
        contribution and no broadcast, hence empty fingerprints. The default is for clients without another stage.

        Args:
            state: the client's protocol state.
            request: the server's message.
            encoded: the contribution at the stage `upload`, else `None`.

        Raises:
            MessageRefused: the request is malformed, repeats or contradicts an earlier one.
        """
        accepted = self.client_accept(state, request, UploadContext(b"", b""))
        if encoded is None:
            raise DataError(f"the stage {self.upload!r} needs the encoded contribution")
        return self.client_upload(accepted, encoded)

    @abstractmethod
    def client_accept(self, state: Any, request: Message, context: UploadContext) -> Any:
        """Check the request for an upload, and return the state that waits for its contribution.

        Args:
            state: the client's protocol state.
            request: the server's message.
            context: what the server sent this client. An aggregation that hides and ignores it sums uploads made from
                different broadcasts, and one contribution in several sums: its plan should say so (`Plan.assume`).

        Raises:
            MessageRefused: as `client_step`. No refusal depends on a contribution.
        """

    @abstractmethod
    def client_upload(self, state: Any, encoded: Tensors | None) -> tuple[Any, Tensors]:
        """Return the new state and the body of the upload, from a state that accepted the request.

        Args:
            state: the client's protocol state.
            encoded: the contribution. `None` for a client that sits out, where `hides`: it uploads uniform residues,
                so that the sum opens to noise.

        Raises:
            RangeRefused: an encoded entry does not fit the plan; the caller then makes the client sit out.
        """

    @abstractmethod
    def server_open(self, session: Session) -> tuple[Any, str, Outgoing]:
        """Return the server's state, the first stage's name, and the first bodies."""

    @abstractmethod
    def server_step(self, state: Any, replies: Mapping[PartyId, Message]) -> tuple[Any, str, Outgoing] | Aggregate:
        """Return the next state, stage and bodies, or the sum of the survivors' encoded contributions.

        Raises:
            MessageRefused: a reply is malformed or does not verify.
            TooFewSurvivors: the round cannot be completed.
        """

    def helper(self, clients: int, frozen: bytes | None = None) -> Helper | None:
        """Make a further party that the protocol needs (a key holder), once for a run; `None` by default.

        Args:
            clients: number of clients planned for an exchange: the helper keeps to that plan's threshold.
            frozen: what `Helper.freeze` returned in another process.
        """
        return None


class Helper(Protocol):
    """A party beside the server and the clients, such as a key holder; `party` is its id."""

    party: PartyId

    def handle(self, request: Message) -> Tensors:
        """Return the body of the reply. Raises `MessageRefused` for a request that it must not answer."""

    def freeze(self) -> bytes:
        """Return its whole state, secrets included, for its own next process."""


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

    @property
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
        """Return what will happen for this layout and number of clients.

        Args:
            layout: the tensors of one contribution.
            clients: number of clients planned for an exchange.
            range_doublings: how often the declared bounds were doubled after a client's `RangeRefused`.
            learned: what `learn` returned for the exchange before; `None` for the first one.

        Raises:
            PlanError: a guarantee cannot be kept; the message names it and the change that helps.
        """
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
        numbers = self.start(layout) if learned is None else learned
        plan = Plan(self.name, clients, tensors, wanted_rings={s.name: s.ring for s in layout}, learned=numbers)
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
        planned, shapes = {tensor.name: tensor.shape for tensor in inner.tensors}, _shapes(contribution)
        for transform in self.transforms:
            contribution = transform.encode(contribution, inner)
            before, shapes = shapes, _shapes(contribution)
            last = transform is self.transforms[-1]
            if not before.items() <= shapes.items() <= planned.items() or (last and shapes != planned):
                raise PlanError(
                    f"{transform}: `encode` returned shapes {shapes}, the plan says {planned}; return those, or let "
                    "its `plan` state what it adds (`Plan.tensors`, `Plan.wanted_rings` and `Plan.added`)"
                )
        if (indicator := indicator_of(plan)) is not None:
            dtype = np.int64 if self.aggregation.exact else np.float64
            return {**contribution, INDICATOR: np.zeros(indicator.shape, dtype)}
        return contribution

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
        def in_units(noise: Mapping[str, float], rate: float = 1.0) -> dict[str, float]:
            return {name: deviation * units.get(name, 1.0) / rate for name, deviation in noise.items()}

        return ClippingNoiseRecord(
            tuple(clip for record in records for clip in record.clips),
            in_units({name: value for record in records for name, value in record.noise.items()}),
            in_units({name: x for record in records for name, x in record.released.items()}, plan.sampling_rate),
            units,
        )


defenses: Registry[Defense] = Registry("defense", built_in="securefed._catalogue")
"""The registered defences, by name."""


def _shapes(tensors: Tensors) -> dict[str, tuple[int, ...]]:
    return {name: np.shape(value) for name, value in tensors.items()}


def check_request(request: Message, session: Session, client: ClientId, stage: str, expected: str) -> None:
    """Raise unless the server's request is for `stage`, in this exchange, for this client, and `expected` comes next.

    Raises:
        ContradictionError: it asks for another stage than `expected`.
        BindingError: it names another exchange, stage, sender or receiver.
    """
    expect_stage(request, expected)
    request.check(run=session.run, round=session.round, stage=stage, sender=SERVER, receiver=client)


def expect_stage(request: Message, expected: str) -> None:
    """Raise `ContradictionError` unless `request` asks for the stage that comes next."""
    if request.stage != expected:
        raise ContradictionError(request.sender, f"asks for stage {request.stage!r}, the next one is {expected!r}")
