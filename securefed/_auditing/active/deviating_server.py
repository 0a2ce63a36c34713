"""Run a federation whose server follows an active attack instead of the algorithm.

The clients, the defence and the protocol are the library's own: the clients check everything that they check in any
run. The attack chooses the broadcasts, how often the declared bounds of contributions are doubled (at most
`MAX_DOUBLINGS` times, as a server does after a client was out of range), and whether the server tells the clients of a
sum that it counted them; the server makes no step of the algorithm. So a run shows what the attack reads, and whether
clients or protocol stop it.

An active attack holds a `Dialogue`: `ask` sends the next broadcast (`ChosenBroadcast`: one for all clients, and others
for some of them), runs the round, and returns what the server observed. The audit's view `active server`
(`active_attacks`) makes a `DeviatingServer` for each attack and calls `deceive`.

The base class `Federation` makes each round by `_round`: it asks `next_broadcast` what to send, sums the clients'
contributions to it, repeating void attempts, and hands the sum to `combine`. The deviating server replaces these two
methods; a broadcast for some clients only is put in their requests on the way, by a transport of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from securefed._messages import ClientId, Message, PartyId
from securefed._persistence.packing import nest
from securefed._public import Public
from securefed._runtime.exchange_header import MAX_DOUBLINGS, TRAIN
from securefed._runtime.federation import Federation
from securefed._runtime.open_exchange import ExchangeResult
from securefed._runtime.run_options import RunOptions
from securefed._tensors import Tensors
from securefed._transports import InProcessTransport, Transport, arrivals
from securefed.algorithms._base import Algorithm
from securefed.attacks import views
from securefed.attacks._active.chosen_broadcasts import (
    ActiveAttack,
    ChosenBroadcast,
    Dialogue,
)
from securefed.attacks._base import Reconstruction, RoundView, Target, View
from securefed.datasets._base import Dataset
from securefed.defenses._chain import Link
from securefed.errors import DivergenceError, PlanError, RangeRefused, RoundVoid, TranscriptError

_MOST_ROUNDS: Final = 200
"""Rounds after which an attack that does not end is stopped, without an estimate. The registered attacks bound their
rounds by their settings and end before; the limit stops attacks of users that do not."""


@dataclass(frozen=True)
class ActiveRun:
    """Result of a run whose server chose its broadcasts.

    Attributes:
        estimate: the estimate of the secret; `None` where clients or protocol refused to go on, or where the attack did
            not end.
        refused: why there is no estimate; empty where there is one.
        observed: the rounds that it observed, under the name of the view.
        broadcasts: what it sent to the victim, round by round; one more than observed where the last round failed.
        honest: the broadcast of an honest server's first round.
    """

    estimate: Reconstruction | None
    refused: str
    observed: View
    broadcasts: tuple[Tensors, ...]
    honest: Tensors


class _DifferentBroadcasts:
    """A transport that replaces the broadcast in requests to some clients, on the way.

    Attributes:
        inner: the transport that carries the messages.
        to_some: by client, the broadcast that it gets in place of the common one.
        altered: clients that were sent another broadcast than the common one since this set was emptied.
    """

    def __init__(self, inner: Transport) -> None:
        self.inner = inner
        self.to_some: Mapping[ClientId, Tensors] = {}
        self.altered: set[ClientId] = set()

    def exchange(self, outgoing: Mapping[PartyId, bytes], timeout: float | None = None) -> dict[PartyId, bytes]:
        """Send the altered requests; return the answers of all clients."""
        return dict(self.arrivals(outgoing, timeout))

    def arrivals(
        self, outgoing: Mapping[PartyId, bytes], timeout: float | None = None
    ) -> Iterator[tuple[PartyId, bytes]]:
        """Send the altered requests; yield (client, answer) as the answers arrive."""
        sent = {party: self._altered(party, data) for party, data in outgoing.items()}
        yield from arrivals(self.inner, sent, timeout)

    def _altered(self, party: PartyId, data: bytes) -> bytes:
        """Return a request with another broadcast; as it is where it holds none."""
        if party not in self.to_some:
            return data
        message = Message.decode(data)
        # only the requests that carry a broadcast have such fields; those of other stages pass as they are
        kept = {name: value for name, value in message.body.items() if not name.startswith("broadcast/")}
        if len(kept) == len(message.body):
            return data
        self.altered.add(party)
        return replace(message, body=kept | nest("broadcast", self.to_some[party])).encode()


class DeviatingServer(Federation):
    """A federation whose server sends what an active attack chooses.

    Args:
        algorithm: what the clients run.
        clients: their rows.
        defense: protects the contributions in messages.
        attack: chooses the broadcasts.
        victim: the client that is attacked.
        alone: whether the server reads the victim's own messages, which needs uploads in the clear, or sums only.
        seed: the seed of the run and of the attack.
        public: declared facts; by default they are derived from the clients' data.
        shuffled: whether entries of every message are permuted before the attack sees them, for a null test.
        options: the options of the run: which clients take part in a round, and how often a round is tried.

    Raises:
        TranscriptError: the attack does not apply; the message says why.
    """

    def __init__(
        self,
        algorithm: Algorithm[Any, Any],
        clients: Sequence[Dataset],
        defense: Link | None,
        attack: ActiveAttack,
        *,
        victim: ClientId = 0,
        alone: bool = False,
        seed: int = 0,
        public: Public | None = None,
        shuffled: bool = False,
        options: RunOptions | None = None,
    ) -> None:
        self._altering = _DifferentBroadcasts(InProcessTransport({}))  # `_tell` sets the transport to the clients
        super().__init__(
            algorithm, clients, defense, seed=seed, public=public, transport=self._tell, options=options or RunOptions()
        )
        self._alone, self._victim = alone, victim
        # streams 3 (permutations) and 1 (the attack) of the seed are independent of one another and of the run's own
        self._rng = np.random.default_rng([seed, 3])
        self._shuffled = shuffled
        members = frozenset({victim}) if alone else frozenset(range(len(clients)))
        self.honest = self.algorithm.broadcast(self.state)
        self._target = Target(self.algorithm, self.public)
        self.dialogue = Dialogue(self.honest, victim, members, self._send, MAX_DOUBLINGS)
        if (reason := attack.applies(self._target, self.dialogue)) is not None:
            raise TranscriptError(reason)
        self._attack, self._seed = attack, seed
        self._chosen = ChosenBroadcast(self.honest)
        self._sent: list[Tensors] = []
        self._observed: list[RoundView] = []
        self._summed: ExchangeResult | None = None

    def deceive(self) -> ActiveRun:
        """Run until the attack has its estimate, or until clients or protocol refuse to go on."""
        estimate, refused = None, ""
        self._agree(0)  # tells the clients the schedule: no exchange evaluates the model
        try:
            estimate = self._attack.run(self.dialogue, self._target, np.random.default_rng([self._seed, 1]))
        except (RoundVoid, RangeRefused, DivergenceError, PlanError) as error:
            refused = str(error)
        if estimate is None and not refused:
            refused = "the attack ended without an estimate"
        observed = View(views.ACTIVE_SERVER, self._victim, tuple(self._observed), {})
        return ActiveRun(estimate, refused, observed, tuple(self._sent), self.honest)

    def _send(self, chosen: ChosenBroadcast) -> RoundView:
        """Run a round with a chosen broadcast, and return what the server observes of it.

        Raises:
            RoundVoid: the round failed; or the protocol left out clients that were told another broadcast than the
                rest, so that the attack sees nothing of them; or there were `_MOST_ROUNDS` rounds before.
        """
        if len(self.history) >= _MOST_ROUNDS:
            raise RoundVoid(f"no estimate after {_MOST_ROUNDS} rounds")
        # Clients are told the broadcast that followed from the sum before, which is this one. A round without an entry
        # here counted no client, as far as clients can tell: they go on from the states that they had before it.
        if self._summed is not None and self._chosen.counted:
            record = self._summed.record
            self._counted.count(record.round, record.survivors, chosen.to_all, self._summed.announced)
        self._chosen, self._altering.to_some = chosen, chosen.to_some
        self._doublings[TRAIN] = max(self._doublings[TRAIN], chosen.doublings)  # doubled bounds stay so
        self._altering.altered.clear()
        self._sent.append(chosen.to_some.get(self._victim, chosen.to_all))
        self.history.append(self._round())
        observed = self._observed[-1]
        if left := sorted(self._altering.altered - set(observed.survivors)):
            raise RoundVoid(f"clients {left} were told another broadcast than the rest and are not in the sum")
        if self._shuffled:  # `_observed` keeps the round as it was: it records what the server saw
            return views.shuffled(View(views.ACTIVE_SERVER, None, (observed,), {}), self._rng).rounds[0]
        return observed

    def next_broadcast(self) -> Tensors:
        """Return the broadcast for all clients that the attack chose; the base class sends it."""
        return self._chosen.to_all

    def combine(self, summed: ExchangeResult) -> None:
        """Keep the message of a completed round, and what an adaptive defence learns from it.

        The base class calls this in place of the algorithm's server step. Of that step only what clients check remains:
        the numbers that an adaptive defence learns from a sum (such as its next clip), and the list of the clients that
        this sum counted (`_send`).

        Raises:
            RoundVoid: the server reads single messages, and the victim sent none in this round.
        """
        record = summed.record
        if self._alone and self._victim not in record.survivors:
            raise RoundVoid(
                f"the attack reads messages of client {self._victim}, which took no part in round {record.round}"
            )
        see = views.server(self.transcript, self._victim) if self._alone else views.sum_only(self.transcript, None)
        self._observed.append(see.rounds[-1])
        self._learned = self.defense.learn(record.released, summed.plan, len(record.survivors))
        self._summed = summed

    def _tell(self, endpoints: Mapping[PartyId, Any]) -> Transport:
        """Return the altering transport in front of the clients; the federation calls it once they exist."""
        self._altering.inner = InProcessTransport(endpoints)
        return self._altering
