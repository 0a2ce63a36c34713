"""Sum in the clear: every contribution travels as it is. The baseline of every comparison.

The runtime calls the methods of `Plain` as `_aggregation.Aggregation` describes. An exchange (one sum) has one stage,
`upload`: the server asks with an empty message, a client replies with its tensors. Nothing is hidden from the server,
and nothing authenticated; both are left to the transport. `exact` says whether the sum is taken in a ring of integers,
`hides` whether single contributions stay hidden from the server. A field marked `local` is left out when the runtime
packs a state for another process, and given again there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from securefed._messages import Aggregate, ClientId, Message, PartyId
from securefed._persistence.packing import local
from securefed._tensors import Array, Tensors
from securefed.defenses._aggregation import Aggregation, Outgoing
from securefed.defenses._plan import Plan, Session, UploadContext, expect_stage
from securefed.errors import MalformedError, TooFewSurvivors

UPLOAD = "upload"


@dataclass(frozen=True)
class PlainClient:
    """A client's protocol state.

    Attributes:
        next_stage: the stage that it waits for, empty when it is done.
    """

    next_stage: str = UPLOAD


@dataclass(frozen=True)
class PlainServer:
    """The server's protocol state.

    Attributes:
        cohort: ids of the invited clients.
        plan: the plan of the exchange.
    """

    cohort: tuple[ClientId, ...]
    plan: Plan = local()


@dataclass(frozen=True)
class Plain(Aggregation):
    """Sum what the clients send, in the clear: integers where a transform made some, else floating point."""

    name: ClassVar[str] = "plain"
    exact: ClassVar[bool] = False
    hides: ClassVar[bool] = False

    def plan(self, plan: Plan) -> Plan:
        """Return the plan with one stage, its bytes, and what the server sees."""
        entries = sum(tensor.size for tensor in plan.tensors)
        return replace(plan, stages=(UPLOAD,), upload_bytes=8 * entries, open_to="the server alone").assume(
            "The server sees every contribution in the clear."
        )

    def client_open(self, session: Session, client: ClientId) -> PlainClient:
        """Return a client's protocol state."""
        return PlainClient()

    def client_accept(self, state: PlainClient, request: Message, context: UploadContext) -> PlainClient:
        """Check that the request asks for the upload; `ContradictionError` where it asks twice or for another stage."""
        expect_stage(request, state.next_stage)
        return PlainClient(next_stage="")

    def client_upload(self, state: PlainClient, encoded: Tensors | None) -> tuple[PlainClient, Tensors]:
        """Return the contribution as it is."""
        assert encoded is not None
        return state, encoded

    def server_open(self, session: Session) -> tuple[PlainServer, str, Outgoing]:
        """Ask all clients for their contributions."""
        return PlainServer(session.cohort, session.plan), UPLOAD, {client: {} for client in session.cohort}

    def server_step(self, state: PlainServer, replies: Mapping[PartyId, Message]) -> Aggregate:
        """Check the contributions and add them.

        Raises:
            MalformedError: a contribution is not one of the plan; it names the client.
            TooFewSurvivors: no client replied.
        """
        survivors = tuple(sorted(replies))
        if not survivors:
            raise TooFewSurvivors("no client answered; the round is void")
        total: dict[str, Array] | None = None
        for client in survivors:
            body = replies[client].body
            check_body(client, body, state.plan)
            if total is None:  # networks send float32; their sum is kept in float64
                total = {n: v.astype(np.float64 if v.dtype == np.float32 else v.dtype) for n, v in body.items()}
            else:
                for name, value in body.items():
                    total[name] += value
        assert total is not None
        return Aggregate(total, survivors)


def check_body(client: ClientId, body: Tensors, plan: Plan) -> None:
    """Raise `MalformedError` unless `body` is an encoded contribution of the plan, within its range.

    Args:
        client: the sender, named in the error.
        body: its tensors: int64 where the plan has a step (the value of one integer), else float64 or float32.
        plan: the plan of the exchange.
    """
    if set(body) != {tensor.name for tensor in plan.tensors}:
        raise MalformedError(client, f"tensors {sorted(body)} are not those of the plan")
    for tensor in plan.tensors:
        value = body[tensor.name]
        dtypes = (np.int64,) if tensor.step else (np.float64, np.float32)
        if value.shape != tensor.shape or value.dtype not in dtypes:
            raise MalformedError(client, f"{tensor.name!r} is {value.dtype} of shape {value.shape}")
        if not np.isfinite(value).all():
            raise MalformedError(client, f"{tensor.name!r} holds NaN or infinity")
        largest = max(int(value.max()), -int(value.min())) if tensor.step and value.size else 0
        if tensor.step and tensor.bound is not None and largest > math.ceil(tensor.bound / tensor.step):
            raise MalformedError(client, f"{tensor.name!r} exceeds the plan's bound {tensor.bound:g}")
