"""Transport over Flower: messages cross as bytes inside Flower messages, from the ServerApp to SuperNodes.

A ServerApp is the server's program; it reaches each client's SuperNode through a grid, on which it pushes messages and
pulls replies. `serve` gives the transport (`FlowerGrid`) to its round loop.

Needs the extra `flower`. The defence binds, signs and masks the content; Flower's own TLS and node authentication
admit only known nodes (`flower-superlink --ssl-certfile ...`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from typing import Final

from securefed._messages import PartyId
from securefed.errors import ConfigError, MalformedError

try:
    from flwr.app import Array, ArrayRecord, Message, RecordDict
    from flwr.serverapp import Grid
except ImportError as error:
    raise ConfigError("runs on Flower need it; install securefed[flower]") from error

ACTION: Final = "query.securefed"
_RECORD: Final = "securefed"
_FIELD: Final = "message"
_STYPE: Final = "securefed.message"
_LOG = logging.getLogger("securefed.flower")


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

    Args:
        grid: the grid that Flower passes to a ServerApp's `main`.
        nodes: the SuperNode of every party; parties without one count as dropped out.
        poll: seconds between two looks for replies.

    A node that answers with an error, or not within the timeout, counts as dropped out; the reason is logged. Messages
    that were not fetched by then expire, so that no client works for an exchange that is over.
    """

    def __init__(self, grid: Grid, nodes: Mapping[PartyId, int], *, poll: float = 0.2) -> None:
        self.nodes = dict(nodes)
        self._grid, self._poll = grid, poll

    def exchange(self, outgoing: Mapping[PartyId, bytes], timeout: float | None) -> dict[PartyId, bytes]:
        """Return the replies by party; a party without a reply has dropped out."""
        return dict(sorted(self.arrivals(outgoing, timeout)))

    def arrivals(self, outgoing: Mapping[PartyId, bytes], timeout: float | None) -> Iterator[tuple[PartyId, bytes]]:
        """Iterate over the replies as they arrive."""
        sent = {
            party: Message(to_content(body), self.nodes[party], ACTION, ttl=timeout)
            for party, body in outgoing.items()
            if party in self.nodes
        }
        for party, reply in replies(self._grid, sent, timeout, self._poll):
            if reply.has_error():
                _LOG.warning("party %d dropped out: %.300r", party, reply.error.reason)
                continue
            try:
                yield party, from_content(reply.content, party)
            except MalformedError as error:
                _LOG.warning("party %d dropped out: %s", party, error)


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
