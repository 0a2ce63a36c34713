"""Share each client's two secrets among its neighbours, and rebuild from the shares what the sum still hides.

In secure aggregation by double masking (Bonawitz et al. 2017) a client adds to its upload a mask of its own, from its
self-mask seed, and a mask with each neighbour, from its mask key (`masks`). With PRG(s) the key stream of a mask secret
s, the sum of the uploads over the survivors S is

    sum_{i in S} x_i  +  sum_{i in S} PRG(self_i)  +  sum_{i in S} sum_{j in D_i} +- PRG(pair_ij)

D_i being the neighbours of i that dealt shares and did not upload ("dead"); pair masks between survivors cancel. So the
server needs the seeds of clients that uploaded, and the mask keys of the dead.

At stage `shares` a client, which then knows all clients' public keys, deals shares of both of its secrets. A holder of
its shares is a neighbour in the graph, or the client itself. Both shares for one neighbour are encrypted together,
under a key that the two clients agree on, and bound to dealer, receiver and all advertised keys. The server relays what
it cannot read. A row of the field `bundles` is

    the two shares, encrypted by AES-256-GCM (80 bytes)  |  a tag of each share, in the clear (2 * 8 bytes)

At stage `unmask` each holder reveals one share of each dealer: of its seed if it uploaded, of its mask key if it did
not. t shares determine a secret (`PrimeField`); the mask key of j gives all pair_ij. The server compares the seed with
the dealer's commitment, the mask key with the public key that the dealer advertised. If one does not match, it compares
the shares with the tags (truncated hashes, `share_tags`) that their dealer published: a holder whose share does not fit
is to blame, or else the dealer.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from securefed._messages import SERVER, ClientId, Message
from securefed._persistence.packing import from_bytes
from securefed._tensors import Array, Tensors
from securefed.defenses._secure_aggregation import consistency, verification
from securefed.defenses._secure_aggregation.masks import SignedMask, neighbourhoods, neighbours, pair_mask, self_mask
from securefed.defenses._secure_aggregation.primitives import (
    FIELD,
    KEY_BYTES,
    TAG,
    agree,
    decrypt_once,
    encrypt_once,
    hkdf,
    label,
    private_key,
    public_bytes,
)
from securefed.defenses._secure_aggregation.session import (
    ENCRYPTED_SHARES_BYTES,
    MASK_KEY,
    SEALED_BYTES,
    SEED,
    SHARE_TAG_BYTES,
    SHARES,
    UPLOAD,
    C,
    MaskingClient,
    MaskingServer,
    advertisement_digest,
    graph_seed,
    masking_of,
    seed_commitment,
    session_digest,
    share_tags,
)
from securefed.errors import AuthenticationError, ContradictionError, MalformedError, TooFewSurvivors

DealtShares = Mapping[ClientId, tuple[Array, Array]]
"""By holder, where its shares stand in an array A (dealers, holders, ...), in which row d lists the shares of dealer d,
one for each of that dealer's holders: a pair of int64 arrays (rows, places), such that A[rows, places] are the holder's
shares, dealers ascending."""


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
    request.expect_fields(("ids", "share_keys", "mask_keys", *signatures, TAG))
    clients = take_members(state, request, state.session.cohort)
    share_keys = request.take("share_keys", np.uint8, (len(clients), KEY_BYTES))
    mask_keys = request.take("mask_keys", np.uint8, (len(clients), KEY_BYTES))
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
    members = request.take_ids("ids", among)
    if state.client not in members:
        raise ContradictionError(SERVER, "this client takes part, but the request does not list it")
    if len(members) < state.session.plan.threshold:
        raise ContradictionError(
            SERVER, f"{len(members)} participants are fewer than the threshold {state.session.plan.threshold}"
        )
    return members


def dealt_shares(state: MaskingServer) -> DealtShares:
    """List the shares that each holder was dealt, from the state after the stage `shares`."""
    places = {client: row for row, client in enumerate(state.advertised_clients)}
    rows, degree = [places[dealer] for dealer in state.share_dealers], masking_of(state.session.plan).degree
    near = neighbourhoods(graph_seed(state.digest), len(places), degree, rows)  # by dealer, its holders' rows
    # Sort all (dealer, place) pairs, numbered dealer * holders + place, by the holder that stands there; then cut the
    # sorted list where the next holder begins.
    by_holder = np.argsort(near, axis=None, kind="stable")  # stable: each holder's dealers stay ascending
    dealers, columns = np.divmod(by_holder, near.shape[1])
    ends = np.cumsum(np.bincount(near.reshape(-1), minlength=len(places)))[:-1]
    return dict(zip(places, zip(np.split(dealers, ends), np.split(columns, ends), strict=True), strict=True))


def holders_of(state: MaskingServer, dealer: ClientId) -> tuple[ClientId, ...]:
    """Return the clients that hold shares of the dealer's secrets, ascending: its neighbours and itself."""
    clients, degree = state.advertised_clients, masking_of(state.session.plan).degree
    return tuple(
        clients[row] for row in neighbours(graph_seed(state.digest), len(clients), degree, clients.index(dealer))
    )


@dataclass(frozen=True, eq=False)
class RevealedShares:
    """The shares that clients revealed, and the t of each dealer that the server uses.

    Attributes:
        shares: uint8 (dealers, holders, 32); zeros where none was revealed.
        used: whether the share is used, bool (dealers, holders): the first t that were revealed of each dealer.

    A row is a dealer among the share dealers; a column is a holder's place among this dealer's holders (itself and its
    neighbours, ascending), whose share is the polynomial's value at place + 1.
    """

    shares: Array = field(repr=False)
    used: Array

    @classmethod
    def of(
        cls, dealt: DealtShares, replies: Mapping[ClientId, Array], shape: tuple[int, int], most: int
    ) -> RevealedShares:
        """Sort the replies by dealer.

        Args:
            dealt: which shares each holder was dealt.
            replies: by holder, the shares it revealed, uint8 (shares dealt, 32).
            shape: number of dealers, and number of holders of each.
            most: t, the number of shares to use of each dealer: t of them determine its secret.
        """
        shares = np.zeros((*shape, KEY_BYTES), np.uint8)
        revealed = np.zeros(shape, bool)
        for client, values in replies.items():
            rows, places = dealt[client]
            shares[rows, places], revealed[rows, places] = values, True
        return cls(shares, revealed & (np.cumsum(revealed, axis=1) <= most))

    def secrets(self) -> list[bytes]:
        """Reconstruct one secret of each dealer, 32 bytes each, in the order of the rows.

        Dealers whose shares stand at the same points are computed together, as they have the same Lagrange weights.
        """
        rows_by_holders: dict[bytes, list[int]] = {}
        for row, used in enumerate(self.used):
            rows_by_holders.setdefault(used.tobytes(), []).append(row)
        reconstructed = [b""] * len(self.used)
        for rows in rows_by_holders.values():
            places = np.flatnonzero(self.used[rows[0]])
            values = self.shares[np.asarray(rows)[:, None], places].swapaxes(0, 1)  # (t, rows, 32)
            for row, secret in zip(rows, FIELD.combine((places + 1).tolist(), values), strict=True):
                reconstructed[row] = secret
        return reconstructed


def remaining_masks(state: MaskingServer, answers: RevealedShares) -> list[SignedMask]:
    """Derive the masks left in the sum: each survivor's own, and those of each dead client's pairs with survivors.

    Args:
        state: the state after the uploads.
        answers: the shares that clients revealed.

    Returns:
        The masks, signed as the survivors added them; the server subtracts them from the sum.

    Raises:
        TooFewSurvivors: fewer than t shares of a secret were revealed.
        AuthenticationError: shares combine to another secret than its dealer committed to; the error names the client
            that sent or dealt a false share.
    """
    needed = masking_of(state.session.plan).shares
    for client, count in zip(state.share_dealers, answers.used.sum(axis=1), strict=True):
        if count < needed:
            raise TooFewSurvivors(
                f"{count} holders revealed a share of a secret of client {client}; {needed} are needed, "
                "the round is void"
            )
    exchange, alive = state.exchange, set(state.survivors)
    public = {client: key.tobytes() for client, key in zip(state.advertised_clients, state.mask_keys, strict=True)}
    masks = []
    for row, (client, secret) in enumerate(zip(state.share_dealers, answers.secrets(), strict=True)):
        if client in alive:
            commitment = seed_commitment(state.digest, client, secret)
            if not hmac.compare_digest(commitment, state.commitments[row].tobytes()):
                raise _blame(state, row, SEED, answers)
            masks.append(self_mask(secret, exchange, client))
        else:
            key = private_key(secret)
            if public_bytes(key) != public[client]:
                raise _blame(state, row, MASK_KEY, answers)
            # The dead client's mask for a pair is not in the sum, so the mask of survivor i does not cancel.
            pairs = sorted(alive & set(holders_of(state, client)))
            masks += [pair_mask(agree(key, public[i], i), exchange, i, client) for i in pairs]
    return masks


def _blame(state: MaskingServer, row: int, kind: int, answers: RevealedShares) -> AuthenticationError:
    """Find the client to blame: a holder whose share does not match its dealer's tag, or else the dealer.

    Args:
        state: the state after the uploads.
        row: the dealer's row among the share dealers.
        kind: `SEED` or `MASK_KEY`, whichever was reconstructed.
        answers: the shares that it was reconstructed from.
    """
    dealer = state.share_dealers[row]
    holders = holders_of(state, dealer)
    tag_of_kind = slice(kind * SHARE_TAG_BYTES, (kind + 1) * SHARE_TAG_BYTES)
    for place in np.flatnonzero(answers.used[row]):
        # `share_tags` computes the tags of a seed share and a key share; only the tag of this kind is compared.
        published, share_twice = state.tags[row, place].tobytes(), np.stack([answers.shares[row, place]] * 2)
        if share_tags(state.digest, dealer, holders[place], share_twice)[tag_of_kind] != published[tag_of_kind]:
            return AuthenticationError(
                holders[place], f"its share of a secret of client {dealer} is not the one it was dealt"
            )
    return AuthenticationError(dealer, "the shares it dealt do not combine to the secret it committed to")
