"""Wrap the cryptographic primitives: key agreement and derivation, encryption, tags of messages, secret sharing.

All but the last are the `cryptography` library's; this module only decides how their inputs are encoded, so that no two
purposes share a key. The other modules of secure aggregation call it. Its secrets are never a parameter of the public
API: they come from the operating system when a client or the server starts an exchange (`client_open`, `server_open`).

Tags authenticate messages between one client and the server. Both derive a secret for each exchange (one secure sum)
from fresh X25519 keys, which the server sends in the request at stage `keys` and the client in its reply. That reply
and every later body (the named arrays of a message) carry the field `tag`: a random nonce of 12 bytes and the 16 bytes
of the GMAC (NIST SP 800-38D) of all other fields, under a key derived for this run, exchange, stage, sender and
receiver. So a body that is altered, replayed, re-ordered or attributed to another sender is refused. Not promised: that
the keys are those of the true server and client; only `identities`, or a transport that authenticates, say who it is.

`PrimeField` shares secrets of 32 bytes by Shamir's scheme (Shamir 1979). Secret s is the constant term of a polynomial
f of degree t - 1 with random coefficients; the holder at point x has f(x), and s = sum_x w_x f(x) for any t points x,
with Lagrange's weights at 0, w_x = prod_{y != x} y / (y - x) over the other points y. Fewer than t shares are
independent of s. All arithmetic is modulo the prime 2^255 - 19. The polynomials of several secrets are evaluated
together: each takes its own range of bytes (a lane) of one long integer, wide enough for its values before they are
reduced modulo the prime. So one product of long integers, computed by C code, serves all lanes.

Not promised: constant time, of shares at all (Python integers), of the rest beyond what the library gives; or that
secrets are wiped from memory (Python cannot). Nor is a wrong share detected here: it leads to a wrong secret, and the
caller compares the secret with a commitment that its owner published.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import gmpy2
import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from securefed._messages import ClientId, Message, PartyId
from securefed._persistence.packing import from_bytes
from securefed._tensors import Array, Tensors
from securefed.errors import AuthenticationError, MalformedError

KEY_BYTES = 32
TAG = "tag"
TAG_BYTES = 28  # nonce and GMAC
_NONCE = 12
_SMALL = 1 << 14  # bytes; a shorter body is sooner copied into one string than handed over field by field
_ONE_USE_NONCE = bytes(12)
"""A nonce must not repeat under one key. Keys of `encrypt_once` encrypt one message, so a constant one does."""
_PRIME = 2**255 - 19
_ORDER_EIGHT = (
    0xB8495F16056286FDB1329CEB8D09DA6AC49FF1FAE35616AEB8413B7C7AEBE0,
    0x57119FD0DD4E22D8868E1C58C45C44045BEF839C55B1D0B1248C50A3BC959C5F,
)
_SMALL_ORDER = {u.to_bytes(KEY_BYTES, "little") for u in (0, 1, *_ORDER_EIGHT, _PRIME - 1, _PRIME, _PRIME + 1)}
"""Every encoding, with a clear top bit, of the u-coordinate of a point of order 1, 2, 4 or 8 on Curve25519 or its
twist. (u and u + p encode the same point; only 0 and 1 of these have a second encoding below 2^255: p and p + 1.)"""


def label(*parts: bytes | str | int) -> bytes:
    """Encode a list of parts as one byte string; different lists never give the same string.

    Each part is written as one letter for its type (b, s, i), its length in 8 bytes, and its bytes.
    """
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
    """Derive key material by HKDF-SHA256 (RFC 5869), extract and expand.

    Args:
        secret: the input key material.
        info: a `label` that names purpose and context; different ones give independent keys.
        length: bytes to derive.
        salt: the salt of the extraction; `None` for zeros, as inputs here are uniform or X25519 secrets.
    """
    return HKDF(SHA256(), length, salt, info).derive(secret)


def private_key(secret: bytes) -> X25519PrivateKey:
    """Load the X25519 key with this scalar (32 bytes, clamped as in RFC 7748). Loading costs as much as `agree`."""
    return X25519PrivateKey.from_private_bytes(secret)


def public_bytes(key: X25519PrivateKey) -> bytes:
    """Return the public key, the 32 bytes to advertise."""
    return key.public_key().public_bytes_raw()


def agree(key: X25519PrivateKey, public: bytes, owner: PartyId) -> bytes:
    """Agree on a secret by X25519 (RFC 7748) with the public key of `owner`.

    Args:
        key: this party's private key.
        public: the other party's public key, 32 bytes.
        owner: the other party, named in the error.

    Returns:
        32 secret bytes, the same at both parties. They are not uniform: derive keys from them by `hkdf`.

    Raises:
        MalformedError: the key has small order, so that the result would not depend on `key`.
    """
    try:
        return key.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError as error:
        raise MalformedError(owner, "its public key has small order or a wrong length") from error


def check_order(public: bytes, owner: PartyId) -> None:
    """Raise `MalformedError` for 32 bytes that `agree` would refuse with any private key; a thousandth of the work."""
    if public[:-1] + bytes([public[-1] & 0x7F]) in _SMALL_ORDER:  # X25519 ignores the top bit
        raise MalformedError(owner, "its public key has small order or a wrong length")


def key_stream(seed: bytes) -> Any:
    """Make an AES-128-CTR encryptor (NIST SP 800-38A); encrypting zeros gives a pseudorandom stream.

    It expands seeds into Shamir coefficients, the order of a graph, the weights of tags, and the integers of a client
    that sits out, not masks.

    Args:
        seed: 32 bytes, used once: 16 of key, then the first counter block.
    """
    return Cipher(algorithms.AES(seed[:16]), modes.CTR(seed[16:])).encryptor()


def encrypt_once(key: bytes, data: bytes, bound: bytes) -> bytes:
    """Encrypt by AES-256-GCM under a key that encrypts nothing else, hence with a constant nonce.

    Args:
        key: 32 bytes, used for this one message.
        data: the plaintext.
        bound: what the ciphertext belongs to; authenticated, and not part of the result.

    Returns:
        The ciphertext, 16 bytes longer than `data`.
    """
    return AESGCM(key).encrypt(_ONE_USE_NONCE, data, bound)


def decrypt_once(key: bytes, data: bytes, bound: bytes, sender: PartyId) -> bytes:
    """Decrypt what `encrypt_once` made under this key and for this `bound`; `sender` is named in the error.

    Raises:
        AuthenticationError: the ciphertext was not made under this key for this `bound`.
    """
    try:
        return AESGCM(key).decrypt(_ONE_USE_NONCE, data, bound)
    except InvalidTag as error:
        raise AuthenticationError(sender, "what it encrypted for this client does not decrypt") from error


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
    tag = message.take(TAG, np.uint8, (TAG_BYTES,)).tobytes()
    body = {name: value for name, value in message.body.items() if name != TAG}
    for name in body:
        message.take(name)
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


_WIDE = 48  # bytes reduced to one field element: the bias is below 2^-128


@dataclass(frozen=True)
class PrimeField:
    """The integers modulo a prime, with sharing over them.

    Attributes:
        prime: a prime of at most 32 bytes.
    """

    prime: int

    def element(self, wide: bytes) -> bytes:
        """Reduce 48 uniform bytes to an element, in 32 bytes little-endian."""
        return (int.from_bytes(wide, "little") % self.prime).to_bytes(KEY_BYTES, "little")

    def coefficients(self, seed: bytes, count: int) -> list[int]:
        """Draw `count` field elements from the key stream of `seed`, 32 secret bytes that are used once."""
        stream = key_stream(seed).update(bytes(count * _WIDE))
        return [int.from_bytes(stream[i : i + _WIDE], "little") % self.prime for i in range(0, len(stream), _WIDE)]

    def split(self, secrets: Sequence[bytes], coefficients: Sequence[int], holders: int) -> Array:
        """Compute shares at the points 1..holders, uint8 of shape (holders, secrets, 32).

        Args:
            secrets: field elements, 32 bytes little-endian each.
            coefficients: (t - 1) * len(secrets) random field elements, each used once.
            holders: number of points.
        """
        degree = len(coefficients) // len(secrets)
        # A lane holds f(x) before reduction: degree + 1 terms below prime * holders^degree, rounded up to whole bytes.
        lane = (self.prime.bit_length() + (degree + 1) * holders.bit_length()) // 8 + 2
        rows = [[int.from_bytes(secret, "little") for secret in secrets]]
        rows += [list(coefficients[k * len(secrets) : (k + 1) * len(secrets)]) for k in range(degree)]
        # rows[k] holds the coefficients of x^k of all secrets; each row becomes one integer, the highest power first.
        packed = [sum(value << (8 * lane * k) for k, value in enumerate(row)) for row in reversed(rows)]
        out = bytearray()
        for x in range(1, holders + 1):
            value = 0
            for coefficient in packed:  # Horner
                value = value * x + coefficient
            out += self._lanes(value, lane, len(secrets))
        return np.frombuffer(bytes(out), np.uint8).reshape(holders, len(secrets), KEY_BYTES)

    def combine(self, points: Sequence[int], shares: Array) -> list[bytes]:
        """Reconstruct the secrets, 32 bytes each, from exactly t shares of every one.

        Fewer or wrong shares give wrong secrets and no error: the caller checks what it reconstructed.

        Args:
            points: t different points x, from 1.
            shares: the values at these points, uint8 (t, secrets, 32).
        """
        count = shares.shape[1]
        # A lane holds sum_x w_x f(x) before reduction: t products of 32 by 32 bytes.
        lane = 2 * KEY_BYTES + len(points).bit_length() // 8 + 1
        padded = np.zeros((len(points), count, lane), np.uint8)
        padded[:, :, :KEY_BYTES] = shares
        rows = [int.from_bytes(row.tobytes(), "little") for row in padded]
        total = sum(weight * row for weight, row in zip(self._weights(points), rows, strict=True))
        flat = self._lanes(total, lane, count)
        return [flat[k * KEY_BYTES : (k + 1) * KEY_BYTES] for k in range(count)]

    def _weights(self, points: Sequence[int]) -> list[int]:
        """Compute the Lagrange weights at 0."""
        weights = []
        for x in points:
            above, below = 1, 1
            for y in points:
                if y != x:
                    above, below = above * y, below * (y - x)
            weights.append(int(above * gmpy2.invert(below, self.prime) % self.prime))
        return weights

    def _lanes(self, value: int, lane: int, count: int) -> bytes:
        """Reduce each of the `count` lanes of `lane` bytes modulo the prime, to 32 bytes."""
        data = value.to_bytes(lane * count, "little")
        values = (int.from_bytes(data[k * lane : (k + 1) * lane], "little") % self.prime for k in range(count))
        return b"".join(v.to_bytes(KEY_BYTES, "little") for v in values)


FIELD = PrimeField(2**255 - 19)
"""Its elements take 32 bytes, as long as the X25519 keys that are shared. (Any prime of that size would do.)"""
