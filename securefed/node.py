"""A client's end of the wire: one algorithm, one defence, one committed state.

The node answers requests; it never speaks first. A state that a round left behind is TENTATIVE until the server's
next request says that the round's sum counted it; otherwise the client resumes from its last committed state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from securefed.algorithms.base import Algorithm, Outcome, Public, Selecting
from securefed.algorithms.spending import Spending
from securefed.datasets.base import Dataset
from securefed.defenses.base import Defense, Session
from securefed.defenses.capabilities import Pipelined, Preparing, Remembering, Verifying
from securefed.errors import (
    ContradictionError,
    DataError,
    DivergenceError,
    MalformedError,
    MessageRefused,
    RangeRefused,
    SecureFedError,
)
from securefed.messages import REFUSAL, SERVER, ClientId, Message, PartyId
from securefed.opening import EVALUATE, TRAIN, Opening, integers
from securefed.privacy import remembers
from securefed.state import from_bytes, local, unnest
from securefed.tensors import Array, Layout, Tensors
from securefed.transports.base import Crew

SETTLE, REVEAL = "settle", "reveal"


@dataclass(frozen=True)
class NodeState:
    """What a client keeps between messages (packs with `securefed.state`, save what is marked local).

    Attributes:
        committed: the algorithm's state that the server's sums agree with.
        committed_round: the exchange whose contribution `committed` counts last.
        tentative: the state its last contribution left behind; `tentative_round` says which exchange.
        last_round: the newest exchange it took part in; older ones are replays.
        opening, session, protocol: of the exchange under way.
        encoded: its last encoded contribution (for simulations that score collusion).
        memory: what the defence's protocol must not forget of earlier exchanges, in a resumed run too.
        sum_key: what the sum of exchange `tentative_round` will be checked with; empty where sums are not checked.
    """

    committed: Any = local(repr=False)
    committed_round: int = -1
    tentative: Any = local(default=None, repr=False)
    tentative_round: int = -1
    last_round: int = -1
    opening: Opening | None = local(default=None)
    session: Session | None = local(default=None)
    protocol: Any = local(default=None, repr=False)
    encoded: Tensors | None = local(default=None, repr=False)
    sum_key: bytes = field(default=b"", repr=False)
    memory: Array = field(default_factory=lambda: np.zeros(0, np.uint8), repr=False)


@dataclass(frozen=True)
class Contract:
    """What all parties of a run derive from public facts alone: the tensors of every message.

    Attributes:
        layouts: of each kind of exchange.      broadcast, dtypes: of what the server sends.
    """

    algorithm: Algorithm[Any, Any]
    public: Public
    layouts: Mapping[str, Layout]
    broadcast: Layout
    dtypes: Mapping[str, np.dtype[Any]]

    @classmethod
    def of(cls, algorithm: Algorithm[Any, Any], public: Public) -> Contract:
        """Raises `ConfigError` where parameters and data clash."""
        layouts = {TRAIN: algorithm.layout(public), EVALUATE: algorithm.evaluation_layout(public)}
        example = algorithm.broadcast(algorithm.start(public, np.random.default_rng(0)))
        dtypes = {name: np.asarray(value).dtype for name, value in example.items()}
        return cls(algorithm, public, layouts, Layout.of(example), dtypes)

    def check_broadcast(self, sender: PartyId, broadcast: Tensors) -> None:
        """Raise `MalformedError` for a broadcast of other names, shapes or types, before the algorithm sees it."""
        try:
            self.broadcast.check(broadcast, where="broadcast")
        except (DataError, TypeError) as error:
            raise MalformedError(sender, str(error)) from error
        for name, value in broadcast.items():
            if value.dtype != self.dtypes[name]:
                raise MalformedError(sender, f"broadcast {name!r} is {value.dtype}, not {self.dtypes[name]}")


@dataclass(frozen=True)
class Pending:
    """A request that a client will answer once its contribution is computed."""

    message: Message
    state: NodeState
    broadcast: Tensors
    rng: np.random.Generator


Computed = tuple[Any, Tensors] | SecureFedError
"""A tentative state and a contribution, or why there is none."""


class ClientNode:
    """Answers the server's messages for one client.

    Args:
        client: this client's id.      run: the run it belongs to; messages of another run are refused.
        seed: of the algorithm's randomness (mini-batches), NOT of any secret: those come from the operating system.
        keep: whether the last encoded contribution is kept, for simulations that score collusion.
        reveal: whether this client agrees to reveal the scalars that the algorithm's selection asks for.
    """

    crew: Crew | None = None

    def __init__(
        self,
        client: ClientId,
        run: str,
        contract: Contract,
        data: Dataset,
        defense: Defense,
        seed: int,
        *,
        keep: bool = True,
        reveal: bool = False,
    ) -> None:
        self.client, self.run = client, run
        self.algorithm, self._contract = contract.algorithm, contract
        self._defense, self._seed, self._keep, self._reveal = defense, seed, keep, reveal
        aggregation = defense.aggregation  # what it offers besides is asked once: these checks take a while each
        self._pipelined = aggregation if isinstance(aggregation, Pipelined) else None
        self._remembering = aggregation if isinstance(aggregation, Remembering) else None
        self._verifying = aggregation if isinstance(aggregation, Verifying) else None
        self._spending = self.algorithm if isinstance(self.algorithm, Spending) else None
        self.state = NodeState(self.algorithm.enroll(data, contract.public, self._rng(0)))

    @property
    def terms(self) -> str:
        """What this client agreed to, in words: algorithm, defence, public facts and seed."""
        return f"{self.algorithm!r}; {self._defense!r}; {self._contract.public!r}; seed {self._seed}"

    def handle(self, message: Message) -> Message:
        """The reply; a refusal by name where the message cannot be answered. The state changes only with an answer."""
        begun = self.begin(message)
        return begun if isinstance(begun, Message) else self.finish(begun, self.compute(begun))

    def begin(self, message: Message) -> Message | Pending:
        """The reply, or what it still needs: this client's contribution."""
        try:
            step = self._step(self.state, message)
        except SecureFedError as error:
            return self._refuse(message, error)
        if isinstance(step, Pending):
            return step
        self.state, body = step
        return self._reply(message, message.stage, body)

    def compute(self, pending: Pending) -> Computed:
        """The contribution that `pending` waits for."""
        try:
            return self.algorithm.contribute(pending.state.committed, pending.broadcast, pending.rng)
        except SecureFedError as error:
            return error

    def finish(self, pending: Pending, computed: Computed) -> Message:
        """The reply that sends the contribution."""
        message, state = pending.message, pending.state
        try:
            if isinstance(computed, SecureFedError):
                raise computed
            tentative, raw = computed
            if self._spending is not None:  # whatever becomes of the message
                self.state = _spent(self._spending, self.state, tentative)
                state = _spent(self._spending, state, tentative)
            state = replace(state, tentative=tentative, tentative_round=message.round)
            self.state, body = self._send(state, message, raw)
        except SecureFedError as error:
            return self._refuse(message, error)
        return self._reply(message, message.stage, body)

    def prepare(self) -> None:
        """Do what the defence can do ahead for this client's next upload; to be called while nothing is asked.

        Costs time now and memory of the upload's size, and saves the time when the upload is asked for.
        """
        aggregation = self._defense.aggregation
        if isinstance(aggregation, Preparing) and self.state.protocol is not None:
            self.state = replace(self.state, protocol=aggregation.client_prepare(self.state.protocol))

    def session(self, exchange: int, opening: Opening) -> Session:
        """What binds exchange number `exchange`, derived from public facts and what opened it."""
        layout, clients = self._contract.layouts[opening.kind], self._contract.public.cohort
        plan = self._defense.plan(layout, clients, range_doublings=opening.doublings, learned=opening.learned)
        return Session(self.run, exchange, opening.cohort, plan)

    def protocol_for(self, session: Session) -> Any:
        """A fresh state of the defence's protocol, nothing of an exchange before in it."""
        return self._defense.aggregation.client_open(session, self.client)

    def personal(self) -> Tensors | None:
        """The algorithm's personal result for this client."""
        return self.algorithm.personal(self.state.committed)

    def _reply(self, message: Message, stage: str, body: Tensors) -> Message:
        return Message(self.run, message.round, stage, self.client, SERVER, body)

    def _refuse(self, message: Message, error: SecureFedError) -> Message:
        return self._reply(message, REFUSAL, refusal_body(error))

    def _rng(self, round: int, *purpose: int) -> np.random.Generator:
        return np.random.default_rng([self._seed, self.client, round, *purpose])

    def _step(self, state: NodeState, message: Message) -> tuple[NodeState, Tensors] | Pending:
        message.check(run=self.run, round=message.round, stage=message.stage, sender=SERVER, receiver=self.client)
        if message.stage in (SETTLE, REVEAL):
            if message.round <= state.last_round:
                raise ContradictionError(message.sender, f"{message.stage} at exchange {message.round} again: a replay")
            state = replace(self._settle(state, message), last_round=message.round)
            return state, self._revealed(state, message) if message.stage == REVEAL else {}
        if "session/cohort" in message.body:
            state = self._open(state, message)
        opening = state.opening
        if state.session is None or opening is None or message.round != state.session.round:
            raise ContradictionError(message.sender, f"exchange {message.round} was never opened here")
        if message.stage != self._defense.aggregation.upload:
            return self._send(state, message, None)
        state = self._settle(state, message)
        broadcast = unnest("broadcast", message.body)
        self._contract.check_broadcast(message.sender, broadcast)
        if opening.kind == EVALUATE:
            return self._send(state, message, self.algorithm.evaluate(state.committed, broadcast))
        return Pending(message, state, broadcast, self._rng(message.round + 1))

    def _send(self, state: NodeState, message: Message, raw: Tensors | None) -> tuple[NodeState, Tensors]:
        """One step of the defence's protocol, with the contribution where it is the upload's turn."""
        assert state.session is not None and state.opening is not None
        trains = state.opening.kind == TRAIN
        encoded = None if raw is None else self._defense.encode(raw, state.session.plan)
        request = replace(message, body=unnest("protocol", message.body))
        protocol, reply = self._defense.aggregation.client_step(state.protocol, request, encoded)
        if self._remembering is not None:
            state = replace(state, memory=self._remembering.client_memory(protocol))
        kept = encoded if self._keep and encoded is not None else state.encoded
        if trains and raw is not None and self._verifying is not None:
            state = replace(state, sum_key=self._verifying.client_keeps(protocol))
        return replace(state, protocol=protocol, encoded=kept), reply

    def _revealed(self, state: NodeState, message: Message) -> Tensors:
        algorithm = self.algorithm
        if not (self._reveal and isinstance(algorithm, Selecting) and algorithm.reveals):
            raise MalformedError(message.sender, "it asks for scalars that this client did not agree to reveal")
        found = algorithm.reveal(state.committed, self._rng(message.round + 1, 1))
        return {name: np.asarray(float(found[name])) for name in algorithm.reveals}

    def _open(self, state: NodeState, message: Message) -> NodeState:
        if message.round <= state.last_round:
            raise ContradictionError(message.sender, f"exchange {message.round} was opened before: a replay")
        numbers = len(self._defense.start(self._contract.layouts[TRAIN]))
        opening = Opening.read(message, self.client, self._contract.public.clients, numbers)
        session = self.session(message.round, opening)
        if len(opening.cohort) > session.plan.clients:
            raise MalformedError(
                message.sender, f"cohort of {len(opening.cohort)} exceeds the planned {session.plan.clients}"
            )
        if self._pipelined is not None and state.protocol is not None:
            protocol = self._pipelined.client_resume(session, self.client, state.protocol)
        else:
            protocol = self.protocol_for(session)
        if self._remembering is not None:
            protocol = self._remembering.client_remind(protocol, state.memory)
        return replace(state, opening=opening, session=session, protocol=protocol, last_round=message.round)

    def _settle(self, state: NodeState, message: Message) -> NodeState:
        """Commit or forget the tentative state, by the last exchange in which the server counted this client.

        Raises:
            ContradictionError: the server counted one that this client knows nothing of, or not the one it committed:
                one of the two went on from an older file than the other, and running sums would be off.
        """
        counted = int(integers(message, "settle/round", 0))
        known = {state.committed_round} | (set() if state.tentative is None else {state.tentative_round})
        if counted not in known and remembers(state.committed):
            raise ContradictionError(
                message.sender, f"exchange {counted} was counted last, and this client's state is of {sorted(known)}: "
                "one of both went on from an older file; restore the newest of each",
            )  # fmt: skip
        if state.tentative is None:
            return state
        if counted != state.tentative_round:
            return replace(state, tentative=None, tentative_round=-1, sum_key=b"")
        if state.sum_key:
            self._check_sum(state.sum_key, message)
        followed = None
        if self.algorithm.needs_outcome:
            followed = unnest("settle/broadcast", message.body) or unnest("broadcast", message.body)
            self._contract.check_broadcast(message.sender, followed)
        committed = self.algorithm.settle(state.tentative, Outcome(True, followed))
        return replace(
            state, committed=committed, committed_round=counted, tentative=None, tentative_round=-1, sum_key=b""
        )

    def _check_sum(self, key: bytes, message: Message) -> None:
        """Raise `SumRefused` unless the sum that counted this client is announced, and right."""
        assert self._verifying is not None
        plan = self._defense.plan(self._contract.layouts[TRAIN], self._contract.public.cohort)
        self._verifying.client_check(key, self.client, plan, unnest("settle/announced", message.body))


def _spent(algorithm: Spending[Any], state: NodeState, computed: Any) -> NodeState:
    tentative = None if state.tentative is None else algorithm.spend(state.tentative, computed)
    return replace(state, committed=algorithm.spend(state.committed, computed), tentative=tentative)


def refusal_body(error: SecureFedError) -> dict[str, Array]:
    """A refusal on the wire: the error's name and text. Errors that speak of the client's values send no text."""
    text = "" if isinstance(error, RangeRefused | DivergenceError | DataError) else str(error)
    return {"name": from_bytes(type(error).__name__.encode()), "text": from_bytes(text.encode())}


def read_refusal(message: Message) -> SecureFedError:
    """The error that `refusal_body` described, as the server raises or records it."""
    try:
        name, text = (message.body[key].tobytes().decode() for key in ("name", "text"))
    except (KeyError, UnicodeDecodeError) as error:
        return MalformedError(message.sender, f"refusal without a readable name: {error!r}")
    if name == RangeRefused.__name__:
        return RangeRefused(f"client {message.sender} has values beyond the planned range")
    if name == DivergenceError.__name__:
        return DivergenceError(f"client {message.sender}: its local steps left the numbers; lower the step size")
    return MessageRefused(message.sender, f"it refused in turn: {name}: {text}")
