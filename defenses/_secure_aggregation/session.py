"""Define the values that client and server of secure aggregation both compute: stages, field sizes and digests.

An exchange is one secure sum. Its stages are rounds of messages: the server sends each client a request, and the client
replies. A session is what all parties agree on before: run, number of the exchange, cohort (invited clients) and plan
(sizes, threshold and fixed point, `Plan`). As the stages go by, all parties hash what they have agreed on:

    session_digest         session
    advertisement_digest   the session digest; ids and public keys of the clients that advertised keys at stage `keys`
    share_dealers_digest   both digests above; the context; ids of the clients that dealt shares at stage `shares`

The context is a hash of everything else that a client received before its upload, such as the model. The last digest
enters masks and signatures: masks of clients that were told different things do not cancel, so these clients are not
summed. The words inside a digest ("roster", "sharers", ...) keep it apart from other digests. They cannot change, or
old and new versions would not agree.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

from securefed._messages import ClientId
from securefed._tensors import Array
from securefed.defenses._fixed_point import lanes, wire_dtype, wire_size
from securefed.defenses._plan import MaskingPlan, Plan, Session, TensorPlan, plan_digest
from securefed.defenses._secure_aggregation.identities import SIGNATURE_BYTES
from securefed.defenses._secure_aggregation.primitives import KEY_BYTES, fingerprint, label
from securefed.errors import PlanError

KEYS: Final = "keys"
SHARES: Final = "shares"
UPLOAD: Final = "upload"
CONTRIBUTE: Final = "contribute"
"""Stage of a client between the request for its upload and the upload; no message carries it."""
CONFIRM: Final = "confirm"
"""Stage at which the survivors (the clients that uploaded) sign the set of survivors; with identities only."""
UNMASK: Final = "unmask"
STAGES: Final = (KEYS, SHARES, UPLOAD, UNMASK)
ACTIVE_STAGES: Final = (KEYS, SHARES, UPLOAD, CONFIRM, UNMASK)
"""The stages where clients have identities (long-lived signing keys), which protect them against an active adversary: a
server that may deviate from the protocol."""

MASKED: Final = "masked"
"""Prefix of the masked tensors' names in an upload."""

SEED, MASK_KEY = 0, 1
"""Indices of a client's two shared secrets, in this order everywhere: the seed of its self mask, and its mask key, the
X25519 key from which the masks that it has in common with its neighbours derive."""

SHARE_TAG_BYTES = 8
"""A dealer publishes a tag (truncated hash) of each share. It only serves to tell which client falsified a share: to
find another share with the same tag takes 2^64 hashes."""
SEALED_BYTES = 2 * KEY_BYTES + 16
"""Both shares for one holder, 32 bytes each, encrypted, and the 16 bytes by which AES-GCM authenticates them. No nonce
is sent: each pair of clients derives a fresh key for each direction and exchange, which encrypts these shares alone, so
that a constant nonce is safe (`primitives.encrypt_once`)."""
ENCRYPTED_SHARES_BYTES = SEALED_BYTES + 2 * SHARE_TAG_BYTES
"""`SEALED_BYTES` and the two tags in the clear: a row of the field `bundles`, on the wire."""


def masking_of(plan: Plan) -> MaskingPlan:
    """Return the plan's part of secure aggregation.

    Raises:
        PlanError: the plan was made by another aggregation.
    """
    if plan.masking is None:
        raise PlanError(f"{plan.defense!r} is not a plan of secure aggregation; make it with secure_aggregation()")
    return plan.masking


def check_session(session: Session) -> None:
    """Raise unless the plan is one of this protocol.

    Complete graph (degree 0): as many shares as the threshold open a secret, and the threshold must exceed half of the
    planned clients. Of two disjoint groups that reach it, a server could get a client's seed from one and its mask key
    from the other, and open its upload.

    Sparse graph: the check is one of form, and does not exclude that attack. A client shares its secrets with its
    neighbours and itself, so groups that open them are drawn from these. That enough shares are needed is up to
    `graph.design_sparse_graph`, which chooses degree and shares for a bound on the clients that collude with the
    server; against a server that lies (identities are needed) any two groups that open a secret then share an honest
    client, except with the probability that the design allows (its condition 4). Client and server derive the plan by
    themselves from the run's terms, so that a server cannot lower either number. The degree is even since neighbours
    stand on a circle, half of them on either side. It is below the threshold, so that the clients of a valid exchange
    are enough for every client to have all neighbours.

    Raises:
        PlanError: a number breaks these rules, or the cohort exceeds the plan.
    """
    plan, masking = session.plan, masking_of(session.plan)
    degree, shares = masking.degree, masking.shares
    if not plan.clients < 2 * plan.threshold <= 2 * plan.clients:
        raise PlanError(f"threshold {plan.threshold} for {plan.clients} clients is not above half of them")
    if not degree and shares != plan.threshold:
        raise PlanError(f"{shares} shares open a secret, and {plan.threshold} survivors are needed; they must agree")
    if degree and not (degree % 2 == 0 and degree < plan.threshold and 2 <= shares <= degree):
        raise PlanError(
            f"a graph of degree {degree} of which {shares} shares open a secret, for {plan.threshold} "
            "survivors: the degree must be even and below the survivors, the shares from 2 to the degree"
        )
    if len(session.cohort) > plan.clients:
        raise PlanError(
            f"{len(session.cohort)} clients are invited, the plan is for {plan.clients}; plan for the larger number"
        )


def session_digest(session: Session) -> bytes:
    """Compute the digest of what all parties agree on before the exchange, 32 bytes.

    `session.round` is the number of the exchange: each attempt at a round's sum has its own.

    In all digests `fingerprint` writes each part with its type and length, so that no two lists of parts encode alike.
    A list of ids of any length is encoded as one part (`label`), or stands last, as in `share_dealers_digest`.
    """
    return fingerprint(
        "securefed secure aggregation 8", session.run, session.round, plan_digest(session.plan), label(*session.cohort)
    )


def advertisement_digest(
    session: Session, advertised_clients: Sequence[ClientId], share_keys: Array, mask_keys: Array
) -> bytes:
    """Compute the digest of the advertised clients and their keys, 32 bytes.

    Args:
        session: run, exchange number, cohort and plan.
        advertised_clients: ids of the clients that advertised keys, ascending.
        share_keys: their X25519 keys for encrypting shares, uint8 (clients, 32).
        mask_keys: their X25519 keys for masks, uint8 (clients, 32).
    """
    return fingerprint(
        "roster", session_digest(session), label(*advertised_clients), share_keys.tobytes(), mask_keys.tobytes()
    )


def graph_seed(advertisement: bytes) -> bytes:
    """Derive the seed of the graph of neighbours from all advertised keys, so that no party alone chooses it."""
    return fingerprint("graph", advertisement)


def share_dealers_digest(
    session: Session, advertisement: bytes, context: bytes, share_dealers: Sequence[ClientId]
) -> bytes:
    """Compute the digest of the exchange at the upload, 32 bytes: it binds masks and survivors' signatures.

    Args:
        session: run, exchange number, cohort and plan.
        advertisement: `advertisement_digest`.
        context: hash of what clients received before the upload (`UploadContext.exchange`).
        share_dealers: ids of the clients that dealt shares, ascending.
    """
    return fingerprint("sharers", session_digest(session), advertisement, context, *share_dealers)


def seed_commitment(advertisement: bytes, client: ClientId, seed: bytes) -> bytes:
    """Compute the commitment to a self-mask seed that its owner publishes; 32 bytes.

    The server compares a seed that it reconstructed from shares with it. The seed is uniform modulo 2^255 - 19, the
    prime of the shares (`shamir`), so that it has almost 255 bits of entropy, and a plain hash hides it.
    """
    return fingerprint("seed commitment", advertisement, client, seed)


def share_tags(advertisement: bytes, dealer: ClientId, holder: ClientId, shares: Array) -> bytes:
    """Compute the tags that a dealer publishes of the two shares for `holder`: two truncated SHA-256, 8 bytes each.

    They show which client is at fault when shares do not combine; that the sum is right does not rest on them.

    Args:
        advertisement: `advertisement_digest`.
        dealer: id of the client that made the shares.
        holder: id of the client that they are for.
        shares: the holder's shares of seed and mask key, uint8 (2, 32).

    Returns:
        16 bytes: the tag of the seed's share, then that of the mask key's share.
    """
    # All parts have fixed widths, so that different inputs give different strings.
    prefix = b"share" + advertisement + dealer.to_bytes(8, "little") + holder.to_bytes(8, "little")
    share_bytes = shares.tobytes()
    seed = hashlib.sha256(prefix + b"seed" + share_bytes[:KEY_BYTES]).digest()
    mask_key = hashlib.sha256(prefix + b"mask" + share_bytes[KEY_BYTES:]).digest()
    return seed[:SHARE_TAG_BYTES] + mask_key[:SHARE_TAG_BYTES]


def wire_shape(tensor: TensorPlan) -> tuple[int, ...]:
    """Return the shape of a masked tensor in an upload: its own, or flat where several entries share an integer.

    In narrow rings (a ring is the width in bits of a tensor's sum) a 64-bit integer holds several entries, its lanes.
    """
    return tensor.shape if lanes(tensor.ring) == 1 else (wire_size(tensor.size, tensor.ring),)


def upload_bytes(plan: Plan, tag: int) -> int:
    """Count the bytes that one client sends over all stages if all planned clients take part and none is lost.

    Field contents count, names and headers of messages do not.

    Args:
        plan: with its stages, and all of its tensors.
        tag: bytes of the tag that authenticates a message.
    """
    keys = 2 * KEY_BYTES
    signatures = 2 * SIGNATURE_BYTES if CONFIRM in plan.stages else 0  # of its keys and of the survivors
    degree = masking_of(plan).degree
    holders = degree + 1 if degree else plan.clients  # a client deals to itself too; degree 0: the complete graph
    shares = holders * ENCRYPTED_SHARES_BYTES + KEY_BYTES  # the seed's commitment, a hash, is as long as a key
    upload = sum(wire_size(t.size, t.ring) * wire_dtype(t.ring).itemsize for t in plan.tensors)
    # at `unmask` it reveals one share of 32 bytes for each dealer whose shares it holds, itself included
    return keys + shares + upload + holders * KEY_BYTES + len(plan.stages) * tag + signatures
