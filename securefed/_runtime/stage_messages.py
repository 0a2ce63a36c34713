"""The messages of one stage of an exchange at the server: requests encoded when they are sent, and the log of a run.

A stage has a request for each party. Not all lie in memory at once (`Requests`); each that is sent or accepted is
counted and, where the run keeps a transcript, recorded (`MessageLog`): the transcript is all that the server sees of a
run, and attacks and audits read it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from securefed._messages import Message, PartyId, SentMessage, Transcript


class Requests(Mapping[PartyId, bytes]):
    """A stage's requests by receiver: `encode(party)` makes one whenever it is looked up, and none is kept."""

    def __init__(self, parties: Mapping[PartyId, Any], encode: Callable[[PartyId], bytes]) -> None:
        self._parties, self._encode = parties, encode

    def __getitem__(self, party: PartyId) -> bytes:
        if party not in self._parties:
            raise KeyError(party)
        return self._encode(party)

    def __iter__(self) -> Iterator[PartyId]:
        return iter(self._parties)

    def __len__(self) -> int:
        return len(self._parties)

    def __contains__(self, party: object) -> bool:
        return party in self._parties


@dataclass
class MessageLog:
    """Records the run's messages in its transcript, and counts their bytes.

    Attributes:
        transcript: the transcript.
        keep: whether it keeps the messages and sums; sizes are counted either way.
        up: bytes received so far, void exchanges included.
        down: bytes sent so far, void exchanges included.
    """

    transcript: Transcript
    keep: bool = True
    up: int = 0
    down: int = 0

    def note(self, message: Message, nbytes: int) -> None:
        """Keep one message that was sent or accepted."""
        if self.keep:
            self.transcript.sent.append(SentMessage(message, nbytes))
