"""Bind a sum to the model that its updates are computed from: a client refuses a sum of another model.

The requests of a round name the model by its digest (`broadcast_of`), and what clients upload is bound to it, so that
clients which were given different models are not summed. The model itself travels as the caller likes.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from securefed._messages import SERVER, Message
from securefed._public import Public
from securefed._runtime.client_state import ClientNodeState, PendingUpload
from securefed._runtime.exchange_context import tensors_digest
from securefed._runtime.exchange_header import TRAIN
from securefed._runtime.ledger import Ledger
from securefed._runtime.privacy_cost import PrivacyCost
from securefed._runtime.sum_node import SumNode
from securefed._tensors import Array
from securefed.errors import BudgetSpent, ContradictionError

_LOG = logging.getLogger("securefed.client")


BASE: Final = "base"


def no_model(round: int) -> bytes:
    """Return what stands for the model's digest in a round that no model is bound to, 32 bytes.

    It depends on the round only, and binds an upload to it. Two statistics of round 0 have the same one, so that a
    client cannot recognise a contribution by it. Without a model all
    contributions of the same rows count as equal (`SumRule.sources`, rule B in `sum_memory`).
    """
    return hashlib.sha256(f"securefed no model\0{round}".encode()).digest()


def base_array(digest: bytes) -> Array:
    """Return the digest of a model as the tensor that requests hold, uint8 (32,)."""
    return np.frombuffer(digest, np.uint8).copy()


def broadcast_of(base: Mapping[str, Array] | None, round: int) -> dict[str, Array]:
    """Return what the requests of a round tell its clients: the digest of its model, or what stands for it."""
    return {BASE: base_array(no_model(round) if base is None else tensors_digest(base))}


class PartyNode(SumNode):
    """Answers the server's messages for one client, whose contribution the caller gives.

    A request for the upload names a model by its digest, in its broadcast; where the terms bind none, it holds a number
    that follows from the round (`no_model`). After a refusal the exchange is closed: the server cannot try several
    models in it. The ledger counts nothing, because the client sent nothing of its data.

    Attributes:
        base: digest of the model of the update at hand; `None` where the terms bind none.
        trained: whether DP-SGD made the update at hand, in a training that the ledger counts.
        budget: the ledger that limits this run alone to the epsilon of its terms; `None` without a limit.
    """

    base: bytes | None = None
    trained: bool = False
    budget: Ledger | None = None

    @property
    def terms(self) -> str:
        """The terms that this client agreed to, as text; release 0.1 wrote the same into its states."""
        schema = self._schema
        public = Public(schema.clients, schema.cohort, 1, (1,) * schema.clients, 0, 1.0)
        return f"ExternalSum(specs={schema.layouts[TRAIN].specs!r}); {self._defense!r}; {public!r}; seed 0"

    def _cost(self, state: ClientNodeState) -> PrivacyCost:
        cost = super()._cost(state)
        return cost.of_trained() if self.trained else cost

    def _charge(self, state: ClientNodeState) -> None:
        """Charge this run's own budget and the client's ledger; where one of them refuses, neither is charged."""
        budget = self.budget
        if budget is None:
            super()._charge(state)
            return
        assert state.session is not None
        number, cost = state.session.round, self._cost(state)
        try:
            if not Ledger.in_memory(budget.limits, budget.book).charge(self.run, number, cost):  # a trial
                raise ContradictionError(SERVER, f"this client counts that it answered exchange {number} before")
        except BudgetSpent as error:
            _LOG.warning("exchange %d is not answered: of the epsilon that the terms allow: %s", number, error)
            raise BudgetSpent("the epsilon that the terms allow this run is spent, as this client counts") from None
        super()._charge(state)
        budget.charge(self.run, number, cost)

    def _accept(self, state: ClientNodeState, message: Message) -> PendingUpload:
        pending = super()._accept(state, message)
        exchange, named = pending.state.header, pending.broadcast[BASE].tobytes()
        assert exchange is not None  # an accepted request opened an exchange
        own = self.base or no_model(exchange.round)
        if own != named:
            self.state = replace(state, session=None, header=None)
            raise ContradictionError(
                SERVER,
                f"the round is bound to the model {named.hex()[:16]}, and this client computed its update from "
                "another: it was given another model",
            )
        return pending
