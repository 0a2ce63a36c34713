"""Build a transcript of a run in another framework, round by round.

    recording = Recording(rows=[100, 80, 120], features=64, classes=10, feature_bound=1.0)
    recording.round(broadcast, {0: update, 1: update, 2: update})     # NumPy arrays by name
    transcript = recording.finish(output)
    transcript.save("run.transcript")                                 # safetensors; nothing is ever unpickled

Where single updates are not known (a run under secure aggregation), `sums` takes the sum and the clients in it, the
survivors. A transcript holds one record for each round and the run's public facts (`meta`): what a server sees. Attacks
reconstruct clients' rows from it, and an audit scores them. "Exchange" is another word for a round in errors, since a
run of this package also records rounds of evaluation.
"""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal

import numpy as np

from securefed._clipping_noise import ClippingNoiseRecord
from securefed._messages import SERVER, ClientId, Message, RoundRecord, SentMessage, Transcript
from securefed._public import Public
from securefed._tensors import Array, Layout, Tensors, encode
from securefed.errors import DataError, TranscriptError

Form = Literal["updates", "models"]
"""How a recording states what clients send (`contribution`)."""
UPLOAD: Final = "upload"
"""Name of the stage of a round in which clients send their updates."""


class Recording:
    """Build a `Transcript` that views and attacks read like that of a run of this package.

    All arrays are NumPy arrays by name. Names and shapes must be the same in every round.

    Args:
        rows: public number of rows of each client; a client's id is its position.
        features: width of the rows.
        classes: number of label classes; 0 without labels.
        feature_bound: declared largest absolute value of the rows' entries.
        facts: further facts to store in the transcript (JSON).

    Raises:
        DataError: facts that are not JSON, or numbers that no run can have.
    """

    def __init__(
        self,
        *,
        rows: Sequence[int],
        features: int,
        classes: int = 0,
        feature_bound: float = 1.0,
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        """Start a recording of a run with these public facts."""
        meta = {**(facts or {}), "clients": len(rows), "rows": list(rows), "features": features, "classes": classes}
        meta |= {"feature_bound": feature_bound, "imported": True}
        self._transcript = Transcript(secrets.token_hex(16), meta)
        try:
            json.dumps(meta)
            self.public = public_of(self._transcript)
        except (TranscriptError, TypeError) as error:
            raise DataError(f"public facts must be JSON, and numbers that a run can have: {error}") from error
        self._broadcast: Layout | None = None
        self._message: Layout | None = None

    def round(
        self,
        broadcast: Tensors,
        updates: Mapping[ClientId, Tensors],
        *,
        nbytes: int | None = None,
        clip: float | None = None,
        noise: float = 0.0,
    ) -> None:
        """Record a round in which each client's update is known.

        Args:
            broadcast: the arrays that the clients received; {} if unknown (attacks that need them then do not apply).
            updates: message of each client that took part, as the server sums it: times its weight if it weights.
            nbytes: size of one upload on the wire; of our own encoding by default.
            clip: L2 norm that clients clipped their updates to, all tensors together; `None` where they did not.
            noise: standard deviation of what each client then added to every entry, where it added noise.

        Raises:
            DataError: names or shapes that change, entries that are not finite, a client that does not exist.
        """
        if not updates or not isinstance(updates, Mapping):
            raise DataError("a round needs at least one update, in a mapping from client numbers to updates")
        uploads = {client: self._checked(update, f"client {client}'s update") for client, update in updates.items()}
        names = next(iter(uploads.values()))
        total = {name: np.sum([upload[name] for upload in uploads.values()], axis=0) for name in names}
        index = len(self._transcript.records)
        for client, upload in sorted(uploads.items()):
            message = Message(self._transcript.run, index, UPLOAD, client, SERVER, upload)
            self._transcript.sent.append(SentMessage(message, len(encode(upload)) if nbytes is None else nbytes))
            self._transcript.contributions[index, client] = upload
        self._record(broadcast, total, uploads, clip, math.sqrt(len(uploads)) * noise)

    def sums(
        self,
        broadcast: Tensors,
        total: Tensors,
        survivors: Iterable[ClientId],
        *,
        clip: float | None = None,
        noise: float = 0.0,
    ) -> None:
        """Record a round of which only the sum and the clients in it are known.

        Args:
            broadcast: as in `round`.
            total: the sum of the clients' messages.
            survivors: the clients in the sum.
            clip: as in `round`.
            noise: standard deviation of the noise in every entry of the sum.

        Raises:
            DataError: as in `round`; or there are no survivors.
        """
        clients = tuple(survivors)
        if not clients:
            raise DataError("a sum needs at least one survivor")
        self._record(broadcast, self._checked(total, "sum"), clients, clip, noise)

    def finish(self, output: Tensors) -> Transcript:
        """Return the transcript, with the final model `output`.

        Raises:
            TranscriptError: no round was recorded.
        """
        if not self._transcript.records:
            raise TranscriptError("the recording holds no round; call `round` or `sums` first")
        self._transcript.output = {name: np.array(value) for name, value in output.items()}
        return self._transcript

    def _record(
        self, broadcast: Tensors, total: Tensors, survivors: Iterable[ClientId], clip: float | None, noise: float
    ) -> None:
        """Add a round to the transcript, after a check of its facts; `noise` is that of an entry of the sum."""
        if clip is not None and not 0 < clip < math.inf:
            raise DataError(f"clip must be a positive norm, or None where nothing was clipped; got {clip}")
        if not 0 <= noise < math.inf:
            raise DataError(f"noise must be a standard deviation of at least 0 (0: no noise); got {noise}")
        clients = tuple(sorted(survivors))
        unknown = [client for client in clients if client not in range(self.public.clients)]
        if unknown or len(set(clients)) != len(clients):
            raise DataError(f"clients are numbered 0 to {self.public.clients - 1}, each once, not {list(clients)}")
        if not isinstance(broadcast, Mapping):
            raise DataError(f"broadcast must map names to arrays ({{}} where unknown); got {type(broadcast).__name__}")
        sent = {name: np.array(value) for name, value in broadcast.items()}
        if sent:
            self._broadcast = self._broadcast or Layout.of(sent)
            self._broadcast.check(sent, where=f"broadcast of round {len(self._transcript.records)}")
        values = dict(total)
        index = len(self._transcript.records)
        deviations = dict.fromkeys(values, noise) if noise else {}
        distortion = ClippingNoiseRecord(
            clips=() if clip is None else ((tuple(values), clip),),  # all tensors together
            noise=deviations,
            released=deviations,  # the server adds none
        )
        self._transcript.records.append(
            RoundRecord(
                round=index,
                kind="train",
                broadcast=sent,
                cohort=clients,
                survivors=clients,
                encoded=values,  # the sum is in the clear, so that it is all three of these
                step={},
                total=values,
                released=values,
                distortion=distortion,
            )
        )

    def _checked(self, tensors: Tensors, where: str) -> dict[str, Array]:
        """Return the tensors as arrays of numbers, with the names and shapes of the first message of the recording."""
        if not isinstance(tensors, Mapping) or not tensors:
            raise DataError(
                f"{where}: a non-empty mapping of names to arrays is needed; got {type(tensors).__name__} of "
                f"{len(tensors)}"
            )
        values = {str(name): np.asarray(value) for name, value in tensors.items()}
        for name, value in values.items():
            if value.dtype.kind not in "fiu":
                raise DataError(f"{where}: {name!r} has type {value.dtype}; numbers are needed")
        self._message = self._message or Layout.of(values)
        self._message.check(values, where=f"{where} in round {len(self._transcript.records)}")
        return values


def contribution(sent: Tensors, model: Tensors, form: Form, weight: float) -> dict[str, Array]:
    """Turn a client's model into its contribution: the model itself, or the weighted change of what it was sent.

    Args:
        sent: the model that the client was sent.
        model: the model that it sent back.
        form: "models", or "updates" for `weight` times the change of every tensor, under names `delta.NAME`.
        weight: the client's, from `relative_weights`.
    """
    if form == "models":
        return dict(model)
    return {f"delta.{name}": as_floats(weight * (value - sent[name]), value) for name, value in model.items()}


def relative_weights(rows: Sequence[int], *, weighted: bool) -> Array:
    """Return each client's number of rows over the mean number, or 1 for each."""
    return np.asarray(rows) / np.mean(rows) if weighted else np.ones(len(rows))


def as_floats(value: Array, example: Array) -> Array:
    """Return `value` in the type of `example`, or in float64 where that is no type of floats."""
    return np.asarray(value, example.dtype) if example.dtype.kind == "f" else np.asarray(value, np.float64)


def named(arrays: Sequence[Array], names: Sequence[str]) -> dict[str, Array]:
    """Name arrays that are in a fixed order (as from Flower's `parameters_to_ndarrays`) after the model's tensors.

    Raises:
        DataError: the names are not as many as the arrays, or not different.
    """
    if len(arrays) != len(names) or len(set(names)) != len(names):
        raise DataError(f"{len(arrays)} arrays need as many different names, not {len(names)}")
    return {name: np.asarray(value) for name, value in zip(names, arrays, strict=True)}


def public_of(transcript: Transcript, *, classes: int | None = None) -> Public:
    """Read the public facts of a run from its transcript, recorded here or imported.

    Args:
        transcript: the recorded run.
        classes: number of labels, where the transcript does not say.

    Raises:
        TranscriptError: a fact is missing; the error names it.
    """
    meta = transcript.meta
    missing = [name for name in ("clients", "rows", "features", "feature_bound") if name not in meta]
    if missing:
        raise TranscriptError(f"the transcript does not state {', '.join(missing)}; attacks need the public facts")
    labels = meta.get("classes", 0) if classes is None else classes
    counts = {"clients": meta["clients"], "features": meta["features"], "classes": labels}
    counts |= {"cohort": meta.get("cohort", meta["clients"])}
    facts = {name: _whole(value, name, least=int(name != "classes")) for name, value in counts.items()}
    if not isinstance(meta["rows"], list | tuple) or len(meta["rows"]) != facts["clients"]:
        raise TranscriptError(
            f"the transcript states {facts['clients']} clients, and no list of as many numbers of rows"
        )
    rows = tuple(_whole(value, f"rows of client {k}", least=1) for k, value in enumerate(meta["rows"]))
    bound = meta["feature_bound"]
    if isinstance(bound, bool) or not isinstance(bound, int | float) or not 0 < bound < float("inf"):
        raise TranscriptError(f"the transcript's feature_bound must be a positive number, not {bound!r}")
    return Public(rows=rows, feature_bound=float(bound), class_names=(), **facts)


def check(transcript: Transcript, public: Public) -> None:
    """Check that the rounds of a transcript can be those of one run, before an audit reads it.

    Raises:
        TranscriptError: exchanges that do not follow each other, clients that do not exist or are counted twice, two
            uploads of one client in one exchange, names or shapes that change, entries that are not finite.
    """
    layouts: dict[tuple[str, str], Layout] = {}

    def check_layout(kind: str, what: str, tensors: Tensors, where: str) -> None:
        if not tensors:
            return
        try:
            layouts.setdefault((kind, what), Layout.of(tensors)).check(tensors, where=where)
        except DataError as error:
            raise TranscriptError(f"{error}; the transcript is no record of one run") from error

    last = -1
    for record in transcript.records:
        where = f"exchange {record.round}"
        if record.round <= last:
            raise TranscriptError(f"{where} follows exchange {last}; a transcript holds each once, in their order")
        last = record.round
        clients = record.survivors
        if len(set(clients)) != len(clients) or not all(0 <= client < public.clients for client in clients):
            raise TranscriptError(
                f"{where}: clients are numbered 0 to {public.clients - 1}, each once, not {list(clients)}"
            )
        check_layout(record.kind, "broadcast", record.broadcast, f"{where}, broadcast")
        check_layout(record.kind, "message", record.total, f"{where}, sum")
    uploads: set[tuple[int, int]] = set()
    for message in (sent.message for sent in transcript.sent if sent.message.stage == UPLOAD):
        upload = (message.round, message.sender)
        if upload in uploads:
            raise TranscriptError(
                f"exchange {upload[0]}: client {upload[1]} uploads twice; a transcript holds each once"
            )
        if message.sender >= 0:  # the server's request has the stage's name too
            uploads.add(upload)
    kinds_in_clear = {record.round: record.kind for record in transcript.records if not record.step}
    for (number, client), contribution in transcript.contributions.items():
        if number in kinds_in_clear:  # elsewhere they are encoded, each defence in its way
            check_layout(kinds_in_clear[number], "message", contribution, f"exchange {number}, client {client}")


def _whole(value: object, name: str, *, least: int) -> int:
    """Return a whole number from `least` that a transcript states; `TranscriptError` for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise TranscriptError(f"the transcript states {value!r} as its {name}; a whole number from {least} is needed")
    return int(value)
