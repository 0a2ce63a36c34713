"""Answer the server's requests in the double-masking protocol: a client's four steps, or five with identities.

Bonawitz et al. 2017, CCS, figure 4; on sparse graphs Bell et al. 2020. The client's runtime calls `client_step` for
each request of an exchange (one secure sum), and at the upload `client_accept`, which makes every check before the
contribution is computed, and then `client_upload`:

    stage     the client is sent                       it checks, and replies
    keys      the server's public key                  two public keys: its share key and its mask key (X25519)
    shares    all clients' keys                        shares of its self-mask seed and of its mask key, encrypted for
                                                       each neighbour in the graph (`shares`)
    upload    the shares that were dealt to it         its contribution plus all its masks (`masks`)
    confirm   who uploaded ("alive"), who did not      with identities only: its signature of both lists
    unmask    the same, or a quorum of signatures      of each dealer one share: of the seed, if the dealer uploaded, or
                                                       of the mask key, if it did not; never both

All secrets of an exchange derive from one root drawn from the operating system in `MaskingClient.open`. So the key
exchange and the shares are functions of state and request. (Two things are drawn anew: the nonces of messages' tags,
and the uniform integers that a client sends which sits out.) Shares and masks are bound to the digest of the advertised
clients and keys, and masks also to the share dealers and to the exchange's context, a hash of all that the client
received before its upload. So if the server sends clients different broadcasts, for example, their masks do not cancel.
Whether the sum over these survivors may be opened beside earlier ones, the caller asks the client's ledger before it
sends the reply to `confirm`, or without identities to `unmask` (`SupportsReleases`). The field `ahead` says that keys
are advertised in the exchange before (`pipeline`).

Not promised: anything if a state is used for two different uploads: both have the same masks, so the server learns
their difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from securefed._messages import SERVER, ClientId, Message
from securefed._persistence.packing import from_bytes, nest
from securefed._tensors import Tensors
from securefed.defenses._plan import UploadContext, check_request
from securefed.defenses._secure_aggregation import consistency, verification
from securefed.defenses._secure_aggregation.masks import (
    PrecomputedMasks,
    SignedMask,
    apply_masks,
    pair_mask,
    self_mask,
    stream_of,
    upload_residues,
)
from securefed.defenses._secure_aggregation.primitives import (
    KEY_BYTES,
    TAG,
    agree,
    agreed_secret,
    private_key,
    public_bytes,
    verify,
)
from securefed.defenses._secure_aggregation.session import (
    CONFIRM,
    CONTRIBUTE,
    ENCRYPTED_SHARES_BYTES,
    KEYS,
    MASK_KEY,
    MASKED,
    SEED,
    SHARES,
    UNMASK,
    UPLOAD,
    C,
    MaskingClient,
    no_bytes,
    session_digest,
    wire_shape,
)
from securefed.defenses._secure_aggregation.shares import (
    deal_shares,
    dealers_in_neighbourhood,
    open_encrypted_shares,
    take_members,
)
from securefed.errors import ContradictionError, DataError


def client_step(state: C, request: Message, encoded: Tensors | None) -> tuple[C, Tensors]:
    """Answer one request; return the next state and the reply's body.

    Args:
        state: the client's state; it says which stage comes next.
        request: the server's message.
        encoded: at the stage `upload` the contribution, int64 tensors in fixed point, named as in the plan; else
            `None`.

    Raises:
        DataError: the stage is `upload`, and no contribution is given, or one that does not fit the plan.
        MessageRefused: the request is not the server's next one, does not verify, or asks for shares that
            together would unmask one upload.
        RangeRefused: an encoded entry does not fit its ring.
    """
    if state.stage == request.stage == UPLOAD:
        if encoded is None:
            raise DataError("the stage 'upload' needs the encoded contribution")
        return client_upload(client_accept(state, request, UploadContext(state.session.context, b"")), encoded)
    _check_request(state, request)
    if state.stage == KEYS:
        return _advertise(state, request)
    verify(state.channel, request)
    if state.stage == SHARES:
        return deal_shares(state, request)
    return _confirm(state, request) if state.stage == CONFIRM else _reveal(state, request)


def _check_request(state: MaskingClient, request: Message) -> None:
    """Raise unless the request is the next one, in this exchange, for this client."""
    if state.stage == CONTRIBUTE:
        raise ContradictionError(SERVER, f"asks for stage {request.stage!r} while this client computes its upload")
    check_request(request, state.session, state.client, state.stage, state.stage)


def _advertise(state: C, request: Message) -> tuple[C, Tensors]:
    """Agree on a channel with the server, and send both public keys: sealed by the channel, and signed if it can."""
    request.expect_fields(("server_key",))
    server_key = request.take("server_key", np.uint8, (KEY_BYTES,)).tobytes()
    share, mask = private_key(state.share_secret), private_key(state.shared_secrets[MASK_KEY])
    keys = public_bytes(share), public_bytes(mask)
    session = session_digest(state.session)
    secret = agreed_secret(session, state.client, server_key, keys, agree(share, server_key, SERVER))
    state = replace(state, stage=SHARES, channel=secret, own_keys=b"".join(keys))
    advert = {"share_key": from_bytes(keys[0]), "mask_key": from_bytes(keys[1])}
    if state.identities is not None:
        statement = consistency.keys_statement(session, state.ahead, state.client, state.own_keys)
        advert |= consistency.signed(state.identities, state.client, statement)
    return state, state.seal(KEYS, advert)


def client_accept(state: C, request: Message, context: UploadContext) -> C:
    """Check the request for an upload and open the encrypted shares in it, before the contribution is computed.

    No refusal here depends on the contribution, so none tells the server anything of the client's data.

    Args:
        state: the client's state at the stage `upload`.
        request: the share dealers' ids and the rows that those in the neighbourhood encrypted for this client.
        context: hashes of what the server sent this client; the first enters the masks.

    Returns:
        The state that `client_upload` goes on from.

    Raises:
        MessageRefused: as `client_step`.
    """
    _check_request(state, request)
    if state.stage != UPLOAD:
        raise ContradictionError(SERVER, f"it asks for an upload, but this client's next stage is {state.stage!r}")
    verify(state.channel, request)
    plan = state.session.plan
    pieces = ("pieces", "piece_commitments") if plan.verified else ()
    request.expect_fields(("ids", "bundles", *pieces, TAG))
    share_dealers = take_members(state, request, state.advertised_clients)
    dealers = dealers_in_neighbourhood(state, share_dealers)
    rows = request.take("bundles", np.uint8, (len(dealers), ENCRYPTED_SHARES_BYTES))
    held = np.stack([open_encrypted_shares(state, peer, row) for peer, row in zip(dealers, rows, strict=True)])
    key = b""
    state = replace(
        state,
        stage=CONTRIBUTE,
        context=context.exchange,
        contribution=context.source,
        share_dealers=share_dealers,
        held_shares=held,
        opening_keys=no_bytes(),
    )
    if plan.verified:
        dealt_by, keys = verification.key_dealers(state.digest, state.advertised_clients), state.piece_keys
        key = verification.sum_key(state.client, state.digest, dealt_by, share_dealers, keys, request, state.exchange)
    return replace(state, piece_keys=no_bytes(), sum_key=key)


def client_upload(state: C, encoded: Tensors | None) -> tuple[C, Tensors]:
    """Mask the contribution; return the next state and the upload's body. The root of all secrets is erased with it.

    Args:
        state: the state that `client_accept` returned, with or without precomputed masks.
        encoded: the contribution, int64 tensors in fixed point, named as in the plan. A client that sits out gives
            `None`: it masks uniform integers, so that the sum opens to noise.

    Raises:
        RangeRefused: an encoded entry does not fit its ring.
    """
    assert state.stage == CONTRIBUTE
    plan = state.session.plan
    residues = upload_residues(encoded, plan)
    masks = _masks(state) if state.precomputed is None else state.precomputed.masks
    if state.precomputed is None:
        apply_masks(residues, masks, stream=stream_of(plan))
    else:
        state.precomputed.apply(residues)
    body = nest(MASKED, {t.name: flat.reshape(wire_shape(t)) for t, flat in zip(plan.tensors, residues, strict=True)})
    if plan.verified:
        tag = verification.uploaded_tag(state.sum_key, state.client, encoded, plan, masks)
        body[verification.CHECK] = tag
    state = replace(
        state, stage=UNMASK if state.identities is None else CONFIRM, root=b"", mask_keys=no_bytes(), precomputed=None
    )
    return state, state.seal(UPLOAD, body, state.context)


def make_masks(state: C) -> C:
    """Compute the masks of the upload ahead of the contribution; they take memory of the upload's size.

    The state is one that `client_accept` returned. The masks stay in this process and are in no file.
    """
    return replace(state, precomputed=PrecomputedMasks.of(_masks(state), state.session.plan))


def _masks(state: MaskingClient) -> Sequence[SignedMask]:
    """Derive this client's masks in the exchange: its own, and one for each neighbour that dealt shares."""
    exchange = state.exchange
    seed, mask_secret = state.shared_secrets
    mask_key = private_key(mask_secret)
    masks = [self_mask(seed, exchange, state.client)]
    for peer in dealers_in_neighbourhood(state, state.share_dealers):
        if peer != state.client:
            agreement = agree(mask_key, state.mask_keys[state.neighbourhood.index(peer)].tobytes(), peer)
            masks.append(pair_mask(agreement, exchange, state.client, peer))
    return masks


def _confirm(state: C, request: Message) -> tuple[C, Tensors]:
    """Sign the set of survivors. The client signs once, so no other set is unmasked with its shares."""
    assert state.identities is not None
    alive = _take_survivors(state, request)
    statement = consistency.survivors_statement(state.exchange, alive)
    signature = consistency.signed(state.identities, state.client, statement)
    return replace(state, stage=UNMASK, survivors=alive), state.seal(CONFIRM, signature)


def _reveal(state: C, request: Message) -> tuple[C, Tensors]:
    """Send one share of each share dealer: of its seed if it uploaded, of its mask key if it did not."""
    if state.identities is None:
        alive = _take_survivors(state, request)
    else:
        alive, threshold = state.survivors, state.session.plan.threshold
        request.expect_fields(("ids", consistency.SIGNATURES, TAG))
        consistency.check_quorum(request, state.identities, state.exchange, alive, threshold)
    # held_shares is (dealers, 2, 32): of each dealer take one of the two shares, and erase both.
    kinds = np.where(np.isin(dealers_in_neighbourhood(state, state.share_dealers), alive), SEED, MASK_KEY)
    shares = state.held_shares[np.arange(len(kinds)), kinds]
    reply = state.seal(UNMASK, {"shares": shares})
    return replace(state, stage="", channel=b"", held_shares=no_bytes(), survivors=alive), reply


def _take_survivors(state: MaskingClient, request: Message) -> tuple[ClientId, ...]:
    """Read the survivors and the dead that the server names: together they are the share dealers, and none is both."""
    request.expect_fields(("alive", "dead", TAG))
    alive = request.take_ids("alive", state.share_dealers)
    dead = request.take_ids("dead", state.share_dealers)
    if both := set(alive) & set(dead):
        raise ContradictionError(
            SERVER,
            f"clients {sorted(both)} are named both alive and dead; this client reveals one kind of share of each",
        )
    if set(alive) | set(dead) != set(state.share_dealers):
        raise ContradictionError(SERVER, "the clients named alive and dead are not together the share dealers")
    if state.client not in alive:
        raise ContradictionError(SERVER, "it names this client as dead, but this client uploaded")
    if len(alive) < state.session.plan.threshold:
        raise ContradictionError(SERVER, f"{len(alive)} uploads are fewer than {state.session.plan.threshold}")
    return alive
