"""Readers of Flower's records that the fuzzers feed: what `secure_mod`, `SecureStrategy` and `client_app` get.

An input is the JSON of a RecordDict, whose names, shapes, types, sizes and values are mutated; what Flower itself does
not carry is left out. `fuzz_targets` has these targets beside those of bytes.
"""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.serverapp.strategy import FedAvg
from flwr.supercore.task_identity import TaskIdentity

from securefed.defenses import secure_aggregation
from securefed.errors import SecureFedError
from securefed.flower import SecureStrategy, SitePolicy, secure_mod
from securefed.flower._enrolment import EnrolmentReply, Invitation
from securefed.flower._grid import from_content, to_content
from securefed.flower._mod import _Turn
from securefed.flower._sum_messages import confirms, party_content, party_named, reply_content, reply_data

CLIENTS, VICTIM = 3, 11
Named = Mapping[str, bytes]
Reader = Callable[[bytes], None]
_MODEL: Final = {"w": np.linspace(-1, 1, 6, dtype=np.float32).reshape(3, 2), "b": np.zeros(2)}


def written(content: RecordDict) -> bytes:
    """Write records as JSON."""
    return json.dumps({name: [type(record).__name__, _entries(record)] for name, record in content.items()}).encode()


def _entries(record: Any) -> dict[str, Any]:
    if isinstance(record, ArrayRecord):
        return {
            name: [array.dtype, list(array.shape), array.stype, base64.b85encode(array.data).decode()]
            for name, array in record.items()
        }
    return {name: {"b85": base64.b85encode(v).decode()} if isinstance(v, bytes) else v for name, v in record.items()}


def read(data: bytes) -> RecordDict | None:
    """Read what `written` wrote, or a mutation of it, as it comes out of Flower's transport; `None` for no records."""
    try:
        given = json.loads(data)
        content = RecordDict({name: _record(*own) for name, own in given.items()})
        return recorddict_from_proto(recorddict_to_proto(content))
    except Exception:  # Flower takes no such records: nothing arrives
        return None


def _record(kind: str, entries: Mapping[str, Any]) -> Any:
    """Make a record of the entries that Flower takes."""
    made = {"ArrayRecord": ArrayRecord, "MetricRecord": MetricRecord, "ConfigRecord": ConfigRecord}[kind]()
    for name, value in entries.items():
        try:
            if kind == "ArrayRecord":
                dtype, shape, stype, text = value
                made[name] = Array(dtype, tuple(shape), stype, base64.b85decode(text))
            else:
                made[name] = base64.b85decode(value["b85"]) if isinstance(value, dict) else value
        except Exception:  # noqa: S112 - Flower takes no such entry
            continue
    return made


@dataclass
class _Node:
    """A SuperNode of the run that inputs are taken from."""

    app: ClientApp
    context: Context


class _Grid:
    """A grid in this process, which notes what arrives at one SuperNode, and the state that it has then."""

    def __init__(self, mod: Any = secure_mod) -> None:
        self.nodes = {10 + i: _Node(_echo(mod), _context(b"{}")) for i in range(CLIENTS)}
        self.inbox: dict[str, Message] = {}
        self.seen: list[tuple[str, bytes, bytes, bytes]] = []  # type, request, state before it, reply
        self.count = 0

    def get_node_ids(self) -> list[int]:
        return sorted(self.nodes)

    def push_messages(self, messages: Any) -> list[str]:
        out = []
        for message in messages:
            self.count += 1
            message.metadata.__dict__["_message_id"] = str(self.count)
            self.inbox[str(self.count)] = message
            out.append(str(self.count))
        return out

    def pull_messages(self, message_ids: Any) -> list[Message]:
        replies = []
        for message in (self.inbox.pop(number) for number in message_ids if number in self.inbox):
            place, kind = message.metadata.dst_node_id, message.metadata.message_type
            node, sent = self.nodes[place], RecordDict(dict(message.content))
            request, state = written(sent), written(node.context.state)
            message.__dict__["_content"] = RecordDict(dict(sent))
            reply = node.app(message, node.context)
            message.__dict__["_content"] = sent
            if place == VICTIM and not reply.has_error():
                self.seen.append((kind, request, state, written(reply.content)))
            replies.append(reply)
        return replies


def _context(state: bytes) -> Context:
    return Context(1, VICTIM, {"partition-id": VICTIM - 10}, read(state) or RecordDict(), {})


def _answer(message: Message, context: Context) -> Message:
    """The app: it sends the model back as it came."""
    metrics = MetricRecord({"num-examples": 3, "loss": 0.5})
    return Message(RecordDict({"metrics": metrics, **message.content.array_records}), reply_to=message)


def _echo(mod: Any) -> ClientApp:
    app = ClientApp(mods=[mod])
    app.train()(_answer)
    app.evaluate()(_answer)
    return app


class _Sends(FedAvg):
    """Sends messages with given content."""

    content: RecordDict | None = None

    def configure_train(self, *args: Any) -> Any:
        sent = list(super().configure_train(*args))
        for message in sent if self.content is not None else ():
            message.__dict__["_content"] = RecordDict(dict(self.content or {}))
        return sent


def _run(content: RecordDict | None = None, rounds: int = 1, fraction: float = 0.0) -> _Grid:
    grid, inner = _Grid(), _Sends(fraction_evaluate=fraction, min_available_nodes=3, min_train_nodes=3)
    inner.content = content
    strategy = SecureStrategy(
        inner, secure_aggregation(), train_metrics=("loss",), evaluate_metrics=("loss",), largest_weight=8.0,
        max_void=1, poll=0.001, patience=0.01,
    )  # fmt: skip
    random.seed(0)
    strategy.start(grid, ArrayRecord({n: Array(v) for n, v in _MODEL.items()}), rounds, 0.01)  # type: ignore[arg-type]
    return grid


def _message(content: RecordDict, kind: str) -> Message:
    message = Message(content, VICTIM, kind)
    message.metadata.__dict__["_message_id"] = "1"
    return message


def read_flower_request(context: Named) -> Reader:
    """`secure_mod` answers a request of the server."""
    kind, own = context["type"].decode(), _context(context["state"])

    def feed(data: bytes) -> None:
        if (content := read(data)) is not None:
            _Turn(SitePolicy(), _message(content, kind), own, _answer).answer()

    return feed


def read_app_reply(context: Named) -> Reader:
    """`secure_mod` sums the reply of the app, or sits out for a reason that has a name."""
    kind, own, request = context["type"].decode(), _context(context["state"]), read(context["request"])

    def feed(data: bytes) -> None:
        content = read(data)
        if content is None or request is None:
            return
        asked = _message(RecordDict(dict(request)), kind)
        turn = _Turn(SitePolicy(), asked, own, lambda message, _: Message(content, reply_to=message))
        turn.answer()
        if turn.failed is not None and not isinstance(turn.failed, SecureFedError):
            raise turn.failed

    return feed


def read_node_reply(context: Named) -> Reader:
    """The server reads what a SuperNode answers: to a stage, to a question, to an invitation."""

    def feed(data: bytes) -> None:
        if (content := read(data)) is None:
            return
        confirms(content)
        invited = lambda own, _: Invitation.read(own)  # noqa: E731
        for reader in (reply_data, party_named, from_content, EnrolmentReply.read, invited):
            try:
                reader(content, VICTIM)
            except SecureFedError:
                continue

    return feed


def read_strategy_message(context: Named) -> Reader:
    """`SecureStrategy` sums the replies to messages that its strategy made."""
    return lambda data: (content := read(data)) is not None and _run(content) and None


FLOWER_READERS: Final[dict[str, Callable[[Named], Reader]]] = {
    "flower request": read_flower_request,
    "flower app reply": read_app_reply,
    "flower node reply": read_node_reply,
    "flower strategy message": read_strategy_message,
}


def flower_inputs() -> Iterator[tuple[str, dict[str, bytes], list[bytes]]]:
    """Play an honest run, and yield the name, the context and the valid inputs of each target."""
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1  # what Flower sets in a ServerApp's process
    grid = _run(rounds=2, fraction=1.0)
    replies = [reply for _, _, _, reply in grid.seen]
    for number, (kind, request, state, _) in enumerate(grid.seen):
        own = {"type": kind.encode(), "state": state}
        yield f"flower request:{kind}, {number}", own, [request]
        if "arrays" in json.loads(request):
            answered = written(_answer(_message(read(request) or RecordDict(), kind), _context(b"{}")).content)
            yield f"flower app reply:{kind}, {number}", {**own, "request": request}, [answered]
            yield "flower strategy message:model", {}, [_own(request)]
    invitation = Invitation("0" * 32, "0" * 64).content()
    others = [invitation, EnrolmentReply(1, "no").content(), party_content(1), to_content(b"1"), reply_content(b"1")]
    yield "flower node reply:all", {}, [*replies, *map(written, others)]


def _own(request: bytes) -> bytes:
    """Return the strategy's own records of a request."""
    return json.dumps({n: own for n, own in json.loads(request).items() if not n.startswith("securefed.")}).encode()
