"""Run the round loop of a server, over clients that any transport reaches."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from securefed._messages import ROTATED, Aggregate, ClientId, Transcript
from securefed._runtime.checkpoint import Checkpoint
from securefed._runtime.client import COMMIT, REVEAL, ClientNode
from securefed._runtime.client_sampling import (
    by_revealed,
    drop_surplus,
    revealed_scalars,
    scheduled,
    selecting,
    uniform,
    unpredictable,
    with_disclosures,
)
from securefed._runtime.counted_clients import CountedClients
from securefed._runtime.exchange import Coordinator, ExchangeResult
from securefed._runtime.exchange_header import EVALUATE, MAX_DOUBLINGS, TRAIN, ExchangeHeader
from securefed._runtime.exchange_schedule import ExchangeSchedule
from securefed._runtime.history import RoundHistory
from securefed._runtime.privacy_checks import check_evaluation, check_privacy
from securefed._runtime.run_options import RunOptions
from securefed._runtime.terms import Terms, new_run
from securefed._tensors import Tensors
from securefed._transports.base import Transport
from securefed.defenses._base import Plan
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

Progress = Callable[[RoundHistory], None]
_START_STREAM = 2**32 - 2
_RESERVED = 64
"""Exchange numbers that a checkpoint reserves at a time, with one write; a resumed run skips what is left of them."""


@dataclass(frozen=True)
class Result:
    """Result of a run.

    Attributes:
        output: the final broadcast: the model.
        personal: each client's personal result, for algorithms that have one.
        history: one entry a round.
        plan: the defence's plan of the last training round.
        transcript: what the server has (with `keep=False`: no messages, only the output).
        stopped: why the algorithm stopped before the last round, or `None`.
        uncommitted: clients that did not confirm the last outcome, so that their personal result may be a round old.
    """

    output: Tensors
    personal: Mapping[ClientId, Tensors]
    history: tuple[RoundHistory, ...]
    plan: Plan
    transcript: Transcript
    stopped: str | None
    uncommitted: tuple[ClientId, ...] = ()


class Server:
    """Runs an algorithm over clients that a transport reaches.

    Args:
        terms: what all parties agreed on.
        transport: reaches the clients 0 to N - 1, and a helper where the defence has one.
        run: the run's identifier; a fresh one by default.
        options: cohorts, checkpoint, transcript, retries and budget.
        nodes: clients simulated in this process. Their states go into the checkpoint; their personal results and
            encoded contributions go into the result. Clients elsewhere keep these to themselves.

    Raises:
        ConfigError: parameters that do not fit together, before anything runs.
        PlanError: the defence cannot keep its promise for these sizes, before anything runs.
    """

    def __init__(
        self,
        terms: Terms,
        transport: Transport,
        *,
        run: str | None = None,
        options: RunOptions | None = None,
        nodes: Mapping[ClientId, ClientNode] | None = None,
    ) -> None:
        options = (options or RunOptions()).with_defaults(checkpoint_every=10, keep_transcript=True)
        self.algorithm, self.defense, self.public, self.seed = terms.algorithm, terms.defense, terms.public, terms.seed
        self._terms, self._options = terms, options
        self.nodes = dict(nodes or {})
        layouts = terms.schema.layouts
        self.plan = with_disclosures(self.defense.plan(layouts[TRAIN], self.public.cohort), self.algorithm, self.public)
        self._secret_cohorts = check_privacy(
            self.defense, self.plan, options.budget, self.public, options.schedule, self.algorithm
        )
        self._budget = options.budget
        self.transcript = Transcript(run or new_run(), self._meta())
        self._keep = bool(options.keep_transcript)
        self._coordinator = Coordinator(
            transport, self.defense, layouts, self.public.cohort, self.transcript,
            keep=self._keep, timeout=options.timeout,
        )  # fmt: skip
        self._server = self.algorithm.start(self.public, np.random.default_rng([self.seed, _START_STREAM]))
        self._history: list[RoundHistory] = []
        self._opened: tuple[ClientId, ...] = ()  # survivors of the last sum that was opened
        self._exchanges = self._reserved = self._sums = 0
        self._tried: dict[tuple[int, str], int] = {}  # attempts at the last sum: clients answer none of them twice
        self._doublings = {TRAIN: 0, EVALUATE: 0}
        self._learned = self.defense.start(layouts[TRAIN])
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
        assert options.checkpoint_every is not None
        return Checkpoint(Path(options.checkpoint), options.checkpoint_every, options.seal)

    def run(self, rounds: int, *, evaluate_every: int = 0, progress: Progress | None = None) -> Result:
        """Run until `rounds` training rounds are complete, counting those of a resumed run.

        Args:
            rounds: training rounds, counting those before a resume.
            evaluate_every: sum the clients' evaluation after every so many rounds (0: never).
            progress: called with each completed round.

        Raises:
            ConfigError: `evaluate_every` where evaluation is refused, before any round.
            RoundVoid: a round could not be completed in `max_void` attempts; the checkpoint holds all before it.
            RangeRefused: a client's values stay out of range however often it is doubled.
            BudgetSpent: the privacy budget allows no further exchange; likewise.
        """
        if rounds < 0 or evaluate_every < 0:
            raise ConfigError(f"rounds and evaluate_every must be at least 0, not {rounds} and {evaluate_every}")
        if evaluate_every:
            check_evaluation(self.plan, self.algorithm)
        self._agree(evaluate_every)
        stopped = self.algorithm.finished(self._server)
        try:
            while len(self._history) < rounds and stopped is None:
                entry = self._round()
                self._history.append(entry)  # before the evaluation: should that fail, the round is complete
                if evaluate_every and len(self._history) % evaluate_every == 0:
                    entry = self._history[-1] = replace(entry, metrics=self._evaluate())
                stopped = self.algorithm.finished(self._server)
                if self._options.prepare and stopped is None:
                    for node in self.nodes.values():
                        node.prepare()
                if self._checkpoint is not None and len(self._history) % self._checkpoint.every == 0:
                    self._save(self._checkpoint)
                if progress is not None:
                    progress(entry)
        finally:
            if self._checkpoint is not None:
                self._reserved = 0
                self._save(self._checkpoint)
        return self._result(stopped)

    def evaluate(self) -> dict[str, float]:
        """Sum the clients' evaluation of the current model through the same defence; `clients` counts them.

        Raises:
            ConfigError: under a clip or a record-level private algorithm (`privacy.check_evaluation`).
        """
        check_evaluation(self.plan, self.algorithm)
        self._agree(int(bool(self.nodes)) or self._terms.exchanges.evaluate_every)
        return self._evaluate()

    def _evaluate(self) -> dict[str, float]:
        summed, _ = self._sum(EVALUATE)
        record = summed.record
        self._record(summed)
        return {name: float(value) for name, value in record.released.items()} | {"clients": len(record.survivors)}

    def _round(self) -> RoundHistory:
        start, up, down = time.perf_counter(), self._coordinator.up, self._coordinator.down
        summed, void = self._sum(TRAIN)
        record = summed.record
        self._record(summed)
        with np.errstate(all="ignore"):
            released = {name: value for name, value in record.released.items() if name not in summed.plan.added}
            server = self.algorithm.combine(self._server, Aggregate(released, record.survivors))
            broadcast = self.algorithm.broadcast(server)
        self._guard(broadcast)
        self._server, self.plan = server, with_disclosures(summed.plan, self.algorithm, self.public)
        self._learned = self.defense.learn(record.released, summed.plan, len(record.survivors))
        self._counted.count(record.round, record.survivors, broadcast, summed.announced)
        return RoundHistory(
            round=len(self._history),
            exchange=record.round,
            survivors=record.survivors,
            seconds=time.perf_counter() - start,
            up=self._coordinator.up - up,
            down=self._coordinator.down - down,
            void=void,
            refusals=dict(summed.refusals),
        )

    def _guard(self, broadcast: Tensors) -> None:
        for name, value in broadcast.items():
            if not np.isfinite(value).all():
                raise DivergenceError(
                    f"round {len(self._history)}: {name!r} is not finite any more; lower the step size, "
                    "or start from data of a smaller range"
                )

    def _agree(self, evaluate_every: int) -> None:
        """Tell simulated clients the schedule of exchanges; for others check that the terms allow it."""
        if self.nodes:
            for node in self.nodes.values():
                most = self._options.max_void + max(self._tried.values(), default=0)  # asked anew, after all those
                node.exchanges = ExchangeSchedule(None, evaluate_every, most)
        elif self._options.max_void > self._terms.exchanges.max_void:
            raise ConfigError(
                f"max_void={self._options.max_void}, and the terms that the clients agreed to allow "
                f"{self._terms.exchanges.max_void} attempts at one sum; give it to Terms.of(...) at all parties"
            )
        elif evaluate_every != self._terms.exchanges.evaluate_every:
            raise ConfigError(
                f"evaluate_every={evaluate_every}, and the terms that the clients agreed to say "
                f"{self._terms.exchanges.evaluate_every}; give it to Terms.of(...) at all parties"
            )

    def _sum(self, kind: str) -> tuple[ExchangeResult, tuple[str, ...]]:
        """Sum one contribution of each client, repeating void exchanges; every attempt takes its own number."""
        was_out = False
        void: list[str] = []
        broadcast = self.algorithm.broadcast(self._server)
        cohort = self._cohort(kind)
        place = len(self._history), kind
        while len(void) < self._options.max_void:
            number, attempt = self._take_number(), self._tried.get(place, 0)
            self._tried = {place: attempt + 1}
            header = ExchangeHeader(cohort, kind, self._doublings[kind], self._learned, len(self._history), attempt)
            try:
                summed = self._coordinator.exchange(
                    number, header, broadcast, self._counted.listed(cohort), self._opened, self._counted.body
                )
                self._opened = summed.record.survivors
                return summed, tuple(void)
            except ClientOut as error:
                was_out = True
                void.append(f"{error}; bounds doubled")
                self._double(kind, error)
                cohort = self._opened = error.survivors  # other survivors' sum and this one could be subtracted
            except SurvivorsTooClose as error:
                void.append(str(error))
                cohort = drop_surplus(error.survivors, error.surplus, self._opened)
            except RangeRefused as error:
                void.append(f"{error}; bounds doubled")
                self._double(kind, error)
            except (TooFewSurvivors, MessageRefused) as error:
                void.append(str(error))
                if was_out:  # a repeat that lost a client: those that were out are not asked in vain again
                    self._double(kind, error)
        raise RoundVoid(f"round {len(self._history)}: void {len(void)} times, last because {void[-1]}")

    def _double(self, kind: str, error: Exception) -> None:
        self._doublings[kind] += 1
        if self._doublings[kind] > MAX_DOUBLINGS:
            raise RangeRefused(f"{error}, though it was doubled {MAX_DOUBLINGS} times") from error

    def _take_number(self) -> int:
        """Take the next exchange's number and charge the budget; both are on disk before the number is used.

        Raises:
            BudgetSpent: the privacy budget allows no further exchange.
        """
        if self._budget is not None:
            try:
                self._budget = self._budget.spend(1)
            except BudgetSpent as error:
                raise BudgetSpent(f"after {len(self._history)} rounds: {error}") from error
        number = self._exchanges
        self._exchanges += 1
        self._sums += 1
        if self._checkpoint is not None and (self._budget is not None or number >= self._reserved):
            self._reserved = number + _RESERVED
            self._save(self._checkpoint)
        return number

    def _cohort(self, kind: str) -> tuple[ClientId, ...]:
        everyone, size, round = range(self.public.clients), self.public.cohort, len(self._history)
        if self._options.schedule is not None:
            return scheduled(self._options.schedule(round), everyone, size)
        if self._secret_cohorts:
            return unpredictable(everyone, size)
        chooser = selecting(self.algorithm)
        if kind == TRAIN and chooser is not None:
            candidates = uniform(everyone, min(chooser.candidates, len(everyone)), self.seed, round)
            number, self._exchanges = self._exchanges, self._exchanges + 1
            broadcast = self.algorithm.broadcast(self._server)
            bodies = {client: self._counted.body_outside(client, broadcast) for client in candidates}
            answers = self._coordinator.ask(number, REVEAL, bodies)
            return by_revealed(chooser, answers, size, round)
        return uniform(everyone, size, self.seed, round)

    def _record(self, summed: ExchangeResult) -> None:
        """Keep the simulated clients' encoded contributions, for collusion views and scoring."""
        if not self._keep:
            return
        for client in summed.record.survivors:
            if client in self.nodes and (encoded := self.nodes[client].state.encoded) is not None:
                self.transcript.contributions[summed.record.round, client] = encoded

    def _result(self, stopped: str | None) -> Result:
        broadcast = self.algorithm.broadcast(self._server)
        bodies = {client: self._counted.body_outside(client, broadcast) for client in sorted(self._counted.exchanges)}
        number, self._exchanges = self._exchanges, self._exchanges + 1
        confirmed = self._coordinator.ask(number, COMMIT, bodies)
        uncommitted = tuple(client for client in bodies if client not in confirmed)
        self.transcript.output = broadcast
        personal = {client: value for client, node in self.nodes.items() if (value := node.personal()) is not None}
        return Result(broadcast, personal, tuple(self._history), self.plan, self.transcript, stopped, uncommitted)

    def _meta(self) -> dict[str, Any]:
        """Public facts of the run, in JSON values."""
        privacy = self.plan.privacy
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
        loop = {
            "run": self.transcript.run,
            "exchanges": max(self._exchanges, self._reserved),
            "sums": self._sums,
            "opened": list(self._opened),
            "doublings": self._doublings,
            "learned": list(self._learned),
            "counted": {str(client): exchange for client, exchange in self._counted.exchanges.items()},
            "history": [entry.to_json() for entry in self._history],
        }
        checkpoint.save(self._meta(), loop, self._server, self._counted.followed, self._counted.announced, self.nodes)

    def _resume(self, checkpoint: Checkpoint) -> None:
        meta = self._meta()
        loop, self._server, followed, announced = checkpoint.load(meta, self._server, self.nodes)
        self.resumes = loop["run"]
        newest = max((node.state.last_round for node in self.nodes.values()), default=-1)
        self._exchanges, self._doublings = max(loop["exchanges"], newest + 1), dict(loop["doublings"])
        exchanges = {int(client): exchange for client, exchange in loop["counted"].items()}
        self._counted = CountedClients(self.algorithm.needs_outcome, exchanges, followed, announced)
        self._history = [RoundHistory.from_json(entry) for entry in loop["history"]]
        self.transcript.missing = len(self._history)
        self._sums, self._learned = loop["sums"], tuple(loop["learned"])
        self._opened = tuple(loop["opened"])
        if self._budget is not None:  # every exchange counts, whether or not the run had a budget then
            self._budget = self._budget.spend(self._sums)
