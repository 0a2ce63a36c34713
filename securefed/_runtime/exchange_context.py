"""Compute the context of an exchange: one digest of everything that clients receive before they upload.

An exchange makes one sum of a cohort's contributions; it has a number in its run. An exchange "counted" a client if
the client's contribution is in its sum. What "followed" from it is the next broadcast, computed from that sum. Clients
of some algorithms need it to complete their own state, such as the dual variables of ADMM; a client that was not
invited at once gets it with its next request, beside the current broadcast.

A server could learn one client's contribution from a sum by sending that client another broadcast, another plan, or
another account of earlier rounds. So server and clients each derive one digest from what they sent or received, and
protocols that hide contributions put it into masks, tags, signatures and proofs at the upload: clients with different
digests cannot be summed.

The account of earlier rounds differs from client to client. The request therefore lists it for the whole cohort
(`CountedExchanges`, at most 40 bytes a member): each client checks its own row, and the whole list enters the context.
The server keeps what the list is made of (`CountedClients`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from securefed._messages import ClientId, Message
from securefed._persistence.packing import from_bytes, nest
from securefed._runtime.exchange_header import ExchangeHeader
from securefed._tensors import Array, Tensors
from securefed.defenses._base import Session, UploadContext, plan_digest
from securefed.errors import ContradictionError, MalformedError

DIGEST_BYTES: Final = 32
NEVER: Final = -1
"""Stands for "no exchange counted this client yet"."""
_COUNTED, _FOLLOWED = "counted/exchange", "counted/followed"  # names of fields in a request


def tensors_digest(tensors: Tensors) -> bytes:
    """SHA-256 of names, types, shapes and entries, in the order of the names."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        value = np.ascontiguousarray(tensors[name])
        head = f"{name}\0{value.dtype.str}\0{np.shape(tensors[name])}\0{value.nbytes}\0".encode()
        digest.update(len(head).to_bytes(8, "little") + head)
        digest.update(value.reshape(-1).view(np.uint8).data)
    return digest.digest()


@dataclass(frozen=True, eq=False)
class CountedExchanges:
    """The list in a request of the exchange that counted each member of the cohort last.

    Attributes:
        exchanges: int64 (cohort,): the exchange that counted a client last, or `NEVER`.
        followed: uint8 (cohort, 32): digests of the broadcasts that followed from those exchanges, zeros where none
            did; (0, 32) for algorithms whose clients do not need them.
    """

    exchanges: Array
    followed: Array

    @classmethod
    def of(
        cls, cohort: Sequence[ClientId], counted: Mapping[ClientId, int], followed: Mapping[int, bytes] | None
    ) -> CountedExchanges:
        """Build the list that a server sends.

        Args:
            cohort: ids of the invited clients, ascending.
            counted: by client, the exchange that counted it last.
            followed: by exchange, the digest of the broadcast that followed from it; `None` where it is not needed.
        """
        exchanges = np.asarray([counted.get(client, NEVER) for client in cohort], np.int64)
        if followed is None:
            return cls(exchanges, np.zeros((0, DIGEST_BYTES), np.uint8))
        none = bytes(DIGEST_BYTES)
        rows = [from_bytes(followed.get(exchange, none)) for exchange in exchanges.tolist()]
        return cls(exchanges, np.stack(rows))

    def body(self) -> dict[str, Array]:
        """Return the list as fields of a message. Inverse: `read`."""
        return {_COUNTED: self.exchanges} | ({_FOLLOWED: self.followed} if len(self.followed) else {})

    @classmethod
    def read(cls, message: Message, cohort: Sequence[ClientId], *, followed: bool) -> CountedExchanges:
        """Read and check the list in a request.

        Args:
            message: the request.
            cohort: ids of the invited clients, ascending.
            followed: whether clients need what followed (`SumSchema.needs_outcome`).

        Raises:
            MalformedError: it is missing, or of other types or shapes than a cohort of this size has.
            ContradictionError: it lists two broadcasts that followed from one exchange.
        """
        exchanges = message.body.get(_COUNTED)
        rows = message.body.get(_FOLLOWED, np.zeros((0, DIGEST_BYTES), np.uint8))
        if exchanges is None or exchanges.dtype != np.int64 or exchanges.shape != (len(cohort),):
            raise MalformedError(message.sender, f"{_COUNTED!r} is missing or no int64 array of {len(cohort)} entries")
        if rows.dtype != np.uint8 or rows.shape != (len(cohort) if followed else 0, DIGEST_BYTES):
            raise MalformedError(message.sender, f"{_FOLLOWED!r} does not hold a digest for each client that needs one")
        # one pair for each exchange, unless the list gives an exchange two digests; no pairs where rows are (0, 32)
        pairs = {(exchange, row.tobytes()) for exchange, row in zip(exchanges.tolist(), rows, strict=False)}
        if followed and len(pairs) > len(set(exchanges.tolist())):
            raise ContradictionError(
                message.sender, f"{_FOLLOWED!r} lists two broadcasts that followed from one exchange"
            )
        return cls(exchanges, rows)

    def check_own(
        self, message: Message, place: int, followed: Tensors | None, committed: tuple[int, bytes] = (NEVER, b"")
    ) -> int:
        """Check the digest in one client's own row and return the exchange that counted it last.

        The caller checks whether that exchange agrees with what the client remembers of its uploads.

        Args:
            message: the request, for errors.
            place: the client's position in the cohort.
            followed: the broadcast that followed from that exchange, as this request sends it; `None` if the client
                needs none.
            committed: from the client's state, the last exchange that it learned to have counted it, and the digest of
                the broadcast that it was sent then as following from it.

        Raises:
            ContradictionError: the list holds another broadcast's digest, or not that of the broadcast in the state.
        """
        counted = int(self.exchanges[place])
        needed = followed if counted != NEVER else None
        if needed is not None and tensors_digest(needed) != self.followed[place].tobytes():
            raise ContradictionError(
                message.sender, f"the broadcast that followed from exchange {counted} is not the one it lists"
            )
        if needed is not None and counted == committed[0] and self.followed[place].tobytes() != committed[1]:
            raise ContradictionError(
                message.sender, f"it sent this client another broadcast before that followed from exchange {counted}"
            )
        return counted

    @property
    def digest(self) -> bytes:
        """SHA-256 of the whole list, 32 bytes."""
        return hashlib.sha256(self.exchanges.tobytes() + self.followed.tobytes()).digest()


def exchange_context(session: Session, header: ExchangeHeader, broadcast: bytes, counted: CountedExchanges) -> bytes:
    """Digest of run, exchange number, kind, position in the run, plan, cohort, broadcast and counted list; 32 bytes.

    Args:
        session: run, number, cohort and plan.
        header: kind, round and attempt.
        broadcast: `tensors_digest` of what contributions are computed from.
        counted: the list of the exchanges that counted the cohort last.
    """
    cohort = hashlib.sha256(np.asarray(session.cohort, np.int64).tobytes()).digest()
    place = (session.round, header.round, header.attempt)
    head = "\0".join(("securefed exchange context 1", session.run, header.kind, *map(str, place), ""))
    return hashlib.sha256(head.encode() + plan_digest(session.plan) + cohort + broadcast + counted.digest).digest()


def upload_context(exchange: bytes, kind: str, broadcast: bytes, counted: int) -> UploadContext:
    """Build the two digests that enter a client's upload, in masks, tags, signatures or proofs.

    The second, the source, names what the contribution is computed from, and neither run, exchange number nor cohort.
    So it stays the same when an exchange is repeated: by it the protocol recognises the contribution, and refuses to
    have it summed with another set of clients.

    Args:
        exchange: from `exchange_context`.
        kind: `train` or `evaluate`.
        broadcast: `tensors_digest` of what the contribution is computed from.
        counted: the exchange that this client's state counts last; `NEVER` for a client that remembers nothing.
    """
    source = hashlib.sha256(f"securefed source 1\0{kind}\0{counted}\0".encode() + broadcast).digest()
    return UploadContext(exchange, source)


@dataclass
class CountedClients:
    """Server-side record of the last exchange that counted each client, and of its outcome.

    Attributes:
        needs_outcome: whether clients need the broadcast that followed from the exchange that counted them.
        exchanges: by client, the last exchange that counted it.
        followed: by exchange, the broadcast that followed; kept while it is the last exchange that counted
            some client.
        announced: by exchange, the sum announced to the clients that check it; kept equally long.
    """

    needs_outcome: bool
    exchanges: dict[ClientId, int] = field(default_factory=dict)
    followed: dict[int, Tensors] = field(default_factory=dict)
    announced: dict[int, Tensors] = field(default_factory=dict)

    def count(self, exchange: int, survivors: Sequence[ClientId], broadcast: Tensors, announced: Tensors) -> None:
        """Note that `exchange` counted its survivors.

        Args:
            exchange: its number.
            survivors: the clients in its sum.
            broadcast: the broadcast computed from its sum.
            announced: its sum and proof for the survivors; empty where they do not check it.
        """
        self.exchanges |= dict.fromkeys(survivors, exchange)
        last = set(self.exchanges.values())
        if self.needs_outcome:
            self.followed = {key: value for key, value in self.followed.items() if key in last} | {exchange: broadcast}
        if announced:
            self.announced = {key: value for key, value in self.announced.items() if key in last}
            self.announced[exchange] = announced

    def listed(self, cohort: Sequence[ClientId]) -> CountedExchanges:
        """Build the list, in a request for an upload, of the exchanges that counted each client of the cohort last."""
        if not self.needs_outcome:
            return CountedExchanges.of(cohort, self.exchanges, None)
        known = {self.exchanges[client] for client in cohort if client in self.exchanges}
        digests = {exchange: tensors_digest(self.followed[exchange]) for exchange in known}
        return CountedExchanges.of(cohort, self.exchanges, digests)

    def body(self, client: ClientId) -> dict[str, Array]:
        """Build the fields for one client about the exchange that counted it last.

        The broadcast that followed is left out if it is the current one, which the request holds anyway.
        """
        counted = self.exchanges.get(client, NEVER)
        newest = max(self.exchanges.values(), default=NEVER)
        body: dict[str, Array] = {}
        if self.needs_outcome and counted not in (NEVER, newest):
            body |= nest("commit/broadcast", self.followed[counted])
        if counted in self.announced:
            body |= nest("commit/announced", self.announced[counted])
        return body

    def body_outside(self, client: ClientId, broadcast: Tensors) -> dict[str, Array]:
        """Build these fields for a message outside any exchange, which has no list of the cohort's last exchanges.

        Args:
            client: the receiver.
            broadcast: the current broadcast; sent where clients need what followed from their last contribution.
        """
        counted = np.asarray(self.exchanges.get(client, NEVER), np.int64)
        body = self.body(client) | {"commit/round": counted}
        return body | nest("broadcast", broadcast) if self.needs_outcome else body
