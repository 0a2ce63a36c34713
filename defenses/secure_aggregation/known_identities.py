"""Identities on first use: what a party remembers of the others, and refuses to see changed.

    known = KnownIdentities(Path("known.identities"))    # a file of this party's own
    identities = known.meet(roster, {0: key})            # the roster as it came, through the server perhaps
    print(identities.fingerprint)                        # read to each other by another way than through the server,
    identities = known.compared(identities, "3f2a ...")  # and what was heard given here

Guarantee: a client that was met keeps its identity. Another one in its name is refused by name, in every later run, by
every party that remembers it, until that party forgets it by an act of its own.
Not promised: anything at first contact. A roster that comes through the server may be one that it wrote, with
identities whose private keys it holds; it then plays those clients. Only the comparison shows that, and a plan with
identities that were not compared says so. Nor anything of a file that somebody else can write: give a `seal` for that,
with an anchor against older copies and against its removal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from securefed import storage
from securefed.defenses.secure_aggregation.identities import Identities, fingerprint_of
from securefed.defenses.secure_aggregation.primitives import KEY_BYTES
from securefed.errors import ConfigError, IdentityChangedError, StorageError
from securefed.messages import ClientId
from securefed.sealing import Seal
from securefed.tensors import Array

_KIND: Final = "memory of identities"


@dataclass(frozen=True)
class Acquaintance:
    """One client as it is remembered: its public identity, and whether that was ever compared."""

    public: bytes
    compared: bool


@dataclass(frozen=True)
class KnownIdentities:
    """The identities that one party met, in a file of its own.

    Attributes:
        path: the file; made at the first meeting.
        seal: encrypts and authenticates it; without one it is in clear, for its owner only.
    """

    path: Path
    seal: Seal | None = None

    def meet(self, public: Mapping[ClientId, bytes], own: Mapping[ClientId, bytes] | None = None) -> Identities:
        """The roster as identities, once it agrees with all that is remembered; clients met first are remembered.

        Args:
            public: by client, its public identity, by whatever way it came.
            own: this party's private keys, by client; those identities need no comparison.

        Raises:
            ConfigError: as `Identities`.
            IdentityChangedError: a client has another identity than it was known by, or one that another client had.
            StorageError: the file cannot be read or written, or was altered.
        """
        offered, known = Identities(public, own or {}), self._read()
        clients = {acquaintance.public: client for client, acquaintance in known.items()}
        for client, key in sorted(offered.public.items()):
            if client in known and known[client].public != key:
                raise IdentityChangedError(
                    f"client {client} was known by the identity {fingerprint_of(known[client].public)}, and is now "
                    f"said to have {fingerprint_of(key)}: somebody may stand for it. If it made a new one, compare "
                    f"that with it by another way than through the server, then forget({client})"
                )
            if clients.get(key, client) != client:
                raise IdentityChangedError(
                    f"client {client} is said to have the identity that client {clients[key]} was known by; if it was "
                    f"given another number, forget({clients[key]})"
                )
        met = {c: known.get(c, Acquaintance(key, compared=False)) for c, key in offered.public.items()}
        met = {c: replace(one, compared=True) if c in offered.own else one for c, one in met.items()}
        if (now := known | met) != known:
            self._write(now)
        return replace(offered, first_use=frozenset(client for client, one in met.items() if not one.compared))

    def compared(self, identities: Identities, heard: str) -> Identities:
        """The same identities, none on first use any more: their fingerprint is what was heard by another way.

        Args:
            heard: `Identities.fingerprint` as another party has it; spaces and case do not matter.

        Raises:
            ConfigError: it is not this roster's; parties were shown different ones.
            IdentityChangedError, StorageError: as `meet`.
        """
        if "".join(heard.split()).lower() != "".join(identities.fingerprint.split()):
            raise ConfigError(
                f"the fingerprint heard is {heard}, and that of the roster here is {identities.fingerprint}: different "
                "rosters were shown. Do not run with this one; find out whose identities differ"
            )
        self.meet(identities.public, identities.own)
        now = {client: Acquaintance(key, compared=True) for client, key in identities.public.items()}
        self._write(self._read() | now)
        return replace(identities, first_use=frozenset())

    def forget(self, client: ClientId) -> None:
        """Let the client be met anew. Raises `ConfigError` where it is not known."""
        known = self._read()
        if client not in known:
            raise ConfigError(f"client {client} was never met; known are {sorted(known)}")
        self._write({other: one for other, one in known.items() if other != client})

    def _read(self) -> dict[ClientId, Acquaintance]:
        if not self.path.exists():
            if self.seal is not None and self.seal.newest():
                raise StorageError(f"{_KIND} {self.path} was written once, and is gone; restore it from a copy")
            return {}
        _, found = storage.load(self.path, _KIND, self.seal)
        rows = zip(found["ids"].tolist(), found["public"], found["compared"].tolist(), strict=True)
        return {client: Acquaintance(public.tobytes(), bool(compared)) for client, public, compared in rows}

    def _write(self, known: Mapping[ClientId, Acquaintance]) -> None:
        clients = sorted(known)
        public = np.frombuffer(b"".join(known[client].public for client in clients), np.uint8)
        compared = np.asarray([known[client].compared for client in clients], np.uint8)
        tensors: dict[str, Array] = {
            "ids": np.asarray(clients, np.int64),
            "public": public.reshape(-1, KEY_BYTES),
            "compared": compared,
        }
        storage.save(self.path, _KIND, {}, tensors, self.seal)
