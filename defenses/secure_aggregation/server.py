"""The server of the double-masking protocol: it relays keys and bundles, adds uploads, and removes the masks.

It holds one running sum, not the uploads. What it reconstructs is compared with what was advertised before a mask is
removed, so shares that lie end in an error that names the liar, never in a wrong sum.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from securefed.defenses.base import Outgoing, Session, expect_stage
from securefed.defenses.fixed_point import from_ring
from securefed.defenses.secure_aggregation import channel
from securefed.defenses.secure_aggregation.masks import Mask, apply_masks, pair_mask, self_mask
from securefed.defenses.secure_aggregation.primitives import KEY_BYTES, agree, private_key, public_bytes
from securefed.defenses.secure_aggregation.session import (
    BUNDLE_BYTES,
    KEYS,
    MASK_KEY,
    MASKED,
    SEALED_BYTES,
    SEED,
    SHARE_TAG_BYTES,
    SHARES,
    UNMASK,
    UPLOAD,
    check_session,
    roster_digest,
    seed_commitment,
    session_digest,
    share_tags,
    sharers_digest,
)
from securefed.defenses.secure_aggregation.shamir import FIELD
from securefed.errors import AuthenticationError, BindingError, ContradictionError, TooFewSurvivors
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
        tags: what they published of their shares, uint8 (sharers, roster, 16).
        commitments: what they published of their seeds, uint8 (sharers, 32).
        totals: sums of the masked uploads of `members`, flat, in the plan's order.
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
    totals: tuple[Array, ...] = field(default=(), repr=False)

    def requests(self, bodies: Mapping[ClientId, Tensors]) -> Step:
        """This state with its stage and the sealed bodies."""
        run, round = self.session.run, self.session.round
        sealed = {
            client: channel.seal(self.channels[client], run, round, self.stage, SERVER, client, body)
            for client, body in bodies.items()
        }
        return self, self.stage, sealed


def server_open(session: Session) -> Step:
    """The first state and requests: fresh keys for every client of the cohort.

    Raises:
        PlanError: the plan's threshold or cohort is not sound.
    """
    check_session(session)
    key = X25519PrivateKey.generate()
    body = {"server_key": from_bytes(public_bytes(key))}
    state = MaskingServer(KEYS, key.private_bytes_raw(), session.cohort, session)
    return state, KEYS, dict.fromkeys(session.cohort, body)


def server_step(state: MaskingServer, replies: Replies) -> Step | Aggregate:
    """The next state and requests, or the sum.

    Raises:
        MessageRefused: a reply is malformed, does not verify or lies.
        TooFewSurvivors: fewer replies than the threshold.
    """
    replies = {client: replies[client] for client in sorted(replies)}
    session = state.session
    for client, reply in replies.items():
        if client not in state.members:
            raise ContradictionError(client, f"it does not take part in stage {state.stage!r}")
        if reply.sender != client:
            raise BindingError(client, f"its reply names {reply.sender} as sender")
        expect_stage(reply, state.stage)
        reply.check(run=session.run, round=session.round, stage=state.stage, sender=client, receiver=SERVER)
        if state.stage != KEYS:
            channel.verify(state.channels[client], reply)
    match state.stage:
        case "keys":
            return _collect_keys(state, replies)
        case "shares":
            return _relay_bundles(state, replies)
        case "upload":
            return _add_uploads(state, replies)
        case _:
            return _unmask(state, replies)


def _enough(state: MaskingServer, replies: Replies) -> None:
    threshold = state.session.plan.threshold
    if len(replies) < threshold:
        raise TooFewSurvivors(
            f"{len(replies)} of {len(state.members)} clients replied at stage {state.stage!r}; "
            f"the threshold is {threshold}, the round is void"
        )


def _collect_keys(state: MaskingServer, replies: Replies) -> Step:
    key = private_key(state.secret)
    server_key = public_bytes(key)
    channels, session = {}, session_digest(state.session)
    for client, reply in replies.items():
        channel.expect_fields(reply, ("share_key", "mask_key", channel.TAG))
        share, mask = (
            channel.take(reply, name, np.uint8, (KEY_BYTES,)).tobytes() for name in ("share_key", "mask_key")
        )
        agreements = agree(key, share, client), agree(key, mask, client)
        channels[client] = channel.agreed_secret(session, client, server_key, (share, mask), agreements)
        channel.verify(channels[client], reply)
    _enough(state, replies)
    roster = tuple(replies)
    share_keys = np.stack([reply.body["share_key"] for reply in replies.values()])
    mask_keys = np.stack([reply.body["mask_key"] for reply in replies.values()])
    digest = roster_digest(state.session, roster, share_keys, mask_keys)
    state = replace(
        state, stage=SHARES, members=roster, channels=channels, roster=roster, digest=digest, mask_keys=mask_keys
    )
    body = {"ids": np.asarray(roster, np.int64), "share_keys": share_keys, "mask_keys": mask_keys}
    return state.requests(dict.fromkeys(roster, body))


def _relay_bundles(state: MaskingServer, replies: Replies) -> Step:
    for reply in replies.values():
        channel.expect_fields(reply, ("bundles", "commitment", channel.TAG))
        channel.take(reply, "bundles", np.uint8, (len(state.roster), BUNDLE_BYTES))
        channel.take(reply, "commitment", np.uint8, (KEY_BYTES,))
    _enough(state, replies)
    sharers = tuple(replies)
    bundles = np.stack([reply.body["bundles"] for reply in replies.values()])
    commitments = np.stack([reply.body["commitment"] for reply in replies.values()])
    tags = bundles[:, :, SEALED_BYTES:].copy()
    state = replace(state, stage=UPLOAD, members=sharers, sharers=sharers, tags=tags, commitments=commitments)
    ids = np.asarray(sharers, np.int64)
    rows = {client: state.roster.index(client) for client in sharers}
    return state.requests({client: {"ids": ids, "bundles": bundles[:, rows[client]].copy()} for client in sharers})


def _add_uploads(state: MaskingServer, replies: Replies) -> Step:
    tensors = state.session.plan.tensors
    names = {tensor.name: f"{MASKED}/{tensor.name}" for tensor in tensors}
    for reply in replies.values():
        channel.expect_fields(reply, (*names.values(), channel.TAG))
        for tensor in tensors:
            channel.take(reply, names[tensor.name], f"<u{tensor.ring // 8}", tensor.shape)
    _enough(state, replies)
    totals = []
    for tensor in tensors:
        total = np.zeros(tensor.size, f"<u{tensor.ring // 8}")
        for reply in replies.values():
            total += reply.body[names[tensor.name]].reshape(-1)
        totals.append(total)
    alive = tuple(replies)
    dead = tuple(client for client in state.sharers if client not in replies)
    state = replace(state, stage=UNMASK, members=alive, totals=tuple(totals))
    body = {"alive": np.asarray(alive, np.int64), "dead": np.asarray(dead, np.int64)}
    return state.requests(dict.fromkeys(alive, body))


def _unmask(state: MaskingServer, replies: Replies) -> Aggregate:
    for reply in replies.values():
        channel.expect_fields(reply, ("shares", channel.TAG))
        channel.take(reply, "shares", np.uint8, (len(state.sharers), KEY_BYTES))
    _enough(state, replies)
    holders = tuple(replies)[: state.session.plan.threshold]  # exactly t: one more would add nothing
    shares = np.stack([replies[holder].body["shares"] for holder in holders])
    opened = FIELD.combine([state.roster.index(holder) + 1 for holder in holders], shares)
    masks = _masks_of(state, opened, holders, shares)
    totals = [total.copy() for total in state.totals]
    apply_masks(totals, state.session.plan, masks, remove=True)
    tensors = state.session.plan.tensors
    total = {t.name: from_ring(flat, t.ring).reshape(t.shape) for t, flat in zip(tensors, totals, strict=True)}
    return Aggregate(total, state.members)


def _masks_of(state: MaskingServer, opened: Sequence[bytes], holders: Sequence[ClientId], shares: Array) -> list[Mask]:
    """The masks left in the sum: each survivor's own, and for each dead client its pairs with the survivors."""
    exchange = sharers_digest(state.digest, state.sharers)
    public = {client: key.tobytes() for client, key in zip(state.roster, state.mask_keys, strict=True)}
    alive = set(state.members)
    masks = []
    for row, client in enumerate(state.sharers):
        if client in alive:
            commitment = seed_commitment(state.digest, client, opened[row])
            if not hmac.compare_digest(commitment, state.commitments[row].tobytes()):
                raise _liar(state, row, SEED, holders, shares)
            masks.append(self_mask(opened[row], exchange, client))
        else:
            key = private_key(opened[row])
            if public_bytes(key) != public[client]:
                raise _liar(state, row, MASK_KEY, holders, shares)
            # What survivor i applied for its pair with the dead client stands alone in the sum.
            masks += [pair_mask(agree(key, public[i], i), exchange, i, client) for i in state.members]
    return masks


def _liar(state: MaskingServer, row: int, kind: int, holders: Sequence[ClientId], shares: Array) -> AuthenticationError:
    """Whose shares of the secret in `row` are not those its dealer tagged; if all are, the dealer."""
    dealer = state.sharers[row]
    own = slice(kind * SHARE_TAG_BYTES, (kind + 1) * SHARE_TAG_BYTES)
    for index, holder in enumerate(holders):
        both = np.stack([shares[index, row]] * 2)
        published = state.tags[row, state.roster.index(holder)].tobytes()
        if share_tags(state.digest, dealer, holder, both)[own] != published[own]:
            return AuthenticationError(holder, f"its share of a secret of client {dealer} is not the one it was dealt")
    return AuthenticationError(dealer, "the shares it dealt do not combine to the secret it committed to")
