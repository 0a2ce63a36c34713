"""Answer the server's messages for one client of a sum, whatever computes its contributions.

An exchange makes one secure sum in a few stages (for masking: keys, shares, upload, unmasking), and the server sends
each client one request a stage. The request for the upload holds the broadcast that contributions are computed from.
`SumNode.begin` checks a request and answers it, unless it needs the contribution; then the caller computes that, and
`finish` answers. `SumClient` is given contributions; `ClientNode` computes an algorithm's.

"Round" has two meanings. An exchange's number is `message.round`, `session.round`, and in the state `last_round`,
`tentative_round` and `committed_round`. `header.round` counts the training rounds that were completed or given up
before the exchange: a round whose sum was void is repeated, in an exchange of another number.

The state after a contribution is tentative. A later request says which exchange's sum counted this client last: if that
is the contribution's, the tentative state is committed, else dropped (`ClientCommits`). If a commit fails, the client
is stuck.

Apart from the protected upload, nothing that the server sees of a client depends on the client's data. So the client
checks the whole request for an upload by rules on public facts, and uses the exchange up (durably, `persist`), before
anything is computed. A client without a contribution (values out of range or not finite, a failed computation, a stuck
state) sits out: it uploads uniform residues where the defence hides uploads without noise (an extra tensor, the
indicator, shows that the sum is void, not by whose fault), and zeros where it adds noise. Only if the defence hides
nothing, it refuses by name. A client that sits out encodes, draws and masks as much as one that contributes, and what
it logs is written later (`absence`), so that its reply takes as long. Not guaranteed: that the time in which the
contribution itself is computed reveals nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from securefed._messages import REFUSAL, SERVER, ClientId, Message
from securefed._persistence.frozen import complete, frozen, thawed
from securefed._persistence.packing import nest, pack, restore, unnest
from securefed._runtime.absence import absent_state, encoded_or_refusal, free, log_absence, zeros
from securefed._runtime.client_state import (
    ClientCommits,
    ClientNodeState,
    ComputedContribution,
    PendingUpload,
    has_memory,
)
from securefed._runtime.exchange_context import (
    NEVER,
    CountedExchanges,
    exchange_context,
    tensors_digest,
    upload_context,
)
from securefed._runtime.exchange_header import BEFORE_ALL, ExchangeHeader
from securefed._runtime.ledger import Ledger
from securefed._runtime.privacy_cost import PrivacyCost, cost_of
from securefed._runtime.refusals import charge, refusal_body
from securefed._runtime.sum_facts import SumFacts
from securefed._runtime.sum_memory import MOST_OUT, SumMemory
from securefed._tensors import Array, Tensors
from securefed.defenses._aggregation import (
    SupportsAuthenticatedRefusals,
    SupportsMemory,
    SupportsPipelining,
    SupportsPrecomputation,
    SupportsReleases,
    SupportsVerification,
)
from securefed.defenses._base import Session, has_indicator, without_indicator_tensor
from securefed.errors import ClientDeclines, ContradictionError, MalformedError, SecureFedError


class SumNode(ABC):
    """Answers the server's messages for one client.

    Args:
        client: this client's id.
        run: the run it belongs to; messages of another run are refused.
        facts: what all parties of the sum agreed on, with the defence as this client uses it (its private identity).
        keep: whether the last encoded contribution is kept, for simulations that score collusion.
        ledger: counts the use of this client's data; charged before anything is computed.
        sums: the ledger that remembers those; `ledger` by default, or one in memory, which freezes with the state.
        persist: writes the state to durable storage; called when an exchange is used up and nothing is computed yet.
    """

    simulated = False
    """True for a simulated client: what it logs is written at once."""
    absence: Exception | None = None
    """Why this client had no contribution to its last exchange, if so; it stays here, and no message holds it."""

    def __init__(
        self,
        client: ClientId,
        run: str,
        facts: SumFacts,
        *,
        keep: bool = False,
        ledger: Ledger | None = None,
        sums: Ledger | None = None,
        persist: Callable[[Any], None] | None = None,
    ) -> None:
        self.client, self.run, self._facts, self._schema, self._keep = client, run, facts, facts.schema, keep
        self._defense, self.exchanges, self.ledger, self.persist = facts.defense, facts.exchanges, ledger, persist
        aggregation = (
            facts.defense.aggregation
        )  # asked once for what it has beside its stages, as each check takes a while
        self._pipelined = aggregation if isinstance(aggregation, SupportsPipelining) else None
        self._remembering = aggregation if isinstance(aggregation, SupportsMemory) else None
        self._releasing = aggregation if isinstance(aggregation, SupportsReleases) else None
        self._verifying = aggregation if isinstance(aggregation, SupportsVerification) else None
        self._commits = ClientCommits(client, facts, self._verifying, self._advance)
        self._freezes_sums = sums is None and ledger is None
        self.sums = sums or ledger or Ledger.in_memory()
        """The ledger that remembers over which parties this client's data were summed."""
        self.state = ClientNodeState()
        """All that the client keeps between messages; replaced as a whole, at each message."""

    @property
    @abstractmethod
    def terms(self) -> str:
        """The terms that this client agreed to, as text; a frozen state is restored under equal terms only."""

    def begin(self, message: Message) -> Message | PendingUpload:
        """Answer a message, or accept a request that still needs this client's contribution.

        A request for a contribution is accepted once: afterwards its exchange is used up, whatever happens next. The
        caller computes the contribution and passes both to `finish`.
        """
        try:
            step = self._step(self.state, message)
            if isinstance(step, PendingUpload):
                self._charge(step.state)
                self.state = step.state
                if self.persist is not None:  # from here on no process answers a message of the exchange again
                    self.persist(self)
                # commit or drop the tentative state before computing; where that fails, `fault` says so to `compute`
                self.state, fault = self._commits.commit(step.state, message, step.counted)
                return replace(step, state=self.state, fault=fault)
        except SecureFedError as error:
            return self._refuse(message, error)
        self.state, body = step
        return self._reply(message, message.stage, body)

    def finish(self, pending: PendingUpload, computed: ComputedContribution) -> Message:
        """Build the reply: the protected contribution, or the upload of a client that sits out."""
        message, state, trains = pending.message, self.state, pending.state.trains
        assert state.session is not None
        plan = state.session.plan
        try:
            if isinstance(computed, Exception):
                if has_indicator(plan):  # to take the time of encoding a contribution
                    encoded_or_refusal(self._defense, plan, zeros(plan))
                self.state, body = self._without(state, computed)
            else:
                tentative, raw = computed
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
                    if not (self._facts.hide_absence or isinstance(error, SecureFedError)):
                        raise
                    self.state, body = self._without(self.state, error)
            if has_indicator(plan):  # the ledger notes whether the client sat out, in the same time
                out = self.state.out > pending.state.out
                self.sums.change_sums(lambda sums: (sums, sums.with_absence(pending.source))[out], always=True)
            return self._reply(message, message.stage, body)
        except SecureFedError as error:
            return self._refuse(message, error)

    def prepare(self) -> None:
        """Precompute the defence's part of the next upload, between two exchanges or while the caller computes.

        Takes time now and memory of the upload's size, and saves that time once the contribution is computed.
        """
        aggregation = self._defense.aggregation
        if isinstance(aggregation, SupportsPrecomputation) and self.state.protocol is not None:
            self.state = replace(self.state, protocol=aggregation.client_prepare(self.state.protocol))

    def session(self, exchange: int, header: ExchangeHeader) -> Session:
        """Derive the session of an exchange from public facts and the exchange's header."""
        return Session(self.run, exchange, header.cohort, self._facts.plan(header))

    def protocol_for(self, session: Session) -> Any:
        """Start a fresh state of the defence's protocol, without anything from earlier exchanges."""
        return self._defense.aggregation.client_open(session, self.client)

    def _reply(self, message: Message, stage: str, body: Tensors) -> Message:
        return Message(self.run, message.round, stage, self.client, SERVER, body)

    def _refuse(self, message: Message, error: SecureFedError) -> Message:
        body: Tensors = refusal_body(error)
        aggregation = self._defense.aggregation
        if isinstance(aggregation, SupportsAuthenticatedRefusals) and self.state.protocol is not None:
            body = aggregation.client_refusal(self.state.protocol, body, message.round)
        return self._reply(message, REFUSAL, body)

    def _step(self, state: ClientNodeState, message: Message) -> tuple[ClientNodeState, Tensors] | PendingUpload:
        """Return the next state and the reply's body; for a checked request for an upload, what is still to compute."""
        # Number and stage are compared with themselves: here only run, sender and receiver are checked.
        message.check(run=self.run, round=message.round, stage=message.stage, sender=SERVER, receiver=self.client)
        if (outside := self._outside(state, message)) is not None:
            return outside
        if "session/cohort" in message.body:
            if state.out >= MOST_OUT:  # the last one that it sat out is brought to its end
                raise ClientDeclines(
                    f"this client sat out of {MOST_OUT} exchanges and takes no further part in the run"
                )
            state = self._open(state, message)
        if state.session is None or state.header is None or message.round != state.session.round:
            raise ContradictionError(message.sender, f"exchange {message.round} is not open here")
        if message.stage == self._defense.aggregation.upload:
            return self._accept(state, message)
        request = replace(message, body=unnest("protocol", message.body))
        protocol, reply = self._defense.aggregation.client_step(state.protocol, request, None)
        if self._releasing is not None and (release := self._releasing.client_releases(state.protocol, protocol)):
            # checked and reserved in one write; refused, the state stays as it was and nothing is sent
            self.sums.change_sums(lambda sums: sums.admitted(self.run, release, self._facts.rule))
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
        counted = CountedExchanges.read(message, header.cohort, followed=self._schema.needs_outcome)
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
        source = context.source if self._facts.rule.sources else b""
        self.sums.change_sums(lambda sums: sums.checked_absences(source))
        request = replace(message, body=unnest("protocol", message.body))
        protocol = self._defense.aggregation.client_accept(state.protocol, request, context)
        state = replace(state, protocol=protocol)
        return PendingUpload(message, state, number, broadcast, source=source)

    def _charge(self, state: ClientNodeState) -> None:
        """Charge the client's ledger for the exchange."""
        assert state.session is not None
        if self.ledger is not None:
            charge(self.ledger, self.run, state.session.round, self._cost(state))

    def _cost(self, state: ClientNodeState) -> PrivacyCost:
        """Compute the privacy cost of answering the exchange."""
        assert state.session is not None
        return cost_of(self._defense, state.session.plan)

    def _advance(self, tentative: Any, followed: Tensors | None) -> Any:
        """Make the committed state of a tentative one whose contribution is in a sum."""
        return tentative

    def _outside(self, state: ClientNodeState, message: Message) -> tuple[ClientNodeState, Tensors] | None:
        """Answer a message outside any exchange; `None` for one that is of an exchange. A sum has none outside."""
        return None

    def _upload(self, state: ClientNodeState, encoded: Tensors | None) -> tuple[ClientNodeState, Tensors]:
        """Upload an encoded contribution; `None` is for a client that sits out where the defence hides uploads."""
        protocol, reply = self._defense.aggregation.client_upload(state.protocol, encoded)
        kept = state.encoded if encoded is None or not self._keep else without_indicator_tensor(encoded)
        state = self._remember(replace(state, protocol=protocol, encoded=kept))
        if state.trains and (verifying := self._verifying) is not None:
            state = replace(state, sum_key=verifying.client_keeps(protocol))  # by which `_commits` checks the sum
        return state, reply

    def _without(self, state: ClientNodeState, error: Exception) -> tuple[ClientNodeState, Tensors]:
        """Upload for a client without a contribution, or raise `error` if the defence hides nothing."""
        assert state.session is not None
        plan, before, self.absence = state.session.plan, self.absence, error
        if not self._facts.hide_absence:
            raise error
        log_absence(self.client, before, error, state.session.round, now=self.simulated)
        encoded = None if has_indicator(plan) else self._defense.encode(zeros(plan), plan)
        return self._upload(absent_state(state), encoded)

    def _remember(self, state: ClientNodeState) -> ClientNodeState:
        """Keep what the aggregation must know in later exchanges, such as a pinned key."""
        kept = state.memory if self._remembering is None else self._remembering.client_memory(state.protocol)
        return replace(state, memory=kept)

    def _open(self, state: ClientNodeState, message: Message) -> ClientNodeState:
        """Open the exchange that a request's header describes, after checking that it is new and in the schedule."""
        if message.round <= state.last_round:
            raise ContradictionError(message.sender, f"exchange {message.round} was opened before: a replay")
        header = ExchangeHeader.read(message, self.client, self._schema.clients, len(self._facts.learned))
        if header.kind not in self._schema.layouts:
            raise MalformedError(message.sender, f"it asks for a sum of kind {header.kind}, which this run has not")
        session = self.session(message.round, header)
        if (size := len(header.cohort)) > session.plan.clients:
            raise MalformedError(message.sender, f"cohort of {size} exceeds the planned {session.plan.clients}")
        place = self.exchanges.check(state.place, header)  # its position in the run's schedule
        if self._pipelined is not None and state.protocol is not None:
            protocol = self._pipelined.client_resume(session, self.client, state.protocol)
        else:
            protocol = self.protocol_for(session)
        if self._remembering is not None:
            protocol = self._remembering.client_remind(protocol, state.memory)
        return replace(state, header=header, session=session, protocol=protocol, last_round=message.round, place=place)

    def freeze(self, *, learned: bool = False) -> bytes:
        """Return the whole state, the secrets of the current exchange included. Inverse: `thaw`.

        Never go on from a state that is older than an answer to a request for an upload: the client would mask two
        uploads alike. Freeze after every answer, and keep only the newest, sealed where others can read the disk.

        Args:
            learned: leave out the current exchange with its secrets, so that only what was learned is written: for a
                file that outlives the exchange.
        """
        state, values, tensors = self.state, {}, self.learned()
        if not learned and state.session is not None and state.header is not None:
            values = {"exchange": state.session.round, "header": state.header.to_json()}
            tensors |= nest("protocol", pack(state.protocol))
        owner = {"run": self.run, "client": self.client, "terms": self.terms}
        return frozen(f"client {self.client}", owner, values, tensors)

    def learned(self) -> dict[str, Array]:
        """Pack what outlives an exchange, and of which sums the data are part where no ledger of its own has that."""
        sums = nest("sums", self.sums.sums.to_tensors()) if self._freezes_sums else {}
        return self.state.learned() | sums

    def relearn(self, tensors: Tensors) -> ClientNodeState:
        """Return the state of this client, just enrolled, with what `learned` packed.

        Raises:
            DataError: a field is missing.
        """
        if self._freezes_sums:
            self.sums.remember(SumMemory.from_tensors(unnest("sums", tensors)))
        return self.state.relearned(tensors)

    def thaw(self, data: bytes, *, resumes: str | None = None) -> None:
        """Restore what `freeze` returned of the same client, enrolled with its data.

        Args:
            data: the bytes.
            resumes: identifier of a run that died, where this run resumes from its checkpoint: only the learned state
                is taken over, because the secrets of the exchange belong to the old run.

        Raises:
            StorageError: not a frozen state, of another version, run or client, or of other hyper-parameters.
        """
        party, owner = f"client {self.client}", {"run": resumes or self.run, "client": self.client, "terms": self.terms}
        values, tensors = thawed(data, party, owner, "give the client's own", anew="enrol the client anew")
        with complete(party):
            state = self.relearn(tensors)
            if resumes is not None:
                # Replays are recognised by the new run's identifier, and the round in which the old run died is
                # repeated.
                state = replace(state, last_round=-1, place=BEFORE_ALL)
            elif "header" in values:
                opened = ExchangeHeader.from_json(values["header"])
                session = self.session(values["exchange"], opened)
                protocol = restore(self.protocol_for(session), unnest("protocol", tensors))
                state = replace(state, header=opened, session=session, protocol=protocol)
        self.state = state
