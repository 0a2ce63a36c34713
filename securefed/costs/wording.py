"""Predicted costs in sentences."""

from __future__ import annotations

from securefed.costs.prediction import Cost, Sized, figures, predict
from securefed.costs.trees import Tree
from securefed.defenses.base import Defense, Plan
from securefed.errors import PlanError


def words(defense: Defense, plan: Plan) -> list[str]:
    """The prediction for `plan`, which `defense` made; none where its costs are not known."""
    try:
        model = Sized.of(defense, plan).model
    except PlanError:
        return []
    lost = min(plan.clients // 10, plan.clients - plan.threshold)
    cost, losing = predict(defense, plan), predict(defense, plan, lost)
    off = figures()["errors"][model]
    within = max(off[quantity]["median"] for quantity in ("client_cpu", "server_cpu"))
    helper = f", key holder {seconds(cost.helper_cpu)}" if cost.helper_cpu else ""
    return [
        f"predicted CPU a round: client {seconds(cost.client_cpu)}, server {seconds(cost.server_cpu)}, with a tenth "
        f"lost {seconds(losing.server_cpu)}{helper} ({figures()['machine']['processor']}; typically within "
        f"{100 * within:.0f} %)",
        f"predicted bytes: a client sends {size(cost.sent)} and receives {size(cost.received)}{_memory(cost)}",
    ]


def _memory(cost: Cost) -> str:
    if cost.client_memory is None or cost.server_memory is None:
        return ""
    return f"; steps allocate {size(cost.client_memory)} at a client, {size(cost.server_memory)} at the server"


def tree_words(found: Tree) -> list[str]:
    """A tree's costs."""
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
