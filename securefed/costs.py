"""What an exchange under secure aggregation will cost, before it runs: CPU, bytes and memory, from its plan.

Every cost is a sum of few terms, each a count that the plan fixes (streams of mask bytes, key agreements, ...) times a
constant. The constants are fitted to measured exchanges by non-negative least squares (`python -m benchmarks
scaling`) and stand in `costs.json` with the machine they were measured on; bytes are exact counts.

A tree of aggregators is the composition of the same exchanges: clients sum in groups, each group's aggregator is a
client of the next level. No protocol of its own is behind it, so it promises what its exchanges promise: an aggregator
sees the sum of its own group.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

from securefed.defenses.base import Defense, Plan
from securefed.defenses.fixed_point import wire_dtype, wire_size
from securefed.defenses.plain import Plain
from securefed.defenses.secure_aggregation.session import STAGES
from securefed.errors import PlanError
from securefed.tensors import Layout

FIGURES: Final = Path(__file__).with_name("costs.json")


@dataclass(frozen=True)
class Size:
    """What the cost of one exchange depends on.

    Attributes:
        clients: n.      holders: h, shares that a client deals.      shares: t, those that open a secret.
        sparse: whether clients mask with some others alone.      entries: d.      words: bytes of a masked upload.
        lost: clients that do not upload.
    """

    clients: int
    holders: int
    shares: int
    sparse: bool
    entries: int
    words: int
    lost: int

    @classmethod
    def of(cls, plan: Plan, lost: int = 0) -> Size:
        """The size of an exchange under `plan`.

        Raises:
            PlanError: the plan is not one of secure aggregation by its four stages, or more are lost than it survives.
        """
        if not plan.shares or any(not tensor.ring for tensor in plan.tensors):
            raise PlanError(f"costs are known for secure aggregation, not for {plan.defense!r}")
        if plan.stages != STAGES:
            raise PlanError(f"costs are known for the stages {', '.join(STAGES)}, not for {', '.join(plan.stages)}")
        if not 0 <= lost <= plan.clients - plan.threshold:
            raise PlanError(f"the plan survives 0 to {plan.clients - plan.threshold} lost clients, not {lost}")
        words = sum(wire_size(t.size, t.ring) * wire_dtype(t.ring).itemsize for t in plan.tensors)
        holders = min(plan.degree + 1, plan.clients) if plan.degree else plan.clients
        entries = sum(t.size for t in plan.tensors)
        return cls(plan.clients, holders, plan.shares, plan.degree > 0, entries, words, lost)

    @property
    def alive(self) -> int:
        return self.clients - self.lost

    @property
    def pairs(self) -> float:
        """Masks of lost clients with survivors, which the server makes again."""
        return self.lost * (self.holders - 1) * self.alive / max(self.clients - 1, 1)


Term = Callable[[Size], float]
TERMS: Final[dict[str, dict[str, Term]]] = {
    "client_cpu": {
        "exchange": lambda s: 1,
        "roster entry": lambda s: s.clients,
        "holder": lambda s: s.holders,
        "polynomial term": lambda s: s.holders * s.shares,
        "entry": lambda s: s.entries,
        "mask byte": lambda s: s.words * s.holders,
    },
    "server_cpu": {
        "exchange": lambda s: 1,
        "client": lambda s: s.clients,
        "bundle": lambda s: s.clients * s.holders,
        "Lagrange factor": lambda s: s.shares**2 * (s.clients if s.sparse else 1),
        "key agreement": lambda s: s.pairs,
        "upload byte": lambda s: s.words * s.alive,
        "mask byte": lambda s: s.words * (s.alive + s.pairs),
        "entry": lambda s: s.entries,
    },
    "received": {
        "exchange": lambda s: 1,
        "roster entry": lambda s: s.clients,
        "holder": lambda s: s.holders,
    },
    "client_memory": {
        "exchange": lambda s: 1,
        "roster entry": lambda s: s.clients,
        "holder": lambda s: s.holders,
        "entry": lambda s: s.entries,
    },
    "server_memory": {
        "exchange": lambda s: 1,
        "bundle": lambda s: s.clients * s.holders,
        "entry": lambda s: s.entries,
    },
}
"""By quantity, the terms of its model."""


@dataclass(frozen=True)
class Cost:
    """Predicted for one exchange of four stages.

    Attributes:
        client_cpu, server_cpu: seconds of one core; of one client and of the server.
        sent, received: bytes of one client, headers left out.
        client_memory, server_memory: bytes allocated in a step beside what it was handed.
    """

    client_cpu: float
    server_cpu: float
    sent: float
    received: float
    client_memory: float
    server_memory: float


@cache
def figures() -> Mapping[str, Any]:
    """The fitted constants, the machine, and how far predictions were off where they were checked."""
    return dict(json.loads(FIGURES.read_text()))


def predict(plan: Plan, lost: int = 0, fitted: Mapping[str, Mapping[str, float]] | None = None) -> Cost:
    """The cost of an exchange under `plan` that `lost` clients do not upload in.

    Guarantee: none on another machine; ratios carry over better than seconds. `figures()["checked"]` says how far
    predictions were off at sizes that were not fitted.

    Raises:
        PlanError: the plan is not one of secure aggregation, or more are lost than it survives.
    """
    size, constants = Size.of(plan, lost), fitted or figures()["constants"]

    def of(quantity: str) -> float:
        return sum(constants[quantity][name] * term(size) for name, term in TERMS[quantity].items())

    return Cost(
        of("client_cpu"), of("server_cpu"), plan.upload_bytes, of("received"), of("client_memory"), of("server_memory")
    )


@dataclass(frozen=True)
class Level:
    """One level of a tree: `groups` exchanges, each of `plan.clients` members."""

    groups: int
    plan: Plan
    cost: Cost


@dataclass(frozen=True)
class Tree:
    """Groups of clients, groups of their aggregators, and so on to the root; the clients' level first."""

    levels: tuple[Level, ...]

    @property
    def busiest_cpu(self) -> float:
        """CPU seconds of the busiest aggregator: the server of one group, and a member of the next."""
        above = [*(level.cost.client_cpu for level in self.levels[1:]), 0.0]
        return max(level.cost.server_cpu + member for level, member in zip(self.levels, above, strict=True))

    @property
    def path_cpu(self) -> float:
        """CPU seconds from a client's contribution to the root's sum, where all of a level work at the same time."""
        return sum(level.cost.client_cpu + level.cost.server_cpu for level in self.levels)

    @property
    def aggregators_cpu(self) -> float:
        """CPU seconds of all aggregators together."""
        above = [*(level.groups * level.plan.clients * level.cost.client_cpu for level in self.levels[1:]), 0.0]
        return sum(level.groups * level.cost.server_cpu + up for level, up in zip(self.levels, above, strict=True))


def level_plan(defense: Defense, layout: Layout, clients: int, members: int) -> Plan:
    """The plan of one group of `members` in a federation of `clients`: fixed point for the whole sum.

    Raises:
        PlanError: as the defence does, or its noise is sized for one exchange.
    """
    if defense.plan(layout, members).noise_multiplier:
        raise PlanError(f"{defense.name}: noise is planned for one exchange, not for a tree of them")
    whole = Defense(defense.transforms, Plain()).plan(layout, clients)
    empty = replace(whole, clients=members, stages=(), upload_bytes=0, open_to="", assumptions=())
    return defense.aggregation.plan(empty)


def tree(defense: Defense, layout: Layout, clients: int, members: int, lost: float = 0.0) -> Tree:
    """The costs of a tree whose groups have at most `members`, of which the share `lost` do not upload.

    Groups of a level are as equal as they can be; the costs are those of its largest. The share is lost among the
    clients; aggregators stay.

    Raises:
        PlanError: fewer than 3 members, more levels' groups than the defence can plan, or see `level_plan`.
    """
    if members < 3:
        raise PlanError(f"a group hides nothing with fewer than 3 members, not {members}")
    levels: list[Level] = []
    count = clients
    while not levels or count > 1:
        groups = math.ceil(count / members)
        largest = max(math.ceil(count / groups), 3)
        plan = level_plan(defense, layout, clients, largest)
        missing = 0 if levels else int(lost * largest)
        levels.append(Level(groups, plan, predict(plan, missing)))
        count = groups
    return Tree(tuple(levels))


def words(plan: Plan) -> list[str]:
    """The prediction for `plan` in sentences; none where its costs are not known."""
    try:
        cost, losing = predict(plan), predict(plan, min(plan.clients // 10, plan.clients - plan.threshold))
    except PlanError:
        return []
    machine, off = figures()["machine"], figures()["error"]
    return [
        f"predicted CPU a round: client {seconds(cost.client_cpu)}, server {seconds(cost.server_cpu)}, with a tenth "
        f"lost {seconds(losing.server_cpu)} ({machine['processor']}; typically within "
        f"{100 * max(off['client_cpu']['median'], off['server_cpu']['median']):.0f} %)",
        f"predicted bytes and memory: a client sends {size(cost.sent)} and receives {size(cost.received)}; "
        f"steps allocate {size(cost.client_memory)} at a client, {size(cost.server_memory)} at the server",
    ]


def tree_words(found: Tree) -> list[str]:
    """A tree's costs in sentences."""
    shape = " -> ".join(f"{level.groups:,} x {level.plan.clients}" for level in found.levels)
    first = found.levels[0].cost
    return [
        f"tree of aggregators (groups x members, from the clients to the root): {shape}",
        f"predicted CPU a round: client {seconds(first.client_cpu)}, busiest aggregator "
        f"{seconds(found.busiest_cpu)}, from a contribution to the sum {seconds(found.path_cpu)}, all aggregators "
        f"{seconds(found.aggregators_cpu)}; a client sends {size(first.sent)} and receives {size(first.received)}",
        "each aggregator sees the sum of its own group; the tree is a composition of exchanges, not a protocol",
    ]


def seconds(value: float) -> str:
    """Seconds with a unit that fits."""
    return f"{value:.3g} s" if value >= 1 else f"{value * 1e3:.3g} ms"


def size(value: float) -> str:
    """Bytes with a unit that fits."""
    for unit in ("B", "kB", "MB"):
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} GB"
