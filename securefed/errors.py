"""Errors of this package. Each message states what was wrong, where, and what to do.

Catch `SecureFedError` for all errors that this package raises on purpose. If a run cannot proceed exactly as planned,
it raises one of these errors; it never clips, drops or weakens anything silently.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class SecureFedError(Exception):
    """Base class of all errors of this package."""


class ConfigError(SecureFedError, ValueError):
    """A parameter lies outside its domain; the message states the domain."""


class DataError(SecureFedError, ValueError):
    """Data that no algorithm can work on: empty, not finite, of the wrong shape or width."""


class UnknownNameError(ConfigError):
    """A name that is not registered, or a short name that several registered names end with."""

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
    """A defence cannot give its guarantee for this layout and this number of clients."""


class DivergenceError(SecureFedError, ArithmeticError):
    """An iterate of an algorithm is no longer finite, or has grown beyond its limit."""


class StorageError(SecureFedError, OSError):
    """A file written by this package is missing, truncated, corrupt, or of another kind or version."""


class WrongKeyError(StorageError):
    """A sealed (encrypted) file was written under another key."""


class RolledBackError(StorageError):
    """A sealed file is older than the newest version that was written, for instance restored from a backup."""


class LedgerLost(StorageError):
    """The ledger that records the uses of a client's data is not where it is expected."""


class IdentityChangedError(ConfigError):
    """A client presents an identity key other than the pinned one."""


class TranscriptError(SecureFedError):
    """A transcript does not hold what a view or an attack needs."""


class ProtocolError(SecureFedError):
    """Base class of errors that a party of the protocol raises during a run."""


class MessageRefused(ProtocolError):
    """A message is malformed, forged, replayed, re-ordered or meant for another party.

    Attributes:
        sender: the party the message came from (or claims to come from).
    """

    def __init__(self, sender: int, reason: str) -> None:
        self.sender, self.reason = sender, reason
        super().__init__(f"message from {sender} refused: {reason}")


class BindingError(MessageRefused):
    """The message names a run, round, stage, sender or receiver other than the expected one."""


class MalformedError(MessageRefused):
    """Fields of the message are missing, or have a wrong type, size or value."""


class AuthenticationError(MessageRefused):
    """A signature, tag, ciphertext or share does not verify under the key of its sender."""


class ContradictionError(MessageRefused):
    """A request contradicts or repeats an earlier one, or asks for data that must stay apart."""


class VersionRefused(MessageRefused):
    """The message belongs to another version of the protocol."""


class TermsDiffer(MessageRefused):
    """The sender agreed to other terms than this party: tensors, bounds, clients, defence or rounds."""


class SumRefused(MessageRefused):
    """The sum that the server announced is not the sum of the contributions that it counted."""


class RangeRefused(ProtocolError):
    """A client's values lie outside the range that the plan declares; the client sent none of them.

    The federation voids the round before any unmasking and doubles the declared range.
    """


class MaskMismatch(ProtocolError):
    """The masks of the ranks of a masked all-reduce did not cancel: the sum is of no use."""


class ClientOut(ProtocolError):
    """A client sat out, so that the sum is random. The exchange is void and is repeated with doubled bounds.

    A client sits out if its values are out of range or not finite, or if its computation failed; it then uploads random
    numbers. Only that client's own log shows which client it was, and why.

    Attributes:
        survivors: the clients in the sum; the server invites them again.
    """

    def __init__(self, survivors: tuple[int, ...]) -> None:
        self.survivors = survivors
        super().__init__(
            "a client sat out, so that the sum is random: its values were out of range or not finite, or its "
            "computation failed (its own log gives the reason)"
        )


class ClientDeclines(ProtocolError):
    """A client takes no further part in a run, because it sat out of too many exchanges."""


class TooFewSurvivors(ProtocolError):
    """Fewer clients are left than the threshold requires; the round is void, and no state is lost."""


class SurvivorsTooClose(TooFewSurvivors):
    """The survivors differ from those of the last sum by fewer clients than the plan allows; the round is void.

    The difference of two such sums would show the contributions of few clients.

    Attributes:
        survivors: the clients that uploaded.
        surplus: number of survivors to leave out, so that the others may be summed.
    """

    def __init__(self, survivors: tuple[int, ...], change: int, least: int) -> None:
        self.survivors, self.surplus = survivors, least - change
        super().__init__(
            f"the survivors differ from those of the last sum by {change} clients; the plan allows 0, or at least "
            f"{least}"
        )


class BudgetSpent(ProtocolError):
    """The privacy budget, or a limit of the client's ledger, does not allow another exchange."""


class RoundVoid(ProtocolError):
    """A round could not be completed in the allowed number of attempts."""
