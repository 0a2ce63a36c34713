"""Fit several clients' Gram matrices S_i to the sums of their messages, by simulating all clients at once.

`joint_attack` calls this for FAPS, FedPG and FedPE where a view shows sums over the same clients. The residual is
(sum_i message(S_i) - observed sums) / ||observed sums||, minimised by Levenberg-Marquardt over the parameters of all
S_i; message() simulates one client over all rounds and is given by the caller. Where messages are linear in S_i, their
sum equals the message of one client with the pooled rows, so that only the sum of the matrices can be found. A sum of
non-linear messages depends on each client's matrix, and with enough rounds its Jacobian with respect to all of them has
full rank. If the clients do not differ in anything public, the sums cannot show which matrix belongs to which client.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from securefed._tensors import Array
from securefed.attacks._fitting.levenberg_marquardt import (
    GeodesicAcceleration,
    LeastSquaresFit,
    StallLimit,
    levenberg_marquardt,
)

GOAL, PROOF = 3e-13, 1e-9
"""Relative residual at which the fit stops (about round-off of double precision), and relative residual below which it
counts as proven, if its Jacobian has full rank.
"""
_FULL_RANK = 1e-11
"""Singular values below this share of the largest, columns scaled to unit length, count as zero."""
_PATIENCE = StallLimit(1e-8, far=10, close=None)
"""A fit ends when ten Jacobians have not halved its residual while that is above 1e-8; below, it goes on to `GOAL`."""
_EQUAL_CLIENT_JACOBIANS = 40
"""Largest number of Jacobians for the fit of equal clients. It only gives a start and need not be accurate."""


class MemberSimulation(Protocol):
    """The messages of one client in all rounds, as a function of the parameters x, (count,), of its Gram matrix."""

    @property
    def count(self) -> int:
        """Return the number of parameters."""
        ...

    @property
    def determined(self) -> int:
        """Return the number of parameters that the messages depend on."""
        ...

    def sent(self, x: Array) -> Array:
        """Return the client's simulated messages as one vector, (equations,), in the units of the sums.

        It is NaN where the simulation fails.
        """
        ...

    def sent_and_tangents(self, x: Array) -> tuple[Array, Array]:
        """Return `sent`, and its derivative (equations, parameters)."""
        ...

    def gram(self, x: Array) -> Array:
        """Return S(x), (features, features)."""
        ...


@dataclass(frozen=True)
class JointFit:
    """The Gram matrices of all clients of a sum, as fitted.

    Attributes:
        grams: (clients, features, features).
        residual: norm of the difference of simulated and observed sums, relative to the sums.
        rank: rank of the Jacobian with respect to all clients' parameters.
        unknowns: number of parameters of all clients that the messages depend on.
        condition: ratio of the Jacobian's largest singular value to its smallest that is not zero.
        starts: number of starts that were tried.
    """

    grams: Array
    residual: float
    rank: int
    unknowns: int
    condition: float
    starts: int

    @property
    def proven(self) -> bool:
        """Return whether the residual is round-off and the Jacobian has full rank."""
        return self.residual < PROOF and self.rank == self.unknowns


def fit_jointly(
    senders: Sequence[MemberSimulation],
    observed: Array,
    first: Array,
    *,
    starts: int,
    jacobians: int,
    rng: np.random.Generator,
) -> JointFit:
    """Fit the Gram matrices of all clients to the sums, by Levenberg-Marquardt.

    The fit first assumes that all clients have the same matrix, and finds the one that explains the sums best. At this
    point all clients have the same derivative, so the search could not separate them: it is a saddle. Each start
    therefore adds random changes that leave the sum of the parameters as it is. Their size per parameter is .03, .09
    and .27, in turn, of the common matrix's: it is not known beforehand by how much the clients differ.

    Args:
        senders: simulations of the clients, with parameters of one kind.
        observed: the observed sums, as one vector, (equations,).
        first: parameters of one client from which the fit of equal clients starts.
        starts: largest number of random starts; the search ends earlier when a residual is below `PROOF`.
        jacobians: largest number of Jacobians for each start.
        rng: source of the random starts.

    Returns:
        The fit of least residual, proven or not.
    """
    scale = float(np.linalg.norm(observed)) or 1.0
    problem = _SumOfClients(senders, observed, scale)
    common = _equal_clients(senders, observed, scale, first)
    best = LeastSquaresFit(np.tile(common, len(senders)), np.inf, 0, problem.linearised)
    starts_tried = 0
    while starts_tried < starts and not best.norm < PROOF:
        spread = 0.03 * 3.0 ** (starts_tried % 3) * float(np.linalg.norm(common)) / np.sqrt(len(common))
        moves = rng.normal(size=(len(senders), len(common)))
        moves -= moves.mean(axis=0)  # the sum of the parameters stays as it is
        start = (common + spread * moves).reshape(-1)
        fit = levenberg_marquardt(
            problem.linearised,
            start,
            steps=jacobians,
            goal=GOAL,
            residual=problem.residual,
            patience=_PATIENCE,
            stepper=GeodesicAcceleration(problem.residual),  # second-order steps, which follow curved valleys
        )
        best = min(best, fit, key=lambda fit: fit.norm)
        starts_tried += 1
    unknowns = sum(sender.determined for sender in senders)
    rank, condition = jacobian_rank(problem.linearised(best.point)[1], unknowns)
    grams = np.stack([sender.gram(x) for sender, x in zip(senders, problem.parts(best.point), strict=True)])
    return JointFit(grams, best.norm, rank, unknowns, condition, starts_tried)


def jacobian_rank(jacobian: Array, largest: int) -> tuple[int, float]:
    """Return the rank of a Jacobian, at most `largest`, and its condition number, after scaling columns to length 1.

    The condition number is over the `rank` largest singular values.
    """
    scaled = jacobian / np.maximum(np.linalg.norm(jacobian, axis=0), 1e-300)
    s = np.linalg.svd(np.linalg.qr(scaled, mode="r") if len(scaled) > scaled.shape[1] else scaled, compute_uv=False)
    rank = min(int(np.sum(s > _FULL_RANK * s[0])), largest)
    return rank, float(s[0] / s[rank - 1])


@dataclass(frozen=True)
class _SumOfClients:
    """The difference of simulated and observed sums, as a function of all clients' parameters, one after the other.

    Attributes:
        senders: simulations of the clients.
        observed: the observed sums, (equations,).
        scale: norm of the sums, by which the difference is divided.
    """

    senders: Sequence[MemberSimulation]
    observed: Array
    scale: float

    def parts(self, x: Array) -> list[Array]:
        """Split the parameters of all clients into each client's."""
        return np.split(x, np.cumsum([sender.count for sender in self.senders])[:-1])

    def residual(self, x: Array) -> Array:
        """Return (sum of the simulated messages - observed) / scale, (equations,)."""
        sent = [sender.sent(part) for sender, part in zip(self.senders, self.parts(x), strict=True)]
        return np.asarray((np.sum(sent, axis=0) - self.observed) / self.scale)

    def linearised(self, x: Array) -> tuple[Array, Array]:
        """Return `residual` and its Jacobian, (equations, parameters of all clients)."""
        pairs = [sender.sent_and_tangents(part) for sender, part in zip(self.senders, self.parts(x), strict=True)]
        residual = (np.sum([sent for sent, _ in pairs], axis=0) - self.observed) / self.scale
        return residual, np.hstack([tangents for _, tangents in pairs]) / self.scale


def _equal_clients(senders: Sequence[MemberSimulation], observed: Array, scale: float, first: Array) -> Array:
    """Fit one client to the mean of the clients' messages; return `first` where the fit fails."""
    count = len(senders)
    mean_client = _SumOfClients(senders[:1], observed / count, scale / count)
    fit = levenberg_marquardt(
        mean_client.linearised,
        first,
        steps=_EQUAL_CLIENT_JACOBIANS,
        goal=GOAL,
        residual=mean_client.residual,
        patience=StallLimit(0.0, far=5),  # ends when five Jacobians have not halved the residual
    )
    return fit.point if np.isfinite(fit.norm) else first
