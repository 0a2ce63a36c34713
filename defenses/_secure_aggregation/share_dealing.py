"""Deal the shares of a client's two secrets to its neighbours, encrypted, and open those that they dealt to it.

In secure aggregation by double masking (Bonawitz et al. 2017) a client adds to its upload a mask of its own, from its
self-mask seed, and a mask with each neighbour, from its mask key (`masks`). To open the sum the server needs the seeds
of clients that uploaded, or the mask keys of clients that dropped out, and rebuilds either from a threshold of shares.
A client deals shares of both at stage `shares`, when it knows all clients' public keys. A holder of its shares is a
neighbour in the graph, or the client itself. Both shares for one neighbour are encrypted together, under a key that the
two clients agree on, and bound to dealer, receiver and all advertised keys. The server relays what it cannot read. A
row of the field `bundles` is

    the two shares, encrypted by AES-256-GCM (80 bytes)  |  a tag of each share, in the clear (2 * 8 bytes)

The tags are truncated hashes. They only serve to name a client that later falsifies a share (`session.share_tags`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from securefed._messages import SERVER, ClientId, Message
from securefed._persistence.packing import from_bytes
from securefed._tensors import Array, Tensors
from securefed.defenses._secure_aggregation import channel, consistency, verification
from securefed.defenses._secure_aggregation.masks import neighbourhoods
from securefed.defenses._secure_aggregation.primitives import (
    FIELD,
    KEY_BYTES,
    agree,
    decrypt_once,
    encrypt_once,
    hkdf,
    label,
    private_key,
)
from securefed.defenses._secure_aggregation.session import (
    ENCRYPTED_SHARES_BYTES,
    SEALED_BYTES,
    SEED,
    SHARES,
    UPLOAD,
    C,
    MaskingClient,
    advertisement_digest,
    graph_seed,
    masking_of,
    seed_commitment,
    session_digest,
    share_tags,
)
from securefed.errors import ContradictionError, MalformedError


def deal_shares(state: C, request: Message) -> tuple[C, Tensors]:
    """Check the advertised keys in the request, and deal this client's secrets to its neighbours.

    Args:
        state: at the stage `shares`.
        request: ids and keys of all clients that advertised.

    Returns:
        The state at the stage `upload`, and the reply's body: `bundles`, uint8 (holders, 96), in the order of the
        holders' ids; `commitment`, a hash of the seed; where the sum is verified, pieces of its key (`verification`).

    Raises:
        MessageRefused: the request is malformed, or holds keys that a client did not advertise.
    """
    clients, share_keys, mask_keys = _take_advertised_keys(state, request)
    secrets, plan = state.shared_secrets, state.session.plan
    digest = advertisement_digest(state.session, clients, share_keys, mask_keys)
    pieces: dict[str, Array] = {}
    if plan.verified:  # clients check the announced sum under a key that they share; some of them send pieces of it
        dealt = verification.SumKeyPieces(state.root, state.share_secret, state.client, digest, clients, share_keys)
        pieces, state = dealt.sealed(), replace(state, piece_keys=dealt.opening_keys())
    # The holders (this client and its neighbours): their rows among the advertised clients, and their ids. The k-th of
    # them gets the values of Shamir's polynomials at the point k.
    masking, own = masking_of(plan), clients.index(state.client)
    rows = neighbourhoods(graph_seed(digest), len(clients), masking.degree, [own])[0]
    near = tuple(clients[row] for row in rows.tolist())
    coefficients = FIELD.coefficients(hkdf(state.root, label("coefficients", digest)), 2 * (masking.shares - 1))
    shares = FIELD.split(secrets, coefficients, len(near))
    encrypted, opening_keys = _encrypt_shares(state, digest, near, share_keys[rows], shares)
    reply = {"bundles": encrypted, "commitment": from_bytes(seed_commitment(digest, state.client, secrets[SEED]))}
    state = replace(
        state,
        stage=UPLOAD,
        advertised_clients=clients,
        digest=digest,
        neighbourhood=near,
        mask_keys=mask_keys[rows],
        opening_keys=opening_keys,
        held_shares=shares[near.index(state.client)][None],
    )
    return state, state.seal(SHARES, {**reply, **pieces})


def _take_advertised_keys(state: MaskingClient, request: Message) -> tuple[tuple[ClientId, ...], Array, Array]:
    """Return the advertised clients, their share keys and their mask keys, all as their owners advertised them."""
    # with identities (long-lived keys) clients sign what they advertise, against a server that deviates
    signatures = () if state.identities is None else (consistency.SIGNATURES,)
    channel.expect_fields(request, ("ids", "share_keys", "mask_keys", *signatures, channel.TAG))
    clients = take_members(state, request, state.session.cohort)
    share_keys = channel.take(request, "share_keys", np.uint8, (len(clients), KEY_BYTES))
    mask_keys = channel.take(request, "mask_keys", np.uint8, (len(clients), KEY_BYTES))
    if state.identities is not None:
        session, keys = session_digest(state.session), np.hstack([share_keys, mask_keys])
        consistency.check_adverts(request, state.identities, session, state.ahead, clients, keys)
    me = clients.index(state.client)
    if share_keys[me].tobytes() + mask_keys[me].tobytes() != state.own_keys:
        raise ContradictionError(SERVER, "it lists other keys for this client than this client advertised")
    return clients, share_keys, mask_keys


def _encrypt_shares(
    state: MaskingClient, digest: bytes, near: Sequence[ClientId], share_keys: Array, shares: Array
) -> tuple[Array, Array]:
    """Encrypt both shares for each neighbour, and derive the keys that open those that the neighbours deal.

    Args:
        state: the dealer.
        digest: the digest of the advertised clients and keys.
        near: the dealer and its neighbours, ascending.
        share_keys: their public keys for encrypted shares, uint8 (near, 32).
        shares: the shares of seed and mask key for each of them, uint8 (near, 2, 32).

    Returns:
        The rows of `bundles`, uint8 (near, 96), and the keys that open what the neighbours deal, uint8 (near, 32).
    """
    own_key = private_key(state.share_secret)
    encrypted = np.zeros((len(near), ENCRYPTED_SHARES_BYTES), np.uint8)
    opening_keys = np.zeros((len(near), KEY_BYTES), np.uint8)
    for row, peer in enumerate(near):
        tags = share_tags(digest, state.client, peer, shares[row])
        if peer == state.client:  # only the tags: the holder of its own share needs no ciphertext
            encrypted[row, SEALED_BYTES:] = from_bytes(tags)
            continue
        agreement = agree(own_key, share_keys[row].tobytes(), peer)
        key, opening_key = encrypted_shares_keys(agreement, digest, state.client, peer)
        bound = label("bundle", digest, state.client, peer, tags)
        encrypted[row] = from_bytes(encrypt_once(key, shares[row].tobytes(), bound) + tags)
        opening_keys[row] = from_bytes(opening_key)
    return encrypted, opening_keys


def encrypted_shares_keys(agreement: bytes, digest: bytes, own: ClientId, peer: ClientId) -> tuple[bytes, bytes]:
    """Derive the two keys of a pair of clients, one for each direction; each encrypts two shares once, nothing else.

    Args:
        agreement: the X25519 secret of the two clients' share keys.
        digest: the digest of the advertised clients and keys.
        own: the client that derives them.
        peer: the other client of the pair.

    Returns:
        The key under which `own` encrypts for `peer`, and the key that opens what `peer` encrypted.
    """
    low, high = sorted((own, peer))
    keys = hkdf(agreement, label("bundle keys", digest, low, high), 2 * KEY_BYTES)
    from_low, from_high = keys[:KEY_BYTES], keys[KEY_BYTES:]
    return (from_low, from_high) if own == low else (from_high, from_low)


def open_encrypted_shares(state: MaskingClient, dealer: ClientId, encrypted: Array) -> Array:
    """Decrypt the two shares from `dealer`, and check them against their tags.

    Args:
        state: the state of the holder, before its upload.
        dealer: id of the client that dealt them; for the holder itself its own share is returned, which was not sent.
        encrypted: the dealer's row for this holder, uint8 (96,).

    Returns:
        The shares of seed and mask key, uint8 (2, 32).

    Raises:
        AuthenticationError: the row does not decrypt; it names the dealer.
        MalformedError: the shares do not match their tags; it names the dealer.
    """
    if dealer == state.client:
        return np.asarray(state.held_shares[0])
    tags = encrypted[SEALED_BYTES:].tobytes()
    key = state.opening_keys[state.neighbourhood.index(dealer)].tobytes()
    bound = label("bundle", state.digest, dealer, state.client, tags)
    opened = decrypt_once(key, encrypted[:SEALED_BYTES].tobytes(), bound, dealer)
    shares = np.frombuffer(opened, np.uint8).reshape(2, KEY_BYTES)
    if share_tags(state.digest, dealer, state.client, shares) != tags:
        raise MalformedError(dealer, "its shares do not match their tags")
    return shares


def dealers_in_neighbourhood(state: MaskingClient, share_dealers: Sequence[ClientId]) -> tuple[ClientId, ...]:
    """Return the share dealers whose shares this client holds, itself among them.

    Raises:
        ContradictionError: too few of them to open this client's own secrets.
    """
    dealers = tuple(sorted(set(state.neighbourhood) & set(share_dealers)))
    if len(dealers) < (shares := masking_of(state.session.plan).shares):
        raise ContradictionError(
            SERVER,
            f"of this client's {len(state.neighbourhood) - 1} neighbours and itself, {len(dealers)} dealt shares; "
            f"{shares} are needed",
        )
    return dealers


def take_members(state: MaskingClient, request: Message, among: Sequence[ClientId]) -> tuple[ClientId, ...]:
    """Read the participants that the request names in `ids`, and check that this client is one of them.

    Raises:
        MalformedError: the ids are not ascending, repeated, or not `among` those they may be.
        ContradictionError: this client is left out, or there are fewer than the plan's threshold.
    """
    members = channel.take_ids(request, "ids", among)
    if state.client not in members:
        raise ContradictionError(SERVER, "this client takes part, but the request does not list it")
    if len(members) < state.session.plan.threshold:
        raise ContradictionError(
            SERVER, f"{len(members)} participants are fewer than the threshold {state.session.plan.threshold}"
        )
    return members
