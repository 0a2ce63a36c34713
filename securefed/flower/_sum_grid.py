"""The grid that a strategy under `SecureStrategy` runs against: replies come back as one reply, the mean.

In Flower a strategy sends messages to SuperNodes (one for each client) through a grid, and gets their replies. This
grid stands between: it takes the messages of one phase (a round's training or evaluation), runs all stages of a secure
sum with the same SuperNodes (a `SumServer`), and returns one reply with the weighted mean. At the SuperNodes
`secure_mod` answers the stages.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, Message, RecordDict
from flwr.serverapp import Grid

from securefed._persistence.sealing import Seal
from securefed._tensors import Array as NumPyArray
from securefed.defenses._grouped_sums import masking_in
from securefed.defenses._secure_aggregation.double_masking import SMALLEST_COHORT
from securefed.errors import (
    ConfigError,
    DataError,
    PlanError,
    RangeRefused,
    RoundVoid,
    SecureFedError,
    VersionRefused,
)
from securefed.flower._cohorts import Roster, Sampling, check_nodes
from securefed.flower._grid import ALLOW, FlowerGrid, Wrapping
from securefed.flower._kept_sums import kept_sum
from securefed.flower._outcome import LastSum, SecureRound, check_outcome, outcome, report, void
from securefed.flower._sum_messages import (
    TRAIN,
    SumRequest,
    base_of,
    common_digest,
    confirms,
    mean_reply,
    model_of,
    party_named,
    phase_of,
    reply_data,
)
from securefed.parties._result import SumResult
from securefed.parties._server import SumServer
from securefed.parties._terms import SumTerms

_LOG = logging.getLogger("securefed.flower")


@dataclass
class SumGrid(Grid):
    """Sends a strategy's messages through a secure sum.

    Attributes:
        grid: the ServerApp's grid.
        make_terms: function that makes the terms of a phase from its base, its number of messages and the number of
            connected SuperNodes.
        weighted_by: name of the metric that weights updates.
        run_config: digest of the run's config (`config_digest`), to which sums are bound.
        metrics: by phase, shapes of the tensors that carry metrics. They are further tensors of the update, so that the
            reply holds their means, weighted as those of the model's arrays are.
        poll: seconds between two looks for replies.
        patience: seconds to wait for the replies of a stage in which clients do not train; in the very first exchange
            from the first reply on.
        rounds: what became of each phase so far.
        samplings: how the strategy samples in each phase, where it does so as Flower's own ones do.
        folder: where the terms and the state of each phase's sum are kept; `None` to keep them in memory.
        seal: encrypts the states.
        trained: rounds of training that gave a sum since the strategy was started.
        stopped: why the run ended after trained rounds; `None` while it goes on. Each phase is then empty at once, so
            that the strategy comes to its end and returns the model that it has.
        model: the newest model that the strategy sent.
        checked: whether the clients checked the last sum of each phase, in words; empty before the strategy returned.
    """

    grid: Grid
    make_terms: Callable[[str, Mapping[str, NumPyArray], int, int], SumTerms]
    weighted_by: str
    run_config: str
    metrics: Mapping[str, Mapping[str, tuple[int, ...]]]
    poll: float
    patience: float
    rounds: list[SecureRound]
    samplings: tuple[Sampling, ...] = ()
    folder: Path | None = None
    seal: Seal | None = None
    trained: int = field(default=0, init=False)
    stopped: str | None = field(default=None, init=False)
    model: ArrayRecord | None = field(default=None, init=False)
    checked: str = field(default="", init=False)
    _last: dict[str, LastSum | None] = field(default_factory=dict)  # by phase since `begin`; `None` after a void round
    _connected: list[int] = field(default_factory=list)  # the most SuperNodes that the strategy has seen
    _sums: dict[str, SumServer] = field(default_factory=dict)  # by phase
    _terms: dict[str, bytes] = field(default_factory=dict)  # by phase, as they stand in requests
    _roster: Roster | None = None  # which SuperNode is which client, for all phases
    _begun: int = 0  # phases that took place before the strategy was started last

    def __post_init__(self) -> None:
        self._carrier = FlowerGrid(self.grid, {}, poll=self.poll)

    def set_run(self, run: Any) -> None:
        """Set the run, as the ServerApp's grid does."""
        self.grid.set_run(run)

    @property
    def run(self) -> Any:
        """The run, of the ServerApp's grid."""
        return self.grid.run

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        """Make a message, as the ServerApp's grid does."""
        return self.grid.create_message(*args, **kwargs)

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of the connected SuperNodes; once the run is stopped those of before, so that none waits."""
        if self.stopped is not None:
            return self._connected
        now = list(self.grid.get_node_ids())
        self._connected = max(now, self._connected, key=len)
        return now

    def begin(self) -> None:
        """Count trained rounds anew: the strategy is started."""
        self.trained, self.stopped, self._begun, self.checked, self._last = 0, None, len(self.rounds), "", {}

    def end(self) -> None:
        """Let the clients check the last sum of each phase: the strategy has returned.

        Raises:
            RoundVoid: rounds took place since `begin`, and none gave a sum.
        """
        terms = {phase: server.terms for phase, server in self._sums.items()}
        check_outcome(self.rounds[self._begun :], terms, self.weighted_by)
        self.checked = report(self._publish, self._last, terms)

    def _publish(self, phase: str) -> str:
        """Publish the last sum of a phase to the clients in it, and say which of them checked it."""
        last = self._last[phase]
        if last is None:
            return void(phase)
        nodes = {self._known_roster.node(party): party for party in last.result.survivors}
        sent, carrier = last.requests(nodes, self._sums[phase].terms, self.weighted_by, self.run_config), self._carrier
        carrier.forget()
        replied = carrier.carry(sent, self.patience, last.message.metadata.message_type, last.message.metadata.group_id)
        confirmed = [node for node, said in replied if confirms(said)]
        return outcome(phase, sent, confirmed, carrier.refused | carrier.foreign)

    def get_nodes(self) -> Iterable[Any]:
        """Return the connected SuperNodes."""
        return self.grid.get_nodes()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Raise `ConfigError`: replies to single messages are what a sum hides."""
        raise ConfigError("under SecureStrategy a strategy sends with grid.send_and_receive, which sums the replies")

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Raise `ConfigError`: replies to single messages are what a sum hides."""
        raise ConfigError("under SecureStrategy a strategy sends with grid.send_and_receive, which sums the replies")

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Run all stages of a sum; return one reply, the mean, or no reply where the round was void.

        An error after a trained round ends the run (`stopped`) instead of being raised, which would lose the model.

        Args:
            messages: the strategy's messages, of one type and with one content.
            timeout: seconds to wait for the updates.

        Raises:
            ConfigError: messages that differ from each other, or that most SuperNodes do not accept.
            BudgetSpent: the privacy budget allows no round.
        """
        given, self._carrier.longest = list(messages), timeout
        self._carrier.forget()
        if not given or self.stopped is not None:
            return []
        if given[0].content.array_records:
            self.model = next(iter(given[0].content.array_records.values()))
        try:
            return self._phase(given, timeout)
        except SecureFedError as error:
            if not self.trained:
                raise
            self.stopped = f"{type(error).__name__}: {error}"
            _LOG.error("the run ends after %d trained rounds, with their model: %s", self.trained, self.stopped)
            return []

    def _phase(self, given: list[Message], timeout: float | None) -> list[Message]:
        """Run the sum of a phase; errors as of `send_and_receive`, at any round."""
        phase, digest = phase_of(given[0]), common_digest(given, self.weighted_by, self.run_config)
        record, model = model_of(given[0], phase)
        begun, before = time.monotonic(), self._carrier.exchanges
        base = base_of(model, self.metrics[phase], digest)
        result: SumResult | None = None
        why: tuple[str, ...] = ()
        try:
            server = self._server(phase, base, len(given))
            cohort = self._cohort([message.metadata.dst_node_id for message in given], given[0], server.terms)
            server.open(base, cohort=cohort)
            result = self._run(server, given[0], digest, phase, timeout)
            why = result.void
        except (RoundVoid, RangeRefused, DataError, PlanError) as error:  # data: weights that sum to zero
            if isinstance(error, PlanError) and self._roster is None:
                raise
            why = (str(error),)
            _LOG.warning("%s, round void, nothing was learned and the model stays as it is: %s", phase, error)
        self._note(phase, before, begun, result, why)
        if result is not None:
            self._last[phase] = LastSum(given[0], result)
        elif self._carrier.exchanges > before:
            self._last[phase] = None
        if result is None or not result.weight > 0:
            return []
        self.trained += phase == TRAIN
        return [mean_reply(result, given[0], record, base, self.weighted_by)]

    def _server(self, phase: str, base: Mapping[str, NumPyArray], sampled: int) -> SumServer:
        """Return the phase's sum; its terms are made from the first round's messages.

        Args:
            phase: `train` or `evaluate`.
            base: what the first round is bound to (`base_of`): the model's arrays, a zero for each metric, and the
                digest of the messages' content. Its names and shapes are those of an update, as the terms need an
                example of one; so it names the metrics.
            sampled: number of SuperNodes that the strategy sends messages to.
        """
        if phase not in self._sums:
            connected = len(list(self.grid.get_node_ids()))
            if self._roster is not None and connected < self._roster.clients:
                # Where SuperNodes died before the first evaluation, its terms are for the fewest clients that there can
                # be terms for, and the missing ones count as lost.
                sampled = max(sampled, min(SMALLEST_COHORT, self._roster.clients))
            self._check_nodes(phase, base, sampled, connected)
            terms = self.make_terms(phase, base, sampled, connected if self._roster is None else self._roster.clients)
            server = SumServer(terms) if self.folder is None else kept_sum(self.folder, phase, terms, self.seal)
            terms = server.terms
            _LOG.info("%s, terms %s: %s", phase, terms.digest.hex()[:16], terms.plan)
            self._sums[phase], self._terms[phase] = server, terms.to_bytes()
            if self._roster is None:
                self._roster = Roster(terms.clients)
                self._carrier.nodes = self._roster.nodes
        return self._sums[phase]

    def _check_nodes(self, phase: str, base: Mapping[str, NumPyArray], sampled: int, connected: int) -> None:
        """Raise `PlanError` where a phase has too few SuperNodes: before the first one, for each that is to come."""
        wanted, clients = {phase: sampled}, 0 if self._roster is None else self._roster.clients
        if self._roster is None:
            wanted |= {other.phase: other.nodes(connected) for other in self.samplings if other.phase != phase}

        def made(name: str, number: int) -> SumTerms:  # arrays do not change the number that a sum needs
            example = base if name == phase else base_of({}, self.metrics[name], bytes(32))
            return self.make_terms(name, example, number, clients or max(connected, number))

        check_nodes(wanted, connected, made, self.samplings)

    @property
    def epsilon(self) -> float:
        """Epsilon of all exchanges of training so far, those of the ServerApps before this one included."""
        return self._sums[TRAIN].epsilon if TRAIN in self._sums else 0.0

    def _cohort(self, nodes: list[int], message: Message, terms: SumTerms) -> list[int]:
        """Return the clients' numbers of the sampled SuperNodes, at most as many as the terms plan for.

        SuperNodes seen for the first time are numbered in turn. Where the terms pin identities a client's number goes
        with its identity, so their sites are asked for it.

        Args:
            nodes: ids of the sampled SuperNodes.
            message: one of the strategy's messages, whose type and group the question gets.
            terms: the terms of the phase.
        """
        roster, connected = self._known_roster, list(self.grid.get_node_ids())
        if new := roster.unknown(nodes):
            masking = masking_in(terms.defense.aggregation)
            if masking is not None and masking.identities is not None:
                for node, named in self._ask(new, message):
                    roster.name(node, named, connected)
            else:
                roster.number(new, connected)  # numbers of SuperNodes that are no longer connected pass to new ones
        parties = [party for party in map(roster.party, nodes) if party is not None]
        if len(parties) > terms.cohort:
            _LOG.warning("%d SuperNodes are sampled, and the terms plan for %d", len(parties), terms.cohort)
        if not parties:  # no site that was asked for its number gave one
            if self.trained:
                raise RoundVoid("none of the sampled SuperNodes is a client of these terms")
            self._refuse(self._carrier.refused or self._carrier.foreign)
        return parties[: terms.cohort]

    @property
    def _known_roster(self) -> Roster:
        assert self._roster is not None
        return self._roster

    def _ask(self, nodes: list[int], message: Message) -> Iterator[tuple[int, int]]:
        """Ask sites for their numbers."""
        contents, like = {node: SumRequest(-1).content() for node in nodes}, message.metadata  # -1: asks for the number
        for node, content in self._carrier.carry(contents, self.patience, like.message_type, like.group_id):
            try:
                party = party_named(content, node)
            except VersionRefused as error:
                self._carrier.refuse(node, error)
                continue
            if party is not None:
                yield node, party

    def _run(self, server: SumServer, message: Message, digest: bytes, phase: str, timeout: float | None) -> SumResult:
        """Carry the stages of a round until its result is there.

        Args:
            server: the sum, with an open round.
            message: one of the strategy's messages; its content goes out with the request for the upload.
            digest: digest of the content.
            phase: `train` or `evaluate`.
            timeout: seconds to wait for the updates; `None` for no limit.
        """
        roster, carrier, agreed = self._known_roster, self._carrier, self._terms[phase]
        while server.result is None:
            requests, uploads = server.outgoing, server.wants_updates
            wait = timeout  # for updates, which take training; other replies are quick
            if not uploads:
                wait = self.patience if timeout is None else min(timeout, self.patience)
            shown, original = (digest.hex(), message.content) if uploads else ("", None)

            def wrap(party: int, data: bytes, shown: str = shown, original: RecordDict | None = original) -> RecordDict:
                return SumRequest(party, self.weighted_by, self.run_config, agreed, data, shown).content(original)

            wrapping = Wrapping(message.metadata.message_type, message.metadata.group_id, wrap, reply_data)
            missing, needed = set(requests), server.terms.plan.threshold
            for party, data in carrier.arrivals(requests, wait, wrapping):
                missing.discard(party)
                server.receive({party: data}, more=bool(missing))
            asked = {roster.node(party) for party in requests}
            refusing = set(carrier.refused) & asked
            # Before the first complete round so many refusals mean that sites do not allow the terms: the run ends, as
            # further rounds would be void too. Later the round is void, and the strategy goes on.
            if refusing and server.round == 0 and len(asked) - len(refusing) < needed:
                server.abandon()
                self._refuse(carrier.refused)
            if server.round == 0 and asked <= set(carrier.foreign):  # as with a mod before secure_mod
                server.abandon()
                self._refuse(carrier.foreign)
            if missing:  # end the stage without them; otherwise the last reply has ended it
                server.receive({})
        return server.result

    def _refuse(self, refused: Mapping[int, str]) -> None:
        """Raise `ConfigError` that names one SuperNode which does not accept the terms, and its reason."""
        node, reason = next(iter(refused.items()), (0, "none of them answered"))
        remedy = "" if refused is self._carrier.foreign else ALLOW
        raise ConfigError(f"too few SuperNodes take part: {len(refused)} refuse, for instance {node}: {reason}{remedy}")

    def _note(self, phase: str, before: int, begun: float, result: SumResult | None, void: tuple[str, ...]) -> None:
        """Add a phase to the record; `before` and `begun` are the exchanges made and the time at its begin."""
        roster, exchanges, seconds = self._known_roster, self._carrier.exchanges - before, time.monotonic() - begun
        survivors = () if result is None else tuple(roster.node(party) for party in result.survivors)
        refusals = {} if result is None else {roster.node(p): text for p, text in result.refusals.items()}
        refusals |= self._carrier.refused | self._carrier.foreign
        error = 0.0 if result is None else max(result.error.values(), default=0.0)
        self.rounds.append(SecureRound(phase, exchanges, survivors, seconds, void, refusals, error))
        _LOG.info("%s: sum of %d clients after %d exchanges, %.1f s", phase, len(survivors), exchanges, seconds)
