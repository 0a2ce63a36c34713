"""Sum contributions exactly under Paillier encryption, opened by a key holder apart from server and clients.

    stage     server asks                                          reply
    key       key holder: {}                                       modulus, base of the encryption randomness
    upload    clients: modulus, base                               ciphertexts, uint8 (count, bits / 4)
    decrypt   key holder: product of ciphertexts, survivors        plaintexts of the sum, uint8 (count, bits / 8)

An exchange is one such sum; a stage is one round of requests by the server and replies. The base class
`KeyHolderAggregation` has what other schemes share; it calls `_distribute`, `_collect` and `_finish` with the replies
of the three stages. The server multiplies the clients' ciphertexts, which adds their plaintexts. It never holds the
private key; the key holder is never sent a single contribution by a server that follows the protocol. Ciphertexts are
malleable: malformed structure, replays and sums out of range are refused; that messages arrive unaltered rests on the
authenticated channel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from securefed._hyperparameters import check_integer
from securefed._messages import KEY_HOLDER, SERVER, Aggregate, ClientId, Message, PartyId
from securefed._tensors import Array, Tensors
from securefed.defenses._aggregation import Outgoing
from securefed.defenses._homomorphic import cipher, key_pinning
from securefed.defenses._homomorphic.encryption_randomness import RandomnessKind, check_randomness, exponent_bits
from securefed.defenses._homomorphic.key_holder import CIPHERTEXTS, DECRYPT, KEY, PLAINTEXTS, SURVIVORS, KeyHolder
from securefed.defenses._homomorphic.key_holder_protocol import (
    CONTRIBUTE,
    UPLOAD,
    EncryptedSumServer,
    EncryptingClient,
    KeyHolderAggregation,
    threshold_of,
)
from securefed.defenses._homomorphic.keys import PublicKey
from securefed.defenses._homomorphic.packing import Packing, unpack_sum
from securefed.defenses._homomorphic.randomness_pool import RandomnessPool
from securefed.defenses._plan import Plan, Session, UploadContext, check_request
from securefed.errors import ConfigError, ContradictionError, MalformedError, PlanError


@dataclass(frozen=True)
class Paillier(KeyHolderAggregation[EncryptingClient]):
    """Sums contributions exactly under additively homomorphic encryption.

    Attributes:
        bits: length of the modulus; 2048 is about 112-bit security, 3072 about 128-bit (NIST SP 800-57).
        randomness: how ciphertexts are randomised (`encryption_randomness`): `full` (r^n, the scheme as published),
            `half` (Damgard, Jurik and Nielsen: powers of a public base with exponents of half the modulus' length, from
            a table of its powers), or `short` (exponents of 400 or 448 bits: faster, on an assumption of its own that
            the plan prints).
        threshold: survivors a round needs; by default more than half of the planned clients, and at least 3
            of as many.
        public: the key, where clients are given it at set-up; without it they trust the first one of a run and refuse
            every other one in it.
        pool: encryption randomness that `client_prepare` computed ahead of time.

    Guarantees, for a server and a key holder that follow the protocol and do not collude: the server learns the sum
    and who is in it; the key holder learns the sum and how many are in it. The sum equals
    `chain(quantise, plain)`'s bit for bit.
    A client that sits out uploads uniform plaintexts, so that the sum is uniform modulo n: it shows nothing of the
    other clients, and only that some client was out.
    Not promised: anything against server and key holder together (they open every contribution), against a server that
    deviates (it can have one client's ciphertexts decrypted, send clients different broadcasts, or repeat a broadcast
    and subtract sums over different survivors), or that clients' values lie in their bounds (only the sum is checked).
    The server sees which clients dropped out.

    Raises:
        ConfigError: `bits` below 2048 or no multiple of 64, an unknown `randomness`, `short` beyond 3072 bits, a given
            key of another length, or a threshold below 2.
    """

    bits: int = 2048
    randomness: RandomnessKind = "half"
    threshold: int | None = None
    public: PublicKey | None = None
    pool: RandomnessPool = field(default_factory=RandomnessPool, repr=False, compare=False)
    name: ClassVar[str] = "paillier"
    exact: ClassVar[bool] = True
    hides: ClassVar[bool] = True
    beside: ClassVar[tuple[PartyId, ...]] = (KEY_HOLDER,)
    least_bits: ClassVar[int] = 2048

    def __post_init__(self) -> None:
        check_integer(f"{self.name}: bits", self.bits, self.least_bits)
        if self.bits % 64:
            raise ConfigError(
                f"{self.name}: bits must be a multiple of 64 and at least {self.least_bits}; got {self.bits}"
            )
        check_randomness(self.name, self.bits, self.randomness)
        if self.public is not None and self.public.bits != self.bits:
            raise ConfigError(f"{self.name}: bits is {self.bits}, but the given key has {self.public.bits} bits")
        if self.threshold is not None and not (type(self.threshold) is int and self.threshold >= 2):
            raise ConfigError(f"{self.name}: the sum of one client is its contribution; the threshold is at least 2")

    def __str__(self) -> str:
        return f"{self.name}({self.bits}, {self.randomness})"

    def plan(self, plan: Plan) -> Plan:
        """Add stages, bytes and assumptions to the plan.

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
        """Return what the guarantees rest on, as sentences for the plan."""
        first = (
            "Clients were given the key holder's public key at set-up."
            if self.public is not None
            else "The first public key a client is handed in a run is the key holder's: a later one that differs is "
            "refused, but the first is trusted, and trusted anew by a client that restarts."
        )
        return (
            "The key holder does not collude with the server: together they open every contribution.",
            "The server is honest but curious: an active one could have one client's ciphertexts decrypted in place "
            "of the sum, and clients that are sent different broadcasts do not notice it.",
            first,
            "The key holder sees the sum of every round.",
            "Ciphertexts are malleable: that messages arrive unaltered rests on the authenticated channel.",
            "No attacker measures the key holder's time: its arithmetic does not run in constant time.",
            *randomness_assumptions(self.bits, self.randomness),
        )

    def client_open(self, session: Session, client: ClientId) -> EncryptingClient:
        """Start an exchange at a client."""
        return EncryptingClient(client, session)

    def client_accept(self, state: EncryptingClient, request: Message, context: UploadContext) -> EncryptingClient:
        """Check stage, exchange and public key. The broadcasts of other clients are not compared (see the plan).

        No check depends on the contribution; `context`, hashes of what the server sent this client, is not used.

        Raises:
            MessageRefused: a wrong stage, a repeated request, a key that cannot be one, or another key than before.
        """
        check_request(request, state.session, state.client, UPLOAD, state.next_stage)
        public = PublicKey.from_body(request.body, self.bits, request.sender)
        if self.public not in (None, public):
            raise ContradictionError(request.sender, "it hands over another public key than the one given at set-up")
        pinned = key_pinning.pin(state.pinned, state.session.run, public.to_body(), request.sender)
        return replace(state, next_stage=CONTRIBUTE, pinned=pinned)  # accepted: `client_upload` comes next

    def client_upload(
        self, state: EncryptingClient, encoded: Tensors | None
    ) -> tuple[EncryptingClient, dict[str, Array]]:
        """Encrypt, with randomness from the pool first; for a client that sits out, encrypt uniform plaintexts.

        Raises:
            RangeRefused: an entry outside the planned bound.
        """
        key = key_pinning.pinned_key(state.pinned, state.session.run)
        assert state.next_stage == CONTRIBUTE and key is not None
        public = PublicKey.from_body(key, self.bits, KEY_HOLDER)
        packing = Packing.of(state.session.plan, self.bits)
        plaintexts = packing.uniform(public.n) if encoded is None else packing.pack(encoded)
        ciphertexts = cipher.encrypt(public, plaintexts, self.randomness, self.pool)
        return replace(state, next_stage=""), {CIPHERTEXTS: cipher.to_wire(ciphertexts, public.ciphertext_bytes)}

    def client_prepare(self, state: EncryptingClient) -> EncryptingClient:
        """Compute the randomness of this client's next upload now, while it would wait or train.

        Before the client's first exchange, and without a given key, no key is known: nothing happens.
        """
        public, pinned = self.public, key_pinning.pinned_key(state.pinned, state.session.run)
        if public is None and pinned is not None:
            public = PublicKey.from_body(pinned, self.bits, KEY_HOLDER)
        if public is not None:
            self.pool.prepare(public, self.randomness, Packing.of(state.session.plan, self.bits).plaintexts)
        return state

    def _distribute(self, state: EncryptedSumServer, reply: Message) -> tuple[EncryptedSumServer, str, Outgoing]:
        """Check the key holder's public key, and ask the clients for their uploads under it."""
        body = PublicKey.from_body(reply.body, self.bits, reply.sender).to_body()
        return replace(state, stage=UPLOAD, key=body), UPLOAD, dict.fromkeys(state.session.cohort, body)

    def _collect(
        self, state: EncryptedSumServer, replies: Mapping[PartyId, Message]
    ) -> tuple[EncryptedSumServer, str, Outgoing]:
        """Multiply the uploads' ciphertexts, and ask the key holder to decrypt the products."""
        plan = state.session.plan
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

    def _finish(self, state: EncryptedSumServer, reply: Message) -> Aggregate:
        """Unpack the decrypted plaintexts to the sum."""
        sender, body = reply.sender, reply.body
        packing = Packing.of(state.session.plan, self.bits)
        if set(body) != {PLAINTEXTS}:
            raise MalformedError(sender, f"a decryption holds plaintexts, not {sorted(body)}")
        plaintexts = cipher.from_wire(body[PLAINTEXTS], packing.plaintexts, self.bits // 8, sender)
        total = unpack_sum(packing, state.session.plan, plaintexts, len(state.survivors), sender)
        return Aggregate(total, state.survivors)

    def helper(self, clients: int, frozen: bytes | None = None) -> KeyHolder | None:
        """Make a key holder with a fresh key or a `frozen` one, or `None` where the clients were given the key.

        The key holder refuses fewer survivors than a plan for `clients` clients needs.
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
    bits: int = 2048,
    randomness: RandomnessKind = "half",
    *,
    threshold: int | None = None,
    public: PublicKey | None = None,
) -> Paillier:
    """Sum contributions exactly under Paillier encryption; arguments as of `Paillier`."""
    return Paillier(bits, randomness, threshold, public)


def randomness_assumptions(bits: int, randomness: RandomnessKind) -> tuple[str, ...]:
    """State what the secrecy of a ciphertext rests on."""
    basis = "Decisional composite residuosity (Paillier 1999)."
    if randomness == "full":
        return (basis,)
    length = exponent_bits(bits, randomness)
    if randomness == "half":
        return (
            basis,
            f"Random exponents of half the modulus' length ({length} bits) cannot be distinguished, in ciphertexts, "
            "from uniform ones (Damgard, Jurik and Nielsen 2010).",
        )
    return (
        basis,
        f"EXTRA: random exponents of only {length} bits cannot be distinguished, in ciphertexts, from uniform ones; "
        "the published analysis (Damgard, Jurik and Nielsen 2010) asks for half the modulus' length.",
    )


def read_upload(public: PublicKey, body: Tensors, plan: Plan, sender: PartyId) -> list[object]:
    """Read the ciphertexts of one client's upload.

    Args:
        public: the key that they are encrypted under.
        body: the body of the client's message.
        plan: the plan of the exchange; it determines the number of ciphertexts.
        sender: the client, named in errors.

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
    """Open one client's encoded contribution, bit for bit, as server and key holder can together.

    Args:
        key_holder: holds the private key.
        body: the body of the client's message at stage `upload`, as the server recorded it.
        plan: the plan of that exchange.
        sender: the client, for the wording of a refusal.

    Raises:
        MalformedError: `body` is no upload under this plan and key.
    """
    ciphertexts = read_upload(key_holder.public, body, plan, sender)
    plaintexts = key_holder.decrypt_upload(ciphertexts)
    return Packing.of(plan, key_holder.public.bits).unpack(plaintexts, 1, sender)
