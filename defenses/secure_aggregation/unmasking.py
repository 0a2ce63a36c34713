"""What the server makes of the last replies: shares to secrets, secrets to the masks that are left in the sum.

Everything here is checked against what was published before: a secret against its commitment or its public key, and
where it does not fit, the shares against their tags, which names who lied.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from securefed.defenses.secure_aggregation.masks import Mask, pair_mask, self_mask
from securefed.defenses.secure_aggregation.primitives import KEY_BYTES, agree, private_key, public_bytes
from securefed.defenses.secure_aggregation.session import (
    MASK_KEY,
    SEED,
    SHARE_TAG_BYTES,
    masking_of,
    seed_commitment,
    share_tags,
)
from securefed.defenses.secure_aggregation.shamir import FIELD
from securefed.errors import AuthenticationError, TooFewSurvivors
from securefed.messages import ClientId
from securefed.tensors import Array

if TYPE_CHECKING:
    from securefed.defenses.secure_aggregation.server import MaskingServer

Dealt = Mapping[ClientId, tuple[Array, Array]]
"""By holder, the shares it was dealt: the dealers' rows among the sharers, ascending, and its place with each."""


@dataclass(frozen=True, eq=False)
class Answers:
    """The shares that came back and are used: exactly t of each dealer's, for one more would add nothing.

    Attributes:
        shares: uint8 (sharers, holders, 32), what was not given being zero.      used: bool (sharers, holders).
    """

    shares: Array = field(repr=False)
    used: Array

    @classmethod
    def of(cls, dealt: Dealt, replies: Mapping[ClientId, Array], shape: tuple[int, int], most: int) -> Answers:
        """Sorted in: `replies` are uint8 (shares dealt, 32), `shape` is (sharers, holders), `most` t."""
        shares = np.zeros((*shape, KEY_BYTES), np.uint8)
        given = np.zeros(shape, bool)
        for client, values in replies.items():
            rows, places = dealt[client]
            shares[rows, places], given[rows, places] = values, True
        return cls(shares, given & (np.cumsum(given, axis=1) <= most))

    def secrets(self) -> list[bytes]:
        """The secret asked for of each dealer; those with shares at the same points together."""
        together: dict[bytes, list[int]] = {}
        for row, used in enumerate(self.used):
            together.setdefault(used.tobytes(), []).append(row)
        opened = [b""] * len(self.used)
        for rows in together.values():
            places = np.flatnonzero(self.used[rows[0]])
            values = self.shares[np.asarray(rows)[:, None], places].swapaxes(0, 1)
            for row, secret in zip(rows, FIELD.combine((places + 1).tolist(), values), strict=True):
                opened[row] = secret
        return opened


def masks_left(state: MaskingServer, answers: Answers) -> list[Mask]:
    """The masks left in the sum: each survivor's own, and for each dead client its pairs with the survivors.

    Raises:
        TooFewSurvivors: fewer than t shares of a secret.
        AuthenticationError: naming whose shares combine to another secret than was committed to.
    """
    for client, count in zip(state.sharers, answers.used.sum(axis=1), strict=True):
        if count < masking_of(state.session.plan).shares:
            raise TooFewSurvivors(
                f"{count} holders answered for a secret of client {client}; "
                f"{masking_of(state.session.plan).shares} are needed, the round is void"
            )
    exchange, alive = state.exchange, set(state.survivors)
    public = {client: key.tobytes() for client, key in zip(state.roster, state.mask_keys, strict=True)}
    masks = []
    for row, (client, secret) in enumerate(zip(state.sharers, answers.secrets(), strict=True)):
        if client in alive:
            commitment = seed_commitment(state.digest, client, secret)
            if not hmac.compare_digest(commitment, state.commitments[row].tobytes()):
                raise _liar(state, row, SEED, answers)
            masks.append(self_mask(secret, exchange, client))
        else:
            key = private_key(secret)
            if public_bytes(key) != public[client]:
                raise _liar(state, row, MASK_KEY, answers)
            # What survivor i applied for its pair with the dead client stands alone in the sum.
            pairs = sorted(alive & set(state.holders(client)))
            masks += [pair_mask(agree(key, public[i], i), exchange, i, client) for i in pairs]
    return masks


def _liar(state: MaskingServer, row: int, kind: int, answers: Answers) -> AuthenticationError:
    """Whose shares of the secret in `row` are not those its dealer tagged; if all are, the dealer."""
    dealer, holders = state.sharers[row], state.holders(state.sharers[row])
    own = slice(kind * SHARE_TAG_BYTES, (kind + 1) * SHARE_TAG_BYTES)
    for place in np.flatnonzero(answers.used[row]):
        published, both = state.tags[row, place].tobytes(), np.stack([answers.shares[row, place]] * 2)
        if share_tags(state.digest, dealer, holders[place], both)[own] != published[own]:
            return AuthenticationError(
                holders[place], f"its share of a secret of client {dealer} is not the one it was dealt"
            )
    return AuthenticationError(dealer, "the shares it dealt do not combine to the secret it committed to")


def dealt_shares(near: Array, roster: Sequence[ClientId]) -> Dealt:
    """Who holds what. `near` is int64 (sharers, holders): by dealer, its holders' rows on the roster, ascending."""
    order = np.argsort(near, axis=None, kind="stable")
    rows, places = np.divmod(order, near.shape[1])
    ends = np.cumsum(np.bincount(near.reshape(-1), minlength=len(roster)))[:-1]
    return dict(zip(roster, zip(np.split(rows, ends), np.split(places, ends), strict=True), strict=True))
