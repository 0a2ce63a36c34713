"""Remember, as a member of a committee that opens sums, which contributions entered which sums.

Where each client sends one message and a committee opens the sum (`defenses.one_message`), clients are not asked
whether a sum may be opened beside earlier ones. The members decide it for them, by the two rules of `sum_memory`: a
client's contribution to one base, which its signed source names, enters sums over one set of clients only (rule A), and
the sets tell no group of fewer than b clients apart (rule B).

This memory is of other parties' data. So it does not end when the member's own rows change, and a rule-B block stays
although a client's data were replaced: members refuse more than they must, and never less. The next committee takes it
over (`committee_hand_over`). It is bounded: a full one lets out no further sum.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final, Self

from securefed._messages import SERVER
from securefed.defenses._aggregation import Release
from securefed.defenses._plan import Blocks, refined, smallest
from securefed.errors import ClientDeclines, ContradictionError, DataError

MOST_ENTRIES: Final = 2**20
"""Contributions that the memory holds at most: a thousand sums over a thousand clients."""
SOURCE_BYTES: Final = 16

OTHER_SURVIVORS: Final = (
    "a contribution to this sum entered a sum over other survivors, and the sums subtract; the server may open it over "
    "the same survivors, begin from another base, or leave out whole groups"
)
"""The text of every refusal: the same for both rules, so that it tells nothing of single clients."""
FULL: Final = (
    f"this member remembers {MOST_ENTRIES} contributions to sums, the most that it keeps, and signs no other; a new "
    "committee with new clients' identities begins anew"
)

Entries = Mapping[bytes, Mapping[bytes, tuple[int, ...]]]


@dataclass(frozen=True)
class CommitteeMemory:
    """The sums that a member signed, or took over; immutable.

    Attributes:
        parties: public identities, in the order in which they were first seen; their places stand for them.
        entries: by source (16 bytes) and by digest of a set of clients (32 bytes), the places of the clients whose
            contribution from that source entered the sum over that set, ascending.
        blocks: under rule B, the blocks of all sets of public identities.
    """

    parties: tuple[bytes, ...] = ()
    entries: Entries = field(default_factory=dict)
    blocks: Blocks = ()

    @cached_property
    def _places(self) -> dict[bytes, int]:
        return {party: place for place, party in enumerate(self.parties)}

    @property
    def size(self) -> int:
        """Number of contributions that it holds."""
        return sum(len(places) for sets in self.entries.values() for places in sets.values())

    def admitted(self, release: Release, least_block: int, *, sources: bool) -> Self:
        """Return the memory with one more sum, or the same object where it holds that sum.

        Args:
            release: the sum, with the survivors' identities and sources.
            least_block: rule B's b; 1 for no such rule.
            sources: whether rule A holds: contributions are computed from a base.

        Raises:
            ContradictionError: the sum subtracts from others.
            ClientDeclines: the memory is full.
        """
        after = self._with_parties(release.members)
        if sources:
            after = after._from_bases(release)
        if least_block > 1:
            blocks = refined(after.blocks, release.members)
            if smallest(blocks) < least_block:
                raise ContradictionError(SERVER, OTHER_SURVIVORS)
            after = after if blocks == after.blocks else replace(after, blocks=blocks)
        if after.size > MOST_ENTRIES:
            raise ClientDeclines(FULL)
        return after

    def _with_parties(self, members: tuple[bytes, ...]) -> Self:
        new = tuple(member for member in members if member not in self._places)
        return replace(self, parties=self.parties + new) if new else self

    def _from_bases(self, release: Release) -> Self:
        """Rule A, for every contribution in the sum."""
        chosen = hashlib.sha256(b"".join(sorted(release.members))).digest()
        by_source: dict[bytes, list[int]] = {}
        for member, source in zip(release.members, release.sources, strict=True):
            by_source.setdefault(source[:SOURCE_BYTES], []).append(self._places[member])
        entries = dict(self.entries)
        for source, places in by_source.items():
            known = dict(entries.get(source, {}))
            if any(not set(places).isdisjoint(other) for key, other in known.items() if key != chosen):
                raise ContradictionError(SERVER, OTHER_SURVIVORS)
            known[chosen] = tuple(sorted({*known.get(chosen, ()), *places}))
            entries[source] = known
        return self if entries == self.entries else replace(self, entries=entries)

    def merged(self, other: CommitteeMemory) -> Self:
        """Return a memory that knows all sums of both."""
        after = self._with_parties(other.parties)
        entries = {source: dict(sets) for source, sets in after.entries.items()}
        for source, sets in other.entries.items():
            mine = entries.setdefault(source, {})
            for chosen, places in sets.items():
                own = {after._places[other.parties[place]] for place in places}
                mine[chosen] = tuple(sorted(own | set(mine.get(chosen, ()))))
        blocks = after.blocks
        for block in other.blocks:
            blocks = refined(blocks, block)
        return replace(after, entries=entries, blocks=blocks)

    def to_bytes(self) -> bytes:
        """Write the memory as JSON text, which two equal memories write alike. Inverse: `from_bytes`."""
        entries = {
            source.hex(): {chosen.hex(): list(places) for chosen, places in sorted(sets.items())}
            for source, sets in sorted(self.entries.items())
        }
        blocks = sorted(sorted(member.hex() for member in block) for block in self.blocks)
        values = {"parties": [party.hex() for party in self.parties], "entries": entries, "blocks": blocks}
        return json.dumps(values, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read what `to_bytes` wrote; an empty memory from no bytes.

        Raises:
            DataError: it did not come from `to_bytes`.
        """
        if not data:
            return cls()
        try:
            values: dict[str, Any] = json.loads(data)
            parties = tuple(map(bytes.fromhex, values["parties"]))
            entries = {
                bytes.fromhex(source): {
                    bytes.fromhex(chosen): tuple(map(int, places)) for chosen, places in sets.items()
                }
                for source, sets in values["entries"].items()
            }
            blocks = tuple(frozenset(map(bytes.fromhex, block)) for block in values["blocks"])
            known = range(len(parties))
            named = [place for sets in entries.values() for places in sets.values() for place in places]
            if len(set(parties)) != len(parties) or not all(place in known for place in named):
                raise ValueError("its parties are not those of its entries")
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataError(f"no memory of a committee: {error!r}") from error
        return cls(parties, entries, blocks)
