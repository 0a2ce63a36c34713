"""Run the server of a federation inside a Flower ServerApp.

The ServerApp's `main` calls `serve`. It first enrols the parties: it invites every SuperNode that connects, and each
answers which party it is and whether it agrees to the terms. A party is a client, numbered from 0, or one that the
defence needs beside the clients (`beside`), such as a key holder, with a negative number. Then the round loop
(`Server`) runs over a transport that sends each party's messages to its SuperNode (`FlowerGrid`). Between rounds,
SuperNodes of parties that are missing are invited again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from typing import Final

from flwr.app import Message
from flwr.serverapp import Grid

from securefed._messages import PartyId
from securefed._runtime.history import RoundHistory
from securefed._runtime.run_options import RunOptions
from securefed._runtime.server import Progress, Result, Server
from securefed._runtime.terms import Terms
from securefed.errors import ConfigError, DataError, TooFewSurvivors, VersionRefused
from securefed.flower._enrolment import ACTION, EnrolmentReply, Invitation, check_apart
from securefed.flower._grid import FlowerGrid

_INVITATIONS: Final = 10
"""Invitations that a SuperNode without an answer gets within `wait`. Flower takes some six seconds for each message: at
twice as many, an app that is slow to start is invited once more for nothing; at half, a lost message costs two minutes
of the default 600 seconds."""
_LOG = logging.getLogger("securefed.flower")


def serve(
    grid: Grid,
    terms: Terms,
    rounds: int,
    *,
    wait: float = 600.0,
    least: int | None = None,
    poll: float = 0.2,
    progress: Progress | None = None,
    options: RunOptions | None = None,
) -> Result:
    """Run `terms` over the SuperNodes that a grid reaches.

    Evaluations are part of the terms (`Terms.of(..., evaluate_every=...)`): clients refuse any other.

    Args:
        grid: the ServerApp's grid.
        terms: what all parties agreed on.
        rounds: training rounds, counting those of a resumed run.
        wait: seconds to wait for all parties to enrol.
        least: number of clients that must have enrolled when `wait` is over; all by default. The others are invited
            again after each round, and take part once they have enrolled.
        poll: seconds between two queries for replies and for new SuperNodes.
        progress: called with each completed round; each is also logged (logger `securefed.flower`).
        options: checkpoint, transcript, retries, timeout and budget. To resume from a checkpoint, clients with a state
            need a folder (`client_app`). `max_void` may be at most what the terms allow. Flower itself takes some six
            seconds of each stage's timeout.

    Returns:
        The result, without the data and states of the clients.

    Raises:
        ConfigError: a party enrols with other terms, or refuses for a reason of the run.
        VersionRefused: a SuperNode speaks another version of the protocol.
        TooFewSurvivors: too few enrolled in time.
        RoundVoid: a round could not be completed; the checkpoint holds all rounds before it.
        RangeRefused: a client's values stay out of range in all attempts, where the defence hides nothing. Elsewhere
            the client sits out, and the round ends with `RoundVoid`.
        BudgetSpent: the privacy budget allows no further exchange.
        DivergenceError: the model is no longer finite.

    After complete rounds the attribute `result` of an error is the result of those rounds, with the model.
    """
    check_apart(terms)  # refuses a defence whose keys each process would draw for itself
    options = (options or RunOptions()).with_defaults(checkpoint_every=1, keep_transcript=False)
    nodes: dict[PartyId, int] = {}  # of the parties that enrolled so far
    server = Server(terms, FlowerGrid(grid, nodes, poll=poll), options=options)
    invitation = Invitation(server.transcript.run, terms.digest, server.resumes or "")
    enrolment = Enrolment(grid, terms, invitation, wait / _INVITATIONS, nodes)
    enrolment.wait(wait, least, poll)
    _LOG.info("run %s begins with %d parties", invitation.run, len(nodes))

    def report(entry: RoundHistory) -> None:
        _LOG.info("round %d: %d clients, %.1f s", entry.round, len(entry.survivors), entry.seconds)
        enrolment.go_on()
        if progress is not None:
            progress(entry)

    return server.run(rounds, evaluate_every=terms.exchanges.evaluate_every, progress=report)


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
