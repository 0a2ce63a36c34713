"""Flower without its network: real messages and ClientApps, a grid in this process."""

from __future__ import annotations

import copy
import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"

import pytest
from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore.task_identity import TaskIdentity

from securefed import _messages
from securefed.flower import _enrolment, _sum_messages
from securefed.parties import _envelope

TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1  # what Flower sets in a ServerApp's process


@dataclass
class Node:
    """A SuperNode: its app, and a context that outlives messages."""

    app: ClientApp
    config: dict[str, Any]
    context: Context = field(init=False)

    def __post_init__(self) -> None:
        self.begin({})

    def begin(self, config: dict[str, Any]) -> None:
        """A new Flower run: nothing is left of the one before."""
        self.context = Context(1, 0, self.config, RecordDict(), config)


@dataclass
class LocalGrid:
    """What `serve` uses of a grid.

    Hands messages to the nodes when replies are pulled; those that `lose` picks never arrive, and of those that
    `lose_reply` picks the answer does not.
    As in the deployment engine, an app that raises answers with an error and the exception's text.
    """

    nodes: dict[int, Node]
    lose: Callable[[Message], bool] = lambda _: False
    lose_reply: Callable[[Message], bool] = lambda _: False
    inbox: dict[str, Message] = field(default_factory=dict)
    numbers: Any = field(default_factory=lambda: itertools.count(1))
    errors: list[str] = field(default_factory=list)

    def get_node_ids(self) -> Iterable[int]:
        return sorted(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        out = []
        for message in messages:
            number = str(next(self.numbers))
            message.metadata.__dict__["_message_id"] = number
            self.inbox[number] = message
            out.append(number)
        return out

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        replies = []
        for number in message_ids:
            message = self.inbox.pop(number, None)
            if message is None or self.lose(message):
                continue
            node = self.nodes[message.metadata.dst_node_id]
            try:
                reply = node.app(arrived(message), node.context)
            except Exception as error:
                self.errors.append(repr(error))
                reply = Message(Error(code=2, reason=f"{type(error)}:<'{error}'>"), reply_to=message)
            if not self.lose_reply(message):
                replies.append(reply)
        return replies

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """What a strategy without `SecureStrategy` calls."""
        return self.pull_messages(self.push_messages(messages))


def arrived(message: Message) -> Message:
    """The message as a node gets it: what the node takes out of its content stays in the sender's."""
    twin = copy.copy(message)
    twin.__dict__["_content"] = RecordDict(dict(message.content))
    return twin


@contextmanager
def of_version(version: int) -> Iterator[None]:
    """Let the messages that are made and read in the block be those of a release that speaks this version."""
    modules = (_messages, _envelope, _enrolment, _sum_messages)
    with pytest.MonkeyPatch.context() as patch:
        for module in modules:
            patch.setattr(module, "PROTOCOL_VERSION", version)
        yield


def released(app: Any, version: int) -> Any:
    """The app as a release has it that speaks this version."""

    def answer(message: Message, context: Context) -> Message:
        with of_version(version):
            return app(message, context)

    return answer


FAILURES = ["lost", "answer lost", "error", "not sent", "unreadable"]
"""Ways in which a message to a SuperNode fails."""


def failing(grid: LocalGrid, kind: str, fails: Callable[[Message], bool]) -> None:
    """Make the messages of a grid fail that a function picks."""
    push = grid.push_messages
    if kind == "lost":
        grid.lose = fails
    elif kind == "answer lost":
        grid.lose_reply = fails
    elif kind == "not sent":
        grid.push_messages = lambda sent: [  # type: ignore[method-assign, assignment]
            None if fails(message) else next(iter(push([message]))) for message in sent
        ]
    for node in grid.nodes.values() if kind in ("error", "unreadable") else ():

        def answer(message: Any, context: Any, whole: Any = node.app) -> Any:
            if not fails(message):
                return whole(message, context)
            if kind == "error":
                raise RuntimeError("a disk was busy")
            return Message(RecordDict(), reply_to=message)

        node.app = answer  # type: ignore[assignment]
