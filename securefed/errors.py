"""The one tree of errors. Every refusal has a name, says what, where, and the remedy.

Catch `SecureFedError` for everything this package raises on purpose. Nothing is clipped, dropped or
weakened silently: what cannot be done exactly as planned ends in one of these.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class SecureFedError(Exception):
    """Base of every named refusal of this package."""


class ConfigError(SecureFedError, ValueError):
    """A parameter lies outside its domain; the message states the domain."""


class DataError(SecureFedError, ValueError):
    """Data that no algorithm can work on: empty, not finite, of the wrong shape or width."""


class UnknownNameError(ConfigError):
    """A name that no registry knows, or the last part of several."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        self.kind, self.name, self.known = kind, name, sorted(known)
        several = [full for full in self.known if full.rsplit("/", 1)[-1] == name]
        if len(several) > 1:
            super().__init__(f"several {kind}s are called {name!r}; say which: {', '.join(several)}")
            return
        by_part: dict[str, list[str]] = {}
        for full in self.known:
            for part in {full, full.rsplit("/", 1)[-1]}:
                by_part.setdefault(part, []).append(full)
        near = by_part.get(next(iter(difflib.get_close_matches(name, by_part, n=1, cutoff=0.4)), ""), [])
        hint = f"; the nearest known one is {near[0]!r}" if near else ""
        if len(near) > 1:
            hint = f"; the nearest known ones are {', '.join(near)}"
        super().__init__(f"unknown {kind} {name!r}{hint}. Known: {', '.join(self.known)}")


class PlanError(ConfigError):
    """A defence cannot keep its promise for this layout and number of clients."""


class DivergenceError(SecureFedError, ArithmeticError):
    """An iterate is not finite any more, or has blown up."""


class StorageError(SecureFedError, OSError):
    """A file of ours that is missing, truncated, corrupt, or of another kind or version."""


class WrongKeyError(StorageError):
    """A sealed file was written under another key."""


class RolledBackError(StorageError):
    """A sealed file is older than the newest that was written."""


class LedgerLost(StorageError):
    """There is no ledger of what a client's data were used for where one is expected."""


class IdentityChangedError(ConfigError):
    """A client presents another identity than the pinned one."""


class TranscriptError(SecureFedError):
    """A transcript that does not hold what a view or an attack needs."""


class ProtocolError(SecureFedError):
    """Base of everything a protocol party may refuse."""


class MessageRefused(ProtocolError):
    """A message that is malformed, forged, replayed, re-ordered or meant for someone else.

    Attributes:
        sender: the party the message came from (or claims to come from).
    """

    def __init__(self, sender: int, reason: str) -> None:
        self.sender, self.reason = sender, reason
        super().__init__(f"message from {sender} refused: {reason}")


class BindingError(MessageRefused):
    """The message names another run, round, stage, sender or receiver than the one it arrived in."""


class MalformedError(MessageRefused):
    """Fields missing, of a wrong type, size or value."""


class AuthenticationError(MessageRefused):
    """A ciphertext or share does not verify under the key of its sender."""


class ContradictionError(MessageRefused):
    """A request that contradicts an earlier one, repeats it, or asks for what must stay apart."""


class SumRefused(MessageRefused):
    """The sum that the server announced is not that of the contributions it counted."""


class RangeRefused(ProtocolError):
    """A client's values lie outside the range the plan declared; nothing of them was sent.

    The federation voids the round before any unmasking and doubles the declared range.
    """


class ClientOut(ProtocolError):
    """A sum that opened to noise: some client sat out. The exchange is void, and repeated with doubled bounds.

    A client sits out where its values are out of range or not finite, or its computation failed. Which client it was,
    and why, only that client's own log says.

    Attributes:
        survivors: the clients in the sum; they are invited again.
    """

    def __init__(self, survivors: tuple[int, ...]) -> None:
        self.survivors = survivors
        super().__init__(
            "some client was out of range, not finite, or failed, and the sum opened to noise (its own log says more)"
        )


class ClientDeclines(ProtocolError):
    """A client takes no further part in a run, because it sat out of too many exchanges."""


class TooFewSurvivors(ProtocolError):
    """Fewer clients are left than the threshold needs; the round is void, no state is lost."""


class SurvivorsTooClose(TooFewSurvivors):
    """Survivors that differ from those of the last sum by fewer clients than the plan allows; the round is void.

    Attributes:
        survivors: the clients that uploaded.
        surplus: how many of them to leave out, so that the rest may be summed.
    """

    def __init__(self, survivors: tuple[int, ...], change: int, least: int) -> None:
        self.survivors, self.surplus = survivors, least - change
        super().__init__(
            f"the survivors differ from those of the last sum by {change} clients; the plan allows 0, or {least} and "
            "more"
        )


class BudgetSpent(ProtocolError):
    """The privacy budget, or a limit of the client's ledger, does not allow another exchange."""


class RoundVoid(ProtocolError):
    """A round that could not be completed after the allowed number of attempts."""
