"""Predict the costs of a tree of aggregators: each sums a group, and is itself a client of the level above.

From a defence, a layout, the number of clients and the largest size of a group follow the levels of the tree; each
level is planned and predicted as one exchange of its largest group (`prediction`). The command `securefed plan` and
the benchmark of scale call `aggregator_tree`.

The tree is a composition of exchanges, not a protocol of its own. It promises what its exchanges promise: an aggregator
sees the sum of its own group.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from securefed._costs.prediction import ExchangeCost, predict
from securefed._tensors import Layout
from securefed.defenses._base import Defense, Plan
from securefed.defenses._plain import Plain
from securefed.errors import PlanError


@dataclass(frozen=True)
class TreeLevel:
    """One level of a tree.

    Attributes:
        groups: number of exchanges.
        plan: the plan of the largest group; `plan.clients` is its number of members.
        cost: the predicted cost of that group.
    """

    groups: int
    plan: Plan
    cost: ExchangeCost


@dataclass(frozen=True)
class AggregatorTree:
    """Groups of clients, groups of their aggregators, and so on to the root.

    Attributes:
        levels: the levels, that of the clients first.
    """

    levels: tuple[TreeLevel, ...]

    @property
    def busiest_cpu(self) -> float:
        """CPU seconds of the busiest aggregator: the server of one group, and a member of the next."""
        # The aggregators of level k are the members of level k + 1; the root is a member of none.
        as_member = [*(level.cost.client_cpu for level in self.levels[1:]), 0.0]
        return max(level.cost.server_cpu + cpu for level, cpu in zip(self.levels, as_member, strict=True))

    @property
    def path_cpu(self) -> float:
        """CPU seconds from a client's contribution to the root's sum, where all of a level work at the same time."""
        return sum(level.cost.client_cpu + level.cost.server_cpu + level.cost.helper_cpu for level in self.levels)

    @property
    def aggregators_cpu(self) -> float:
        """CPU seconds of all aggregators together, key holders' included."""
        as_members = [*(level.groups * level.plan.clients * level.cost.client_cpu for level in self.levels[1:]), 0.0]
        return sum(
            level.groups * (level.cost.server_cpu + level.cost.helper_cpu) + cpu
            for level, cpu in zip(self.levels, as_members, strict=True)
        )


def group_sizes(clients: int, members: int) -> list[tuple[int, int]]:
    """Split clients into groups, level by level, as equal as they can be, until one group is left.

    Args:
        clients: number of clients.
        members: largest number of members of a group.

    Returns:
        By level, the number of groups and the members of the largest one (at least 3).

    Raises:
        PlanError: fewer than 3 members.
    """
    if members < 3:
        raise PlanError(f"a group hides nothing with fewer than 3 members, not {members}")
    levels: list[tuple[int, int]] = []
    while not levels or clients > 1:
        groups = math.ceil(clients / members)
        # groups of 1 or 2 are planned as of 3, since secure aggregation refuses fewer
        levels.append((groups, max(math.ceil(clients / groups), 3)))
        clients = groups
    return levels


def level_plan(defense: Defense, layout: Layout, capacity: int, members: int, below: int = 1) -> Plan:
    """Plan one group, each of whose members brings the sum of `below` clients.

    Fixed point (its step) is planned once for the sum over the whole tree, so that integers of one level can be added
    at the next; the entries of a group's members are bounded by `below` times those of one client.

    Args:
        defense: the defence of each exchange.
        layout: the tensors of one contribution.
        capacity: clients that the whole tree has room for; fixed point is planned for the sum of so many.
        members: number of members of the group.
        below: number of clients whose sum a member brings.

    Raises:
        PlanError: as the defence does, or its noise is sized for one exchange.
    """
    if defense.plan(layout, members).noised:
        raise PlanError(f"{defense.name}: noise is planned for one exchange, not for a tree of them")
    # Plan the transforms (clip, fixed point) for the whole tree, then the aggregation for this group alone.
    whole = Defense(defense.transforms, Plain()).plan(layout, capacity)
    tensors = tuple(t if t.bound is None else replace(t, bound=below * t.bound) for t in whole.tensors)
    start = replace(whole, clients=members, tensors=tensors, stages=(), upload_bytes=0, open_to="", assumptions=())
    return defense.aggregation.plan(start)


def aggregator_tree(defense: Defense, layout: Layout, clients: int, members: int, lost: float = 0.0) -> AggregatorTree:
    """Predict the costs of a tree of aggregators.

    The costs of a level are those of its largest group.

    Args:
        defense: the defence of each exchange.
        layout: the tensors of one contribution.
        clients: number of clients of the whole tree.
        members: largest number of members of a group.
        lost: share of the clients that do not upload; aggregators stay.

    Raises:
        PlanError: fewer than 3 members, costs of this defence are not known, or as `level_plan`.
    """
    levels: list[TreeLevel] = []
    sizes = group_sizes(clients, members)
    capacity, summed = math.prod(largest for _, largest in sizes), 1
    for groups, largest in sizes:
        plan = level_plan(defense, layout, capacity, largest, summed)
        lost_members = 0 if levels else int(lost * largest)
        levels.append(TreeLevel(groups, plan, predict(defense, plan, lost_members)))
        summed *= largest  # number of clients in the sum that an aggregator brings to the next level
    return AggregatorTree(tuple(levels))
