"""Write the plan of one message a client: bytes, who opens what, assumptions, and the comparison with masks."""

from __future__ import annotations

from dataclasses import replace

from securefed.defenses._one_message.committee import Committee
from securefed.defenses._one_message.parameters import DEVIATION, MODULUS_BITS, SECURITY
from securefed.defenses._one_message.plaintexts import Placing
from securefed.defenses._one_message.ring import BYTES
from securefed.defenses._one_message.session import (
    HASH_BYTES,
    STAGES,
    bundle_bytes,
    opening_bytes,
)
from securefed.defenses._one_message.sharing import TESTS
from securefed.defenses._plan import Plan
from securefed.defenses._secure_aggregation.identities import SIGNATURE_BYTES, Identities
from securefed.defenses._secure_aggregation.primitives import KEY_BYTES
from securefed.errors import PlanError

FEWEST_UPLOADS = 3
"""Uploads of the smallest set. Of two uploads, a client that colludes with the server subtracts its own."""


def planned(
    plan: Plan, committee: Committee, identities: Identities, threshold: int | None, *, survivor_change: int
) -> Plan:
    """Add stages, bytes, threshold, what collusion opens, and assumptions to a plan.

    Args:
        plan: with its tensors in fixed point.
        committee: the committee.
        identities: the clients' identities.
        threshold: fewest uploads of a set that members sign; `None` for more than half of the clients, three at least.
        survivor_change: fewest clients that the sums together may tell apart.

    Raises:
        PlanError: tensors that are not quantised, too many clients for the modulus, a threshold below 3 or above the
            planned clients, or a `survivor_change` that one lost client would make unreachable.
    """
    placing, clients = Placing.of(plan), plan.clients
    least = max(clients // 2 + 1, FEWEST_UPLOADS) if threshold is None else threshold
    if not FEWEST_UPLOADS <= least <= clients:
        raise PlanError(
            f"one message a client: a set of {least} uploads of {clients} clients; give a threshold from "
            f"{FEWEST_UPLOADS} to {clients}, as of two uploads each client has the other's"
        )
    if survivor_change > 1 and clients - least < survivor_change:
        raise PlanError(
            f"survivor_change={survivor_change} of {clients} clients with a threshold of {least}: once one client is "
            "lost, every further round is void; lower one of them, or invite more clients"
        )
    opens = (
        f"the server and {committee.degree + 1} of the {len(committee.members)} members of the committee; the server "
        "and all other clients in a sum"
    )
    return replace(
        plan, stages=STAGES, upload_bytes=upload_bytes(placing, committee, clients), threshold=least, open_to=opens
    ).assume(*sentences(placing, committee, identities, least, survivor_change))


def upload_bytes(placing: Placing, committee: Committee, clients: int) -> int:
    """Count the bytes of a client's message, and of what a member sends beside it if all clients take part."""
    members = len(committee.members)
    message = (
        BYTES * placing.encoding.primes * placing.size
        + members * bundle_bytes(placing.encoding)
        + 8 * TESTS * (committee.degree + 1)
    )
    message += KEY_BYTES + HASH_BYTES + SIGNATURE_BYTES
    member = KEY_BYTES + clients + opening_bytes(placing.encoding) + 4 * SIGNATURE_BYTES
    return message + member


def sentences(
    placing: Placing, committee: Committee, identities: Identities, threshold: int, survivor_change: int
) -> tuple[str, ...]:
    """Return the assumptions, as the plan prints them."""
    members, corrupt, lost = len(committee.members), committee.corrupt, committee.lost
    apart = f", and the sums that a member knows tell no group of fewer than {survivor_change} clients apart"
    first = ""
    if identities.first_use:
        first = f" {len(identities.first_use)} of them were trusted on first use and not compared."
    return (
        "EXPERIMENTAL: this protocol was not reviewed from outside. Use secure_aggregation() for data of people until "
        "it was.",
        "A client sends one message and is gone: a client that is lost costs nothing. Members of the committee answer "
        "four times, and are clients that every exchange invites.",
        f"Members of the committee that collude with the server or lie, of {members}: {corrupt} at most; "
        f"{corrupt + 1} open every upload. (Under secure_aggregation() it takes as many clients as its threshold.)",
        f"Members that are lost in an exchange: {lost} at most; with more it is void. Wrong shares that are corrected: "
        f"{corrupt}.",
        f"Of the uploads in a sum at least two are of clients that do not collude; of {threshold} uploads, "
        f"{threshold - 2} may collude.",
        f"Ring learning with errors with n = {placing.encoding.degree}, a modulus of "
        f"{MODULUS_BITS * placing.encoding.primes} bits and standard deviation {DEVIATION / 2:g}, what the "
        f"opened sums of keys and errors leave of {DEVIATION:g}, has {SECURITY} bits of security "
        "(Homomorphic Encryption Standard 2018, table 1; Hint-MLWE, CRYPTO 2023).",
        f"A sum is wrong with probability 2^-40 at most: a coefficient holds {placing.encoding.value_bits} bits of it, "
        f"and errors {placing.encoding.scale_bits}.",
        "The server may deviate in any way; it then opens one sum of an exchange, over "
        f"{threshold} uploads or more, or none. It can make rounds void, and announce any result.",
        f"The identities are the clients' own, the same at every client: fingerprint {identities.fingerprint}, to be "
        f"compared over another channel than the server's.{first}",
        "Sums over different survivors of the same values subtract. Members let contributions to one broadcast out "
        f"over one set of survivors{apart if survivor_change > 1 else ''}: their ledgers remember it, a client's own "
        "does not. A new committee knows earlier sums only if its members took the old one's memory over "
        "(`take_over_committee`); clients cannot check that.",
        "A client's contribution is not checked: a lying client shifts the sum. One whose shares do not fit makes the "
        "round void, or with keep_uploads=True is left out.",
        "Who took part, sizes and timing are visible.",
        "No member's state is rolled back to before it signed and used again.",
    )
