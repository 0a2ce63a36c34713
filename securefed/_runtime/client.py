"""Answer the server's messages for a client of a federated algorithm: `SumNode` does the protocol of each sum.

At the upload the client computes its contribution from the server's broadcast by the algorithm. Two messages stand
outside exchanges: `COMMIT` tells the outcome of the last round, `REVEAL` asks for scalars by which the algorithm
selects clients. Callers hand each message to `ClientNode.handle`: transports, and the Flower client.

Simulated clients answer together (`ClientBatch`): `Federation` makes one batch of them, and the in-process transport
hands it each stage's messages. Every client still accepts its request and protects its contribution by itself; only the
contributions are computed together, for speed: results agree with the client-by-client path up to rounding, which
depends on the clients in the batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from securefed._messages import ClientId, Message, PartyId
from securefed._persistence.packing import unnest
from securefed._public import Public
from securefed._runtime.client_state import ClientNodeState, ComputedContribution, PendingUpload
from securefed._runtime.cohorts import selecting
from securefed._runtime.exchange_header import EVALUATE, TRAIN, integers
from securefed._runtime.privacy_cost import PrivacyCost, cost_of
from securefed._runtime.sum_facts import SumFacts
from securefed._runtime.sum_node import SumNode
from securefed._tensors import Tensors
from securefed._transports import BatchEndpoint
from securefed.algorithms._base import Algorithm, RoundOutcome
from securefed.algorithms._capabilities import SupportsBatches, SupportsPrivacyCost, supports
from securefed.algorithms._validation import check_contribution
from securefed.datasets._base import Dataset
from securefed.errors import BudgetSpent, ContradictionError, MalformedError, SecureFedError

COMMIT, REVEAL = "commit", "reveal"


@dataclass(frozen=True, kw_only=True)
class AlgorithmFacts(SumFacts):
    """The facts of a sum, and the algorithm that computes its contributions (`Terms`).

    Attributes:
        algorithm: the method with its hyper-parameters.
        public: the public facts.
        seed: seeds initial states, cohorts and mini-batches, NOT any secret: secrets come from the operating system.
        reveals: whether clients send the server, in the clear, scalars that the algorithm selects clients by.
    """

    algorithm: Algorithm[Any, Any]
    public: Public
    seed: int
    reveals: bool


class ClientNode(SumNode):
    """Answers the server's messages for one client: one algorithm, one data set.

    Args:
        client: this client's id.
        run: the run it belongs to; messages of another run are refused.
        terms: what all parties agreed on.
        data: this client's rows.
        settings: as of `SumNode`.
    """

    batch: BatchEndpoint | None = None
    """Answers a stage for many simulated clients at once, this one included; the in-process transport calls it instead
    of `handle`. `None` for a client that answers alone."""

    def __init__(self, client: ClientId, run: str, terms: AlgorithmFacts, data: Dataset, **settings: Any) -> None:
        self.algorithm, self._agreed = terms.algorithm, terms
        super().__init__(client, run, terms, **settings)
        own: Any = self.algorithm
        self._spending: SupportsPrivacyCost[Any] | None = own if supports(own, SupportsPrivacyCost) else None
        with noted(f"client {client}"):
            self.state = ClientNodeState(self.algorithm.enroll(data, terms.public, self._rng(0)))

    @property
    def terms(self) -> str:
        """The terms that this client agreed to, as text: algorithm, defence, public facts and seed."""
        return f"{self.algorithm!r}; {self._defense!r}; {self._agreed.public!r}; seed {self._agreed.seed}"

    def handle(self, message: Message) -> Message:
        """Answer one message; the reply is a named refusal where the message cannot be answered."""
        begun = self.begin(message)
        return begun if isinstance(begun, Message) else self.finish(begun, self.compute(begun))

    def compute(self, pending: PendingUpload) -> ComputedContribution:
        """Compute the contribution that `pending` waits for; return the exception if that fails.

        `ClientBatch` computes for many simulated clients at once instead.
        """
        state, header = pending.state, pending.state.header
        assert header is not None
        if pending.fault is not None:
            return pending.fault
        try:
            if header.kind == EVALUATE:
                return None, self.algorithm.evaluate(state.committed, pending.broadcast)
            return self.algorithm.contribute(state.committed, pending.broadcast, self.rng(pending))
        except Exception as error:
            if not (self._facts.hide_absence or isinstance(error, SecureFedError)):
                error.add_note(f"client {self.client}, round {pending.message.round}")
                raise
            return error

    def finish(self, pending: PendingUpload, computed: ComputedContribution) -> Message:
        """Build the reply. Privacy that the algorithm's own noise spent counts whether or not the reply arrives.

        Raises:
            ConfigError: a simulated client's contribution breaks the layout; the run ends, to find errors early.
        """
        trains, fails = pending.state.trains, isinstance(computed, Exception)
        if self.simulated and trains and not fails:
            check_contribution(self.algorithm, computed, self._schema.layouts[TRAIN])
        if self._spending is not None:
            if isinstance(computed, BudgetSpent):
                return self._refuse(pending.message, computed)  # public: it follows from rounds and numbers of rows
            if trains and not isinstance(computed, Exception):
                try:
                    self.state = _with_cost(self.state, self._spending, computed[0])
                except SecureFedError as error:
                    return self._refuse(pending.message, error)
        return super().finish(pending, computed)

    def rng(self, pending: PendingUpload) -> np.random.Generator:
        """Return the generator of a contribution, for mini-batches and the like; a repeated sum draws others."""
        header = pending.state.header
        assert header is not None
        attempt = () if header.attempt == 0 else (2, header.attempt)
        return self._rng(header.round + 1, *attempt)

    def personal(self) -> Tensors | None:
        """Return the algorithm's personal result for this client."""
        return self.algorithm.personal(self.state.committed)

    def _rng(self, round: int, *purpose: int) -> np.random.Generator:
        """Return a generator that no other use shares; `round` is a number that depends on the use.

        Without `purpose`: 0 to enrol, else 1 + `header.round`, to contribute to a training round. With purpose (2, a):
        the same at attempt a > 0. With 1: 1 + `message.round`, to reveal scalars, as no header is at hand then.
        """
        return np.random.default_rng([self._agreed.seed, self.client, round, *purpose])

    def _cost(self, state: ClientNodeState) -> PrivacyCost:
        """Compute the privacy cost of answering the exchange, the algorithm's own noise included."""
        assert state.session is not None
        spending = self._spending if state.trains else None
        steps = None if spending is None else spending.noised_steps(state.committed)
        return cost_of(self._defense, state.session.plan, steps)

    def _advance(self, tentative: Any, followed: Tensors | None) -> Any:
        with noted(f"client {self.client}"):
            return self.algorithm.commit(tentative, RoundOutcome(True, followed))

    def _outside(self, state: ClientNodeState, message: Message) -> tuple[ClientNodeState, Tensors] | None:
        """Answer how the last round ended, and what a selection asks for; `None` for a message of an exchange."""
        if message.stage not in (COMMIT, REVEAL):
            return None
        if message.round <= state.last_round:
            raise ContradictionError(message.sender, f"{message.stage} at exchange {message.round} again: a replay")
        chooser = selecting(self.algorithm) if message.stage == REVEAL and self._agreed.reveals else None
        if message.stage == REVEAL and chooser is None:
            raise MalformedError(message.sender, "it asks for scalars that this client did not agree to reveal")
        counted = int(integers(message, "commit/round", 0))
        self._commits.check(state, message, counted)
        self._commits.followed(message, unnest("broadcast", message.body))
        state, _ = self._commits.commit(replace(state, last_round=message.round), message, counted)
        if chooser is None:
            return state, {}
        found = chooser.reveal(state.committed, self._rng(message.round + 1, 1))
        return state, {name: np.asarray(float(found[name])) for name in chooser.reveals}


@contextmanager
def noted(where: str) -> Iterator[None]:
    """Note on an error of the algorithm at which client it occurred; Python shows notes below the error."""
    try:
        yield
    except Exception as error:
        error.add_note(where)
        raise


def _with_cost(state: ClientNodeState, algorithm: SupportsPrivacyCost[Any], computed: Any) -> ClientNodeState:
    """Add the privacy cost of a computed contribution to both states, so that resuming from either keeps it.

    Args:
        state: the client's state before the upload.
        algorithm: trains with noise of its own (DP-SGD), and counts its cost in its states.
        computed: the algorithm's state after the contribution, which holds the new cost.
    """
    tentative = None if state.tentative is None else algorithm.spend(state.tentative, computed)
    return replace(state, committed=algorithm.spend(state.committed, computed), tentative=tentative)


class ClientBatch:
    """Simulated clients that run the same algorithm and answer a stage together (a `BatchEndpoint`).

    Args:
        nodes: the clients, by id.
    """

    def __init__(self, nodes: Mapping[PartyId, ClientNode]) -> None:
        self._nodes = nodes

    def handle_all(self, messages: Mapping[PartyId, Message]) -> dict[PartyId, Message]:
        """Answer one message of each client."""
        replies: dict[PartyId, Message] = {}
        waiting: dict[PartyId, PendingUpload] = {}
        for party, message in messages.items():
            begun = self._nodes[party].begin(message)
            if isinstance(begun, PendingUpload):
                waiting[party] = begun
            else:
                replies[party] = begun
        for party, computed in self._compute(waiting).items():
            replies[party] = self._nodes[party].finish(waiting[party], computed)
        return replies

    def _compute(self, waiting: Mapping[PartyId, PendingUpload]) -> dict[PartyId, ComputedContribution]:
        """Compute all clients' contributions; an exception stands for a client that has none."""
        out: dict[PartyId, ComputedContribution] = {}
        for parties in _alike(waiting):
            algorithm = self._nodes[parties[0]].algorithm
            train = all(waiting[party].fault is None and waiting[party].state.trains for party in parties)
            if len(parties) == 1 or not train or not supports(algorithm, SupportsBatches):
                out |= {party: self._nodes[party].compute(waiting[party]) for party in parties}
                continue
            states = [waiting[party].state.committed for party in parties]
            rngs = [self._nodes[party].rng(waiting[party]) for party in parties]
            computed: Sequence[ComputedContribution]
            try:
                computed = algorithm.contribute_together(states, waiting[parties[0]].broadcast, rngs)
            except Exception:  # one client's data failed: computed alone, that client refuses or sits out
                computed = [self._nodes[party].compute(waiting[party]) for party in parties]
            out |= dict(zip(parties, computed, strict=True))
        return out


def _alike(waiting: Mapping[PartyId, PendingUpload]) -> list[list[PartyId]]:
    """Group clients by the broadcast they received: one group, unless server or transport sent different ones."""
    groups: list[list[PartyId]] = []
    for party, pending in waiting.items():
        for group in groups:
            first = waiting[group[0]].broadcast
            if all(np.array_equal(first[name], pending.broadcast[name]) for name in first):
                group.append(party)
                break
        else:
            groups.append([party])
    return groups
