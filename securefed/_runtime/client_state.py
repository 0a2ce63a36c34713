"""State that a client keeps between messages, and between a request for an upload and its answer."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from securefed._messages import Message
from securefed._persistence.packing import local
from securefed._runtime.exchange_header import ExchangeHeader
from securefed._runtime.exchange_schedule import BEFORE_ALL, ExchangePosition
from securefed._tensors import Array, Tensors
from securefed.algorithms._capabilities import SupportsPrivacyCost
from securefed.defenses._base import Session


@dataclass(frozen=True)
class ClientNodeState:
    """State that a client keeps between messages; fields marked local are not packed with the rest.

    Attributes:
        committed: the algorithm's state that the server's sums agree with.
        committed_round: the exchange whose contribution `committed` counts last.
        followed: digest of the broadcast that followed from that exchange, for algorithms whose clients need it.
        tentative: the state after its last contribution, not committed yet.
        tentative_round: the exchange of that contribution.
        last_round: the newest exchange it took part in; older ones are replays.
        place: position of exchange `last_round` in the run (`ExchangeSchedule`).
        out: number of exchanges of the run that this client sat out.
        absent: whether the client sat out of exchange `tentative_round`, so that there is nothing to commit.
        stuck: whether committing a round failed, so that the client has no valid state to contribute from.
        header: header of the current exchange.
        session: session of the current exchange.
        protocol: the defence's protocol state in the current exchange.
        encoded: its last encoded contribution (for simulations that score collusion).
        memory: what the defence's protocol must remember of earlier exchanges, also in a resumed run.
        sum_key: key that checks the sum of exchange `tentative_round`; empty where sums are not checked.
    """

    committed: Any = local(repr=False)
    committed_round: int = -1
    followed: bytes = b""
    tentative: Any = local(default=None, repr=False)
    tentative_round: int = -1
    last_round: int = -1
    place: ExchangePosition = BEFORE_ALL
    out: int = 0
    absent: bool = False
    stuck: bool = False
    header: ExchangeHeader | None = local(default=None)
    session: Session | None = local(default=None)
    protocol: Any = local(default=None, repr=False)
    encoded: Tensors | None = local(default=None, repr=False)
    sum_key: bytes = field(default=b"", repr=False)
    memory: Array = field(default_factory=lambda: np.zeros(0, np.uint8), repr=False)


def with_cost(state: ClientNodeState, algorithm: SupportsPrivacyCost[Any], computed: Any) -> ClientNodeState:
    """Add the privacy cost of a computed contribution to both states, so that resuming from either keeps it."""
    tentative = None if state.tentative is None else algorithm.spend(state.tentative, computed)
    return replace(state, committed=algorithm.spend(state.committed, computed), tentative=tentative)


@dataclass(frozen=True)
class PendingUpload:
    """A request for an upload that a client has accepted and not answered yet.

    Attributes:
        message: the request.
        state: the client's state after it used the exchange up: it answers no second request for an upload in it.
        counted: the exchange that counted the client last, from the list that enters the context.
        broadcast: what the contribution is computed from.
        rng: generator for mini-batches and the like.
        fault: the error for which there will be no contribution, if it is known before computing.
    """

    message: Message
    state: ClientNodeState
    counted: int
    broadcast: Tensors
    rng: np.random.Generator
    fault: Exception | None = None


ComputedContribution = tuple[Any, Tensors] | Exception
"""A tentative state and a contribution, or the error for which there is none."""
