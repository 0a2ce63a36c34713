"""`serve`: the server of a run, inside a ServerApp."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from flwr.app import Message
from flwr.serverapp import Grid

from securefed.defenses.differential_privacy import Budget
from securefed.errors import ConfigError, DataError, TooFewSurvivors
from securefed.flower.enrolment import ACTION, Enrolled, Invitation, check_apart
from securefed.history import RoundHistory
from securefed.messages import PartyId
from securefed.sealing import Seal
from securefed.selection import Schedule
from securefed.server import Progress, Result, Server
from securefed.terms import Terms
from securefed.transports.flower import FlowerGrid

_LOG = logging.getLogger("securefed.flower")


def serve(
    grid: Grid,
    terms: Terms,
    rounds: int,
    *,
    wait: float = 600.0,
    timeout: float = 600.0,
    least: int | None = None,
    poll: float = 0.2,
    progress: Progress | None = None,
    schedule: Schedule | None = None,
    checkpoint: Path | str | None = None,
    checkpoint_every: int = 1,
    seal: Seal | None = None,
    keep: bool = False,
    max_void: int = 8,
    budget: Budget | None = None,
) -> Result:
    """Run `terms` over the SuperNodes that a grid reaches.

    Args:
        wait: seconds to wait for all parties to enrol.
        timeout: seconds to wait for the replies of one stage; who is later dropped out. Flower itself takes some six.
        least: how many clients must have enrolled when `wait` is over; all by default.
        poll: seconds between two looks for replies, and for SuperNodes that joined.
        progress: called with each completed round; each is logged besides (logger `securefed.flower`).
        checkpoint: where the server's state is written; if it exists, the run goes on from there. Clients whose method
            remembers something then need a folder of their own (`client_app`).
        keep: whether the result's transcript holds all messages, for an audit of what the server saw.
        max_void: attempts at one sum, at most as many as the terms allow.
        schedule, checkpoint_every, seal, budget: as `Federation`.

    Evaluations are a part of the terms (`Terms.of(..., evaluate_every=...)`): clients refuse others.

    Returns:
        The result, without what stays with the clients.

    Raises:
        ConfigError: a party enrols with other terms, or refuses for a reason of the run.
        TooFewSurvivors: too few enrolled in time.
        RoundVoid, RangeRefused, BudgetSpent, DivergenceError: as `Server.run`; the checkpoint holds all before it.
    """
    check_apart(terms)
    transport = FlowerGrid(grid, {}, poll=poll)
    server = Server(
        terms, transport, schedule=schedule, checkpoint=checkpoint, checkpoint_every=checkpoint_every, seal=seal,
        keep=keep, max_void=max_void, timeout=timeout, budget=budget,
    )  # fmt: skip
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
    """The SuperNode of every party that agreed to the terms.

    Raises:
        ConfigError: a party refuses, or two SuperNodes say that they are the same one.
        TooFewSurvivors: too few did in time.
    """
    beside = terms.defense.aggregation.beside
    wanted = {*range(terms.public.clients), *beside}
    nodes: dict[PartyId, int] = {}
    asked: set[int] = set()
    waiting: dict[str, int] = {}
    end = time.monotonic() + wait
    while True:  # a server that is held up for all of `wait` has looked once all the same
        new = sorted(set(grid.get_node_ids()) - asked)
        asked |= set(new)
        waiting |= _ask(grid, invitation, new)
        for node, answer in _answers(grid, waiting):  # a node that is silent keeps nobody else from enrolling
            if answer.refusal:
                raise ConfigError(f"party {answer.party} does not take part: {answer.refusal}")
            if answer.party not in wanted:
                raise ConfigError(f"a SuperNode says that it is party {answer.party}; the run is for {sorted(wanted)}")
            if answer.party in nodes:
                raise ConfigError(
                    f"two SuperNodes say that they are client {answer.party}; give each a partition-id of its own"
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
    """The node that each message was sent to, by the message's number."""
    asked = [Message(invitation.content(), node, ACTION) for node in nodes]
    numbers = grid.push_messages(asked) if asked else ()
    return {number: node for number, node in zip(numbers, nodes, strict=True) if number}


def _answers(grid: Grid, waiting: dict[str, int]) -> Iterator[tuple[int, Enrolled]]:
    """Those that are there by now; who answered waits no longer."""
    for reply in grid.pull_messages(list(waiting)) if waiting else ():
        node = waiting.pop(reply.metadata.reply_to_message_id, None)
        if node is None:
            continue
        if reply.has_error():
            _LOG.warning("SuperNode %d does not enrol: %.300r", node, reply.error.reason)
            continue
        try:
            yield node, Enrolled.read(reply.content)
        except DataError as error:
            _LOG.warning("SuperNode %d does not enrol: %s", node, error)
