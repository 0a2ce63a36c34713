"""Run the server of the double-masking protocol: relay keys and encrypted shares, add uploads, remove the masks.

The server's runtime calls `server_open`, then `server_step` with the replies of each stage, until it returns the sum;
uploads may also be given one by one to `absorb`, as they arrive. A client without a reply counts as lost from then on.

Source: Bonawitz et al. 2017, figure 4; with a sparse graph Bell et al. 2020, algorithm 2. Every client masks its upload
by a self mask, from a seed of its own, and by one mask for each neighbour in the graph, which the neighbour subtracts.
The stages, with what the server sends and what a client replies:

    stage     the server sends                          a client replies
    keys      its own public key                        share key and mask key (X25519)
    shares    all clients' keys                         for each neighbour and itself ("holders") one encrypted row of
                                                        two shares: of its self-mask seed and of its mask key; a
                                                        commitment to the seed
    upload    the rows that were encrypted for it       the masked contribution
    confirm   who uploaded ("alive"), who did not       with identities only: a signature of both lists
    unmask    the same, or a quorum of signatures       of every dealer the share of the seed, where it uploaded, or
                                                        of the mask key, where it did not

Survivors ("alive") are the clients that uploaded. An honest holder sends a share of one kind of each dealer, once: with
both secrets of a client the server could open its upload.

From the shares the server reconstructs the survivors' seeds and the mask keys of those who were lost, and so all masks
that are left in the sum. It holds one running sum, not the uploads. Before it removes a mask, it compares the secret
that it reconstructed with what its owner advertised. So falsified shares end in an error that names the client, never
in a wrong sum.

Where the plan is `verified`, clients also check the sum that the server announces (`verification`): some of them, the
key dealers, deal pieces of a key that only clients know, and the server relays the pieces unread. Under that key each
upload has a linear tag, masked as the upload is; the sum of the tags proves the sum. Two other kinds of tags are
authentication tags of messages (`TAG`), and hashes of shares by which a falsified one is traced (`state.tags`).

The server needs no long-lived secret: it draws one X25519 key for each exchange, for authenticated channels with the
clients (`agreed_secret`). What a server that does not follow the protocol can do is said in `double_masking`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from securefed._messages import SERVER, Aggregate, ClientId, Message, PartyId
from securefed._persistence.packing import from_bytes
from securefed.defenses._fixed_point import from_ring, wire_dtype
from securefed.defenses._plan import Plan, Session, expect_stage
from securefed.defenses._secure_aggregation import consistency, verification
from securefed.defenses._secure_aggregation.identities import Identities
from securefed.defenses._secure_aggregation.masks import apply_masks, stream_of
from securefed.defenses._secure_aggregation.primitives import (
    KEY_BYTES,
    TAG,
    agree,
    agreed_secret,
    check_order,
    private_key,
    public_bytes,
    verify,
)
from securefed.defenses._secure_aggregation.session import (
    CONFIRM,
    ENCRYPTED_SHARES_BYTES,
    KEYS,
    MASKED,
    SEALED_BYTES,
    SHARES,
    UNMASK,
    UPLOAD,
    MaskingServer,
    ServerStep,
    advertisement_digest,
    check_session,
    masking_of,
    session_digest,
    wire_shape,
)
from securefed.defenses._secure_aggregation.shares import RevealedShares, dealt_shares, remaining_masks
from securefed.errors import BindingError, ContradictionError, SurvivorsTooClose, TooFewSurvivors

Replies = Mapping[PartyId, Message]


def server_open(session: Session, identities: Identities | None = None, *, ahead: bool = False) -> ServerStep:
    """Start an exchange: send a fresh public key to every client of the cohort.

    Args:
        session: run, exchange number, cohort and plan.
        identities: public identities, against which the clients' signatures are checked; `None` without them.
        ahead: whether this exchange's keys are advertised during the exchange before it (a pipelined run), which the
            signatures of the keys state.

    Returns:
        The state, the stage `keys`, and the request for each client.

    Raises:
        PlanError: the plan's threshold or cohort is not sound.
        ConfigError: identities and plan do not belong together.
    """
    check_session(session, identities)
    key = X25519PrivateKey.generate()
    body = {"server_key": from_bytes(public_bytes(key))}
    state = MaskingServer(KEYS, key.private_bytes_raw(), session.cohort, session, identities=identities, ahead=ahead)
    return state, KEYS, dict.fromkeys(session.cohort, body)


def server_step(state: MaskingServer, replies: Replies) -> ServerStep | Aggregate:
    """Take the replies of one stage, and return the next requests or the sum.

    Args:
        state: the server's state.
        replies: by client; at the stage `upload` those that were not given to `absorb`.

    Returns:
        State, stage and requests by client; after `unmask` the sum of the survivors' contributions, as signed integers.

    Raises:
        MessageRefused: a reply is malformed, does not verify, or contradicts what its sender advertised.
        TooFewSurvivors: fewer replies than the threshold.
    """
    replies = {client: replies[client] for client in sorted(replies)}  # all parties hash clients in ascending order
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
            return _relay_encrypted_shares(state, replies)
        case "confirm":
            return _relay_signatures(state, replies)
        case _:
            return _unmask(state, replies)


def absorb(state: MaskingServer, client: ClientId, reply: Message) -> MaskingServer:
    """Add one upload to the running sum; the upload itself need not be kept.

    Args:
        state: at the stage `upload`.
        client: the client that the transport had the reply from.
        reply: the upload.

    Raises:
        MessageRefused: as `server_step`, or the client uploaded before.
    """
    expect(state, client, reply)
    plan = state.session.plan
    _check_upload(reply, plan)
    if client in state.survivors:
        raise ContradictionError(client, "it uploaded before in this exchange")
    survivors = tuple(sorted((*state.survivors, client)))
    if plan.verified:
        state = replace(state, check=verification.add_tag(state.check, reply))
    parts = [reply.body[f"{MASKED}/{tensor.name}"].reshape(-1) for tensor in plan.tensors]
    # new arrays, so that a state can be returned to; unsigned addition wraps at 2^32 or 2^64, as the masks do
    if state.totals:
        parts = [total + part for total, part in zip(state.totals, parts, strict=True)]
    else:
        parts = [part.copy() for part in parts]
    return replace(state, survivors=survivors, totals=tuple(parts))


def _check_upload(reply: Message, plan: Plan) -> None:
    """Raise `MalformedError` unless the reply holds just the fields of an upload, as they travel.

    These are the plan's tensors; where clients check the announced sum, the tag for that (`verification.CHECK`); and
    the tag that authenticates the message itself (`TAG`).
    """
    check = (verification.CHECK,) if plan.verified else ()
    reply.expect_fields((*(f"{MASKED}/{tensor.name}" for tensor in plan.tensors), *check, TAG))
    for name in check:
        reply.take(name, np.uint64, (2,))
    for tensor in plan.tensors:
        reply.take(f"{MASKED}/{tensor.name}", wire_dtype(tensor.ring), wire_shape(tensor))


def expect(state: MaskingServer, client: ClientId, reply: Message) -> None:
    """Raise `MessageRefused` unless the reply is this client's, for this stage, and authentic.

    Replies at `keys` are checked by `ChannelAcceptor`, as their channel does not exist before. An upload's tag is bound
    to the context too: clients that were told another broadcast than the server's are refused here, by name.
    """
    session = state.session
    if client not in state.members:
        raise ContradictionError(client, f"it does not take part in stage {state.stage!r}")
    if reply.sender != client:
        raise BindingError(client, f"its reply names {reply.sender} as sender")
    expect_stage(reply, state.stage)
    reply.check(run=session.run, round=session.round, stage=state.stage, sender=client, receiver=SERVER)
    if state.stage != KEYS:
        verify(state.channels[client], reply, session.context if state.stage == UPLOAD else b"")


def _enough(state: MaskingServer, replies: Collection[ClientId]) -> None:
    """Raise `TooFewSurvivors` where fewer clients replied than the plan's threshold."""
    threshold = state.session.plan.threshold
    if len(replies) < threshold:
        raise TooFewSurvivors(
            f"{len(replies)} of {len(state.members)} clients replied at stage {state.stage!r}; "
            f"the threshold is {threshold}, the round is void"
        )


@dataclass(frozen=True, eq=False)
class ChannelAcceptor:
    """Accepts an authenticated channel with each client that replies to the server's key.

    Attributes:
        key: the server's private key of this exchange.
        public: its public key.
        session: digest of the session.
        identities: public identities that sign the clients' keys; `None` without them.
        ahead: whether the keys are advertised during the exchange before theirs.
    """

    key: X25519PrivateKey = field(repr=False)
    public: bytes
    session: bytes
    identities: Identities | None
    ahead: bool

    @classmethod
    def of(cls, state: MaskingServer) -> ChannelAcceptor:
        """Make the acceptor of one exchange."""
        key = private_key(state.secret)
        return cls(key, public_bytes(key), session_digest(state.session), state.identities, state.ahead)

    def accept(self, reply: Message) -> bytes:
        """Check a client's advertised keys, and return the channel's secret.

        Raises:
            MessageRefused: the reply is malformed, or the client does not hold the share key that it advertises.
        """
        signature = () if self.identities is None else (consistency.SIGNATURE,)
        reply.expect_fields(("share_key", "mask_key", *signature, TAG))
        names, client = ("share_key", "mask_key"), reply.sender
        share, mask = (reply.take(name, np.uint8, (KEY_BYTES,)).tobytes() for name in names)
        check_order(mask, client)  # no peer could agree with it, which would void the round
        agreement = agree(self.key, share, client)
        secret = agreed_secret(self.session, client, self.public, (share, mask), agreement)
        verify(secret, reply)
        if self.identities is not None:
            statement = consistency.keys_statement(self.session, self.ahead, client, share + mask)
            consistency.take_signature(reply, self.identities, statement)
        return secret


def _collect_keys(state: MaskingServer, replies: Replies) -> ServerStep:
    """Send all clients' keys to each of them.

    A pipelined run has accepted replies one by one during the exchange before, with the same checks
    (`pipeline`, `ChannelAcceptor.accept`); their channels are there already.
    """
    acceptor = ChannelAcceptor.of(state)
    channels = {client: state.channels.get(client) or acceptor.accept(reply) for client, reply in replies.items()}
    _enough(state, replies)
    advertised_clients = tuple(replies)
    share_keys = np.stack([reply.body["share_key"] for reply in replies.values()])
    mask_keys = np.stack([reply.body["mask_key"] for reply in replies.values()])
    digest = advertisement_digest(state.session, advertised_clients, share_keys, mask_keys)
    state = replace(
        state,
        stage=SHARES,
        members=advertised_clients,
        channels=channels,
        advertised_clients=advertised_clients,
        digest=digest,
        mask_keys=mask_keys,
    )
    body = {"ids": np.asarray(advertised_clients, np.int64), "share_keys": share_keys, "mask_keys": mask_keys}
    if state.identities is not None:
        body[consistency.SIGNATURES] = np.stack([reply.body[consistency.SIGNATURE] for reply in replies.values()])
    return state.requests(dict.fromkeys(advertised_clients, body))


def _relay_encrypted_shares(state: MaskingServer, replies: Replies) -> ServerStep:
    """Send each client the rows that others encrypted for it; keep the tags by which a falsified share is traced."""
    verified = state.session.plan.verified
    key_dealers = verification.key_dealers(state.digest, state.advertised_clients) if verified else ()
    clients, degree = len(state.advertised_clients), masking_of(state.session.plan).degree
    holders = min(degree + 1, clients) if degree else clients
    for client, reply in replies.items():
        pieces = ("pieces", "piece_commitment") if client in key_dealers else ()
        reply.expect_fields(("bundles", "commitment", *pieces, TAG))
        if pieces:
            verification.take_pieces(reply, clients)
        reply.take("bundles", np.uint8, (holders, ENCRYPTED_SHARES_BYTES))
        reply.take("commitment", np.uint8, (KEY_BYTES,))
    _enough(state, replies)
    share_dealers = tuple(replies)
    # the field `bundles`: (dealers, holders, bytes); of each row the last bytes are hashes of its two shares, in the
    # clear (`session.SHARE_TAG_BYTES`)
    encrypted_shares = np.stack([reply.body["bundles"] for reply in replies.values()])
    commitments = np.stack([reply.body["commitment"] for reply in replies.values()])
    tags = encrypted_shares[:, :, SEALED_BYTES:].copy()
    state = replace(
        state, stage=UPLOAD, members=share_dealers, share_dealers=share_dealers, tags=tags, commitments=commitments
    )
    ids = np.asarray(share_dealers, np.int64)
    relayed = verification.relay_pieces(key_dealers, state.advertised_clients, replies) if verified else {}
    bodies = {}
    for client, dealt in dealt_shares(state).items():  # the indices (dealer, position) of the rows dealt to a holder
        if client in replies:
            bodies[client] = {"ids": ids, "bundles": encrypted_shares[dealt], **relayed.get(client, {})}
    return state.requests(bodies)


def _close_uploads(state: MaskingServer) -> ServerStep:
    """Name the survivors and those who were lost since they dealt shares.

    Raises:
        SurvivorsTooClose: with the sums before, this one would tell too few clients apart; the clients would refuse.
    """
    alive, session = state.survivors, state.session
    _enough(state, alive)
    least = session.so_far.least
    if least > 1 and (apart := session.so_far.smallest_with(alive)) < least:
        raise SurvivorsTooClose(alive, apart, least)
    dead = tuple(client for client in state.share_dealers if client not in set(alive))
    state = replace(state, stage=UNMASK if state.identities is None else CONFIRM, members=alive)
    body = {"alive": np.asarray(alive, np.int64), "dead": np.asarray(dead, np.int64)}
    return state.requests(dict.fromkeys(alive, body))


def _relay_signatures(state: MaskingServer, replies: Replies) -> ServerStep:
    """Send `threshold` of the survivors' signatures to each client that signed."""
    assert state.identities is not None
    statement = consistency.survivors_statement(state.exchange, state.survivors)
    signatures = {}
    for client, reply in replies.items():
        reply.expect_fields((consistency.SIGNATURE, TAG))
        signatures[client] = consistency.take_signature(reply, state.identities, statement)
    _enough(state, replies)
    quorum = tuple(replies)[: state.session.plan.threshold]
    body = {
        "ids": np.asarray(quorum, np.int64),
        consistency.SIGNATURES: np.stack([signatures[client] for client in quorum]),
    }
    return replace(state, stage=UNMASK, members=tuple(replies)).requests(dict.fromkeys(replies, body))


def _unmask(state: MaskingServer, replies: Replies) -> Aggregate:
    """Reconstruct the masks that are left in the sum, and remove them.

    A secret opens with `MaskingPlan.shares` of its shares. Where the plan is `verified`, the unmasked sum of the tags
    goes to the clients as the proof of the sum.
    """
    dealt = dealt_shares(state)
    for client, reply in replies.items():
        reply.expect_fields(("shares", TAG))
        # one share of each dealer whose row this client holds
        reply.take("shares", np.uint8, (len(dealt[client][0]), KEY_BYTES))
    _enough(state, replies)
    shares = {client: reply.body["shares"] for client, reply in replies.items()}
    dealers, holders = state.tags.shape[:2]
    answers = RevealedShares.of(dealt, shares, (dealers, holders), masking_of(state.session.plan).shares)
    masks = remaining_masks(state, answers)
    totals = [total.copy() for total in state.totals]
    apply_masks(totals, masks, remove=True, stream=stream_of(state.session.plan))
    tensors = state.session.plan.tensors
    total = {t.name: from_ring(flat, t.ring, t.size).reshape(t.shape) for t, flat in zip(tensors, totals, strict=True)}
    proof = verification.unmasked(state.check, masks) if state.session.plan.verified else {}
    return Aggregate(total, state.survivors, proof)
