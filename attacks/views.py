"""Views of an attacker, derived from the recorded transcript and nothing else.

Each view reduces every training exchange to one observation for its target: the message of the smallest set of
clients that the viewer can single out. Collusion views read the colluders' own contributions, never the target's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from securefed.attacks.base import Observation, Observed
from securefed.defenses.base import without_indicator_tensor
from securefed.errors import TranscriptError
from securefed.messages import ROTATED, SERVER, ClientId, PartyId, RoundRecord, Transcript
from securefed.tensors import Array, Layout, Tensors, TensorSpec, subtract

Opener = Callable[[Tensors], Tensors]
"""Turns one recorded upload into the encoded contribution (decryption with a key the viewer holds)."""


SERVER_VIEW: Final = "server"
SUM_ONLY: Final = "sum only"
KEY_HOLDER_VIEW: Final = "server + key holder"
RELEASED: Final = "released"
OUTPUT_ONLY: Final = "output only"
EAVESDROPPER: Final = "eavesdropper"


def server(transcript: Transcript, target: ClientId) -> Observed:
    """The target's own messages, in the clear.

    Raises:
        TranscriptError: the uploads are not in the clear, or were not kept.
    """
    return opened(transcript, target, lambda body: body, SERVER_VIEW)


def opened(transcript: Transcript, target: ClientId, opener: Opener, name: str) -> Observed:
    """The target's own messages, each turned into its encoded contribution by `opener`."""
    uploads = {
        sent.message.round: sent.message.body
        for sent in transcript.sent
        if sent.message.sender == target and sent.message.stage == "upload" and sent.message.receiver == SERVER
    }
    rounds = []
    for record, followed in _training(transcript):
        if target not in record.survivors:
            continue
        if record.round not in uploads:
            raise TranscriptError(f"exchange {record.round}: the transcript does not hold client {target}'s upload")
        encoded = without_indicator_tensor(opener(uploads[record.round]))
        if set(encoded) != set(record.encoded):
            raise TranscriptError(
                f"exchange {record.round}: client {target}'s upload is not in the clear; use another view"
            )
        rounds.append(_observation(transcript, record, followed, encoded, frozenset({target})))
    return Observed(name, target, tuple(rounds), transcript.output)


def sum_only(transcript: Transcript, target: ClientId | None) -> Observed:
    """The sums; rounds without the target are kept, since changing survivors give it away."""
    rounds = tuple(
        _observation(transcript, r, after, r.encoded, frozenset(r.survivors)) for r, after in _training(transcript)
    )
    return Observed(SUM_ONLY, target, rounds, transcript.output)


def released(transcript: Transcript, target: ClientId | None) -> Observed:
    """View of an observer outside the aggregator: the sums after the server's noise."""
    rounds = tuple(
        Observation(
            r.round,
            r.broadcast,
            r.released,
            frozenset(r.survivors),
            frozenset(r.survivors),
            after,
            clips=r.distortion.clips,
            noise=r.distortion.released,
        )
        for r, after in _training(transcript)
    )
    return Observed(RELEASED, target, rounds, transcript.output)


def collusion(transcript: Transcript, target: ClientId, colluders: Iterable[ClientId]) -> Observed:
    """The sums less what the colluders know they sent; in a ring this is exact, bit for bit.

    Raises:
        TranscriptError: the target is among the colluders, or their contributions were not kept.
    """
    colluding = frozenset(colluders)
    if target in colluding:
        raise TranscriptError(f"client {target} cannot be both the target and a colluder")
    rounds = []
    for record, followed in _training(transcript):
        encoded: Mapping[str, Array] = record.encoded
        present = colluding & set(record.survivors)
        for client in sorted(present):
            try:
                encoded = subtract(encoded, transcript.contributions[record.round, client])
            except KeyError as error:
                raise TranscriptError(
                    f"exchange {record.round}: colluder {client}'s contribution was not kept"
                ) from error
        members = frozenset(record.survivors) - present
        if members:
            rounds.append(_observation(transcript, record, followed, encoded, members))
    return Observed(f"collusion({len(colluding)})", target, tuple(rounds), transcript.output)


def holders_collusion(
    transcript: Transcript, target: ClientId, colluders: Iterable[ClientId], threshold: int, opener: Opener
) -> Observed:
    """What colluding share holders see under threshold decryption: from `threshold` on every upload, below only sums.

    Args:
        opener: what the colluders' shares make of an upload; used from `threshold` colluders on.

    Raises:
        TranscriptError: as `collusion` and `opened` do.
    """
    colluding = frozenset(colluders)
    if target in colluding or len(colluding) < threshold:
        return collusion(transcript, target, colluding)
    return opened(transcript, target, opener, f"{threshold} share holders")


def output_only(transcript: Transcript, target: ClientId | None) -> Observed:
    """Just the final model."""
    return Observed(OUTPUT_ONLY, target, (), transcript.output)


@dataclass(frozen=True)
class Packet:
    """One message under an encrypted connection: its position in the sequence, its ends, its size."""

    place: int
    sender: PartyId
    receiver: PartyId
    nbytes: int


def traffic(transcript: Transcript) -> tuple[Packet, ...]:
    """All that an eavesdropper has: sizes, directions and order; no content, no stage, no output.

    Times are not recorded. Participation and dropouts show.
    """
    return tuple(
        Packet(place, sent.message.sender, sent.message.receiver, sent.nbytes)
        for place, sent in enumerate(transcript.sent)
    )


def eavesdropper(transcript: Transcript, target: ClientId | None) -> Observed:
    """`traffic` as attacks on content see it: no round and no output, so none of them applies."""
    return Observed(EAVESDROPPER, target, (), {})


def shuffled(observed: Observed, rng: np.random.Generator) -> Observed:
    """The null: the same numbers without their meaning.

    Every message takes the place of another round's, and the entries of its tensors are permuted at random, so that
    neither the pairing with a broadcast nor the structure of one message is left.
    """
    count = len(observed.rounds)
    order = rng.permutation(count)
    partner = np.empty(count, dtype=np.int64)
    partner[order] = np.roll(order, 1)  # one cycle: no message keeps its round
    rounds = tuple(
        replace(own, message=_permuted(observed.rounds[other].message, rng))
        for own, other in zip(observed.rounds, partner, strict=True)
    )
    return replace(observed, rounds=rounds)


def _permuted(message: Tensors, rng: np.random.Generator) -> dict[str, Array]:
    """By name, so that what is drawn does not hang on the order in which the tensors came off the wire."""
    values = {name: np.asarray(message[name]) for name in sorted(message)}
    return {name: rng.permutation(value.reshape(-1)).reshape(value.shape) for name, value in values.items()}


def _training(transcript: Transcript) -> list[tuple[RoundRecord, Tensors]]:
    """Training exchanges, each with the broadcast that followed from it."""
    records = [record for record in transcript.records if record.kind == "train"]
    after = [record.broadcast for record in records[1:]] + [transcript.output]
    return list(zip(records, after, strict=False))


def _observation(
    transcript: Transcript, record: RoundRecord, followed: Tensors, encoded: Tensors, members: frozenset[ClientId]
) -> Observation:
    message, step, told = decode(encoded, record.step), record.step, record.distortion
    if order := transcript.meta.get(ROTATED):
        message, step = _unrotated(message, order, (transcript.run, record.round)), {}
    if told.units:
        message = {name: np.asarray(value * told.units.get(name, 1.0)) for name, value in message.items()}
        step = {name: unit * told.units.get(name, 1.0) for name, unit in step.items()}
    share = math.sqrt(len(members) / len(record.survivors))  # of the noise, which every survivor adds alike
    noise = {name: share * deviation for name, deviation in told.noise.items()}
    survivors = frozenset(record.survivors)
    return Observation(record.round, record.broadcast, message, members, survivors, followed, step, told.clips, noise)


def decode(encoded: Tensors, step: Mapping[str, float]) -> dict[str, Array]:
    """Encoded values in real units; values in the clear stay as they are."""
    return {name: np.asarray(value * step[name] if name in step else value) for name, value in encoded.items()}


def _unrotated(message: Tensors, order: Sequence[str], exchange: tuple[str, int]) -> dict[str, Array]:
    """Distributed noise is added to rotated values; the rotation is public and hides nothing."""
    from securefed.defenses.differential_privacy.rotation import Rotation  # noqa: PLC0415 - few transcripts need it

    layout = Layout(tuple(TensorSpec(name, np.shape(message[name])) for name in order))
    return layout.unflatten(Rotation(layout.size, exchange).inverse(layout.flatten(message)))
