"""State that a client keeps between messages, and between a request for an upload and its answer.

An upload may be lost on the way. So a client keeps two states of its algorithm: the committed one, which agrees with
the server's sums, and the tentative one, as it is if the last upload counts. A later request lists which exchange
counted the client last, that is, has its contribution in the sum; if it is the tentative one's, that becomes the
committed state, and else it is dropped. An exchange is the making of one sum. Its messages carry its number, which the
fields below call a round (`tentative_round`, `last_round`): a training round that is repeated has several.
"""

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
from securefed.defenses._base import Session, has_indicator


@dataclass(frozen=True)
class ClientNodeState:
    """State that a client (`ClientNode`) keeps between messages; fields marked local are not packed with the rest.

    Attributes:
        committed: the algorithm's state after the last contribution that is known to be in a sum.
        committed_round: the exchange of that contribution; -1 before the first.
        followed: digest of the broadcast that followed from that exchange. An algorithm whose client updates its state
            from that broadcast is given it again with a later request, and the digest shows that it is the same one.
        tentative: the state after its last contribution, not committed yet.
        tentative_round: the exchange of that contribution.
        last_round: the newest exchange that was opened here, or the number of a later message outside any exchange. A
            message that would open this number or an older one is refused as a replay.
        place: position of exchange `last_round` in the run (`ExchangeSchedule`).
        out: number of exchanges of the run that this client sat out.
        absent: whether the client sat out of exchange `tentative_round`, so that there is nothing to commit.
        stuck: whether committing a round failed, so that the client has no valid state to contribute from.
        header: header of the current exchange.
        session: session of the current exchange.
        protocol: the defence's protocol state in the current exchange.
        encoded: its last encoded contribution (for simulations that score collusion).
        memory: what the defence's protocol must remember of earlier exchanges, such as a pinned key.
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

    @property
    def trains(self) -> bool:
        """True if exchange `last_round` sums training contributions, false if it sums evaluations.

        A position is (completed rounds, 1 for training and 0 for an evaluation, attempt).
        """
        return self.place[1] == 1


def with_cost(state: ClientNodeState, algorithm: SupportsPrivacyCost[Any], computed: Any) -> ClientNodeState:
    """Add the privacy cost of a computed contribution to both states, so that resuming from either keeps it.

    Args:
        state: the client's state before the upload.
        algorithm: trains with noise of its own (DP-SGD), and counts its cost in its states.
        computed: the algorithm's state after the contribution, which holds the new cost.
    """
    tentative = None if state.tentative is None else algorithm.spend(state.tentative, computed)
    return replace(state, committed=algorithm.spend(state.committed, computed), tentative=tentative)


def absent_state(state: ClientNodeState) -> ClientNodeState:
    """Return the state of a client that sits out of the exchange that is open."""
    session = state.session
    assert session is not None
    if state.trains:  # the client then replies like any other if the server claims to have counted it
        state = replace(state, tentative=state.committed, tentative_round=session.round, absent=True)
    return replace(state, out=state.out + has_indicator(session.plan))


@dataclass(frozen=True)
class PendingUpload:
    """A request for an upload that a client has accepted and not answered yet.

    Attributes:
        message: the request.
        state: the client's state with this exchange marked as answered: a second request for an upload is refused.
        counted: the last exchange whose sum includes this client, as the request says. The request lists this of each
            invited client; a fingerprint of the list enters the uploads, so that clients which were sent different
            lists are not summed.
        broadcast: what the contribution is computed from.
        rng: generator for mini-batches and the like.
        fault: the error because of which there will be no contribution, if it is known before computing.
        source: digest of what the contribution is computed from (`UploadContext.source`).
    """

    message: Message
    state: ClientNodeState
    counted: int
    broadcast: Tensors
    rng: np.random.Generator
    fault: Exception | None = None
    source: bytes = b""


ComputedContribution = tuple[Any, Tensors] | Exception
"""A tentative state and a contribution, or the error because of which there is none."""
