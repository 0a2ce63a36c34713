"""Derive what each kind of attacker observes (its view) from the recorded transcript of a run.

Audits call these functions before each attack, users on transcripts of their own. An attacker is a server, a server
that sees sums only, colluding clients, or an outside observer. Its view holds, for every training exchange, the
broadcast and one message: the sum over the smallest set of clients around the target that this attacker can isolate, in
real units. Collusion views subtract the colluders' own contributions; none reads the target's contribution unless the
attacker received it.

A transcript holds one record for each exchange. An exchange is one round trip: a broadcast, the uploads of the clients,
and their sum; survivors are the clients whose uploads were summed. A contribution is what the algorithm computes, and
its encoded form is what defences make of it before it is masked or encrypted (for instance fixed-point integers). The
transcript holds contributions and sums in this form. Views undo the encoding by facts that the attacker knows too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from securefed._messages import ROTATED, SERVER, ClientId, PartyId, RoundRecord, Transcript
from securefed._tensors import Array, Layout, Tensors, TensorSpec, subtract
from securefed.attacks._base import RoundView, View
from securefed.defenses._base import without_indicator_tensor
from securefed.errors import TranscriptError

Opener = Callable[[Tensors], Tensors]
"""Turns one recorded upload into the encoded contribution; for ciphertexts, by a key that the attacker holds."""


# Names of the views, as audits and attacks use them.
SERVER_VIEW: Final = "server"
SUM_ONLY: Final = "sum only"
SMALLEST_SUM: Final = "smallest sum"
CHANGING_SURVIVORS: Final = "changing survivors"
KEY_HOLDER_VIEW: Final = "server + key holder"
RELEASED: Final = "released"
OUTPUT_ONLY: Final = "output only"
EAVESDROPPER: Final = "eavesdropper"
ACTIVE_SERVER: Final = "active server"


def server(transcript: Transcript, target: ClientId) -> View:
    """View of a server that receives the target's own messages in the clear.

    Raises:
        TranscriptError: the uploads are not in the clear, or were not kept.
    """
    return opened(transcript, target, lambda body: body, SERVER_VIEW)


def opened(transcript: Transcript, target: ClientId, opener: Opener, name: str) -> View:
    """View of an attacker that decrypts the target's own messages.

    Args:
        transcript: the recorded run.
        target: the client attacked.
        opener: decrypts an upload.
        name: name of the view.

    Raises:
        TranscriptError: an upload was not kept, or is not in the clear after `opener`.
    """
    uploads = {
        sent.message.round: sent.message.body
        for sent in transcript.sent
        if sent.message.sender == target and sent.message.stage == "upload" and sent.message.receiver == SERVER
    }
    rounds = []
    for record, following in _training(transcript):
        if target not in record.survivors:
            continue
        if record.round not in uploads:
            raise TranscriptError(f"exchange {record.round}: the transcript does not hold client {target}'s upload")
        # A defence may add an indicator to an upload, by which the sum shows whether any client left its range.
        encoded = without_indicator_tensor(opener(uploads[record.round]))
        if set(encoded) != set(record.encoded):
            raise TranscriptError(
                f"exchange {record.round}: client {target}'s upload is not in the clear; use another view"
            )
        rounds.append(_observation(transcript, record, following, encoded, frozenset({target}), record.survivors))
    return View(name, target, tuple(rounds), transcript.output)


def sum_only(transcript: Transcript, target: ClientId | None) -> View:
    """View of a server that learns sums only.

    Rounds without the target are kept, since sums over changing survivors can be subtracted. Where a round has a sum
    for each group of clients (`grouped`), the view holds those of the target's group, or of all groups without one.
    """
    rounds = tuple(
        _observation(transcript, record, following, encoded, frozenset(survivors), survivors)
        for record, following in _training(transcript)
        for encoded, survivors in _sums(record, target)
    )
    return View(SUM_ONLY, target, rounds, transcript.output)


def released(transcript: Transcript, target: ClientId | None) -> View:
    """View of an observer outside the aggregator: the sums after the noise that the server adds before a release."""
    rounds = tuple(
        RoundView(
            record.round,
            record.broadcast,
            record.released,
            frozenset(record.survivors),
            frozenset(record.survivors),
            following,
            clips=record.distortion.clips,
            noise=record.distortion.released,
        )
        for record, following in _training(transcript)
    )
    return View(RELEASED, target, rounds, transcript.output)


def collusion(transcript: Transcript, target: ClientId, colluders: Iterable[ClientId]) -> View:
    """View of colluding clients: the sums minus their own contributions.

    Sums of fixed-point integers are modulo 2^32 or 2^64, so that this difference is exact there. Rounds whose survivors
    all collude are left out.

    Args:
        transcript: the recorded run.
        target: the client attacked.
        colluders: the clients that collude.

    Raises:
        TranscriptError: the target is among the colluders, or their contributions were not kept.
    """
    colluding = frozenset(colluders)
    if target in colluding:
        raise TranscriptError(f"client {target} cannot be both the target and a colluder")
    rounds = []
    for record, following in _training(transcript):
        for total, survivors in _sums(record, target):
            encoded: Tensors = total
            for client in sorted(colluding & set(survivors)):
                try:
                    encoded = subtract(encoded, transcript.contributions[record.round, client])
                except KeyError as error:
                    raise TranscriptError(
                        f"exchange {record.round}: colluder {client}'s contribution was not kept"
                    ) from error
            if members := frozenset(survivors) - colluding:
                rounds.append(_observation(transcript, record, following, encoded, members, survivors))
    return View(f"collusion({len(colluding)})", target, tuple(rounds), transcript.output)


def holders_collusion(
    transcript: Transcript, target: ClientId, colluders: Iterable[ClientId], threshold: int, opener: Opener
) -> View:
    """View of colluding share holders: the target's uploads if they are at least `threshold`, else as `collusion`.

    Args:
        transcript: the recorded run.
        target: the client attacked.
        colluders: the clients that collude.
        threshold: number of shares that decrypt an upload.
        opener: decrypts an upload with the colluders' shares; used from `threshold` colluders on.

    Raises:
        TranscriptError: as in `collusion` and `opened`.
    """
    colluding = frozenset(colluders)
    if target in colluding or len(colluding) < threshold:
        return collusion(transcript, target, colluding)
    return opened(transcript, target, opener, f"{threshold} share holders")


def output_only(transcript: Transcript, target: ClientId | None) -> View:
    """View of the final model alone."""
    return View(OUTPUT_ONLY, target, (), transcript.output)


@dataclass(frozen=True)
class Packet:
    """One message on an encrypted connection: its position in the sequence, sender, receiver and size.

    Attributes:
        place: position in the sequence.
        sender: sending party.
        receiver: receiving party.
        nbytes: size in bytes.
    """

    place: int
    sender: PartyId
    receiver: PartyId
    nbytes: int


def traffic(transcript: Transcript) -> tuple[Packet, ...]:
    """Return what an eavesdropper on encrypted connections observes: sizes, directions and order of the messages.

    It observes no content, no stage and no output; times are not recorded. Participation and dropouts are visible.
    """
    return tuple(
        Packet(place, sent.message.sender, sent.message.receiver, sent.nbytes)
        for place, sent in enumerate(transcript.sent)
    )


def eavesdropper(transcript: Transcript, target: ClientId | None) -> View:
    """View of an eavesdropper for attacks on content: it holds no round and no output, so that no attack applies."""
    return View(EAVESDROPPER, target, (), {})


def shuffled(observed: View, rng: np.random.Generator) -> View:
    """Shuffle a view for a null test: the same numbers without structure.

    Every message takes the place of another round's (where there are several rounds), and the entries of its tensors
    are permuted at random, so that neither the pairing with a broadcast nor the structure of one message is left.
    """
    count = len(observed.rounds)
    order = rng.permutation(count)
    # Round order[k] gets the message of round order[k - 1].
    partner = np.empty(count, dtype=np.int64)
    partner[order] = np.roll(order, 1)  # one cycle: of several rounds no message keeps its own
    rounds = tuple(
        replace(observation, message=_permuted(observed.rounds[other].message, rng))
        for observation, other in zip(observed.rounds, partner, strict=True)
    )
    return replace(observed, rounds=rounds)


def _permuted(message: Tensors, rng: np.random.Generator) -> dict[str, Array]:
    """Permute entries tensor by tensor, in order of the names, so that draws do not depend on the tensors' order."""
    values = {name: np.asarray(message[name]) for name in sorted(message)}
    return {name: rng.permutation(value.reshape(-1)).reshape(value.shape) for name, value in values.items()}


def _training(transcript: Transcript) -> list[tuple[RoundRecord, Tensors]]:
    """Return the training exchanges, each with the broadcast that followed from it; for the last one, the output."""
    records = [record for record in transcript.records if record.kind == "train"]
    following = [record.broadcast for record in records[1:]] + [transcript.output]
    return list(zip(records, following, strict=False))


def _sums(record: RoundRecord, target: ClientId | None) -> list[tuple[Tensors, tuple[ClientId, ...]]]:
    """Return the sums that the server opened, each with its survivors: of the target's group where there are groups."""
    if not record.groups:
        return [(record.encoded, record.survivors)]
    groups = [group for group in record.groups if target is None or target in group.survivors]
    return [(group.total, group.survivors) for group in groups]


def _observation(
    transcript: Transcript,
    record: RoundRecord,
    following: Tensors,
    encoded: Tensors,
    members: frozenset[ClientId],
    summed: tuple[ClientId, ...],
) -> RoundView:
    """Return one round of a view: the members' sum in real units, with what defences did to it.

    Args:
        transcript: the recorded run.
        record: the exchange.
        following: the broadcast that followed from its sum.
        encoded: the sum over the members, as encoded by the defence.
        members: the clients in that sum.
        summed: the survivors of the sum that it was made from.
    """
    # The distortion records how defences clipped, scaled (`units`) and noised the contributions.
    message, step, distortion = decode(encoded, record.step), record.step, record.distortion
    if order := transcript.meta.get(ROTATED):  # a rotation mixes the entries: they are no multiples of a step any more
        message, step = _unrotated(message, order, (transcript.run, record.round)), {}
    if distortion.units:
        message = {name: np.asarray(value * distortion.units.get(name, 1.0)) for name, value in message.items()}
        step = {name: unit * distortion.units.get(name, 1.0) for name, unit in step.items()}
    # Every survivor adds an equal share of the noise's variance.
    noise_share = math.sqrt(len(members) / len(summed))
    noise = {name: noise_share * deviation for name, deviation in distortion.noise.items()}
    survivors = frozenset(summed)
    return RoundView(
        record.round, record.broadcast, message, members, survivors, following, step, distortion.clips, noise
    )


def decode(encoded: Tensors, step: Mapping[str, float]) -> dict[str, Array]:
    """Convert encoded values to real units; values in the clear stay as they are."""
    return {name: np.asarray(value * step[name] if name in step else value) for name, value in encoded.items()}


def _unrotated(message: Tensors, order: Sequence[str], exchange: tuple[str, int]) -> dict[str, Array]:
    """Undo the public rotation of values to which distributed noise was added."""
    from securefed.defenses._differential_privacy.rotation import Rotation  # noqa: PLC0415 - few transcripts need it

    layout = Layout(tuple(TensorSpec(name, np.shape(message[name])) for name in order))
    return layout.unflatten(Rotation(layout.size, exchange).inverse(layout.flatten(message)))
