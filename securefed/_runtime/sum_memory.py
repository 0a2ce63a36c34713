"""Remember over which parties a client's contributions were summed, and decide which further sums it lets out.

This is arithmetic without I/O: `Ledger` keeps the memory in its file, for as long as the data live. `SumNode`,
by which every door answers, asks it when it accepts a request for an upload and before it helps to open a sum, and
tells it when it sat out. (Ranks of a masked all-reduce have no server that names survivors: their sum is over all ranks
or ends. Where a committee opens sums, its members keep both rules, for all clients: `committee_memory`.) Two
rules keep sums from being subtracted:

    A, equal sources    sums that are computed from a base (training, evaluation): a contribution to the same base is
                        let out over the same survivors only. (`source`: digest of what it is computed from.)
    B, least block      sums without a base (statistics: the contribution is the same in every sum of the same rows),
                        and training that asks for it (`survivor_change=b`): the blocks of all sets of survivors that
                        this client knows have b parties at least (`defenses._plan.SumsSoFar` has the proof).

A party is known by its public identity key, since a number means another party in other terms. Without identities a
party is known by its number in a run: the memory of rule B then ends with the run, and rule A does not hold. A client
cannot compare sums that it does not know: one that was opened without asking it, and sums that it is not in.

Where sums are made group by group (`defenses._grouped_sums`), both rules hold for the sums of the client's own group.
The group of the first such sum stays its group for these data: in fresh groups it would one day be among colluding
clients only.

The memory is bounded. When it is full it forgets nothing: the client lets no further sum out until its operator
declares new data (`Ledger.change_rows`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Final, Self

import numpy as np

from securefed._hyperparameters import check_integer
from securefed._messages import SERVER
from securefed._persistence.packing import from_bytes
from securefed._runtime.committee_memory import CommitteeMemory
from securefed._tensors import Array, Tensors
from securefed.defenses._aggregation import Release
from securefed.defenses._plan import Blocks, refined, smallest
from securefed.errors import ClientDeclines, ContradictionError, DataError

MOST_OUT: Final = 8
"""Exchanges of one run that a client may sit out, and exchanges from one base over all runs."""
MOST_OUT_IN_ALL: Final = 64
"""Exchanges that a client may sit out for one data set, over all runs and bases."""
MOST_SUMS: Final = 65_536
"""Sources, and parties, that the memory of one data set holds at most (4 MiB)."""
_MOST_RUNS: Final = 16
"""Number of the newest runs without identities whose survivors are remembered; sums of two such runs may subtract."""
_SOURCE_BYTES, _DIGEST_BYTES = 16, 32

REFUSAL: Final = (
    "a contribution to this sum entered a sum over other survivors, and the sums subtract; the server may open it over "
    "the same survivors, begin from another base, or leave out whole groups: the parties that lie in the same sums so "
    "far stay together, or split into groups no smaller than the plan says"
)
"""The text of every refusal: it is the same for every client, rule and cause, so that it tells nothing of them."""
GROUP: Final = (
    "this client's data were summed in another group of clients, and groups stay the same for the same data, as chance "
    "would put it among colluding clients one day; use the identities and the number of groups of the first sum, or "
    "its operator declares new data (securefed ledger changed)"
)
"""The text of a refusal of another group, which follows from public identities."""
FULL: Final = (
    f"this client remembers {MOST_SUMS} sums or parties of its data, the most that it keeps, and lets out no other "
    "until its operator declares new data (securefed ledger changed)"
)
OUT: Final = "this client sat out of too many exchanges and takes no further part; its operator decides on more"


@dataclass(frozen=True)
class SumRule:
    """The rules of the terms for the sums that a client lets out.

    Attributes:
        sources: rule A: contributions are computed from a base, and all sums from one base have the same survivors.
        least_block: rule B: fewest parties in a group that the sums together tell apart; 1 for no such rule.
        least_parties: fewest survivors of a sum.
    """

    sources: bool = True
    least_block: int = 1
    least_parties: int = 1


@dataclass(frozen=True)
class SumMemory:
    """The memory of one data set, immutable: each change returns a new value.

    Attributes:
        data: number of the data set's version; a declared change of rows begins the next one, with an empty memory.
        sums: by source (16 bytes), a digest of the identities that its sum is over.
        blocks: under rule B, the blocks of all sets of public identities.
        runs: under rule B, by run without identities, the blocks of its sets of party numbers.
        out: by source, the exchanges that the client sat out; `b""` for those without a base.
        most_out: exchanges that it may sit out of one base, and in all.
        group: public identities of the clients of its group, where sums were made group by group.
        committee: what this party remembers of other clients' contributions, as a member of a committee.
    """

    data: int = 0
    sums: Mapping[bytes, bytes] = field(default_factory=dict)
    blocks: Blocks = ()
    runs: Mapping[str, Blocks] = field(default_factory=dict)
    out: Mapping[bytes, int] = field(default_factory=dict)
    most_out: tuple[int, int] = (MOST_OUT, MOST_OUT_IN_ALL)
    group: frozenset[bytes] = frozenset()
    committee: CommitteeMemory = CommitteeMemory()

    def admitted(self, run: str, release: Release, rule: SumRule) -> Self:
        """Return the memory with one more sum, or the same object where it holds that sum.

        Args:
            run: identifier of the run.
            release: the sum that the client is asked to help open.
            rule: the rule of the terms.

        Raises:
            ContradictionError: the sum subtracts from others (`REFUSAL`, the same text for all), has too few
                survivors, or is made in another group of clients (`GROUP`).
            ClientDeclines: the memory is full (`FULL`).
        """
        if len(release.survivors) < rule.least_parties:
            raise ContradictionError(
                SERVER, f"the terms release no sum over fewer than {rule.least_parties} parties, and this one has "
                f"{len(release.survivors)}",
            )  # fmt: skip
        if release.sources:  # a member of a committee consents, for all clients in the sum
            return self.with_committee(self.committee.admitted(release, rule.least_block, sources=rule.sources))
        after = self._in_group(frozenset(release.group)) if release.group else self
        if rule.sources and release.members:
            after = after._from_base(release)
        if rule.least_block > 1:
            after = after._apart(run, release, rule.least_block)
        if max(len(after.sums), sum(map(len, after.blocks))) > MOST_SUMS:
            raise ClientDeclines(FULL)
        return after

    def with_committee(self, committee: CommitteeMemory) -> Self:
        """Return the memory with another memory as a member of a committee; itself where that is the same object."""
        return self if committee is self.committee else replace(self, committee=committee)

    def _in_group(self, group: frozenset[bytes]) -> Self:
        """Keep the first group, and refuse others."""
        if self.group and self.group != group:
            raise ContradictionError(SERVER, GROUP)
        return self if self.group else replace(self, group=group)

    def _from_base(self, release: Release) -> Self:
        """Rule A."""
        source, digest = release.source[:_SOURCE_BYTES], _digest(release.members)
        known = self.sums.get(source)
        if known is None:
            return replace(self, sums={**self.sums, source: digest})
        if known != digest:
            raise ContradictionError(SERVER, REFUSAL)
        return self

    def _apart(self, run: str, release: Release, least: int) -> Self:
        """Rule B."""
        known = self.blocks if release.members else self.runs.get(run, ())
        blocks = refined(known, release.members or release.survivors)
        if smallest(blocks) < least:
            raise ContradictionError(SERVER, REFUSAL)
        if len(blocks) == len(known) and sum(map(len, blocks)) == sum(map(len, known)):
            return self
        if release.members:
            return replace(self, blocks=blocks)
        others = {name: kept for name, kept in self.runs.items() if name != run}
        newest = dict(list(others.items())[-(_MOST_RUNS - 1) :])
        return replace(self, runs={**newest, run: blocks})

    def checked_absences(self, source: bytes) -> Self:
        """Return this memory; raise `ClientDeclines` if the client sat out as often as it may, of this base or in all.

        Args:
            source: the source of the contribution that is asked for; `b""` where it has no base.
        """
        of_base, in_all = self.most_out
        here = self.out.get(source[:_SOURCE_BYTES], 0) if source else 0
        if here >= of_base or sum(self.out.values()) >= in_all:
            raise ClientDeclines(OUT)
        return self

    def with_absence(self, source: bytes) -> Self:
        """Return the memory with one more exchange that the client sat out.

        Args:
            source: the source of the contribution; `b""` where it has no base.
        """
        key = source[:_SOURCE_BYTES]
        return replace(self, out={**self.out, key: self.out.get(key, 0) + 1})

    def with_most_out(self, of_base: int, in_all: int) -> Self:
        """Let the client sit out more exchanges, or fewer.

        Raises:
            ConfigError: no whole numbers from 0.
        """
        check_integer("absences of one base", of_base, 0)
        check_integer("absences in all", in_all, 0)
        return replace(self, most_out=(int(of_base), int(in_all)))

    def of_new_data(self) -> Self:
        """Begin the memory of another version of the data; limits on absences and other clients' sums stay."""
        return type(self)(self.data + 1, most_out=self.most_out, committee=self.committee)

    def to_tensors(self) -> dict[str, Array]:
        """Return the memory as arrays, for a file. Inverse: `from_tensors`."""
        sets = {digest: place for place, digest in enumerate(dict.fromkeys(self.sums.values()))}
        facts = {
            "data": self.data,
            "blocks": [sorted(member.hex() for member in block) for block in self.blocks],
            "runs": {run: [sorted(block) for block in blocks] for run, blocks in self.runs.items()},
            "out": {source.hex(): times for source, times in self.out.items()},
            "most_out": self.most_out,
        } | ({"group": sorted(member.hex() for member in self.group)} if self.group else {})
        return {
            "facts": from_bytes(json.dumps(facts).encode()),
            "sources": from_bytes(b"".join(self.sums)),
            "sets": from_bytes(b"".join(sets)),
            "set_of": np.asarray([sets[digest] for digest in self.sums.values()], np.int32),
        } | ({"committee": from_bytes(self.committee.to_bytes())} if self.committee != CommitteeMemory() else {})

    @classmethod
    def from_tensors(cls, tensors: Tensors) -> Self:
        """Read what `to_tensors` wrote; an empty memory from no tensors, as in a ledger of release 0.1.

        Raises:
            DataError: it did not come from `to_tensors`.
        """
        if not tensors:
            return cls()
        try:
            facts: dict[str, Any] = json.loads(tensors["facts"].tobytes())
            sources = _rows(tensors["sources"], _SOURCE_BYTES)
            sets = _rows(tensors["sets"], _DIGEST_BYTES)
            return cls(
                facts["data"],
                {source: sets[place] for source, place in zip(sources, tensors["set_of"].tolist(), strict=True)},
                tuple(frozenset(map(bytes.fromhex, block)) for block in facts["blocks"]),
                {run: tuple(map(frozenset, blocks)) for run, blocks in facts["runs"].items()},
                {bytes.fromhex(source): times for source, times in facts["out"].items()},
                (facts["most_out"][0], facts["most_out"][1]),
                frozenset(map(bytes.fromhex, facts.get("group", []))),
                CommitteeMemory.from_bytes(tensors["committee"].tobytes() if "committee" in tensors else b""),
            )
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise DataError(f"no memory of sums: {error!r}") from error


def what_absences_give(in_all: int) -> str:
    """Say what a server learns by the exchanges that a client may sit out."""
    return (
        f"A server that colludes with all other parties sees when this one sits out: of m exchanges, {in_all} absences "
        f"tell at most {in_all} log2(m) bits of its data."
    )


def _rows(array: Array, width: int) -> list[bytes]:
    data = array.tobytes()
    if len(data) % width:
        raise ValueError(f"{len(data)} bytes are no rows of {width}")
    return [data[start : start + width] for start in range(0, len(data), width)]


@lru_cache(maxsize=64)
def _digest(members: tuple[bytes, ...]) -> bytes:
    """Compute the digest of a set of identities; cached, as clients simulated in one process ask for the same one."""
    return hashlib.sha256(b"".join(sorted(members))).digest()
