"""The contract of an aggregation: how contributions are summed, in the clear, masked or encrypted.

`Aggregation` is what each of them does; the `Supports...` protocols after it are abilities that some have. The
runtime's servers and clients ask for an ability by `isinstance`, once, and work without it where it is missing. In all
methods `state` is the aggregation's own state of one exchange, at a client or at the server as the method's name says.
The words (exchange, stage, cohort, ...) are explained in `_base`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

from securefed._messages import Aggregate, ClientId, Message, PartyId
from securefed._tensors import Array, Tensors
from securefed.defenses._plan import Plan, Session, UploadContext
from securefed.errors import DataError

Outgoing = Mapping[PartyId, Tensors]
"""Message bodies to send, by receiver."""


class Aggregation(ABC):
    """A protocol that sums contributions. Its steps are pure: they take a state and return a new one, without I/O.

    `OpenExchange` calls the steps at the server, and `SumNode` at a client for each request. It packs states
    (`_persistence.packing.pack`), so that another process can go on from them. A client is asked for the stages of the
    plan in order; at the stage `upload` it is given its encoded contribution. The server's first requests come from
    `server_open`; the replies of each stage go to `server_step`, which returns the next requests or the aggregate. A
    missing reply is a dropout. On `MessageRefused` the caller drops its sender's reply and repeats with the same state.

    What an aggregation may offer beyond this stands at the end of this file. A commented example stands in
    `extension_templates/aggregation.py`, and `securefed.testing.parametrize_with_checks` tests yours.

    Attributes:
        name: the aggregation's name, used in messages and in the name of the defence.
        exact: whether it sums integers in a ring, so that the sum is exact; the chain then gets `quantise()`.
        hides: whether it hides single contributions from the server.
        upload: the name of the stage at which clients upload.
        beside: parties that take part beside the server and the clients.
    """

    name: ClassVar[str]
    exact: ClassVar[bool]
    hides: ClassVar[bool]
    upload: ClassVar[str] = "upload"
    beside: ClassVar[tuple[PartyId, ...]] = ()

    def __str__(self) -> str:
        """Return the name and the parameters, as plans and reports show them."""
        return link_text(self.name, self)

    @abstractmethod
    def plan(self, plan: Plan) -> Plan:
        """Return the plan with stages, bytes, threshold, what collusion opens, and assumptions.

        Raises:
            PlanError: the aggregation cannot keep its promise for this plan.
        """

    @abstractmethod
    def client_open(self, session: Session, client: ClientId) -> Any:
        """Return a client's protocol state for one exchange."""

    def client_step(self, state: Any, request: Message, encoded: Tensors | None) -> tuple[Any, Tensors]:
        """Answer a request, and return the new state and the body of the reply.

        At the stage `upload` it is `client_accept` and `client_upload` in one, for callers (tests) that have the
        contribution and no broadcast, hence empty fingerprints. The default is for clients without another stage.

        Args:
            state: the client's protocol state.
            request: the server's message.
            encoded: the contribution at the stage `upload`, else `None`.

        Raises:
            MessageRefused: the request is malformed, repeats or contradicts an earlier one.
        """
        accepted = self.client_accept(state, request, UploadContext(b"", b""))
        if encoded is None:
            raise DataError(f"the stage {self.upload!r} needs the encoded contribution")
        return self.client_upload(accepted, encoded)

    @abstractmethod
    def client_accept(self, state: Any, request: Message, context: UploadContext) -> Any:
        """Check the request for an upload, and return the state that waits for its contribution.

        Args:
            state: the client's protocol state.
            request: the server's message.
            context: what the server sent this client. An aggregation that hides and ignores it sums uploads made from
                different broadcasts, and one contribution in several sums: its plan should say so (`Plan.assume`).

        Raises:
            MessageRefused: as `client_step`. No refusal depends on a contribution.
        """

    @abstractmethod
    def client_upload(self, state: Any, encoded: Tensors | None) -> tuple[Any, Tensors]:
        """Return the new state and the body of the upload, from a state that accepted the request.

        Args:
            state: the client's protocol state.
            encoded: the contribution. `None` for a client that sits out, where `hides`: it uploads uniform residues,
                so that the sum opens to noise.

        Raises:
            RangeRefused: an encoded entry does not fit the plan; the caller then makes the client sit out.
        """

    @abstractmethod
    def server_open(self, session: Session) -> tuple[Any, str, Outgoing]:
        """Return the server's state, the first stage's name, and the first bodies."""

    @abstractmethod
    def server_step(self, state: Any, replies: Mapping[PartyId, Message]) -> tuple[Any, str, Outgoing] | Aggregate:
        """Return the next state, stage and bodies, or the sum of the survivors' encoded contributions.

        Raises:
            MessageRefused: a reply is malformed or does not verify.
            TooFewSurvivors: the round cannot be completed.
        """

    def helper(self, clients: int, frozen: bytes | None = None) -> Helper | None:
        """Make a further party that the protocol needs (a key holder), once for a run; `None` by default.

        Args:
            clients: number of clients planned for an exchange: the helper keeps to that plan's threshold.
            frozen: what `Helper.freeze` returned in another process.
        """
        return None


class Helper(Protocol):
    """A party beside the server and the clients, such as a key holder; `party` is its id."""

    party: PartyId

    def handle(self, request: Message) -> Tensors:
        """Return the body of the reply. Raises `MessageRefused` for a request that it must not answer."""

    def freeze(self) -> bytes:
        """Return its whole state, secrets included, for its own next process."""


@runtime_checkable
class SupportsPipelining(Protocol):
    """An aggregation in which each exchange can prepare the one that follows, so that that one has fewer stages.

    The prepared state is used at most once, by the very next exchange: a client erases it with its upload. It holds
    secrets, which wait in memory, or in the parties' files, until then.
    """

    def client_resume(self, session: Session, client: ClientId, last: Any) -> Any:
        """Return a client's state for one exchange, as `client_open`; `last` is its state of its last exchange."""

    def server_carry(self, state: Any, replies: Mapping[PartyId, Message]) -> Any:
        """Return what the replies that completed an exchange prepared for the next; `None` for nothing."""

    def server_resume(self, session: Session, last: Any) -> tuple[Any, str, Outgoing]:
        """Start an exchange, as `server_open`.

        Args:
            session: run, number, cohort and plan.
            last: what `server_carry` returned for the exchange before, or the bytes of its `to_bytes()`; or `None`.

        Returns:
            The server's state, the name of the first stage, and its requests: by client, the tensors of each by name.
        """


@runtime_checkable
class SupportsMemory(Protocol):
    """An aggregation whose clients must remember something from one exchange to the next, even if their process ends.

    For example, the first public key of a run. (Over whom a client's data were summed, its ledger remembers.)
    """

    def client_memory(self, state: Any) -> Array:
        """Return the memory that the client keeps after an exchange. It holds no secret of the exchange."""

    def client_remind(self, state: Any, memory: Array) -> Any:
        """Return the state of a new exchange, with the memory that the client kept put into it."""


@dataclass(frozen=True)
class Release:
    """A sum that a client is asked to help open.

    Attributes:
        survivors: ids of the clients in the sum, ascending.
        source: digest of what this client's contribution was computed from (`UploadContext.source`).
        members: public identities of the survivors, in their order; empty without identities.
        group: public identities of all clients of this client's group, which stays the same for its data; empty where
            clients have no groups, or no identities.
        sources: where a committee opens sums, the source of each survivor's contribution, as its client signed it; the
            party that consents is then a member of the committee.
    """

    survivors: tuple[ClientId, ...]
    source: bytes
    members: tuple[bytes, ...]
    group: tuple[bytes, ...] = ()
    sources: tuple[bytes, ...] = ()


@runtime_checkable
class SupportsReleases(Protocol):
    """An aggregation in which a client is told who is in the sum, and consents, before it is opened."""

    def client_releases(self, before: Any, after: Any) -> Release | None:
        """Return the sum that a step consents to; `None` where the step consents to none.

        Args:
            before: the client's state before the step.
            after: its state after it. A caller that objects drops this state and the reply.
        """

    def server_names(self, state: Any) -> tuple[tuple[ClientId, ...], ...]:
        """Return, for each sum that the server asks to open, the clients that it is over; empty before it asks."""


@runtime_checkable
class SupportsPrecomputation(Protocol):
    """An aggregation whose clients can do work for an upload before it is asked for, while they wait or train."""

    def client_prepare(self, state: Any) -> Any:
        """Return the client's state with that work done, as far as it can be foreseen; nothing else changes."""


@runtime_checkable
class SupportsAuthenticatedRefusals(Protocol):
    """An aggregation whose clients authenticate their refusals, once they share a secret with the server.

    A refusal is the message by which a client declines a request; a forged one would make it look lost.
    """

    def client_refusal(self, state: Any, body: Tensors, number: int) -> Tensors:
        """Return the body of a refusal in exchange `number`, with a tag where `state` has a secret for it."""

    def server_refusal(self, state: Any, refusal: Message) -> None:
        """Raise `MessageRefused` unless the refusal is its sender's own, where the server shares a secret with it."""


@runtime_checkable
class SupportsStreaming(Protocol):
    """An aggregation whose server adds each upload as it arrives and keeps none: memory of one upload, not of all."""

    def server_absorb(self, state: Any, reply: Message) -> Any:
        """Return the state with the upload `reply` added. `server_step` is then called without it to end the stage.

        Raises:
            MessageRefused: as `server_step`; the state from before goes on without this reply.
        """


@runtime_checkable
class SupportsVerification(Protocol):
    """An aggregation whose clients can check the sum that the server announces (`Plan.verified`)."""

    def client_keeps(self, state: Any) -> bytes:
        """Return the secret that this exchange's sum is checked with, after the upload; empty for nothing."""

    def announce(self, aggregate: Aggregate) -> Tensors:
        """Return what the server sends to the clients that it counted; empty if it sends nothing."""

    def client_check(self, kept: bytes, client: ClientId, plan: Plan, announced: Tensors) -> None:
        """Raise `SumRefused` unless the announced sum is that of the uploads of the clients it names.

        Args:
            kept: what `client_keeps` returned.
            client: this client's id.
            plan: the plan of that exchange.
            announced: what `announce` returned, as it arrived.
        """


def link_text(name: str, link: object) -> str:
    """Write a link of a chain as its name and, where it is a dataclass, its parameters."""
    parameters = [f"{f.name}={getattr(link, f.name)}" for f in fields(link)] if is_dataclass(link) else []
    return f"{name}({', '.join(parameters)})" if parameters else name
