"""Choose and check how many clients must survive, and how many open a secret, in a plan of secure aggregation.

A plan is what a defence states before a run; `SecureAggregation.plan` calls one of the two functions here. N clients
are planned, of which C may collude with the server and D may be lost in an exchange (one sum). Survivors are the
clients whose uploads are in a sum. Each client deals Shamir shares of two secrets to holders: all clients on the
complete graph, k neighbours and itself on a sparse one. An upload opens to a party that has both secrets of its client.

    threshold   survivors that an exchange needs; fewer make it void
    shares      t, the number of shares that open a secret; on the complete graph it equals the threshold

An honest client reveals one kind of share of each client: of the one secret if the server says that the client
survived, of the other if it says that the client was lost.

Why more than N / 2: a server that tells some clients that a client survived, and others that it was lost, must then ask
some client for both kinds, which an honest one refuses. A server that follows the protocol never asks so, and against
it a threshold above C is enough. Plans demand more than N / 2 in any case: even without identities, a server that lies
about losses then collects both secrets of no client unless clients collude with it.

Why more than (N + C) / 2 against a server that deviates: two sets of `threshold` clients then have more than C clients
in common, one of them honest. As it also signs one set of survivors only, neither both secrets of a client nor a second
sum open.
"""

from __future__ import annotations

from dataclasses import replace

from securefed.defenses._plan import MaskingPlan, Plan
from securefed.defenses._secure_aggregation.graph import SparseGraphDesign, shares_of
from securefed.errors import PlanError

_FEWEST_SUMMED = 3
"""Clients in a sum at least, by default, where there are as many."""


def plan_complete_graph(
    plan: Plan, *, threshold: int | None, adversarial: float, dropouts: float, active: bool, survivor_change: int
) -> Plan:
    """Add threshold, shares, what collusion opens, and assumptions to a plan with the complete graph.

    Args:
        plan: with the number N of planned clients.
        threshold: as the user gave it; `None` takes floor(N / 2) + 1 or, with `active`, floor((N + C) / 2) + 1, and of
            three clients all: two of three would leave a sum of two, of which each knows the other's part.
        adversarial: C / N.
        dropouts: D / N.
        active: whether the server may deviate, and clients have identities.
        survivor_change: b, fewest clients that all sums together may tell apart (`_survivor_blocks`). Survivors that
            differ by one client are a risk: the difference of the two sums is that client's contribution plus the
            change in the others'. With b it holds those of b clients at least.

    Raises:
        PlanError: the threshold is outside (N / 2, N], not above (N + C) / 2 with `active`, not above C, or above
            N - D; or b is above 1 and above N - threshold.
    """
    clients = plan.clients
    corrupt, lost = shares_of(clients, adversarial, dropouts)
    twice = corrupt if active else 0  # clients that answer and sign twice for a server that lies
    if threshold is None:
        threshold = max((clients + twice) // 2 + 1, min(_FEWEST_SUMMED, clients - lost))
    if not clients < 2 * threshold <= 2 * clients:
        raise PlanError(f"threshold {threshold} is not above half of {clients} clients and at most {clients}")
    if 2 * threshold <= clients + twice:
        raise PlanError(
            f"threshold {threshold}: {clients} holders of which {corrupt} answer and sign twice open two sums, or "
            f"both secrets of a client, to a server that lies; it must exceed {(clients + twice) / 2:g}"
        )
    if corrupt >= threshold:
        raise PlanError(f"{corrupt} adversarial clients of {clients} open uploads at threshold {threshold}; raise it")
    if clients - lost < threshold:
        raise PlanError(f"{lost} of {clients} clients lost leave fewer than the threshold {threshold}; lower it")
    _check_change(clients, threshold, survivor_change)
    opens = f"the server and any {threshold} of {clients} clients together; the server and all other survivors"
    masking = MaskingPlan(shares=threshold, survivor_change=survivor_change)
    planned = replace(plan, threshold=threshold, open_to=opens, masking=masking).assume(
        f"{threshold} colluding clients and the server open uploads; so do all survivors but one, from the sum."
    )
    return planned if threshold < clients else planned.assume("A round that one client leaves is void.")


def plan_sparse_graph(plan: Plan, design: SparseGraphDesign, *, survivor_change: int) -> Plan:
    """Add threshold N - D, shares, what collusion opens, and assumptions to a plan with a sparse graph.

    Args:
        plan: with the number N of planned clients.
        design: the graph's degree, the number of shares that open a secret, C and D (`design_sparse_graph`).
        survivor_change: as for `plan_complete_graph`.

    Raises:
        PlanError: the threshold N - D is not above N / 2, or not above (N + C) / 2 where the server may deviate; or b
            is above 1 and above D.
    """
    threshold = plan.clients - design.lost
    if design.active and 2 * threshold <= plan.clients + design.corrupt:
        raise PlanError(
            f"{design.lost} of {plan.clients} clients lost and {design.corrupt} that sign twice leave no majority "
            "that agrees on the survivors; lower `dropouts` or `adversarial`"
        )
    if not plan.clients < 2 * threshold:
        raise PlanError(f"{design.lost} of {plan.clients} clients lost leave no more than half; lower `dropouts`")
    _check_change(plan.clients, threshold, survivor_change)
    opens = (
        f"the server and any {design.threshold} of a client's {design.degree} neighbours together; "
        "the server and all other survivors"
    )
    masking = MaskingPlan(design.degree, design.threshold, survivor_change)
    return replace(plan, threshold=threshold, open_to=opens, masking=masking).assume(
        design.explain(),
        f"At most {design.corrupt} clients collude with the server, the same whatever the graph turns out to be"
        + (", and it has no other graph drawn by leaving clients out." if design.active else "."),
        f"A round that more than {design.lost} clients leave is void.",
    )


def _check_change(clients: int, threshold: int, survivor_change: int) -> None:
    """Raise `PlanError` where one client that is lost for good would make every further round void.

    The clients then leave out `survivor_change` - 1 others with it, and the threshold must be left.
    """
    if survivor_change > 1 and clients - threshold < survivor_change:
        raise PlanError(
            f"survivor_change={survivor_change} of {clients} clients: once one client is lost, {survivor_change} have "
            f"to be left out, which leaves fewer than the threshold {threshold}, so that every further round is void; "
            f"ask for {max(clients - threshold, 1)} at most, or invite more clients"
        )
