"""The plan of a defence: what it will do for one layout and one number of clients, stated before the run.

`Session` is one exchange (one sum) under a plan: what all parties know of it, and what messages are checked against.
`SumsSoFar` are the sets of parties that a run's sums were over, and the smallest group that they tell apart.

A plan starts from the algorithm's layout (names, shapes and bounds of a contribution's tensors, the arrays that one
client adds to a sum). Each link of the defence's chain then returns it with what that link adds: bounds, fixed point,
noise and epsilon, stages, bytes and assumptions (`Defense.plan`). Server and clients derive the same plan from public
numbers, before a run and, where a range is doubled or a clip is learned, before each exchange. The protocols bind what
they send to its digest.

A ring is the integers modulo 2^bits; the bound, step and ring of a tensor make its fixed point: an entry x travels as
the integer round(x / step), and the sum over all planned clients fits the ring.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final, Literal, TypeVar

from securefed._messages import SERVER, ClientId, Message
from securefed._tensors import Layout, Ring, TensorSpec
from securefed.errors import ConfigError, ContradictionError

Unit = Literal["client", "record"]
"""Whose data differential privacy protects: all of one client's, or one record."""

_TABLE_HEAD: Final = ("tensor", "shape", "bound", "ring", "step", "largest N", "error of the sum")


@dataclass(frozen=True)
class TensorPlan:
    """The plan of one tensor; all numbers are public, in units of the algorithm.

    Attributes:
        name: its name in the layout.
        shape: its shape in the layout.
        bound: largest absolute entry that a client may send. A client beyond it sits out where the plan has the
            indicator, and refuses with `RangeRefused` elsewhere.
        ring: width in bits of the integers of the sum, 0 where the sum is made in floating point.
        step: value of one integer unit (a power of two), 0 where nothing is quantised.
        max_clients: largest number of clients whose sum cannot wrap around the ring.
        error: largest absolute difference, per entry, between the decoded sum and the exact sum.
        sensitivity: L2 distance by which one record of a client moves the tensor, as the layout declares it.
        declared: largest absolute entry before a client adds noise of its own, where the transform `records` (privacy
            of single records) cuts entries to it.
    """

    name: str
    shape: tuple[int, ...]
    bound: float | None
    ring: int
    step: float
    max_clients: int
    error: float
    sensitivity: float | None = None
    declared: float | None = None

    @cached_property
    def size(self) -> int:
        """Number of entries."""
        return int(math.prod(self.shape))


@dataclass(frozen=True)
class MaskingPlan:
    """The part of a plan that belongs to secure aggregation by masks.

    Attributes:
        degree: number of neighbours that a client masks with and shares its secrets among, 0 for all other clients.
        shares: number of shares that reconstruct a client's secret.
        survivor_change: fewest clients that all sums of a client's data together may tell apart; 1 for no such rule.
        stream: name of the stream that masks are made of.
    """

    degree: int = 0
    shares: int = 0
    survivor_change: int = 1
    stream: str = "aes-128-ctr"


@dataclass(frozen=True)
class GroupingPlan:
    """The part of a plan that belongs to grouped sums: one secure sum for each group of clients.

    Attributes:
        groups: number of groups.
        aggregator: name of the robust mean of the group means.
        liars: number of groups with a liar that it is to stand.
        needed: fewest groups that an exchange needs.
        plans: the plan of a group by its number of clients; empty in these plans themselves.
    """

    groups: int
    aggregator: str
    liars: int
    needed: int
    plans: Mapping[int, Plan] = field(default_factory=dict)


@dataclass(frozen=True)
class PrivacyPlan:
    """The part of a plan that belongs to differential privacy: the bounded contribution, the noise, and epsilon.

    Attributes:
        clip: L2 norm of what one unit of privacy contributes: the norm that a contribution is clipped to, or the
            distance by which one record moves it.
        unit: whose contribution `clip` bounds: a whole "client", or one "record" of a client.
        noise_multiplier: standard deviation of the noise over the sensitivity, 0 without noise. The sensitivity is
            `clip` and what rounding adds to it (`differential_privacy.sensitivity`).
        noise_survivors: number of survivors that the clients' own noise is sized for, at most the plan's threshold; 0
            where the clients add none.
        epsilon: (rounds, epsilon) pairs for what leaves the aggregator or, with `noise_survivors`, for what the server
            sees.
    """

    clip: float
    unit: Unit = "client"
    noise_multiplier: float = 0.0
    noise_survivors: int = 0
    epsilon: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Plan:
    """A defence's plan for one layout and one number of clients, made before the run.

    Attributes:
        defense: the name of the defence, as composed.
        clients: number of clients planned for an exchange.
        tensors: per tensor its bound, ring, step, largest number of clients and error.
        wanted_rings: by tensor, the ring that the algorithm's layout asks for; `TensorPlan.ring` is the one in use.
        stages: names of the message exchanges of a round, in order.
        upload_bytes: bytes that a client sends in a round, over all stages, without headers.
        threshold: number of survivors (clients whose contributions are in the sum) that a round needs.
        open_to: which parties, if they collude, see single contributions, as a sentence.
        verified: whether clients check the sum that the server announces.
        added: names of tensors that transforms add to a contribution; they are released, and no algorithm sees them.
        learned: public numbers that an `AdaptiveTransform` derived from earlier releases of the run.
        masking: the part of secure aggregation by masks; `None` under another aggregation.
        privacy: the part of differential privacy; `None` where no contribution is bounded.
        sampling_rate: probability with which a client contributes instead of uploading zeros. A released sum is the
            decoded one divided by it.
        exchange: the run and the number of the exchange, set by `Session`; `None` before there is one.
        assumptions: what is assumed, one sentence each.
        grouping: the part of grouped sums; `None` where an exchange makes one sum.
    """

    defense: str
    clients: int
    tensors: tuple[TensorPlan, ...]
    wanted_rings: Mapping[str, Ring]
    stages: tuple[str, ...] = ()
    upload_bytes: int = 0
    threshold: int = 1
    open_to: str = ""
    verified: bool = False
    added: tuple[str, ...] = ()
    learned: tuple[float, ...] = ()
    masking: MaskingPlan | None = None
    privacy: PrivacyPlan | None = None
    sampling_rate: float = 1.0
    exchange: tuple[str, int] | None = None
    assumptions: tuple[str, ...] = ()
    grouping: GroupingPlan | None = None

    def __str__(self) -> str:
        """Format the plan as text: tensors, stages, bytes, threshold, noise, epsilon and assumptions, line by line."""
        lines = [f"{self.defense}, {self.clients} clients", *_table(self.tensors)]
        lines.append(f"stages: {' -> '.join(self.stages)}")
        lines.append(f"upload per client and round: {self.upload_bytes:,} bytes, headers left out")
        opened = f"; single contributions are open to: {self.open_to}" if self.open_to else ""
        lines.append(f"survivors needed: {self.threshold} of {self._summed_over()}{opened}")
        lines += [f"mask stream: {self.masking.stream}"] if self.masking is not None else []
        if (own := self.privacy) is not None:
            bounded = "a client's contribution" if own.unit == "client" else "what one record moves"
            lines += [f"clip: {bounded} has at most norm {own.clip:.4g}; noise multiplier {own.noise_multiplier:.4g}"]
        lines += [f"epsilon after {n} round{'s' * (n > 1)}: {epsilon:.3f}" for n, epsilon in self.epsilon]
        return "\n".join([*lines, *(f"- {sentence}" for sentence in self.assumptions)])

    def _summed_over(self) -> str:
        """Name the clients that a sum is planned over, for the text."""
        if (own := self.grouping) is None:
            return str(self.clients)
        return f"{' or '.join(map(str, sorted(own.plans)))} in a group, and {own.needed} of {own.groups} groups"

    @property
    def epsilon(self) -> tuple[tuple[int, float], ...]:
        """(rounds, epsilon) pairs, as `PrivacyPlan.epsilon`; empty without noise."""
        return () if self.privacy is None else self.privacy.epsilon

    @property
    def noised(self) -> bool:
        """True if noise is added for differential privacy."""
        return self.privacy is not None and bool(self.privacy.noise_multiplier)

    @property
    def steps(self) -> dict[str, float]:
        """Value of one integer unit by tensor; empty where nothing is quantised."""
        return {tensor.name: tensor.step for tensor in self.tensors if tensor.step}

    @cached_property
    def layout(self) -> Layout:
        """The layout of all tensors, those that transforms add included."""
        return Layout(tuple(TensorSpec(t.name, t.shape, t.bound, self.wanted_rings[t.name]) for t in self.tensors))

    @cached_property
    def own(self) -> Layout:
        """The layout of the algorithm's own contribution, without the tensors that transforms add."""
        return Layout(tuple(spec for spec in self.layout if spec.name not in self.added))

    def numbered(self, run: str, exchange: int) -> Plan:
        """Return this plan for one exchange; layouts and digest, which its number does not enter, are kept."""
        plan = replace(self, exchange=(run, exchange))
        vars(plan).update(layout=self.layout, own=self.own, _digest=self._digest)
        return plan

    def assume(self, *sentences: str) -> Plan:
        """Return this plan with further assumptions."""
        return replace(self, assumptions=self.assumptions + sentences)

    @cached_property
    def _digest(self) -> bytes:
        """SHA-256 of the numbers, as `plan_digest` describes."""
        masking, privacy = self.masking or MaskingPlan(), self.privacy
        clip, unit = (None, "client") if privacy is None else (privacy.clip, privacy.unit)
        noise, survivors = (0.0, 0) if privacy is None else (privacy.noise_multiplier, privacy.noise_survivors)
        # The digest enters masks and signatures: its order of numbers is the same in every version of the package.
        numbers = (
            self.clients,
            [(t.name, t.shape, _exact(t.bound), t.ring, _exact(t.step)) for t in self.tensors],
            (self.stages, self.threshold, masking.degree, masking.shares, masking.survivor_change),
            (bool(self.verified), self.added, unit),
            (_exact(clip), _exact(noise), survivors, [_exact(x) for x in self.learned]),
        )
        return hashlib.sha256(json.dumps([*numbers, *self._later_numbers()], default=int).encode()).digest()

    def _later_numbers(self) -> list[object]:
        """Return what the digest covers of another mask stream than the first one, and of grouped sums."""
        stream = MaskingPlan.stream if self.masking is None else self.masking.stream
        named: list[object] = [] if stream == MaskingPlan.stream else [("stream", stream)]
        if (own := self.grouping) is None:
            return named
        plans = [
            (size, plan.threshold, (plan.masking or MaskingPlan()).shares) for size, plan in sorted(own.plans.items())
        ]
        return [(own.groups, own.aggregator, own.liars, own.needed, plans), *named]


def _exact(value: float | None) -> str | None:
    """Write a number so that all parties write the same one alike: hexadecimal, every bit of it."""
    return None if value is None else float(value).hex()


def _table(tensors: Sequence[TensorPlan]) -> list[str]:
    """Format tensors as the lines of the plan's table, with columns of equal width."""
    rows = [_TABLE_HEAD]
    for t in tensors:
        bound, ring = "none" if t.bound is None else f"{t.bound:.4g}", f"2^{t.ring}" if t.ring else "float64"
        rows.append((t.name, str(t.shape), bound, ring, f"{t.step:.3g}", str(t.max_clients), f"{t.error:.3g}"))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def plan_digest(plan: Plan) -> bytes:
    """Compute the SHA-256 of every number of a plan that changes what a client sends or what is made of it.

    Assumptions, the exchange's number, and numbers that follow from others do not enter it. When a server opens an
    exchange, it sends each client how often the range was doubled and what was learned. Clients that received different
    plans must not be summed: a client whose step or clip is a million times the others' is alone in the sum. So
    protocols against a server that deviates bind what they mask, sign and open to this digest.
    """
    return plan._digest


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


P = TypeVar("P", bound=Hashable)
Blocks = tuple[frozenset[Any], ...]
"""Disjoint groups of parties: their union holds each party of a sum, and parties of one block lie in the same sums."""


def refined(blocks: Blocks, parties: Collection[P]) -> Blocks:
    """Return the blocks of all sets so far and of one more set."""
    whole = frozenset(parties)
    out: list[frozenset[Any]] = []
    for block in blocks:
        inside = block & whole
        out += [block] if not inside or len(inside) == len(block) else [inside, block - inside]
    new = whole.difference(*blocks)
    return (*out, new) if new else tuple(out)


def smallest(blocks: Blocks) -> int:
    """Return the number of parties of the smallest block; 0 without any."""
    return min(map(len, blocks), default=0)


@dataclass(frozen=True)
class SumsSoFar:
    """The sums of a run as its server knows them, so that it asks for none that its clients would refuse.

    A server that opens sums of equal contributions over several sets of parties may add and subtract them. Let the sets
    be S_1, ..., S_k, party j's contribution x_j in all of them, and the sums T_i = sum_{j in S_i} x_j. A block is a
    largest group of parties that lie in the same sets; the blocks are the common refinement of the sets, and each party
    of S_1 u ... u S_k is in one of them.

    Claim: if every block has b parties or more, each linear combination of the T_i that depends on some contribution
    depends on those of b parties at least.
    Proof: sum_i a_i T_i = sum_j c_j x_j with c_j = sum of a_i over the sets S_i that hold j. Parties of one block lie
    in the same sets, so c_j is one number for all parties of a block. A combination that depends on a contribution has
    c_j != 0 for some j, hence for the whole block of j, which has b parties or more, each with the same weight. QED.

    The rule may refuse more than it must: of {1, 2} and {2, 3} no combination shows one party, and all blocks are
    single parties. It never allows too much: sets that each differ from the one before by b parties may together tell
    single ones apart; the refinement shows that. Against c parties that tell the server what they sent b is b - c.

    Attributes:
        blocks: of all sums so far.
        least: fewest parties of a block; 1 where any sum may follow.
    """

    blocks: Blocks = ()
    least: int = 1

    def with_sum(self, parties: Collection[Any]) -> SumsSoFar:
        """Return this with one more sum; itself where nothing has to be remembered."""
        return self if self.least <= 1 or not parties else replace(self, blocks=refined(self.blocks, parties))

    def smallest_with(self, parties: Collection[Any]) -> int:
        """Return the number of parties of the smallest block once there is a sum over these."""
        return smallest(refined(self.blocks, parties))


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
        object.__setattr__(self, "plan", self.plan.numbered(self.run, self.round))


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
