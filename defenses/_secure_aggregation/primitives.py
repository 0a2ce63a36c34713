"""Wrap the cryptographic primitives: key agreement, key derivation, key stream, encryption of shares.

All of them are the `cryptography` library's; this module only decides how their inputs are bound and separated. Secrets
are never a parameter of the public API: they come from the operating system in `client_open` and `server_open`.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from securefed._messages import PartyId
from securefed.errors import AuthenticationError, MalformedError

KEY_BYTES = 32
_ONE_USE_NONCE = bytes(12)
_PRIME = 2**255 - 19
_ORDER_EIGHT = (
    0xB8495F16056286FDB1329CEB8D09DA6AC49FF1FAE35616AEB8413B7C7AEBE0,
    0x57119FD0DD4E22D8868E1C58C45C44045BEF839C55B1D0B1248C50A3BC959C5F,
)
_SMALL_ORDER = {u.to_bytes(KEY_BYTES, "little") for u in (0, 1, *_ORDER_EIGHT, _PRIME - 1, _PRIME, _PRIME + 1)}
"""Every encoding of a point of order 1, 2, 4 or 8 on curve or twist, top bit clear (those above p + 1 are no such)."""


def label(*parts: bytes | str | int) -> bytes:
    """Encode a list of parts as one byte string; different lists never give the same string."""
    framed: list[bytes] = []
    for part in parts:
        if type(part) is bytes:
            framed += (_head(b"b", len(part)), part)
        else:
            framed.append(_framed_word(part))
    return b"".join(framed)


@lru_cache(maxsize=4096)
def _head(kind: bytes, length: int) -> bytes:
    return kind + length.to_bytes(8, "little")


@lru_cache(maxsize=4096, typed=True)
def _framed_word(part: str | int) -> bytes:
    """Encode one name or number; remembered, as they recur in every label of an exchange."""
    data = str(part).encode()
    return _head(b"s" if isinstance(part, str) else b"i", len(data)) + data


def fingerprint(*parts: bytes | str | int) -> bytes:
    """Compute SHA-256 of `label(*parts)`."""
    return hashlib.sha256(label(*parts)).digest()


def hkdf(secret: bytes, info: bytes, length: int = KEY_BYTES, salt: bytes | None = None) -> bytes:
    """Derive key material by HKDF-SHA256 (RFC 5869), extract and expand."""
    return HKDF(SHA256(), length, salt, info).derive(secret)


def private_key(secret: bytes) -> X25519PrivateKey:
    """Load the X25519 key with this scalar (32 bytes, clamped as in RFC 7748). Loading costs as much as `agree`."""
    return X25519PrivateKey.from_private_bytes(secret)


def public_bytes(key: X25519PrivateKey) -> bytes:
    """Return the public key, the 32 bytes to advertise."""
    return key.public_key().public_bytes_raw()


def agree(key: X25519PrivateKey, public: bytes, owner: PartyId) -> bytes:
    """Agree on a secret by X25519 (RFC 7748) with the public key of `owner`.

    Raises:
        MalformedError: the key has small order, so that the result would not depend on `key`.
    """
    try:
        return key.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError as error:
        raise MalformedError(owner, "its public key has small order or a wrong length") from error


def check_order(public: bytes, owner: PartyId) -> None:
    """Raise `MalformedError` where `agree` would, with any private key; a thousandth of the work."""
    if public[:-1] + bytes([public[-1] & 0x7F]) in _SMALL_ORDER:  # X25519 ignores the top bit
        raise MalformedError(owner, "its public key has small order or a wrong length")


def key_stream(seed: bytes) -> Any:
    """Make an AES-128-CTR encryptor; `seed` is 16 bytes of key and the first counter block (NIST SP 800-38A)."""
    return Cipher(algorithms.AES(seed[:16]), modes.CTR(seed[16:])).encryptor()


def mask_stream(seed: bytes) -> Any:
    """Make the encryptor of a mask's stream: AES-128-CTR, 64 GiB at most.

    16 bytes of `seed` are the key, the next 12 the nonce; the counter starts at 2. Those are the blocks that AES-GCM
    encrypts with (NIST SP 800-38D, sec. 7.1), and by way of it they come nearly twice as fast where the processor has
    vector AES, which OpenSSL uses for GCM alone. No tag is made of it.
    """
    return Cipher(algorithms.AES(seed[:16]), modes.GCM(seed[16:28])).encryptor()


def encrypt_once(key: bytes, data: bytes, bound: bytes) -> bytes:
    """Encrypt by AES-256-GCM under a key that serves once, hence with a constant nonce; `bound` is authenticated."""
    return AESGCM(key).encrypt(_ONE_USE_NONCE, data, bound)


def decrypt_once(key: bytes, data: bytes, bound: bytes, sender: PartyId) -> bytes:
    """Decrypt what `encrypt_once` made.

    Raises:
        AuthenticationError: the ciphertext was not made under this key for this `bound`.
    """
    try:
        return AESGCM(key).decrypt(_ONE_USE_NONCE, data, bound)
    except InvalidTag as error:
        raise AuthenticationError(sender, "what it encrypted for this client does not decrypt") from error
