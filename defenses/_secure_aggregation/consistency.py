"""Sign and check what a deviating server must not forge: the clients' keys and the set of survivors.

An exchange is one secure sum; its survivors are the clients whose uploads are in it. A server that could advertise keys
of its own for a client, or name different survivors to different clients, could open sums over fewer clients than the
plan's threshold. The client's and the server's steps call the functions here. With identities (long-lived Ed25519 keys
that all parties know from the start) each client signs two statements, both bound to the session (run, round, plan,
cohort) and to their stage:
- at `keys`, its own id and its two public keys, so that other clients mask with these keys and deal shares to them only
  if that client made them;
- at `confirm`, the set of survivors. A client signs one set in an exchange, and reveals shares only for that set, once
  `threshold` clients signed it.
If 2 threshold > clients + corrupt clients, two sets with `threshold` signatures each would have a common honest signer,
but an honest client signs once. So all honest clients unmask the same set, of at least `threshold` clients, or none.

Whether a sum over these survivors may be opened beside earlier ones is for the client's ledger to say, before it signs
(`SupportsReleases`): `threshold` clients signed for the first sum and refuse another, so too few are left to sign it.
(On a sparse graph, where clients share secrets with few neighbours only, condition 6 in the head of `graph.py` has the
graph chosen so that still too few are left.)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from securefed._messages import SERVER, ClientId, Message
from securefed._persistence.packing import from_bytes
from securefed._tensors import Array
from securefed.defenses._secure_aggregation.identities import SIGNATURE_BYTES, Identities
from securefed.defenses._secure_aggregation.primitives import fingerprint
from securefed.defenses._secure_aggregation.session import CONFIRM, KEYS, UNMASK
from securefed.errors import ContradictionError

SIGNATURE, SIGNATURES = "signature", "signatures"


def keys_statement(session: bytes, ahead: bool, client: ClientId, keys: bytes) -> bytes:
    """Return the statement, 32 bytes, by which a client signs its two public keys.

    Args:
        session: `session_digest`.
        ahead: whether the keys are advertised during the exchange before theirs (a pipelined run).
        client: their owner.
        keys: both, 64 bytes.
    """
    return fingerprint("advertised keys", session, KEYS, int(ahead), client, keys)


def survivors_statement(exchange: bytes, alive: Sequence[ClientId]) -> bytes:
    """Return the statement, 32 bytes, by which survivors sign their set.

    Args:
        exchange: digest of session, advertised keys, share dealers and of all that clients were told before the upload
            (`share_dealers_digest`).
        alive: the survivors' ids, ascending.
    """
    return fingerprint("survivors", CONFIRM, exchange, *alive)


def signed(identities: Identities, client: ClientId, statement: bytes) -> dict[str, Array]:
    """Return the field with the client's signature."""
    return {SIGNATURE: from_bytes(identities.sign(client, statement))}


def take_signature(reply: Message, identities: Identities, statement: bytes) -> Array:
    """Read and check the sender's signature of the statement, uint8 (64,).

    Args:
        reply: with the field `SIGNATURE`.
        identities: public identities.
        statement: 32 bytes, from `keys_statement` or `survivors_statement`.

    Raises:
        MalformedError: there is no signature.
        AuthenticationError: the sender did not sign this statement.
    """
    signature = reply.take(SIGNATURE, np.uint8, (SIGNATURE_BYTES,))
    identities.verify(reply.sender, statement, signature.tobytes(), f"what it sent at stage {reply.stage!r}")
    return signature


def check_adverts(
    request: Message,
    identities: Identities,
    session: bytes,
    ahead: bool,
    advertised_clients: Sequence[ClientId],
    keys: Array,
) -> None:
    """Raise unless each advertised client signed the keys that the server gives for it.

    Args:
        request: the server's, with the signatures.
        identities: public identities.
        session: `session_digest`.
        ahead: whether the keys are advertised during the exchange before theirs (a pipelined run).
        advertised_clients: ids of the clients whose keys the server gives, ascending.
        keys: both keys of each, uint8 (advertised clients, 64).

    Raises:
        MalformedError: signatures are missing.
        AuthenticationError: a client did not sign the keys that are given for it; it is named.
    """
    signatures = request.take(SIGNATURES, np.uint8, (len(advertised_clients), SIGNATURE_BYTES))
    for client, pair, signature in zip(advertised_clients, keys, signatures, strict=True):
        statement = keys_statement(session, ahead, client, pair.tobytes())
        identities.verify(client, statement, signature.tobytes(), "its advertised keys, as the server gives them,")


def check_quorum(
    request: Message, identities: Identities, exchange: bytes, alive: Sequence[ClientId], threshold: int
) -> None:
    """Raise unless `threshold` of the survivors signed this very set of survivors.

    Args:
        request: the server's, with the signers' ids and their signatures.
        identities: public identities.
        exchange: `share_dealers_digest`, as this client was told its parts.
        alive: the survivors that this client signed.
        threshold: how many signatures are needed.

    Raises:
        MalformedError: the fields are missing or of another shape, or name a signer that is no survivor.
        ContradictionError: fewer signatures.
        AuthenticationError: a signature of another set, or by another client.
    """
    signers = request.take_ids("ids", alive)
    signatures = request.take(SIGNATURES, np.uint8, (len(signers), SIGNATURE_BYTES))
    if len(signers) < threshold:
        raise ContradictionError(
            SERVER, f"{len(signers)} survivors signed the set to unmask at stage {UNMASK!r}; {threshold} must"
        )
    statement = survivors_statement(exchange, alive)
    for client, signature in zip(signers, signatures, strict=True):
        identities.verify(client, statement, signature.tobytes(), "the set of survivors to unmask")
