"""Hold the requests of a stage, each encoded when a transport looks it up, so that not all lie in memory at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from securefed._messages import PartyId


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
