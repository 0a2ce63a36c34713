"""Sign uploads, so that a share holder can recompute the product of ciphertexts that it is asked to decrypt.

In threshold Paillier, t clients that hold shares of the private key, the share holders, decrypt the sum together. The
product of ciphertexts encrypts the sum of their plaintexts. The steps of clients and server (`threshold`,
`threshold_server`) call this module at the stages `upload` and `decrypt`.

Each client signs the SHA-256 of its ciphertexts for one exchange (Ed25519). The server passes all uploads with their
signatures on to the share holders, who check every signature and multiply the ciphertexts themselves: so the server
cannot have anything decrypted but a product of at least t uploads of that exchange. A client's Ed25519 key is dealt at
set-up with the shares (`key_set`).

Not promised: that an upload is independent of others': a client may sign a product of ciphertexts that it has seen.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Final

import numpy as np
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from securefed._messages import ClientId, PartyId
from securefed._persistence.packing import from_bytes
from securefed._tensors import Array, Tensors
from securefed.defenses._homomorphic import cipher
from securefed.defenses._homomorphic.key_holder import CIPHERTEXTS, SURVIVORS
from securefed.defenses._homomorphic.key_set import SharedKey
from securefed.defenses._plan import Session, plan_digest
from securefed.errors import AuthenticationError, ContradictionError, MalformedError

SIGNATURE: Final = "signature"
SIGNATURES: Final = "signatures"
SIGNATURE_BYTES: Final = 64


def digest(ciphertexts: Array) -> bytes:
    """Compute SHA-256 of an upload's ciphertexts as they stand on the wire."""
    return hashlib.sha256(np.ascontiguousarray(ciphertexts).tobytes()).digest()


def context(key: SharedKey, session: Session, stage: str, client: ClientId) -> bytes:
    """Encode the context that a signature or proof is bound to; its size does not depend on cohort or plan.

    It consists of run, exchange, cohort, plan, exchange context, stage, sender and key. All parts but the run have a
    fixed size, so that different contexts never give the same bytes. The exchange context is a hash of all that a
    client received before its upload. The server does not send it to share holders: a holder checks signatures against
    its own exchange context, and so refuses uploads of clients that were told something else.

    Args:
        key: the public part of the threshold keys.
        session: run, exchange number, cohort, plan and exchange context.
        stage: `upload` for a signature, `decrypt` for a proof.
        client: the client that signs or proves.
    """
    cohort = hashlib.sha256(np.asarray(session.cohort, np.int64).tobytes()).digest()
    exchange_context = hashlib.sha256(session.context).digest()
    head = f"securefed paillier_threshold {stage}".ljust(48).encode()
    numbers = session.round.to_bytes(8, "little") + client.to_bytes(8, "little")
    return (
        head + session.run.encode() + numbers + cohort + exchange_context + plan_digest(session.plan) + key.fingerprint
    )


def sign(key: SharedKey, signer: bytes, session: Session, client: ClientId, ciphertexts: Array) -> Array:
    """Sign `ciphertexts` as this client's upload in this exchange (Ed25519).

    Args:
        key: the public part of the threshold keys.
        signer: the client's private key, 32 bytes.
        session: with the exchange context that this client received.
        client: its id.
        ciphertexts: the ciphertexts as they travel, uint8 (count, bytes).

    Returns:
        The signature, uint8 (64,).
    """
    message = context(key, session, "upload", client) + digest(ciphertexts)
    return from_bytes(Ed25519PrivateKey.from_private_bytes(signer).sign(message))


def check_signature(
    key: SharedKey, session: Session, client: ClientId, ciphertexts: Array, signature: Array, sender: PartyId
) -> None:
    """Raise unless `client` signed these ciphertexts for this exchange.

    Args:
        key: the public part of the threshold keys, with the clients' public keys.
        session: run, exchange number, cohort, plan and exchange context.
        client: the client that is said to have signed.
        ciphertexts: the ciphertexts as they travel, uint8 (count, bytes).
        signature: uint8 (64,).
        sender: the party that sent them, named in errors: the client, or a server that passes them on.

    Raises:
        MalformedError: the signature is not 64 bytes.
        AuthenticationError: the client did not sign them, or was dealt no key to sign with.
    """
    if signature.dtype != np.uint8 or signature.shape != (SIGNATURE_BYTES,):
        raise MalformedError(sender, f"a signature is {SIGNATURE_BYTES} bytes, not {signature.dtype} {signature.shape}")
    if (identity := key.identities.get(client)) is None:
        raise AuthenticationError(
            sender, f"the upload of client {client} is not signed: client {client} was dealt no identity"
        )
    message = context(key, session, "upload", client) + digest(ciphertexts)
    try:
        Ed25519PublicKey.from_public_bytes(identity).verify(signature.tobytes(), message)
    except InvalidSignature as error:
        raise AuthenticationError(sender, f"the upload of client {client} is not signed by it") from error


def decryption_request(uploads: Mapping[ClientId, Tensors]) -> dict[str, Array]:
    """Write the request to share holders: the upload of every survivor (client that uploaded), unchanged."""
    survivors = sorted(uploads)
    return {
        SURVIVORS: np.asarray(survivors, np.int64),
        CIPHERTEXTS: np.stack([uploads[client][CIPHERTEXTS] for client in survivors]),
        SIGNATURES: np.stack([uploads[client][SIGNATURE] for client in survivors]),
    }


def read_decryption_request(
    key: SharedKey, session: Session, body: Tensors, count: int, sender: PartyId
) -> dict[ClientId, Array]:
    """Read a request that `decryption_request` wrote: each survivor's ciphertexts on the wire, all signatures verified.

    Args:
        key: the public part of the threshold keys.
        session: as this holder knows it, with the exchange context that it received.
        body: the request's fields.
        count: number of ciphertexts of an upload.
        sender: the party named in errors.

    Raises:
        MalformedError: wrong fields, types, sizes or ids.
        ContradictionError: fewer than t survivors, or one that was not invited.
        AuthenticationError: an upload that its client did not sign for this exchange.
    """
    if set(body) != (expected := {SURVIVORS, CIPHERTEXTS, SIGNATURES}):
        raise MalformedError(sender, f"a request to decrypt holds {sorted(expected)}, not {sorted(body)}")
    survivors, ciphertexts, signatures = body[SURVIVORS], body[CIPHERTEXTS], body[SIGNATURES]
    if survivors.dtype != np.int64 or survivors.ndim != 1 or (np.diff(survivors) <= 0).any():
        raise MalformedError(sender, "the survivors are no ascending int64 ids")
    if not set(survivors.tolist()) <= set(session.cohort):
        raise ContradictionError(sender, "the survivors are not all of this exchange's cohort")
    if len(survivors) < key.threshold:
        raise ContradictionError(sender, f"{len(survivors)} uploads, decryption needs {key.threshold}")
    shape = (len(survivors), count, key.public.ciphertext_bytes)
    if ciphertexts.dtype != np.uint8 or ciphertexts.shape != shape:
        raise MalformedError(sender, f"uploads are {ciphertexts.dtype} {ciphertexts.shape}, not uint8 {shape}")
    if signatures.ndim != 2 or len(signatures) != len(survivors):
        raise MalformedError(sender, "there is not one signature for each upload")
    for client, rows, signature in zip(survivors.tolist(), ciphertexts, signatures, strict=True):
        check_signature(key, session, client, rows, signature, sender)
    return dict(zip(survivors.tolist(), ciphertexts, strict=True))


def product(key: SharedKey, uploads: Mapping[ClientId, Array], sender: PartyId | None = None) -> cipher.Integers:
    """Multiply all uploads' ciphertexts, position by position, after a check of each.

    Args:
        key: the shared key.
        uploads: ciphertexts on the wire, by client.
        sender: the party named for a number that is no ciphertext; by default the client it came from.

    Returns:
        The ciphertexts of the sum of the uploads' plaintexts.

    Raises:
        MalformedError: a number that is no ciphertext.
    """
    public = key.public
    total: cipher.Integers | None = None
    for client, rows in uploads.items():
        blamed = client if sender is None else sender
        ciphertexts = cipher.from_wire(rows, len(rows), public.ciphertext_bytes, blamed)
        cipher.check(public, ciphertexts, blamed)
        total = ciphertexts if total is None else cipher.multiply(public, total, ciphertexts)
    assert total is not None
    return total
