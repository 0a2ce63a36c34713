"""State, as sentences for a plan, what secure aggregation assumes about its server.

A plan is what a defence states before a run: numbers, and a list of assumptions as sentences. `SecureAggregation.plan`
takes the sentences from here. Without identities (long-lived signing keys of the clients) the server has to follow the
protocol (`CURIOUS`). With identities it may deviate, as long as no more clients collude with it than `deviating` says.
"""

from __future__ import annotations

from typing import Final

from securefed.defenses._plan import Plan
from securefed.defenses._secure_aggregation.identities import Identities
from securefed.defenses._secure_aggregation.session import masking_of

CURIOUS: Final = (
    "The server is honest but curious at first contact: keys are advertised through it, without certificates.",
    "It names the same survivors to all clients: they do not compare them, and one that lies about them may open sums "
    "over fewer clients than the threshold.",
    "The transport authenticates the server to the clients and the clients to the server.",
)
"""Assumptions about the server where clients have no identities."""


def deviating(identities: Identities, plan: Plan) -> tuple[str, ...]:
    """Return the assumptions about a server that deviates, instead of `CURIOUS`.

    The server opens a sum over a set of survivors (clients that uploaded) only after t of them signed that set. With t
    the threshold, N the planned clients and c the colluding ones, any two sets of t signers have 2 t - N clients or
    more in common. If c < 2 t - N, one of these is honest, and an honest client signs one set only.

    Args:
        identities: the clients' public identities, and which of them were trusted on first use: taken from the first
            message that named them, and not compared with their owners.
        plan: a plan with its threshold and, where the graph of masks is sparse, its degree (0: the complete graph).

    Returns:
        The sentences, in the order in which the plan prints them.
    """
    most_colluding = 2 * plan.threshold - plan.clients - 1
    first_contact: tuple[str, ...] = ()
    server = "The server"
    if identities.first_use:
        first_contact = (
            f"The server is honest but curious at first contact: the identities of clients {_listed(identities)} were "
            "trusted on first use, and not compared. It may have written them, and then plays those clients. One "
            "that changes later is refused by name.",
        )
        server = "If it wrote none of them, the server"
    return (
        *first_contact,
        f"{server} may deviate in any way while at most {most_colluding} of the clients it invites collude with it"
        f"{', and of the neighbours of each as many as stated' if masking_of(plan).degree else ''}; it then "
        "opens one sum of an "
        f"exchange, over {plan.threshold} clients or more, or none. It can make rounds void"
        f"{'.' if plan.verified else ', and announce any result.'}",
        f"The identities are the clients' own, the same at every client: fingerprint {identities.fingerprint}, to be "
        "compared over another channel than the server's.",
        "The server chooses what it broadcasts: contributions that differ a little subtract like equal ones.",
    )


def verifying(identities: Identities | None) -> tuple[str, ...]:
    """Return the assumptions about sums that the server announces and the clients check (`verification`).

    Args:
        identities: the clients' identities; `None` where they have none, so that the server may play a client.
    """
    players = "."
    if identities is None:
        players = ", nor against a server that plays a client, which needs no identity here."
    elif identities.first_use:
        players = ", nor against a server that wrote a client's identity."
    return (
        "Clients that are counted see the round's sum. An altered one passes with a client with probability 2^-60 at "
        "most, against the server alone: nothing is promised against the server and one client together" + players,
        "Clients check a sum when the server asks them next or tells them the outcome. The last sum of a run, and what "
        "the server computed from it, is checked only by a client that is given the result (`SumClient.check`, "
        "`securefed party contribute`, the last message of a `SecureStrategy`), and that says so.",
    )


def subtracting(identities: Identities | None, least_block: int) -> tuple[str, ...]:
    """Return the assumptions about sums that are subtracted from each other.

    Args:
        identities: the clients' identities; `None` where they have none.
        least_block: fewest clients that the sums of a client's data may tell apart (`survivor_change`).
    """
    apart = f"tell no group of fewer than {least_block} clients apart" if least_block > 1 else ""
    if identities is None:
        within = f"; within a run, sums that a client helps to open {apart}." if apart else "."
        return (
            f"Sums over different survivors of the same values subtract{within}",
            "Across runs nothing is promised without identities: a client's number means another client there.",
        )
    return (
        "Sums over different survivors of the same values subtract. A client lets a contribution to one broadcast out "
        "over one set of survivors, in all runs that its ledger counts"
        + (f", and the sums that it knows {apart}." if apart else "."),
        "A client without a ledger on disk forgets this when its process ends. It does not know sums that were opened "
        "without asking it, nor sums of which it is not part: a server may combine sums of which each client sees "
        "only some, such as A over 10 clients, less B over 5, less C over 4 of them.",
    )


def _listed(identities: Identities) -> str:
    """List the clients whose identities were trusted on first use, at bounded length."""
    clients = sorted(identities.first_use)
    first_eight = ", ".join(map(str, clients[:8]))
    return first_eight if len(clients) <= 8 else f"{first_eight} and {len(clients) - 8} more"
