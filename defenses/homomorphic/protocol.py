"""Sums under Paillier encryption: packed, with a key holder apart from server and clients.

    stage     server asks                                          reply
    key       key holder: {}                                       modulus, DJN base
    upload    clients: modulus, base                               ciphertexts, uint8 (count, bits / 4)
    decrypt   key holder: product of ciphertexts, survivors        plaintexts of the sum, uint8 (count, bits / 8)

The server never holds the private key; the key holder is never sent a single contribution by a server that follows
the protocol. Ciphertexts are malleable: what is refused is malformed structure, replays and sums out of range; that
nobody alters a message on its way rests on the authenticated channel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Final

import numpy as np

from securefed.defenses.base import Aggregation, Outgoing, Plan, Session, UploadContext, expect_stage
from securefed.defenses.homomorphic import cipher, known_key
from securefed.defenses.homomorphic.key_holder import CIPHERTEXTS, DECRYPT, KEY, PLAINTEXTS, SURVIVORS, KeyHolder
from securefed.defenses.homomorphic.keys import PublicKey
from securefed.defenses.homomorphic.noise import NOISES, Noise, Stock, exponent_bits
from securefed.defenses.homomorphic.packing import Packing, unpack_sum
from securefed.errors import ConfigError, ContradictionError, DataError, MalformedError, PlanError, TooFewSurvivors
from securefed.messages import KEY_HOLDER, SERVER, Aggregate, ClientId, Message, PartyId
from securefed.state import from_bytes, local
from securefed.tensors import Array, Tensors

UPLOAD: Final = "upload"
CONTRIBUTE: Final = "contribute"
"""A client between the request for its upload and the upload: no message asks for it."""


@dataclass(frozen=True)
class PaillierClient:
    """A client's protocol state: who it is in which exchange, and the next stage (empty when done).

    Attributes:
        known: what it remembers of the run's public key.
    """

    client: ClientId
    session: Session = local()
    next_stage: str = UPLOAD
    known: bytes = field(default=b"", repr=False)


@dataclass(frozen=True)
class PaillierServer:
    """The server's protocol state.

    Attributes:
        stage: whose replies come next.
        key: the public key's fields as the key holder sent them.
        survivors: clients whose ciphertexts are in the product that was sent to the key holder.
    """

    session: Session = local()
    stage: str = KEY
    key: Mapping[str, Array] = field(default_factory=dict)
    survivors: tuple[ClientId, ...] = ()


class KeyMemory:
    """Clients that refuse another public key than the first of a run, in a resumed process too (`SupportsMemory`)."""

    def client_memory(self, state: PaillierClient) -> Array:
        """The key that it met first in this run."""
        return from_bytes(state.known)

    def client_remind(self, state: PaillierClient, memory: Array) -> PaillierClient:
        """The state that refuses another one."""
        return replace(state, known=memory.tobytes())


@dataclass(frozen=True)
class Paillier(KeyMemory, Aggregation):
    """Exact sums under additively homomorphic encryption.

    Attributes:
        bits: length of the modulus; 2048 is about 112-bit security, 3072 about 128-bit (NIST SP 800-57).
        noise: `half` (DJN, exponents of half length, a table of powers), `full` (r^n, the scheme as published), or
            `short` (exponents of 400 or 448 bits: faster, on an assumption of its own that the plan prints).
        threshold: survivors a round needs; by default more than half of the planned clients, and at least 2.
        public: the key, where clients are given it at set-up; without it they trust the first one of a run.
        stock: noise made ahead by `prepare`.

    Guarantees, for a server and a key holder that follow the protocol and do not collude: the server learns the sum
    and who is in it; the key holder learns the sum and how many are in it. The sum equals
    `chain(quantise, plain)`'s bit for bit.
    A client that sits out uploads uniform plaintexts, so that the sum is uniform modulo n: of the other clients it
    shows nothing, of this one that it was out.
    Not promised: anything against server and key holder together (they open every contribution), against an active
    server (one that tells clients different things too), or that clients' values lie in their bounds (only the sum is
    checked). The server sees which clients dropped out.

    Raises:
        ConfigError: `bits` below 2048 or no multiple of 64, an unknown noise, `short` noise beyond 3072 bits, a given
            key of another length, or a threshold below 2.
    """

    bits: int = 2048
    noise: Noise = "half"
    threshold: int | None = None
    public: PublicKey | None = None
    stock: Stock = field(default_factory=Stock, repr=False, compare=False)
    name: ClassVar[str] = "paillier"
    exact: ClassVar[bool] = True
    hides: ClassVar[bool] = True
    upload: ClassVar[str] = UPLOAD
    beside: ClassVar[tuple[PartyId, ...]] = (KEY_HOLDER,)
    least_bits: ClassVar[int] = 2048

    def __post_init__(self) -> None:
        if self.bits < self.least_bits or self.bits % 64:
            raise ConfigError(
                f"{self.name}: a key has at least {self.least_bits} bits and a multiple of 64, not {self.bits}"
            )
        if self.noise not in NOISES:
            raise ConfigError(f"{self.name}: the noise is one of {', '.join(NOISES)}, not {self.noise!r}")
        exponent_bits(self.bits, self.noise)
        if self.public is not None and self.public.bits != self.bits:
            raise ConfigError(f"{self.name}: the given key has {self.public.bits} bits, not {self.bits}")
        if self.threshold is not None and self.threshold < 2:
            raise ConfigError(f"{self.name}: the sum of one client is its contribution; the threshold is at least 2")

    def __str__(self) -> str:
        return f"{self.name}({self.bits}, {self.noise})"

    def plan(self, plan: Plan) -> Plan:
        """Stages, bytes and assumptions.

        Raises:
            PlanError: tensors not in fixed point, fewer than 2 clients, or a threshold beyond them.
        """
        packing = Packing.of(plan, self.bits)
        threshold = threshold_of(self.threshold, plan.clients)
        if threshold > plan.clients:
            raise PlanError(
                f"{self.name}: {plan.clients} clients cannot reach the threshold {threshold}; "
                "the sum of one client would be its contribution"
            )
        return replace(
            plan,
            stages=(KEY, UPLOAD, DECRYPT),
            upload_bytes=packing.plaintexts * self.bits // 4,
            threshold=threshold,
            open_to="the server together with the key holder",
        ).assume(*self._assumptions())

    def _assumptions(self) -> tuple[str, ...]:
        first = (
            "Clients were given the key holder's public key at set-up."
            if self.public is not None
            else "The first public key a client is handed in a run is the key holder's: a later one that differs is "
            "refused, but the first is trusted, and trusted anew by a client that restarts."
        )
        return (
            "The key holder does not collude with the server: together they open every contribution.",
            "The server is honest but curious: an active one could have one client's ciphertexts decrypted in place "
            "of the sum, and clients that are told different broadcasts do not notice it.",
            first,
            "The key holder sees the sum of every round.",
            "Ciphertexts are malleable: that messages arrive unaltered rests on the authenticated channel.",
            "Nobody times the key holder: its arithmetic does not run in constant time.",
            *noise_assumptions(self.bits, self.noise),
        )

    def client_open(self, session: Session, client: ClientId) -> PaillierClient:
        return PaillierClient(client, session)

    def client_step(
        self, state: PaillierClient, request: Message, encoded: Tensors | None
    ) -> tuple[PaillierClient, dict[str, Array]]:
        """`client_accept` and `client_upload` in one.

        Raises:
            MessageRefused: as `client_accept`.
            RangeRefused: as `client_upload`.
        """
        accepted = self.client_accept(state, request, UploadContext(state.session.context, b""))
        if encoded is None:
            raise DataError(f"the stage {UPLOAD!r} needs the encoded contribution")
        return self.client_upload(accepted, encoded)

    def client_accept(self, state: PaillierClient, request: Message, context: UploadContext) -> PaillierClient:
        """Check stage, exchange and public key. What other clients are told is not compared (see the plan).

        Raises:
            MessageRefused: a wrong stage, a repeated request, a key that cannot be one, or another key than before.
        """
        expect_stage(request, state.next_stage)
        _bound(request, state.session, UPLOAD, SERVER, state.client)
        public = PublicKey.from_body(request.body, self.bits, request.sender)
        if self.public not in (None, public):
            raise ContradictionError(request.sender, "it hands over another public key than the one given at set-up")
        known = known_key.met(state.known, state.session.run, public.to_body(), request.sender)
        return replace(state, next_stage=CONTRIBUTE, known=known)

    def client_upload(self, state: PaillierClient, encoded: Tensors | None) -> tuple[PaillierClient, dict[str, Array]]:
        """Encrypt, with noise of the stock first; for a client that sits out, uniform plaintexts.

        Raises:
            RangeRefused: an entry outside the planned bound.
        """
        key = known_key.first_key(state.known, state.session.run)
        assert state.next_stage == CONTRIBUTE and key is not None
        public = PublicKey.from_body(key, self.bits, KEY_HOLDER)
        packing = Packing.of(state.session.plan, self.bits)
        plaintexts = packing.uniform(public.n) if encoded is None else packing.pack(encoded)
        ciphertexts = cipher.encrypt(public, plaintexts, self.noise, self.stock)
        return replace(state, next_stage=""), {CIPHERTEXTS: cipher.to_wire(ciphertexts, public.ciphertext_bytes)}

    def prepare(self, state: PaillierClient) -> int:
        """Make the noise of this client's next upload now, while it would wait or train; returns pieces made ready.

        Args:
            state: of the client's last exchange. Before its first one, and without a given key, there is no key to
                make noise for: nothing happens.
        """
        public, known = self.public, known_key.first_key(state.known, state.session.run)
        if public is None and known is not None:
            public = PublicKey.from_body(known, self.bits, KEY_HOLDER)
        if public is None:
            return 0
        count = Packing.of(state.session.plan, self.bits).plaintexts
        self.stock.prepare(public, self.noise, count)
        return count

    def client_prepare(self, state: PaillierClient) -> PaillierClient:
        """`prepare`, for those that know no more than the protocol of defences."""
        self.prepare(state)
        return state

    def server_open(self, session: Session) -> tuple[PaillierServer, str, Outgoing]:
        if len(session.cohort) > session.plan.clients:
            raise ConfigError(f"a cohort of {len(session.cohort)} exceeds the planned {session.plan.clients} clients")
        return PaillierServer(session), KEY, {KEY_HOLDER: {}}

    def server_step(
        self, state: PaillierServer, replies: Mapping[PartyId, Message]
    ) -> tuple[PaillierServer, str, Outgoing] | Aggregate:
        asked = state.session.cohort if state.stage == UPLOAD else (KEY_HOLDER,)
        for party, message in replies.items():
            if party not in asked:
                raise MalformedError(party, f"nobody asked it at stage {state.stage!r}")
            _bound(message, state.session, state.stage, party, SERVER)
        if state.stage == UPLOAD:
            return self._collect(state, replies)
        if not replies:
            raise TooFewSurvivors(f"the key holder did not answer at stage {state.stage!r}; the round is void")
        if state.stage == KEY:
            return self._distribute(state, replies[KEY_HOLDER])
        return self._finish(state, replies[KEY_HOLDER])

    def _distribute(self, state: PaillierServer, reply: Message) -> tuple[PaillierServer, str, Outgoing]:
        body = PublicKey.from_body(reply.body, self.bits, reply.sender).to_body()
        return replace(state, stage=UPLOAD, key=body), UPLOAD, dict.fromkeys(state.session.cohort, body)

    def _collect(
        self, state: PaillierServer, replies: Mapping[PartyId, Message]
    ) -> tuple[PaillierServer, str, Outgoing]:
        plan = state.session.plan
        if len(replies) < plan.threshold:
            raise TooFewSurvivors(f"{len(replies)} clients uploaded, the threshold is {plan.threshold}; nothing opened")
        public = PublicKey.from_body(state.key, self.bits, KEY_HOLDER)
        total: list[object] | None = None
        for message in replies.values():
            ciphertexts = read_upload(public, message.body, plan, message.sender)
            total = ciphertexts if total is None else cipher.multiply(public, total, ciphertexts)
        assert total is not None
        survivors = tuple(sorted(replies))
        request = {
            CIPHERTEXTS: cipher.to_wire(total, public.ciphertext_bytes),
            SURVIVORS: np.asarray(len(survivors), np.int64),
        }
        return replace(state, stage=DECRYPT, survivors=survivors), DECRYPT, {KEY_HOLDER: request}

    def _finish(self, state: PaillierServer, reply: Message) -> Aggregate:
        sender, body = reply.sender, reply.body
        packing = Packing.of(state.session.plan, self.bits)
        if set(body) != {PLAINTEXTS}:
            raise MalformedError(sender, f"a decryption holds plaintexts, not {sorted(body)}")
        plaintexts = cipher.from_wire(body[PLAINTEXTS], packing.plaintexts, self.bits // 8, sender)
        total = unpack_sum(packing, state.session.plan, plaintexts, len(state.survivors), sender)
        return Aggregate(total, state.survivors)

    def helper(self, clients: int, frozen: bytes | None = None) -> KeyHolder | None:
        """A key holder, with a fresh key or `frozen`; `None` where the key was given, as its holder is elsewhere.

        It refuses fewer survivors than the plan for as many clients needs.
        """
        if self.public is not None:
            return None
        threshold = threshold_of(self.threshold, clients)
        if frozen is not None:
            return KeyHolder.thaw(frozen, threshold=threshold)
        return KeyHolder.generate(self.bits, threshold=threshold)


@dataclass(frozen=True)
class InsecurePaillier(Paillier):
    """`Paillier` with keys that can be factored, from 512 bits on: for tests and quick simulations only."""

    bits: int = 512
    name: ClassVar[str] = "insecure_paillier"
    least_bits: ClassVar[int] = 512

    def _assumptions(self) -> tuple[str, ...]:
        return (*super()._assumptions(), f"INSECURE: a modulus of {self.bits} bits may be factored.")


def paillier(
    bits: int = 2048, noise: Noise = "half", *, threshold: int | None = None, public: PublicKey | None = None
) -> Paillier:
    """Sums under Paillier encryption; see `Paillier`."""
    return Paillier(bits, noise, threshold, public)


def threshold_of(wanted: int | None, clients: int) -> int:
    """Survivors that a round of `clients` planned clients needs: as wanted, by default more than half, at least 2."""
    return wanted or max(2, clients // 2 + 1)


def noise_assumptions(bits: int, noise: Noise) -> tuple[str, ...]:
    """What the secrecy of a ciphertext rests on."""
    basis = "Decisional composite residuosity (Paillier 1999)."
    if noise == "full":
        return (basis,)
    length = exponent_bits(bits, noise)
    if noise == "half":
        return (
            basis,
            f"Noise exponents of half the modulus' length ({length} bits) give noise that cannot be told from that of "
            "uniform exponents (Damgard, Jurik and Nielsen 2010).",
        )
    return (
        basis,
        f"EXTRA: noise exponents of only {length} bits give noise that cannot be told from that of uniform exponents; "
        "the published analysis (Damgard, Jurik and Nielsen 2010) asks for half the modulus' length.",
    )


def read_upload(public: PublicKey, body: Tensors, plan: Plan, sender: PartyId) -> list[object]:
    """The ciphertexts of one client's upload.

    Raises:
        MalformedError: a wrong field, type, size or number of ciphertexts, or a number that is no ciphertext.
    """
    if set(body) != {CIPHERTEXTS}:
        raise MalformedError(sender, f"an upload holds ciphertexts, not {sorted(body)}")
    count = Packing.of(plan, public.bits).plaintexts
    ciphertexts = cipher.from_wire(body[CIPHERTEXTS], count, public.ciphertext_bytes, sender)
    cipher.check(public, ciphertexts, sender)
    return ciphertexts


def open_upload(key_holder: KeyHolder, body: Tensors, plan: Plan, sender: PartyId = SERVER) -> dict[str, Array]:
    """One client's encoded contribution, bit for bit: what server and key holder see together.

    Args:
        body: of the client's message at stage `upload`, as the server recorded it.
        plan: of that exchange.      sender: the client, for the wording of a refusal.

    Raises:
        MalformedError: `body` is no upload under this plan and key.
    """
    ciphertexts = read_upload(key_holder.public, body, plan, sender)
    plaintexts = key_holder.decrypt_upload(ciphertexts)
    return Packing.of(plan, key_holder.public.bits).unpack(plaintexts, 1, sender)


def _bound(message: Message, session: Session, stage: str, sender: PartyId, receiver: PartyId) -> None:
    message.check(run=session.run, round=session.round, stage=stage, sender=sender, receiver=receiver)
