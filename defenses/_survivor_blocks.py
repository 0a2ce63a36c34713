"""Keep track of the sets of parties that sums were made over, and of the smallest group that the sums tell apart.

A server that opens sums of equal contributions over several sets of parties may add and subtract them. Let the sets be
S_1, ..., S_k, party j's contribution x_j in all of them, and the sums T_i = sum_{j in S_i} x_j. A block is a largest
group of parties that lie in the same sets; the blocks are the common refinement of the sets, and each party of
S_1 u ... u S_k is in one of them.

Claim: if every block has b parties or more, each linear combination of the T_i that depends on some contribution
depends on those of b parties at least.
Proof: sum_i a_i T_i = sum_j c_j x_j with c_j = sum of a_i over the sets S_i that hold j. Parties of one block lie in
the same sets, so c_j is one number for all parties of a block. A combination that depends on a contribution has
c_j != 0 for some j, hence for the whole block of j, which has b parties or more, each with the same weight. QED.

The rule may refuse more than it must: of {1, 2} and {2, 3} no combination shows one party, and all blocks are single
parties. It never allows too much.
Parties that tell the server their own contributions are subtracted by it: against c of them b stands for b - c.

Sets that each differ from the one before by b parties may still rotate, and together tell single parties apart; the
refinement shows that, differences of pairs do not.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

P = TypeVar("P", bound=Hashable)
Blocks = tuple[frozenset[Any], ...]
"""Disjoint groups of parties: their union holds each party of a sum, and parties of one block lie in the same sums."""


def refined(blocks: Blocks, parties: Collection[P]) -> Blocks:
    """Return the blocks of all sets so far and of one more set."""
    whole = frozenset(parties)
    out: list[frozenset[Any]] = []
    for block in blocks:
        inside = block & whole
        out += [block] if not inside or len(inside) == len(block) else [inside, block - inside]
    new = whole.difference(*blocks)
    return (*out, new) if new else tuple(out)


def smallest(blocks: Blocks) -> int:
    """Return the number of parties of the smallest block; 0 without any."""
    return min(map(len, blocks), default=0)


@dataclass(frozen=True)
class SumsSoFar:
    """The sums of a run as its server knows them, so that it asks for none that its clients would refuse.

    Attributes:
        blocks: of all sums so far.
        least: fewest parties of a block; 1 where any sum may follow.
    """

    blocks: Blocks = ()
    least: int = 1

    def with_sum(self, parties: Collection[Any]) -> SumsSoFar:
        """Return this with one more sum; itself where nothing has to be remembered."""
        return self if self.least <= 1 or not parties else replace(self, blocks=refined(self.blocks, parties))

    def smallest_with(self, parties: Collection[Any]) -> int:
        """Return the number of parties of the smallest block once there is a sum over these."""
        return smallest(refined(self.blocks, parties))

    def allowed_within(
        self, alive: Collection[int], choose: Callable[[list[int], int], Collection[int]]
    ) -> tuple[int, ...]:
        """Return parties among those alive that a sum may be over, ascending.

        Of a block that lost a few parties, more are left out: so many that `least` are, and all of it where fewer than
        `least` would stay.

        Args:
            alive: the parties that are there.
            choose: picks so many of the listed parties, which are left out.
        """
        whole = frozenset(alive)
        kept: set[int] = set()
        for block in (*self.blocks, whole.difference(*self.blocks)):
            inside = sorted(block & whole)
            lost = len(block) - len(inside)
            surplus = max(self.least - lost, 0) if lost else 0
            if len(inside) - surplus >= self.least:
                kept |= set(inside) - set(choose(inside, surplus))
        return tuple(sorted(kept))
