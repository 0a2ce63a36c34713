"""Let clients check the sum that the server announces, by a linear tag that the server cannot compute.

The steps of secure aggregation call this module where it was made with `verify=True`: client and server at the stages
`shares` (pieces of a key) and `upload` (tags), the server after it opened a sum (`announce`), and a client that was
counted before it sends anything more (`check_sum`). Survivors are the clients whose uploads are in the sum.

For each exchange up to 16 clients deal pieces of a key K, each encrypted for every client; the server relays them
unread, and every client combines the pieces to the same K. From K all clients derive weights a (a 64-bit word for each
entry of the plan's tensors) and a pad b_i for each client i. Let x_i be the contribution of client i as integers, and S
the sum of the survivors' x_i. Beside its masked upload client i sends tag_i, masked in the same way:

    tag_i = <a, x_i> + b_i,     so that the unmasked sum is     tag = <a, S> + sum_i b_i.

The server announces S, tag and the survivors to the clients that it counted. They compute <a, S> + sum_i b_i and
compare. This is a one-time linear authenticator (Carter and Wegman 1979): whatever tags a server without K obtains, the
pads make them independent of a, so another (S', tag') passes only if <a, S' - S> equals one value that the server chose
without knowing a.

x_i and S are integers, not residues modulo the ring in which uploads are summed: an entry of S is announced as int64,
and every tag is a pair of numbers, one modulo p = 2^61 - 1 and one modulo 2^64. Let S' - S be D, of which some entry
D_j is not 0. Where p does not divide D_j, <a, D> takes each value modulo p with probability 2^-60 at most (a_j is the
lower 61 bits of its word, so that two of 2^61 give 0). Where p divides all of D, D_j = k p with 0 < |k| <= 8, as
|D_j| < 2^64. It is then no multiple of 16, and <a, D> with whole words takes each value modulo 2^64 with probability
2^-60 at most. A sum that wrapped in its ring differs from the clients' integers by a multiple of 2^ring, which p does
not divide, and is refused too.

Guarantee: a server that does not know K cannot pass off another tensor as the sum of the contributions of the clients
that it names, except with probability at most 2^-60 for each announcement to a client (the key stream taken as
uniform). Tags show the server no more than the sum does: they are masked like uploads, and open as uploads do.
Not promised: anything against a server and one client of the exchange together, or a server that plays a client (which
only `identities` prevent): a server that knows K can forge tags. A client that sends a wrong tag makes the check fail,
and is not named. Clients do not check what the server computes from the sum afterwards, nor a server's claim that a
client was not counted. Sums of evaluations are for the server only: it does not announce them, so nobody checks them.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from securefed._messages import SERVER, ClientId, Message, PartyId
from securefed._persistence.packing import from_bytes
from securefed._tensors import Array, Tensors
from securefed.defenses._plan import Plan, TensorPlan
from securefed.defenses._secure_aggregation.masks import SignedMask
from securefed.defenses._secure_aggregation.mersenne import BITS, CHUNK, dot
from securefed.defenses._secure_aggregation.primitives import (
    KEY_BYTES,
    agree,
    decrypt_once,
    encrypt_once,
    fingerprint,
    hkdf,
    key_stream,
    label,
    private_key,
)
from securefed.errors import ContradictionError, MalformedError, SumRefused, TooFewSurvivors

KEY_DEALERS: Final = 16
"""Clients that deal a piece of the key: if 40 % of the clients are lost before they deal, all 16 are lost with
probability 2^-21. Twice as many would double these bytes, half as many would lose a round in 1500."""
PIECE_BYTES: Final = KEY_BYTES + 16
"""A piece, encrypted, with the 16 bytes by which AES-GCM authenticates it."""
CHECK: Final = "check"
"""The field of a tag: uint64 (2,), modulo p and modulo 2^64."""

Tag = tuple[int, int]
"""Residues modulo p and modulo 2^64."""


@dataclass(frozen=True)
class TagModuli:
    """The two moduli of a tag, p = 2^prime_bits - 1 and 2^ring_bits; smaller ones are for tests that count what passes.

    Attributes:
        prime_bits: 61 outside tests.
        ring_bits: 64 outside tests.
    """

    prime_bits: int = BITS
    ring_bits: int = 64

    def reduce(self, by_prime: int, by_ring: int) -> Tag:
        """Reduce the first number modulo p and the second modulo 2^ring_bits."""
        return by_prime % (2**self.prime_bits - 1), by_ring % 2**self.ring_bits

    def shift(self, tag: Tag, by: Tag, sign: int = 1) -> Tag:
        """Compute tag + sign * by, entry by entry."""
        return self.reduce(tag[0] + sign * by[0], tag[1] + sign * by[1])

    def residues(self, secret: bytes) -> Tag:
        """Turn 32 uniform bytes into uniform residues; 192 bits modulo p are within 2^-131 of uniform."""
        return self.reduce(int.from_bytes(secret[:24], "little"), int.from_bytes(secret[24:], "little"))

    def pad(self, key: bytes, client: ClientId) -> Tag:
        """Compute a client's pad b_i from K."""
        return self.residues(hkdf(key, label("pad", client)))

    def product(self, key: bytes, values: Tensors, plan: Plan) -> Tag:
        """Compute <a, values> modulo p and modulo 2^64, the weights a derived from K; `values` are int64 tensors."""
        by_prime = by_ring = 0
        for tensor in plan.tensors:
            flat = np.ascontiguousarray(values[tensor.name]).reshape(-1)
            for start, words in _weights(key, tensor):
                part = flat[start : start + CHUNK]
                by_prime += dot(words, part, self.prime_bits)
                by_ring += int(np.dot(words, part.view(np.uint64)))  # uint64 wraps: signed entries modulo 2^64
        return self.reduce(by_prime, by_ring)

    def tag(self, key: bytes, client: ClientId, values: Tensors, plan: Plan) -> Tag:
        """Compute tag_i of a client's contribution, int64 tensors named as in the plan."""
        return self.shift(self.product(key, values, plan), self.pad(key, client))


FULL: Final = TagModuli()
"""The moduli of the protocol."""


def key_dealers(digest: bytes, advertised_clients: Sequence[ClientId]) -> tuple[ClientId, ...]:
    """Draw the clients that deal pieces of the key, ascending: `KEY_DEALERS` or all, by a hash of all public keys."""
    shuffled = sorted(advertised_clients, key=lambda client: fingerprint("key dealer", digest, client))
    return tuple(sorted(shuffled[:KEY_DEALERS]))


class SumKeyPieces:
    """Deals one client's piece of the sum's key K, and derives the keys that open the pieces dealt to it.

    A piece is 32 bytes, encrypted for each client under a key of the pair that encrypts nothing else. The dealer also
    publishes a hash of it (the commitment), so that all clients get the same piece or name the dealer.

    Args:
        root: random bytes from which its secrets of the exchange derive.
        share_secret: its private X25519 key for encrypted shares.
        client: its id.
        digest: the digest of the advertised clients and keys.
        advertised_clients: their ids, ascending.
        share_keys: their public X25519 keys for encrypted shares.
    """

    def __init__(
        self, root: bytes, share_secret: bytes, client: ClientId, digest: bytes, advertised_clients: Sequence[ClientId],
        share_keys: Array,
    ) -> None:  # fmt: skip
        self._key, self._client, self._digest = private_key(share_secret), client, digest
        self._public = {peer: row.tobytes() for peer, row in zip(advertised_clients, share_keys, strict=True)}
        self._piece = hkdf(root, label("sum key piece", digest))
        self.dealers = key_dealers(digest, advertised_clients)

    def sealed(self) -> dict[str, Array]:
        """Return the fields of a dealer's reply; none for a client that was not drawn.

        `pieces` is uint8 (advertised clients, 48), zeros in its own row; `piece_commitment` is uint8 (32,).
        """
        if self._client not in self.dealers:
            return {}
        commitment = _commitment(self._digest, self._client, self._piece)
        pieces = np.zeros((len(self._public), PIECE_BYTES), np.uint8)
        for row, peer in enumerate(self._public):
            if peer != self._client:
                key = _piece_key(self._agreement(peer), self._digest, self._client, peer)
                bound = _bound(self._digest, self._client, peer, commitment)
                pieces[row] = from_bytes(encrypt_once(key, self._piece, bound))
        return {"pieces": pieces, "piece_commitment": from_bytes(commitment)}

    def opening_keys(self) -> Array:
        """Derive the keys that open the dealers' pieces, uint8 (dealers, 32); a dealer's own row is its piece."""
        keys = [
            self._piece
            if dealer == self._client
            else _piece_key(self._agreement(dealer), self._digest, dealer, self._client)
            for dealer in self.dealers
        ]
        return np.stack([from_bytes(key) for key in keys])

    def _agreement(self, peer: ClientId) -> bytes:
        return agree(self._key, self._public[peer], peer)


def take_pieces(reply: Message, clients: int) -> None:
    """Raise `MalformedError` unless a dealer's reply holds a piece for each of `clients`."""
    reply.take("pieces", np.uint8, (clients, PIECE_BYTES))
    reply.take("piece_commitment", np.uint8, (KEY_BYTES,))


def relay_pieces(
    dealers: Sequence[ClientId], advertised_clients: Sequence[ClientId], replies: Mapping[PartyId, Message]
) -> dict[ClientId, dict[str, Array]]:
    """Return the fields that the server adds to each client's request: the pieces for it, their dealers ascending.

    Args:
        dealers: clients that were drawn to deal pieces (`key_dealers`), ascending.
        advertised_clients: ids of all clients that advertised keys, ascending.
        replies: at the stage `shares`; dealers without a reply are left out.

    Raises:
        TooFewSurvivors: none of the dealers is left.
    """
    bodies = [replies[client].body for client in dealers if client in replies]
    if not bodies:
        raise TooFewSurvivors(f"none of the {len(dealers)} clients that deal the sum's key is left; the round is void")
    pieces = np.stack([body["pieces"] for body in bodies])
    commitments = np.stack([body["piece_commitment"] for body in bodies])
    return {
        client: {"pieces": pieces[:, row], "piece_commitments": commitments}
        for row, client in enumerate(advertised_clients)
    }


def sum_key(
    client: ClientId,
    digest: bytes,
    dealers: Sequence[ClientId],
    share_dealers: Sequence[ClientId],
    opening_keys: Array,
    request: Message,
    exchange: bytes,
) -> bytes:
    """Derive K, 32 bytes, from the pieces in the request for the upload: HKDF of all of them, bound to the exchange.

    Every client opens all pieces, the server none: K is secret from a server that neither plays a client nor colludes
    with one, and random if one dealer's piece is.

    Args:
        client: this client's id.
        digest: the digest of the advertised clients and keys.
        dealers: clients that were drawn to deal pieces (`key_dealers`), ascending.
        share_dealers: clients that replied at stage `shares`; only dealers among them did deal pieces.
        opening_keys: from `SumKeyPieces.opening_keys`.
        request: the server's request for the upload.
        exchange: digest of the exchange (`share_dealers_digest`).

    Raises:
        ContradictionError: no dealer of the key is among the share dealers.
        MessageRefused: other fields, a piece that does not open, or is not the one its dealer committed to.
    """
    present = [dealer for dealer in dealers if dealer in set(share_dealers)]
    if not present:
        raise ContradictionError(SERVER, "no client is left that deals the sum's key")
    pieces = request.take("pieces", np.uint8, (len(present), PIECE_BYTES))
    commitments = request.take("piece_commitments", np.uint8, (len(present), KEY_BYTES))
    opened = []
    for dealer, sealed, published in zip(present, pieces, commitments, strict=True):
        key, commitment = opening_keys[dealers.index(dealer)].tobytes(), published.tobytes()
        bound = _bound(digest, dealer, client, commitment)
        piece = key if dealer == client else decrypt_once(key, sealed.tobytes(), bound, dealer)
        if _commitment(digest, dealer, piece) != commitment:
            raise MalformedError(dealer, "its piece of the sum's key is not the one it committed to")
        opened.append(piece)
    return hkdf(b"".join(opened), label("sum key", exchange))


def _weights(key: bytes, tensor: TensorPlan) -> Iterator[tuple[int, Array]]:
    """Derive the words a_j of one tensor's weights from K, `CHUNK` at a time: first index j and words (uint64)."""
    stream = key_stream(hkdf(key, label("weights", tensor.name)))
    for start in range(0, tensor.size, CHUNK):
        yield start, np.frombuffer(stream.update(bytes(8 * min(CHUNK, tensor.size - start))), "<u8")


def mask_tag(tag: Tag, masks: Sequence[SignedMask], *, remove: bool = False) -> Tag:
    """Add to the tag one pair of residues derived from each mask's secret, with its sign (`remove`: subtract them)."""
    for mask in masks:
        tag = FULL.shift(tag, FULL.residues(hkdf(mask.secret, label("sum tag"))), -mask.sign if remove else mask.sign)
    return tag


def uploaded_tag(
    key: bytes, client: ClientId, values: Tensors | None, plan: Plan, masks: Sequence[SignedMask]
) -> Array:
    """Compute the field of a client's upload: its masked tag, uint64 (2,).

    Args:
        key: K.
        client: its id.
        values: its contribution, int64 tensors; `None` for a client that sits out, whose tag is uniform. Both are
            made in either case, so that the time tells nothing.
        plan: the plan of the exchange.
        masks: the client's masks of this exchange.
    """
    contributed = {t.name: np.zeros(t.shape, np.int64) for t in plan.tensors} if values is None else values
    own, stand_in = FULL.tag(key, client, contributed, plan), FULL.residues(secrets.token_bytes(KEY_BYTES))
    return to_wire(mask_tag(stand_in if values is None else own, masks))


def add_tag(total: Array, reply: Message) -> Array:
    """Add the masked tag in an upload to the sum of tags, which is empty before the first."""
    return to_wire(FULL.shift(from_wire(total) if total.size else (0, 0), from_wire(reply.body[CHECK])))


def unmasked(check: Array, masks: Sequence[SignedMask]) -> dict[str, Array]:
    """Remove the remaining masks from the sum of tags, and return it as a field."""
    return {CHECK: to_wire(mask_tag(from_wire(check), masks, remove=True))}


def announce(total: Tensors, survivors: Sequence[ClientId], proof: Tensors) -> dict[str, Array]:
    """Return the fields by which the server announces a sum to the clients that it counted.

    Args:
        total: the sum, int64 tensors named as in the plan.
        survivors: ids of the clients in it, ascending.
        proof: from `unmasked`.
    """
    members = np.asarray(survivors, np.int64)
    return {**{f"sum/{name}": value for name, value in total.items()}, "survivors": members, **proof}


def check_sum(
    key: bytes, client: ClientId, plan: Plan, announced: Mapping[str, Array], moduli: TagModuli = FULL
) -> None:
    """Raise unless what the server announced is the sum of the contributions of the clients that it names.

    Args:
        key: K, which this client kept.
        client: its id.
        plan: the plan of the exchange.
        announced: fields that `announce` wrote.
        moduli: smaller ones in tests only.

    Raises:
        MalformedError: fields missing, or of other types or shapes.
        SumRefused: it does not name this client, too few clients, or the sum does not pass.
    """
    totals = {tensor.name: _field(announced, f"sum/{tensor.name}", np.int64, tensor.shape) for tensor in plan.tensors}
    members = _field(announced, "survivors", np.int64, None).tolist()
    claimed = moduli.reduce(*from_wire(_field(announced, CHECK, np.uint64, (2,))))
    if len(announced) != len(totals) + 2:
        raise MalformedError(SERVER, f"fields {sorted(announced)} in the announced sum")
    if members != sorted(set(members)) or client not in members or len(members) < plan.threshold:
        raise SumRefused(
            SERVER,
            f"the announced sum claims to be of clients {members}; it must include this client and reach the threshold",
        )
    expected = moduli.product(key, totals, plan)
    for member in members:
        expected = moduli.shift(expected, moduli.pad(key, member))
    if expected != claimed:
        raise SumRefused(
            SERVER,
            f"the announced sum is not that of the contributions of clients {members}: the server altered it, or one "
            "of these clients sent values or a tag that its plan does not allow; the clients cannot tell which",
        )


def to_wire(tag: Tag) -> Array:
    """Write a tag as a field."""
    return np.array(tag, np.uint64)


def from_wire(check: Array) -> Tag:
    """Read a tag from a field."""
    by_prime, by_ring = check.tolist()
    return by_prime, by_ring


def _piece_key(agreement: bytes, digest: bytes, dealer: ClientId, receiver: ClientId) -> bytes:
    """Derive the key under which `dealer` encrypts its piece for `receiver`, and nothing else."""
    return hkdf(agreement, label("piece key", digest, dealer, receiver))


def _bound(digest: bytes, dealer: ClientId, receiver: ClientId, commitment: bytes) -> bytes:
    """Return what a piece's ciphertext is bound to."""
    return label("piece", digest, dealer, receiver, commitment)


def _commitment(digest: bytes, dealer: ClientId, piece: bytes) -> bytes:
    """Compute the hash of a piece, 32 bytes, that its dealer publishes."""
    return fingerprint("piece commitment", digest, dealer, piece)


def _field(announced: Mapping[str, Array], name: str, dtype: type, shape: tuple[int, ...] | None) -> Array:
    """Read a field of an announcement; a `shape` of `None` is one axis of any length."""
    value = announced.get(name)
    if value is None or value.dtype != dtype or (value.ndim != 1 if shape is None else value.shape != shape):
        raise MalformedError(SERVER, f"the announced sum's field {name!r} is missing, or of another type or shape")
    return value
