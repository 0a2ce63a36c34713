"""The first bytes of every message between parties: mark and version of the protocol, digest of the terms, signature.

With them a party refuses a message of another release, or of parties that agreed to other terms, before it decodes it.

16 bytes "securefed sum" and zeros, 2 bytes version (little-endian), 32 bytes digest of the terms; then the message.
A signed message begins with "securefed signed" instead; 64 bytes of an Ed25519 signature stand between header and
message.

A server signs its requests where the transport does not say who wrote them, such as a folder that several sites share,
in which every site could play the server. A client that pins the server's public key refuses all other requests. The
signature covers the terms and the whole message, which names run, exchange, stage and receiver. The key is
no part of the terms: the server proposes terms, so that a key in them would prove nothing. Each site pins it.
"""

from __future__ import annotations

import struct
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from securefed._messages import PROTOCOL_VERSION, LengthLimits, check_version
from securefed.defenses._secure_aggregation.identities import SIGNATURE_BYTES, fingerprint_of
from securefed.defenses._secure_aggregation.primitives import KEY_BYTES, fingerprint
from securefed.errors import AuthenticationError, ConfigError, MalformedError, TermsDiffer

_MARK: Final = b"securefed sum"
_SIGNED: Final = b"securefed signed"
_HEADER: Final = struct.Struct("<16sH32s")
LONGEST: Final = _HEADER.size + SIGNATURE_BYTES
"""Most bytes that stand before a message."""


def check_key(name: str, key: bytes | None) -> bytes | None:
    """Return a public or private key; raise `ConfigError`, which names the parameter, unless it is 32 bytes or none."""
    if key is not None and not (isinstance(key, bytes) and len(key) == KEY_BYTES):
        raise ConfigError(
            f"{name} must be a key of {KEY_BYTES} bytes, from new_identity() (private) or public_identity(key) (public)"
        )
    return key


def header(digest: bytes) -> bytes:
    """Return the header of an unsigned message, for terms of this digest."""
    return _HEADER.pack(_MARK, PROTOCOL_VERSION, digest)


def wrap(digest: bytes, message: bytes, identity: bytes | None = None) -> bytes:
    """Put the header before an encoded message.

    Args:
        digest: digest of the terms.
        message: the encoded message.
        identity: the sender's private key, 32 bytes, which signs it; `None` leaves it unsigned.
    """
    if identity is None:
        return header(digest) + message
    return _HEADER.pack(_SIGNED, PROTOCOL_VERSION, digest) + sign(identity, digest, message) + message


def unwrap(
    digest: bytes, data: bytes, sender: int, *, limits: LengthLimits | None = None, pinned: bytes | None = None
) -> bytes:
    """Check the header and return the message behind it.

    Args:
        digest: digest of this party's terms.
        data: the bytes that arrived, as `bytes`, `bytearray` or `memoryview`.
        sender: the party that the transport names as their sender.
        limits: refuses a message that is longer than any of these terms; `None` for bytes of this party's own.
        pinned: the sender's public key, 32 bytes; a message that it did not sign is refused. `None` trusts the
            transport.

    Raises:
        ConfigError: not bytes.
        MalformedError: the bytes are no message of this protocol, or too long for one.
        VersionRefused: the sender speaks another version of the protocol.
        TermsDiffer: the sender has other terms.
        AuthenticationError: the pinned key did not sign the message.
    """
    if not isinstance(data, bytes | bytearray | memoryview):
        raise ConfigError(f"a message is bytes, as the other party made it; got {type(data).__name__}")
    data = bytes(data)  # a copy only of what is not bytes yet
    signed = data.startswith(_SIGNED)
    start = LONGEST if signed else _HEADER.size
    if len(data) < start or not (signed or data.startswith(_MARK)):
        raise MalformedError(sender, "these bytes are no message of securefed.parties; pass requests and replies whole")
    _, version, theirs = _HEADER.unpack_from(data)
    check_version(version, sender)
    if theirs != digest:
        raise TermsDiffer(
            sender,
            f"its terms have the digest {theirs.hex()[:16]}, and this party's {digest.hex()[:16]}: tensors, bounds, "
            "clients, defence, mask stream or rounds differ; give all parties the same SumTerms (SumTerms.to_bytes)",
        )
    message = data[start:]
    if limits is not None:
        limits.check(message, sender)
    if pinned is not None:
        check_signed(pinned, data[_HEADER.size : start], sender, digest, message)
    return message


def sign(identity: bytes, digest: bytes, *parts: bytes) -> bytes:
    """Sign a message, or the files of a result, under terms of this digest; 64 bytes."""
    return Ed25519PrivateKey.from_private_bytes(identity).sign(fingerprint("signed by a party", digest, *parts))


def check_signed(pinned: bytes, signature: bytes, sender: int, digest: bytes, *parts: bytes) -> None:
    """Raise `AuthenticationError`, which names the sender, unless the pinned public key signed these parts (`sign`)."""
    try:
        Ed25519PublicKey.from_public_bytes(pinned).verify(signature, fingerprint("signed by a party", digest, *parts))
    except (InvalidSignature, ValueError) as error:
        raise AuthenticationError(
            sender,
            f"it is {'signed by another key' if signature else 'not signed'}, and this party pins the key with the "
            f"fingerprint {fingerprint_of(pinned)}; ask the server for its public key, over the phone",
        ) from error
