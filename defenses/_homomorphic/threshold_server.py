"""Run the server of threshold decryption: collect signed uploads, ask holders for answers, open the sum.

`ThresholdPaillier.server_step` calls it at the stages `upload` and `decrypt` of an exchange (one sum). A share holder
is a client with a share of the private key; t of them decrypt together. Survivors are the clients that uploaded.

The server checks each upload, sends all of them to t share holders among the survivors, and combines their partial
answers to the sum's plaintexts (`threshold_cipher.combine`), which proves them right by itself. Only if that fails, or
a holder is silent, it verifies the proofs. A wrong answer raises an error with its holder's name: the runtime drops
that reply and repeats the step without it, which then asks as many further holders as answers are missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from securefed._messages import SERVER, Aggregate, ClientId, Message, PartyId
from securefed._persistence.packing import local
from securefed._tensors import Array, Tensors
from securefed.defenses._aggregation import Outgoing
from securefed.defenses._homomorphic import cipher, threshold_cipher
from securefed.defenses._homomorphic.key_holder import CIPHERTEXTS, DECRYPT
from securefed.defenses._homomorphic.key_holder_protocol import UPLOAD
from securefed.defenses._homomorphic.key_set import SharedKey
from securefed.defenses._homomorphic.packing import Packing, unpack_sum
from securefed.defenses._homomorphic.signed_uploads import (
    SIGNATURE,
    check_signature,
    context,
    decryption_request,
    product,
)
from securefed.defenses._homomorphic.threshold_cipher import CHALLENGE_BYTES, DecryptionProof, response_bytes
from securefed.defenses._plan import Plan, Session
from securefed.errors import MalformedError, TooFewSurvivors

ANSWERS: Final = "answers"
CHALLENGE, RESPONSE = "challenge", "response"


@dataclass(frozen=True)
class ThresholdServer:
    """The server's state in one exchange.

    Attributes:
        session: run, exchange number, cohort and plan.
        stage: the stage whose replies come next.
        uploads: by survivor, as they came.
        waiting: holders that were asked last.
        spare: survivors that hold shares and were not asked yet.
        answers: right partial answers so far, by holder, as they came.
    """

    session: Session = local()
    stage: str = UPLOAD
    uploads: Mapping[ClientId, Mapping[str, Array]] = field(default_factory=dict)
    waiting: tuple[ClientId, ...] = ()
    spare: tuple[ClientId, ...] = ()
    answers: Mapping[ClientId, Mapping[str, Array]] = field(default_factory=dict)


def collect(
    shared: SharedKey, state: ThresholdServer, replies: Mapping[PartyId, Message]
) -> tuple[ThresholdServer, str, Outgoing]:
    """Check the uploads, and ask the first t share holders to decrypt.

    Args:
        shared: the public part of the threshold keys.
        state: at the stage `upload`.
        replies: by client; clients without a reply are lost.

    Returns:
        State, the stage `decrypt`, and for each holder that is asked all uploads with their signatures.

    Raises:
        MessageRefused: an upload is malformed or not signed, blaming its client.
        TooFewSurvivors: fewer than t holders uploaded.
    """
    for client, message in replies.items():
        read_upload(shared, state.session, message.body, client)
    uploads = {client: replies[client].body for client in sorted(replies)}
    holders = tuple(client for client in uploads if client < shared.holders)
    if len(holders) < shared.threshold:
        raise TooFewSurvivors(
            f"{len(holders)} share holders uploaded, the threshold is {shared.threshold}; nothing opened"
        )
    return _ask(replace(state, stage=DECRYPT, uploads=uploads, spare=holders), shared.threshold)


def _ask(state: ThresholdServer, count: int) -> tuple[ThresholdServer, str, Outgoing]:
    """Ask the next `count` holders that were not asked yet."""
    now, later = state.spare[:count], state.spare[count:]
    return replace(state, waiting=now, spare=later), DECRYPT, dict.fromkeys(now, decryption_request(state.uploads))


def open_sum(
    shared: SharedKey, state: ThresholdServer, replies: Mapping[PartyId, Message]
) -> tuple[ThresholdServer, str, Outgoing] | Aggregate:
    """Open the sum by t right answers; where some are missing, ask further holders.

    The opened sum proves itself, so proofs are verified only where it does not open, to find the holder that was wrong.

    Args:
        shared: the public part of the threshold keys.
        state: at the stage `decrypt`.
        replies: by holder, to the last requests.

    Returns:
        The sum; or state, the stage `decrypt`, and requests to as many further holders as answers are missing.

    Raises:
        MalformedError: an answer is malformed, or not proven right; it names the holder.
        TooFewSurvivors: fewer than t right answers, or a sum that uploads within the plan cannot have.
    """
    packing = Packing.of(state.session.plan, shared.public.bits)
    ciphertexts = product(shared, {client: body[CIPHERTEXTS] for client, body in state.uploads.items()})
    answers = {holder: dict(body) for holder, body in state.answers.items()}
    answers |= {holder: dict(message.body) for holder, message in replies.items()}
    read = {holder: read_answer(shared, body, packing.plaintexts, holder) for holder, body in answers.items()}
    missing = shared.threshold - len(answers)  # never negative: no more holders are asked than answers are missing
    if not missing:
        partials = {holder: numbers for holder, (numbers, _) in read.items()}
        plaintexts = threshold_cipher.combine(shared, ciphertexts, partials)
        if plaintexts is not None:
            return _unpack(packing, state.session.plan, plaintexts, tuple(sorted(state.uploads)))
    for holder in sorted(replies):  # a holder was wrong, or silent: keep only what is proven
        numbers, proof = read[holder]
        proof_context = context(shared, state.session, DECRYPT, holder)
        if not threshold_cipher.verify(shared, holder, ciphertexts, numbers, proof_context, proof):
            raise MalformedError(holder, "its partial decryption is not proven right")
    if not missing:
        raise TooFewSurvivors(
            f"all {len(answers)} partial decryptions are proven right, but the sum does not open: some client's upload "
            "is not what the plan says; the round is void"
        )
    if missing > len(state.spare):
        asked = {client for client in state.uploads if client < shared.holders} - {*state.spare}
        others = ", ".join(str(holder) for holder in sorted(asked - {*answers}))
        raise TooFewSurvivors(
            f"{len(answers)} of the {shared.threshold} share holders that a decryption needs answered rightly (silent "
            f"or wrong: {others}), and {len(state.spare)} others are left to ask; the round is void. Repeat it with "
            "more."
        )
    return _ask(replace(state, answers=answers), missing)


def _unpack(packing: Packing, plan: Plan, plaintexts: cipher.Integers, survivors: tuple[ClientId, ...]) -> Aggregate:
    """Unpack the plaintexts to the sum; `TooFewSurvivors` where uploads within the plan cannot have it."""
    try:
        return Aggregate(unpack_sum(packing, plan, plaintexts, len(survivors), SERVER), survivors)
    except MalformedError as error:
        raise TooFewSurvivors(
            f"some client's upload is not what the plan says ({error.reason}); the round is void"
        ) from error


def read_upload(shared: SharedKey, session: Session, body: Tensors, client: ClientId) -> Array:
    """Check one client's upload and its signature, and return its ciphertexts on the wire, uint8 (count, bytes).

    Args:
        shared: the public part of the threshold keys.
        session: run, exchange number, cohort, plan and context, which the signature is bound to.
        body: the upload.
        client: the client that the transport had it from, named in errors.

    Raises:
        MalformedError: the upload is malformed.
        AuthenticationError: its client did not sign it for this exchange.
    """
    if set(body) != (expected := {CIPHERTEXTS, SIGNATURE}):
        raise MalformedError(client, f"an upload holds {sorted(expected)}, not {sorted(body)}")
    rows, count = body[CIPHERTEXTS], Packing.of(session.plan, shared.public.bits).plaintexts
    ciphertexts = cipher.from_wire(rows, count, shared.public.ciphertext_bytes, client)
    cipher.check(shared.public, ciphertexts, client)
    check_signature(shared, session, client, rows, body[SIGNATURE], client)
    return rows


def read_answer(
    shared: SharedKey, body: Tensors, count: int, holder: ClientId
) -> tuple[cipher.Integers, DecryptionProof]:
    """Read a holder's partial answers and its proof, which is not verified yet; `count` answers there must be.

    Raises:
        MalformedError: other fields, types or sizes.
    """
    if set(body) != {ANSWERS, CHALLENGE, RESPONSE}:
        raise MalformedError(holder, f"a partial decryption holds answers and their proof, not {sorted(body)}")
    for name, size in ((CHALLENGE, CHALLENGE_BYTES), (RESPONSE, response_bytes(shared.public.bits))):
        if body[name].dtype != np.uint8 or body[name].shape != (size,):
            raise MalformedError(holder, f"the proof's {name} is not {size} bytes")
    numbers = cipher.from_wire(body[ANSWERS], count, shared.public.plaintext_bytes, holder)
    return numbers, DecryptionProof(body[CHALLENGE].tobytes(), int.from_bytes(body[RESPONSE].tobytes(), "little"))
