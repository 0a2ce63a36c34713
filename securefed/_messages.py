"""Messages, each bound to run, round, stage, sender and receiver, and the transcript of a run.

An exchange makes one sum of the clients' contributions, in several stages of one request and reply for each client.
The transcript is what the server has: every message it sent or received, and what the defence's protocol let it
compute. A view is the part of it that one attacker sees. What clients know of themselves is kept beside it
(`Transcript.contributions`), for attackers that collude with clients and for scoring attacks; no view of the server
alone may read it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import DTypeLike

from securefed._clipping_noise import ClippingNoiseRecord
from securefed._persistence import container
from securefed._persistence.packing import nest, unnest
from securefed._shape_repr import ShapeRepr
from securefed._tensors import Array, Tensors, decode, encode
from securefed.errors import BindingError, DataError, MalformedError, StorageError, VersionRefused

PartyId = int
"""Number of a party: a client, the server or a helper."""
ClientId = int
"""Number of a client, from 0."""
SERVER: Final[PartyId] = -1
"""The server's number among the parties."""
KEY_HOLDER: Final[PartyId] = -2
"""The number of the helper that decrypts sums under homomorphic encryption."""
REFUSAL: Final = "refusal"
"""Stage of the message by which a client refuses a request."""
PROTOCOL_VERSION: Final = 1
"""Version of the protocol between parties. It stands in the header of every message, and in the first message of what
precedes a run (Flower's enrolment, the agreement of keys of a masked all-reduce)."""
# The fields of a message beside its body, with their types.
_HEADER: Final[Mapping[str, type]] = {"run": str, "round": int, "stage": str, "sender": int, "receiver": int}
_VERSION: Final = "version"


def check_version(version: object, sender: PartyId, name: str = "it") -> None:
    """Raise `VersionRefused`, which names the sender, unless it speaks this version; `None` stands for no version."""
    if type(version) is int and version == PROTOCOL_VERSION:
        return
    theirs = "names no version" if version is None else f"speaks version {version!r:.20}"
    raise VersionRefused(
        sender,
        f"{name} {theirs} of the protocol and this party speaks version {PROTOCOL_VERSION}; install the same release "
        "of securefed at all parties",
    )


class LengthLimits(Protocol):
    """Bounds on the length of messages (`MessageLimits`)."""

    def check(self, data: bytes, sender: PartyId) -> None:
        """Raise `MalformedError`, which names the sender, where the bytes are too long."""


@dataclass(frozen=True, repr=False)
class Message(ShapeRepr):
    """One message, with what it is bound to.

    Attributes:
        run: 32 hexadecimal digits, random for each run.
        round: the number of the exchange in the run; each exchange, also a void one, takes the next number.
        stage: the protocol's name for this step; a refusal has the stage `refusal`.
        sender: the party that sends it.
        receiver: the party that it is for.
        body: named arrays.
    """

    run: str
    round: int
    stage: str
    sender: PartyId
    receiver: PartyId
    body: Tensors

    def encode(self, *, before: bytes = b"") -> bytes:
        """Encode the message as safetensors bytes, version and binding in their metadata; `before` stands in front."""
        binding = {name: getattr(self, name) for name in _HEADER}
        return encode(self.body, {_VERSION: PROTOCOL_VERSION} | binding, before=before)

    @classmethod
    def decode(
        cls, data: bytes, *, claimed_sender: PartyId = SERVER, stored: bool = False, limits: LengthLimits | None = None
    ) -> Message:
        """Decode bytes, the inverse of `encode`.

        Args:
            data: the bytes.
            claimed_sender: the party that the transport had them from, which errors name.
            stored: whether they come from a state file; files that were written before messages named a version are
                read too.
            limits: refuses bytes that are longer than any message of the exchange, before they are parsed; `None` for
                bytes of this party's own.

        Raises:
            MalformedError: the bytes are no message, or too long for one.
            VersionRefused: the message is of another version of the protocol, or names none.
        """
        if limits is not None:
            limits.check(data, claimed_sender)
        try:
            body, header = decode(data)
        except DataError as error:
            raise MalformedError(claimed_sender, str(error)) from error
        if not stored or _VERSION in header:
            check_version(header.pop(_VERSION, None), claimed_sender)
        for name, kind in _HEADER.items():
            if type(header.get(name)) is not kind:
                raise MalformedError(claimed_sender, f"header field {name!r} is missing or no {kind.__name__}")
            if kind is str and any("\ud800" <= letter <= "\udfff" for letter in header[name]):
                # half of a letter: JSON may hold it, and no digest of the text can be computed
                raise MalformedError(claimed_sender, f"header field {name!r} is no text: {header[name]!a:.40}")
        if any(abs(header[name]) >= 2**53 for name in ("round", "sender", "receiver")):
            raise MalformedError(claimed_sender, "a number in the header is out of range")
        if set(header) != set(_HEADER):
            raise MalformedError(claimed_sender, f"unexpected header fields {sorted(set(header) - set(_HEADER))}")
        return cls(body=body, **header)

    def check(self, *, run: str, round: int, stage: str, sender: PartyId, receiver: PartyId) -> None:
        """Raise `BindingError` unless the message is the one this step of the protocol waits for."""
        expected = {"run": run, "round": round, "stage": stage, "sender": sender, "receiver": receiver}
        for name, value in expected.items():
            if getattr(self, name) != value:
                raise BindingError(self.sender, f"{name} is {getattr(self, name)!r}, expected {value!r}")

    def expect_fields(self, names: Iterable[str]) -> None:
        """Raise `MalformedError` unless the body holds exactly these fields."""
        if set(self.body) != set(names):
            raise MalformedError(self.sender, f"fields {sorted(self.body)}, expected {sorted(names)}")

    def take(self, name: str, dtype: DTypeLike | None = None, shape: tuple[int | None, ...] | None = None) -> Array:
        """Return a field of the body, once it is checked.

        Args:
            name: the field's name.
            dtype: its type; `None` allows any numbers.
            shape: its shape, in which `None` allows any length; `None` allows any shape.

        Raises:
            MalformedError: the field is missing, or of another type or shape.
        """
        value: Any = self.body.get(name)
        if not isinstance(value, np.ndarray) or value.dtype.kind not in "iuf":
            raise MalformedError(self.sender, f"field {name!r} is missing or no array of numbers")
        same_shape = shape is None or (
            len(value.shape) == len(shape)
            and all(length in (None, actual) for length, actual in zip(shape, value.shape, strict=True))
        )
        if (dtype is not None and value.dtype != np.dtype(dtype)) or not same_shape:
            raise MalformedError(self.sender, f"field {name!r} is {value.dtype} of shape {value.shape}")
        return value

    def take_ids(self, name: str, among: Iterable[int]) -> tuple[int, ...]:
        """Read a field as ascending ids.

        Raises:
            MalformedError: not ascending, repeated, or not `among` those it may hold.
        """
        ids = tuple(self.take(name, np.int64, (None,)).tolist())
        if list(ids) != sorted(set(ids)) or not set(ids) <= set(among):
            raise MalformedError(self.sender, f"{name!r} holds ids that are unknown, repeated or out of order")
        return ids


@dataclass(frozen=True, repr=False)
class GroupSum(ShapeRepr):
    """The sum of one group of an exchange that makes several.

    Attributes:
        survivors: ids in the sum, ascending.
        total: the sum, as the protocol produced it.
        counted: whether the exchange's total is made from it.
    """

    survivors: tuple[ClientId, ...]
    total: Tensors
    counted: bool


@dataclass(frozen=True, repr=False)
class Aggregate(ShapeRepr):
    """The result of one exchange at the server: a sum, and the clients in it.

    Attributes:
        total: sum of the survivors' contributions; with `groups` their number times a robust mean.
        survivors: ids whose contribution the sum holds, ascending.
        proof: shows the clients that the sum holds their contributions, where the protocol makes one.
        groups: the sums that the server opened, where it opened several.
        left_out: by client, why its group is not among the survivors.
    """

    total: Tensors
    survivors: tuple[ClientId, ...]
    proof: Tensors = field(default_factory=dict)
    groups: tuple[GroupSum, ...] = ()
    left_out: Mapping[ClientId, str] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """Number of survivors."""
        return len(self.survivors)


ROTATED = "rotated"
"""Key of a transcript's `meta`: the tensors whose `encoded` values are rotated together, in the rotation's order.

Clients that add noise in the ring first multiply their vector by a public random rotation, which spreads large entries
over all coordinates; who reads `encoded` has to undo it."""


@dataclass(frozen=True, repr=False)
class RoundRecord(ShapeRepr):
    """The server's record of one completed exchange.

    Attributes:
        round: the exchange's number, as in its messages.
        kind: `train` or `evaluate`.
        broadcast: what the contributions were computed from.
        cohort: ids invited.
        survivors: ids in the sum.
        encoded: the sum as the protocol produced it (integers under a fixed-point defence).
        step: value of one unit of `encoded`, by tensor; empty where `encoded` is in the clear.
        total: the decoded sum, before any noise the server adds; times `distortion.units` in units of the algorithm.
        released: what leaves the aggregator, in units of the algorithm: `total` plus the server's noise, if any.
        distortion: what the defence did to the numbers.
        groups: the sums that the server opened, where it opened several; `encoded` is then made from them.
    """

    round: int
    kind: str
    broadcast: Tensors
    cohort: tuple[ClientId, ...]
    survivors: tuple[ClientId, ...]
    encoded: Tensors
    step: Mapping[str, float]
    total: Tensors
    released: Tensors
    distortion: ClippingNoiseRecord = field(default_factory=ClippingNoiseRecord)
    groups: tuple[GroupSum, ...] = ()

    @property
    def sums(self) -> tuple[tuple[ClientId, ...], ...]:
        """The clients of each sum that the server opened."""
        return tuple(group.survivors for group in self.groups) or (self.survivors,)


@dataclass(frozen=True, repr=False)
class SentMessage(ShapeRepr):
    """One message and its exact size on the wire, in bytes."""

    message: Message
    nbytes: int


@dataclass(repr=False)
class Transcript(ShapeRepr):
    """Everything the server of a run has, in order.

    Attributes:
        run: the run's identifier.
        meta: public facts: algorithm, hyper-parameters, defence, number of clients (JSON values).
        sent: messages in the order they crossed the wire.
        records: completed exchanges.
        contributions: `(exchange, client) -> encoded contribution`; the clients' own knowledge, NOT the server's.
        output: the final broadcast.
        missing: rounds of the run that came before the checkpoint it went on from, which are not in here.
    """

    run: str
    meta: dict[str, Any] = field(default_factory=dict)
    sent: list[SentMessage] = field(default_factory=list)
    records: list[RoundRecord] = field(default_factory=list)
    contributions: dict[tuple[int, ClientId], Tensors] = field(default_factory=dict)
    output: Tensors = field(default_factory=dict)
    missing: int = 0

    def nbytes(self, *, sender: PartyId | None = None, receiver: PartyId | None = None) -> int:
        """Count the bytes of all messages from `sender` to `receiver`; `None` stands for any party."""
        return sum(
            sent.nbytes
            for sent in self.sent
            if sender in (None, sent.message.sender) and receiver in (None, sent.message.receiver)
        )

    def save(self, path: Path | str) -> None:
        """Write one file, readable by its owner only. It holds `contributions` too: clear values of every client.

        Raises:
            StorageError: the file cannot be written; or rounds are missing here that another run's file of that path
                may hold, which would be lost.
        """
        self._check_overwrites(Path(path))
        tensors: dict[str, Any] = {}
        sent = []
        for index, item in enumerate(self.sent):
            message = item.message
            tensors |= nest(f"sent/{index}", message.body)
            binding = [message.run, message.round, message.stage, message.sender, message.receiver]
            sent.append({"binding": binding, "nbytes": item.nbytes})
        records = []
        for index, record in enumerate(self.records):
            for part in ("broadcast", "encoded", "total", "released"):
                tensors |= nest(f"record/{index}/{part}", getattr(record, part))
            for number, group in enumerate(record.groups):
                tensors |= nest(f"record/{index}/group.{number}", group.total)
            grouped = [[group.survivors, group.counted] for group in record.groups]
            records.append(
                ({"groups": grouped} if grouped else {})
                | {
                    "round": record.round,
                    "kind": record.kind,
                    "cohort": record.cohort,
                    "survivors": record.survivors,
                    "step": dict(record.step),
                    "distortion": record.distortion.to_json(),
                }
            )
        for (round, client), contribution in self.contributions.items():
            tensors |= nest(f"contribution/{round}/{client}", contribution)
        tensors |= nest("output", self.output)
        keys = sorted(self.contributions)
        meta: dict[str, Any] = {"run": self.run, "meta": self.meta, "missing": self.missing}
        meta |= {"sent": sent, "records": records, "contributions": keys}
        container.save(Path(path), "transcript", json.loads(json.dumps(meta)), tensors)

    def _check_overwrites(self, path: Path) -> None:
        """Refuse to overwrite another run's file: the run that this one resumed may have saved its messages there."""
        if not self.missing or not path.exists():
            return
        try:
            same = Transcript.load(path).run == self.run
        except StorageError:
            same = False
        if not same:
            raise StorageError(
                f"{path} is not overwritten: this run went on from a checkpoint of {self.missing} rounds, whose "
                "messages are not in its transcript and may be in that file; save it under another name, or delete "
                "the file"
            )

    @classmethod
    def load(cls, path: Path | str) -> Transcript:
        """Read a file that `save` wrote.

        Raises:
            StorageError: the file is missing, truncated, altered or no transcript.
        """
        meta, tensors = container.load(Path(path), "transcript")
        groups = _group(tensors)
        try:
            out = cls(run=meta["run"], meta=meta["meta"], output=unnest("output", tensors))
            out.missing = int(meta.get("missing", 0))
            for index, item in enumerate(meta["sent"]):
                run, round_, stage, sender, receiver = item["binding"]
                message = Message(run, round_, stage, sender, receiver, groups.get(("sent", str(index)), {}))
                out.sent.append(SentMessage(message, item["nbytes"]))
            for index, item in enumerate(meta["records"]):
                body = groups.get(("record", str(index)), {})
                parts: dict[str, Any] = {p: unnest(p, body) for p in ("broadcast", "encoded", "total", "released")}
                item |= {"cohort": tuple(item["cohort"]), "survivors": tuple(item["survivors"])}
                grouped = enumerate(item.get("groups", []))
                item["groups"] = tuple(
                    GroupSum(tuple(members), unnest(f"group.{number}", body), bool(counted))
                    for number, (members, counted) in grouped
                )
                if "distortion" in item:  # writers of other frameworks need not know it
                    item["distortion"] = ClippingNoiseRecord.from_json(item["distortion"])
                out.records.append(RoundRecord(**item, **parts))
            for round, client in meta["contributions"]:
                body = groups.get(("contribution", str(round)), {})
                out.contributions[round, client] = unnest(str(client), body)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise StorageError(f"transcript {path} lacks a field or holds one of a wrong type: {error!r}") from error
        return out


def _group(tensors: Tensors) -> dict[tuple[str, str], dict[str, np.ndarray[Any, Any]]]:
    """Group tensors by the first two parts of their names, in one pass."""
    groups: dict[tuple[str, str], dict[str, np.ndarray[Any, Any]]] = {}
    for name, value in tensors.items():
        head, *rest = name.split("/", 2)
        if len(rest) == 2:
            groups.setdefault((head, rest[0]), {})[rest[1]] = value
    return groups
