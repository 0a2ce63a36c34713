"""Sum contributions under Paillier encryption without a key holder: t of N clients decrypt the sum together.

An exchange is one such sum. In its stages the server sends requests and collects the replies:

    stage     server asks                                                        reply
    upload    clients: {}                                                        ciphertexts, signature
    decrypt   t holders among the survivors: every upload with its signature     partial answers, proof
    decrypt   as many further holders as are missing, if some gave no answer or a wrong one

The product of ciphertexts encrypts the sum of the contributions. Keys are dealt at set-up (`key_set`): every client has
the public key, and each share holder a share of the private one. A share holder checks the signatures and multiplies
the uploads itself, so that it only answers for a product of at least t clients' uploads; it answers once per exchange.
From t partial answers the server computes the sum (`threshold_cipher`). This module holds the public class and a
client's steps; `threshold_server` holds the server's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

from securefed._hyperparameters import check_integer
from securefed._messages import Aggregate, ClientId, Message, PartyId
from securefed._persistence.packing import from_bytes, local
from securefed._tensors import Array, Tensors
from securefed.defenses._aggregation import Aggregation, Outgoing
from securefed.defenses._homomorphic import cipher, threshold_cipher
from securefed.defenses._homomorphic.encryption_randomness import RandomnessKind, check_randomness
from securefed.defenses._homomorphic.key_holder import CIPHERTEXTS, DECRYPT
from securefed.defenses._homomorphic.key_holder_protocol import CONTRIBUTE, UPLOAD, check_cohort, check_replies
from securefed.defenses._homomorphic.key_set import InsecureKeySet, KeyDealer, KeySet, check_threshold
from securefed.defenses._homomorphic.packing import Packing
from securefed.defenses._homomorphic.paillier_protocol import randomness_assumptions
from securefed.defenses._homomorphic.randomness_pool import RandomnessPool
from securefed.defenses._homomorphic.signed_uploads import (
    SIGNATURE,
    SIGNATURE_BYTES,
    context,
    digest,
    product,
    read_decryption_request,
    sign,
)
from securefed.defenses._homomorphic.threshold_cipher import CHALLENGE_BYTES, response_bytes
from securefed.defenses._homomorphic.threshold_server import (
    ANSWERS,
    CHALLENGE,
    RESPONSE,
    ThresholdServer,
    collect,
    open_sum,
)
from securefed.defenses._plan import Plan, Session, UploadContext, check_request
from securefed.errors import ConfigError, ContradictionError, DataError, MalformedError, PlanError


@dataclass(frozen=True)
class ThresholdClient:
    """A client's state in one exchange.

    Attributes:
        client: its id.
        session: run, exchange number, cohort and plan.
        next_stage: the stage it answers next; empty when it is done.
        sent: SHA-256 of the ciphertexts that it uploaded, empty before.
        context: digest of the exchange's context that it received with the request for its upload.
    """

    client: ClientId
    session: Session = local()
    next_stage: str = UPLOAD
    sent: bytes = b""
    context: bytes = b""

    @property
    def session_with_context(self) -> Session:
        """The session with the exchange context that this client received."""
        return replace(self.session, context=self.context)


@dataclass(frozen=True)
class ThresholdPaillier(Aggregation):
    """Sums contributions exactly under Paillier encryption; any t of N share holders decrypt the sum together.

    The share holders are clients 0..N-1: they are online in every round anyway and have no interest in decrypting each
    other's uploads, whereas separate helpers would be N further parties to run and to trust.

    Attributes:
        threshold: t; by default N - floor((N - 1) / 3).
        holders: N, at most 64; by default the planned clients.
        clients: number of clients with identities; by default the planned ones.
        bits: length of the modulus.
        randomness: how an encryption's randomness is drawn: "full", r^n for a uniform unit r, or a power of a public
            n-th power by a secret exponent of "half" the modulus's bits, or a "short" one (`encryption_randomness`).
        keys: the keys, dealt at set-up; without them this process deals keys at first use, which is only for
            simulations.
        pool: encryption randomness that `client_prepare` computed ahead of time.
        dealer: deals the keys if none are given.

    Guarantees: the server learns the sum and which clients are in it; fewer than t share holders, without the server,
    learn nothing of the others' contributions. A holder gives one partial answer per exchange, for the product of at
    least t uploads that their clients signed for this exchange. Uploads of clients with different exchange contexts
    (other broadcasts, for example) are not decrypted together. No wrong answer changes the sum: each answer carries a
    proof, by which the server finds the holder that was wrong. The sum equals that of `chain(quantise, plain)` bit for
    bit. A client that sits out uploads uniform plaintexts, which makes the sum uniform modulo n.
    Not promised: anything against t holders together, against the dealer, against a server with 2 t - N holders (it may
    decrypt for two sets of survivors), or against a server with ONE client that alters its upload: a ciphertext made
    from the others' can cancel them, and clients do not prove that they know their plaintexts. Nor anything if a server
    repeats a broadcast in another exchange and subtracts the two sums: holders do not remember earlier exchanges.

    Raises:
        ConfigError: a threshold that is not more than half of the holders, keys that do not fit the numbers given, an
            unknown `randomness`.
    """

    threshold: int | None = None
    holders: int | None = None
    clients: int | None = None
    bits: int = 2048
    randomness: RandomnessKind = "half"
    keys: KeySet | None = field(default=None, hash=False)
    pool: RandomnessPool = field(default_factory=RandomnessPool, repr=False, compare=False)
    dealer: KeyDealer = field(default_factory=KeyDealer, repr=False, compare=False)
    name: ClassVar[str] = "paillier_threshold"
    exact: ClassVar[bool] = True
    hides: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_integer(f"{self.name}: bits", self.bits, 64)
        for name in ("threshold", "holders", "clients"):
            if (value := getattr(self, name)) is not None:
                check_integer(f"{self.name}: {name}", value, 2)
        check_randomness(self.name, self.bits, self.randomness)
        if self.keys is not None:
            self._check_keys(self.keys)
        elif self.bits < 2048 or self.bits % 64:
            raise ConfigError(f"{self.name}: bits must be a multiple of 64 and at least 2048; got {self.bits}")
        elif self.threshold is not None and self.holders is not None:
            check_threshold(self.threshold, self.holders)

    def _check_keys(self, keys: KeySet) -> None:
        """Raise `ConfigError` unless the keys were dealt for these numbers."""
        if isinstance(keys, InsecureKeySet) and not isinstance(self, InsecureThresholdPaillier):
            raise ConfigError(f"{self.name}: insecure keys need InsecureThresholdPaillier")
        shared = keys.shared
        dealt_for = {"threshold": shared.threshold, "holders": shared.holders, "bits": shared.public.bits}
        for name, value in dealt_for.items():
            if getattr(self, name) != value:
                raise ConfigError(
                    f"{self.name}: {name} must be {value}, for which the keys were dealt; got {getattr(self, name)}"
                )

    def __str__(self) -> str:
        return f"{self.name}({self.bits}, {self.randomness})"

    def plan(self, plan: Plan) -> Plan:
        """Add stages, assumptions, bytes (of a client that uploads and decrypts) and collusions to the plan.

        Raises:
            PlanError: tensors not in fixed point, or a threshold that the planned clients cannot reach.
        """
        packing = Packing.of(plan, self.bits)
        threshold, holders = self._numbers(plan.clients)
        if threshold > plan.clients:
            raise PlanError(f"{self.name}: {plan.clients} clients cannot reach the threshold {threshold}")
        try:
            check_threshold(threshold, holders)
        except ConfigError as error:
            raise PlanError(f"{self.name}: {error}") from error
        upload = packing.plaintexts * self.bits // 4 + SIGNATURE_BYTES
        answer = packing.plaintexts * self.bits // 8 + CHALLENGE_BYTES + response_bytes(self.bits)
        two_sets = 2 * threshold - holders
        return replace(
            plan,
            stages=(UPLOAD, DECRYPT),
            upload_bytes=upload + answer,
            threshold=threshold,
            open_to=f"any {threshold} of the {holders} share holders together; the server with {two_sets} of them "
            "(two survivor sets), or with one client that alters its upload; the dealer of the keys",
        ).assume(*self._assumptions(threshold, holders))

    def _numbers(self, clients: int) -> tuple[int, int]:
        """Return t and N for this number of planned clients; N - floor((N - 1) / 3) is above two thirds of N."""
        holders = self.holders or clients
        return self.threshold or holders - (holders - 1) // 3, holders

    def _assumptions(self, threshold: int, holders: int) -> tuple[str, ...]:
        """Return what the guarantees rest on, as sentences for the plan."""
        dealer = "A dealer drew the keys at set-up, handed each client its own, and forgot them: it could open all."
        if self.keys is None:
            dealer += " Here this very process deals: fit for simulations."
        return (
            dealer,
            f"Fewer than {threshold} of the {holders} share holders collude; each receives every upload, encrypted.",
            f"Fewer than {2 * threshold - holders} share holders collude with the server.",
            "The server does not repeat a broadcast and subtract the sums over different survivors.",
            "No client colludes with a server that deviates: an upload made from others' ciphertexts can cancel them.",
            "No attacker measures the share holders' time: their arithmetic does not run in constant time.",
            *randomness_assumptions(self.bits, self.randomness),
            "Partial answers reveal the sum and the product of the clients' randomness, no more: RSA with public "
            "exponent n (Shoup 2000), with SHA-256 as a random oracle in the proofs.",
        )

    def _keys(self, plan: Plan) -> KeySet:
        """Return the given keys, or those that this process deals for the planned numbers."""
        if self.keys is not None:
            return self.keys
        return self.dealer.keys(*self._numbers(plan.clients), self.clients or plan.clients, self.bits)

    def client_open(self, session: Session, client: ClientId) -> ThresholdClient:
        """Start an exchange at a client."""
        return ThresholdClient(client, session)

    def client_step(
        self, state: ThresholdClient, request: Message, encoded: Tensors | None
    ) -> tuple[ThresholdClient, dict[str, Array]]:
        """Accept the request and upload in one step, or give a partial answer.

        Args:
            state: the client's state; it says which stage comes next.
            request: the server's message.
            encoded: at the stage `upload` the contribution, int64 tensors in fixed point; else `None`.

        Raises:
            MessageRefused: a wrong stage, a repeated request, or a product that must not be opened.
            ConfigError: as `client_accept`.
            RangeRefused: as `client_upload`.
        """
        if state.next_stage == UPLOAD:
            accepted = self.client_accept(state, request, UploadContext(state.session.context, b""))
            if encoded is None:
                raise DataError(f"the stage {UPLOAD!r} needs the encoded contribution")
            return self.client_upload(accepted, encoded)
        check_request(request, state.session, state.client, DECRYPT, state.next_stage)
        return replace(state, next_stage=""), self._answer(self._keys(state.session.plan), state, request)

    def client_accept(self, state: ThresholdClient, request: Message, context: UploadContext) -> ThresholdClient:
        """Check stage and exchange, and that this client can sign; no check depends on its contribution.

        Args:
            state: the client's state.
            request: the server's message, which is empty.
            context: hashes of what the server sent this client; the first is signed with the upload.

        Raises:
            MessageRefused: a wrong stage, a repeated request, or one that holds anything.
            ConfigError: this client was dealt no identity.
        """
        check_request(request, state.session, state.client, UPLOAD, state.next_stage)
        if request.body:
            raise MalformedError(request.sender, f"a request to upload is empty, not {sorted(request.body)}")
        if state.client not in self._keys(state.session.plan).signers:
            raise ConfigError(f"{self.name}: client {state.client} was dealt no identity; deal keys for all clients")
        return replace(state, next_stage=CONTRIBUTE, context=context.exchange)

    def client_upload(
        self, state: ThresholdClient, encoded: Tensors | None
    ) -> tuple[ThresholdClient, dict[str, Array]]:
        """Encrypt and sign; for a client that sits out, encrypt uniform plaintexts.

        Raises:
            RangeRefused: an entry outside the planned bound.
        """
        assert state.next_stage == CONTRIBUTE
        plan, client = state.session.plan, state.client
        keys, packing = self._keys(plan), Packing.of(plan, self.bits)
        public = keys.shared.public
        plaintexts = packing.uniform(public.n) if encoded is None else packing.pack(encoded)
        ciphertexts = cipher.to_wire(
            cipher.encrypt(public, plaintexts, self.randomness, self.pool), public.ciphertext_bytes
        )
        signature = sign(keys.shared, keys.signers[client], state.session_with_context, client, ciphertexts)
        following = DECRYPT if client in keys.shares else ""
        return replace(state, next_stage=following, sent=digest(ciphertexts)), {
            CIPHERTEXTS: ciphertexts,
            SIGNATURE: signature,
        }

    def _answer(self, keys: KeySet, state: ThresholdClient, request: Message) -> dict[str, Array]:
        """Decrypt the product of the requested uploads partially, after every check that a share holder can make."""
        shared, session, client = keys.shared, state.session_with_context, state.client
        count = Packing.of(session.plan, self.bits).plaintexts
        uploads = read_decryption_request(shared, session, request.body, count, request.sender)
        if client in uploads and digest(uploads[client]) != state.sent:
            raise ContradictionError(request.sender, "it shows another upload as this client's own")
        ciphertexts = product(shared, uploads, request.sender)
        share = keys.shares[client]
        answers = threshold_cipher.partial(shared, share, ciphertexts)
        proof_context = context(shared, session, DECRYPT, client)
        proof = threshold_cipher.prove(shared, client, share, ciphertexts, answers, proof_context)
        response = proof.response.to_bytes(response_bytes(self.bits), "little")
        return {
            ANSWERS: cipher.to_wire(answers, shared.public.plaintext_bytes),
            CHALLENGE: from_bytes(proof.challenge),
            RESPONSE: from_bytes(response),
        }

    def client_prepare(self, state: ThresholdClient) -> ThresholdClient:
        """Compute the randomness of this client's next upload now; return the state as it is."""
        plan = state.session.plan
        self.pool.prepare(self._keys(plan).shared.public, self.randomness, Packing.of(plan, self.bits).plaintexts)
        return state

    def server_open(self, session: Session) -> tuple[ThresholdServer, str, Outgoing]:
        """Start an exchange at the server by asking all clients for their uploads.

        Raises:
            ConfigError: more clients than planned, or one without an identity.
        """
        check_cohort(session)
        shared = self._keys(session.plan).shared
        without_identity = [client for client in session.cohort if client not in shared.identities]
        if without_identity:
            raise ConfigError(
                f"{self.name}: clients {without_identity} were dealt no identity; "
                "deal keys for all clients (clients=...)"
            )
        return ThresholdServer(session), UPLOAD, {client: {} for client in session.cohort}

    def server_step(
        self, state: ThresholdServer, replies: Mapping[PartyId, Message]
    ) -> tuple[ThresholdServer, str, Outgoing] | Aggregate:
        """Take the replies of one stage, and return the next requests or the sum.

        Raises:
            MessageRefused: a reply is malformed, or its sender was not asked.
            TooFewSurvivors: too few clients uploaded or answered.
        """
        session = state.session
        check_replies(replies, session, state.stage, session.cohort if state.stage == UPLOAD else state.waiting)
        shared = self._keys(session.plan).shared
        return collect(shared, state, replies) if state.stage == UPLOAD else open_sum(shared, state, replies)


class InsecureThresholdPaillier(ThresholdPaillier):
    """`ThresholdPaillier` with keys that can be factored: for tests and quick simulations only."""

    name: ClassVar[str] = "insecure_paillier_threshold"

    def _assumptions(self, threshold: int, holders: int) -> tuple[str, ...]:
        return (*super()._assumptions(threshold, holders), f"INSECURE: a modulus of {self.bits} bits may be factored.")


def threshold_paillier(
    threshold: int | None = None,
    holders: int | None = None,
    *,
    clients: int | None = None,
    bits: int = 2048,
    randomness: RandomnessKind = "half",
    keys: KeySet | None = None,
) -> ThresholdPaillier:
    """Sum under encryption, and let t of N clients decrypt the sum together; arguments as of `ThresholdPaillier`.

    Numbers that `keys` determine need not be given again.
    """
    if keys is None:
        return ThresholdPaillier(threshold, holders, clients, bits, randomness)
    shared = keys.shared
    kind = InsecureThresholdPaillier if isinstance(keys, InsecureKeySet) else ThresholdPaillier
    return kind(threshold or shared.threshold, holders or shared.holders, clients, shared.public.bits, randomness, keys)
