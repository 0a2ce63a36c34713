"""A tree of aggregators: clients sum in groups, and each group's aggregator is a client of the next level.

It is the composition of the same exchanges. No protocol of its own is behind it, so it promises what its exchanges
promise: an aggregator sees the sum of its own group.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from securefed.costs.prediction import Cost, predict
from securefed.defenses.base import Defense, Plan
from securefed.defenses.plain import Plain
from securefed.errors import PlanError
from securefed.tensors import Layout


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
        return sum(level.cost.client_cpu + level.cost.server_cpu + level.cost.helper_cpu for level in self.levels)

    @property
    def aggregators_cpu(self) -> float:
        """CPU seconds of all aggregators together, key holders' included."""
        above = [*(level.groups * level.plan.clients * level.cost.client_cpu for level in self.levels[1:]), 0.0]
        return sum(
            level.groups * (level.cost.server_cpu + level.cost.helper_cpu) + up
            for level, up in zip(self.levels, above, strict=True)
        )


def shape(clients: int, members: int) -> list[tuple[int, int]]:
    """Groups and members of the largest one by level, for groups of at most `members`, as equal as they can be.

    Raises:
        PlanError: fewer than 3 members.
    """
    if members < 3:
        raise PlanError(f"a group hides nothing with fewer than 3 members, not {members}")
    levels: list[tuple[int, int]] = []
    while not levels or clients > 1:
        groups = math.ceil(clients / members)
        levels.append((groups, max(math.ceil(clients / groups), 3)))
        clients = groups
    return levels


def level_plan(defense: Defense, layout: Layout, capacity: int, members: int, below: int = 1) -> Plan:
    """The plan of one group of `members`, each of which brings the sum of `below` clients.

    Args:
        capacity: clients that the whole tree has room for; fixed point is planned for the sum of so many.

    Raises:
        PlanError: as the defence does, or its noise is sized for one exchange.
    """
    if defense.plan(layout, members).noise_multiplier:
        raise PlanError(f"{defense.name}: noise is planned for one exchange, not for a tree of them")
    whole = Defense(defense.transforms, Plain()).plan(layout, capacity)
    tensors = tuple(t if t.bound is None else replace(t, bound=below * t.bound) for t in whole.tensors)
    empty = replace(whole, clients=members, tensors=tensors, stages=(), upload_bytes=0, open_to="", assumptions=())
    return defense.aggregation.plan(empty)


def tree(defense: Defense, layout: Layout, clients: int, members: int, lost: float = 0.0) -> Tree:
    """The costs of a tree whose groups have at most `members`, of which the share `lost` do not upload.

    The costs are those of a level's largest group. The share is lost among the clients; aggregators stay.

    Raises:
        PlanError: fewer than 3 members, costs of this defence are not known, or see `level_plan`.
    """
    levels: list[Level] = []
    found = shape(clients, members)
    capacity, below = math.prod(most for _, most in found), 1
    for groups, most in found:
        plan = level_plan(defense, layout, capacity, most, below)
        missing = 0 if levels else int(lost * most)
        levels.append(Level(groups, plan, predict(defense, plan, missing)))
        below *= most
    return Tree(tuple(levels))
