"""Sum contributions approximately under CKKS, a lattice scheme, by TenSEAL (the extra `lattice`).

    stage     server asks                                          reply
    key       key holder: {}                                       context: parameters and public key
    upload    clients: context                                     ciphertexts, uint8 (chunks, CHUNK_BYTES)
    decrypt   key holder: sum of ciphertexts, survivors            plaintexts of the sum, float64 (chunks, 4096)

An exchange is one such sum; a stage is one round of requests by the server and replies. The server never holds the
secret key, and the key holder is sent the sum alone by a server that follows the protocol. Survivors are the clients
that uploaded. "Context" is TenSEAL's word for the scheme's parameters together with a key.

Cheon, Kim, Kim and Song, ASIACRYPT 2017; additions only. Entries are divided by their tensor's bound and put into
the 4096 slots of a ciphertext (a "chunk" of the contribution). A slot is one real number that a ciphertext, a pair of
polynomials modulo a number of 120 bits (`lattice_ring`), encrypts. It encrypts the slots times a scale, rounded to
integers. The scale is the largest power of two at which a sum of N contributions stays below a quarter of that modulus.

The key holder floods its answers with noise that hides the scheme's own (`lattice_flood`): answers of a run with 2^30
values differ by at most 2^-40 in distribution from answers without the scheme's noise, whatever the sums are, for
ciphertexts that were encrypted according to the protocol. The flooding noise is the error that the plan states.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any, ClassVar

import numpy as np

from securefed._messages import KEY_HOLDER, SERVER, Aggregate, ClientId, Message, PartyId
from securefed._persistence.packing import from_bytes
from securefed._tensors import Array, Tensors, decode
from securefed.defenses._aggregation import Outgoing
from securefed.defenses._base import has_indicator, some_client_out
from securefed.defenses._homomorphic import key_pinning
from securefed.defenses._homomorphic.key_holder import (
    CIPHERTEXTS,
    DECRYPT,
    KEY,
    PLAINTEXTS,
    SURVIVORS,
    AbstractKeyHolder,
)
from securefed.defenses._homomorphic.key_holder_protocol import (
    CONTRIBUTE,
    UPLOAD,
    EncryptedSumServer,
    EncryptingClient,
    KeyHolderAggregation,
    threshold_of,
)
from securefed.defenses._homomorphic.lattice_flood import flood_bits, flood_error, open_flooded
from securefed.defenses._homomorphic.lattice_ring import (
    DEGREE,
    PRIMES,
    SLOTS,
    library,
    new_context,
    scale_of,
    uniform_vector,
)
from securefed.defenses._homomorphic.lattice_wire import (
    CHUNK_BYTES,
    CONTEXT,
    CONTEXT_BYTES,
    from_wire,
    padded,
    read_context,
    serialized,
    to_wire,
)
from securefed.defenses._homomorphic.packing import out_total
from securefed.defenses._plan import Plan, Session, TensorPlan, UploadContext, check_request
from securefed.errors import ConfigError, MalformedError, PlanError, RangeRefused


def scale(clients: int) -> float:
    """Return the integer that stands for 1: the largest power of two with clients * scale <= 2^118 (modulus / 4)."""
    return 2.0 ** (118 - math.ceil(math.log2(clients)))


@dataclass(frozen=True)
class LatticeClient(EncryptingClient):
    """A CKKS client's state in one exchange.

    Attributes:
        context: the parameters and the key that it accepted; discarded after the upload.
    """

    context: bytes = field(default=b"", repr=False)


class LatticeKeyHolder(AbstractKeyHolder):
    """Holds a CKKS key and decrypts sums with added flooding noise (`lattice_flood`).

    The secret key never leaves it but in `freeze`, for its own next process. The flood is fresh for each ciphertext.

    Args:
        threshold: fewest survivors for which it decrypts.
        frozen: what `freeze` returned; by default it makes a fresh key.
    """

    def __init__(self, *, threshold: int = 2, frozen: bytes | None = None) -> None:
        super().__init__(threshold)
        if frozen is None:
            self._context = new_context()
        else:
            fields, header = decode(frozen)
            self._context = library().context_from(fields[CONTEXT].tobytes())
            self._recall(header)
        public = self._context.copy()
        public.make_context_public()
        self._public = padded(serialized(public, key=True), CONTEXT_BYTES)

    def public_body(self) -> dict[str, Array]:
        """Return the public key, as sent to clients."""
        return {CONTEXT: self._public}

    def secret_body(self) -> dict[str, Array]:
        """Return the whole key, secret half included."""
        return {CONTEXT: from_bytes(self._context.serialize(save_secret_key=True))}

    def opened(self, ciphertexts: Array, survivors: int, sender: PartyId) -> dict[str, Array]:
        """Decrypt one batch with a fresh flood, to float64 (ciphertexts, 4096) in units of each tensor's bound."""
        slots = open_flooded(self._context, self._vectors(ciphertexts, sender), flood_bits(survivors))
        return {PLAINTEXTS: slots}

    def _vectors(self, ciphertexts: Array, sender: PartyId) -> list[Any]:
        """Read the ciphertexts of one batch, at the scale that they carry themselves."""
        vectors = from_wire(self._context, ciphertexts, None, sender)
        if len({scale_of(vector) for vector in vectors}) != 1:
            raise MalformedError(sender, "ciphertexts of one batch have one scale")
        return vectors


@dataclass(frozen=True)
class CKKS(KeyHolderAggregation[LatticeClient]):
    """Sums contributions approximately under additively homomorphic lattice encryption.

    The server's steps, in the base class, call `_distribute`, `_collect` and `_finish` after the stages of the table.

    Attributes:
        threshold: survivors a round needs; by default more than half of the planned clients, and at least 3
            of as many.
        name: the aggregation's name.
        exact: false, as sums are not taken in a ring of integers.
        hides: true, as single contributions stay hidden from the server.
        beside: parties that take part beside the server and the clients: the key holder.

    Guarantees, for a server and a key holder that follow the protocol and do not collude: the server learns the sum and
    who is in it; the key holder learns the sum and how many are in it. The sum is approximate, by at most
    `TensorPlan.error` per entry; the probability that an entry of a sum exceeds that is below 2^-69
    (`lattice_flood.flood_error`). A client that sits out uploads two uniform polynomials, so that the sum is uniform
    modulo the 120 bits it lives in: it shows nothing of the other clients, and only that some client was out.
    Not promised: anything against server and key holder together (they open every contribution), against a server that
    deviates (it can have one client's ciphertexts decrypted, or subtract sums over different survivors), or against a
    client that lies (only it checks that its entries lie in their bounds). The server sees which clients dropped out.

    Raises:
        ConfigError: TenSEAL is not installed, or a threshold below 2.
    """

    threshold: int | None = None
    name: ClassVar[str] = "ckks"
    exact: ClassVar[bool] = False
    hides: ClassVar[bool] = True
    beside: ClassVar[tuple[PartyId, ...]] = (KEY_HOLDER,)

    def __post_init__(self) -> None:
        library()
        if self.threshold is not None and not (type(self.threshold) is int and self.threshold >= 2):
            raise ConfigError("ckks: the sum of one client is its contribution; the threshold is at least 2")

    def __str__(self) -> str:
        return f"{self.name}({DEGREE})"

    def plan(self, plan: Plan) -> Plan:
        """Add stages, bytes, the error of the sum and assumptions to the plan.

        Raises:
            PlanError: a tensor without a bound or in fixed point, or too few clients for the threshold.
        """
        threshold = threshold_of(self.threshold, plan.clients)
        if threshold > plan.clients:
            raise PlanError(f"ckks: {plan.clients} clients cannot reach the threshold {threshold}")
        tensors = tuple(_approximate(tensor, plan.clients) for tensor in plan.tensors)
        return replace(
            plan,
            tensors=tensors,
            stages=(KEY, UPLOAD, DECRYPT),
            upload_bytes=_chunks(plan) * CHUNK_BYTES,
            threshold=threshold,
            open_to="the server together with the key holder",
        ).assume(
            "The key holder does not collude with the server: together they open every contribution.",
            "The server is honest but curious: an active one could have one client's ciphertexts decrypted in place "
            "of the sum, or hand the clients a key of its own before their first round, and clients that are sent "
            "different broadcasts do not notice it.",
            "The key holder sees the sum of every round.",
            "Ciphertexts are malleable: that messages arrive unaltered rests on the authenticated channel.",
            f"Ring learning with errors at degree {DEGREE} and {sum(PRIMES)} bits (128-bit security by the tables of "
            "homomorphicencryption.org, 2018), with TenSEAL's and SEAL's own random numbers.",
            "The sum is approximate. Its error is the key holder's flood of noise, which hides the scheme's own noise "
            "(Li and Micciancio 2021) to 2^-40 over 2^30 values a run, whatever they are; not where a client makes up "
            "ciphertexts of its own: their sums may reveal the key to parties that see them.",
            "TenSEAL reads bytes that other parties sent; nothing is promised about faults in it.",
        )

    def client_open(self, session: Session, client: ClientId) -> LatticeClient:
        """Start an exchange at a client."""
        return LatticeClient(client, session)

    def client_accept(self, state: LatticeClient, request: Message, context: UploadContext) -> LatticeClient:
        """Check stage, exchange, parameters and key. The broadcasts of other clients are not compared (see the plan).

        No check depends on the contribution; `context`, hashes of what the server sent this client, is not used.

        Raises:
            MessageRefused: a wrong stage, a repeated request, foreign parameters, or another key than before.
        """
        check_request(request, state.session, state.client, UPLOAD, state.next_stage)
        read_context(request.body, request.sender)
        fingerprint = {"sha256": from_bytes(sha256(request.body[CONTEXT].tobytes()).digest())}
        pinned = key_pinning.pin(state.pinned, state.session.run, fingerprint, request.sender)
        return replace(state, next_stage=CONTRIBUTE, pinned=pinned, context=request.body[CONTEXT].tobytes())

    def client_upload(self, state: LatticeClient, encoded: Tensors | None) -> tuple[LatticeClient, dict[str, Array]]:
        """Encrypt; for a client that sits out, send uniform polynomials.

        Raises:
            RangeRefused: an entry outside the planned bound.
        """
        assert state.next_stage == CONTRIBUTE
        plan = state.session.plan
        context = read_context({CONTEXT: from_bytes(state.context)}, SERVER)
        unit = scale(plan.clients)
        if encoded is None:
            vectors = [uniform_vector(context, unit) for _ in range(_chunks(plan))]
        else:
            vectors = [library().ckks_vector(context, chunk, unit) for chunk in _slots(plan, encoded)]
        return replace(state, next_stage="", context=b""), {CIPHERTEXTS: to_wire(vectors)}

    def _distribute(self, state: EncryptedSumServer, reply: Message) -> tuple[EncryptedSumServer, str, Outgoing]:
        """Check the key holder's public key, and ask the clients for their uploads under it."""
        read_context(reply.body, reply.sender)
        body = {CONTEXT: reply.body[CONTEXT]}
        return replace(state, stage=UPLOAD, key=body), UPLOAD, dict.fromkeys(state.session.cohort, body)

    def _finish(self, state: EncryptedSumServer, reply: Message) -> Aggregate:
        """Read the sum from the decrypted slots."""
        total = _unpack_sum(state.session.plan, reply.body, len(state.survivors), reply.sender)
        return Aggregate(total, state.survivors)

    def _collect(
        self, state: EncryptedSumServer, replies: Mapping[PartyId, Message]
    ) -> tuple[EncryptedSumServer, str, Outgoing]:
        """Add the uploads' ciphertexts, and ask the key holder to decrypt the sums."""
        plan = state.session.plan
        context = read_context(state.key, KEY_HOLDER)
        total: list[Any] = []
        for message in replies.values():
            vectors = read_upload(context, message.body, plan, message.sender)
            total = [a + b for a, b in zip(total, vectors, strict=True)] if total else vectors
        request = {CIPHERTEXTS: to_wire(total), SURVIVORS: np.asarray(len(replies), np.int64)}
        return replace(state, stage=DECRYPT, survivors=tuple(sorted(replies))), DECRYPT, {KEY_HOLDER: request}

    def helper(self, clients: int, frozen: bytes | None = None) -> LatticeKeyHolder:
        """Make a key holder, with a fresh key or a `frozen` one; it refuses fewer survivors than the plan needs."""
        return LatticeKeyHolder(threshold=threshold_of(self.threshold, clients), frozen=frozen)


def ckks(*, threshold: int | None = None) -> CKKS:
    """Sum contributions approximately under lattice encryption; `threshold` as of `CKKS`."""
    return CKKS(threshold)


def read_upload(context: Any, body: Tensors, plan: Plan, sender: PartyId) -> list[Any]:
    """Read the ciphertexts of one client's upload.

    Args:
        context: TenSEAL's context with the parameters and the public key.
        body: the body of the client's message.
        plan: the plan of the exchange; it determines number and scale of the ciphertexts.
        sender: the client, named in errors.

    Raises:
        MalformedError: the body is no upload under this plan.
    """
    if set(body) != {CIPHERTEXTS}:
        raise MalformedError(sender, f"an upload holds ciphertexts, not {sorted(body)}")
    vectors = from_wire(context, body[CIPHERTEXTS], _chunks(plan), sender)
    if any(scale_of(vector) != scale(plan.clients) for vector in vectors):
        raise MalformedError(sender, "the ciphertexts' scale is not the plan's")
    return vectors


def _approximate(tensor: TensorPlan, clients: int) -> TensorPlan:
    """Plan one tensor: state its error; `PlanError` without a bound, or in fixed point (a `step`)."""
    if tensor.bound is None or tensor.step:
        raise PlanError(f"ckks: tensor {tensor.name!r} needs a bound and no quantise(); it sums in floating point")
    error = tensor.error + tensor.bound * _relative_error(clients)
    return replace(tensor, error=error, max_clients=2 ** math.ceil(math.log2(clients)))


def _relative_error(clients: int) -> float:
    """Bound a sum's error in units of the bound: flood, scheme's noise, and double precision.

    The last is 2^-46 for each client, four times the 2^-48 that was measured.
    """
    return flood_error(clients) / scale(clients) + clients * 2.0**-46


def _chunks(plan: Plan) -> int:
    """Count the ciphertexts of one contribution."""
    return -(-sum(tensor.size for tensor in plan.tensors) // SLOTS)


def _slots(plan: Plan, encoded: Tensors) -> Array:
    """Divide entries by their bounds and lay them into slots (chunks, SLOTS), with zeros at the end."""
    flat = np.zeros(_chunks(plan) * SLOTS)
    start = 0
    for tensor in plan.tensors:
        assert tensor.bound is not None
        value = np.asarray(encoded[tensor.name], np.float64).reshape(-1)
        if value.size and not np.abs(value).max() <= tensor.bound:
            raise RangeRefused(f"{tensor.name!r} holds entries beyond the planned bound {tensor.bound:g}")
        flat[start : start + tensor.size] = value / tensor.bound
        start += tensor.size
    return flat.reshape(-1, SLOTS)


def _unpack_sum(plan: Plan, body: Tensors, count: int, sender: PartyId) -> dict[str, Array]:
    """Read the sum of `count` contributions; zeros with the indicator set where some client sat out.

    The indicator is a tensor that every contributing client uploads as zero (`Defense`). The slots of a sum that holds
    a uniform polynomial have a standard deviation of tens of `count` bounds: all 4096 lie within what `count` clients
    can add up to with a probability below 2^-10000.
    """
    total = _unpack(plan, body, sender)
    if not has_indicator(plan):
        return total
    beyond = np.abs(body[PLAINTEXTS]).max() > count + _relative_error(plan.clients)
    return out_total(plan, np.float64) if beyond or some_client_out(total, plan) else total


def _unpack(plan: Plan, body: Tensors, sender: PartyId) -> dict[str, Array]:
    """Read the slots of a sum into the plan's tensors, times their bounds; `MalformedError` names `sender`."""
    if set(body) != {PLAINTEXTS}:
        raise MalformedError(sender, f"a decryption holds plaintexts, not {sorted(body)}")
    slots = body[PLAINTEXTS]
    if slots.dtype != np.float64 or slots.shape != (_chunks(plan), SLOTS) or not np.isfinite(slots).all():
        raise MalformedError(sender, f"plaintexts are not finite float64 of shape ({_chunks(plan)}, {SLOTS})")
    flat, out, start = slots.reshape(-1), {}, 0
    for tensor in plan.tensors:
        assert tensor.bound is not None
        out[tensor.name] = (flat[start : start + tensor.size] * tensor.bound).reshape(tensor.shape)
        start += tensor.size
    return out
