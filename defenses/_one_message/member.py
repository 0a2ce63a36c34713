"""A committee member's steps: advertise a key, check the clients' shares, sign one set, reveal the sum of its shares.

A member is told the hash of each upload's y, not y: it relays nothing and works the same for uploads of any size. It
signs one set in an exchange, of `threshold` uploads or more, and only reveals for the set that it and a quorum signed.
Which sums may be opened beside earlier ones its ledger decides before it signs (`SupportsReleases`).
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass, replace

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from securefed._messages import SERVER, Message
from securefed._persistence.packing import from_bytes
from securefed._tensors import Array
from securefed.defenses._one_message.client import share_bound, share_key, take_keys
from securefed.defenses._one_message.plaintexts import Placing
from securefed.defenses._one_message.ring import from_bytes as elements
from securefed.defenses._one_message.ring import residues, to_bytes
from securefed.defenses._one_message.session import (
    CHECK,
    CONFIRM,
    HASH_BYTES,
    KEYS,
    OPEN,
    SIGNATURE,
    SIGNATURES,
    MemberState,
    Parties,
    bundle_bytes,
    complaints_statement,
    exchange_digest,
    key_statement,
    keys_digest,
    opening_statement,
    seed_of_tests,
    set_statement,
    signed,
    upload_statement,
)
from securefed.defenses._one_message.sharing import TESTS, share_passes
from securefed.defenses._plan import Session, check_request
from securefed.defenses._secure_aggregation.identities import SIGNATURE_BYTES
from securefed.defenses._secure_aggregation.primitives import (
    KEY_BYTES,
    agree,
    decrypt_once,
    private_key,
    public_bytes,
)
from securefed.errors import ContradictionError, MessageRefused

Reply = tuple[MemberState, dict[str, Array]]


def member_open(member: int) -> MemberState:
    """Start an exchange with a fresh key from the operating system."""
    return MemberState(member, secret=secrets.token_bytes(KEY_BYTES))


def member_step(state: MemberState, session: Session, parties: Parties, request: Message, told: bytes) -> Reply:
    """Answer one request.

    Args:
        state: the member's state; it says which stage comes next.
        session: run, exchange number, cohort and plan.
        parties: the committee and the identities.
        request: the server's message.
        told: the `exchange_digest` that this party computed as a client; empty if it was not asked for an upload.

    Raises:
        MessageRefused: the request is not the next one, does not verify, or asks for a second set.
    """
    check_request(request, session, state.member, request.stage, state.stage)
    if state.stage == KEYS:
        request.expect_fields(())
        public = public_bytes(private_key(state.secret))
        statement = key_statement(parties.digest(session), state.member, public)
        signature = signed(parties.identities, state.member, statement)
        return replace(state, stage=CHECK), {"key": from_bytes(public), SIGNATURE: signature}
    if state.stage == CHECK:
        return _check(state, session, parties, request, told)
    return _confirm(state, session, parties, request) if state.stage == CONFIRM else _open(state, parties, request)


_SHOWN = ("ids", "sources", "ciphertexts", "ephemeral", "hashes", "tests", "signatures of uploads", "bundles")
"""Fields in which the server shows all uploads, without y."""


@dataclass(frozen=True)
class _Uploads:
    """The uploads as the server shows them to one member: a row of each array for each client.

    Attributes:
        clients: their clients, ascending.
        sources: digests of what the contributions are computed from.
        ciphertexts: hashes of y.
        ephemeral: the clients' X25519 keys.
        hashes: of the encrypted shares, (clients, members, 32).
        tests: the published polynomials.
        signatures: of the uploads.
        bundles: this member's encrypted shares.
    """

    clients: tuple[int, ...]
    sources: Array
    ciphertexts: Array
    ephemeral: Array
    hashes: Array
    tests: Array
    signatures: Array
    bundles: Array

    def checked(self, row: int, exchange: bytes, parties: Parties) -> tuple[bytes, bytes]:
        """Return an upload's statement and the seed of its tests, once its client's signature is checked."""
        client = self.clients[row]
        seed = seed_of_tests(exchange, client, self.ephemeral[row].tobytes(), self.hashes[row].tobytes())
        source, ciphertext = self.sources[row].tobytes(), self.ciphertexts[row].tobytes()
        statement = upload_statement(exchange, client, source, ciphertext, seed, self.tests[row].tobytes())
        parties.identities.verify(client, statement, self.signatures[row].tobytes(), "the upload that the server shows")
        return statement, seed


def _take_uploads(request: Message, session: Session, parties: Parties, members: int) -> _Uploads:
    """Read the uploads that the server shows.

    Raises:
        MalformedError: a field is missing or of another shape, or names a client that is not invited.
        ContradictionError: fewer uploads than the threshold.
    """
    clients = request.take_ids("ids", session.cohort)
    if (count := len(clients)) < session.plan.threshold:
        raise ContradictionError(SERVER, f"{count} uploads are fewer than {session.plan.threshold}")
    length = bundle_bytes(Placing.of(session.plan).encoding)
    return _Uploads(
        clients,
        request.take("sources", np.uint8, (count, HASH_BYTES)),
        request.take("ciphertexts", np.uint8, (count, HASH_BYTES)),
        request.take("ephemeral", np.uint8, (count, KEY_BYTES)),
        request.take("hashes", np.uint8, (count, members, HASH_BYTES)),
        request.take("tests", np.int64, (count, TESTS, parties.committee.degree + 1)),
        request.take("signatures of uploads", np.uint8, (count, SIGNATURE_BYTES)),
        request.take("bundles", np.uint8, (count, length)),
    )


def _check(state: MemberState, session: Session, parties: Parties, request: Message, told: bytes) -> Reply:
    """Open this member's share of every upload, and report the clients whose shares do not fit.

    Raises:
        MessageRefused: the request is malformed, of another exchange than this party was told as a client, or shows an
            upload that its client did not sign.
    """
    request.expect_fields(("members", "keys", SIGNATURES, "context", *_SHOWN))
    members, keys = take_keys(request, parties, session)
    public = public_bytes(private_key(state.secret))
    if state.member not in members or keys[members.index(state.member)].tobytes() != public:
        raise ContradictionError(SERVER, "it gives another key for this member than this member advertised")
    context = request.take("context", np.uint8, (None,)).tobytes()
    exchange = exchange_digest(keys_digest(parties.digest(session), members, keys), context)
    if told and told != exchange:
        raise ContradictionError(SERVER, "it told this party of another exchange when it asked for its upload")
    shown = _take_uploads(request, session, parties, len(members))
    place, point = members.index(state.member), parties.committee.point(state.member)
    statements, fits = np.zeros((len(shown.clients), HASH_BYTES), np.uint8), np.zeros(len(shown.clients), np.uint8)
    shares = np.zeros((len(shown.clients), Placing.of(session.plan).encoding.degree), np.int64)
    secret = private_key(state.secret)
    for row, client in enumerate(shown.clients):
        statement, seed = shown.checked(row, exchange, parties)
        statements[row] = from_bytes(statement)
        if hashlib.sha256(shown.bundles[row].tobytes()).digest() != shown.hashes[row, place].tobytes():
            raise ContradictionError(SERVER, f"the share that it relays is not the one that client {client} sent")
        key, bundle = shown.ephemeral[row].tobytes(), shown.bundles[row].tobytes()
        share = _opened(secret, exchange, client, state.member, key, public, bundle)
        if share is not None and share_passes(share, point, shown.tests[row], seed):
            shares[row], fits[row] = share[:-TESTS], 1
    complaints = 1 - fits
    signature = signed(
        parties.identities,
        state.member,
        complaints_statement(exchange, state.member, statements.tobytes(), complaints.tobytes()),
    )
    state = replace(
        state, stage=CONFIRM, secret=b"", exchange=exchange, clients=shown.clients, statements=statements,
        sources=shown.sources, fits=fits, shares=shares,
    )  # fmt: skip
    return state, {"complaints": complaints, SIGNATURE: signature}


def _opened(
    secret: X25519PrivateKey, exchange: bytes, client: int, member: int, ephemeral: bytes, public: bytes, bundle: bytes
) -> Array | None:
    """Decrypt one client's share, int64 (n + tests,); `None` where it does not decrypt."""
    try:
        key = share_key(agree(secret, ephemeral, client), exchange, client, member, ephemeral, public)
        return elements(decrypt_once(key, bundle, share_bound(exchange, client, member), client))
    except MessageRefused:
        return None


def _confirm(state: MemberState, session: Session, parties: Parties, request: Message) -> Reply:
    """Sign the set of uploads to add up: one set in an exchange."""
    request.expect_fields(("ids",))
    chosen = request.take_ids("ids", state.clients)
    if len(chosen) < session.plan.threshold:
        raise ContradictionError(SERVER, f"a set of {len(chosen)} uploads is smaller than {session.plan.threshold}")
    rows = [state.clients.index(client) for client in chosen]
    statement = set_statement(state.exchange, chosen, state.statements[rows].tobytes())
    signature = signed(parties.identities, state.member, statement)
    return replace(state, stage=OPEN, survivors=chosen, chosen=statement), {SIGNATURE: signature}


def _open(state: MemberState, parties: Parties, request: Message) -> Reply:
    """Reveal the sum of this member's shares of the set that it and a quorum signed.

    Raises:
        MessageRefused: too few signatures of this very set, or this member was dealt no valid share for an upload in
        it.
    """
    request.expect_fields(("members", SIGNATURES))
    check_quorum(request, parties, state.chosen)
    rows = np.searchsorted(np.asarray(state.clients, np.int64), np.asarray(state.survivors, np.int64))
    if not state.fits[rows].all():
        raise ContradictionError(SERVER, "it asks this member for a sum with a share that it reported as not fitting")
    total = np.zeros(state.shares.shape[1], np.int64)
    for start in range(0, len(rows), 256):  # sums of 256 residues of 54 bits fit 63
        total = residues(total + residues(state.shares[rows[start : start + 256]].sum(axis=0)))
    share = to_bytes(total)
    signature = signed(parties.identities, state.member, opening_statement(state.chosen, state.member, share))
    fresh = MemberState(state.member)
    state = replace(state, stage="", shares=fresh.shares, statements=fresh.statements, fits=fresh.fits)
    return state, {"share": from_bytes(share), SIGNATURE: signature}


def check_quorum(request: Message, parties: Parties, chosen: bytes) -> None:
    """Raise `MessageRefused` unless a quorum of members signed this set, given by its `set_statement`."""
    signers = request.take_ids("members", parties.committee.members)
    signatures = request.take(SIGNATURES, np.uint8, (len(signers), SIGNATURE_BYTES))
    if len(signers) < parties.committee.quorum:
        raise ContradictionError(
            SERVER, f"{len(signers)} members signed the set of uploads to open; {parties.committee.quorum} must"
        )
    for signer, signature in zip(signers, signatures, strict=True):
        parties.identities.verify(signer, chosen, signature.tobytes(), "the set of uploads to open")
