"""Write predicted costs as sentences, for `securefed plan` and the pages of figures."""

from __future__ import annotations

from securefed._costs.aggregator_tree import AggregatorTree
from securefed._costs.prediction import CountedExchange, ExchangeCost, figures, predict
from securefed.defenses._base import Defense, Plan
from securefed.errors import PlanError


def cost_lines(defense: Defense, plan: Plan) -> list[str]:
    """Describe the prediction for a plan.

    Args:
        defense: the defence that made the plan.
        plan: the plan of an exchange.

    Returns:
        The sentences; none where the costs of this defence are not known. The server's CPU is also predicted with a
        tenth of the clients lost, at least one and at most as many as the plan survives: under masking the server
        rebuilds their masks.
    """
    try:
        model = CountedExchange.of(defense, plan).model
    except PlanError:
        return []
    lost = min(max(plan.clients // 10, 1), plan.clients - plan.threshold)
    cost = predict(defense, plan)
    losing = ""
    if lost:
        seconds = format_seconds(predict(defense, plan, lost).server_cpu)
        losing = f" ({seconds} with {lost} of {plan.clients} clients lost)"
    errors = figures()["errors"][model]  # relative, of predictions against measured exchanges
    median_error = max(errors[quantity]["median"] for quantity in ("client_cpu", "server_cpu"))
    client, server = format_seconds(cost.client_cpu), format_seconds(cost.server_cpu)
    helper = f", key holder {format_seconds(cost.helper_cpu)}" if cost.helper_cpu else ""
    return [
        f"predicted CPU a round: client {client}, server {server}{losing}{helper}; on "
        f"{figures()['machine']['processor']}, typically within {100 * median_error:.0f} %",
        f"predicted bytes: a client {_traffic(cost)}{_memory(cost)}",
    ]


def tree_lines(tree: AggregatorTree) -> list[str]:
    """Describe the costs of a tree of aggregators."""
    shape = " -> ".join(f"{level.groups:,} x {level.plan.clients}" for level in tree.levels)
    first = tree.levels[0].cost
    client, busiest = format_seconds(first.client_cpu), format_seconds(tree.busiest_cpu)
    path, aggregators = format_seconds(tree.path_cpu), format_seconds(tree.aggregators_cpu)
    return [
        f"tree of aggregators (groups x members, from the clients to the root): {shape}",
        f"predicted CPU a round: client {client}, busiest aggregator {busiest}, from a contribution to the sum {path}, "
        f"all aggregators {aggregators}; a client {_traffic(first)}",
        "each aggregator sees the sum of its own group; the tree is a composition of exchanges, not a protocol",
    ]


def _traffic(cost: ExchangeCost) -> str:
    return f"sends {format_bytes(cost.sent)} and receives {format_bytes(cost.received)}"


def _memory(cost: ExchangeCost) -> str:
    if cost.client_memory is None or cost.server_memory is None:
        return ""
    client, server = format_bytes(cost.client_memory), format_bytes(cost.server_memory)
    return f"; steps allocate {client} at a client, {server} at the server"


def format_seconds(value: float) -> str:
    """Write a time in seconds with a unit that fits."""
    return f"{value:.3g} s" if value >= 1 else f"{value * 1e3:.3g} ms"


def format_bytes(value: float) -> str:
    """Write a number of bytes with a unit that fits."""
    for unit in ("B", "kB", "MB"):
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} GB"
