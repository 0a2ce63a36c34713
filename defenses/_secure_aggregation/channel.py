"""Authenticate messages between one client and the server, and read the fields of their bodies.

Both sides derive a secret for each exchange (one secure sum) from fresh X25519 keys, which the server sends in the
request at stage `keys` and the client in its reply. That reply and every later body (the named arrays of a message)
carry the field `tag`: a random nonce of 12 bytes and the 16 bytes of the GMAC (NIST SP 800-38D) of all other fields,
under a key of 32 bytes derived for this run, round (number of the exchange), stage, sender and receiver. So a body that
is altered, replayed, re-ordered or attributed to another sender is refused. The secret is in the states of client and
server until the exchange ends. This module encrypts nothing.

Not promised: that the keys are those of the true server and client. Two parties share this secret with whomever they
exchanged keys with; only `identities`, or a transport that authenticates, say who that is.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from numpy.typing import DTypeLike

from securefed._messages import ClientId, Message, PartyId
from securefed._persistence.packing import from_bytes
from securefed._tensors import Array, Tensors
from securefed.defenses._secure_aggregation.primitives import hkdf, label
from securefed.errors import AuthenticationError, MalformedError

TAG = "tag"
TAG_BYTES = 28  # nonce and GMAC
_NONCE = 12
_SMALL = 1 << 14  # bytes; a shorter body is sooner copied into one string than handed over field by field


def agreed_secret(
    session: bytes, client: ClientId, server_key: bytes, keys: tuple[bytes, bytes], agreement: bytes
) -> bytes:
    """Derive the channel's secret from the agreement of the server's key with the client's share key.

    It is bound to the session's digest and to all three public keys. So a client that can compute it holds the private
    share key. It proves nothing about the mask key: a client that advertises a mask key which is not its own cannot
    compute its masks. So it makes the sum useless, as it could by uploading noise. If it is lost, the mask key that is
    reconstructed from its shares does not fit the advertised one, and the client is named.

    Args:
        session: digest of run, exchange number, cohort and plan (`session_digest`).
        client: its id.
        server_key: the server's public key.
        keys: the client's public share key, with which it agrees on this secret, and its public mask key.
        agreement: the X25519 secret of the server's key and the share key.

    Returns:
        32 bytes.
    """
    return hkdf(agreement, label("channel", session, client, server_key, *keys))


def seal(
    secret: bytes, run: str, round: int, stage: str, sender: PartyId, receiver: PartyId, body: Tensors,
    context: bytes = b"",
) -> Tensors:  # fmt: skip
    """Return `body` with its tag in the field `TAG`.

    Args:
        secret: `agreed_secret`.
        run: the run's identifier.
        round: number of the exchange.
        stage: the protocol's stage.
        sender: the party that sends the message.
        receiver: the party that it is for.
        body: the fields, without a tag.
        context: further bytes that the tag is bound to and that both sides know; at the upload a hash of what the
            client received before.
    """
    nonce, header = os.urandom(_NONCE), label("message", run, round, stage, sender, receiver, context)
    return {**body, TAG: from_bytes(nonce + _gmac(secret, header, nonce, body))}


def verify(secret: bytes, message: Message, context: bytes = b"") -> None:
    """Raise unless the message's body is as the holder of `secret` sealed it for `context`.

    Args:
        secret: `agreed_secret` of the channel with the message's sender.
        message: its run, round, stage, sender and receiver are checked with the body.
        context: as given to `seal`.

    Raises:
        MalformedError: there is no tag, or a field is no array.
        AuthenticationError: the tag does not match.
    """
    tag = take(message, TAG, np.uint8, (TAG_BYTES,)).tobytes()
    body = {name: value for name, value in message.body.items() if name != TAG}
    for name in body:
        _array(message, name)
    names = (message.run, message.round, message.stage, message.sender, message.receiver)
    mac = _gmac(secret, label("message", *names, context), tag[:_NONCE], body)
    if not hmac.compare_digest(mac, tag[_NONCE:]):
        raise AuthenticationError(message.sender, f"the tag of its {message.stage!r} message does not match")


def verify_refusal(secret: bytes, refusal: Message) -> None:
    """Raise unless a refusal (the message by which a client declines a request) is of the holder of `secret`.

    Raises:
        MalformedError, AuthenticationError: as `verify`; a refusal without a tag is named as that.
    """
    if TAG not in refusal.body:
        raise MalformedError(
            refusal.sender,
            "it refused without the keys of this exchange, as a client does that lost its state since the last one",
        )
    verify(secret, refusal)


def expect_fields(message: Message, names: Iterable[str]) -> None:
    """Raise `MalformedError` unless the body holds exactly these fields."""
    if set(message.body) != set(names):
        raise MalformedError(message.sender, f"fields {sorted(message.body)}, expected {sorted(names)}")


def take(message: Message, name: str, dtype: DTypeLike, shape: tuple[int | None, ...]) -> Array:
    """Return the field `name` of a message, once its type and shape are checked; `None` in `shape` allows any length.

    Raises:
        MalformedError: the field is missing, or of another type or shape.
    """
    value = _array(message, name)
    same_shape = len(value.shape) == len(shape) and all(
        length in (None, actual) for length, actual in zip(shape, value.shape, strict=True)
    )
    if value.dtype != np.dtype(dtype) or not same_shape:
        raise MalformedError(message.sender, f"field {name!r} is {value.dtype} of shape {value.shape}")
    return value


def take_ids(message: Message, name: str, among: Iterable[int]) -> tuple[int, ...]:
    """Read the field `name` as ascending ids.

    Raises:
        MalformedError: not ascending, repeated, or not `among` those it may hold.
    """
    ids = tuple(take(message, name, np.int64, (None,)).tolist())
    if list(ids) != sorted(set(ids)) or not set(ids) <= set(among):
        raise MalformedError(message.sender, f"{name!r} holds ids that are unknown, repeated or out of order")
    return ids


def _array(message: Message, name: str) -> Array:
    """Return a field, if it is an array of numbers; `MalformedError` otherwise."""
    value: Any = message.body.get(name)
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "iuf":
        raise MalformedError(message.sender, f"field {name!r} is missing or no array of numbers")
    return value


def _gmac(secret: bytes, header: bytes, nonce: bytes, body: Tensors) -> bytes:
    """Compute the GMAC of all fields, 16 bytes: in the order of their names, each after its name, type and shape.

    The key is for the one message that `header` names: run, number, stage, sender, receiver and context.
    """
    key = hkdf(secret, header)
    parts: list[bytes | memoryview] = []
    for name in sorted(body):
        value = np.ascontiguousarray(body[name])
        parts += (_heading(name, value.dtype.str, body[name].shape), value.reshape(-1).view(np.uint8).data)
    if sum(map(len, parts)) < _SMALL:  # the same tag in one call
        return AESGCM(key).encrypt(nonce, b"", b"".join(parts))
    mac = Cipher(algorithms.AES(key), modes.GCM(nonce)).encryptor()
    for part in parts:
        mac.authenticate_additional_data(part)
    mac.finalize()
    return mac.tag


@lru_cache(maxsize=1024)
def _heading(name: str, dtype: str, shape: tuple[int, ...]) -> bytes:
    """Encode what stands before a field's bytes in the tag's input: name, type, number of dimensions and lengths.

    It says how many bytes follow, so that no two bodies give the same input.
    """
    return label(name, dtype, len(shape), *shape)
