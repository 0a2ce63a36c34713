"""Run a federated algorithm over clients that any transport reaches: a loop over sums.

A round asks a cohort of clients for one secure sum and makes the algorithm's server step from it. Such a sum is an
exchange; the server repeats it if it was void. `Federation` is this server with its clients in the same process;
`flower.serve` runs it over Flower. `SumRun` makes the sums; the broadcast is what contributions are computed from, and
what followed from a sum is the next one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np

from securefed._hyperparameters import check_integer
from securefed._messages import SERVER, Aggregate, ClientId, Message, PartyId
from securefed._persistence.frozen import check_owner, complete, frozen, thawed
from securefed._persistence.packing import nest, pack, restore, unnest
from securefed._persistence.state_file import StateFile
from securefed._runtime.client import COMMIT, REVEAL, ClientNode
from securefed._runtime.cohorts import by_revealed, disclosures, revealed_scalars, scheduled, selecting, uniform
from securefed._runtime.exchange_header import BEFORE_ALL, EVALUATE, TRAIN, ExchangeSchedule
from securefed._runtime.history import Result, RoundHistory
from securefed._runtime.open_exchange import ExchangeResult
from securefed._runtime.privacy_checks import check_evaluation
from securefed._runtime.run_options import RunOptions
from securefed._runtime.sum_run import SumRun
from securefed._runtime.terms import Terms
from securefed._tensors import Tensors
from securefed._transports import Transport, arrivals
from securefed.errors import ConfigError, DivergenceError, MessageRefused, SecureFedError

Progress = Callable[[RoundHistory], None]
"""Function that is called with each completed round."""
_START_STREAM = 2**32 - 2
"""Separates the random stream of the first state from clients' and cohorts' streams of the same seed."""
_RESERVED = 64
"""Exchange numbers that a checkpoint reserves at a time, with one write; a resumed run skips what is left of them.

A number must never be used twice, also after a crash; half as many would take twice as many writes."""
_PARTY: Final = "a run"


class Server(SumRun):
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
        self.algorithm, self.public, self.seed = terms.algorithm, terms.public, terms.seed
        self._terms, self._options, self.nodes = terms, options, dict(nodes or {})
        self._disclosed, self._chooser = disclosures(self.algorithm, self.public), selecting(self.algorithm)
        self.plan = terms.training.assume(*self._disclosed)
        about = {
            "algorithm": repr(self.algorithm),
            "features": self.public.features,
            "feature_bound": self.public.feature_bound,
            "rows": list(self.public.rows),
            "reveals": list(revealed_scalars(self.algorithm)),
            "seed": self.seed,
        }
        super().__init__(
            terms, run, about, max_void=options.max_void, budget=options.budget, keep=bool(options.keep_transcript),
            chosen=options.schedule is not None or self._chooser is not None,
        )  # fmt: skip
        self._transport = transport
        self.state: Any = self.algorithm.start(self.public, np.random.default_rng([self.seed, _START_STREAM]))
        """The algorithm's server state."""
        self._reserved = 0  # the checkpoint on disk reserves the numbers below this one for this process
        self._file: StateFile | None = None
        self.resumes: str | None = None
        """The run that this one resumes; `None` for a new run."""
        if options.checkpoint is not None:
            if options.seal is None and self.plan.verified and self.nodes:
                raise ConfigError(
                    "verify=True has clients keep a key between rounds, which a checkpoint must not hold in clear: "
                    "give a seal (Seal.from_file), or run without a checkpoint"
                )
            self._file = StateFile(options.checkpoint, "checkpoint", options.seal)
            self._file.restore(self.thaw)

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
        stopped = self.algorithm.finished(self.state)
        try:
            while len(self.history) < rounds and stopped is None:
                entry = self._round()
                self.history.append(entry)  # before the evaluation: should that fail, the round is complete
                if evaluate_every and len(self.history) % evaluate_every == 0:
                    entry = self.history[-1] = replace(entry, metrics=self._evaluate())
                stopped = self.algorithm.finished(self.state)
                # Under Paillier, also with a threshold, this fills the pool of encryption randomness for the next
                # upload, which no checkpoint holds; masks cannot be computed between rounds.
                if self._options.prepare and stopped is None:
                    for node in self.nodes.values():
                        node.prepare()
                if self._file is not None and len(self.history) % (self._options.checkpoint_every or 1) == 0:
                    self._file.write(self.freeze())
                if progress is not None:
                    progress(entry)
        except SecureFedError as error:
            if self.history:
                error.result = self._rounds_so_far(f"{type(error).__name__}: {error}")
            raise
        finally:
            if self._file is not None:
                # A resumed run skips one number, the next, which COMMIT takes.
                self._reserved = self._exchanges + 1
                self._file.write(self.freeze())
        # tell all clients how the last sum that counted them ended, so that they commit
        counted = sorted(self._counted.exchanges)
        confirmed = self._ask(COMMIT, counted, self.algorithm.broadcast(self.state))
        return self._rounds_so_far(stopped, tuple(client for client in counted if client not in confirmed))

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
        record = self._sum(EVALUATE).record
        return {name: float(value) for name, value in record.released.items()} | {"clients": len(record.survivors)}

    def _agree(self, evaluate_every: int) -> None:
        """Tell simulated clients the schedule of exchanges; for others check that the terms allow it.

        A client counts the attempts at a sum and refuses more than its schedule allows. A caller that runs again after
        `RoundVoid` asks for the same sum anew: simulated clients are then allowed the earlier attempts on top.
        """
        if self.nodes:
            most = self._options.max_void + max(self.tried.values(), default=0)
            schedule = ExchangeSchedule(None, evaluate_every, most)
            for node in self.nodes.values():
                node.exchanges = schedule
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
        start = time.perf_counter()
        summed = self._sum(TRAIN)
        self.combine(summed)
        return self.entry(summed, time.perf_counter() - start)

    def _sum(self, kind: str) -> ExchangeResult:
        """Sum one contribution of each client, repeating void exchanges."""
        self.begin(kind, self.choose_cohort(kind))
        summed: ExchangeResult | None = None
        while summed is None:
            assert self.exchange is not None
            outgoing: Mapping[PartyId, bytes] = self.exchange.outgoing
            if self.log.keep:  # the transcript then has all requests of a stage before its replies
                outgoing = dict(outgoing)
            for party, data in arrivals(self._transport, outgoing, self._options.timeout):
                self.exchange.receive(party, data)
            summed = self.close_stage()
        # simulated clients' encoded contributions, for collusion views and scoring
        for client in summed.record.survivors if self.log.keep else ():
            if client in self.nodes and (encoded := self.nodes[client].state.encoded) is not None:
                self.transcript.contributions[summed.record.round, client] = encoded
        return summed

    def next_broadcast(self) -> Tensors:
        """Return what the next exchange tells its clients; the deviating server of an audit overrides this method."""
        return self.algorithm.broadcast(self.state)

    def combine(self, summed: ExchangeResult) -> None:
        """Make the algorithm's server step from a training sum.

        Raises:
            DivergenceError: the new model is not finite; the state before stays.
        """
        record = summed.record
        with np.errstate(all="ignore"):
            # `plan.added` names tensors that the defence adds to each contribution, for itself
            released = {name: value for name, value in record.released.items() if name not in summed.plan.added}
            server = self.algorithm.combine(self.state, Aggregate(released, record.survivors))
            if server is None:
                raise ConfigError(f"{type(self.algorithm).__name__}.combine must return the new server state; got None")
            broadcast = self.algorithm.broadcast(server)
        for name, value in broadcast.items():
            if not np.isfinite(value).all():
                raise DivergenceError(
                    f"round {len(self.history)}: {name!r} is not finite any more; lower the step size, "
                    "or start from data of a smaller range"
                )
        self.state, self.plan = server, summed.plan.assume(*self._disclosed)
        self.counted(summed, broadcast)

    def choose_cohort(self, kind: str) -> tuple[ClientId, ...]:
        """Choose the clients that a sum invites first; an algorithm may select them by scalars that they reveal."""
        everyone, size, round = range(self.public.clients), self.public.cohort, len(self.history)
        if self._options.schedule is not None:
            return scheduled(self._options.schedule(round), everyone, size)
        if kind != TRAIN or (chooser := self._chooser) is None:
            return self.draw(self.seed)
        candidates = uniform(everyone, min(chooser.candidates, len(everyone)), self.seed, round)
        # clients compute the scalars from the current model
        return by_revealed(chooser, self._ask(REVEAL, candidates, self.algorithm.broadcast(self.state)), size, round)

    def _ask(self, stage: str, clients: Iterable[ClientId], broadcast: Tensors) -> dict[ClientId, Tensors]:
        """Send clients the broadcast outside any exchange, and return the tensors of their replies, by client.

        The messages have a number of their own, since clients answer no number twice. A client that does not answer as
        asked is left out.

        Args:
            stage: `COMMIT` (how the last round ended) or `REVEAL` (scalars that a selection needs).
            clients: the receivers.
            broadcast: the current one.
        """
        number, log, outgoing, answered = self._next_number(), self.log, {}, {}
        for client in clients:
            body = self._counted.body_outside(client, broadcast)
            outgoing[client] = log.sent(Message(self.transcript.run, number, stage, SERVER, client, body))
        for party, data in arrivals(self._transport, outgoing, self._options.timeout):
            if party not in outgoing:
                continue
            log.up += len(data)
            try:
                reply = Message.decode(data, claimed_sender=party)
            except MessageRefused:
                continue
            if (reply.round, reply.stage, reply.sender) == (number, stage, party):
                log.note(reply, len(data))
                answered[party] = reply.body
        return dict(sorted(answered.items()))

    def _rounds_so_far(self, stopped: str | None, uncommitted: tuple[ClientId, ...] | None = None) -> Result:
        """Collect the result of the complete rounds, without a message.

        Args:
            stopped: why the run stopped early; `None` if it did not.
            uncommitted: clients that were not told the last outcome; by default all that a sum counted.
        """
        if uncommitted is None:
            uncommitted = tuple(sorted(self._counted.exchanges))
        broadcast = self.algorithm.broadcast(self.state)
        self.transcript.output = broadcast
        personal = {client: value for client, node in self.nodes.items() if (value := node.personal()) is not None}
        return Result(broadcast, personal, tuple(self.history), self.plan, self.transcript, stopped, uncommitted)

    def _next_number(self, *, write: bool = False) -> int:
        """Take the next number, of an exchange or of messages outside one; it is on disk before it is used.

        Args:
            write: whether to write the checkpoint even where it reserves the number already.
        """
        number = super()._next_number()
        if self._file is not None and (write or number >= self._reserved):
            self._reserved = number + _RESERVED
            self._file.write(self.freeze())
        return number

    def counters(self) -> dict[str, Any]:
        """Return the counters of the round loop; a resumed run uses no number that this one may use."""
        return super().counters() | {"exchanges": max(self._exchanges, self._reserved)}

    def freeze(self) -> bytes:
        """Return the state between two rounds: the server's, and of clients simulated here all but their data.

        Keys are not in it: a resumed run makes new ones and continues the numbers of exchanges, so that no key or noise
        is ever used twice. Beside what `kept` returns, values: `run` (public facts); tensors: `server/` (the
        algorithm's state) and `client/I/` (`SumNode.learned`).
        """
        values, tensors = self.kept()
        tensors |= nest("server", pack(self.state))
        for client, node in self.nodes.items():
            tensors |= nest(f"client/{client}", node.learned())
        return frozen(_PARTY, {}, {"run": self.transcript.meta, **values}, tensors)

    def thaw(self, data: bytes) -> None:
        """Resume the run that `freeze` wrote, with fresh clients simulated here that enrolled with their data.

        Raises:
            StorageError: these bytes are no state of a run with these parameters.
        """
        advice = "use the same parameters, or another checkpoint file"
        values, tensors = thawed(data, _PARTY, {}, advice, older=(2,))
        with complete(_PARTY):
            check_owner(values["run"], self.transcript.meta, advice)
            for client, node in self.nodes.items():
                state = node.relearn(unnest(f"client/{client}", tensors))
                # `place` is the position in the run (round, training or evaluation, attempt) of the last exchange that
                # the client accepted; it accepts only later ones. The round that the run died in is opened again from
                # its first attempt, so this order starts anew. That is safe, for no exchange NUMBER is answered twice:
                # `last_round` is kept, and the server writes a checkpoint that reserves numbers before it uses them,
                # also between two regular writes, and goes on above all reserved ones (`_next_number`).
                node.state = replace(state, place=BEFORE_ALL)
            self.state = restore(self.state, unnest("server", tensors))
            self.resumes = values["loop"]["run"]
            # the last exchange that a client answered; a crash may leave the clients' files newer than the checkpoint
            newest = max((node.state.last_round for node in self.nodes.values()), default=-1)
            self.continue_from(values, tensors)
            self._exchanges = max(self._exchanges, newest + 1)
            self.transcript.missing = len(self.history)
