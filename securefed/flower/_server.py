"""Run the server of a federation inside a Flower ServerApp.

The ServerApp's `main` calls `serve`. It first enrols the parties: it invites every SuperNode that connects, and each
answers which party it is and whether it agrees to the terms. A party is a client, numbered from 0, or one that the
defence needs beside the clients (`beside`), such as a key holder, with a negative number. Then the round loop
(`Server`) runs over a transport that sends each party's messages to its SuperNode (`FlowerGrid`). Between rounds,
SuperNodes of parties that are missing are invited again.
"""

from __future__ import annotations

import logging
from typing import Final

from flwr.serverapp import Grid

from securefed._messages import PartyId
from securefed._runtime.history import Result, RoundHistory
from securefed._runtime.run_options import RunOptions
from securefed._runtime.server import Progress, Server
from securefed._runtime.terms import Terms
from securefed.flower._enrolment import Enrolment, Invitation, check_apart
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
