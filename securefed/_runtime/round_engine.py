"""The state of a run at the server: open one sum after the other, repeat void ones, and combine what they give.

Each attempt at a sum is an exchange with a number of its own. It is void if too few clients reply, or if a client sat
out (its values were out of the declared range, so that the sum opens to noise); then the sum is attempted again.
A caller drives one sum so:

    pending = PendingSum(TRAIN, engine.choose_cohort(TRAIN))
    exchange = engine.attempt(pending)                # carry its messages until it gives a sum or an error of `VOIDING`
    engine.failed(pending, exchange, error)           # void: then `attempt` again
    engine.completed(exchange, summed)                # a sum: then `combine`
    engine.combine(summed)

Nothing here sends a message: `OpenExchange` takes and gives bytes, and `Server` or `SumServer` carries them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from securefed._messages import ROTATED, Aggregate, ClientId, Transcript
from securefed._runtime.checkpoint import Checkpoint
from securefed._runtime.client import ClientNode
from securefed._runtime.client_sampling import (
    keep_blocks,
    revealed_scalars,
    scheduled,
    uniform,
    unpredictable,
    with_disclosures,
)
from securefed._runtime.counted_clients import CountedClients
from securefed._runtime.exchange_header import EVALUATE, MAX_DOUBLINGS, TRAIN, ExchangeHeader
from securefed._runtime.history import RoundHistory
from securefed._runtime.message_log import MessageLog
from securefed._runtime.open_exchange import ExchangeContent, ExchangeResult, OpenExchange, open_exchange
from securefed._runtime.privacy_checks import check_privacy
from securefed._runtime.run_options import RunOptions
from securefed._runtime.terms import Terms, new_run
from securefed._tensors import Tensors
from securefed.defenses._survivor_blocks import SumsSoFar
from securefed.errors import (
    BudgetSpent,
    ClientOut,
    ConfigError,
    DivergenceError,
    MessageRefused,
    RangeRefused,
    RoundVoid,
    SurvivorsTooClose,
    TooFewSurvivors,
)

_START_STREAM = 2**32 - 2
"""Separates the random stream of the first state from clients' and cohorts' streams of the same seed."""
_RESERVED = 64
"""Exchange numbers that a checkpoint reserves at a time, with one write; a resumed run skips what is left of them.

A number must never be used twice, also after a crash, and numbers cost nothing: half as many would take twice as many
writes."""

VOIDING = (ClientOut, SurvivorsTooClose, RangeRefused, TooFewSurvivors, MessageRefused)
"""Errors that make one attempt at a sum void; the sum is then attempted again."""


@dataclass
class PendingSum:
    """A sum that is being made: it may take several attempts.

    Attributes:
        kind: what is summed: `train` or `evaluate`.
        cohort: clients that the next attempt invites.
        void: why earlier attempts were void.
        was_out: whether a client sat out of one of them.
    """

    kind: str
    cohort: tuple[ClientId, ...]
    void: list[str] = field(default_factory=list)
    was_out: bool = False


class RoundEngine:
    """The state of a run at the server, without a transport.

    Args:
        terms: what all parties agreed on.
        run: the run's identifier; a fresh one by default.
        options: cohorts, checkpoint, transcript, retries and budget, with all defaults filled in.
        nodes: clients simulated in this process; their states go into the checkpoint.

    Raises:
        ConfigError: parameters that do not fit together.
        PlanError: the defence cannot keep its promise for these sizes.
    """

    def __init__(
        self, terms: Terms, run: str | None, options: RunOptions, nodes: Mapping[ClientId, ClientNode]
    ) -> None:
        self.algorithm, self.defense, self.public, self.seed = terms.algorithm, terms.defense, terms.public, terms.seed
        self._terms, self._options = terms, options
        self.nodes = dict(nodes)
        layouts = terms.schema.layouts
        self.plan = with_disclosures(self.defense.plan(layouts[TRAIN], self.public.cohort), self.algorithm, self.public)
        self._secret_cohorts = check_privacy(
            self.defense, self.plan, options.budget, self.public, options.schedule, self.algorithm
        )
        self._budget = options.budget
        self.transcript = Transcript(run or new_run(), self._meta())
        self._keep = bool(options.keep_transcript)
        self.log = MessageLog(self.transcript, self._keep)
        self._server = self.algorithm.start(self.public, np.random.default_rng([self.seed, _START_STREAM]))
        self._history: list[RoundHistory] = []
        self._so_far = SumsSoFar(least=terms.rule.least_block)
        self._prepared: Any = None  # keys and masks that the last exchange made for the next, where it makes any
        self._exchanges = 0  # the next exchange's number
        self._reserved = 0  # the checkpoint on disk reserves the numbers below this one for this process
        self._sums = 0  # exchanges that the budget counts
        self.tried: dict[tuple[int, str], int] = {}  # attempts at the last sum: clients answer none of them twice
        self.given_up = 0
        """Rounds of a `SumServer` that were given up: clients answer no further attempt at them."""
        self._doublings = {TRAIN: 0, EVALUATE: 0}  # of the declared bounds, since a client was out of range
        self._learned = self.defense.start(layouts[TRAIN])  # public numbers of an adaptive defence, such as its clip
        self._counted = CountedClients(self.algorithm.needs_outcome)
        self._checkpoint = self._open_checkpoint(options)
        self.resumes: str | None = None
        """The run that this one resumes; `None` for a new run."""
        if self._checkpoint is not None and self._checkpoint.path.exists():
            self._resume(self._checkpoint)

    def _open_checkpoint(self, options: RunOptions) -> Checkpoint | None:
        if options.checkpoint is None:
            return None
        if options.seal is None and self.plan.verified and self.nodes:
            raise ConfigError(
                "verify=True has clients keep a key between rounds, which a checkpoint must not hold in clear: give a "
                "seal (Seal.from_file), or run without a checkpoint"
            )
        if options.seal is not None and not Path(options.checkpoint).exists():
            options.seal.check_never_written("checkpoint", Path(options.checkpoint))
        assert options.checkpoint_every is not None
        return Checkpoint(Path(options.checkpoint), options.checkpoint_every, options.seal)

    @property
    def history(self) -> list[RoundHistory]:
        """One entry for each completed round."""
        return self._history

    @property
    def position(self) -> int:
        """Number of the next round as requests state it: rounds that were given up count."""
        return len(self._history) + self.given_up

    @property
    def sums(self) -> int:
        """Number of exchanges so far that the privacy budget counts, void ones included."""
        return self._sums

    @property
    def prepared(self) -> bytes:
        """Keys and masks, secret, that the last exchange prepared for the next one; empty where there are none."""
        if self._prepared is None or isinstance(self._prepared, bytes):
            return self._prepared or b""
        return bytes(self._prepared.to_bytes())

    @prepared.setter
    def prepared(self, frozen: bytes) -> None:
        self._prepared = frozen or None

    @property
    def announced(self) -> dict[int, Tensors]:
        """By exchange, the sum announced to the clients that check it."""
        return self._counted.announced

    @property
    def state(self) -> Any:
        """The algorithm's server state."""
        return self._server

    @state.setter
    def state(self, value: Any) -> None:
        self._server = value

    def attempt(self, pending: PendingSum) -> OpenExchange:
        """Open the next attempt at a sum; every attempt takes its own exchange number.

        Raises:
            BudgetSpent: the privacy budget allows no further exchange.
        """
        place = self.position, pending.kind
        number, attempt = self._take_number(), self.tried.get(place, 0)
        self.tried = {place: attempt + 1}
        doublings = self._doublings[pending.kind]
        header = ExchangeHeader(pending.cohort, pending.kind, doublings, self._learned, self.position, attempt)
        return self.reopen(number, header)

    def reopen(self, number: int, header: ExchangeHeader) -> OpenExchange:
        """Open an exchange with this number and header from the current state."""
        broadcast = self.next_broadcast()
        prepared, self._prepared = self._prepared, None  # used once, whatever becomes of this exchange
        content = ExchangeContent(header, broadcast, self._counted.listed(header.cohort), self._counted.body)
        return open_exchange(
            self.defense, self._terms.schema.layouts, self.public.cohort, number, content, self.log, self._so_far,
            prepared,
        )  # fmt: skip

    def next_broadcast(self) -> Tensors:
        """Return what the next exchange tells its clients; the deviating server of an audit overrides this method."""
        return self.algorithm.broadcast(self._server)

    def completed(self, exchange: OpenExchange, summed: ExchangeResult) -> None:
        """Note that an attempt gave a sum."""
        self._prepared = exchange.prepared
        self._so_far = self._so_far.with_sum(summed.record.survivors)

    def failed(self, pending: PendingSum, exchange: OpenExchange, error: Exception) -> None:
        """Note that an attempt was void, and decide whom the next one invites.

        After `ClientOut` the sum was opened, and is noise: the bounds are doubled, and the same clients are invited
        again. (Two opened sums over different clients could be subtracted, which shows those in one of them only.)
        After `SurvivorsTooClose` nothing was opened, and some clients are left out. Otherwise the same
        cohort is tried again.

        Args:
            pending: the sum; it is changed.
            exchange: the attempt.
            error: one of `VOIDING`.

        Raises:
            RoundVoid: it was the last attempt.
            RangeRefused: it was the last attempt, and a client refused by name because of its range; or the range was
                doubled as often as it may be.
        """
        self._prepared = exchange.prepared
        self._so_far = self._so_far.with_sum(exchange.named)
        kind, doubled = pending.kind, isinstance(error, ClientOut | RangeRefused)
        pending.void.append(f"{error}; bounds doubled" if doubled else str(error))
        if isinstance(error, ClientOut):
            pending.was_out = True
            self._double(kind, error)
            pending.cohort = error.survivors
        elif isinstance(error, SurvivorsTooClose):
            pending.cohort = keep_blocks(error.survivors, self._so_far, exchange.session.plan.threshold)
        elif doubled or pending.was_out:
            # In the clear a client refused by name; or a repeat after `ClientOut` lost a client, and without larger
            # bounds the clients that were out would be out of the next attempt too.
            self._double(kind, error)
        if len(pending.void) >= self._options.max_void:
            said = f"round {len(self._history)}: void {len(pending.void)} times, last because {pending.void[-1]}"
            if isinstance(error, RangeRefused):  # in the clear, where a client says so
                raise RangeRefused(f"{said}; declare larger bounds, or look for the client that diverges") from error
            if pending.was_out:
                said += "; a client sat out of an attempt: its own log says why, such as values beyond a bound"
            raise RoundVoid(said)

    def combine(self, summed: ExchangeResult) -> None:
        """Make the algorithm's server step from a training sum.

        Raises:
            DivergenceError: the new model is not finite; the state before stays.
        """
        record = summed.record
        with np.errstate(all="ignore"):
            # `plan.added` names tensors that the defence adds to each contribution, for itself
            released = {name: value for name, value in record.released.items() if name not in summed.plan.added}
            server = self.algorithm.combine(self._server, Aggregate(released, record.survivors))
            if server is None:
                raise ConfigError(f"{type(self.algorithm).__name__}.combine must return the new server state; got None")
            broadcast = self.algorithm.broadcast(server)
        self._guard(broadcast)
        self._server, self.plan = server, with_disclosures(summed.plan, self.algorithm, self.public)
        self._learned = self.defense.learn(record.released, summed.plan, len(record.survivors))
        self._counted.count(record.round, record.survivors, broadcast, summed.announced)

    def _guard(self, broadcast: Tensors) -> None:
        for name, value in broadcast.items():
            if not np.isfinite(value).all():
                raise DivergenceError(
                    f"round {len(self._history)}: {name!r} is not finite any more; lower the step size, "
                    "or start from data of a smaller range"
                )

    def _double(self, kind: str, error: Exception) -> None:
        self._doublings[kind] += 1
        if self._doublings[kind] > MAX_DOUBLINGS:
            raise RangeRefused(f"{error}, though it was doubled {MAX_DOUBLINGS} times") from error

    def _take_number(self) -> int:
        """Take an exchange's number and charge the budget; both are on disk before the number is used.

        Raises:
            BudgetSpent: the privacy budget allows no further exchange.
        """
        if self._budget is not None:
            try:
                self._budget = self._budget.spend(1)
            except BudgetSpent as error:
                raise BudgetSpent(f"after {len(self._history)} rounds: {error}") from error
        self._sums += 1
        return self._next_number(write=self._budget is not None)

    def _next_number(self, *, write: bool = False) -> int:
        """Take the next number, of an exchange or of messages outside one; it is on disk before it is used.

        Args:
            write: whether to write the checkpoint even where it reserves the number already.
        """
        number = self._exchanges
        self._exchanges += 1
        if self._checkpoint is not None and (write or number >= self._reserved):
            self._reserved = number + _RESERVED
            self._save(self._checkpoint)
        return number

    def choose_cohort(self, kind: str) -> tuple[ClientId, ...]:
        """Choose the clients that a sum invites first."""
        everyone, size, round = range(self.public.clients), self.public.cohort, len(self._history)
        if self._options.schedule is not None:
            return scheduled(self._options.schedule(round), everyone, size)
        if self._secret_cohorts:
            return unpredictable(everyone, size)
        return uniform(everyone, size, self.seed, round)

    def _meta(self) -> dict[str, Any]:
        """Public facts of the run, in JSON values."""
        privacy = self.plan.privacy  # `noise_survivors`: above 0 where clients add the noise, to rotated vectors
        return {
            "algorithm": repr(self.algorithm),
            "defense": self.defense.name,
            "clients": self.public.clients,
            "cohort": self.public.cohort,
            "features": self.public.features,
            "feature_bound": self.public.feature_bound,
            "settings": repr(self.defense),
            "rows": list(self.public.rows),
            "reveals": list(revealed_scalars(self.algorithm)),
            ROTATED: [tensor.name for tensor in self.plan.tensors] if privacy and privacy.noise_survivors else [],
            "seed": self.seed,
        }

    def _save(self, checkpoint: Checkpoint) -> None:
        meta, loop = self._meta(), self.counters()
        checkpoint.save(meta, loop, self._server, self._counted.followed, self._counted.announced, self.nodes)

    def counters(self) -> dict[str, Any]:
        """Return the counters of the round loop, in JSON values."""
        return {
            "run": self.transcript.run,
            "exchanges": max(self._exchanges, self._reserved),  # a resumed run uses no number that this one may use
            "sums": self._sums,
            "blocks": [sorted(block) for block in self._so_far.blocks],
            "doublings": self._doublings,
            "learned": list(self._learned),
            "counted": {str(client): exchange for client, exchange in self._counted.exchanges.items()},
            "history": [entry.to_json() for entry in self._history],
        }

    def _resume(self, checkpoint: Checkpoint) -> None:
        meta = self._meta()
        loop, self._server, followed, announced = checkpoint.load(meta, self._server, self.nodes)
        self.resumes = loop["run"]
        # the last exchange that a client answered; a crash may leave the clients' files newer than the checkpoint
        newest = max((node.state.last_round for node in self.nodes.values()), default=-1)
        self.continue_from(loop, followed, announced)
        self._exchanges = max(self._exchanges, newest + 1)
        self.transcript.missing = len(self._history)

    def continue_from(
        self, loop: Mapping[str, Any], followed: dict[int, Tensors], announced: dict[int, Tensors]
    ) -> None:
        """Take over the counters that `counters` returned.

        Args:
            loop: the counters.
            followed: by exchange, the broadcast that followed from it.
            announced: by exchange, the sum announced to the clients that check it.
        """
        self._exchanges, self._doublings = loop["exchanges"], dict(loop["doublings"])
        exchanges = {int(client): exchange for client, exchange in loop["counted"].items()}
        self._counted = CountedClients(self.algorithm.needs_outcome, exchanges, followed, announced)
        self._history = [RoundHistory.from_json(entry) for entry in loop["history"]]
        self._sums, self._learned = loop["sums"], tuple(loop["learned"])
        # files of an earlier version hold the survivors of the last sum only
        blocks = tuple(frozenset(block) for block in loop.get("blocks", [loop.get("opened", [])]) if block)
        self._so_far = SumsSoFar(blocks, self._terms.rule.least_block)
        if self._budget is not None:  # every exchange counts, whether or not the run had a budget then
            self._budget = self._budget.spend(self._sums)
