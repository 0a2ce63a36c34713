"""A client's end of the wire: one algorithm, one defence, one committed state.

The node answers requests; it never speaks first. A state that a round left behind is TENTATIVE until the server's
next request says that the round's sum counted it; otherwise the client resumes from its last committed state.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from securefed.algorithms.base import Algorithm, Outcome, Public
from securefed.datasets.base import Dataset
from securefed.defenses.base import Defense, Session
from securefed.errors import (
    ContradictionError,
    DataError,
    DivergenceError,
    MalformedError,
    MessageRefused,
    RangeRefused,
    SecureFedError,
)
from securefed.messages import REFUSAL, SERVER, ClientId, Message
from securefed.state import from_bytes, local, nest, unnest
from securefed.tensors import Array, Layout, Tensors

TRAIN, EVALUATE, SETTLE = "train", "evaluate", "settle"
_KINDS = (TRAIN, EVALUATE)
MAX_DOUBLINGS = 20
"""How often the declared range of one kind of exchange may be doubled in a run."""


@dataclass(frozen=True)
class NodeState:
    """What a client keeps between messages (packs with `securefed.state`, save what is marked local).

    Attributes:
        committed: the algorithm's state that the server's sums agree with.
        tentative: the state its last contribution left behind; `tentative_round` says which exchange.
        last_round: the newest exchange it took part in; older ones are replays.
        session, protocol: of the exchange under way.
        kind: what the exchange under way sums.
        encoded: its last encoded contribution (for simulations that score collusion).
    """

    committed: Any = local(repr=False)
    tentative: Any = local(default=None, repr=False)
    tentative_round: int = -1
    last_round: int = -1
    session: Session | None = local(default=None)
    protocol: Any = local(default=None, repr=False)
    kind: str = TRAIN
    encoded: Tensors | None = local(default=None, repr=False)


class ClientNode:
    """Answers the server's messages for one client.

    Args:
        client: this client's id.      run: the run it belongs to; messages of another run are refused.
        seed: of the algorithm's randomness (mini-batches), NOT of any secret: those come from the operating system.
    """

    def __init__(
        self,
        client: ClientId,
        run: str,
        algorithm: Algorithm[Any, Any],
        data: Dataset,
        public: Public,
        defense: Defense,
        seed: int,
    ) -> None:
        self.client, self.run = client, run
        self._algorithm, self._public, self._defense, self._seed = algorithm, public, defense, seed
        self._layouts = layouts(algorithm, public)
        # Shapes of a broadcast follow from public facts, so a malformed one is refused before the algorithm sees it.
        example = algorithm.broadcast(algorithm.start(public, np.random.default_rng(0)))
        self._broadcast = Layout.of(example)
        self._dtypes = {name: np.asarray(value).dtype for name, value in example.items()}
        self.state = NodeState(algorithm.enroll(data, public, self._rng(0)))

    def handle(self, message: Message) -> Message:
        """The reply; a refusal by name where the message cannot be answered. The state changes only with an answer."""
        try:
            self.state, body = self._step(self.state, message)
        except SecureFedError as error:
            return self._reply(message, REFUSAL, refusal_body(error))
        return self._reply(message, message.stage, body)

    def personal(self) -> Tensors | None:
        """The algorithm's personal result for this client."""
        return self._algorithm.personal(self.state.committed)

    def _reply(self, message: Message, stage: str, body: Tensors) -> Message:
        return Message(self.run, message.round, stage, self.client, SERVER, body)

    def _rng(self, round: int) -> np.random.Generator:
        return np.random.default_rng([self._seed, self.client, round])

    def _step(self, state: NodeState, message: Message) -> tuple[NodeState, Tensors]:
        message.check(run=self.run, round=message.round, stage=message.stage, sender=SERVER, receiver=self.client)
        if message.stage == SETTLE:
            if message.round <= state.last_round:
                raise ContradictionError(message.sender, f"settling at exchange {message.round} again: a replay")
            return replace(self._settle(state, message), last_round=message.round), {}
        if "session/cohort" in message.body:
            state = self._open(state, message)
        if state.session is None or message.round != state.session.round:
            raise ContradictionError(message.sender, f"exchange {message.round} was never opened here")
        encoded = None
        if message.stage == self._defense.aggregation.upload:
            state = self._settle(state, message)
            broadcast = unnest("broadcast", message.body)
            self._check_broadcast(message, broadcast)
            state, encoded = self._contribute(state, broadcast)
        request = replace(message, body=unnest("protocol", message.body))
        protocol, reply = self._defense.aggregation.client_step(state.protocol, request, encoded)
        return replace(state, protocol=protocol), reply

    def _open(self, state: NodeState, message: Message) -> NodeState:
        if message.round <= state.last_round:
            raise ContradictionError(message.sender, f"exchange {message.round} was opened before: a replay")
        try:
            cohort = tuple(int(i) for i in _integers(message, "session/cohort", 1))
            doublings = int(_integers(message, "session/doublings", 0))
            kind = dict(enumerate(_KINDS))[int(_integers(message, "session/kind", 0))]
        except KeyError as error:
            raise MalformedError(message.sender, f"no such kind of exchange: {error}") from error
        if not 0 <= doublings <= MAX_DOUBLINGS:
            raise MalformedError(
                message.sender, f"the range may be doubled 0 to {MAX_DOUBLINGS} times, not {doublings}"
            )
        if self.client not in cohort or not set(cohort) <= set(range(self._public.clients)):
            raise MalformedError(message.sender, f"cohort {cohort} does not fit client {self.client} of this run")
        plan = self._defense.plan(self._layouts[kind], self._public.cohort, range_doublings=doublings)
        if len(cohort) > plan.clients:
            raise MalformedError(message.sender, f"cohort of {len(cohort)} exceeds the planned {plan.clients}")
        session = Session(self.run, message.round, cohort, plan)
        protocol = self._defense.aggregation.client_open(session, self.client)
        return replace(state, session=session, protocol=protocol, kind=kind, last_round=message.round)

    def _settle(self, state: NodeState, message: Message) -> NodeState:
        """Commit or forget the tentative state, by the last exchange in which the server counted this client."""
        counted = int(_integers(message, "settle/round", 0))
        if state.tentative is None:
            return state
        if counted != state.tentative_round:
            return replace(state, tentative=None, tentative_round=-1)
        followed = None
        if self._algorithm.needs_outcome:
            followed = unnest("settle/broadcast", message.body) or unnest("broadcast", message.body)
            self._check_broadcast(message, followed)
        committed = self._algorithm.settle(state.tentative, Outcome(True, followed))
        return replace(state, committed=committed, tentative=None, tentative_round=-1)

    def _check_broadcast(self, message: Message, broadcast: Tensors) -> None:
        try:
            self._broadcast.check(broadcast, where="broadcast")
        except (DataError, TypeError) as error:
            raise MalformedError(message.sender, str(error)) from error
        for name, value in broadcast.items():
            if value.dtype != self._dtypes[name]:
                raise MalformedError(message.sender, f"broadcast {name!r} is {value.dtype}, not {self._dtypes[name]}")

    def _contribute(self, state: NodeState, broadcast: Tensors) -> tuple[NodeState, Tensors]:
        session = state.session
        assert session is not None
        if state.kind == EVALUATE:
            raw = self._algorithm.evaluate(state.committed, broadcast)
        else:
            tentative, raw = self._algorithm.contribute(state.committed, broadcast, self._rng(session.round + 1))
            state = replace(state, tentative=tentative, tentative_round=session.round)
        encoded = self._defense.encode(raw, session.plan)
        return replace(state, encoded=encoded), encoded


def _integers(message: Message, name: str, dimensions: int) -> Array:
    """An integer field of a request. Raises `MalformedError` unless it is int64 with so many dimensions."""
    value = message.body.get(name)
    if value is None or value.dtype != np.int64 or value.ndim != dimensions:
        raise MalformedError(message.sender, f"{name!r} is missing or no int64 array of {dimensions} dimensions")
    return value


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


def open_body(cohort: tuple[ClientId, ...], kind: str, doublings: int) -> dict[str, Array]:
    """What opens an exchange at a client."""
    return nest(
        "session",
        {
            "cohort": np.asarray(cohort, np.int64),
            "kind": np.asarray(_KINDS.index(kind), np.int64),
            "doublings": np.asarray(doublings, np.int64),
        },
    )


def layouts(algorithm: Algorithm[Any, Any], public: Public) -> dict[str, Layout]:
    """The layout of each kind of exchange."""
    return {TRAIN: algorithm.layout(public), EVALUATE: algorithm.evaluation_layout(public)}
