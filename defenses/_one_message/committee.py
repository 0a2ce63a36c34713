"""The committee that opens sums: how many members it has, how many may be corrupt or lost, and what follows from that.

With m members of whom c are corrupt (tell the server all they know, and lie as it says) and l are lost in an exchange:

    degree      c: any c members' shares of a client's key are uniform, c + 1 determine it
    opening     3 c + 1 members must reveal: the polynomial of degree c is then found although c of the shares are wrong
    quorum      floor((m + c) / 2) + 1 members must sign the set of uploads: two such groups have more than c members in
                common, one of them honest, and an honest member signs one set in an exchange. So one set is opened.

All of them must be reached without the lost ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from securefed._hyperparameters import check_integer
from securefed._messages import ClientId
from securefed.defenses._one_message.sharing import MOST_MEMBERS
from securefed.errors import ConfigError

SMALLEST: int = 4
"""Members of the smallest committee, of which one may be corrupt and none lost."""


@dataclass(frozen=True)
class Committee:
    """A committee, and the numbers that it stands.

    Attributes:
        members: ids of the clients that are its members, ascending.
        corrupt: c.
        lost: l.

    Raises:
        ConfigError: too few members for these numbers, too many, or ids that are not ascending.
    """

    members: tuple[ClientId, ...]
    corrupt: int
    lost: int

    def __post_init__(self) -> None:
        if list(self.members) != sorted(set(self.members)) or any(type(member) is not int for member in self.members):
            raise ConfigError(f"committee= lists its members' ids, ascending and each once; got {self.members}")
        if self.members and self.members[0] < 0:
            raise ConfigError(f"a member of the committee is a client, whose id is from 0; got {self.members[0]}")
        if not SMALLEST <= len(self.members) <= MOST_MEMBERS:
            raise ConfigError(
                f"a committee has {SMALLEST} to {MOST_MEMBERS} members; got {len(self.members)} in committee="
            )
        check_integer("corrupt (members of the committee)", self.corrupt, 1)
        check_integer("lost (members of the committee)", self.lost, 0)
        if len(self.members) - self.lost < self.needed:
            raise ConfigError(
                f"of {len(self.members)} members of the committee {self.lost} may be lost and {self.corrupt} corrupt, "
                f"and {self.needed} must answer: {self.opening} to open a sum in spite of wrong shares, {self.quorum} "
                "to sign it; add members, or lower corrupt= or lost="
            )

    @classmethod
    def of(cls, members: Sequence[ClientId], corrupt: int | None, lost: int) -> Committee:
        """Make a committee; without `corrupt` as many corrupt members as the others allow, one at least."""
        found = tuple(members)
        check_integer("lost", lost, 0)
        if corrupt is None:
            size = len(found)
            # 3 c + 1 <= m - l, and floor((m + c) / 2) + 1 <= m - l
            corrupt = max(1, min((size - lost - 1) // 3, size - 2 * lost - 1))
        return cls(found, corrupt, lost)

    @property
    def degree(self) -> int:
        """Degree of the polynomials that share a client's key."""
        return self.corrupt

    @property
    def opening(self) -> int:
        """Fewest members that reveal shares."""
        return 3 * self.corrupt + 1

    @property
    def quorum(self) -> int:
        """Fewest members that sign a set."""
        return (len(self.members) + self.corrupt) // 2 + 1

    @property
    def needed(self) -> int:
        """Fewest members that must answer at every stage."""
        return max(self.opening, self.quorum)

    @property
    def handing_over(self) -> int:
        """Fewest members whose memories, together, hold every sum that was opened: see `CommitteeMemory`.

        An opened sum was signed by `quorum` members, of whom quorum - c are honest and remember it. Of any
        m - (quorum - c) + 1 members one of these is left.
        """
        return len(self.members) - (self.quorum - self.corrupt) + 1

    def point(self, member: ClientId) -> int:
        """Return the point at which a member's shares are the polynomials' values."""
        return self.members.index(member) + 1

    def points(self, members: Sequence[ClientId]) -> list[int]:
        """Return the points of several members."""
        return [self.point(member) for member in members]
