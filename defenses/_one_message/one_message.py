"""Sum contributions of which each client sends one message and is gone; a committee opens the sum. Experimental.

The idea is that of Willow (Bell-Clark, Gascon, Li, Raykova, Schoppmann, CRYPTO 2025) and of OPA (Karthikeyan,
Polychroniadou, CRYPTO 2025): a client's contribution is encrypted under a fresh key of its own, with an encryption
whose sums are encryptions under the sum of the keys. The key travels in the same message, in shares for a committee,
which adds up its shares and reveals the sum of the keys alone. The protocol here is not theirs, and has no proof of its
own.

This module holds the public class. Of an exchange (one sum) the runtime calls the `client_` and `server_` methods.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from securefed._hyperparameters import check_integer
from securefed._messages import Aggregate, ClientId, Message, PartyId
from securefed._tensors import Array, Tensors
from securefed.defenses._aggregation import Aggregation, Outgoing, Release
from securefed.defenses._one_message import client as clients
from securefed.defenses._one_message import planning, server
from securefed.defenses._one_message.committee import Committee
from securefed.defenses._one_message.member import member_open, member_step
from securefed.defenses._one_message.recount import recounted
from securefed.defenses._one_message.session import (
    CONFIRM,
    OPEN,
    SIGNATURE,
    UPLOAD,
    OneMessageClient,
    OneMessageServer,
    Parties,
    refusal_statement,
    signed,
)
from securefed.defenses._plan import Plan, Session, UploadContext
from securefed.defenses._secure_aggregation.identities import SIGNATURE_BYTES, Identities
from securefed.errors import ConfigError, ContradictionError, DataError, PlanError


@dataclass(frozen=True)
class OneMessage(Aggregation):
    """Sums contributions so that each client sends one message; the server learns the sum and who took part.

    Attributes:
        committee: the members and the numbers of corrupt and lost ones that it stands.
        identities: the clients' Ed25519 keys, given to every party before the run.
        threshold: fewest uploads of a set that members sign; `None` for more than half of the planned clients.
        survivor_change: fewest clients that the sums that a member knows tell apart, as of `secure_aggregation`.
        keep_uploads: whether the server keeps all uploads until the sum is opened, so that it can leave out a client
            whose shares do not fit. Else it keeps their sum, and such a client makes the round void.

    Guarantees, against a server that deviates in any way with up to c members of the committee and any clients, where
    two clients in a sum at least are honest (`parameters` says what they rest on):
        - It obtains at most one sum of an exchange, over `threshold` clients or more, from which it can subtract what
          the colluding ones sent; and the sums of those clients' keys and errors, which hide the uploads all the same.
        - It cannot replace a member's key by its own, and clients that were told different things are not summed.
        - A contribution to one broadcast enters sums over one set of survivors only: members remember each sum that
          they signed, and refuse the source of a contribution, which its client signed, with other survivors.
        - What members and clients send is signed: altered, replayed or swapped, it is refused by name.
        - With up to c wrong shares the sum is exact for those in `survivors`, and the members that sent them are named;
          an honest member is not.
    Not promised:
        - Anything against c + 1 members, who open every upload of their exchanges.
        - That the server uses the sum, or announces it truly.
        - That a client whose shares do not fit is found out: it, or a member that says so, is at fault.
        - Review: the protocol is experimental.
    """

    committee: Committee
    identities: Identities
    threshold: int | None = None
    survivor_change: int = 1
    keep_uploads: bool = False
    name: ClassVar[str] = "one_message"
    exact: ClassVar[bool] = True
    hides: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not isinstance(self.identities, Identities):
            raise ConfigError(
                f"one_message() needs the clients' identities: give identities=Identities(...); got {self.identities!r}"
            )
        if self.threshold is not None:
            check_integer("threshold", self.threshold, planning.FEWEST_UPLOADS, note="(a number of uploads)")
        check_integer("survivor_change", self.survivor_change, 1, note="(a number of clients)")
        if type(self.keep_uploads) is not bool:
            raise ConfigError(f"keep_uploads must be True or False; got {self.keep_uploads!r}")
        for member in self.committee.members:
            self.identities.known(member)

    def __str__(self) -> str:
        own = self.committee
        words = [f"committee of {len(own.members)}", f"corrupt={own.corrupt}", f"lost={own.lost}"]
        words += [] if self.threshold is None else [f"threshold={self.threshold}"]
        words += [f"survivor_change={self.survivor_change}"] if self.survivor_change > 1 else []
        words += ["keep_uploads"] if self.keep_uploads else []
        return f"{self.name}({', '.join(words)})"

    @property
    def parties(self) -> Parties:
        """The committee and the identities."""
        return Parties(self.committee, self.identities)

    def plan(self, plan: Plan) -> Plan:
        """Add stages, bytes, threshold, what collusion opens, and assumptions to the plan.

        Raises:
            PlanError: as `planning.planned`, or fewer clients than the committee has members.
        """
        if plan.clients < len(self.committee.members):
            raise PlanError(
                f"{len(self.committee.members)} members of the committee are clients, and {plan.clients} clients are "
                "planned for a sum; plan for all members at least"
            )
        return planning.planned(
            plan, self.committee, self.identities, self.threshold, survivor_change=self.survivor_change
        )

    def client_open(self, session: Session, client: ClientId) -> OneMessageClient:
        """Start an exchange at a client, and at the member of the committee that it may be.

        Raises:
            ConfigError: it is not invited, or too few members are.
            PlanError: the plan is of another aggregation.
        """
        parties = self.parties
        parties.check(session)
        if client not in session.cohort:
            raise ConfigError(f"client {client} is not in the cohort {session.cohort}")
        member = member_open(client) if client in self.committee.members else None
        return OneMessageClient(client, session, parties, member=member)

    def client_step(
        self, state: OneMessageClient, request: Message, encoded: Tensors | None
    ) -> tuple[OneMessageClient, Tensors]:
        """Answer a request: the one for the upload, or one to a member of the committee.

        Raises:
            MessageRefused: the request is not the next one, does not verify, or asks for a second set.
            RangeRefused: an encoded entry does not fit its ring.
        """
        if request.stage == UPLOAD:
            if encoded is None:
                raise DataError(f"the stage {UPLOAD!r} needs the encoded contribution")
            return self.client_upload(
                self.client_accept(state, request, UploadContext(state.session.context, b"")), encoded
            )
        if state.member is None:
            raise ContradictionError(request.sender, f"asks for stage {request.stage!r} of the committee, to no member")
        member, body = member_step(state.member, state.session, state.parties, request, state.exchange)
        return replace(state, member=member), body

    def client_accept(self, state: OneMessageClient, request: Message, context: UploadContext) -> OneMessageClient:
        """Check the request for an upload; the client may then compute its contribution.

        Raises:
            MessageRefused: it does not verify, or is of another exchange than a member was told at `check`.
        """
        accepted = clients.accept(state, request, context)
        if state.member is not None and state.member.exchange not in (b"", accepted.exchange):
            raise ContradictionError(request.sender, "it told this member of the committee of another exchange before")
        return accepted

    def client_upload(
        self, state: OneMessageClient, encoded: Tensors | None
    ) -> tuple[OneMessageClient, dict[str, Array]]:
        """Encrypt and send the contribution; for a client that sits out (`None`) uniform elements."""
        return clients.upload(state, encoded)

    def client_releases(self, before: OneMessageClient, after: OneMessageClient) -> Release | None:
        """Return the sum that a member consents to as it signs a set, with the source of every contribution in it."""
        was, member = before.member, after.member
        if member is None or was is None or was.survivors or not member.survivors:
            return None
        known = self.identities.public
        rows = [member.clients.index(client) for client in member.survivors]
        sources = tuple(member.sources[row].tobytes() for row in rows)
        return Release(member.survivors, b"", tuple(known[client] for client in member.survivors), sources=sources)

    def client_refusal(self, state: OneMessageClient, body: Tensors, number: int) -> Tensors:
        """Return a refusal's body, signed where it is of this exchange."""
        if state.session.round != number:
            return body
        statement = refusal_statement(self.parties.digest(state.session), state.client, body)
        return {**body, SIGNATURE: signed(self.identities, state.client, statement)}

    def server_open(self, session: Session) -> tuple[OneMessageServer, str, Outgoing]:
        """Start an exchange at the server by asking the committee for fresh keys."""
        return server.server_open(session, self.parties, keep=self.keep_uploads)

    def server_step(
        self, state: OneMessageServer, replies: Mapping[PartyId, Message]
    ) -> tuple[OneMessageServer, str, Outgoing] | Aggregate:
        """Take the replies of one stage, and return the next requests or the sum; see `server.server_step`."""
        return server.server_step(state, replies)

    def server_absorb(self, state: OneMessageServer, reply: Message) -> OneMessageServer:
        """Add one upload to the running sum; `MessageRefused` for a bad one."""
        return server.absorb(state, reply.sender, reply)

    def server_names(self, state: OneMessageServer) -> tuple[tuple[ClientId, ...], ...]:
        """Return the one set of uploads that members are asked to sign; empty before they are."""
        return (state.survivors,) if state.stage in (CONFIRM, OPEN) else ()

    def server_refusal(self, state: OneMessageServer, refusal: Message) -> None:
        """Raise `MessageRefused` unless a refusal is signed by its sender."""
        statement = refusal_statement(self.parties.digest(state.session), refusal.sender, refusal.body)
        signature = refusal.take(SIGNATURE, shape=(SIGNATURE_BYTES,)).tobytes()
        self.identities.verify(refusal.sender, statement, signature, "its refusal")

    def recount(self, session: Session, replies: Iterable[Message]) -> Aggregate:
        """Add up the signed uploads of an exchange again, as a third party; see `recount`.

        Args:
            session: the exchange, with its context.
            replies: what members and clients sent in it.

        Raises:
            MessageRefused: a message is not signed by its sender for this exchange.
            TooFewSurvivors: too few messages to open a sum.
        """
        return recounted(session, self.parties, replies)


def one_message(
    *,
    committee: Sequence[ClientId],
    identities: Identities,
    corrupt: int | None = None,
    lost: int = 0,
    threshold: int | None = None,
    survivor_change: int = 1,
    keep_uploads: bool = False,
) -> OneMessage:
    """Sum contributions of which each client sends one message; a committee opens the sum. Experimental.

    Args:
        committee: ids of the clients that are its members, ascending; every exchange invites them.
        identities: the clients' identities, all of which every party knows.
        corrupt: members that may collude with the server or lie; `None` for as many as the others allow.
        lost: members that may be lost in an exchange.
        threshold: fewest uploads of a sum; `None` for more than half of the planned clients.
        survivor_change: fewest clients that the sums that a member knows tell apart.
        keep_uploads: whether the server keeps all uploads, so that it can leave out a client whose shares do not fit.

    Raises:
        ConfigError: numbers that no committee of this size meets, or a member without an identity.
    """
    return OneMessage(Committee.of(committee, corrupt, lost), identities, threshold, survivor_change, keep_uploads)
