"""What a client keeps between messages, and between a request for an upload and its answer."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from securefed.algorithms.spending import Spending
from securefed.defenses.base import Session
from securefed.exchange_schedule import BEFORE_ALL, Place
from securefed.messages import Message
from securefed.opening import Opening
from securefed.state import local
from securefed.tensors import Array, Tensors


@dataclass(frozen=True)
class NodeState:
    """What a client keeps between messages (packs with `securefed.state`, save what is marked local).

    Attributes:
        committed: the algorithm's state that the server's sums agree with.
        committed_round: the exchange whose contribution `committed` counts last.
        followed: digest of the broadcast that `committed` was told followed from that exchange, where it needs one.
        tentative: the state its last contribution left behind; `tentative_round` says which exchange.
        last_round: the newest exchange it took part in; older ones are replays.
        place: of that exchange in the run (`ExchangeSchedule`).
        out: exchanges of the run that this client sat out.
        absent: whether the tentative state is of a contribution that it did not have: there is nothing to commit.
        stuck: whether a round that counted it could not be committed, so that it has nothing right to contribute.
        opening, session, protocol: of the exchange under way.
        encoded: its last encoded contribution (for simulations that score collusion).
        memory: what the defence's protocol must not forget of earlier exchanges, in a resumed run too.
        sum_key: what the sum of exchange `tentative_round` will be checked with; empty where sums are not checked.
    """

    committed: Any = local(repr=False)
    committed_round: int = -1
    followed: bytes = b""
    tentative: Any = local(default=None, repr=False)
    tentative_round: int = -1
    last_round: int = -1
    place: Place = BEFORE_ALL
    out: int = 0
    absent: bool = False
    stuck: bool = False
    opening: Opening | None = local(default=None)
    session: Session | None = local(default=None)
    protocol: Any = local(default=None, repr=False)
    encoded: Tensors | None = local(default=None, repr=False)
    sum_key: bytes = field(default=b"", repr=False)
    memory: Array = field(default_factory=lambda: np.zeros(0, np.uint8), repr=False)


def with_cost(state: NodeState, algorithm: Spending[Any], computed: Any) -> NodeState:
    """`state` with the cost of what was computed, which no roll-back undoes."""
    tentative = None if state.tentative is None else algorithm.spend(state.tentative, computed)
    return replace(state, committed=algorithm.spend(state.committed, computed), tentative=tentative)


@dataclass(frozen=True)
class Pending:
    """A request that a client has accepted, and will answer once its contribution is computed.

    Attributes:
        state: the client's, with the exchange used up.
        counted: the exchange that counted it last, from the list that enters the context.
        fault: why there will be no contribution, where that is known before anything is computed.
    """

    message: Message
    state: NodeState
    counted: int
    broadcast: Tensors
    rng: np.random.Generator
    fault: Exception | None = None


Computed = tuple[Any, Tensors] | Exception
"""A tentative state and a contribution, or why there is none."""
