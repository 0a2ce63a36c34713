"""Enrol SuperNodes in a run of `serve`: each reports which party it is, and agrees to the terms or refuses.

A SuperNode is Flower's process at a party's site. Before the first round the server app (`Enrolment`) sends an
`Invitation` to every SuperNode, and the client app (`flower/_client`) answers with an `EnrolmentReply`. The terms are
what all parties agree on before a run (algorithm, defence, public facts, seed). Each party makes them by itself, and
compares their fingerprint with the server's. Both messages name the version of the protocol, which is compared before
anything else is read.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from securefed._messages import PROTOCOL_VERSION, SERVER, PartyId, check_version
from securefed._runtime.terms import Terms
from securefed.defenses._homomorphic import ThresholdPaillier
from securefed.errors import ConfigError, DataError, TooFewSurvivors, VersionRefused

ACTION: Final = "query.securefed_enrol"
_RECORD: Final = "securefed.enrol"
_VERSION: Final = "version"
_LOG = logging.getLogger("securefed.flower")


@dataclass(frozen=True)
class Invitation:
    """The server's invitation to a SuperNode.

    Attributes:
        run: the run's identifier.
        terms: fingerprint of the server's terms.
        resumes: identifier of the run that it continues; empty for a new run.
    """

    run: str
    terms: str
    resumes: str = ""

    def content(self) -> RecordDict:
        """Return the content of the Flower message, which `read` reads."""
        return _content({"run": self.run, "terms": self.terms, "resumes": self.resumes})

    @classmethod
    def read(cls, content: RecordDict) -> Invitation:
        """Read the content of a Flower message.

        Raises:
            DataError: it is of another kind.
            VersionRefused: the server speaks another version of the protocol.
        """
        fields = _fields(content, ("run", "terms", "resumes"), SERVER)
        found = cls(*(str(fields[name]) for name in ("run", "terms", "resumes")))
        for run in (found.run, found.resumes or found.run):
            if re.fullmatch("[0-9a-f]{32}", run) is None:
                raise DataError(f"{run[:40]!r} is no run's identifier; it must be 32 hexadecimal digits")
        return found


@dataclass(frozen=True)
class EnrolmentReply:
    """A SuperNode's answer to an invitation.

    Attributes:
        party: number of the client, or of a party that is no client (negative).
        refusal: reason why it does not take part; empty if it does.
    """

    party: PartyId
    refusal: str = ""

    def content(self) -> RecordDict:
        """Return the content of the Flower message, which `read` reads."""
        return _content({"party": self.party, "refusal": self.refusal})

    @classmethod
    def read(cls, content: RecordDict, node: int) -> EnrolmentReply:
        """Read the content of a Flower message from a SuperNode.

        Raises:
            DataError: it is of another kind.
            VersionRefused: the SuperNode speaks another version of the protocol; the error names `node` as its sender.
        """
        fields = _fields(content, ("party", "refusal"), node, f"SuperNode {node}")
        if type(fields["party"]) is not int:
            raise DataError(f"party must be a whole number; got {fields['party']!r}")
        return cls(fields["party"], str(fields["refusal"]))


class Enrolment:
    """Which party each SuperNode is, as far as they have answered the invitation.

    A SuperNode whose invitation failed (an error, no answer, an answer that cannot be read) is invited again. An app
    answers the same invitation alike however often it arrives.

    Args:
        grid: the ServerApp's grid.
        terms: what all parties agreed on.
        invitation: sent to every SuperNode that connects, while a party is missing.
        pause: seconds after which a SuperNode that has not enrolled is invited again.
        nodes: where the SuperNode of every party that agrees to the terms is entered.
    """

    def __init__(
        self, grid: Grid, terms: Terms, invitation: Invitation, pause: float, nodes: dict[PartyId, int]
    ) -> None:
        self.nodes = nodes
        self._grid, self._terms, self._invitation, self._pause = grid, terms, invitation, pause
        self._wanted = {*range(terms.public.clients), *terms.defense.aggregation.beside}
        self._invited: dict[int, float] = {}  # by SuperNode, when it was invited last
        self._refused: set[int] = set()  # SuperNodes that do not take part, and are not invited again
        self._waiting: dict[str, int] = {}  # by number of the message, the SuperNode that was invited

    @property
    def missing(self) -> list[PartyId]:
        """The parties that have not enrolled."""
        return sorted(self._wanted - set(self.nodes))

    def wait(self, seconds: float, least: int | None, poll: float) -> None:
        """Invite SuperNodes until all parties have enrolled or the time is over.

        Args:
            seconds: how long to wait for all parties.
            least: number of clients that must have enrolled by then; all by default. Key holders are needed in any
                case.
            poll: seconds between two queries for replies and for new SuperNodes.

        Raises:
            ConfigError: a party refuses, or two SuperNodes report the same party.
            VersionRefused: a SuperNode speaks another version of the protocol.
            TooFewSurvivors: too few SuperNodes enrolled in time.
        """
        end = time.monotonic() + seconds
        while True:  # the loop body runs at least once, even if the process was paused for all of the time
            for node, answer in self._look():
                self._enter(node, answer)
            if not self.missing or time.monotonic() >= end:
                break
            time.sleep(poll)
        clients, planned = sum(party >= 0 for party in self.nodes), self._terms.public.clients  # < 0: no client
        beside = self._terms.defense.aggregation.beside
        if clients < (planned if least is None else least) or not set(beside) <= set(self.nodes):
            raise TooFewSurvivors(
                f"{clients} of {planned} clients enrolled within {seconds:g} s, parties {self.missing} did not; start "
                "their SuperNodes, wait for longer, or lower `least`"
            )

    def go_on(self) -> None:
        """Between two rounds, invite SuperNodes for the parties that are missing, without waiting for answers."""
        if not self.missing:
            return
        for node, answer in self._look():
            try:
                self._enter(node, answer)
            except (ConfigError, VersionRefused) as trouble:  # the run has begun, and goes on without this SuperNode
                self._refused.add(node)
                _LOG.warning("SuperNode %d does not enrol: %s", node, trouble)

    def _look(self) -> Iterator[tuple[int, EnrolmentReply | VersionRefused]]:
        """Send the invitations that are due, and yield the answers that have arrived."""
        now, settled = time.monotonic(), self._refused | set(self.nodes.values())
        due = [
            node
            for node in sorted(set(self._grid.get_node_ids()) - settled)
            if node not in self._invited or now >= self._invited[node] + self._pause
        ]
        for node in due:
            self._invited[node] = now
        sent = [Message(self._invitation.content(), node, ACTION) for node in due]
        numbers = self._grid.push_messages(sent) if sent else ()
        self._waiting |= {number: node for number, node in zip(numbers, due, strict=True) if number}
        for reply in self._grid.pull_messages(list(self._waiting)) if self._waiting else ():
            sender = self._waiting.pop(reply.metadata.reply_to_message_id, None)
            if sender is None:
                continue
            if reply.has_error():
                _LOG.warning("SuperNode %d does not enrol yet: %.300r", sender, reply.error.reason)
                continue
            try:
                yield sender, EnrolmentReply.read(reply.content, sender)
            except VersionRefused as error:
                yield sender, error
            except DataError as error:
                _LOG.warning("SuperNode %d does not enrol yet: %s", sender, error)

    def _trouble(self, node: int, answer: EnrolmentReply) -> str | None:
        """Say why the answer of a SuperNode enrols no party; `None` if it does, or did before."""
        if answer.refusal:
            return f"party {answer.party} does not take part: {answer.refusal}"
        if answer.party not in self._wanted:
            return f"a SuperNode reports that it is party {answer.party}; the run is for {sorted(self._wanted)}"
        if self.nodes.get(answer.party, node) != node:
            return f"two SuperNodes report that they are client {answer.party}; give each its own partition-id"
        return None

    def _enter(self, node: int, answer: EnrolmentReply | VersionRefused) -> None:
        """Enter the party that a SuperNode reports.

        Raises:
            ConfigError: its answer enrols no party.
            VersionRefused: it is of another version.
        """
        if isinstance(answer, VersionRefused):
            raise answer
        if (trouble := self._trouble(node, answer)) is not None:
            raise ConfigError(trouble)
        if answer.party not in self.nodes:
            self.nodes[answer.party] = node
            _LOG.info("party %d enrolled (%d of %d)", answer.party, len(self.nodes), len(self._wanted))


def check_apart(terms: Terms) -> None:
    """Raise `ConfigError` for a defence without the keys that its parties must share; both apps call it first.

    Without given keys threshold Paillier deals them in each process (as simulations want), so parties would differ.
    """
    aggregation = terms.defense.aggregation
    if isinstance(aggregation, ThresholdPaillier) and aggregation.keys is None:
        raise ConfigError(
            f"{aggregation} without keys draws new ones in each process, so parties would have different keys: call "
            "deal() once, and give each party its part (KeySet.only)"
        )


def _content(fields: dict[str, str | int]) -> RecordDict:
    return RecordDict({_RECORD: ConfigRecord({_VERSION: PROTOCOL_VERSION, **fields})})


def _fields(content: RecordDict, names: tuple[str, ...], sender: int, name: str = "it") -> dict[str, object]:
    """Return the fields; the version is checked first, since messages of another version may have other fields."""
    record = content.config_records.get(_RECORD)
    fields: dict[str, object] = {} if record is None else dict(record)
    if fields:
        check_version(fields.pop(_VERSION, None), sender, name)
    if set(fields) != set(names):
        raise DataError("the message is no enrolment message of securefed; use the same release on both sides")
    return fields
