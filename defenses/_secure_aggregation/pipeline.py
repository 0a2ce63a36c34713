"""Shorten exchanges to two stages: the messages of one exchange also carry keys and shares of the next one.

An exchange is one secure sum. It has four stages (five with identities): `keys`, where clients advertise public keys;
`shares`, where they deal encrypted Shamir shares of their secrets; `upload`; [`confirm`;] and `unmask`, where survivors
reveal shares. `SecureAggregation(pipelined=True)` calls this module instead of `masking_client` and `masking_server`,
which it wraps ("four-stage" below). The states here are theirs with fields more, for the exchange that follows.

An exchange that precomputes the next carries, under `next/`, the messages of that one's stages `keys` and `shares`:

    upload   server -> client   next: the server's fresh key           client -> server   next: fresh keys
    unmask   server -> client   next: keys of those that uploaded      client -> server   next: encrypted shares

Let A be the exchange that carries these messages, and B the next one. The messages are the four-stage protocol's own,
made by that protocol's steps in a separate state, with tags (MACs) under the channel that they agree on.

If the share dealers are exactly the cohort of B, B begins with `upload`. In every other case (a client was lost, joined
or returned, the cohort was drawn anew, A was void, a party was restored) B begins with `keys`, and what was precomputed
is erased. A client erases its precomputed secrets with its upload.

While A runs, B has no number yet. So the separate state has the session of A: its keys, shares and tags are bound to
A's number, and `ahead=True` keeps its signed keys apart from those of A itself. From `upload` on both sides put in the
session of B. Masks derive from `share_dealers_digest`, a hash of that session, with its number, and of the older digest
of keys; so they are bound to B, in which they are used. Every exchange has fresh X25519 keys, seeds and polynomials
from the operating system, so that a secret that is revealed in one exchange opens nothing of another.

Not promised: that precomputed secrets are erased soon if no exchange follows. They are kept until the next exchange, in
the files of a server and of clients that keep their state on disk (`PrecomputedExchange.to_bytes`, `SumNode.freeze`).
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

from securefed._messages import SERVER, Aggregate, ClientId, Message
from securefed._persistence.packing import from_bytes, local, nest, pack, restore, stored_as, unnest
from securefed._tensors import Array, Tensors, decode, encode
from securefed.defenses._aggregation import Outgoing
from securefed.defenses._plan import Plan, Session, UploadContext
from securefed.defenses._secure_aggregation import masking_client as four_stage_client
from securefed.defenses._secure_aggregation import masking_server as four_stage_server
from securefed.defenses._secure_aggregation.identities import Identities
from securefed.defenses._secure_aggregation.masking_server import ChannelAcceptor, Replies
from securefed.defenses._secure_aggregation.primitives import (
    KEY_BYTES,
    TAG,
)
from securefed.defenses._secure_aggregation.session import (
    KEYS,
    SHARES,
    UNMASK,
    UPLOAD,
    MaskingClient,
    MaskingServer,
    masking_of,
)
from securefed.errors import DataError, MalformedError, MessageRefused, TooFewSurvivors

NEXT = "next"
_VERSION = 1
_CARRIED_STAGES = {UPLOAD: KEYS, UNMASK: SHARES}
"""By stage of this exchange, the stage of the next one whose message travels with it."""
_LASTING = {"session", "identities", "precomputed"}
"""Fields that a client's state keeps when it takes all others from the precomputed state (`PipelinedClient.begin`): the
exchange's own session and identities, and `precomputed`, the masks that `make_masks` computes later."""


def _header(plan: Plan) -> dict[str, int]:
    """Return the header of packed states: the format's version, and the numbers of a plan that keys depend on.

    These must be equal in the plans of two exchanges for one to precompute keys of the other.
    """
    numbers = {"version": _VERSION, "clients": plan.clients, "threshold": plan.threshold}
    masking = masking_of(plan)
    return {**numbers, "degree": masking.degree, "shares": masking.shares}


def _freeze(state: MaskingClient | MaskingServer) -> bytes:
    """Pack a state with its secrets into bytes."""
    return encode(pack(state), _header(state.session.plan))


def _written(state: MaskingClient | bytes) -> bytes:
    """Return what a file holds of a precomputed state."""
    return state if isinstance(state, bytes) else _freeze(state)


def _read(state: MaskingClient | bytes, template: MaskingClient) -> tuple[MaskingClient, Mapping[str, Any]]:
    """Return a precomputed state and its header; a packed one is laid over the template."""
    if not isinstance(state, bytes):
        return state, _header(state.session.plan)
    tensors, header = decode(state)
    return restore(template, tensors), header


def _split_message(message: Message) -> tuple[Message, Message]:
    """Split a message into that of this exchange and that of the next one, which has an empty body if none travels."""
    body = {name: value for name, value in message.body.items() if not name.startswith(f"{NEXT}/")}
    stage = _CARRIED_STAGES.get(message.stage, message.stage)  # other stages carry nothing: refused as it is
    return replace(message, body=body), replace(message, stage=stage, body=unnest(NEXT, message.body))


@dataclass(frozen=True, eq=False)
class PipelinedClient(MaskingClient):
    """A client's state, with that of the next exchange.

    Attributes:
        next_root: random bytes from which the secrets of the next exchange derive; moved into that exchange's state
            when this client accepts the request for an upload.
        precomputed_exchange: the precomputed state of this exchange, and from the upload on that of the next one:
            packed where it comes from a file, else as it is; empty where there is none.
        next_advert: keys for the next exchange that travel with the upload.

    Fields are stored under the names that they had when the first files were written.
    """

    next_root: bytes = stored_as("spare", default=b"", repr=False)
    precomputed_exchange: MaskingClient | bytes = stored_as("prepared", written=_written, default=b"", repr=False)
    next_advert: Mapping[str, Array] = stored_as("riding", default_factory=dict, repr=False)

    @classmethod
    def open(cls, session: Session, client: ClientId, identities: Identities | None = None) -> Self:
        """Start an exchange with fresh secrets and nothing precomputed; arguments as for `MaskingClient.open`."""
        fresh = super().open(session, client, identities)
        return replace(fresh, next_root=secrets.token_bytes(KEY_BYTES))

    @classmethod
    def resume(cls, session: Session, client: ClientId, last: PipelinedClient) -> PipelinedClient:
        """Start an exchange with what `last` precomputed for it, if this client went through all stages of `last`."""
        fresh = cls.open(session, client, last.identities)
        completed = last.stage == ""
        return replace(fresh, precomputed_exchange=last.precomputed_exchange) if completed else fresh

    def begin(self) -> PipelinedClient:
        """Go to the stage `upload` with the precomputed state, for an exchange that begins with `upload`.

        Of two plans that agree in the numbers of `_header`, one may use what was precomputed for the other.

        Raises:
            MalformedError: nothing was precomputed, or it was for another plan.
        """
        if not self.precomputed_exchange:
            raise MalformedError(SERVER, "it asks for an upload at once, and nothing was precomputed here")
        ready, header = _read(self.precomputed_exchange, _following_client(self))
        if header != _header(self.session.plan) or ready.stage != UPLOAD:
            raise MalformedError(SERVER, "what was precomputed here is for another plan")
        values = {item.name: getattr(ready, item.name) for item in fields(ready) if item.name not in _LASTING}
        return replace(self, **values, precomputed_exchange=b"")


def client_step(state: PipelinedClient, request: Message, encoded: Tensors | None) -> tuple[PipelinedClient, Tensors]:
    """Answer one request, and the message of the next exchange in it; arguments as for `masking_client.client_step`.

    The reply to a carried message travels in this reply under `next/`. A request for `keys` says that the server starts
    without what was precomputed, which is then erased; a request for `unmask` without a carried message says that no
    exchange is prepared.

    Raises:
        MessageRefused, RangeRefused, DataError: as `masking_client.client_step`.
    """
    if request.stage == UPLOAD:
        if encoded is None:
            raise DataError("the stage 'upload' needs the encoded contribution")
        return client_upload(client_accept(state, request, UploadContext(state.session.context, b"")), encoded)
    if request.stage != UNMASK:
        if request.stage == KEYS:  # the server starts anew: what the last exchange precomputed is not used
            state = replace(state, precomputed_exchange=b"")
        return four_stage_client.client_step(state, request, encoded)
    current, carried = _split_message(request)
    new, reply = four_stage_client.client_step(state, current, None)
    if not carried.body:
        return replace(new, precomputed_exchange=b""), reply
    following, _ = _read(state.precomputed_exchange, _following_client(state))
    following, carried_reply = four_stage_client.client_step(following, carried, None)
    return replace(new, precomputed_exchange=following), {**reply, **nest(NEXT, carried_reply)}


def client_accept(state: PipelinedClient, request: Message, context: UploadContext) -> PipelinedClient:
    """Accept as `masking_client.client_accept`, and make the keys of the next exchange, sent with the upload.

    Raises:
        MessageRefused: as there; or the exchange begins with `upload`, and nothing was precomputed for this plan.
    """
    if state.stage == KEYS:  # nothing was asked of this client yet: the exchange begins with `upload`
        state = state.begin()
    current, carried = _split_message(request)
    new = four_stage_client.client_accept(state, current, context)
    following, carried_reply = four_stage_client.client_step(_following_client(state), carried, None)
    return replace(new, next_root=b"", precomputed_exchange=following, next_advert=carried_reply)


def client_upload(state: PipelinedClient, encoded: Tensors | None) -> tuple[PipelinedClient, Tensors]:
    """Upload as `masking_client.client_upload`, with the keys of the next exchange."""
    new, reply = four_stage_client.client_upload(state, encoded)
    return replace(new, next_advert={}), {**reply, **nest(NEXT, state.next_advert)}


def _following_client(state: PipelinedClient) -> MaskingClient:
    """Make the first state of the exchange after this one."""
    return MaskingClient(state.client, KEYS, state.next_root, state.session, identities=state.identities, ahead=True)


@dataclass(frozen=True, eq=False)
class PipelinedServer(MaskingServer):
    """The server's state, with that of the next exchange.

    Attributes:
        next_exchange: the state of the next exchange, in its first two stages.
        next_requests: that exchange's requests for shares, until this one unmasks.
        next_adverts: keys for that exchange that came with the uploads so far, as encoded messages.
        acceptor: accepts that exchange's channels.
        accepted_channels: secrets of the channels accepted so far.
    """

    next_exchange: bytes = stored_as("following", default=b"", repr=False)
    next_requests: Mapping[ClientId, Mapping[str, Array]] = stored_as("waiting", default_factory=dict, repr=False)
    next_adverts: Mapping[ClientId, bytes] = field(default_factory=dict, repr=False)
    acceptor: ChannelAcceptor | None = local(default=None, repr=False)
    accepted_channels: Mapping[ClientId, bytes] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, eq=False)
class PrecomputedExchange:
    """The server's state between two exchanges, so that the second begins with `upload`.

    Attributes:
        run: identifier of the run.
        share_dealers: the clients that dealt shares for it.
        state: the server's packed state at `upload`.
        bodies: each client's request.
    """

    run: str
    share_dealers: tuple[ClientId, ...]
    state: bytes = field(repr=False)
    bodies: Mapping[ClientId, Tensors] = field(repr=False)

    def to_bytes(self) -> bytes:
        """Write it to bytes, secrets included. Inverse: `from_bytes`."""
        tensors = {f"{client}/{name}": value for client, own in self.bodies.items() for name, value in own.items()}
        header = {"version": _VERSION, "run": self.run, "dealers": list(self.share_dealers)}
        return encode({"state": from_bytes(self.state), **tensors}, header)

    @classmethod
    def from_bytes(cls, data: bytes) -> PrecomputedExchange:
        """Read what `to_bytes` wrote.

        Raises:
            KeyError, DataError: a field is missing.
        """
        tensors, header = decode(data)
        dealers = tuple(header["dealers"])
        bodies = {client: unnest(str(client), tensors) for client in dealers}
        return cls(header["run"], dealers, tensors["state"].tobytes(), bodies)


def server_open(session: Session, identities: Identities | None = None) -> tuple[PipelinedServer, str, Outgoing]:
    """Start an exchange that begins with `keys`."""
    return _with_type(four_stage_server.server_open(session, identities))


def server_resume(
    session: Session, last: PrecomputedExchange | bytes | None, identities: Identities | None = None
) -> tuple[PipelinedServer, str, Outgoing]:
    """Start an exchange: with `upload` where `last` was precomputed for just this cohort and plan, else with `keys`.

    Args:
        session: run, number, cohort and plan.
        last: what the exchange before precomputed, or the bytes of it (`PrecomputedExchange.to_bytes`). `SumRun.reopen`
            gives it once. An older one does no harm: clients have erased or replaced their part of it, so that
            its tags do not verify, and they refuse.
        identities: public identities of the clients, where they sign.
    """
    opened = server_open(session, identities)
    if isinstance(last, bytes):
        last = PrecomputedExchange.from_bytes(last)
    if last is None or (last.run, last.share_dealers) != (session.run, session.cohort):
        return opened
    tensors, header = decode(last.state)
    if header != _header(session.plan):
        return opened
    # the template: all but session and identities is replaced by what was packed
    state = restore(MaskingServer(KEYS, b"", (), session, identities=identities), tensors)
    return _ask_keys(_with_type(state.requests(last.bodies)))


def server_step(state: PipelinedServer, replies: Replies) -> tuple[PipelinedServer, str, Outgoing] | Aggregate:
    """Take the replies of one stage, and the messages of the next exchange in them; as `masking_server.server_step`.

    What replies to `unmask` carry is read by `server_carry`.
    """
    if state.stage == UPLOAD:
        for client in sorted(replies):
            state = absorb(state, client, replies[client])
        return _close_uploads(state)
    if state.stage == UNMASK:
        step = four_stage_server.server_step(state, {c: _split_message(reply)[0] for c, reply in replies.items()})
        assert isinstance(step, Aggregate)
        return step
    step = four_stage_server.server_step(state, replies)
    assert not isinstance(step, Aggregate)
    return _ask_keys(_with_type(step)) if step[1] == UPLOAD else _ask_shares(_with_type(step))


def _close_uploads(state: PipelinedServer) -> tuple[PipelinedServer, str, Outgoing]:
    """Leave the stage `upload`, and give the carried keys to the next exchange's state.

    That state is then at its stage `shares`; its requests wait for this exchange's `unmask`.
    """
    step = four_stage_server.server_step(state, {})
    assert not isinstance(step, Aggregate)
    new, stage, outgoing = _with_type(step)
    next_state = replace(_following(state), channels=state.accepted_channels)
    kept = state.next_adverts.items()
    adverts = {client: Message.decode(data, claimed_sender=client, stored=True) for client, data in kept}
    next_step = four_stage_server.server_step(next_state, adverts)
    assert not isinstance(next_step, Aggregate)
    following, _, bodies = next_step
    requests = {client: dict(body) for client, body in bodies.items()}
    new = replace(new, next_exchange=_freeze(following), next_requests=requests)
    return _ask_shares((replace(new, next_adverts={}, acceptor=None, accepted_channels={}), stage, outgoing))


def absorb(state: PipelinedServer, client: ClientId, reply: Message) -> PipelinedServer:
    """Add one upload to the running sum; check and keep the keys for the next exchange that came with it.

    Raises:
        MessageRefused: the upload or the keys are malformed or do not verify.
    """
    current, carried = _split_message(reply)
    new = four_stage_server.absorb(state, client, current)
    assert isinstance(new, PipelinedServer)
    acceptor = state.acceptor or ChannelAcceptor.of(_following(state))
    accepted, adverts = {client: acceptor.accept(carried)}, {client: carried.encode()}
    new = replace(new, acceptor=acceptor, accepted_channels={**state.accepted_channels, **accepted})
    return replace(new, next_adverts={**state.next_adverts, **adverts})


def server_carry(state: PipelinedServer, replies: Replies) -> PrecomputedExchange | None:
    """Return what the last replies of an exchange precomputed; `None` where they do not complete it.

    Args:
        state: the server's state at `unmask`.
        replies: to the requests of that stage; they carry the encrypted shares of the next exchange.
    """
    carried = {client: _split_message(reply)[1] for client, reply in replies.items()}
    try:
        next_step = four_stage_server.server_step(_following(state), carried)
    except (MessageRefused, TooFewSurvivors):
        return None
    assert not isinstance(next_step, Aggregate)
    following, _, bodies = next_step
    # without the tags, which are of this exchange's number: `server_resume` makes those of the next one
    unsealed = {c: {name: value for name, value in body.items() if name != TAG} for c, body in bodies.items()}
    return PrecomputedExchange(state.session.run, following.share_dealers, _freeze(following), unsealed)


def _following(state: PipelinedServer) -> MaskingServer:
    """Restore the server's state of the exchange after this one."""
    template = MaskingServer(KEYS, b"", (), state.session, identities=state.identities)
    return restore(template, decode(state.next_exchange)[0])


def _ask_keys(step: tuple[PipelinedServer, str, Outgoing]) -> tuple[PipelinedServer, str, Outgoing]:
    """Add a fresh key of the server, for the next exchange, to the requests for uploads."""
    state, stage, outgoing = step
    following, _, bodies = four_stage_server.server_open(state.session, state.identities, ahead=True)
    return replace(state, next_exchange=_freeze(following)), stage, _with_next(outgoing, bodies)


def _ask_shares(step: tuple[PipelinedServer, str, Outgoing]) -> tuple[PipelinedServer, str, Outgoing]:
    """Add the next exchange's advertised keys to the requests of `unmask`; leave those of other stages as they are."""
    state, stage, outgoing = step
    if stage != UNMASK:
        return step
    return replace(state, next_requests={}), stage, _with_next(outgoing, state.next_requests)


def _with_next(outgoing: Outgoing, bodies: Outgoing) -> Outgoing:
    """Add the next exchange's request to each client's request, under `next/`."""
    return {client: {**body, **nest(NEXT, bodies[client])} for client, body in outgoing.items()}


def _with_type(step: tuple[MaskingServer, str, Outgoing]) -> tuple[PipelinedServer, str, Outgoing]:
    """Turn a step of the four-stage server into one of the pipelined server, with nothing of the next exchange yet."""
    state, stage, outgoing = step
    if isinstance(state, PipelinedServer):
        return state, stage, outgoing
    values: dict[str, Any] = {item.name: getattr(state, item.name) for item in fields(state)}
    return PipelinedServer(**values), stage, outgoing
