"""Decide whether a setting may be called held: which views it allows, which were attacked, and what that leaves open.

A setting is a protection with its threshold, its cohort, its declared colluders and its schedule. It allows an attacker
one or several views of the messages. "Held" is said of a setting only if each of these views was attacked and kept the
leak small. Otherwise the word says for what it is true ("as long as the same clients take part") or that it was not
tested. The page, the terminal, `audit.json` and the advice take their words from `judge` alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

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
SAME_CLIENTS: Final = "as long as the same clients take part in every round"


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
    def limits(self) -> tuple[str, ...]:
        """Clauses beside `held` and `fixed` that say when the word is true and what it does not cover."""
        if self.word not in ("held", "fixed"):
            return ()
        clauses = [SAME_CLIENTS] if self.word == "fixed" else []
        clauses += [f"where clients stay away, {_named(self.failed)} leak"] if self.failed else []
        clauses += [f"it is not known what {_named(self.blind)} give away"] if self.blind else []
        clauses += [f"not tested: {_named(self.untested)}"] if self.untested else []
        if self.setting.defense in KEY_HOLDERS:
            clauses.append("as long as the key holder does not help the server")
        return (*clauses, *self.collusion)

    @property
    def collusion(self) -> tuple[str, ...]:
        """A clause on the clients that could open a sum together with the server; none without sums."""
        more = self.setting.colluders + 1
        if not self.setting.summed:
            return ()
        return (f"{more} client{'s' * (more > 1)} or more together with the server may open it",)

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


def limits_of(rulings: Mapping[tuple[str, str], Ruling]) -> str:
    """Say in a sentence what the verdicts on several settings do not cover; empty if they cover everything.

    Args:
        rulings: by (algorithm, protection), both as named in a sentence, the verdict on the setting.
    """
    shared: dict[str, list[tuple[str, str]]] = {}  # by clause, the settings that it is true of
    for key, ruling in rulings.items():
        for clause in ruling.limits:
            shared.setdefault(clause, []).append(key)
    text = "; ".join(f"{clause}{_of_whom(keys, list(rulings))}" for clause, keys in shared.items())
    return f"That is true so far: {text}." if text else ""


def _of_whom(keys: Sequence[tuple[str, str]], among: Sequence[tuple[str, str]]) -> str:
    """Name in brackets the algorithms and protections that a clause is true of; empty where it is true of all."""
    if len(keys) == len(among):
        return ""
    parts = []
    for place in (0, 1):
        names = list(dict.fromkeys(key[place] for key in keys))
        if len(names) < len({key[place] for key in among}):
            parts.append(", ".join(names))
    return f" ({'; '.join(parts)})"


def _named(seen: tuple[str, ...]) -> str:
    return " and ".join(_PARTIES.get(view, view) for view in seen)
