"""FAPS in blocks of rounds between rounds of SSI, which measure whether FAPS pays; this project's rule, not a paper's.

Both are federated PCA: client i holds the Gram matrix S_i of its rows, and the server an orthonormal basis Z (features,
rank), which is to span the leading eigenvectors of S = sum_i S_i. In a round of SSI (subspace iteration) clients send
S_i Z, and Z <- orth(S Z), which also gives the server the exact residual g = ||(I - Z Z^T) S Z||_F. In a round of FAPS
(faps.py) each client moves a basis X_i of its own towards Z by inner subspace iterations, under a penalty beta_i, and
sends masked products Q_i Z.

FAPS needs fewer rounds than SSI on some data and more on other. So FAPS runs in blocks of consecutive rounds, and
another block follows only while a block lowers g faster, per round, than SSI did before it. Inside a block a client's
inner iterations end when X_i has moved half as far as Z is away (`inner_rule="reach"`): with more, X_i overshoots
where clients differ; with fewer, a round gains less than it could.

The server's rule is `GuardedFAPS.combine`: a step of a small state machine, from the state and the sum of a round.
A round's survivors are the clients that its sum counts. The captured energy is sum_i ||A_i^T Z||_F^2, with A_i^T the
rows of client i.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np

from securefed._hyperparameters import check_integer
from securefed._messages import Aggregate
from securefed._public import Public
from securefed._tensors import Array, Tensors
from securefed.algorithms._audit_case import GRAM_CASE
from securefed.algorithms._base import algorithms
from securefed.algorithms._pca.faps import FAPS, FAPSClient, InnerRule
from securefed.algorithms._pca.operators import off, orth
from securefed.algorithms._pca.server import BASIS, PRODUCT, SubspaceServer
from securefed.datasets._base import Dataset
from securefed.errors import DataError, SecureFedError

BLOCK = "block"
"""Name of the block's number in a broadcast; 0 in a round of SSI."""
LONGEST = 4
"""Length of the longest block, in units of `patience` rounds."""
FAR = 4
"""A block starts only if SSI would need at least this many times its length to meet the stop rule."""
SPAN = 3
"""Number of rounds over which SSI's rate is measured."""
SLOW = 0.75
"""SSI's step is over-relaxed once a round leaves more than this share of g."""
RELAXATION = 0.6
"""The constant c of the over-relaxed step; see `GuardedFAPS`."""
ROUND_OFF = 1e-13
"""A relative fall of the captured energy by less than this is rounding, and does not end a block."""


@dataclass(frozen=True)
class GuardedServer(SubspaceServer):
    """State of the server between rounds.

    Attributes:
        block: 0 where the next round is one of SSI, else the number of the block of FAPS rounds it belongs to.
        blocks: number of blocks begun so far.
        left: number of rounds left in the current block, or in the wait for the next one.
        wait: number of SSI rounds between a failed block and the next one.
        length: number of rounds planned for the current block, or for the next one.
        done: number of rounds of the current block so far.
        residuals: g of the last consecutive rounds of SSI, all with the same survivors, at most SPAN + 1.
        relaxed: whether SSI's steps are over-relaxed.
        entry: g of the SSI round before the current block; `None` outside blocks, 0 once the block has failed.
        entry_rate: factor by which g fell in a round of SSI before the current block.
        entry_basis: basis after the SSI round before the current block.
    """

    block: int = 0
    blocks: int = 0
    left: int = 0
    wait: int = 0
    length: int = 0
    done: int = 0
    residuals: tuple[float, ...] = ()
    relaxed: bool = False
    entry: float | None = None
    entry_rate: float = 0.0
    entry_basis: Array | None = None


@dataclass(frozen=True, kw_only=True)
class GuardedClient(FAPSClient):
    """State of one client.

    Attributes:
        start: the value from which beta_i starts in every block.
        block: number of the block that X_i and W_i belong to; 0 before the first.
    """

    start: float
    block: int = 0


@algorithms.register(
    "pca/faps-guarded",
    summary="blocks of FAPS between rounds of SSI, which say whether they pay; inner steps by reach",
    source="this project's rule on faps eqs. (2), (12)-(27)",
    transmits="S_i Z, or in a block Q_i Z (features x rank), ||A_i^T Z||_F^2; with a KKT stop also S_i Z",
)
@dataclass(frozen=True)
class GuardedFAPS(FAPS):
    """Alternate rounds of SSI with blocks of rounds of FAPS; the broadcast's `block` is 0 in a round of SSI.

    Attributes:
        patience: rounds of SSI before the first block, and rounds of a first block.

    SSI rounds: a client sends S_i Z. Once g falls by less than a quarter a round, the server's step is over-relaxed:
    Z+ = orth(S Z - (1 - c) Z Z^T S Z), c = .6. Near the solution, column j of Z has a small part along an eigenvector l
    that is not among the leading ones. With r = lambda_l / lambda_j < 1 for the eigenvalues of S, a step multiplies
    this part by |1 - (1 - r) / c| instead of by r: by less than r where r is above (1 - c) / (1 + c) = .25, and by 2/3
    or less elsewhere.

    Blocks: every client starts FAPS anew at Z (X_i = Z), with beta_i at its first value. The first block comes after
    `patience` rounds of SSI. It starts only if the residual falls, and if SSI, by its rate over the last three rounds,
    would still need at least four times the block's length to meet the tolerance. A block ends early where the captured
    energy falls. After a block one round of SSI measures the residual. If the block was faster than SSI, another block
    follows, twice as long (four times `patience` at most). Otherwise SSI runs twice as long as before; it starts from
    the basis before the block if the residual has grown.

    Guaranteed: at most one failed block of `patience` rounds before every doubling of the wait. Measured, not proved:
    no more rounds than SSI on the paper's test matrices (23)-(24) and on digits sorted by label (docs/reproduction.md
    has the figures). Residuals of different survivors are not compared. While the survivors change, the method stays
    with SSI, and a block in which they change has failed.
    NOT private: SSI rounds are linear in S_i (attack `gram/power`).
    """

    # Settings with which tests and audits run the method.
    test_settings: ClassVar = {"rank": 2, "tolerance": 0.0, "patience": 1}
    audit_case: ClassVar = replace(GRAM_CASE, settings={"rank": 5, "patience": 4}, rounds=12, traced=1)

    inner_rule: InnerRule = "reach"
    patience: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer("patience", self.patience, 1)

    def start(self, public: Public, rng: np.random.Generator) -> GuardedServer:
        """Return the server's state before the first round: `patience` rounds of SSI come first."""
        plain = super().start(public, rng)
        return GuardedServer(**_fields(plain), left=self.patience, wait=self.patience, length=self.patience)

    def broadcast(self, server: SubspaceServer) -> Tensors:
        """Return what the server sends to the clients of the next round: Z, and the number of the block."""
        assert isinstance(server, GuardedServer)
        return {BASIS: server.basis, BLOCK: np.asarray(server.block, np.int64)}

    def check_broadcast(self, broadcast: Tensors, public: Public) -> None:
        """Refuse a broadcast that no server sends.

        Raises:
            DataError: the basis is not orthonormal, or the block is not an integer of at least 0.
        """
        super().check_broadcast(broadcast, public)
        if int(broadcast[BLOCK]) < 0:
            raise DataError(f"block {int(broadcast[BLOCK])}; blocks are numbered from 0")

    def enroll(self, data: Dataset, public: Public, rng: np.random.Generator) -> GuardedClient:
        """Return a client's state before its first round, in no block yet."""
        client = super().enroll(data, public, rng)
        return GuardedClient(**_fields(client), start=client.beta)

    def contribute(
        self, client: FAPSClient, broadcast: Tensors, rng: np.random.Generator
    ) -> tuple[FAPSClient, Tensors]:
        """Compute one client's contribution and its tentative state: as in FAPS in a block, S_i Z otherwise."""
        block = int(broadcast[BLOCK])
        if block:
            return super().contribute(_in_block(client, block), broadcast, rng)
        product = client.gram.times(broadcast[BASIS])
        return client, self.contribution(product, broadcast[BASIS], product)

    def contribute_together(
        self, clients: Sequence[FAPSClient], broadcast: Tensors, rngs: Sequence[np.random.Generator]
    ) -> list[tuple[FAPSClient, Tensors] | SecureFedError]:
        """Return for each client the result of `contribute`, or the error that it raises; clients are stacked."""
        block = int(broadcast[BLOCK])
        if block:
            return super().contribute_together([_in_block(client, block) for client in clients], broadcast, rngs)
        return [self.contribute(client, broadcast, rng) for client, rng in zip(clients, rngs, strict=True)]

    def combine(self, server: SubspaceServer, aggregate: Aggregate) -> GuardedServer:
        """Return the server's next state from the sum of the contributions.

        In a block this counts its rounds and ends it early where the survivors change or the captured energy falls.
        After a round of SSI, `_guard` decides what comes next.
        """
        assert isinstance(server, GuardedServer)
        plain = super().combine(server, aggregate)
        new = replace(server, **_fields(plain))
        if self.finished(plain) is not None:
            return new
        same = server.survivors == new.survivors
        if server.entry is not None and not same:
            new = replace(new, entry=0.0)  # no residual is below it: the block has failed
        if server.block:
            left = server.left - 1 if same and not _fell(server, new) else 0
            return replace(new, left=left, done=server.done + 1, block=server.block if left else 0)
        return self._guard(server, new, aggregate.total[PRODUCT])

    def _guard(self, server: GuardedServer, new: GuardedServer, product: Array) -> GuardedServer:
        """Decide after a round of SSI whether the next round is SSI or starts a block of FAPS."""
        residual = float(np.linalg.norm(off(server.basis, product)))
        if server.entry is not None:  # this round of SSI followed a block
            return self._judge(new, residual)
        same = server.survivors == new.survivors
        residuals = (*(server.residuals if same else ()), residual)[-SPAN - 1 :]
        rate = _rate(residuals)
        relaxed = new.relaxed or (rate is not None and rate > SLOW)
        if relaxed:
            within = server.basis @ (server.basis.T @ product)  # Z Z^T S Z
            new = replace(new, basis=orth(product - (1 - RELAXATION) * within))
        new = replace(new, residuals=residuals, relaxed=relaxed, left=max(new.left - 1, 0))
        falling = all(later < earlier for earlier, later in pairwise(residuals))
        if new.left or rate is None or not falling or self._rounds_left(new, residual, rate) < FAR * new.length:
            return new
        return _begin(replace(new, entry_basis=new.basis), residual, rate)

    def _judge(self, new: GuardedServer, residual: float) -> GuardedServer:
        """Decide after the round of SSI that ends a block: another block, or SSI for twice as long as last time.

        The block of d rounds and the SSI round before it took g from `entry` to `residual`. SSI alone would have left
        entry * rate^(d + 1), with the rate measured before the block.
        """
        entry, entry_basis = new.entry, new.entry_basis
        assert entry is not None and entry_basis is not None
        if residual < entry * new.entry_rate ** (new.done + 1):
            new = replace(new, length=min(2 * new.length, LONGEST * self.patience), entry_basis=new.basis)
            return _begin(new, residual, new.entry_rate, anew=False)
        basis, wait = entry_basis if residual > entry else new.basis, 2 * new.wait
        return replace(
            new, basis=basis, wait=wait, left=wait, length=self.patience, residuals=(), entry=None, entry_basis=None
        )

    def _rounds_left(self, server: GuardedServer, residual: float, rate: float) -> float:
        """Return the rounds of SSI left until the stop rule holds, if g falls by the factor `rate` in each.

        The rule "kkt" compares g itself with the threshold; "energy" compares the change of the captured energy, which
        falls as g^2.
        """
        change, power = (residual, 1) if self.stop == "kkt" else (server.change, 2)
        if not self.threshold or change is None:
            return math.inf
        return math.log(max(change / self.threshold, 1.0)) / (-math.log(rate) * power)


def _begin(server: GuardedServer, residual: float, rate: float, *, anew: bool = True) -> GuardedServer:
    """Make the next round the first of a block.

    Args:
        server: the state to change.
        residual: g of the SSI round before the block.
        rate: factor by which g fell in a round of SSI before it.
        anew: whether clients start FAPS anew at Z; else they continue from the X_i of the block before, whose number
            the block keeps.
    """
    blocks = server.blocks + anew
    return replace(
        server, block=blocks, blocks=blocks, left=server.length, done=0, entry=residual, entry_rate=rate, residuals=()
    )


def _in_block(client: FAPSClient, block: int) -> GuardedClient:
    """Return the client's state for a round of this block: FAPS starts anew at Z unless it has begun the block."""
    assert isinstance(client, GuardedClient)
    if client.block == block:
        return client
    return replace(client, beta=client.start, basis=None, mask=None, round=0, distance=math.inf, block=block)


def _fell(server: GuardedServer, new: GuardedServer) -> bool:
    """Return whether the captured energy is lower than a round ago, by more than round-off."""
    before, now = server.captured, new.captured
    return before is not None and now is not None and now < before * (1 - ROUND_OFF)


def _rate(residuals: Sequence[float]) -> float | None:
    """Return the mean factor by which a residual follows the one before; `None` for fewer than SPAN + 1 of them."""
    if len(residuals) <= SPAN or not residuals[0]:
        return None
    return float((residuals[-1] / residuals[0]) ** (1 / SPAN))


def _fields(state: SubspaceServer | FAPSClient) -> dict[str, Any]:
    """Return the fields of a state by name, to make a state of a subclass of them."""
    return {field.name: getattr(state, field.name) for field in fields(state)}
