"""Define what the parties of one exchange agree on: stages, digests, what is signed, and the states between messages.

An exchange makes one sum. Its stages:

    stage     the server asks           a reply holds
    keys      the committee: {}         a member's fresh X25519 key, signed
    upload    every client: the keys    y = A s + e + scale x; s in encrypted shares, one for each member; signed
    check     the committee: uploads    which clients' shares do not fit together (`sharing`), signed
              without y
    confirm   the committee: a set      a member's signature of the set of uploads to add up
    open      the committee: a quorum   the sum of its shares of that set's uploads, signed
              of such signatures

A client that is no member receives one request and sends one message. As the stages go by, the parties hash what they
agreed on:

    session_digest    run, number of the exchange, cohort, plan and committee
    keys_digest       and the members that advertised keys, with their keys
    exchange_digest   and the context: a hash of all else that a client receives before its upload, such as the model

The last one gives the public polynomials A, so uploads of clients that were told different things do not add up, and it
enters every signature and encrypted share after it. "Erased" means that later states do not hold a value.

    secret                          made                                 erased
    a member's X25519 key           at the start, random                 after `check`
    a client's s, e, X25519 key     at the upload, random                with the upload: no state holds them
    shares of the clients' s        opened at `check`                    after `open`, which sends their sum
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

import numpy as np

from securefed._messages import ClientId
from securefed._persistence.packing import from_bytes, local
from securefed._tensors import Array
from securefed.defenses._one_message.committee import Committee
from securefed.defenses._one_message.parameters import DEVIATION, Encoding
from securefed.defenses._one_message.plaintexts import Placing
from securefed.defenses._one_message.ring import BYTES
from securefed.defenses._one_message.sharing import TESTS
from securefed.defenses._plan import Session, plan_digest
from securefed.defenses._secure_aggregation.identities import Identities
from securefed.defenses._secure_aggregation.primitives import KEY_BYTES, fingerprint, label
from securefed.errors import ConfigError, PlanError

KEYS: Final = "keys"
UPLOAD: Final = "upload"
CONTRIBUTE: Final = "contribute"
"""Stage of a client between the request for its upload and the upload; no message carries it."""
CHECK: Final = "check"
CONFIRM: Final = "confirm"
OPEN: Final = "open"
STAGES: Final = (KEYS, UPLOAD, CHECK, CONFIRM, OPEN)

HASH_BYTES: Final = 32
SIGNATURE: Final = "signature"
SIGNATURES: Final = "signatures"


def bundle_bytes(encoding: Encoding) -> int:
    """Return the length of a member's encrypted share of one client's s and of the masks of its tests.

    16 bytes are those by which AES-GCM authenticates it.
    """
    return BYTES * (encoding.degree + TESTS) + 16


def opening_bytes(encoding: Encoding) -> int:
    """Return the length of a member's share of the sum of the clients' s."""
    return BYTES * encoding.degree


@dataclass(frozen=True)
class Parties:
    """The committee and the identities, which every party of a run knows.

    Attributes:
        committee: the members, and the numbers that they stand.
        identities: the clients' public identities, and this party's private ones.
    """

    committee: Committee
    identities: Identities

    def check(self, session: Session) -> None:
        """Raise unless an exchange with this session can be opened.

        Raises:
            PlanError: the plan is of another aggregation, or for fewer clients.
            ConfigError: an invited client has no identity, or too few members are invited.
        """
        plan, committee = session.plan, self.committee
        if plan.stages != STAGES:
            raise PlanError(f"{plan.defense!r} is not a plan of one_message(); make it with that")
        if len(session.cohort) > plan.clients:
            raise PlanError(
                f"{len(session.cohort)} clients are invited, the plan is for {plan.clients}; plan for the larger number"
            )
        for client in session.cohort:
            self.identities.known(client)
        if (invited := len(set(committee.members) & set(session.cohort))) < committee.needed:
            raise ConfigError(
                f"{invited} members of the committee are among the invited clients, and {committee.needed} are needed; "
                "invite the committee's members to every exchange (a Federation does where its cohort is all clients)"
            )

    def digest(self, session: Session) -> bytes:
        """Compute the digest of what all parties agree on before the exchange, 32 bytes."""
        own = self.committee
        return _session_digest(
            session.run,
            session.round,
            plan_digest(session.plan),
            session.cohort,
            own,
            Placing.of(session.plan).encoding,
        )


@lru_cache(maxsize=8)
def _session_digest(
    run: str, number: int, plan: bytes, cohort: tuple[ClientId, ...], committee: Committee, encoding: Encoding
) -> bytes:
    """Compute a session's digest once for all clients of a simulation."""
    numbers: tuple[int | str, ...] = (
        committee.corrupt,
        committee.lost,
        *encoding.moduli,
        DEVIATION.hex(),
        encoding.scale_bits,
    )
    return fingerprint(
        "securefed one message 1", run, number, plan, label(*cohort), label(*committee.members), *numbers
    )


def keys_digest(session: bytes, members: Sequence[ClientId], keys: Array) -> bytes:
    """Compute the digest of the members that advertised keys, and of their keys (uint8 (members, 32))."""
    return fingerprint("committee", session, label(*members), keys.tobytes())


def exchange_digest(keys: bytes, context: bytes) -> bytes:
    """Compute the digest of the exchange at the upload."""
    return fingerprint("exchange", keys, context)


def key_statement(session: bytes, member: ClientId, key: bytes) -> bytes:
    """Return what a member signs of its key: an exchange, and it, and no other."""
    return fingerprint("one message: key", session, KEYS, member, key)


def share_hash(bundle: Array) -> bytes:
    """Compute the hash of one encrypted share."""
    return hashlib.sha256(bundle.tobytes()).digest()


def seed_of_tests(exchange: bytes, client: ClientId, ephemeral: bytes, hashes: bytes) -> bytes:
    """Compute the seed of a client's tests from all its encrypted shares (their hashes in the members' order)."""
    return fingerprint("one message: tests", exchange, client, ephemeral, hashes)


def upload_statement(
    exchange: bytes, client: ClientId, source: bytes, ciphertext: bytes, seed: bytes, tests: bytes
) -> bytes:
    """Return what a client signs of its upload, 32 bytes; it also stands for the upload in the set.

    Args:
        exchange: `exchange_digest`.
        client: its id.
        source: digest of what its contribution is computed from (`UploadContext.source`).
        ciphertext: SHA-256 of y.
        seed: `seed_of_tests`, which covers its key and its encrypted shares.
        tests: the published polynomials.
    """
    return fingerprint("one message: upload", exchange, UPLOAD, client, source, ciphertext, seed, tests)


def complaints_statement(exchange: bytes, member: ClientId, uploads: bytes, complaints: bytes) -> bytes:
    """Return what a member signs of the clients whose shares do not fit; `uploads` are their upload statements."""
    return fingerprint("one message: check", exchange, CHECK, member, uploads, complaints)


def set_statement(exchange: bytes, clients: Sequence[ClientId], uploads: bytes) -> bytes:
    """Return what members sign: the set of clients, and each one's `upload_statement`, in that order."""
    return fingerprint("one message: set", exchange, CONFIRM, label(*clients), uploads)


def opening_statement(chosen: bytes, member: ClientId, share: bytes) -> bytes:
    """Return what a member signs of the share of the sum that it reveals; `chosen` is the `set_statement`."""
    return fingerprint("one message: opening", chosen, OPEN, member, hashlib.sha256(share).digest())


def refusal_statement(session: bytes, party: ClientId, body: Mapping[str, Array]) -> bytes:
    """Return what a party signs of a refusal."""
    parts = [part for name in sorted(body) if name != SIGNATURE for part in (name, body[name].tobytes())]
    return fingerprint("one message: refusal", session, party, label(*parts))


def signed(identities: Identities, party: ClientId, statement: bytes) -> Array:
    """Sign a statement by a party's identity, uint8 (64,)."""
    return from_bytes(identities.sign(party, statement))


@dataclass(frozen=True, eq=False)
class MemberState:
    """A member's state between two stages.

    Attributes:
        member: its id.
        stage: the stage that it answers next; empty when it is done.
        secret: its X25519 key of the exchange, 32 bytes.
        exchange: `exchange_digest`, from `check` on.
        clients: the clients whose uploads it was shown, ascending.
        statements: their upload statements, uint8 (clients, 32).
        sources: digests of what their contributions are computed from, uint8 (clients, 32).
        fits: whether their shares fit, uint8 (clients,).
        shares: their shares, int64 (clients, n).
        survivors: the set that it signed.
        chosen: the `set_statement` of it.
    """

    member: ClientId
    stage: str = KEYS
    secret: bytes = field(default=b"", repr=False)
    exchange: bytes = b""
    clients: tuple[ClientId, ...] = ()
    statements: Array = field(default_factory=lambda: np.zeros((0, HASH_BYTES), np.uint8), repr=False)
    sources: Array = field(default_factory=lambda: np.zeros((0, HASH_BYTES), np.uint8), repr=False)
    fits: Array = field(default_factory=lambda: np.zeros(0, np.uint8), repr=False)
    shares: Array = field(default_factory=lambda: np.zeros((0, 0), np.int64), repr=False)
    survivors: tuple[ClientId, ...] = ()
    chosen: bytes = b""


@dataclass(frozen=True, eq=False)
class OneMessageClient:
    """A client's state between two messages.

    Attributes:
        client: its id.
        session: run, exchange number, cohort and plan.
        parties: the committee and the identities.
        stage: `upload`, `contribute`, or empty after its upload.
        members: the members that advertised keys, ascending.
        keys: their keys, uint8 (members, 32).
        exchange: `exchange_digest`, once it accepted the request for its upload.
        source: digest of what its contribution is computed from.
        member: its state as a member of the committee; `None` if it is none.
    """

    client: ClientId
    session: Session = local()
    parties: Parties = local()
    stage: str = UPLOAD
    members: tuple[ClientId, ...] = ()
    keys: Array = field(default_factory=lambda: np.zeros((0, KEY_BYTES), np.uint8))
    exchange: bytes = b""
    source: bytes = b""
    member: MemberState | None = None


@dataclass(frozen=True, eq=False)
class OneMessageServer:
    """The server's state between two stages. It holds no secret.

    Attributes:
        stage: the stage whose replies come next.
        asked: parties that may reply.
        session: run, exchange number, cohort and plan.
        parties: the committee and the identities.
        keep: whether uploads are kept, so that one that does not fit can be left out of the sum.
        members: the members that advertised keys, ascending.
        keys: their keys, uint8 (members, 32).
        key_signatures: their signatures, uint8 (members, 64).
        uploads: by client, what it sent beside y, and the hash of y.
        totals: the sum of all y, in the three parts of `ring.planes`.
        kept: by client, those parts of its y, where uploads are kept.
        survivors: the set of clients to add up, from `confirm` on.
        dealt: the members that may reveal: their shares of all of these fit.
        signatures: by member, its signature of the set, from `open` on.
        left_out: by client or member, why it is not counted, or was corrected.
    """

    stage: str
    asked: tuple[ClientId, ...]
    session: Session = local()
    parties: Parties = local()
    keep: bool = local(default=False)
    members: tuple[ClientId, ...] = ()
    keys: Array = field(default_factory=lambda: np.zeros((0, KEY_BYTES), np.uint8))
    key_signatures: Array = field(default_factory=lambda: np.zeros((0, 64), np.uint8))
    uploads: Mapping[ClientId, Mapping[str, Array]] = field(default_factory=dict, repr=False)
    totals: tuple[Array, ...] = field(default=(), repr=False)
    kept: Mapping[ClientId, tuple[Array, ...]] = field(default_factory=dict, repr=False)
    survivors: tuple[ClientId, ...] = ()
    dealt: tuple[ClientId, ...] = ()
    signatures: Mapping[ClientId, Array] = field(default_factory=dict)
    left_out: Mapping[ClientId, str] = field(default_factory=dict)

    @property
    def exchange(self) -> bytes:
        """The `exchange_digest` as the server knows it."""
        return exchange_digest(keys_digest(self.parties.digest(self.session), self.members, self.keys), self.context)

    @property
    def context(self) -> bytes:
        """The context of the exchange."""
        return self.session.context

    def statements(self, clients: Sequence[ClientId]) -> bytes:
        """Return the upload statements of these clients, one behind the other."""
        return b"".join(self.uploads[client]["statement"].tobytes() for client in clients)
