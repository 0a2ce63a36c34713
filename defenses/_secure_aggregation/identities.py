"""Identify clients by long-lived Ed25519 keys (RFC 8032), known to all parties before the run.

In each exchange a client signs its fresh public keys and the set of survivors with its identity (`consistency`), so
that the server, which passes both on, cannot alter them.

    key = new_identity()                                # on each client, once; 32 secret bytes, kept like a password
    public = {0: public_identity(key), 1: ..., 2: ...}  # the same at every client: compare `Identities.fingerprint`
    secure_aggregation(identities=Identities(public, {0: key}))

A server alone cannot impersonate a client whose public identity the others hold: it would have to sign in its name.
Here "client" is a number (`ClientId`), and an identity the key pair that stands for it over many runs. Statements are
32-byte hashes of labelled parts (`primitives.fingerprint`), so that a signature cannot be taken for one of another
purpose.
The library does not transport public identities. Where they come through the server, clients must compare the
fingerprint over another channel (a call, a printed page); otherwise the server may have written them.
`PinnedIdentities` trusts public identities on first use, pins them, and records which ones were compared.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from securefed._messages import ClientId
from securefed.defenses._secure_aggregation.primitives import KEY_BYTES, label
from securefed.errors import AuthenticationError, ConfigError

SIGNATURE_BYTES = 64


def new_identity() -> bytes:
    """Generate a private key: 32 secret bytes, random from the operating system."""
    return Ed25519PrivateKey.generate().private_bytes_raw()


def public_identity(key: bytes) -> bytes:
    """Compute the 32 public bytes that belong to a private key of 32 bytes."""
    return Ed25519PrivateKey.from_private_bytes(key).public_key().public_bytes_raw()


@dataclass(frozen=True, eq=False)
class Identities:
    """All public identities, and the private keys that this party holds.

    Attributes:
        public: by client, 32 bytes; the same at every party.
        own: private keys by client: one at a client, none at the server. Its text form does not show them.
        first_use: clients whose identity was trusted on first use and never compared (`PinnedIdentities`): nothing is
            promised against a server that substituted its own identity at that time.

    Raises:
        ConfigError: a key is not 32 bytes, two clients share one, or a private key is not that of its client.
    """

    public: Mapping[ClientId, bytes]
    own: Mapping[ClientId, bytes] = field(default_factory=dict)
    first_use: frozenset[ClientId] = frozenset()

    def __post_init__(self) -> None:
        object.__setattr__(self, "public", dict(self.public))
        object.__setattr__(self, "own", dict(self.own))
        for client, key in self.public.items():
            if type(client) is not int or client < 0 or type(key) is not bytes or len(key) != KEY_BYTES:
                raise ConfigError(f"the identity of client {client!r} is not 32 bytes for an id from 0")
        if len(set(self.public.values())) < len(self.public):
            raise ConfigError("two clients have the same identity; each makes its own with new_identity()")
        for client, key in self.own.items():
            if type(key) is not bytes or len(key) != KEY_BYTES or self.public.get(client) != public_identity(key):
                raise ConfigError(f"the private key given for client {client} is not that of its public identity")

    @classmethod
    def generate(cls, clients: int) -> Identities:
        """Generate identities for the clients 0, 1, ..., with all private keys, for simulations in one process."""
        own = {client: new_identity() for client in range(clients)}
        return cls({client: public_identity(key) for client, key in own.items()}, own)

    def __repr__(self) -> str:
        return f"Identities({len(self.public)} clients, {self.fingerprint})"

    @property
    def fingerprint(self) -> str:
        """160 bits of SHA-256 of all public identities, in groups of four digits, to compare over another channel.

        A server that chooses the identities that it shows to two parties needs about 2^80 hashes to find two different
        sets with one fingerprint.
        """
        ids_and_keys = (part for client in sorted(self.public) for part in (client, self.public[client]))
        return _grouped(label("identities", *ids_and_keys))

    def known(self, client: ClientId) -> bytes:
        """Return a client's public identity; `ConfigError` for a client that has none."""
        if client not in self.public:
            raise ConfigError(f"client {client} has no identity; {len(self.public)} clients have one")
        return self.public[client]

    def sign(self, client: ClientId, statement: bytes) -> bytes:
        """Sign in the name of a client, 64 bytes; `ConfigError` where this party does not hold its private key."""
        if client not in self.own:
            raise ConfigError(f"the private identity of client {client} is not held here")
        return Ed25519PrivateKey.from_private_bytes(self.own[client]).sign(statement)

    def verify(self, client: ClientId, statement: bytes, signature: bytes, what: str) -> None:
        """Raise unless the client signed the statement.

        Args:
            client: its id.
            statement: what it signed.
            signature: 64 bytes.
            what: a name of the statement, for the error.

        Raises:
            AuthenticationError: the client did not sign it; the client is named.
            ConfigError: the client has no identity.
        """
        if not _signed(self.known(client), statement, signature):
            raise AuthenticationError(client, f"{what} is not signed by the identity of client {client}")


def fingerprint_of(public: bytes) -> str:
    """Compute the fingerprint of one public identity (32 bytes), in the form of `Identities.fingerprint`."""
    return _grouped(label("identity", public))


def _grouped(data: bytes) -> str:
    digest = hashlib.sha256(data).hexdigest()[:40]
    return " ".join(digest[i : i + 4] for i in range(0, len(digest), 4))


@lru_cache(maxsize=4096)
def _signed(public: bytes, statement: bytes, signature: bytes) -> bool:
    """Verify a signature; results are cached, as clients simulated in one process all check the same ones."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, statement)
    except (InvalidSignature, ValueError):
        return False
    return True
