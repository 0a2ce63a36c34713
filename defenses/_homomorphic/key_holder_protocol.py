"""Sum under additively homomorphic encryption, with a key holder apart from server and clients.

This is the part that `Paillier` and `CKKS` share. The key holder has the private key and sees no upload; the server has
the uploads and not the key:

    stage     server asks                               reply
    key       key holder: {}                            the public key
    upload    clients: the public key                   ciphertexts
    decrypt   key holder: sum of ciphertexts, survivors plaintexts of the sum

A subclass says how a key is read, how a contribution is encrypted, and how ciphertexts are added and opened. Survivors
are the clients whose uploads reached the server; a stage is one round of requests and replies. The docstrings of the
subclasses say what is promised, and what is not if server and key holder collude or the server deviates.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Generic, TypeVar

from securefed._messages import KEY_HOLDER, SERVER, Aggregate, ClientId, Message, PartyId
from securefed._persistence.packing import from_bytes, local, stored_as
from securefed._tensors import Array
from securefed.defenses._aggregation import Aggregation, Outgoing
from securefed.defenses._homomorphic.key_holder import KEY
from securefed.defenses._plan import Session
from securefed.errors import ConfigError, MalformedError, TooFewSurvivors

UPLOAD: Final = "upload"
CONTRIBUTE: Final = "contribute"
"""Stage of a client between the request for its upload and the upload; no message carries it."""


@dataclass(frozen=True)
class EncryptingClient:
    """A client's state in one exchange.

    States are stored between messages (`packing`). A field declared with `local()` is not stored, since the caller has
    it. A field declared with `stored_as(NAME)` is stored under that name, for the sake of files that exist already.

    Attributes:
        client: its id.
        session: run, exchange number, cohort and plan.
        next_stage: the stage it answers next; empty when it is done.
        pinned: its memory of the run's public key, which it trusted when it first saw it (`key_pinning`).
    """

    client: ClientId
    session: Session = local()
    next_stage: str = UPLOAD
    pinned: bytes = stored_as("known", default=b"", repr=False)


@dataclass(frozen=True)
class EncryptedSumServer:
    """The server's state in one exchange.

    Attributes:
        session: run, exchange number, cohort and plan.
        stage: the stage whose replies come next.
        key: the public key's fields as the key holder sent them.
        survivors: clients whose ciphertexts are in the sum that was sent to the key holder.
    """

    session: Session = local()
    stage: str = KEY
    key: Mapping[str, Array] = field(default_factory=dict)
    survivors: tuple[ClientId, ...] = ()


C = TypeVar("C", bound=EncryptingClient)


class KeyHolderAggregation(Aggregation, Generic[C]):
    """Steps of client and server that do not depend on the encryption scheme.

    The runtime calls the public methods, as `Aggregation` describes; `C` is the type of a client's state. Clients pin
    the first public key of a run and refuse another one, in a resumed process too (`SupportsMemory`).
    """

    @abstractmethod
    def _distribute(self, state: EncryptedSumServer, reply: Message) -> tuple[EncryptedSumServer, str, Outgoing]:
        """Check the key holder's public key, and ask the clients for their uploads under it."""

    @abstractmethod
    def _collect(
        self, state: EncryptedSumServer, replies: Mapping[PartyId, Message]
    ) -> tuple[EncryptedSumServer, str, Outgoing]:
        """Add the uploads, and ask the key holder to decrypt the sum."""

    @abstractmethod
    def _finish(self, state: EncryptedSumServer, reply: Message) -> Aggregate:
        """Read the sum from the key holder's answer."""

    def client_memory(self, state: C) -> Array:
        """Return what the client must remember: the public key that it pinned in this run."""
        return from_bytes(state.pinned)

    def client_remind(self, state: C, memory: Array) -> C:
        """Give a state the pinned key back, so that it refuses another one."""
        return replace(state, pinned=memory.tobytes())

    def server_open(self, session: Session) -> tuple[EncryptedSumServer, str, Outgoing]:
        """Start an exchange by asking the key holder for its public key.

        Raises:
            ConfigError: more clients are invited than the plan is for.
        """
        check_cohort(session)
        return EncryptedSumServer(session), KEY, {KEY_HOLDER: {}}

    def server_step(
        self, state: EncryptedSumServer, replies: Mapping[PartyId, Message]
    ) -> tuple[EncryptedSumServer, str, Outgoing] | Aggregate:
        """Take the replies of one stage, and return the next requests or the sum.

        Raises:
            MessageRefused: a reply is malformed, or its sender was not asked.
            TooFewSurvivors: too few clients uploaded, or the key holder did not answer.
        """
        session = state.session
        asked = session.cohort if state.stage == UPLOAD else (KEY_HOLDER,)
        check_replies(replies, session, state.stage, asked)
        if state.stage == UPLOAD:
            if len(replies) < session.plan.threshold:
                raise TooFewSurvivors(
                    f"{len(replies)} clients uploaded, the threshold is {session.plan.threshold}; nothing opened"
                )
            return self._collect(state, replies)
        if not replies:
            raise TooFewSurvivors(f"the key holder did not answer at stage {state.stage!r}; the round is void")
        reply = replies[KEY_HOLDER]
        return self._distribute(state, reply) if state.stage == KEY else self._finish(state, reply)


def check_cohort(session: Session) -> None:
    """Raise `ConfigError` if more clients are invited than the plan is for."""
    if len(session.cohort) > session.plan.clients:
        raise ConfigError(f"a cohort of {len(session.cohort)} exceeds the planned {session.plan.clients} clients")


def check_replies(replies: Mapping[PartyId, Message], session: Session, stage: str, asked: Collection[PartyId]) -> None:
    """Raise `MessageRefused` unless every reply is of a party that was asked, and of this exchange and stage."""
    for party, message in replies.items():
        if party not in asked:
            raise MalformedError(party, f"the server did not ask it at stage {stage!r}")
        message.check(run=session.run, round=session.round, stage=stage, sender=party, receiver=SERVER)


def threshold_of(threshold: int | None, clients: int) -> int:
    """Return `threshold`; for `None` the default: more than half, and 3 at least where there are as many.

    Of a sum over two, each of them could subtract its own part and would have the other's.
    """
    return threshold or max(2, min(3, clients), clients // 2 + 1)
