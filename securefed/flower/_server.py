"""Run the server of a federation inside a Flower ServerApp.

The ServerApp's `main` calls `serve`. It first enrols the parties: it invites every SuperNode that connects, and each
answers which client it is and whether it agrees to the terms. Then the round loop (`Server`) runs over a transport that
sends each client's messages to its SuperNode (`FlowerGrid`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence

from flwr.app import Message
from flwr.serverapp import Grid

from securefed._messages import PartyId
from securefed._runtime.history import RoundHistory
from securefed._runtime.run_options import RunOptions
from securefed._runtime.server import Progress, Result, Server
from securefed._runtime.terms import Terms
from securefed.errors import ConfigError, DataError, TooFewSurvivors
from securefed.flower._enrolment import ACTION, EnrolmentReply, Invitation, check_apart
from securefed.flower._grid import FlowerGrid

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
        least: number of clients that must have enrolled when `wait` is over; all by default.
        poll: seconds between two queries for replies and for new SuperNodes.
        progress: called with each completed round; each is also logged (logger `securefed.flower`).
        options: checkpoint, transcript, retries, timeout and budget. To resume from a checkpoint, clients with a state
            need a folder (`client_app`). `max_void` may be at most what the terms allow. Flower itself takes some six
            seconds of each stage's timeout.

    Returns:
        The result, without the data and states of the clients.

    Raises:
        ConfigError: a party enrols with other terms, or refuses for a reason of the run.
        TooFewSurvivors: too few enrolled in time.
        RoundVoid: a round could not be completed; the checkpoint holds all rounds before it.
        RangeRefused: a client's values stay out of range however often the range is doubled.
        BudgetSpent: the privacy budget allows no further exchange.
        DivergenceError: the model is no longer finite.
    """
    check_apart(terms)
    options = (options or RunOptions()).with_defaults(checkpoint_every=1, keep_transcript=False)
    transport = FlowerGrid(grid, {}, poll=poll)
    server = Server(terms, transport, options=options)
    invitation = Invitation(server.transcript.run, terms.digest, server.resumes or "")
    transport.nodes |= enrol(grid, terms, invitation, wait=wait, least=least, poll=poll)
    _LOG.info("run %s begins with %d parties", invitation.run, len(transport.nodes))

    def report(entry: RoundHistory) -> None:
        _LOG.info("round %d: %d clients, %.1f s", entry.round, len(entry.survivors), entry.seconds)
        if progress is not None:
            progress(entry)

    return server.run(rounds, evaluate_every=terms.exchanges.evaluate_every, progress=report)


def enrol(
    grid: Grid, terms: Terms, invitation: Invitation, *, wait: float, least: int | None = None, poll: float = 0.2
) -> dict[PartyId, int]:
    """Enrol SuperNodes and return the SuperNode of every party that agreed to the terms.

    Args:
        grid: the ServerApp's grid.
        terms: what all parties agreed on.
        invitation: sent to every SuperNode that connects.
        wait: seconds to wait for all parties.
        least: number of clients that must have enrolled by then; all by default. Key holders are needed in any case.
        poll: seconds between two queries for replies and for new SuperNodes.

    Raises:
        ConfigError: a party refuses, or two SuperNodes report the same party.
        TooFewSurvivors: too few SuperNodes enrolled in time.
    """
    beside = terms.defense.aggregation.beside
    wanted = {*range(terms.public.clients), *beside}
    nodes: dict[PartyId, int] = {}
    asked: set[int] = set()
    waiting: dict[str, int] = {}
    end = time.monotonic() + wait
    while True:  # the loop body runs at least once, even if the process was paused for all of `wait`
        new = sorted(set(grid.get_node_ids()) - asked)
        asked |= set(new)
        waiting |= _ask(grid, invitation, new)
        for node, answer in _answers(grid, waiting):  # a silent node does not keep others from enrolling
            if answer.refusal:
                raise ConfigError(f"party {answer.party} does not take part: {answer.refusal}")
            if answer.party not in wanted:
                raise ConfigError(
                    f"a SuperNode reports that it is party {answer.party}; the run is for {sorted(wanted)}"
                )
            if answer.party in nodes:
                raise ConfigError(
                    f"two SuperNodes report that they are client {answer.party}; give each its own partition-id"
                )
            nodes[answer.party] = node
            _LOG.info("party %d enrolled (%d of %d)", answer.party, len(nodes), len(wanted))
        if set(nodes) == wanted or time.monotonic() >= end:
            break
        time.sleep(poll)
    missing = sorted(wanted - set(nodes))
    needed = terms.public.clients if least is None else least
    clients = sum(party >= 0 for party in nodes)
    if clients < needed or not set(beside) <= set(nodes):
        raise TooFewSurvivors(
            f"{clients} of {terms.public.clients} clients enrolled within {wait:g} s, parties {missing} did not; start "
            "their SuperNodes, wait for longer, or lower `least`"
        )
    return nodes


def _ask(grid: Grid, invitation: Invitation, nodes: Sequence[int]) -> dict[str, int]:
    """Send the invitation to nodes; return the node of each message, by the message's number."""
    asked = [Message(invitation.content(), node, ACTION) for node in nodes]
    numbers = grid.push_messages(asked) if asked else ()
    return {number: node for number, node in zip(numbers, nodes, strict=True) if number}


def _answers(grid: Grid, waiting: dict[str, int]) -> Iterator[tuple[int, EnrolmentReply]]:
    """Yield the answers that have arrived, and remove their nodes from `waiting`."""
    for reply in grid.pull_messages(list(waiting)) if waiting else ():
        node = waiting.pop(reply.metadata.reply_to_message_id, None)
        if node is None:
            continue
        if reply.has_error():
            _LOG.warning("SuperNode %d does not enrol: %.300r", node, reply.error.reason)
            continue
        try:
            yield node, EnrolmentReply.read(reply.content)
        except DataError as error:
            _LOG.warning("SuperNode %d does not enrol: %s", node, error)
