"""State that a client keeps between messages, and between a request for an upload and its answer.

An upload may be lost on the way. So a client keeps two states of what it contributes from: the committed one, which
agrees with the server's sums, and the tentative one, as it is if the last upload counts. A later request lists which
exchange counted the client last, that is, has its contribution in the sum; if it is the tentative one's, that becomes
the committed state, and else it is dropped. An exchange is the making of one sum. Its messages carry its number, which
the fields below call a round (`tentative_round`, `last_round`): a training round that is repeated has several.
"""

from __future__ import annotations

from dataclasses import dataclass, field, is_dataclass
from typing import Any, Final

import numpy as np

from securefed._messages import Message
from securefed._persistence.packing import local, pack
from securefed._runtime.exchange_header import ExchangeHeader
from securefed._runtime.exchange_schedule import BEFORE_ALL, ExchangePosition
from securefed._tensors import Array, Tensors
from securefed.defenses._base import Session

_EMPTY: Final = "nmt"
"""Kinds of packed fields that hold no value of their own: n none, m mapping, t tuple. `pack` stores a field `x` under
the name `x:KIND`, so that the last letter of the name is its kind.
"""


@dataclass(frozen=True)
class NothingKept:
    """The state of a client whose contributions are computed elsewhere: it keeps nothing from one to the next."""


@dataclass(frozen=True)
class ClientNodeState:
    """State that a client (`SumNode`) keeps between messages; fields marked local are not packed with the rest.

    Attributes:
        committed: what it contributes from, after the last contribution that is known to be in a sum; of an algorithm's
            client, the algorithm's state.
        committed_round: the exchange of that contribution; -1 before the first.
        followed: digest of the broadcast that followed from that exchange. A client that updates its state from that
            broadcast is given it again with a later request, and the digest shows that it is the same one.
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

    committed: Any = local(default=NothingKept(), repr=False)
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


def has_memory(state: Any) -> bool:
    """Tell whether a client's state holds anything that its data, settings and seed do not determine.

    A state that cannot be packed (a user's own class may keep any object) counts as one that does.
    """
    if state is None or not is_dataclass(state):
        return state is not None
    return any(name[-1] not in _EMPTY for name in pack(state))


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
        fault: the error because of which there will be no contribution, if it is known before computing.
        source: digest of what the contribution is computed from (`UploadContext.source`).
    """

    message: Message
    state: ClientNodeState
    counted: int
    broadcast: Tensors
    fault: Exception | None = None
    source: bytes = b""


ComputedContribution = tuple[Any, Tensors] | Exception
"""A tentative state and a contribution, or the error because of which there is none."""
