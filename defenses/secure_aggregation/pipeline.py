"""Exchanges of two stages: the keys and share bundles of the next exchange ride on the messages of this one.

An exchange that prepares the next carries, under `next/`, the messages of that one's stages `keys` and `shares`:

    upload   server -> client   next: the server's fresh key           client -> server   next: fresh keys
    unmask   server -> client   next: roster of those that uploaded    client -> server   next: bundles, commitment

They are the four-stage protocol's own messages, made by its own steps in a state of their own, with tags under the
channel that they agree on. If all of the next cohort dealt, and nobody else did, that exchange begins with `upload`;
in every other case (a client was lost, joined or returned, the cohort was drawn anew, the last exchange was void, a
party was restored) it begins with `keys`, and what was prepared is erased.
Every exchange has fresh X25519 keys, seeds and polynomials from the operating system, so what shares open serves one
exchange only: no secret of one is computed from another's. Masks are bound to the exchange they are used in
(`sharers_digest`), and a client's prepared secrets are gone with its upload.
Not promised: that prepared secrets are short-lived where no exchange follows. They are kept until the next one.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from securefed.defenses.base import Outgoing, Plan, Session, UploadContext
from securefed.defenses.secure_aggregation import client as four_stage_client
from securefed.defenses.secure_aggregation import server as four_stage_server
from securefed.defenses.secure_aggregation.channel import TAG
from securefed.defenses.secure_aggregation.client import MaskingClient
from securefed.defenses.secure_aggregation.identities import Identities
from securefed.defenses.secure_aggregation.primitives import KEY_BYTES
from securefed.defenses.secure_aggregation.server import Greeter, MaskingServer, Replies
from securefed.defenses.secure_aggregation.session import KEYS, SHARES, UNMASK, UPLOAD, masking_of
from securefed.errors import DataError, MalformedError, MessageRefused, TooFewSurvivors
from securefed.messages import SERVER, Aggregate, ClientId, Message
from securefed.state import local, nest, pack, restore, unnest
from securefed.tensors import Array, Tensors, decode, encode

NEXT = "next"
_VERSION = 1
_RIDES = {UPLOAD: KEYS, UNMASK: SHARES}
"""Which stage of the next exchange rides on which of this one."""
_LASTING = {"session", "identities", "released", "previous", "precomputed"}
"""What a client's state does not take from the one that was prepared."""


def _common(plan: Plan) -> dict[str, int]:
    """What the plans of two exchanges must share for one to prepare the other."""
    masking = masking_of(plan)
    return {"clients": plan.clients, "threshold": plan.threshold, "degree": masking.degree, "shares": masking.shares}


def _freeze(state: MaskingClient | MaskingServer) -> bytes:
    return encode(pack(state), {"version": _VERSION, **_common(state.session.plan)})


def _ridden(message: Message) -> tuple[Message, Message]:
    """The message of this exchange, and the one of the next that rides on it."""
    own = {name: value for name, value in message.body.items() if not name.startswith(f"{NEXT}/")}
    stage = _RIDES.get(message.stage, message.stage)  # nothing rides elsewhere: such a message is refused as it is
    rider = replace(message, stage=stage, body=unnest(NEXT, message.body))
    return replace(message, body=own), rider


@dataclass(frozen=True, eq=False)
class PipelinedClient(MaskingClient):
    """A client's state.

    Attributes:
        spare: what the secrets of the next exchange derive from.
        prepared: the state prepared for this exchange, then (from the upload on) that for the next one.
        riding: what goes with the upload, for the next exchange.
    """

    spare: bytes = field(default=b"", repr=False)
    prepared: bytes = field(default=b"", repr=False)
    riding: Mapping[str, Array] = field(default_factory=dict, repr=False)

    @classmethod
    def open(
        cls, session: Session, client: ClientId, identities: Identities | None = None, last: MaskingClient | None = None
    ) -> PipelinedClient:
        """A fresh state with fresh secrets, and nothing prepared."""
        fresh = _pipelined(super().open(session, client, identities, last))
        return replace(fresh, spare=secrets.token_bytes(KEY_BYTES))

    @classmethod
    def resume(cls, session: Session, client: ClientId, last: PipelinedClient) -> PipelinedClient:
        """A fresh state, and what `last` prepared for it if that exchange came to its end here."""
        fresh = cls.open(session, client, last.identities, last)
        return replace(fresh, prepared=last.prepared) if not last.stage else fresh

    def begin(self) -> PipelinedClient:
        """This state at the stage `upload`, with what was prepared for it.

        Raises:
            MalformedError: nothing was, or under another plan.
        """
        template = MaskingClient.open(self.session, self.client, self.identities, self)
        if not self.prepared:
            raise MalformedError(SERVER, "it asks for an upload at once, and nothing was prepared here")
        tensors, header = decode(self.prepared)
        ready = restore(template, tensors)
        if header != {"version": _VERSION, **_common(self.session.plan)} or ready.stage != UPLOAD:
            raise MalformedError(SERVER, "what was prepared here is for another plan")
        values = {item.name: getattr(ready, item.name) for item in fields(ready) if item.name not in _LASTING}
        return replace(self, **values, prepared=b"")


def client_step(state: PipelinedClient, request: Message, encoded: Tensors | None) -> tuple[PipelinedClient, Tensors]:
    """As `client.client_step`, and the next exchange's step that rides on it."""
    if request.stage == UPLOAD:
        if encoded is None:
            raise DataError("the stage 'upload' needs the encoded contribution")
        context = four_stage_client.context_of(state, encoded)
        return client_upload(client_accept(state, request, context), encoded)
    if request.stage != UNMASK:
        if request.stage == KEYS:
            state = replace(state, prepared=b"")  # an opening: what the last exchange prepared is not used
        new, reply = four_stage_client.client_step(state, request, encoded)
        return _pipelined(new), reply
    own, rider = _ridden(request)
    new, reply = four_stage_client.client_step(state, own, None)
    if not rider.body:
        return replace(_pipelined(new), prepared=b""), reply
    following = restore(_following_client(state), decode(state.prepared)[0])
    following, riding = four_stage_client.client_step(following, rider, None)
    return replace(_pipelined(new), prepared=_freeze(following)), {**reply, **nest(NEXT, riding)}


def client_accept(state: PipelinedClient, request: Message, context: UploadContext) -> PipelinedClient:
    """As `client.client_accept`; the keys of the next exchange are made here, and sent with the upload."""
    if state.stage == KEYS:
        state = state.begin()
    own, rider = _ridden(request)
    new = _pipelined(four_stage_client.client_accept(state, own, context))
    following, riding = four_stage_client.client_step(_following_client(state), rider, None)
    return replace(new, spare=b"", prepared=_freeze(following), riding=riding)


def client_upload(state: PipelinedClient, encoded: Tensors | None) -> tuple[PipelinedClient, Tensors]:
    """As `client.client_upload`, with the keys of the next exchange."""
    new, reply = four_stage_client.client_upload(state, encoded)
    return replace(_pipelined(new), riding={}), {**reply, **nest(NEXT, state.riding)}


def _following_client(state: PipelinedClient) -> MaskingClient:
    """The state of the exchange after this one, before anything is known of it."""
    return MaskingClient(state.client, KEYS, state.spare, state.session, identities=state.identities, ahead=True)


def _pipelined(state: MaskingClient) -> PipelinedClient:
    assert isinstance(state, PipelinedClient)  # `replace` keeps the type
    return state


@dataclass(frozen=True, eq=False)
class PipelinedServer(MaskingServer):
    """The server's state.

    Attributes:
        following: the state of the next exchange, in its first two stages.
        waiting: that exchange's requests for shares, until this one unmasks.
        riders: the adverts for that exchange that came with the uploads so far.
        greeter, admitted: what opens its channels with those clients, and their secrets.
    """

    following: bytes = field(default=b"", repr=False)
    waiting: Mapping[ClientId, Mapping[str, Array]] = field(default_factory=dict, repr=False)
    riders: Mapping[ClientId, Message] = local(default_factory=dict, repr=False)
    greeter: Greeter | None = local(default=None, repr=False)
    admitted: Mapping[ClientId, bytes] = local(default_factory=dict, repr=False)


@dataclass(frozen=True, eq=False)
class Prepared:
    """What the server holds between two exchanges: its state at `upload`, and each client's request."""

    run: str
    sharers: tuple[ClientId, ...]
    state: bytes = field(repr=False)
    bodies: Mapping[ClientId, Tensors] = field(repr=False)


def server_open(session: Session, identities: Identities | None = None) -> tuple[PipelinedServer, str, Outgoing]:
    """An exchange that begins with `keys`."""
    return _with_type(four_stage_server.server_open(session, identities))


def server_resume(
    session: Session, last: Prepared | None, identities: Identities | None = None
) -> tuple[PipelinedServer, str, Outgoing]:
    """An exchange that begins with `upload` where `last` prepared it for just this cohort, else with `keys`."""
    opened = server_open(session, identities)
    if last is None or (last.run, last.sharers) != (session.run, session.cohort):
        return opened
    tensors, header = decode(last.state)
    if header != {"version": _VERSION, **_common(session.plan)}:
        return opened
    state = restore(MaskingServer(KEYS, b"", (), session, identities=identities), tensors)
    return _ask_keys(_with_type(state.requests(last.bodies)))


def server_step(state: PipelinedServer, replies: Replies) -> tuple[PipelinedServer, str, Outgoing] | Aggregate:
    """As `server.server_step`, and the next exchange's step that rides on it."""
    if state.stage not in _RIDES:
        step = four_stage_server.server_step(state, replies)
        assert not isinstance(step, Aggregate)
        return _ask_keys(_with_type(step)) if step[1] == UPLOAD else _ask_shares(_with_type(step))
    if state.stage == UNMASK:
        own = {client: _ridden(reply)[0] for client, reply in replies.items()}
        step = four_stage_server.server_step(state, own)
        assert isinstance(step, Aggregate)
        return step
    for client in sorted(replies):
        state = absorb(state, client, replies[client])
    step = four_stage_server.server_step(state, {})
    assert not isinstance(step, Aggregate)
    new, stage, outgoing = _with_type(step)
    riding = four_stage_server.server_step(replace(_following(state), channels=state.admitted), state.riders)
    assert not isinstance(riding, Aggregate)
    following, _, bodies = riding
    waiting = {client: dict(body) for client, body in bodies.items() if client >= 0}
    new = replace(new, following=_freeze(following), waiting=waiting, riders={}, greeter=None, admitted={})
    return _ask_shares((new, stage, outgoing))


def absorb(state: PipelinedServer, client: ClientId, reply: Message) -> PipelinedServer:
    """As `server.absorb`; the advert that rides on the upload is checked at once, and kept."""
    own, rider = _ridden(reply)
    new = four_stage_server.absorb(state, client, own)
    assert isinstance(new, PipelinedServer)
    greeter = state.greeter or Greeter.of(_following(state))
    admitted = {**state.admitted, client: greeter.admit(rider)}
    return replace(new, riders={**state.riders, client: rider}, greeter=greeter, admitted=admitted)


def server_carry(state: PipelinedServer, replies: Replies) -> Prepared | None:
    """What the last replies of an exchange prepared; `None` where they do not prepare one."""
    try:
        riding = four_stage_server.server_step(
            _following(state), {client: _ridden(reply)[1] for client, reply in replies.items()}
        )
    except (MessageRefused, TooFewSurvivors):
        return None
    assert not isinstance(riding, Aggregate)
    following, _, bodies = riding
    unsealed = {c: {name: value for name, value in body.items() if name != TAG} for c, body in bodies.items() if c >= 0}
    return Prepared(state.session.run, following.sharers, _freeze(following), unsealed)


def _following(state: PipelinedServer) -> MaskingServer:
    template = MaskingServer(KEYS, b"", (), state.session, identities=state.identities)
    return restore(template, decode(state.following)[0])


def _ask_keys(step: tuple[PipelinedServer, str, Outgoing]) -> tuple[PipelinedServer, str, Outgoing]:
    """The upload's requests with a fresh key of the server for the next exchange."""
    state, stage, outgoing = step
    following, _, bodies = four_stage_server.server_open(state.session, state.identities, ahead=True)
    return replace(state, following=_freeze(following)), stage, _ride(outgoing, bodies)


def _ask_shares(step: tuple[PipelinedServer, str, Outgoing]) -> tuple[PipelinedServer, str, Outgoing]:
    """The unmasking's requests with the next exchange's roster; those of any other stage as they are."""
    state, stage, outgoing = step
    if stage != UNMASK:
        return step
    return replace(state, waiting={}), stage, _ride(outgoing, state.waiting)


def _ride(outgoing: Outgoing, bodies: Outgoing) -> Outgoing:
    return {client: {**body, **nest(NEXT, bodies[client])} for client, body in outgoing.items()}


def _with_type(step: tuple[MaskingServer, str, Outgoing]) -> tuple[PipelinedServer, str, Outgoing]:
    state, stage, outgoing = step
    if isinstance(state, PipelinedServer):
        return state, stage, outgoing
    values: dict[str, Any] = {item.name: getattr(state, item.name) for item in fields(state)}
    return PipelinedServer(**values), stage, outgoing
