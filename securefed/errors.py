"""Errors of this package. Each message states what was wrong, where, and what to do.

Catch `SecureFedError` for all errors that this package raises on purpose. If a run cannot proceed exactly as planned,
it raises one of these errors; it never clips, drops or weakens anything silently.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any, Final

_LONGEST: Final = 2000
"""Letters of the reason for which a message is refused."""


class SecureFedError(Exception):
    """Base class of all errors of this package.

    What to do: read the message: it says what was given, what is allowed and what to write. Each kind below has its
    own advice.

    Attributes:
        result: where a run of several rounds ended early, the `Result` of the rounds before, with the last model and
            why the run stopped; `None` where no round was complete.
    """

    result: Any = None


class ConfigError(SecureFedError, ValueError):
    """A parameter lies outside its domain; the message states the domain.

    What to do: change the parameter that the message names to a value in its domain; nothing was run or used up.
    """


class DataError(SecureFedError, ValueError):
    """Data that no algorithm can work on: empty, not finite, of the wrong shape or width.

    What to do: mend the data that the message names: no empty clients, no NaN, the same columns everywhere. An update
    has the names, shapes and types of the terms; the same request can then be answered again.
    """


class CollinearityError(DataError):
    """Columns of a regression are linearly dependent over all parties, or nearly so; the message names them.

    What to do: leave one of the named columns out, or give a ridge.
    """


class SeparationError(DataError):
    """Columns of a regression tell the outcomes apart entirely, so that the likelihood has no maximum.

    What to do: leave out the columns that the message names, merge rare levels, or give a ridge.
    """


class UnknownNameError(ConfigError):
    """A name that is not registered, or a short name that several registered names end with.

    What to do: take one of the names that the message lists, or the full name `family/name`.
    """

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        self.kind, self.name, self.known = kind, name, sorted(known)
        by_part: dict[str, list[str]] = {}  # full names, by themselves and by their last part
        for full in self.known:
            for part in {full, full.rsplit("/", 1)[-1]}:
                by_part.setdefault(part, []).append(full)
        several = by_part.get(name, [])
        if len(several) > 1:
            super().__init__(f"several {kind}s are called {name!r}; say which: {', '.join(several)}")
            return
        closest = difflib.get_close_matches(name, by_part, n=1, cutoff=0.4)
        near = by_part[closest[0]] if closest else []
        hint = f"; the nearest known one is {near[0]!r}" if near else ""
        if len(near) > 1:
            hint = f"; the nearest known ones are {', '.join(near)}"
        super().__init__(f"unknown {kind} {name!r}{hint}. Known: {', '.join(self.known)}")


class MissingExtraError(ConfigError, ImportError):
    """A package that the core does without is not installed.

    What to do: install the extra that the message names. `python -m securefed doctor` lists all extras.

    Attributes:
        extra: name of the extra.
    """

    def __init__(self, purpose: str, package: str, extra: str) -> None:
        self.extra = extra
        super().__init__(f"{purpose} needs {package}; install securefed[{extra}]")


class PlanError(ConfigError):
    """A defence cannot give its guarantee for this layout and this number of clients.

    What to do: plan more clients, declare a smaller bound, or take a wider ring; `plan` shows which of them binds.
    """


class DivergenceError(SecureFedError, ArithmeticError):
    """An iterate of an algorithm is no longer finite, or has grown beyond its limit.

    What to do: lower the learning rate or the number of local steps, and scale the features.
    """


class ConvergenceError(SecureFedError, ArithmeticError):
    """A model did not converge in the exchanges that it was given.

    What to do: give more iterations, bounds near the largest entries, or a ridge.
    """


class StorageError(SecureFedError, OSError):
    """A file written by this package is missing, truncated, corrupt, or of another kind or version.

    What to do: check the path, or restore the newest copy; never restore an old copy of a client's state.
    """


class WrongKeyError(StorageError):
    """A sealed (encrypted) file was written under another key.

    What to do: give the key that the file was sealed with; without it the file cannot be read.
    """


class RolledBackError(StorageError):
    """A sealed file is older than the newest version that was written, for instance restored from a backup.

    What to do: put the newest file back. If it is lost, start a new run at all parties.
    """


class LedgerLost(StorageError):
    """The ledger that records the uses of a client's data is not where it is expected.

    What to do: restore its newest copy, or let its operator make a new one (`securefed ledger create`) that states at
    least what may have been spent; a new one knows no earlier sum.
    """


class IdentityChangedError(ConfigError):
    """A client presents an identity key other than the pinned one.

    What to do: compare fingerprints with that client by telephone; if it made a new key, `forget` the old one and
    pin the new.
    """


class PrecisionWarning(UserWarning):
    """The stated error of a sum is larger than the sum itself, so that its digits mean nothing; given once a run.

    What to do: declare bounds near the largest entries, and a largest weight near the weights; or take a ring of 64
    bits, or an exact defence.
    """


class LateAnswerWarning(UserWarning):
    """A client took longer for its contribution than the terms' `answer_after`, so that the server may see how long.

    What to do: agree on terms with a longer `answer_after`, above what the slowest client takes.
    """


class TranscriptError(SecureFedError):
    """A transcript does not hold what a view or an attack needs.

    What to do: record the run in the clear, or ask for a view that the transcript allows (sums).
    """


class ProtocolError(SecureFedError):
    """Base class of errors that a party of the protocol raises during a run.

    What to do: see the kind that was raised; the state of every party is whole, and the round can be opened again.
    """


class MessageRefused(ProtocolError):
    """A message is malformed, forged, replayed, re-ordered or meant for another party.

    What to do: look at what `sender` sent. The server counts that client as lost and goes on.

    Attributes:
        sender: the party the message came from (or claims to come from).
    """

    def __init__(self, sender: int, reason: str) -> None:
        # it may name what the message holds, and goes into logs and states: a message is not to fill them
        reason = reason if len(reason) <= _LONGEST else f"{reason[:_LONGEST]}..."
        self.sender, self.reason = sender, reason
        who = {-1: "the server", -2: "the key holder"}.get(sender, sender)  # their numbers, `_messages.PartyId`
        super().__init__(f"message from {who} refused: {reason}")


class BindingError(MessageRefused):
    """The message names a run, round, stage, sender or receiver other than the expected one.

    What to do: deliver each message once, in order, to the party that it names; start a new run if parties are of
    different runs.
    """


class MalformedError(MessageRefused):
    """Fields of the message are missing, or have a wrong type, size or value.

    What to do: pass requests and replies on whole, as bytes, and use the same release everywhere.
    """


class AuthenticationError(MessageRefused):
    """A signature, tag, ciphertext or share does not verify under the key of its sender.

    What to do: check the identities and the connection: an attacker, or a wrong key, stands between the parties.
    """


class ContradictionError(MessageRefused):
    """A request contradicts or repeats an earlier one, or asks for data that must stay apart.

    What to do: do not answer a server that asks twice; it is broken, restored from a backup, or hostile. Where the
    message names the base, give the model as it arrived (training changes a network's own tensors, so clone it), ask
    the same clients as before, or begin from another model.
    """


class VersionRefused(MessageRefused):
    """The message belongs to another version of the protocol.

    What to do: install the same release at all parties.
    """


class TermsDiffer(MessageRefused):
    """The sender agreed to other terms than this party: tensors, bounds, clients, defence or rounds.

    What to do: give all parties the same `SumTerms.to_bytes()`, and compare the fingerprints.
    """


class SumRefused(MessageRefused):
    """The sum that the server announced is not the sum of the contributions that it counted.

    What to do: take no further part: the server announced a wrong sum.
    """


class RangeRefused(ProtocolError):
    """A client's values lie outside the range that the plan declares; the client sent none of them.

    Clients refuse so only where uploads are in the clear; elsewhere they sit out (`ClientOut`), so that the server does
    not learn it, and the round ends with `RoundVoid`. The server repeats the sum with a doubled range, and raises this
    error itself after the last attempt; a simulation (`Federation`) raises it under any defence.

    What to do: declare a larger bound, or look for the client that diverges.
    """


class MaskMismatch(ProtocolError):
    """The masks of the ranks of a masked all-reduce did not cancel: the sum is of no use.

    What to do: start the run again on all ranks, from the same code and the same step.
    """


class ClientOut(ProtocolError):
    """A client sat out, so that the sum is random. The exchange is void and is repeated with doubled bounds.

    A client sits out if its values are out of range or not finite, or if its computation failed; it then uploads random
    numbers. Only that client's own log shows which client it was, and why.

    What to do: nothing, if the repeat succeeds. Otherwise read the clients' own logs, and declare larger bounds.

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
    """A client takes no further part in a run, because it sat out of too many exchanges.

    What to do: read that client's log, mend what made it sit out, and start a new run; `securefed ledger absences`
    raises the limits of all runs.
    """


class TooFewSurvivors(ProtocolError):
    """Fewer clients are left than the threshold requires; the round is void, and no state is lost.

    What to do: open the round again with the clients that are there, or plan a smaller threshold.
    """


class SurvivorsTooClose(TooFewSurvivors):
    """With the sums before, this one would tell too few clients apart; the round is void.

    A survivor is a client whose upload arrived; here they reach the threshold. Sums over sets of survivors are added
    and subtracted; the plan (`survivor_change`) says how many clients' contributions such a combination holds at least.

    What to do: wait for the lost clients, or leave out those that lay in the same sums as they, as the federation does
    by itself.

    Attributes:
        survivors: the clients that uploaded.
    """

    def __init__(self, survivors: tuple[int, ...], apart: int, least: int) -> None:
        self.survivors = survivors
        super().__init__(
            f"with the sums before, a sum over these survivors would tell {apart} clients apart; the terms allow no "
            f"groups of fewer than {least}"
        )


class BudgetSpent(ProtocolError):
    """The privacy budget, or a limit of the client's ledger, does not allow another exchange.

    What to do: stop: the model that you have is the result. More rounds need a larger epsilon or limit, which is a
    new promise.
    """


class RoundVoid(ProtocolError):
    """A round could not be completed in the allowed number of attempts.

    What to do: find out why clients are lost or sit out (`void` and `refusals` say, and a client's own log), wait until
    as many as the threshold are there, then open the round again with them. Where fewer stay for good, make new terms.
    """
