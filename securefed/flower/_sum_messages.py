"""Read and write the messages between `SecureStrategy` and `secure_mod`.

`SecureStrategy` makes a secure sum with the clients' SuperNodes, over Flower messages of named records. A request holds
the version of the protocol, the terms, the number of the client it is for, the name of the metric that weights updates,
a digest of the run's config, and one message of the sum (bytes). The request for the upload also holds the strategy's
own records, which the app is called with.

Clients that were sent different records must not be summed, since a difference could single one of them out. A secure
sum is bound to a base, the model that updates are computed from: server and clients enter its digest into masks and
signatures. So a digest of all records (`content_digest`) is put into the base as one more tensor (`base_of`). Each
client's update holds that tensor too, as its update must have the tensors of the base. Apps also read the run's config,
which Flower hands over apart from messages (`context.run_config`): its digest is part of the other one.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from flwr.app import Array as FlowerArray
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from securefed._messages import PROTOCOL_VERSION, SERVER, check_version
from securefed._tensors import Array
from securefed.errors import ConfigError, DataError, MalformedError
from securefed.flower._grid import ORDER, from_record, to_record
from securefed.flower._reply_numbers import PREFIX, STRUCTURE, VALUES, unpacked, zeros
from securefed.parties._result import SumResult
from securefed.parties._terms import SumTerms

TRAIN, EVALUATE, QUERY = "train", "evaluate", "query"
"""The phases of a round, and what stands outside rounds."""
ARRAY, METRIC, CONTENT = "arrays/", "metrics/", "content"
"""Names in the terms: the prefix of the model's arrays, that of metrics, and the digest of the request's records."""
CHECKED: Final = b"checked"
"""Answer of a client to a result that it checked, and found to follow from the sum of the contributions."""
DIGEST_ENTRY: Final = 256.0
"""Bound of an entry of the digest, which is a byte."""
_LOG = logging.getLogger("securefed.flower")
_FACTS: Final = "securefed.request"
_TERMS: Final = "securefed.terms"
_DATA: Final = "securefed.message"
_VERSION: Final = "version"
_PARTY: Final = "party"
_WEIGHTED_BY: Final = "weighted-by"
_RUN_CONFIG: Final = "run-config"
_CONTENT_DIGEST: Final = "content"
_RESULT: Final = "result"
_REPLY_DIGEST: Final = "securefed.digest"


@dataclass(frozen=True)
class SumRequest:
    """A request of the server to a SuperNode.

    Attributes:
        party: number of the client that the SuperNode is, as far as the server knows; -1 where it asks for the number.
        weighted_by: name of the metric that weights this client's update.
        run_config: digest of the run's config (`config_digest`), as the ServerApp has it.
        terms: the terms, as `SumTerms.to_bytes` wrote them.
        data: the message of the sum.
        digest: in hexadecimal the `content_digest` of the records that go out with the request for the upload, by which
            `secure_mod` finds that a mod before it changed them; empty in other requests. It finds mistakes, and
            protects nothing: updates are bound to what the SuperNode itself was sent.
        publishes: whether `data` is the result of the newest sum (`SumResult.to_bytes`), for the client to check.
    """

    party: int
    weighted_by: str = ""
    run_config: str = ""
    terms: bytes = b""
    data: bytes = b""
    digest: str = ""
    publishes: bool = False

    @property
    def asks_for_party(self) -> bool:
        """Whether the server asks which client the SuperNode is."""
        return self.party < 0

    def content(self, original: RecordDict | None = None) -> RecordDict:
        """Return the content of a Flower message; `take` reads it.

        Args:
            original: the strategy's own records, where the request is for an upload, or holds a result that is checked
                with the model.
        """
        content = RecordDict({} if original is None else dict(original))
        facts: dict[str, Any] = {_VERSION: PROTOCOL_VERSION, _PARTY: self.party}
        texts = {_WEIGHTED_BY: self.weighted_by, _RUN_CONFIG: self.run_config, _CONTENT_DIGEST: self.digest}
        facts |= {name: text for name, text in texts.items() if text}  # Flower's `message_size_mod` takes no empty text
        facts |= {_RESULT: 1} if self.publishes else {}
        content[_FACTS] = ConfigRecord(facts)
        if not self.asks_for_party:
            content[_TERMS], content[_DATA] = to_record(self.terms), to_record(self.data)
        return content

    @classmethod
    def take(cls, message: Message) -> SumRequest:
        """Read a request and remove its records from the message, so that the strategy's own records are left.

        Raises:
            MalformedError: the message holds no request: its server runs without `SecureStrategy`.
            VersionRefused: the server speaks another version of the protocol.
        """
        content = message.content
        facts = content.config_records.get(_FACTS)
        try:
            if facts is None:
                raise ValueError("no request of a SecureStrategy")
            check_version(facts.get(_VERSION), SERVER)
            party, weighted_by, run_config = facts[_PARTY], facts.get(_WEIGHTED_BY, ""), facts.get(_RUN_CONFIG, "")
            if type(party) is not int or type(weighted_by) is not str or type(run_config) is not str:
                raise ValueError("a request whose fields have other types")
            if party < 0:
                return cls(party)
            terms, data = (from_record(content.array_records.get(name)) for name in (_TERMS, _DATA))
        except (ValueError, KeyError) as error:
            raise MalformedError(
                SERVER,
                f"the message holds {error}, and this SuperNode answers no other: it never uploads in the clear; run "
                "the server's strategy as SecureStrategy(strategy, defense, context.run_config)"
                + (f", and {ORDER}" if facts is not None else ""),
            ) from error
        for name in (_FACTS, _TERMS, _DATA):
            del content[name]
        digest, publishes = str(facts.get(_CONTENT_DIGEST, "")), _RESULT in facts
        return cls(party, weighted_by, run_config, terms, data, digest, publishes)


def reply_content(data: bytes) -> RecordDict:
    """Return the content of the answer to a message of the sum; `reply_data` reads it.

    Its digest is there to find a mod that changes replies by mistake. It protects nothing.
    """
    return RecordDict({_DATA: to_record(data), _REPLY_DIGEST: to_record(hashlib.sha256(data).digest())})


def reply_data(content: RecordDict, party: int) -> bytes:
    """Read what `reply_content` wrote; raise `MalformedError` that names the party for any other content."""
    try:
        data = from_record(content.array_records.get(_DATA))
        digest = content.array_records.get(_REPLY_DIGEST)
        if digest is not None and from_record(digest) != hashlib.sha256(data).digest():
            raise ValueError("another answer than secure_mod gave")
    except ValueError as error:
        raise MalformedError(party, f"its reply holds {error}; {ORDER}") from error
    return data


def confirms(content: RecordDict) -> bool:
    """Tell whether a reply says that the client checked the published result, and found it right."""
    try:
        return reply_data(content, SERVER) == CHECKED
    except MalformedError:
        return False


def party_content(party: int) -> RecordDict:
    """Return the content of the answer to the question which client a SuperNode is; `party_named` reads it."""
    return RecordDict({_FACTS: ConfigRecord({_VERSION: PROTOCOL_VERSION, _PARTY: party})})


def party_named(content: RecordDict, node: int) -> int | None:
    """Read what `party_content` wrote; `None` for any other content.

    Raises:
        VersionRefused: the SuperNode speaks another version of the protocol; the error names `node` as its sender.
    """
    facts = content.config_records.get(_FACTS)
    if facts is None:
        return None
    check_version(facts.get(_VERSION), node, f"SuperNode {node}")
    party = facts.get(_PARTY)
    return party if type(party) is int and party >= 0 else None


def phase_of(message: Message) -> str:
    """Return the phase that a message belongs to: `train`, `evaluate` or `query`.

    Raises:
        ConfigError: another one.
    """
    phase: str = message.metadata.message_type.partition(".")[0]
    if phase not in (TRAIN, EVALUATE, QUERY):
        raise ConfigError(
            f"a message of type {message.metadata.message_type!r}; only train, evaluate and query are summed"
        )
    return phase


def config_digest(config: Mapping[str, str | float]) -> str:
    """Return SHA-256 of a run's config, in hexadecimal digits; the order of its entries does not count."""
    return hashlib.sha256(json.dumps(sorted(config.items())).encode()).hexdigest()


def content_digest(message: Message, weighted_by: str, run_config: str) -> bytes:
    """Compute SHA-256 of what a client's update follows from.

    That is the message's type, group and records, the weight's name, and the digest of the run's config.

    The group is a text of the strategy's choice, such as its round, which the app may read. Records and their entries
    enter in the order in which they were sent, as apps may take the first one, or read a model's arrays by their place.
    """
    digest = hashlib.sha256()

    def add(part: bytes) -> None:
        digest.update(len(part).to_bytes(8, "little") + part)

    sent = message.metadata
    add(json.dumps(["securefed content 2", sent.message_type, sent.group_id, weighted_by, run_config]).encode())
    for name, record in message.content.items():
        add(json.dumps([name, type(record).__name__]).encode())
        if isinstance(record, ArrayRecord):
            for key, array in record.items():
                add(json.dumps([key, array.dtype, list(array.shape), array.stype]).encode())
                add(bytes(array.data))
        else:
            # a value is a number, a text, bytes or a list of them, and never an object
            add(json.dumps(list(record.items()), default=lambda data: {"bytes": data.hex()}).encode())
    return digest.digest()


def common_digest(messages: Sequence[Message], weighted_by: str, run_config: str) -> bytes:
    """Return the `content_digest` that all messages have.

    Raises:
        ConfigError: they differ.
    """
    first = messages[0]
    digest = content_digest(first, weighted_by, run_config)
    for message in messages[1:]:
        if message.content is not first.content and content_digest(message, weighted_by, run_config) != digest:
            raise ConfigError(
                "the strategy sends different messages to different SuperNodes, and a sum is bound to one content; "
                "send all of them the same"
            )
    return digest


def model_of(message: Message, phase: str) -> tuple[str, dict[str, Array]]:
    """Return the name of the record that holds the model, and its arrays; no arrays outside training.

    Raises:
        ConfigError: a training message that does not hold exactly one record of arrays.
        DataError: an array of it cannot be read.
    """
    if phase != TRAIN:
        return "", {}
    records = list(message.content.array_records.items())
    if len(records) != 1:
        raise ConfigError(f"a training message must hold one ArrayRecord, the model; got {len(records)}")
    [(name, record)] = records
    return name, arrays_of(record)


def arrays_of(record: ArrayRecord) -> dict[str, Array]:
    """Return the arrays of a record by name.

    Raises:
        DataError: bytes that are no NumPy array, such as another serialisation, a header without its entries, or an
            archive of several.
    """
    out: dict[str, Array] = {}
    for name, given in record.items():
        try:
            value = given.numpy()
        except Exception as error:  # NumPy raises errors of many types for a header that is no header
            raise DataError(_wrong(name, f"{type(error).__name__}: {error}")) from error
        if not isinstance(value, np.ndarray):
            raise DataError(_wrong(name, f"they are a {type(value).__name__}"))
        out[name] = value
    return out


def _wrong(name: str, why: str) -> str:
    return (
        f"the bytes of the array {name[:100]!r} are no NumPy array ({why[:200]}); make the record from arrays or "
        "tensors, as ArrayRecord(model.state_dict()) does"
    )


def base_of(model: Mapping[str, Array], beside: Mapping[str, tuple[int, ...]], digest: bytes) -> dict[str, Array]:
    """Return the base of a round: the model, zeros for the numbers beside it, and the digest of the request's records.

    Args:
        model: the model's arrays.
        beside: shapes of the other tensors that are summed, by their names in the terms (`shapes_beside`).
        digest: the digest.
    """
    base: dict[str, Array] = {f"{ARRAY}{name}": value for name, value in model.items()}
    base |= {name: zeros(name, shape) for name, shape in beside.items()}
    return base | {CONTENT: digest_array(digest)}


def shapes_beside(terms: SumTerms) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the tensors that terms sum beside the model and the digest, by name."""
    return {name: shape for name, shape in terms.shapes.items() if name.startswith((METRIC, PREFIX))}


def digest_array(digest: bytes) -> Array:
    """Return a digest as the tensor that is bound to the round and equal in all updates."""
    return np.frombuffer(digest, np.uint8).astype(np.float64)


def mean_reply(
    result: SumResult, message: Message, record: str, base: Mapping[str, Array], weighted_by: str
) -> Message:
    """Return the reply of all clients together, as the strategy reads it.

    Args:
        result: the sum.
        message: one of the strategy's messages.
        record: name of the record that holds the model.
        base: what the round was bound to (`base_of`), whose types the mean gets.
        weighted_by: name of the metric that weights updates.
    """
    content = RecordDict()
    if phase_of(message) == TRAIN:
        mean = result.like({name: value for name, value in base.items() if name.startswith(ARRAY)})
        content[record] = ArrayRecord({n.removeprefix(ARRAY): FlowerArray(np.asarray(v)) for n, v in mean.items()})
    metrics = {n.removeprefix(METRIC): v.tolist() for n, v in result.mean.items() if n.startswith(METRIC)}
    if VALUES in result.mean:
        metrics |= _all_metrics(result)
    content["metrics"] = MetricRecord({**metrics, weighted_by: float(result.weight)})
    return Message(content, reply_to=message)


def _all_metrics(result: SumResult) -> dict[str, Any]:
    """Return the means of all metrics that the replies hold; none where these differ from client to client."""
    found = unpacked(result.mean, result.mean[STRUCTURE], exact=lambda _: False)
    if found is None:
        _LOG.warning(
            "the replies of the SuperNodes hold different metrics, or more than are summed, and none of them is "
            "returned; name those that are to be summed: train_metrics=(...), evaluate_metrics=(...) of SecureStrategy"
        )
        return {}
    return {name: value for record in found.values() for name, value in record.items()}
