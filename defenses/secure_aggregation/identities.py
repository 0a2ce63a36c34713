"""Who the clients are: long-lived Ed25519 keys (RFC 8032), known to all parties before the run.

    key = new_identity()                                # on each client, once; 32 secret bytes, kept like a password
    roster = {0: public_identity(key), 1: ..., 2: ...}  # the same at every client: compare `Identities.fingerprint`
    secure_aggregation(identities=Identities(roster, {0: key}))

A server alone cannot stand for a client whose identity the others hold: it would have to sign in its name.
How the roster gets to the clients is not the library's matter. Where it comes through the server, clients must compare
the fingerprint by another way (a call, a printed page); otherwise the server may have written the roster.
`KnownIdentities` takes such a roster on first use, remembers it, and keeps account of what was compared.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from securefed.defenses.secure_aggregation.primitives import KEY_BYTES, label
from securefed.errors import AuthenticationError, ConfigError
from securefed.messages import ClientId

SIGNATURE_BYTES = 64


def new_identity() -> bytes:
    """A private key from the operating system, 32 bytes."""
    return Ed25519PrivateKey.generate().private_bytes_raw()


def public_identity(key: bytes) -> bytes:
    """The 32 public bytes of a private key, for the roster."""
    return Ed25519PrivateKey.from_private_bytes(key).public_key().public_bytes_raw()


@dataclass(frozen=True, eq=False)
class Identities:
    """The roster of public identities, and the private keys that this party holds.

    Attributes:
        public: by client, 32 bytes; the same at every party.
        own: private keys by client: one at a client, none at the server. They leave this object only as signatures.
        first_use: clients whose identity was taken as it first came and never compared (`KnownIdentities`): against a
            server that wrote it then, nothing is promised.

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
        """New identities of the clients 0, 1, ..., with all their private keys: for simulations in one process."""
        own = {client: new_identity() for client in range(clients)}
        return cls({client: public_identity(key) for client, key in own.items()}, own)

    def __repr__(self) -> str:
        return f"Identities({len(self.public)} clients, {self.fingerprint})"

    @property
    def fingerprint(self) -> str:
        """160 bits of SHA-256 of the whole roster, in groups of four digits, to be compared out of band."""
        parts = (part for client in sorted(self.public) for part in (client, self.public[client]))
        return _grouped(label("identities", *parts))

    def known(self, client: ClientId) -> bytes:
        """The public identity. Raises `ConfigError` for a client that is not on the roster."""
        if client not in self.public:
            raise ConfigError(f"client {client} has no identity on the roster of {len(self.public)} clients")
        return self.public[client]

    def sign(self, client: ClientId, statement: bytes) -> bytes:
        """The client's signature, 64 bytes. Raises `ConfigError` where this party does not hold its private key."""
        if client not in self.own:
            raise ConfigError(f"the private identity of client {client} is not held here")
        return Ed25519PrivateKey.from_private_bytes(self.own[client]).sign(statement)

    def verify(self, client: ClientId, statement: bytes, signature: bytes, what: str) -> None:
        """Raise unless the client signed the statement.

        Args:
            what: the statement in words, for the error.

        Raises:
            AuthenticationError: naming the client.
            ConfigError: it is not on the roster.
        """
        if not _signed(self.known(client), statement, signature):
            raise AuthenticationError(client, f"{what} is not signed by the identity of client {client}")


def fingerprint_of(public: bytes) -> str:
    """As `Identities.fingerprint`, of one public identity."""
    return _grouped(label("identity", public))


def _grouped(data: bytes) -> str:
    digest = hashlib.sha256(data).hexdigest()[:40]
    return " ".join(digest[i : i + 4] for i in range(0, len(digest), 4))


@lru_cache(maxsize=4096)
def _signed(public: bytes, statement: bytes, signature: bytes) -> bool:
    """Public facts, so remembered: where clients are simulated in one process all check the same ones."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, statement)
    except (InvalidSignature, ValueError):
        return False
    return True
