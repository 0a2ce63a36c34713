"""The server of the double-masking protocol: it relays keys and bundles, adds uploads, and removes the masks.

It holds one running sum, not the uploads. What it reconstructs is compared with what was advertised before a mask is
removed, so shares that lie end in an error that names the liar, never in a wrong sum.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from securefed.defenses.base import Outgoing, Session, expect_stage
from securefed.defenses.fixed_point import from_ring
from securefed.defenses.secure_aggregation import channel, consistency, verification
from securefed.defenses.secure_aggregation.graph import neighbourhoods, neighbours
from securefed.defenses.secure_aggregation.identities import Identities
from securefed.defenses.secure_aggregation.masks import apply_masks
from securefed.defenses.secure_aggregation.primitives import KEY_BYTES, agree, check_order, private_key, public_bytes
from securefed.defenses.secure_aggregation.session import (
    BUNDLE_BYTES,
    CONFIRM,
    KEYS,
    SEALED_BYTES,
    SHARES,
    UNMASK,
    UPLOAD,
    check_session,
    graph_seed,
    masking_of,
    roster_digest,
    session_digest,
    sharers_digest,
)
from securefed.defenses.secure_aggregation.unmasking import Answers, Dealt, dealt_shares, masks_left
from securefed.defenses.secure_aggregation.uploads import add_tag, add_upload, check_upload
from securefed.errors import BindingError, ContradictionError, SurvivorsTooClose, TooFewSurvivors
from securefed.messages import SERVER, Aggregate, ClientId, Message, PartyId
from securefed.state import from_bytes, local
from securefed.tensors import Array, Tensors

Replies = Mapping[PartyId, Message]
Step = tuple["MaskingServer", str, Outgoing]


def _no_bytes() -> Array:
    return np.zeros(0, np.uint8)


@dataclass(frozen=True, eq=False)
class MaskingServer:
    """The server's state.

    Attributes:
        stage: the stage whose replies come next.
        secret: X25519 scalar of its channels with the clients.
        members: who may reply at this stage, ascending.
        channels: secret shared with each client.
        roster, digest: who advertised keys, and the fingerprint of that.
        mask_keys: uint8 (roster, 32).
        sharers: those that dealt shares.
        tags: what they published of their shares, uint8 (sharers, holders, 16).
        commitments: what they published of their seeds, uint8 (sharers, 32).
        survivors: those that uploaded, so far or in all.
        totals: sums of their masked uploads, flat, in the plan's order.
        check: the sum of their masked tags, where the sum is verified.
        identities, ahead: as in `MaskingClient`.
    """

    stage: str
    secret: bytes = field(repr=False)
    members: tuple[ClientId, ...]
    session: Session = local()
    channels: Mapping[ClientId, bytes] = field(default_factory=dict, repr=False)
    roster: tuple[ClientId, ...] = ()
    digest: bytes = b""
    mask_keys: Array = field(default_factory=_no_bytes, repr=False)
    sharers: tuple[ClientId, ...] = ()
    tags: Array = field(default_factory=_no_bytes, repr=False)
    commitments: Array = field(default_factory=_no_bytes, repr=False)
    survivors: tuple[ClientId, ...] = ()
    totals: tuple[Array, ...] = field(default=(), repr=False)
    check: Array = field(default_factory=_no_bytes, repr=False)
    identities: Identities | None = local(default=None)
    ahead: bool = False

    @property
    def exchange(self) -> bytes:
        """Fingerprint of session, adverts, context and sharers."""
        return sharers_digest(self.session, self.digest, self.session.context, self.sharers)

    def holders(self, dealer: ClientId) -> tuple[ClientId, ...]:
        """Who is dealt shares of the dealer's secrets, ascending: its neighbours and itself."""
        degree = masking_of(self.session.plan).degree
        rows = neighbours(graph_seed(self.digest), len(self.roster), degree, self.roster.index(dealer))
        return tuple(self.roster[row] for row in rows)

    def dealt(self) -> Dealt:
        """By holder, the shares it was dealt."""
        places = {client: row for row, client in enumerate(self.roster)}
        rows, degree = [places[dealer] for dealer in self.sharers], masking_of(self.session.plan).degree
        near = neighbourhoods(graph_seed(self.digest), len(self.roster), degree, rows)
        return dealt_shares(near, self.roster)

    def requests(self, bodies: Mapping[ClientId, Tensors]) -> Step:
        """This state with its stage and the sealed bodies."""
        run, round = self.session.run, self.session.round
        sealed = {
            client: channel.seal(self.channels[client], run, round, self.stage, SERVER, client, body)
            for client, body in bodies.items()
        }
        return self, self.stage, sealed


def server_open(session: Session, identities: Identities | None = None, *, ahead: bool = False) -> Step:
    """The first state and requests: fresh keys for every client of the cohort.

    Raises:
        PlanError: the plan's threshold or cohort is not sound.
        ConfigError: identities and plan do not belong together.
    """
    check_session(session)
    consistency.check_identities(identities, session)
    key = X25519PrivateKey.generate()
    body = {"server_key": from_bytes(public_bytes(key))}
    state = MaskingServer(KEYS, key.private_bytes_raw(), session.cohort, session, identities=identities, ahead=ahead)
    return state, KEYS, dict.fromkeys(session.cohort, body)


def server_step(state: MaskingServer, replies: Replies) -> Step | Aggregate:
    """The next state and requests, or the sum.

    Raises:
        MessageRefused: a reply is malformed, does not verify or lies.
        TooFewSurvivors: fewer replies than the threshold.
    """
    replies = {client: replies[client] for client in sorted(replies)}
    if state.stage == UPLOAD:
        for client, reply in replies.items():
            state = absorb(state, client, reply)
        return _close_uploads(state)
    for client, reply in replies.items():
        expect(state, client, reply)
    match state.stage:
        case "keys":
            return _collect_keys(state, replies)
        case "shares":
            return _relay_bundles(state, replies)
        case "confirm":
            return _relay_signatures(state, replies)
        case _:
            return _unmask(state, replies)


def absorb(state: MaskingServer, client: ClientId, reply: Message) -> MaskingServer:
    """The state with one more upload in its totals; the upload itself is not needed any more.

    Raises:
        MessageRefused: as `server_step`, or the client uploaded before.
    """
    expect(state, client, reply)
    plan = state.session.plan
    check_upload(reply, plan)
    if client in state.survivors:
        raise ContradictionError(client, "it uploaded before in this exchange")
    survivors = tuple(sorted((*state.survivors, client)))
    if plan.verified:
        state = replace(state, check=add_tag(state.check, reply))
    return replace(state, survivors=survivors, totals=add_upload(state.totals, reply, plan))


def expect(state: MaskingServer, client: ClientId, reply: Message) -> None:
    """Raise unless the reply is this client's, for this stage, and as it sealed it."""
    session = state.session
    if client not in state.members:
        raise ContradictionError(client, f"it does not take part in stage {state.stage!r}")
    if reply.sender != client:
        raise BindingError(client, f"its reply names {reply.sender} as sender")
    expect_stage(reply, state.stage)
    reply.check(run=session.run, round=session.round, stage=state.stage, sender=client, receiver=SERVER)
    if state.stage != KEYS:
        channel.verify(state.channels[client], reply, session.context if state.stage == UPLOAD else b"")


def _enough(state: MaskingServer, replies: Collection[ClientId]) -> None:
    threshold = state.session.plan.threshold
    if len(replies) < threshold:
        raise TooFewSurvivors(
            f"{len(replies)} of {len(state.members)} clients replied at stage {state.stage!r}; "
            f"the threshold is {threshold}, the round is void"
        )


@dataclass(frozen=True, eq=False)
class Greeter:
    """Opens channels with the clients that answer to the server's key; made once for all of them."""

    key: X25519PrivateKey = field(repr=False)
    public: bytes
    session: bytes
    identities: Identities | None
    ahead: bool

    @classmethod
    def of(cls, state: MaskingServer) -> Greeter:
        key = private_key(state.secret)
        return cls(key, public_bytes(key), session_digest(state.session), state.identities, state.ahead)

    def admit(self, reply: Message) -> bytes:
        """The channel's secret. Raises `MessageRefused` unless the client holds the share key that it advertises."""
        signature = () if self.identities is None else (consistency.SIGNATURE,)
        channel.expect_fields(reply, ("share_key", "mask_key", *signature, channel.TAG))
        names, client = ("share_key", "mask_key"), reply.sender
        share, mask = (channel.take(reply, name, np.uint8, (KEY_BYTES,)).tobytes() for name in names)
        check_order(mask, client)  # no peer could agree with it, which would void the round
        agreement = agree(self.key, share, client)
        secret = channel.agreed_secret(self.session, client, self.public, (share, mask), agreement)
        channel.verify(secret, reply)
        if self.identities is not None:
            statement = consistency.keys_statement(self.session, self.ahead, client, share + mask)
            consistency.take_signature(reply, self.identities, statement)
        return secret


def _collect_keys(state: MaskingServer, replies: Replies) -> Step:
    greeter = Greeter.of(state)
    channels = {client: state.channels.get(client) or greeter.admit(reply) for client, reply in replies.items()}
    _enough(state, replies)
    roster = tuple(replies)
    share_keys = np.stack([reply.body["share_key"] for reply in replies.values()])
    mask_keys = np.stack([reply.body["mask_key"] for reply in replies.values()])
    digest = roster_digest(state.session, roster, share_keys, mask_keys)
    state = replace(
        state, stage=SHARES, members=roster, channels=channels, roster=roster, digest=digest, mask_keys=mask_keys
    )
    body = {"ids": np.asarray(roster, np.int64), "share_keys": share_keys, "mask_keys": mask_keys}
    if state.identities is not None:
        body[consistency.SIGNATURES] = np.stack([reply.body[consistency.SIGNATURE] for reply in replies.values()])
    return state.requests(dict.fromkeys(roster, body))


def _relay_bundles(state: MaskingServer, replies: Replies) -> Step:
    verified = state.session.plan.verified
    key_dealers = verification.key_dealers(state.digest, state.roster) if verified else ()
    holders = len(neighbours(graph_seed(state.digest), len(state.roster), masking_of(state.session.plan).degree, 0))
    for client, reply in replies.items():
        pieces = verification.piece_fields(client in key_dealers)
        channel.expect_fields(reply, ("bundles", "commitment", *pieces, channel.TAG))
        if pieces:
            verification.take_pieces(reply, len(state.roster))
        channel.take(reply, "bundles", np.uint8, (holders, BUNDLE_BYTES))
        channel.take(reply, "commitment", np.uint8, (KEY_BYTES,))
    _enough(state, replies)
    sharers = tuple(replies)
    bundles = np.stack([reply.body["bundles"] for reply in replies.values()])
    commitments = np.stack([reply.body["commitment"] for reply in replies.values()])
    tags = bundles[:, :, SEALED_BYTES:].copy()
    state = replace(state, stage=UPLOAD, members=sharers, sharers=sharers, tags=tags, commitments=commitments)
    ids = np.asarray(sharers, np.int64)
    relayed = verification.relay_pieces(key_dealers, state.roster, replies) if verified else {}
    bodies = {}
    for client, dealt in state.dealt().items():
        if client in replies:
            bodies[client] = {"ids": ids, "bundles": bundles[dealt], **relayed.get(client, {})}
    return state.requests(bodies)


def _close_uploads(state: MaskingServer) -> Step:
    alive, session = state.survivors, state.session
    _enough(state, alive)
    change = len(set(session.previous) ^ set(alive))
    if session.previous and 0 < change < masking_of(session.plan).survivor_change:
        raise SurvivorsTooClose(alive, change, masking_of(session.plan).survivor_change)
    dead = tuple(client for client in state.sharers if client not in set(alive))
    state = replace(state, stage=UNMASK if state.identities is None else CONFIRM, members=alive)
    body = {"alive": np.asarray(alive, np.int64), "dead": np.asarray(dead, np.int64)}
    return state.requests(dict.fromkeys(alive, body))


def _relay_signatures(state: MaskingServer, replies: Replies) -> Step:
    """`threshold` signatures of the survivors to each that signed."""
    assert state.identities is not None
    statement = consistency.survivors_statement(state.exchange, state.survivors)
    signatures = {}
    for client, reply in replies.items():
        channel.expect_fields(reply, (consistency.SIGNATURE, channel.TAG))
        signatures[client] = consistency.take_signature(reply, state.identities, statement)
    _enough(state, replies)
    quorum = tuple(replies)[: state.session.plan.threshold]
    body = {
        "ids": np.asarray(quorum, np.int64),
        consistency.SIGNATURES: np.stack([signatures[client] for client in quorum]),
    }
    return replace(state, stage=UNMASK, members=tuple(replies)).requests(dict.fromkeys(replies, body))


def _unmask(state: MaskingServer, replies: Replies) -> Aggregate:
    dealt = state.dealt()
    for client, reply in replies.items():
        channel.expect_fields(reply, ("shares", channel.TAG))
        channel.take(reply, "shares", np.uint8, (len(dealt[client][0]), KEY_BYTES))
    _enough(state, replies)
    shares = {client: reply.body["shares"] for client, reply in replies.items()}
    dealers, holders = state.tags.shape[:2]
    answers = Answers.of(dealt, shares, (dealers, holders), masking_of(state.session.plan).shares)
    masks = masks_left(state, answers)
    totals = [total.copy() for total in state.totals]
    apply_masks(totals, state.session.plan, masks, remove=True)
    tensors = state.session.plan.tensors
    total = {t.name: from_ring(flat, t.ring, t.size).reshape(t.shape) for t, flat in zip(tensors, totals, strict=True)}
    proof = verification.unmasked(state.check, masks) if state.session.plan.verified else {}
    return Aggregate(total, state.survivors, proof)
