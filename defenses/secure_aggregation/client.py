"""The client of the double-masking protocol: four steps, each from one state to the next; with identities five.

All secrets of an exchange derive from one root drawn from the operating system in `MaskingClient.open`, so a step
is a function of state and request: asked the same again, it answers the same. Keys, polynomials and masks are
bound to the fingerprint of the roster, and masks to that of those that shared and of the exchange's context as well, so
clients that were told different things are not summed: their masks do not cancel.
Not promised: anything for a state that is used for two different uploads; their difference would show.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from securefed.defenses.base import Session, UploadContext, expect_stage
from securefed.defenses.secure_aggregation import channel, consistency, verification
from securefed.defenses.secure_aggregation.graph import neighbours
from securefed.defenses.secure_aggregation.identities import Identities
from securefed.defenses.secure_aggregation.masks import Mask, PrecomputedMasks, apply_masks, pair_mask, self_mask
from securefed.defenses.secure_aggregation.primitives import (
    KEY_BYTES,
    agree,
    decrypt_once,
    encrypt_once,
    hkdf,
    label,
    private_key,
    public_bytes,
)
from securefed.defenses.secure_aggregation.session import (
    BUNDLE_BYTES,
    CONFIRM,
    CONTRIBUTE,
    KEYS,
    MASK_KEY,
    MASKED,
    SEALED_BYTES,
    SEED,
    SHARES,
    UNMASK,
    UPLOAD,
    check_session,
    graph_seed,
    masking_of,
    roster_digest,
    seed_commitment,
    session_digest,
    share_tags,
    sharers_digest,
    wire_shape,
)
from securefed.defenses.secure_aggregation.shamir import FIELD
from securefed.defenses.secure_aggregation.uploads import residues_of, uniform_residues
from securefed.errors import ConfigError, ContradictionError, DataError, MalformedError
from securefed.messages import SERVER, ClientId, Message
from securefed.state import from_bytes, local, nest
from securefed.tensors import Array, Tensors


def _no_bytes() -> Array:
    return np.zeros(0, np.uint8)


@dataclass(frozen=True, eq=False)
class MaskingClient:
    """A client's state. `stage` is the next one, empty when done.

    Attributes:
        root: what its secrets derive from; forgotten after the upload.
        channel: secret shared with the server.
        advertised: this client's two public keys, 64 bytes.
        roster, digest: who advertised keys, ascending, and the roster's fingerprint.
        near: of the roster, this client and those that it masks with, ascending; on the complete graph all.
        mask_keys: of `near`, uint8 (near, 32).
        opening: keys that open the bundles of `near`, uint8 (near, 32).
        sharers: those that dealt shares, ascending.
        held: the shares of those of `near` that dealt, uint8 (., 2, 32); before the upload those of its own secrets,
            (1, 2, 32).
        identities: against a server that deviates; `None` where it is honest but curious. All below serve only that.
        ahead: whether this exchange's keys are advertised during the one before it.
        context: as in `Session`, of what this client was told; from the request for its upload on.
        survivors: the set that this client signed.
        contribution: what its contribution is computed from (`UploadContext.source`).
        released: of all contributions that it helped to unmask, that fingerprint and one of their survivors.
        previous: survivors of the last sum that it helped to unmask, where `MaskingPlan.survivor_change` asks for them.
        piece_keys: keys that open the pieces of the sum's key, uint8 (its dealers, 32), where the sum is verified.
        sum_key: what the announced sum is checked with; it outlives the exchange.
        precomputed: masks of the upload, made while the contribution is computed (`make_masks`); in this process only.
    """

    client: ClientId
    stage: str
    root: bytes = field(repr=False)
    session: Session = local()
    channel: bytes = field(default=b"", repr=False)
    advertised: bytes = b""
    roster: tuple[ClientId, ...] = ()
    digest: bytes = b""
    near: tuple[ClientId, ...] = ()
    mask_keys: Array = field(default_factory=_no_bytes, repr=False)
    opening: Array = field(default_factory=_no_bytes, repr=False)
    sharers: tuple[ClientId, ...] = ()
    held: Array = field(default_factory=_no_bytes, repr=False)
    identities: Identities | None = local(default=None)
    ahead: bool = False
    survivors: tuple[ClientId, ...] = ()
    contribution: bytes = field(default=b"", repr=False)
    released: Array = field(default_factory=_no_bytes, repr=False)
    piece_keys: Array = field(default_factory=_no_bytes, repr=False)
    sum_key: bytes = field(default=b"", repr=False)
    context: bytes = b""
    previous: tuple[ClientId, ...] = ()
    precomputed: PrecomputedMasks | None = local(default=None, repr=False)

    @classmethod
    def open(
        cls, session: Session, client: ClientId, identities: Identities | None = None, last: MaskingClient | None = None
    ) -> MaskingClient:
        """A fresh state with fresh secrets.

        Args:
            last: the client's state of its last exchange, for what it remembers.

        Raises:
            PlanError: the plan's threshold or cohort is not sound.
            ConfigError: the client is not invited, or identities and plan do not belong together.
        """
        check_session(session)
        if client not in session.cohort:
            raise ConfigError(f"client {client} is not in the cohort {session.cohort}")
        consistency.check_identities(identities, session)
        fresh = cls(client, KEYS, secrets.token_bytes(KEY_BYTES), session, identities=identities)
        return fresh if last is None else replace(fresh, released=last.released, previous=last.previous)

    @property
    def share_secret(self) -> bytes:
        """X25519 scalar for share bundles and the channel; never shared, so a dead client's bundles stay closed."""
        return hkdf(self.root, label("share key"))

    @property
    def shared_secrets(self) -> tuple[bytes, bytes]:
        """Self-mask seed and mask key: the secrets that are shared, as field elements."""
        wide = hkdf(self.root, label("shared secrets"), 96)
        return FIELD.element(wide[:48]), FIELD.element(wide[48:])

    @property
    def exchange(self) -> bytes:
        """Fingerprint of session, adverts, context and sharers."""
        return sharers_digest(self.session, self.digest, self.context, self.sharers)

    def seal(self, stage: str, body: Tensors, context: bytes = b"") -> Tensors:
        session = self.session
        return channel.seal(self.channel, session.run, session.round, stage, self.client, SERVER, body, context)


def client_step(state: MaskingClient, request: Message, encoded: Tensors | None) -> tuple[MaskingClient, Tensors]:
    """The next state and the reply's body.

    Raises:
        MessageRefused: the request is not the server's next one, does not verify, or asks for what must stay apart.
        RangeRefused: an encoded entry does not fit its ring.
    """
    if state.stage == request.stage == UPLOAD:
        if encoded is None:
            raise DataError("the stage 'upload' needs the encoded contribution")
        return client_upload(client_accept(state, request, context_of(state, encoded)), encoded)
    _check_request(state, request)
    if state.stage == KEYS:
        return _advertise(state, request)
    channel.verify(state.channel, request)
    if state.stage == SHARES:
        return _deal(state, request)
    return _confirm(state, request) if state.stage == CONFIRM else _reveal(state, request)


def _check_request(state: MaskingClient, request: Message) -> None:
    """Raise unless the request is the next one, in this exchange, for this client."""
    if state.stage == CONTRIBUTE:
        raise ContradictionError(SERVER, f"asks for stage {request.stage!r} while this client computes its upload")
    session = state.session
    expect_stage(request, state.stage)
    request.check(run=session.run, round=session.round, stage=state.stage, sender=SERVER, receiver=state.client)


def context_of(state: MaskingClient, encoded: Tensors) -> UploadContext:
    """The context of an exchange without a broadcast: contributions are given, and told apart by their values."""
    digest = consistency.contribution_digest(residues_of(encoded, state.session.plan)) if state.identities else b""
    return UploadContext(state.session.context, digest)


def _advertise(state: MaskingClient, request: Message) -> tuple[MaskingClient, Tensors]:
    channel.expect_fields(request, ("server_key",))
    server_key = channel.take(request, "server_key", np.uint8, (KEY_BYTES,)).tobytes()
    share, mask = private_key(state.share_secret), private_key(state.shared_secrets[MASK_KEY])
    keys = public_bytes(share), public_bytes(mask)
    session = session_digest(state.session)
    secret = channel.agreed_secret(session, state.client, server_key, keys, agree(share, server_key, SERVER))
    state = replace(state, stage=SHARES, channel=secret, advertised=b"".join(keys))
    statement = consistency.keys_statement(session, state.ahead, state.client, state.advertised)
    advert = {"share_key": from_bytes(keys[0]), "mask_key": from_bytes(keys[1])}
    return state, state.seal(KEYS, {**advert, **consistency.signed(state.identities, state.client, statement)})


def _deal(state: MaskingClient, request: Message) -> tuple[MaskingClient, Tensors]:
    signatures = () if state.identities is None else (consistency.SIGNATURES,)
    channel.expect_fields(request, ("ids", "share_keys", "mask_keys", *signatures, channel.TAG))
    roster = _take_members(state, request, state.session.cohort)
    share_keys = channel.take(request, "share_keys", np.uint8, (len(roster), KEY_BYTES))
    mask_keys = channel.take(request, "mask_keys", np.uint8, (len(roster), KEY_BYTES))
    if state.identities is not None:
        session, keys = session_digest(state.session), np.hstack([share_keys, mask_keys])
        consistency.check_adverts(request, state.identities, session, state.ahead, roster, keys)
    share, seed_and_key = private_key(state.share_secret), state.shared_secrets
    me = roster.index(state.client)
    if share_keys[me].tobytes() + mask_keys[me].tobytes() != state.advertised:
        raise ContradictionError(SERVER, "the roster holds other keys for this client than it advertised")
    digest = roster_digest(state.session, roster, share_keys, mask_keys)
    plan = state.session.plan
    pieces: dict[str, Array] = {}
    if plan.verified:
        dealt = verification.Pieces(state.root, state.share_secret, state.client, digest, roster, share_keys)
        pieces, state = dealt.sealed(), replace(state, piece_keys=dealt.opening())
    rows = list(neighbours(graph_seed(digest), len(roster), masking_of(plan).degree, me))
    near, share_keys, mask_keys = tuple(roster[row] for row in rows), share_keys[rows], mask_keys[rows]
    degree = masking_of(plan).shares - 1
    coefficients = FIELD.coefficients(hkdf(state.root, label("coefficients", digest)), 2 * degree)
    shares = FIELD.split(seed_and_key, coefficients, len(near))
    bundles, opening = np.zeros((len(near), BUNDLE_BYTES), np.uint8), np.zeros((len(near), KEY_BYTES), np.uint8)
    for row, peer in enumerate(near):
        if peer != state.client:
            agreement = agree(share, share_keys[row].tobytes(), peer)
            outgoing = bundle_key(agreement, digest, state.client, peer)
            tags = share_tags(digest, state.client, peer, shares[row])
            bound = label("bundle", digest, state.client, peer, tags)
            bundles[row] = from_bytes(encrypt_once(outgoing, shares[row].tobytes(), bound) + tags)
            opening[row] = from_bytes(bundle_key(agreement, digest, peer, state.client))
        else:  # only the tags: the holder of its own share needs no ciphertext
            bundles[row, SEALED_BYTES:] = from_bytes(share_tags(digest, peer, peer, shares[row]))
    reply = {"bundles": bundles, "commitment": from_bytes(seed_commitment(digest, state.client, seed_and_key[SEED]))}
    state = replace(
        state, stage=UPLOAD, roster=roster, digest=digest, near=near, mask_keys=mask_keys, opening=opening,
        held=shares[near.index(state.client)][None],
    )  # fmt: skip
    return state, state.seal(SHARES, {**reply, **pieces})


def bundle_key(agreement: bytes, digest: bytes, sender: ClientId, receiver: ClientId) -> bytes:
    """The key of the one bundle that `sender` makes for `receiver`."""
    return hkdf(agreement, label("bundle key", digest, sender, receiver))


def client_accept(state: MaskingClient, request: Message, context: UploadContext) -> MaskingClient:
    """The state that waits for its contribution: the request's tag, members, bundles and pieces are checked.

    Raises:
        MessageRefused: as `client_step`.
    """
    _check_request(state, request)
    if state.stage != UPLOAD:
        raise ContradictionError(SERVER, f"asks for an upload, and this client's next stage is {state.stage!r}")
    channel.verify(state.channel, request)
    plan = state.session.plan
    channel.expect_fields(request, ("ids", "bundles", *verification.request_fields(plan), channel.TAG))
    sharers = _take_members(state, request, state.roster)
    dealers = _dealers(state, sharers)
    bundles = channel.take(request, "bundles", np.uint8, (len(dealers), BUNDLE_BYTES))
    held = np.stack([_open_bundle(state, peer, bundle) for peer, bundle in zip(dealers, bundles, strict=True)])
    key = b""
    state = replace(
        state, stage=CONTRIBUTE, context=context.exchange, contribution=context.source, sharers=sharers, held=held,
        opening=_no_bytes(),
    )  # fmt: skip
    if plan.verified:
        dealt_by, pieces = verification.key_dealers(state.digest, state.roster), state.piece_keys
        key = verification.sum_key(state.client, state.digest, dealt_by, sharers, pieces, request, state.exchange)
    return replace(state, piece_keys=_no_bytes(), sum_key=key)


def client_upload(state: MaskingClient, encoded: Tensors | None) -> tuple[MaskingClient, Tensors]:
    """The masked contribution; of a client that sits out (`None`) uniform residues under the same masks.

    Raises:
        RangeRefused: an encoded entry does not fit its ring.
    """
    assert state.stage == CONTRIBUTE
    plan = state.session.plan
    residues = uniform_residues(plan) if encoded is None else residues_of(encoded, plan)
    masks = _masks(state) if state.precomputed is None else state.precomputed.masks
    if state.precomputed is None:
        apply_masks(residues, plan, masks)
    else:
        state.precomputed.apply(residues)
    body = nest(MASKED, {t.name: flat.reshape(wire_shape(t)) for t, flat in zip(plan.tensors, residues, strict=True)})
    if plan.verified:
        key = state.sum_key
        tag = verification.uniform_tag() if encoded is None else verification.tag(key, state.client, encoded, plan)
        body[verification.CHECK] = verification.masked_tag(tag, masks)
    state = replace(
        state, stage=UNMASK if state.identities is None else CONFIRM, root=b"", mask_keys=_no_bytes(), precomputed=None
    )
    return state, state.seal(UPLOAD, body, state.context)


def make_masks(state: MaskingClient) -> MaskingClient:
    """The state that waits for its contribution, with the masks for it. Takes memory of the upload's size."""
    return replace(state, precomputed=PrecomputedMasks.of(_masks(state), state.session.plan))


def _masks(state: MaskingClient) -> Sequence[Mask]:
    """This client's masks in the exchange: its own, and one for each pair with a dealer."""
    exchange = state.exchange
    seed, mask_secret = state.shared_secrets
    mask_key = private_key(mask_secret)
    masks = [self_mask(seed, exchange, state.client)]
    for peer in _dealers(state, state.sharers):
        if peer != state.client:
            agreement = agree(mask_key, state.mask_keys[state.near.index(peer)].tobytes(), peer)
            masks.append(pair_mask(agreement, exchange, state.client, peer))
    return masks


def _dealers(state: MaskingClient, sharers: Sequence[ClientId]) -> tuple[ClientId, ...]:
    """The sharers whose shares this client holds, itself among them; enough of them to open its own secrets."""
    dealers = tuple(sorted(set(state.near) & set(sharers)))
    if len(dealers) < masking_of(state.session.plan).shares:
        raise ContradictionError(
            SERVER, f"of this client's {len(state.near) - 1} neighbours and itself, {len(dealers)} dealt shares; "
            f"{masking_of(state.session.plan).shares} are needed",
        )  # fmt: skip
    return dealers


def _open_bundle(state: MaskingClient, dealer: ClientId, bundle: Array) -> Array:
    """The two shares from `dealer`, uint8 (2, 32)."""
    if dealer == state.client:
        return np.asarray(state.held[0])
    tags = bundle[SEALED_BYTES:].tobytes()
    key = state.opening[state.near.index(dealer)].tobytes()
    bound = label("bundle", state.digest, dealer, state.client, tags)
    opened = decrypt_once(key, bundle[:SEALED_BYTES].tobytes(), bound, dealer)
    shares = np.frombuffer(opened, np.uint8).reshape(2, KEY_BYTES)
    if share_tags(state.digest, dealer, state.client, shares) != tags:
        raise MalformedError(dealer, "its shares are not the ones its tags stand for")
    return shares


def _confirm(state: MaskingClient, request: Message) -> tuple[MaskingClient, Tensors]:
    """The client's word that these survived. It gives it once, so no other set is unmasked with its shares."""
    alive = _take_survivors(state, request)
    consistency.check_unreleased(state.released, state.contribution, alive)
    consistency.check_change(state.previous, alive, masking_of(state.session.plan).survivor_change)
    statement = consistency.survivors_statement(state.exchange, alive)
    signature = consistency.signed(state.identities, state.client, statement)
    return replace(state, stage=UNMASK, survivors=alive), state.seal(CONFIRM, signature)


def _reveal(state: MaskingClient, request: Message) -> tuple[MaskingClient, Tensors]:
    """One share of each sharer: of the seed where it uploaded, of the mask key where it did not."""
    if state.identities is None:
        alive, released = _take_survivors(state, request), state.released
        consistency.check_change(state.previous, alive, masking_of(state.session.plan).survivor_change)
    else:
        alive, threshold = state.survivors, state.session.plan.threshold
        channel.expect_fields(request, ("ids", consistency.SIGNATURES, channel.TAG))
        consistency.check_quorum(request, state.identities, state.exchange, alive, threshold)
        released = consistency.with_release(state.released, state.contribution, alive)
    kinds = np.where(np.isin(_dealers(state, state.sharers), alive), SEED, MASK_KEY)
    shares = state.held[np.arange(len(kinds)), kinds]
    reply = state.seal(UNMASK, {"shares": shares})
    previous = alive if masking_of(state.session.plan).survivor_change > 1 else ()
    return replace(state, stage="", channel=b"", held=_no_bytes(), released=released, previous=previous), reply


def _take_survivors(state: MaskingClient, request: Message) -> tuple[ClientId, ...]:
    """Those that uploaded, as the server says: with the dead they are the sharers, and none is both."""
    channel.expect_fields(request, ("alive", "dead", channel.TAG))
    alive = channel.take_ids(request, "alive", state.sharers)
    dead = channel.take_ids(request, "dead", state.sharers)
    if both := set(alive) & set(dead):
        raise ContradictionError(SERVER, f"clients {sorted(both)} are named alive and dead; one kind of share each")
    if set(alive) | set(dead) != set(state.sharers):
        raise ContradictionError(SERVER, "alive and dead are not together those that shared")
    if state.client not in alive:
        raise ContradictionError(SERVER, "this client uploaded and is named dead")
    if len(alive) < state.session.plan.threshold:
        raise ContradictionError(SERVER, f"{len(alive)} uploads are fewer than {state.session.plan.threshold}")
    return alive


def _take_members(state: MaskingClient, request: Message, among: Sequence[ClientId]) -> tuple[ClientId, ...]:
    """The participants the request names, checked by this client: itself one of them, and enough of them."""
    members = channel.take_ids(request, "ids", among)
    if state.client not in members:
        raise ContradictionError(SERVER, "this client takes part and is not listed")
    if len(members) < state.session.plan.threshold:
        raise ContradictionError(
            SERVER, f"{len(members)} participants are fewer than the threshold {state.session.plan.threshold}"
        )
    return members
