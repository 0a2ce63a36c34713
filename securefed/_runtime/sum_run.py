"""The sums of one run at the server: open one after the other, and repeat void ones.

Each attempt at a sum is an exchange with a number of its own. It is void if too few clients reply, or if a client sat
out (its values were out of the declared range, so that the sum opens to noise); then the sum is attempted again.
A caller drives one sum so:

    run.begin(TRAIN, cohort)
    while summed is None:
        carry(run.exchange)             # the messages of one stage
        summed = run.close_stage()      # the next stage, another attempt where this one is void, or the sum
    run.counted(summed, following)      # what followed from it is the next broadcast

Nothing here sends a message, and nothing knows what is summed: `SumServer` sums what its clients are given, and
`Server` an algorithm's contributions.

A run freezes in the middle of an exchange too, so that a killed server goes on (`SumRun.freeze`). The bytes hold the
server's secrets of the exchange, the sum of the uploads so far, and the keys that the last exchange agreed on for the
next one. A run that is restored twice may use those keys twice; a client does not, since it erases its part with its
upload. The values, in JSON:

    loop       `counters`: the run, the next exchange's number, the privacy budget's count of exchanges, the blocks of
               clients that all sums so far tell apart, doublings of the bounds, numbers that an adaptive defence
               learned from sums (a clipping norm), by client the last exchange that counted it, and the history
    tried      [round, kind, attempts] of the last sum: its next attempt gets the next number, since clients answer no
               attempt twice
    given_up   number of rounds that were given up
    log        bytes received and bytes sent so far
    pending    `PendingSum` of the open round; absent between rounds
    number, header, exchange    of the open attempt: its number, `ExchangeHeader`, and `OpenExchange.freeze`

and the tensors, beside those of `SumRun.kept`:

    prepared        keys for the next exchange (`SecureAggregation(pipelined=True)`), bytes; empty without them
    exchange/...    the protocol's state and the replies of the open attempt
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from securefed._messages import ROTATED, ClientId, Transcript
from securefed._persistence.frozen import complete, frozen, thawed
from securefed._persistence.packing import from_bytes, nest, unnest
from securefed._runtime.cohorts import keep_blocks, uniform, unpredictable
from securefed._runtime.exchange_context import CountedClients
from securefed._runtime.exchange_header import EVALUATE, MAX_DOUBLINGS, TRAIN, ExchangeHeader
from securefed._runtime.history import RoundHistory
from securefed._runtime.open_exchange import ExchangeContent, ExchangeResult, MessageLog, OpenExchange
from securefed._runtime.privacy_checks import check_privacy
from securefed._runtime.sum_facts import SumFacts
from securefed._tensors import Array, Tensors
from securefed.defenses._differential_privacy import Budget
from securefed.defenses._plan import SumsSoFar
from securefed.errors import (
    BudgetSpent,
    ClientOut,
    MessageRefused,
    RangeRefused,
    RoundVoid,
    SurvivorsTooClose,
    TooFewSurvivors,
)

VOIDING = (ClientOut, SurvivorsTooClose, RangeRefused, TooFewSurvivors, MessageRefused)
"""Errors that make one attempt at a sum void; the sum is then attempted again."""
_PARTY: Final = "the sums of a server"


def new_run() -> str:
    """Generate a fresh identifier for a run."""
    return secrets.token_hex(16)


@dataclass
class PendingSum:
    """A sum that is being made: it may take several attempts.

    Attributes:
        kind: what is summed: `train` or `evaluate`.
        cohort: clients that the next attempt invites.
        void: why earlier attempts were void.
        was_out: whether a client sat out of one of them.
        began: bytes received and bytes sent before it.
    """

    kind: str
    cohort: tuple[ClientId, ...]
    void: list[str] = field(default_factory=list)
    was_out: bool = False
    began: tuple[int, int] = (0, 0)


class SumRun:
    """The sums of one run, at the server.

    Args:
        facts: what all parties agreed on.
        run: the run's identifier; a fresh one by default.
        about: public facts of the run for its transcript, in JSON values, beside those of every sum.
        max_void: most attempts at one sum.
        budget: the server's privacy budget, charged before each exchange; `None` without one.
        keep: whether messages are kept in the transcript.
        broadcast: returns what contributions to a round are computed from, by the round's number (`position`).
        chosen: whether cohorts are chosen by the caller, or by values that clients reveal, and not drawn.

    Raises:
        ConfigError: cohorts are not drawn as the defence's accountant assumes, or the budget is not of its noise.
        PlanError: the defence cannot keep its promise for these sizes.
    """

    def __init__(
        self, facts: SumFacts, run: str | None, about: Mapping[str, Any], *, max_void: int, budget: Budget | None,
        keep: bool, broadcast: Callable[[int], Tensors] | None = None, chosen: bool = False,
    ) -> None:  # fmt: skip
        schema, plan, privacy = facts.schema, facts.training, facts.training.privacy
        self._draws_in_secret = check_privacy(facts.defense, plan, budget, schema.cohort, schema.clients, chosen=chosen)
        meta = {
            "defense": facts.defense.name,
            "settings": repr(facts.defense),
            "clients": schema.clients,
            "cohort": schema.cohort,
            # `noise_survivors`: above 0 where clients add the noise, to rotated vectors
            ROTATED: [tensor.name for tensor in plan.tensors] if privacy and privacy.noise_survivors else [],
        }
        self._facts, self._max_void, self._budget, self._broadcast = facts, max_void, budget, broadcast
        self.pending: PendingSum | None = None
        """The sum that is being made."""
        self.exchange: OpenExchange | None = None
        """Its open attempt."""
        self.defense, self.transcript = facts.defense, Transcript(run or new_run(), {**meta, **about})
        self.log = MessageLog(self.transcript, keep)
        self.history: list[RoundHistory] = []
        """One entry for each completed round."""
        self._so_far = SumsSoFar(least=facts.rule.least_block)
        self._prepared: Any = None  # keys and masks that the last exchange made for the next, where it makes any
        self._exchanges = 0  # the next exchange's number
        self.sums = 0
        """Number of exchanges so far that the privacy budget counts, void ones included."""
        self.tried: dict[tuple[int, str], int] = {}  # attempts at the last sum: clients answer none of them twice
        self.given_up = 0
        """Rounds that were given up without a sum: clients answer no further attempt at them."""
        self._doublings = {TRAIN: 0, EVALUATE: 0}  # of the declared bounds, since a client was out of range
        self._learned = facts.learned  # of an adaptive defence, such as its clip
        self._counted = CountedClients(facts.schema.needs_outcome)

    @property
    def position(self) -> int:
        """Number of the next round as requests state it: rounds that were given up count."""
        return len(self.history) + self.given_up

    @property
    def prepared(self) -> bytes:
        """Keys and masks, secret, that the last exchange prepared for the next one; empty where there are none."""
        if self._prepared is None or isinstance(self._prepared, bytes):
            return self._prepared or b""
        return bytes(self._prepared.to_bytes())

    @prepared.setter
    def prepared(self, frozen: bytes) -> None:
        self._prepared = frozen or None

    def next_broadcast(self) -> Tensors:
        """Return what the next attempt tells its clients: contributions are computed from it."""
        return {} if self._broadcast is None else self._broadcast(self.position)

    def draw(self, seed: int) -> tuple[ClientId, ...]:
        """Draw the cohort of the next sum: in secret where epsilon rests on that, else so that the seed repeats it."""
        everyone, size = range(self._facts.schema.clients), self._facts.schema.cohort
        if self._draws_in_secret:
            return unpredictable(everyone, size)
        return uniform(everyone, size, seed, self.position)

    def begin(self, kind: str, cohort: tuple[ClientId, ...]) -> None:
        """Open the first attempt at a sum.

        Args:
            kind: what is summed: `train` or `evaluate`.
            cohort: the clients that it invites.

        Raises:
            BudgetSpent: the privacy budget allows no further exchange.
        """
        self.pending = PendingSum(kind, cohort, began=(self.log.up, self.log.down))
        self._attempt()

    def close_stage(self) -> ExchangeResult | None:
        """End the open stage: go to the next one, to another attempt where this one is void, or to the sum.

        Returns:
            The sum; `None` while it is being made.

        Raises:
            RoundVoid, RangeRefused: the last attempt was void.
            DivergenceError: a client's local steps diverged, and its defence hides nothing.
            BudgetSpent: another attempt is needed, and the privacy budget does not allow it.
        """
        assert self.exchange is not None
        least = self._facts.rule.least_parties
        try:
            summed = self.exchange.close_stage()
            if summed is not None and (found := len(summed.record.survivors)) < least:
                raise TooFewSurvivors(f"{found} parties, and the terms release a result of {least}")
        except VOIDING as error:
            self._failed(error)
            self._attempt()
            return None
        if summed is not None:
            self._prepared = self.exchange.prepared
            for parties in summed.record.sums:
                self._so_far = self._so_far.with_sum(parties)
        return summed

    def entry(self, summed: ExchangeResult, seconds: float = 0.0) -> RoundHistory:
        """Return the history's entry of the pending sum, which is complete.

        Args:
            summed: the sum.
            seconds: wall clock.
        """
        assert self.pending is not None
        record, (up, down) = summed.record, self.pending.began
        return RoundHistory(  # `record.round` is the exchange's number, whatever its name
            len(self.history), record.round, record.survivors, seconds, self.log.up - up, self.log.down - down,
            tuple(self.pending.void), dict(summed.refusals),
        )  # fmt: skip

    def _attempt(self) -> None:
        """Open the next attempt at the pending sum; every attempt takes its own exchange number."""
        assert self.pending is not None
        cohort, kind, place = self.pending.cohort, self.pending.kind, (self.position, self.pending.kind)
        number, attempt = self._take_number(), self.tried.get(place, 0)
        self.tried = {place: attempt + 1}
        self._open(number, ExchangeHeader(cohort, kind, self._doublings[kind], self._learned, self.position, attempt))

    def _open(self, number: int, header: ExchangeHeader) -> OpenExchange:
        prepared, self._prepared = self._prepared, None  # used once, whatever becomes of this exchange
        counted = self._counted
        content = ExchangeContent(header, self.next_broadcast(), counted.listed(header.cohort), counted.body)
        self.exchange = OpenExchange(self._facts, number, content, self.log, self._so_far, prepared)
        return self.exchange

    def _failed(self, error: Exception) -> None:
        """Note that an attempt was void, and decide whom the next one invites.

        After `ClientOut` the sum was opened, and is noise: the bounds are doubled, and the clients that uploaded are
        invited again. (Two opened sums over different clients could be subtracted, which shows those in one of them
        only.)
        After `SurvivorsTooClose` nothing was opened, and some clients are left out. Otherwise the same cohort is tried
        again.

        Args:
            error: one of `VOIDING`.

        Raises:
            RoundVoid: it was the last attempt.
            RangeRefused: it was the last attempt, and a client refused by name because of its range; or the range was
                doubled as often as it may be.
        """
        pending, exchange, self.exchange = self.pending, self.exchange, None
        assert pending is not None and exchange is not None
        self._prepared = exchange.prepared
        for parties in exchange.named:
            self._so_far = self._so_far.with_sum(parties)
        kind, doubled = pending.kind, isinstance(error, ClientOut | RangeRefused)
        pending.void.append(f"{error}; bounds doubled" if doubled else str(error))
        if isinstance(error, ClientOut):
            pending.was_out, pending.cohort = True, error.survivors
        if isinstance(error, SurvivorsTooClose):
            pending.cohort = keep_blocks(error.survivors, self._so_far, exchange.session.plan.threshold)
        elif doubled or pending.was_out:
            # In the clear a client refused by name; or a repeat after `ClientOut` lost a client, and without larger
            # bounds the clients that were out would be out of the next attempt too.
            if self._doublings[kind] == MAX_DOUBLINGS:  # clients accept no more
                raise RangeRefused(f"{error}, though it was doubled {MAX_DOUBLINGS} times") from error
            self._doublings[kind] += 1
        if len(pending.void) >= self._max_void:
            said = f"round {len(self.history)}: void {len(pending.void)} times, last because {pending.void[-1]}"
            if isinstance(error, RangeRefused):  # in the clear, where a client says so
                raise RangeRefused(f"{said}; declare larger bounds, or look for the client that diverges") from error
            if pending.was_out:
                said += "; a client sat out of an attempt: its own log says why, such as values beyond a bound"
            raise RoundVoid(said)

    def counted(self, summed: ExchangeResult, following: Tensors) -> None:
        """Learn from a training sum, as an adaptive defence does, and note which clients it counted.

        Args:
            summed: the sum.
            following: the broadcast that followed from it.
        """
        record = summed.record
        self._learned = self.defense.learn(record.released, summed.plan, len(record.survivors))
        self._counted.count(record.round, record.survivors, following, summed.announced)

    def _take_number(self) -> int:
        """Take an exchange's number and charge the budget; a run with a file writes both before the number is used.

        Raises:
            BudgetSpent: the privacy budget allows no further exchange.
        """
        if self._budget is not None:
            try:
                self._budget = self._budget.spend(1)
            except BudgetSpent as error:
                raise BudgetSpent(f"after {len(self.history)} rounds: {error}") from error
        self.sums += 1
        return self._next_number(write=self._budget is not None)

    def _next_number(self, *, write: bool = False) -> int:
        """Take the next number, of an exchange or of messages outside one.

        Args:
            write: whether the state is to be written before the number is used; a run with a file overrides this.
        """
        self._exchanges += 1
        return self._exchanges - 1

    def counters(self) -> dict[str, Any]:
        """Return the counters of the round loop, in JSON values."""
        return {
            "run": self.transcript.run,
            "exchanges": self._exchanges,
            "sums": self.sums,
            "blocks": [sorted(block) for block in self._so_far.blocks],
            "doublings": self._doublings,
            "learned": list(self._learned),
            "counted": {str(client): exchange for client, exchange in self._counted.exchanges.items()},
            "history": [entry.to_json() for entry in self.history],
        }

    def kept(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """Return what outlives an exchange, as JSON values and tensors: counters, and of an exchange N what followed.

        Clients need the broadcast (`followed/N/`), and those who check sums the announced one (`announced/N/`).
        """
        values: dict[str, Any] = {"loop": self.counters()}
        tensors: dict[str, Array] = {}
        for name, sent in (("followed", self._counted.followed), ("announced", self._counted.announced)):
            values[name] = sorted(sent)
            for exchange, what in sent.items():
                tensors |= nest(f"{name}/{exchange}", what)
        return values, tensors

    def continue_from(self, values: Mapping[str, Any], tensors: Tensors) -> None:
        """Take over what `kept` returned."""
        loop: dict[str, Any] = values["loop"]
        self._exchanges, self._doublings = loop["exchanges"], dict(loop["doublings"])
        sent: dict[str, dict[int, Tensors]] = {
            name: {number: unnest(f"{name}/{number}", tensors) for number in values[name]}
            for name in ("followed", "announced")
        }
        exchanges = {int(client): exchange for client, exchange in loop["counted"].items()}
        self._counted = CountedClients(self._facts.schema.needs_outcome, exchanges, **sent)
        self.history = [RoundHistory.from_json(entry) for entry in loop["history"]]
        self.sums, self._learned = loop["sums"], tuple(loop["learned"])
        # files of an earlier version hold the survivors of the last sum only
        blocks = tuple(frozenset(block) for block in loop.get("blocks", [loop.get("opened", [])]) if block)
        self._so_far = SumsSoFar(blocks, self._facts.rule.least_block)
        if self._budget is not None:  # every exchange counts, whether or not the run had a budget then
            self._budget = self._budget.spend(self.sums)

    def freeze(self) -> bytes:
        """Return the state of the sums, in the middle of an exchange too, secrets included. Inverse: `thaw`."""
        values, tensors = self.kept()
        values |= {
            "tried": [[round, kind, attempts] for (round, kind), attempts in self.tried.items()],
            "given_up": self.given_up,
            "log": [self.log.up, self.log.down],
        }
        tensors["prepared"] = from_bytes(self.prepared)
        if (pending := self.pending) is not None:
            values["pending"] = [pending.kind, pending.cohort, pending.void, pending.was_out, pending.began]
        if (exchange := self.exchange) is not None:
            values |= {"number": exchange.session.round, "header": exchange.content.header.to_json()}
            values["exchange"], kept = exchange.freeze()
            tensors |= nest("exchange", kept)
        return frozen(_PARTY, {}, values, tensors)

    def thaw(self, data: bytes) -> None:
        """Restore what `freeze` returned, in a run made anew whose clients need no outcome (`SumSchema.needs_outcome`).

        Raises:
            StorageError: these bytes are no state of a server, of another version, or lack a field.
        """
        values, tensors = thawed(data, _PARTY, {}, "give that of the server", older=(3,))
        with complete(_PARTY):
            self.continue_from({"followed": [], **values}, tensors)  # no sum of release 0.1 had an outcome
            self.given_up, self.prepared = values["given_up"], tensors["prepared"].tobytes()
            self.tried = {(round, kind): attempts for round, kind, attempts in values["tried"]}
            self.log.up, self.log.down = values["log"]
            self.pending = self.exchange = None
            if "pending" in values:
                kind, cohort, void, was_out, *began = values["pending"]  # of release 0.1 without the last
                self.pending = PendingSum(kind, tuple(cohort), void, was_out, *map(tuple, began))
            if "exchange" in values:
                exchange = self._open(values["number"], ExchangeHeader.from_json(values["header"]))
                exchange.thaw(values["exchange"], unnest("exchange", tensors))
