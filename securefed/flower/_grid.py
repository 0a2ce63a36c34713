"""Carry messages between a ServerApp and SuperNodes: bytes inside Flower messages, and the reasons of error replies.

A ServerApp is the server's program; it reaches each client's SuperNode through a grid, on which it pushes messages and
pulls replies. `FlowerGrid` is the transport of both doors: `serve` gives it to its round loop, and the grid behind
`SecureStrategy` (`_sum_grid`) carries its sums by it.

A mod that stands before `secure_mod` in `mods=[...]` sees the stages of the sum in place of the app's messages. It may
refuse a stage, raise, or change what passes; each of these makes rounds void. So `secure_mod` marks the errors that it
writes itself, and messages carry digests of what was sent. All this only finds mistakes: it protects nothing.

Needs the extra `flower`. The defence binds, signs and masks the content; Flower's own TLS and node authentication
admit only known nodes (`flower-superlink --ssl-certfile ...`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

from securefed._messages import PartyId
from securefed.errors import ConfigError, MalformedError

try:
    from flwr.app import Array, ArrayRecord, Message, Metadata, RecordDict
    from flwr.common.constant import ErrorCode
    from flwr.serverapp import Grid
except ImportError as error:
    raise ConfigError("runs on Flower need it; install securefed[flower]") from error

ACTION: Final = "query.securefed"
_RECORD: Final = "securefed"
_FIELD: Final = "message"
_STYPE: Final = "securefed.message"
_LOG = logging.getLogger("securefed.flower")
MARK: Final = "secure_mod: "
"""Start of the text of every error that `secure_mod` itself replies with."""
ORDER: Final = (
    "let secure_mod stand first, in ClientApp(mods=[secure_mod, ...]): a mod before it sees the stages of the sum in "
    "place of the app's messages"
)
"""The remedy where something else than `secure_mod` answered, or changed a message."""
ALLOW: Final = "; let the site's file (SitePolicy) allow these terms, or propose others"
"""The remedy where `secure_mod` refused."""
_FROM_THE_APP: Final = (ErrorCode.CLIENT_APP_RAISED_EXCEPTION, ErrorCode.MOD_FAILED_PRECONDITION)
_LONGEST: Final = 300
"""Characters of a foreign error's text that are passed on."""


def to_record(data: bytes) -> ArrayRecord:
    """Return bytes as a record, which Flower splits into pieces if it is long."""
    return ArrayRecord({_FIELD: Array(dtype="uint8", shape=(len(data),), stype=_STYPE, data=data)})


def from_record(record: ArrayRecord | None) -> bytes:
    """Return the bytes that `to_record` stored; raise `ValueError` for another record."""
    if record is None or set(record) != {_FIELD} or record[_FIELD].stype != _STYPE:
        raise ValueError("no record of securefed")
    return bytes(record[_FIELD].data)


def to_content(data: bytes) -> RecordDict:
    """Return the content of a Flower message that carries `data`."""
    return RecordDict({_RECORD: to_record(data)})


def from_content(content: RecordDict, sender: PartyId) -> bytes:
    """Return the data of a Flower message; raise `MalformedError` that names `sender` if it carries none."""
    try:
        return from_record(content.array_records.get(_RECORD))
    except ValueError as error:
        raise MalformedError(sender, f"its Flower message holds {error}") from error


class FlowerGrid:
    """Transport that reaches parties through a ServerApp's grid.

    A node that answers with an error, or not within the timeout, counts as dropped out; the reason is logged. Messages
    that were not fetched by then expire, so that no client works for an exchange that is over.

    Args:
        grid: the grid that Flower passes to a ServerApp's `main`.
        nodes: the SuperNode of every party, which the caller may change; parties without one count as dropped out.
        poll: seconds between two looks for replies.

    Attributes:
        nodes: as given.
        exchanges: how often messages were sent, and replies waited for.
        longest: seconds to wait for the first reply of all, where SuperNodes may only be starting; `None` for no longer
            than for others.
        refused: by SuperNode, why it refused its newest request.
        foreign: by SuperNode, why it could not answer its newest request at all.
    """

    def __init__(self, grid: Grid, nodes: Mapping[PartyId, int], *, poll: float = 0.2) -> None:
        self.nodes, self.exchanges = nodes, 0
        self.longest: float | None = None
        self.refused: dict[int, str] = {}
        self.foreign: dict[int, str] = {}
        self._grid, self._poll = grid, poll

    def exchange(self, outgoing: Mapping[PartyId, bytes], timeout: float | None) -> dict[PartyId, bytes]:
        """Return the replies by party; a party without a reply has dropped out."""
        return dict(sorted(self.arrivals(outgoing, timeout)))

    def arrivals(self, outgoing: Mapping[PartyId, bytes], timeout: float | None) -> Iterator[tuple[PartyId, bytes]]:
        """Iterate over the replies as they arrive."""
        parties = {self.nodes[party]: party for party in outgoing if party in self.nodes}
        contents = {node: to_content(outgoing[party]) for node, party in parties.items()}
        for node, content in self.carry(contents, timeout):
            try:
                yield parties[node], from_content(content, parties[node])
            except MalformedError as error:
                self.refuse(node, error)

    def carry(
        self, contents: Mapping[int, RecordDict], timeout: float | None, like: Metadata | None = None
    ) -> Iterator[tuple[int, RecordDict]]:
        """Send contents to SuperNodes, and yield the contents of their replies as they arrive.

        Args:
            contents: by SuperNode.
            timeout: seconds to wait for the replies; `None` for no limit.
            like: of a strategy's message, whose type and group the messages get.
        """
        kind, group = (ACTION, None) if like is None else (like.message_type, like.group_id)
        self.exchanges += 1
        first = None if timeout is None or self.exchanges > 1 else self.longest
        ttl = timeout if first is None else max(timeout or 0.0, first)
        sent = {node: Message(own, node, kind, ttl=ttl, group_id=group) for node, own in contents.items()}
        for node, reply in replies(self._grid, sent, timeout, self._poll, first=first):
            self.refused.pop(node, None)
            self.foreign.pop(node, None)
            if not reply.has_error():
                yield node, reply.content
                continue
            _LOG.warning("SuperNode %d dropped out: %.300s", node, reply.error.reason)
            if (refusal := refusal_of(reply.error)) is not None:
                self.refused[node] = refusal
            elif (other := foreign(reply.error)) is not None:
                self.foreign[node] = other

    def refuse(self, node: int, error: Exception) -> None:
        """Note that a SuperNode's reply cannot be used, and log it."""
        self.refused[node] = str(error)
        _LOG.warning("SuperNode %d dropped out: %s", node, error)

    def forget(self) -> None:
        """Forget why SuperNodes did not answer: a new phase begins."""
        self.refused.clear()
        self.foreign.clear()


def replies(
    grid: Grid, messages: Mapping[int, Message], timeout: float | None, poll: float, *, first: float | None = None
) -> Iterator[tuple[int, Message]]:
    """Send messages, and yield (receiver, reply) as replies arrive, until all are there or the timeout has passed.

    Args:
        grid: carries the messages.
        messages: by receiver, in the caller's numbers: parties or SuperNodes.
        timeout: seconds to wait; `None` for no limit.
        poll: seconds between two looks for replies.
        first: seconds to wait for the first reply, where SuperNodes may only be starting; from then on it is `timeout`.
    """
    waiting: dict[str, int] = {}
    for receiver, message in messages.items():  # one by one: what Flower cannot take is then one client's loss alone
        if number := next(iter(grid.push_messages([message])), None):
            waiting[number] = receiver
        else:  # Flower has logged why
            _LOG.warning("%d dropped out: its message could not be sent", receiver)
    limit = timeout if timeout is None or first is None else max(first, timeout)
    end = None if limit is None else time.monotonic() + limit
    while waiting:
        for reply in grid.pull_messages(list(waiting)):
            if limit != timeout and timeout is not None:
                limit, end = timeout, time.monotonic() + timeout
            if (party := waiting.pop(reply.metadata.reply_to_message_id or "", None)) is not None:
                yield party, reply
        if not waiting or (end is not None and time.monotonic() >= end):
            break
        time.sleep(poll)
    if waiting:
        _LOG.warning("no reply from %s within %s s", sorted(waiting.values()), limit)


def refusal_of(error: Any) -> str | None:
    """Return the text of an error reply with which `secure_mod` refuses the server's request; `None` for others."""
    reason = str(error.reason)
    if error.code != ErrorCode.MOD_FAILED_PRECONDITION or not reason.startswith(MARK):
        return None
    return reason.removeprefix(MARK)


def foreign(error: Any) -> str | None:
    """Return what an error reply says that is no refusal of `secure_mod`'s and came from the SuperNode, and what to do.

    Flower's own errors, as of a SuperNode that is not connected, give `None`.
    """
    reason = str(error.reason)
    if error.code == ErrorCode.LOAD_CLIENT_APP_EXCEPTION:
        return f"its app cannot be loaded: {reason:.{_LONGEST}}"
    if error.code not in _FROM_THE_APP:
        return None
    if reason.startswith(MARK):
        return reason.removeprefix(MARK)
    return f"not secure_mod answered, but an error of its app or of another mod: {reason:.{_LONGEST}}; {ORDER}"
