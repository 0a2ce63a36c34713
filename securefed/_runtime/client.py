"""Answer the server's messages for one client: one algorithm, one defence, one committed state.

An exchange makes one secure sum in a few stages (for masking: keys, shares, upload, unmasking), and the server sends
each client one request a stage. At the upload the client computes its contribution from the server's broadcast. Two
messages stand outside exchanges: `COMMIT` tells the outcome of the last round, `REVEAL` asks for scalars by which the
algorithm selects clients. Callers hand each message to `ClientNode.handle`: transports, `SumClient`, the Flower client.

"Round" has two meanings. An exchange's number is `message.round`, `session.round`, and in the state `last_round`,
`tentative_round` and `committed_round`. Training rounds are counted by `header.round`, those completed before the
exchange: a round whose sum was void is repeated, in an exchange of another number.

The state after a contribution is tentative. A later request says which exchange's sum counted this client last: if that
is the contribution's, the tentative state is committed, else dropped (`ClientCommits`). If a commit fails, the client
is stuck.

Apart from the protected upload, nothing that the server sees of a client depends on the client's data. So the client
checks the whole request for an upload by rules on public facts, and uses the exchange up (durably, `persist`), before
it computes anything. A client without a contribution (values out of range or not finite, a failed computation, a stuck
state) sits out: it uploads uniform residues where the defence hides uploads without noise (an extra tensor, the
indicator, shows that the sum is void, not by whose fault), and zeros where it adds noise. Only if the defence hides
nothing, it refuses by name. A client that sits out encodes, draws and masks as much as one that contributes, and what
it logs is written later (`late_log`), so that its reply takes as long. Not guaranteed: that the time in which the
contribution itself is computed reveals nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from securefed._messages import REFUSAL, SERVER, ClientId, Message
from securefed._persistence.packing import unnest
from securefed._runtime.aggregation_offers import AggregationOffers
from securefed._runtime.client_commits import ClientCommits
from securefed._runtime.client_encoding import encode_nothing, encoded_or_refusal, encoded_zeros, free
from securefed._runtime.client_sampling import check_agreed_to_reveal, reveal_scalars
from securefed._runtime.client_state import (
    ClientNodeState,
    ComputedContribution,
    PendingUpload,
    absent_state,
    with_cost,
)
from securefed._runtime.exchange_context import (
    NEVER,
    CountedExchanges,
    exchange_context,
    tensors_digest,
    upload_context,
)
from securefed._runtime.exchange_header import EVALUATE, TRAIN, ExchangeHeader, integers
from securefed._runtime.exchange_plans import ExchangePlans
from securefed._runtime.exchange_schedule import ExchangeSchedule
from securefed._runtime.late_log import log_absence
from securefed._runtime.ledger import Ledger
from securefed._runtime.message_schema import MessageSchema
from securefed._runtime.privacy_checks import has_memory
from securefed._runtime.privacy_cost import PrivacyCost, cost_of
from securefed._runtime.refusals import charge, refusal_body
from securefed._runtime.sum_guard import SumGuard
from securefed._runtime.sum_memory import MOST_OUT, SumRule
from securefed._tensors import Tensors
from securefed._transports.base import BatchEndpoint
from securefed.algorithms._capabilities import SupportsPrivacyCost, supports
from securefed.algorithms._validation import check_contribution
from securefed.datasets._base import Dataset
from securefed.defenses._base import Defense, Session, has_indicator, without_indicator_tensor
from securefed.defenses._capabilities import SupportsAuthenticatedRefusals, SupportsPrecomputation
from securefed.errors import BudgetSpent, ClientDeclines, ContradictionError, MalformedError, SecureFedError

COMMIT, REVEAL = "commit", "reveal"
_LOG = logging.getLogger("securefed.client")


class ClientNode:
    """Answers the server's messages for one client.

    Args:
        client: this client's id.
        run: the run it belongs to; messages of another run are refused.
        schema: names, shapes and types of every message's tensors.
        data: this client's rows.
        defense: protects the contributions in messages.
        seed: seeds the algorithm's randomness (mini-batches), NOT any secret: secrets come from the operating system.
        keep: whether the last encoded contribution is kept, for simulations that score collusion.
        reveal: whether this client agrees to reveal the scalars that the algorithm selects clients by.
        exchanges: the exchanges of the run; messages of others are refused.
        ledger: counts the use of this client's data; charged before anything is computed.
        rule: which sums this client lets out beside earlier ones.
        sums: the ledger that remembers those; `ledger` by default, or one in memory, which freezes with the state.
        persist: writes the state to durable storage; called when an exchange is used up and nothing is computed yet.
    """

    batch: BatchEndpoint | None = None
    """Answers a stage for many simulated clients at once, this one included; the in-process transport calls it instead
    of `handle`. `None` for a client that answers alone."""
    simulated = False
    """True for a simulated client: then a contribution that does not fit the layout ends the run by name."""
    absence: Exception | None = None
    """Why this client had no contribution to its last exchange, if so; it stays here, and no message holds it."""

    def __init__(
        self,
        client: ClientId,
        run: str,
        schema: MessageSchema,
        data: Dataset,
        defense: Defense,
        seed: int,
        *,
        keep: bool = True,
        reveal: bool = False,
        exchanges: ExchangeSchedule | None = None,
        ledger: Ledger | None = None,
        rule: SumRule | None = None,
        sums: Ledger | None = None,
        persist: Callable[[ClientNode], None] | None = None,
    ) -> None:
        self.client, self.run, self.algorithm, self._schema = client, run, schema.algorithm, schema
        self._defense, self._seed, self._keep, self._reveal = defense, seed, keep, reveal
        self.exchanges, self.ledger, self.persist = exchanges or ExchangeSchedule(), ledger, persist
        self._offers = AggregationOffers.of(defense.aggregation)
        own: Any = self.algorithm
        self._spending: SupportsPrivacyCost[Any] | None = own if supports(own, SupportsPrivacyCost) else None
        self._plans = ExchangePlans(schema, defense)
        self._commits = ClientCommits(client, schema, self._plans, self._offers.verifying)
        kept = sums or ledger
        self.guard = SumGuard(kept or Ledger.in_memory(), rule or SumRule(), frozen=kept is None)
        self.state = ClientNodeState(self.algorithm.enroll(data, schema.public, self._rng(0)))
        """All that the client keeps between messages; replaced as a whole, at each message."""

    @property
    def terms(self) -> str:
        """The terms that this client agreed to, as text: algorithm, defence, public facts and seed."""
        return f"{self.algorithm!r}; {self._defense!r}; {self._schema.public!r}; seed {self._seed}"

    def handle(self, message: Message) -> Message:
        """Answer one message; the reply is a named refusal where the message cannot be answered."""
        begun = self.begin(message)
        return begun if isinstance(begun, Message) else self.finish(begun, self.compute(begun))

    def begin(self, message: Message) -> Message | PendingUpload:
        """Answer a message, or accept a request that still needs this client's contribution.

        A request for a contribution is accepted once: afterwards its exchange is used up, whatever happens next. The
        caller passes it to `compute` and `finish`; `ClientBatch` computes for many clients at once between the two.
        """
        try:
            step = self._step(self.state, message)
            if isinstance(step, PendingUpload):
                self._use_up(step)
                return self._committed(step)
        except SecureFedError as error:
            return self._refuse(message, error)
        self.state, body = step
        return self._reply(message, message.stage, body)

    def compute(self, pending: PendingUpload) -> ComputedContribution:
        """Compute the contribution that `pending` waits for; return the exception if that fails."""
        state, header = pending.state, pending.state.header
        assert header is not None
        if pending.fault is not None:
            return pending.fault
        try:
            if header.kind == EVALUATE:
                return None, self.algorithm.evaluate(state.committed, pending.broadcast)
            return self.algorithm.contribute(state.committed, pending.broadcast, pending.rng)
        except Exception as error:
            if not (self._plans.hide_absence or isinstance(error, SecureFedError)):
                raise
            return error

    def finish(self, pending: PendingUpload, computed: ComputedContribution) -> Message:
        """Build the reply: the protected contribution, or the upload of a client that sits out."""
        message, state, trains = pending.message, self.state, pending.state.trains
        assert state.session is not None
        plan = state.session.plan
        if self.simulated and trains and not isinstance(computed, Exception):
            check_contribution(self.algorithm, computed, self._schema.layouts[TRAIN])
        try:
            if isinstance(computed, BudgetSpent) and self._spending is not None:
                raise computed  # public: it follows from rounds and numbers of rows
            if isinstance(computed, Exception):
                encode_nothing(self._defense, plan)
                self.state, body = self._without(state, computed)
                return self._uploaded(pending, body)
            tentative, raw = computed
            if trains and self._spending is not None:  # the cost counts whether or not the message arrives
                self.state = state = with_cost(state, self._spending, tentative)
            if trains:
                state = replace(state, tentative=tentative, tentative_round=message.round, absent=False)
            encoded = encoded_or_refusal(self._defense, plan, raw)
            del raw, computed  # arrays as large as the model: their memory serves the upload
            try:
                if isinstance(encoded, Exception):
                    raise free(encoded)
                absent_state(state)  # made in either case, which takes time
                log_absence(self.client, None, None, message.round, now=self.simulated)
                self.state, body = self._upload(state, encoded)
                self.absence = None
            except Exception as error:
                if not (self._plans.hide_absence or isinstance(error, SecureFedError)):
                    raise
                self.state, body = self._without(self.state, error)
            return self._uploaded(pending, body)
        except SecureFedError as error:
            return self._refuse(message, error)

    def _uploaded(self, pending: PendingUpload, body: Tensors) -> Message:
        """Reply with the upload, once the ledger has noted whether the client sat out."""
        assert pending.state.session is not None
        if has_indicator(pending.state.session.plan):
            self.guard.uploaded(pending.source, absent=self.state.out > pending.state.out)
        return self._reply(pending.message, pending.message.stage, body)

    def prepare(self) -> None:
        """Precompute the defence's part of the next upload, between two exchanges or while `compute` runs.

        Takes time now and memory of the upload's size, and saves that time once the contribution is computed.
        """
        aggregation = self._defense.aggregation
        if isinstance(aggregation, SupportsPrecomputation) and self.state.protocol is not None:
            self.state = replace(self.state, protocol=aggregation.client_prepare(self.state.protocol))

    def session(self, exchange: int, header: ExchangeHeader) -> Session:
        """Derive the session of an exchange from public facts and the exchange's header."""
        return Session(self.run, exchange, header.cohort, self._plans.plan(header))

    def protocol_for(self, session: Session) -> Any:
        """Start a fresh state of the defence's protocol, without anything from earlier exchanges."""
        return self._defense.aggregation.client_open(session, self.client)

    def personal(self) -> Tensors | None:
        """Return the algorithm's personal result for this client."""
        return self.algorithm.personal(self.state.committed)

    def _reply(self, message: Message, stage: str, body: Tensors) -> Message:
        return Message(self.run, message.round, stage, self.client, SERVER, body)

    def _refuse(self, message: Message, error: SecureFedError) -> Message:
        body: Tensors = refusal_body(error)
        aggregation = self._defense.aggregation
        if isinstance(aggregation, SupportsAuthenticatedRefusals) and self.state.protocol is not None:
            body = aggregation.client_refusal(self.state.protocol, body, message.round)
        return self._reply(message, REFUSAL, body)

    def _rng(self, round: int, *purpose: int) -> np.random.Generator:
        """Return a generator that no other use shares; `round` is a number that depends on the use.

        Without `purpose`: 0 to enrol, else 1 + `header.round`, to contribute to a training round. With purpose (2, a):
        the same at attempt a > 0. With 1: 1 + `message.round`, to reveal scalars, as no header is at hand then.
        """
        return np.random.default_rng([self._seed, self.client, round, *purpose])

    def _step(self, state: ClientNodeState, message: Message) -> tuple[ClientNodeState, Tensors] | PendingUpload:
        """Return the next state and the reply's body; for a checked request for an upload, what is still to compute."""
        # Number and stage are compared with themselves: here only run, sender and receiver are checked.
        message.check(run=self.run, round=message.round, stage=message.stage, sender=SERVER, receiver=self.client)
        if message.stage in (COMMIT, REVEAL):
            return self._outside(state, message)
        if "session/cohort" in message.body:
            if state.out >= MOST_OUT:  # the last one that it sat out is brought to its end
                raise ClientDeclines(
                    f"this client sat out of {MOST_OUT} exchanges and takes no further part in the run"
                )
            state = self._open(state, message)
        if state.session is None or state.header is None or message.round != state.session.round:
            raise ContradictionError(message.sender, f"exchange {message.round} was never opened here")
        if message.stage == self._defense.aggregation.upload:
            return self._accept(state, message)
        request = replace(message, body=unnest("protocol", message.body))
        protocol, reply = self._defense.aggregation.client_step(state.protocol, request, None)
        if self._offers.releasing is not None and (
            release := self._offers.releasing.client_releases(state.protocol, protocol)
        ):
            self.guard.release(self.run, release)  # refused, the state stays as it was and nothing is sent
        return self._remember(replace(state, protocol=protocol)), reply

    def _accept(self, state: ClientNodeState, message: Message) -> PendingUpload:
        """Check everything that a request for an upload holds; no check looks at this client's data."""
        session, header = state.session, state.header
        assert session is not None and header is not None
        broadcast = unnest("broadcast", message.body)
        self._schema.check_broadcast(message.sender, broadcast)
        # The request lists for each client of the cohort the exchange that counted it last, and a digest of what
        # followed. `check_own` compares this client's digest with the broadcast that the request says followed, and
        # with the digest that the client kept when it committed the same exchange. `check`: the client knows of it.
        counted = CountedExchanges.read(message, header.cohort, followed=self.algorithm.needs_outcome)
        followed = self._commits.followed(message, broadcast)
        committed = state.committed_round, state.followed
        number = counted.check_own(message, header.cohort.index(self.client), followed, committed)
        self._commits.check(state, message, number)
        digest = tensors_digest(broadcast)
        # Two digests enter the masks, tags and signatures of an upload. `exchange` covers all that clients receive:
        # clients that received different things are not summed. The source (in `context`) covers what this contribution
        # is computed from: the broadcast, and this client's state, for which the exchange that counted it last stands
        # (`known`). The protocol never sums contributions of one source with two sets of clients. So `known` must
        # change exactly when the state does: if it changed alone, a server could get one contribution into two sums and
        # subtract them; if the state changed alone, a new contribution would be taken for the old one and refused.
        exchange = exchange_context(session, header, digest, counted)
        known = number if has_memory(state.committed) else NEVER  # a state without memory never changes
        context = upload_context(exchange, header.kind, digest, known)
        self.guard.accept(context.source)
        request = replace(message, body=unnest("protocol", message.body))
        protocol = self._defense.aggregation.client_accept(state.protocol, request, context)
        state = replace(state, protocol=protocol)
        attempt = () if header.attempt == 0 else (2, header.attempt)  # a repeated sum draws other mini-batches
        return PendingUpload(
            message, state, number, broadcast, self._rng(header.round + 1, *attempt), source=context.source
        )

    def _use_up(self, pending: PendingUpload) -> None:
        """Mark the exchange as used, durably: no message of it is answered again, in this or another process.

        Raises:
            BudgetSpent: the ledger allows no further exchange.
        """
        state = pending.state
        assert state.session is not None
        if self.ledger is not None:
            charge(self.ledger, self.run, state.session.round, self._cost(state))
        self.state = state
        if self.persist is not None:
            self.persist(self)

    def _cost(self, state: ClientNodeState) -> PrivacyCost:
        """Compute the privacy cost of answering the exchange."""
        assert state.session is not None
        spending = self._spending if state.trains else None
        steps = None if spending is None else spending.noised_steps(state.committed)
        return cost_of(self._defense, state.session.plan, steps)

    def _committed(self, pending: PendingUpload) -> PendingUpload:
        """Commit or drop the tentative state before computing; where that fails, `fault` says so to `compute`."""
        self.state, fault = self._commits.commit(pending.state, pending.message, pending.counted)
        return replace(pending, state=self.state, fault=fault)

    def _outside(self, state: ClientNodeState, message: Message) -> tuple[ClientNodeState, Tensors]:
        """Answer a message outside any exchange: how the last round ended, and what a selection asks for."""
        if message.round <= state.last_round:
            raise ContradictionError(message.sender, f"{message.stage} at exchange {message.round} again: a replay")
        if message.stage == REVEAL:
            check_agreed_to_reveal(message, self.algorithm, self._reveal)
        counted = int(integers(message, "commit/round", 0))
        self._commits.check(state, message, counted)
        self._commits.followed(message, unnest("broadcast", message.body))
        state, _ = self._commits.commit(replace(state, last_round=message.round), message, counted)
        if message.stage != REVEAL:
            return state, {}
        return state, reveal_scalars(self.algorithm, state.committed, self._rng(message.round + 1, 1))

    def _upload(self, state: ClientNodeState, encoded: Tensors | None) -> tuple[ClientNodeState, Tensors]:
        """Upload an encoded contribution; `None` is for a client that sits out where the defence hides uploads."""
        protocol, reply = self._defense.aggregation.client_upload(state.protocol, encoded)
        kept = state.encoded if encoded is None or not self._keep else without_indicator_tensor(encoded)
        state = self._remember(replace(state, protocol=protocol, encoded=kept))
        if state.trains and self._offers.verifying is not None:
            # a secret by which `_commits.check` checks the announced sum
            state = replace(state, sum_key=self._offers.verifying.client_keeps(protocol))
        return state, reply

    def _without(self, state: ClientNodeState, error: Exception) -> tuple[ClientNodeState, Tensors]:
        """Upload for a client without a contribution, or raise `error` if the defence hides nothing."""
        assert state.session is not None
        plan, before, self.absence = state.session.plan, self.absence, error
        if not self._plans.hide_absence:
            raise error
        log_absence(self.client, before, error, state.session.round, now=self.simulated)
        encoded = None if has_indicator(plan) else encoded_zeros(self._defense, plan)
        return self._upload(absent_state(state), encoded)

    def _remember(self, state: ClientNodeState) -> ClientNodeState:
        """Keep what the aggregation must know in later exchanges, such as a pinned key."""
        kept = (
            state.memory if self._offers.remembering is None else self._offers.remembering.client_memory(state.protocol)
        )
        return replace(state, memory=kept)

    def _open(self, state: ClientNodeState, message: Message) -> ClientNodeState:
        """Open the exchange that a request's header describes, after checking that it is new and in the schedule."""
        if message.round <= state.last_round:
            raise ContradictionError(message.sender, f"exchange {message.round} was opened before: a replay")
        learned = len(self._defense.start(self._schema.layouts[TRAIN]))  # numbers that the server learns from sums
        header = ExchangeHeader.read(message, self.client, self._schema.public.clients, learned)
        session = self.session(message.round, header)
        if (size := len(header.cohort)) > session.plan.clients:
            raise MalformedError(message.sender, f"cohort of {size} exceeds the planned {session.plan.clients}")
        place = self.exchanges.check(state.place, header)  # its position in the run's schedule
        if self._offers.pipelined is not None and state.protocol is not None:
            protocol = self._offers.pipelined.client_resume(session, self.client, state.protocol)
        else:
            protocol = self.protocol_for(session)
        if self._offers.remembering is not None:
            protocol = self._offers.remembering.client_remind(protocol, state.memory)
        return replace(state, header=header, session=session, protocol=protocol, last_round=message.round, place=place)
