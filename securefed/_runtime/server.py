"""Run the round loop of a server, over clients that any transport reaches.

A round asks a cohort of clients for one secure sum and makes the algorithm's server step from it. Such a sum is an
exchange; the server repeats it if it was void. `Federation` is this server with its clients in the same process;
`flower.serve` runs it over Flower. The base class `RoundEngine` holds the state of the run and its rules, and sends
nothing. This file uses these fields of it:

    _server                   the algorithm's server state
    _counted                  for each client the last exchange whose sum counted it, which requests tell the client
    _exchanges                the number of the next exchange
    _reserved                 the checkpoint on disk allows this process all numbers below this one
    tried                     by (round, kind), the attempts at the last sum, those before a `RoundVoid` included
    _secret_cohorts           whether privacy requires that the cohort be drawn unpredictably
    _keep                     whether the transcript keeps messages
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from securefed._hyperparameters import check_integer
from securefed._messages import ClientId, Transcript
from securefed._runtime.client import COMMIT, REVEAL, ClientNode
from securefed._runtime.client_sampling import by_revealed, selecting, uniform
from securefed._runtime.exchange import Coordinator
from securefed._runtime.exchange_header import EVALUATE, TRAIN
from securefed._runtime.exchange_schedule import ExchangeSchedule
from securefed._runtime.history import RoundHistory
from securefed._runtime.open_exchange import ExchangeResult
from securefed._runtime.privacy_checks import check_evaluation
from securefed._runtime.round_engine import VOIDING, PendingSum, RoundEngine
from securefed._runtime.run_options import RunOptions
from securefed._runtime.terms import Terms
from securefed._shape_repr import ShapeRepr
from securefed._tensors import Tensors
from securefed._transports.base import Transport
from securefed.defenses._base import Plan
from securefed.errors import ConfigError, SecureFedError

Progress = Callable[[RoundHistory], None]
"""Function that is called with each completed round."""


@dataclass(frozen=True, repr=False)
class Result(ShapeRepr):
    """Result of a run.

    Attributes:
        output: the final broadcast: the model.
        personal: each client's personal result, for algorithms that have one.
        history: one entry a round.
        plan: the defence's plan of the last training round.
        transcript: what the server has; with `RunOptions(keep_transcript=False)` no messages, only the output.
        stopped: why the run stopped before the last round (the algorithm's reason, or the error), or `None`.
        uncommitted: clients that did not confirm the last outcome, so that their personal result may be a round old.
    """

    output: Tensors
    personal: Mapping[ClientId, Tensors]
    history: tuple[RoundHistory, ...]
    plan: Plan
    transcript: Transcript
    stopped: str | None
    uncommitted: tuple[ClientId, ...] = ()

    def __str__(self) -> str:
        """Describe the run in a few lines: rounds, time, bytes and outputs; the attributes hold the rest."""
        up, down = (sum(getattr(entry, way) for entry in self.history) for way in ("up", "down"))
        void = sum(len(entry.void) for entry in self.history)  # attempts that gave no sum and were repeated
        seconds = sum(entry.seconds for entry in self.history)
        stopped = f", stopped: {self.stopped}" if self.stopped else ""
        lines = [
            f"{len(self.history)} rounds in {seconds:.1f} s under {self.plan.defense}{stopped}",
            f"bytes received by the server {up:,}, sent {down:,}" + (f"; {void} void attempts" if void else ""),
            "output: " + ", ".join(f"{name} {np.shape(value)}" for name, value in self.output.items()),
        ]
        if self.personal:
            lines.append(f"personal results of {len(self.personal)} clients")
        return "\n".join(lines)


class Server(RoundEngine):
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
        super().__init__(terms, run, options, nodes or {})
        self._coordinator = Coordinator(transport, self.log, options.timeout)

    def run(self, rounds: int, *, evaluate_every: int = 0, progress: Progress | None = None) -> Result:
        """Run until `rounds` training rounds are complete, and write the checkpoint also where an error ends the run.

        Args:
            rounds: training rounds, counting those before a resume.
            evaluate_every: sum the clients' evaluation after every so many rounds (0: never).
            progress: called with each completed round.

        Raises:
            ConfigError: `evaluate_every` where evaluation is refused, before any round.
            RoundVoid: a round could not be completed in `max_void` attempts.
            RangeRefused: a client's values stay out of range in all attempts, and the defence hides nothing, so that it
                says so. Elsewhere it sits out, and the round ends with `RoundVoid`.
            BudgetSpent: the privacy budget allows no further exchange.

        After complete rounds the attribute `result` of each of these errors is the `Result` of those rounds, with the
        model. After any other exception, such as one of `progress`, `run(len(server.history))` returns it.
        """
        check_integer("rounds", rounds, 0)
        check_integer("evaluate_every", evaluate_every, 0, note="(0: never)")
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
                # Under Paillier, also with a threshold, this fills the pool of encryption randomness for the next
                # upload, which no checkpoint holds; masks cannot be computed between rounds.
                if self._options.prepare and stopped is None:
                    for node in self.nodes.values():
                        node.prepare()
                if self._checkpoint is not None and len(self._history) % self._checkpoint.every == 0:
                    self._save(self._checkpoint)
                if progress is not None:
                    progress(entry)
        except SecureFedError as error:
            if self._history:
                error.result = self._rounds_so_far(f"{type(error).__name__}: {error}")
            raise
        finally:
            if self._checkpoint is not None:
                # A resumed run skips one number, the next, which `_result` uses for COMMIT.
                self._reserved = self._exchanges + 1
                self._save(self._checkpoint)
        return self._result(stopped)

    def evaluate(self) -> dict[str, float]:
        """Sum the clients' evaluation of the current model through the same defence; `clients` counts them.

        Raises:
            ConfigError: the defence clips, or the algorithm adds noise of its own: sums of an evaluation would have
                none (`check_evaluation`).
        """
        check_evaluation(self.plan, self.algorithm)
        # simulated clients are told a schedule with an evaluation after each round; others keep to that of the terms
        self._agree(1 if self.nodes else self._terms.exchanges.evaluate_every)
        return self._evaluate()

    def _evaluate(self) -> dict[str, float]:
        """Sum one evaluation; return its values by name, and the number of clients in it."""
        summed, _ = self._sum(EVALUATE)
        record = summed.record
        self._record(summed)
        return {name: float(value) for name, value in record.released.items()} | {"clients": len(record.survivors)}

    def _agree(self, evaluate_every: int) -> None:
        """Tell simulated clients the schedule of exchanges; for others check that the terms allow it.

        A client counts the attempts at a sum and refuses more than its schedule allows. A caller that runs again after
        `RoundVoid` asks for the same sum anew: simulated clients are then allowed the earlier attempts on top.
        """
        if self.nodes:
            for node in self.nodes.values():
                most = self._options.max_void + max(self.tried.values(), default=0)
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

    def _round(self) -> RoundHistory:
        """Make one training round: sum the contributions and let the algorithm combine them."""
        start, up, down = time.perf_counter(), self.log.up, self.log.down
        summed, void = self._sum(TRAIN)
        self._record(summed)
        self.combine(summed)
        return RoundHistory(
            round=len(self._history),
            exchange=summed.record.round,  # the exchange's number, whatever its name
            survivors=summed.record.survivors,
            seconds=time.perf_counter() - start,
            up=self.log.up - up,
            down=self.log.down - down,
            void=void,
            refusals=dict(summed.refusals),
        )

    def _sum(self, kind: str) -> tuple[ExchangeResult, tuple[str, ...]]:
        """Sum one contribution of each client, repeating void exchanges."""
        pending = PendingSum(kind, self.choose_cohort(kind))
        while True:
            exchange = self.attempt(pending)
            try:
                summed = self._coordinator.exchange(exchange)
            except VOIDING as error:
                self.failed(pending, exchange, error)
                continue
            self.completed(exchange, summed)
            return summed, tuple(pending.void)

    def choose_cohort(self, kind: str) -> tuple[ClientId, ...]:
        """Choose the clients that a sum invites first; an algorithm may select them by scalars that they reveal."""
        chooser = selecting(self.algorithm)
        # the caller's schedule names the cohort itself, and one drawn in secret must not follow from revealed scalars
        if kind != TRAIN or chooser is None or self._options.schedule is not None or self._secret_cohorts:
            return super().choose_cohort(kind)
        everyone, size, round = range(self.public.clients), self.public.cohort, len(self._history)
        candidates = uniform(everyone, min(chooser.candidates, len(everyone)), self.seed, round)
        # clients compute the scalars from the current model
        return by_revealed(chooser, self._ask(REVEAL, candidates, self.algorithm.broadcast(self._server)), size, round)

    def _ask(self, stage: str, clients: Iterable[ClientId], broadcast: Tensors) -> dict[ClientId, Tensors]:
        """Send clients the broadcast outside any exchange, and return their replies.

        The messages have a number of their own, since clients answer no number twice.
        """
        bodies = {client: self._counted.body_outside(client, broadcast) for client in clients}
        return self._coordinator.ask(self.transcript.run, self._next_number(), stage, bodies)

    def _record(self, summed: ExchangeResult) -> None:
        """Keep the simulated clients' encoded contributions, for collusion views and scoring."""
        if not self._keep:
            return
        for client in summed.record.survivors:
            if client in self.nodes and (encoded := self.nodes[client].state.encoded) is not None:
                self.transcript.contributions[summed.record.round, client] = encoded

    def _result(self, stopped: str | None) -> Result:
        """Tell all clients how the last sum that counted them ended, so that they commit, and collect the result."""
        counted = sorted(self._counted.exchanges)
        confirmed = self._ask(COMMIT, counted, self.algorithm.broadcast(self._server))
        return self._rounds_so_far(stopped, tuple(client for client in counted if client not in confirmed))

    def _rounds_so_far(self, stopped: str | None, uncommitted: tuple[ClientId, ...] | None = None) -> Result:
        """Collect the result of the complete rounds, without a message.

        Args:
            stopped: why the run stopped early; `None` if it did not.
            uncommitted: clients that were not told the last outcome; by default all that a sum counted.
        """
        if uncommitted is None:
            uncommitted = tuple(sorted(self._counted.exchanges))
        broadcast = self.algorithm.broadcast(self._server)
        self.transcript.output = broadcast
        personal = {client: value for client, node in self.nodes.items() if (value := node.personal()) is not None}
        return Result(broadcast, personal, tuple(self._history), self.plan, self.transcript, stopped, uncommitted)
