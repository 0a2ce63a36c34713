"""Decide whether a setting may be called held: which views it allows, which were attacked, and what that leaves open.

A setting is a protection with its threshold, its cohort, its declared colluders and its schedule. It allows an attacker
one or several views of the messages. "Held" is said of a setting only if each of these views was attacked and kept the
leak small. Otherwise the word says for what it is true ("as long as the same clients take part") or that it was not
tested. The page, the terminal, `audit.json` and the advice take their words from `judge` alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from securefed._auditing.sentences.names import in_sentence
from securefed._auditing.sentences.table import counted, listed, say
from securefed.attacks import views

Word = Literal["held", "fixed", "leaks", "unknown", "not tested"]
"""`held`: every allowed view was attacked, and its leak is small. `fixed`: that is so where the same clients take part
in every round. `leaks`, `unknown`, `not tested`: even there a view leaks, its attacks failed, or none was made."""
KEPT, LEAKS, BLIND = "kept", "leaks", "blind"
"""States of an attacked view: the leak is small, it is not, or the attacks could not tell."""
KEY_HOLDERS: Final = ("paillier", "ckks")
"""Protections under which a key holder could decrypt single messages."""
LATE: Final = "late joiners"
"""A view that no run of the audit shows: the sums of a method whose clients keep a state, where one joins late."""
_PARTIES: Final = {
    views.SERVER_VIEW: "single messages",
    views.SUM_ONLY: "sums over all clients",
    views.SMALLEST_SUM: "sums over as few clients as the threshold allows",
    views.CHANGING_SURVIVORS: "sums over clients that come and go",
    LATE: "sums that a client joins after the first round",
}
"""By view, the messages that its attacker reads, as named in a sentence."""


def default_threshold(clients: int) -> int:
    """Return the fewest clients over which a protection opens a sum by default: more than half, and 3 or more.

    Each of two clients could subtract its own part from their sum. Paillier without a key holder asks for more clients;
    the audit then attacks sums over fewer than it opens.
    """
    return max(clients // 2 + 1, min(3, clients))


@dataclass(frozen=True)
class Allowance:
    """A setting, as far as it decides what an attacker may see.

    Attributes:
        defense: name of the protection.
        clients: number of clients in a round.
        threshold: fewest clients over which a sum opens.
        colluders: declared number of clients that tell the server what they sent.
        rounds: number of rounds; one round has no differences of sums.
        summed: whether the server sees sums only, and no single messages.
        late: whether a client that joins late sends what none sends that was there from the start, unattacked so far.
    """

    defense: str
    clients: int
    threshold: int
    colluders: int = 0
    rounds: int = 2
    summed: bool = True
    late: bool = False

    @property
    def same_clients(self) -> tuple[str, ...]:
        """Views of a server under this setting where every client takes part in every round."""
        if not self.summed:
            return (views.SERVER_VIEW,)
        return (f"collusion({self.colluders})",) if self.colluders else (views.SUM_ONLY,)

    @property
    def absences(self) -> tuple[str, ...]:
        """Views that the setting allows besides, where clients stay away."""
        if not self.summed or self.threshold >= self.clients:
            return ()
        if self.rounds < 2:
            return (views.SMALLEST_SUM,)
        return (views.SMALLEST_SUM, views.CHANGING_SURVIVORS, *((LATE,) * self.late))

    @property
    def allowed(self) -> tuple[str, ...]:
        """Every view that the setting allows its attacker."""
        return self.same_clients + self.absences


@dataclass(frozen=True)
class Ruling:
    """The verdict on one setting.

    Attributes:
        word: the verdict in a word.
        setting: the setting.
        failed: views in which a leak was found.
        blind: views on which attacks failed, or could have missed a leak.
        untested: views that the setting allows and that were not attacked.
    """

    word: Word
    setting: Allowance
    failed: tuple[str, ...] = ()
    blind: tuple[str, ...] = ()
    untested: tuple[str, ...] = ()

    @property
    def reservations(self) -> tuple[tuple[str, dict[str, str]], ...]:
        """Say when `held` and `fixed` are true and what they do not cover, as reasons and places of sentences."""
        if self.word not in ("held", "fixed"):
            return ()
        more = self.setting.colluders + 1
        seen = (("leaks", self.failed), ("not known", self.blind), ("not tested", self.untested))
        return (
            *((("same clients", {}),) if self.word == "fixed" else ()),
            *(
                (reason, {"views": listed(_PARTIES.get(view, view) for view in found)})
                for reason, found in seen
                if found
            ),
            *((("key holder", {}),) if self.setting.defense in KEY_HOLDERS else ()),
            *((("collusion", {"clients": counted(more, "client")}),) if self.setting.summed else ()),
        )

    @property
    def limits(self) -> tuple[str, ...]:
        """Sentences beside `held` and `fixed` that say when the word is true and what it does not cover."""
        name = in_sentence(self.setting.defense)
        return tuple(
            say("limit", "some", "client", reason, protections=name, **places) for reason, places in self.reservations
        )

    def to_json(self) -> dict[str, object]:
        """Convert to JSON values."""
        shared = self.setting
        return {
            "defense": shared.defense,
            "clients": shared.clients,
            "threshold": shared.threshold,
            "colluders": shared.colluders,
            "word": self.word,
            "allowed": list(shared.allowed),
            "leaks": list(self.failed),
            "not known": list(self.blind),
            "not tested": list(self.untested),
            "limits": list(self.limits),
        }


def judge(setting: Allowance, found: Mapping[str, str]) -> Ruling:
    """Judge a setting by the views that it allows.

    Args:
        setting: the setting.
        found: by view that was attacked, its state: `KEPT`, `LEAKS` or `BLIND`.
    """
    failed, blind = (tuple(v for v in setting.allowed if found.get(v) == state) for state in (LEAKS, BLIND))
    untested = tuple(view for view in setting.allowed if view not in found)
    states = {found.get(view) for view in setting.same_clients}
    word: Word = "held" if not failed and not blind and not untested else "fixed"
    if states != {KEPT}:
        word = "leaks" if LEAKS in states else "unknown" if BLIND in states else "not tested"
    return Ruling(word, setting, failed, blind, untested)
