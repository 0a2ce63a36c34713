"""Pin clients' identities on first use (trust on first use), and refuse identities that change.

An identity is a client's long-lived Ed25519 public key (`identities`). A party, client or server, calls `pin` before
each run; to pin is to remember, in a file, which identity a client had when this party first met it.

    pinned = PinnedIdentities(Path("pinned.identities"))  # a file of this party's own
    identities = pinned.pin(public, {0: key})             # public identities as they came, through the server perhaps
    print(identities.fingerprint)                         # compare it with another party over another channel, and
    identities = pinned.confirm(identities, "3f2a ...")   # give the fingerprint that the other party has

Guarantee: a client keeps the identity that was pinned. Another identity in its name is refused by name, in every later
run, by every party that pinned it, until that party calls `forget`.
Not promised: anything at first contact. The server may pass on public identities of its own making, whose private keys
it holds; it then plays those clients. Only the comparison detects that. A plan lists among its assumptions the clients
whose identities were not compared. Nothing is promised either if another party can write the file. Give a `seal`
against that; with an anchor (a small file elsewhere that counts the writes) it also refuses an older copy of the file,
and notices that the file was removed. The file holds public keys only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from securefed._messages import ClientId
from securefed._persistence import container
from securefed._persistence.sealing import Seal
from securefed._tensors import Array
from securefed.defenses._secure_aggregation.identities import Identities, fingerprint_of
from securefed.defenses._secure_aggregation.primitives import KEY_BYTES
from securefed.errors import ConfigError, IdentityChangedError

_KIND: Final = "memory of identities"


@dataclass(frozen=True)
class PinnedIdentity:
    """A client's pinned identity.

    Attributes:
        public: its 32 public bytes.
        compared: whether its fingerprint was compared with another party.
    """

    public: bytes
    compared: bool


@dataclass(frozen=True)
class PinnedIdentities:
    """The identities that one party pinned, in a file of its own.

    Attributes:
        path: the file; made when the first identity is pinned.
        seal: encrypts and authenticates the file; without one it is in the clear, readable by its owner only.
    """

    path: Path | str
    seal: Seal | None = None

    def pin(self, public: Mapping[ClientId, bytes], own: Mapping[ClientId, bytes] | None = None) -> Identities:
        """Check public identities against the pinned ones, and pin those of new clients.

        Args:
            public: public identities by client, from any source.
            own: this party's private keys, by client; those identities need no comparison.

        Returns:
            The identities, with the clients whose identities were never compared in `first_use`.

        Raises:
            ConfigError: as `Identities`.
            IdentityChangedError: a client has another identity than the pinned one, or an identity that is
                pinned for another client.
            StorageError: the file cannot be read or written, or was altered.
        """
        offered, pinned = Identities(public, own or {}), self._read()
        clients = {identity.public: client for client, identity in pinned.items()}
        for client, key in sorted(offered.public.items()):
            if client in pinned and pinned[client].public != key:
                raise IdentityChangedError(
                    f"client {client} was pinned to the identity {fingerprint_of(pinned[client].public)}, and "
                    f"{fingerprint_of(key)} was received for it now: another party may impersonate it. If it made a "
                    "new identity, compare fingerprints with it over another channel than the server's, then call "
                    f"forget({client})"
                )
            if clients.get(key, client) != client:
                raise IdentityChangedError(
                    f"client {client} comes with the identity that is pinned for client {clients[key]}; if that "
                    f"client has another number now, call forget({clients[key]})"
                )
        compared = {client for client, identity in pinned.items() if identity.compared} | set(offered.own)
        current = {client: PinnedIdentity(key, client in compared) for client, key in offered.public.items()}
        if pinned | current != pinned:
            self._write(pinned | current)
        return replace(offered, first_use=frozenset(current) - compared)

    def confirm(self, identities: Identities, heard: str) -> Identities:
        """Record that the fingerprint of these identities was compared with another party's.

        Args:
            identities: the identities, from `pin`.
            heard: `Identities.fingerprint` as the other party has it; spaces and case do not matter.

        Returns:
            The same identities, with an empty `first_use`.

        Raises:
            ConfigError: the fingerprints differ; the parties were shown different identities.
            IdentityChangedError: as `pin`.
            StorageError: as `pin`.
        """
        if "".join(heard.split()).lower() != "".join(identities.fingerprint.split()):
            raise ConfigError(
                f"the other party's fingerprint is {heard}, and this party's is {identities.fingerprint}: they were "
                "shown different identities. Do not run with these; find out which clients' identities differ"
            )
        self.pin(identities.public, identities.own)
        compared = {client: PinnedIdentity(key, compared=True) for client, key in identities.public.items()}
        self._write(self._read() | compared)
        return replace(identities, first_use=frozenset())

    def forget(self, client: ClientId) -> None:
        """Remove a client's pinned identity, so that the next one offered for it is pinned.

        Raises:
            ConfigError: none is pinned.
            StorageError: as `pin`.
        """
        pinned = self._read()
        if client not in pinned:
            raise ConfigError(f"client {client} has no pinned identity; pinned are {sorted(pinned)}")
        self._write({other: identity for other, identity in pinned.items() if other != client})

    def _read(self) -> dict[ClientId, PinnedIdentity]:
        if not Path(self.path).exists():
            if self.seal is not None:
                self.seal.check_never_written(_KIND, self.path)
            return {}
        _, tensors = container.load(Path(self.path), _KIND, self.seal)
        rows = zip(tensors["ids"].tolist(), tensors["public"], tensors["compared"].tolist(), strict=True)
        return {client: PinnedIdentity(public.tobytes(), bool(compared)) for client, public, compared in rows}

    def _write(self, pinned: Mapping[ClientId, PinnedIdentity]) -> None:
        clients = sorted(pinned)
        public = np.frombuffer(b"".join(pinned[client].public for client in clients), np.uint8)
        compared = np.asarray([pinned[client].compared for client in clients], np.uint8)
        tensors: dict[str, Array] = {
            "ids": np.asarray(clients, np.int64),
            "public": public.reshape(-1, KEY_BYTES),
            "compared": compared,
        }
        container.save(Path(self.path), _KIND, {}, tensors, self.seal)
