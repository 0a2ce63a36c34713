"""Plan an exchange of secure aggregation: thresholds, bytes, and what is assumed about the server, as sentences.

The numbers of a sparse graph, and its plan, are in `graph`.

A plan is what a defence states before a run; `SecureAggregation.plan` calls the functions here. N clients are planned,
of which C may collude with the server and D may be lost in an exchange (one sum). Survivors are the clients whose
uploads are in a sum. Each client deals Shamir shares of two secrets to holders: all clients on the complete graph, k
neighbours and itself on a sparse one. An upload opens to a party that has both secrets of its client.

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

import math
from dataclasses import replace
from typing import Final

from securefed._hyperparameters import check_number
from securefed.defenses._fixed_point import is_ring, wire_dtype, wire_size
from securefed.defenses._plan import MaskingPlan, Plan, TensorPlan
from securefed.defenses._secure_aggregation import verification
from securefed.defenses._secure_aggregation.chacha_stream import AES
from securefed.defenses._secure_aggregation.identities import SIGNATURE_BYTES, Identities
from securefed.defenses._secure_aggregation.mask_streams import LONGEST
from securefed.defenses._secure_aggregation.primitives import KEY_BYTES, TAG_BYTES
from securefed.defenses._secure_aggregation.session import CONFIRM, ENCRYPTED_SHARES_BYTES, masking_of
from securefed.errors import PlanError

_FEWEST_SUMMED = 3
"""Clients in a sum at least, by default, where there are as many."""


def check_summed(plan: Plan, fewest: int, stream: str) -> None:
    """Raise `PlanError` unless every tensor is quantised, `fewest` clients are planned, and masks are long enough."""
    for tensor in plan.tensors:
        if not tensor.step or not is_ring(tensor.ring):
            raise PlanError(f"tensor {tensor.name!r} is not quantised; put quantise() before secure_aggregation()")
    if plan.clients < fewest:
        raise PlanError(
            f"secure aggregation of {plan.clients} clients hides nothing from the server and one client; "
            f"plan for at least {fewest}"
        )
    nbytes = [sum(_wire_bytes(t) for t in plan.tensors if wire_dtype(t.ring).itemsize == width) for width in (4, 8)]
    if stream == AES and max(nbytes) > LONGEST:
        raise PlanError(
            f"tensors of one width take {max(nbytes)} bytes, and a mask of AES has {LONGEST} at most; give "
            "secure_aggregation(stream='chacha20'), whose masks have no end, or sum parts of the model apart"
        )


def _wire_bytes(tensor: TensorPlan) -> int:
    return wire_size(tensor.size, tensor.ring) * wire_dtype(tensor.ring).itemsize


def shares_of(clients: int, adversarial: float, dropouts: float) -> tuple[int, int]:
    """Return C and D, rounded up to whole clients.

    Args:
        clients: N.
        adversarial: C / N.
        dropouts: D / N.

    Raises:
        ConfigError: a share outside [0, 1).
    """
    for name, share in (("adversarial", adversarial), ("dropouts", dropouts)):
        check_number(f"{name}, a share of the clients,", share, 0, below=1)
    # Rounded first, so that 0.1 of 30 clients are 3, not 4: the product is 3.0000000000000004.
    corrupt, lost = (math.ceil(round(share * clients, 9)) for share in (adversarial, dropouts))
    return corrupt, lost


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
        survivor_change: b, fewest clients that all sums together may tell apart (`SumsSoFar`). Survivors that
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
    check_change(clients, threshold, survivor_change)
    opens = f"the server and any {threshold} of {clients} clients together; the server and all other survivors"
    masking = MaskingPlan(shares=threshold, survivor_change=survivor_change)
    planned = replace(plan, threshold=threshold, open_to=opens, masking=masking).assume(
        f"{threshold} colluding clients and the server open uploads; so do all survivors but one, from the sum."
    )
    return planned if threshold < clients else planned.assume("A round that one client leaves is void.")


def check_change(clients: int, threshold: int, survivor_change: int) -> None:
    """Raise `PlanError` where one client that is lost for good would make every further round void.

    The clients then leave out `survivor_change` - 1 others with it, and the threshold must be left.
    """
    if survivor_change > 1 and clients - threshold < survivor_change:
        raise PlanError(
            f"survivor_change={survivor_change} of {clients} clients: once one client is lost, {survivor_change} have "
            f"to be left out, which leaves fewer than the threshold {threshold}, so that every further round is void; "
            f"ask for {max(clients - threshold, 1)} at most, or invite more clients"
        )


def upload_bytes(plan: Plan) -> int:
    """Count the bytes that one client sends over all stages if all planned clients take part and none is lost.

    Field contents count, names and headers of messages do not.

    Args:
        plan: with its stages, and all of its tensors.
    """
    keys = 2 * KEY_BYTES
    signatures = 2 * SIGNATURE_BYTES if CONFIRM in plan.stages else 0  # of its keys and of the survivors
    degree = masking_of(plan).degree
    holders = degree + 1 if degree else plan.clients  # a client deals to itself too; degree 0: the complete graph
    shares = holders * ENCRYPTED_SHARES_BYTES + KEY_BYTES  # the seed's commitment, a hash, is as long as a key
    upload = sum(map(_wire_bytes, plan.tensors))
    # at `unmask` it reveals one share of 32 bytes for each dealer whose shares it holds, itself included
    messages = len(plan.stages) * TAG_BYTES
    if plan.verified:  # a dealer of the sum's key sends pieces and a commitment, and every client a tag of 16 bytes
        messages += plan.clients * verification.PIECE_BYTES + KEY_BYTES + 16
    return keys + shares + upload + holders * KEY_BYTES + messages + signatures


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
