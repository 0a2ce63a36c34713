"""State, as sentences, the assumptions about the server in a plan of secure aggregation."""

from __future__ import annotations

from typing import Final

from securefed.defenses._base import Plan
from securefed.defenses._secure_aggregation.identities import Identities
from securefed.defenses._secure_aggregation.session import masking_of

CURIOUS: Final = (
    "The server is honest but curious at first contact: keys are advertised through it, without certificates.",
    "The transport authenticates the server to the clients and the clients to the server.",
)
"""Assumptions about the server where clients have no identities."""


def deviating(identities: Identities, plan: Plan) -> tuple[str, ...]:
    """Return the assumptions about a server that deviates, instead of `CURIOUS`."""
    most = 2 * plan.threshold - plan.clients - 1
    first: tuple[str, ...] = ()
    then = "The server"
    if identities.first_use:
        first = (
            f"The server is honest but curious at first contact: the identities of clients {_listed(identities)} were "
            "trusted on first use, and not compared. It may have written them, and then plays those clients. One "
            "that changes later is refused by name.",
        )
        then = "If it wrote none of them, the server"
    return (
        *first,
        f"{then} may deviate in any way while at most {most} of the clients it invites collude with it"
        f"{', and of the neighbours of each as many as stated' if masking_of(plan).degree else ''}; it then "
        "opens one sum of an "
        f"exchange, over {plan.threshold} clients or more, or none. It can make rounds void, and announce any result.",
        f"The identities are the clients' own, the same at every client: fingerprint {identities.fingerprint}, to be "
        "compared over another channel than the server's.",
        "The server chooses what it broadcasts: contributions that differ a little subtract like equal ones.",
    )


def _listed(identities: Identities) -> str:
    """List the clients whose identities were trusted on first use, at bounded length."""
    clients = sorted(identities.first_use)
    some = ", ".join(map(str, clients[:8]))
    return some if len(clients) <= 8 else f"{some} and {len(clients) - 8} more"
