"""Reconstruct secrets from the shares that clients revealed, and derive the masks that are left in the sum.

The last step of the server in an exchange of secure aggregation (`masking_server`, stage `unmask`). With PRG(s) the
key stream of a mask secret s (`masks`), the sum of the uploads over the survivors S is

    sum_{i in S} x_i  +  sum_{i in S} PRG(self_i)  +  sum_{i in S} sum_{j in D_i} +- PRG(pair_ij)

D_i being the neighbours of i that dealt shares and did not upload ("dead"); pair masks between survivors cancel.

Input: the server's state after the uploads, and from each client that answered one share of each dealer whose shares it
holds: of the dealer's self-mask seed if it uploaded, of its mask key if it did not. t shares determine a secret
(`PrimeField`); the mask key of j gives all pair_ij. The server checks the reconstructed seed against the dealer's
commitment, the mask key against the public key that the dealer advertised. If one does not match, the server checks the
shares against the tags (truncated hashes) that their dealer published: a holder whose share does not fit is to blame,
or else the dealer.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from securefed._messages import ClientId
from securefed._tensors import Array
from securefed.defenses._secure_aggregation.masks import SignedMask, neighbourhoods, neighbours, pair_mask, self_mask
from securefed.defenses._secure_aggregation.primitives import FIELD, KEY_BYTES, agree, private_key, public_bytes
from securefed.defenses._secure_aggregation.session import (
    MASK_KEY,
    SEED,
    SHARE_TAG_BYTES,
    MaskingServer,
    graph_seed,
    masking_of,
    seed_commitment,
    share_tags,
)
from securefed.errors import AuthenticationError, TooFewSurvivors

DealtShares = Mapping[ClientId, tuple[Array, Array]]
"""By holder, where its shares stand in an array A (dealers, holders, ...), in which row d lists the shares of dealer d,
one for each of that dealer's holders: a pair of int64 arrays (rows, places), such that A[rows, places] are the holder's
shares, dealers ascending."""


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
