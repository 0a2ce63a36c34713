"""Template of an aggregation: copy this file, rename the classes, and change the lines marked EDIT.

An aggregation computes the sum of the clients' contributions. In this one, each client adds a random-looking mask to
its contribution. The masks come from a key that all clients share and the server does not know, and they add up to
zero, so that they cancel in the sum. This is an example, not for real runs: the sum is lost if any client does not
answer, and a single client that colludes with the server reveals all contributions. For real runs use
`secure_aggregation`.

The methods are pure: they take a state and return a new one, without I/O. States are frozen dataclasses of arrays,
numbers, texts and bytes, so that they can be stored between processes; a field marked `local()` is not stored.

Test yours with `securefed.testing.parametrize_with_checks([YourAggregation()])`; see README.md.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from securefed import Aggregate, Array, ClientId, Message, PartyId, Tensors, local
from securefed.defenses import Aggregation, Plan, Session, TensorPlan, UploadContext, expect_stage
from securefed.errors import TooFewSurvivors

UPLOAD = "upload"


@dataclass(frozen=True)
class ZeroSumClient:
    """A client's state in one exchange. `next_stage` is the request that it waits for, empty when it is done."""

    client: ClientId
    session: Session = local()
    next_stage: str = UPLOAD


@dataclass(frozen=True)
class ZeroSumServer:
    """The server's state in one exchange."""

    session: Session = local()


@dataclass(frozen=True)
class ZeroSumMasks(Aggregation):
    """Sum integers under masks that cancel. EDIT: what yours guarantees, and what it does not.

    Attributes:
        key: the key that all clients share, 32 bytes; empty at the server.
    """

    key: bytes = field(repr=False)  # repr=False keeps the secret out of reports and errors
    name: ClassVar[str] = "zero_sum_masks"  # EDIT: its name in plans and reports
    exact: ClassVar[bool] = True  # it sums integers, so the chain puts `quantise()` before it
    hides: ClassVar[bool] = True  # the server does not see single contributions

    def __str__(self) -> str:
        return self.name  # this text appears in reports, so it must hold no secret

    def plan(self, plan: Plan) -> Plan:
        """Return the plan with this protocol's stages, cost, threshold, collusion risk and assumptions.

        The cost is in bytes for each upload, the threshold is the number of clients that must answer, and `open_to`
        names the parties that together can read single contributions.
        """
        entries = sum(tensor.size for tensor in plan.tensors)
        return replace(
            plan,
            stages=(UPLOAD,),
            upload_bytes=8 * entries,
            threshold=plan.clients,
            open_to="the server and any one client together",
        ).assume("No client colludes with the server.", "A round is void if one client drops out.")

    def client_open(self, session: Session, client: ClientId) -> ZeroSumClient:
        """Start a client's part of one exchange."""
        return ZeroSumClient(client, session)

    def client_accept(self, state: ZeroSumClient, request: Message, context: UploadContext) -> ZeroSumClient:
        """Check the request before anything is computed, and mark it as used, so that none is answered twice."""
        expect_stage(request, state.next_stage)
        return replace(state, next_stage="")

    def client_upload(self, state: ZeroSumClient, encoded: Tensors | None) -> tuple[ZeroSumClient, Tensors]:
        """Mask the contribution and return the new state and the upload.

        `encoded` is `None` if the client sits out, for instance because its values are out of range. It then uploads
        uniformly random numbers in every tensor.
        """
        session, body = state.session, {}
        for tensor in session.plan.tensors:
            if encoded is None:
                entries = np.frombuffer(secrets.token_bytes(8 * tensor.size), np.int64)
            else:
                entries = np.asarray(encoded[tensor.name], np.int64).reshape(-1)
            masked = entries + self._mask(session, state.client, tensor)  # integers wrap around modulo 2^64
            body[tensor.name] = masked.reshape(tensor.shape)
        return state, body

    def server_open(self, session: Session) -> tuple[ZeroSumServer, str, Mapping[PartyId, Tensors]]:
        """Ask all clients for their uploads."""
        return ZeroSumServer(session), UPLOAD, {client: {} for client in session.cohort}

    def server_step(self, state: ZeroSumServer, replies: Mapping[PartyId, Message]) -> Aggregate:
        """Check the replies and add them, so that the masks cancel. A client that dropped out has no reply."""
        session = state.session
        if set(replies) != set(session.cohort):
            raise TooFewSurvivors(f"{len(replies)} of {len(session.cohort)} clients uploaded; all are needed")
        total = {tensor.name: np.zeros(tensor.size, np.int64) for tensor in session.plan.tensors}
        for message in replies.values():
            for tensor in session.plan.tensors:
                total[tensor.name] += message.take(tensor.name, np.int64, tensor.shape).reshape(-1)
        shaped = {tensor.name: total[tensor.name].reshape(tensor.shape) for tensor in session.plan.tensors}
        return Aggregate(shaped, tuple(sorted(replies)))

    def _mask(self, session: Session, client: ClientId, tensor: TensorPlan) -> Array:
        """Derive a client's mask: its own stream minus that of the next client in the cohort."""
        following = session.cohort[(session.cohort.index(client) + 1) % len(session.cohort)]
        return self._stream(session, client, tensor) - self._stream(session, following, tensor)

    def _stream(self, session: Session, client: ClientId, tensor: TensorPlan) -> Array:
        seed = self.key + f"{session.run} {session.round} {client} {tensor.name}".encode()
        return np.frombuffer(hashlib.shake_256(seed).digest(8 * tensor.size), np.int64)
