"""A client's one message: its encrypted contribution, and its key in encrypted shares for the committee.

`accept` makes every check of the request before the contribution is computed, and `upload` answers. The client trusts a
key of a member only if that member's identity signed it for this exchange.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import replace

import numpy as np

from securefed._messages import Message
from securefed._persistence.packing import from_bytes
from securefed._sampling.random_stream import SecureRandomStream
from securefed._tensors import Array, Tensors
from securefed.defenses._one_message.encryption import PLANES, draw_key, encrypt
from securefed.defenses._one_message.plaintexts import Placing
from securefed.defenses._one_message.ring import residues, to_bytes
from securefed.defenses._one_message.session import (
    CONTRIBUTE,
    HASH_BYTES,
    SIGNATURE,
    SIGNATURES,
    UPLOAD,
    OneMessageClient,
    Parties,
    bundle_bytes,
    exchange_digest,
    key_statement,
    keys_digest,
    seed_of_tests,
    share_hash,
    signed,
    upload_statement,
)
from securefed.defenses._one_message.sharing import deal, published_tests, values_at
from securefed.defenses._plan import Session, UploadContext, check_request
from securefed.defenses._secure_aggregation.identities import SIGNATURE_BYTES
from securefed.defenses._secure_aggregation.primitives import (
    KEY_BYTES,
    agree,
    encrypt_once,
    hkdf,
    label,
    private_key,
    public_bytes,
)
from securefed.errors import ContradictionError


def accept(state: OneMessageClient, request: Message, context: UploadContext) -> OneMessageClient:
    """Check the request for the upload, and every member's key in it. No check depends on the contribution.

    Raises:
        MessageRefused: it is not the next request, names too few members, or a key that its member did not sign.
    """
    check_request(request, state.session, state.client, UPLOAD, state.stage)
    request.expect_fields(("members", "keys", SIGNATURES))
    members, keys = take_keys(request, state.parties, state.session)
    exchange = exchange_digest(keys_digest(state.parties.digest(state.session), members, keys), context.exchange)
    return replace(
        state, stage=CONTRIBUTE, members=members, keys=keys, exchange=exchange, source=as_digest(context.source)
    )


def as_digest(source: bytes) -> bytes:
    """Return a source as it travels, 32 bytes: sums without a base have an empty one."""
    return source or bytes(HASH_BYTES)


def take_keys(request: Message, parties: Parties, session: Session) -> tuple[tuple[int, ...], Array]:
    """Read the members that advertised keys, and their keys.

    Raises:
        MalformedError: the fields are missing, of other shapes, or name other parties than members.
        ContradictionError: too few members advertised keys.
        AuthenticationError: a key is not signed by its member for this exchange.
    """
    members = request.take_ids("members", parties.committee.members)
    keys = request.take("keys", np.uint8, (len(members), KEY_BYTES))
    signatures = request.take(SIGNATURES, np.uint8, (len(members), SIGNATURE_BYTES))
    if len(members) < parties.committee.needed:
        raise ContradictionError(
            request.sender,
            f"{len(members)} members of the committee advertised keys; {parties.committee.needed} must, or too few are "
            "left to open the sum",
        )
    digest = parties.digest(session)
    for member, key, signature in zip(members, keys, signatures, strict=True):
        statement = key_statement(digest, member, key.tobytes())
        parties.identities.verify(member, statement, signature.tobytes(), "the key that the server gives for it")
    return members, keys


def upload(state: OneMessageClient, encoded: Tensors | None) -> tuple[OneMessageClient, dict[str, Array]]:
    """Encrypt the contribution, share the key, and sign; nothing secret stays in the state.

    Args:
        state: the state that `accept` returned.
        encoded: the contribution, int64 tensors in fixed point; `None` for a client that sits out: it sends uniform
            elements, so that the sum opens to noise.

    Raises:
        RangeRefused: an entry does not fit its ring.
    """
    assert state.stage == CONTRIBUTE
    placing, committee, stream = Placing.of(state.session.plan), state.parties.committee, SecureRandomStream()
    key = draw_key(placing.encoding, stream)
    parts = encrypt(encoded, placing, key, state.exchange, stream)
    polynomials = deal(residues(key), committee.degree, stream)
    shares = values_at(polynomials, committee.points(state.members))
    ephemeral = private_key(secrets.token_bytes(KEY_BYTES))
    public = public_bytes(ephemeral)
    bundles = np.zeros((len(state.members), bundle_bytes(placing.encoding)), np.uint8)
    for row, (member, member_key) in enumerate(zip(state.members, state.keys, strict=True)):
        agreement = agree(ephemeral, member_key.tobytes(), member)
        sealing = share_key(agreement, state.exchange, state.client, member, public, member_key.tobytes())
        bound = share_bound(state.exchange, state.client, member)
        bundles[row] = from_bytes(encrypt_once(sealing, to_bytes(shares[row]), bound))
    hashes = b"".join(map(share_hash, bundles))
    seed = seed_of_tests(state.exchange, state.client, public, hashes)
    tests = published_tests(polynomials, seed)
    statement = upload_statement(state.exchange, state.client, state.source, hash_of(parts), seed, tests.tobytes())
    body = dict(zip(PLANES, parts, strict=True)) | {
        "source": from_bytes(state.source),
        "ephemeral": from_bytes(public),
        "bundles": bundles,
        "tests": tests,
        SIGNATURE: signed(state.parties.identities, state.client, statement),
    }
    return replace(state, stage=""), body


def hash_of(parts: tuple[Array, ...]) -> bytes:
    """Compute the SHA-256 of y in its three parts."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(np.ascontiguousarray(part).data)
    return digest.digest()


def share_key(
    agreement: bytes, exchange: bytes, client: int, member: int, ephemeral: bytes, member_key: bytes
) -> bytes:
    """Derive the key that encrypts one client's share for one member, and nothing else."""
    return hkdf(agreement, label("one message: share", exchange, client, member, ephemeral, member_key))


def share_bound(exchange: bytes, client: int, member: int) -> bytes:
    """Return what an encrypted share belongs to."""
    return label("one message: bundle", exchange, client, member)
