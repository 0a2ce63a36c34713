"""Estimate by how much clipping scaled each client's message, from the norms of the sums.

`clipped_products` and `faps/clipped_masked_products` call this while they estimate a Gram matrix S from messages that a
defence clipped. In round k client i sends a message linear in its Gram matrix S_i. S_i is taken as share_i S, with S
the pooled matrix and share_i the client's public share of all rows, so that all messages of a round are parallel. Let
c_k be the norm that the sum over all clients would have in round k without clipping, and C_k the clipping norm of a
message. Client i's message then has the norm share_i c_k and is scaled by min(1, C_k / (share_i c_k)), and the observed
norm of the sum is about sum_i min(share_i c_k, C_k). An estimate of S gives the c_k, but clipping may have made it too
small by an unknown factor, the scale: S = scale times the estimate. The scale that is returned is an average over its
posterior given the observed norms.

The norms determine the scale as soon as one client of one round is below C_k. Where all are clipped in all rounds they
do not, and the prior decides: tr S is that of features uniform within their public bound b, rows x features x b^2 / 3,
with log-normal uncertainty of a factor e.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from securefed._public import Public
from securefed._tensors import Array
from securefed.attacks._base import RoundView
from securefed.attacks._gram.observed_rounds import Members

_SCALES = np.geomspace(1 / 64, 64, 385)[:, None]
"""Scales of S that are compared, relative to the estimate: a factor 64 either way, in steps of 2 percent."""
_ALIKE = 0.02
"""Prior standard deviation of the share by which a sum is shorter than the sum of its messages' norms, because messages
of different clients are not quite parallel. The factor is the same in all rounds.
"""
_MODEL = 0.004
"""Relative error of a sum's norm, different in each round, since clients do not hold exact shares of S. It bounds the
weight of rounds whose noise is small or zero.
"""


@dataclass(frozen=True)
class ClippedSums:
    """Public facts about the clipped sums of K rounds.

    Attributes:
        limits: clipping norms C_k of the tensors that are used, (K,); infinite without clipping.
        shares: share_i of each client, 0 where the client is not in the sum, (K, clients).
        trace: prior guess of tr S from the public bound on the features.
    """

    limits: Array
    shares: Array
    trace: float

    @classmethod
    def of(cls, limits: Array, members: Sequence[Members], public: Public) -> ClippedSums:
        """Collect the public facts of the rounds.

        The clients are all that are in one of the sums, in ascending order.

        Args:
            limits: clipping norms C_k, (K,).
            members: the clients of each round's sum.
            public: the clients' public numbers of rows, and the bound on the features.
        """
        clients = sorted(frozenset().union(*members))
        total_rows = sum(public.rows[client] for client in clients)
        shares = (
            np.array([[public.rows[client] * (client in present) for client in clients] for present in members])
            / total_rows
        )
        # the mean square of numbers uniform in [-b, b] is b^2 / 3
        return cls(limits, shares, total_rows * public.features * public.feature_bound**2 / 3)

    def factors(self, sizes: Array, squares: Array, errors: Array, trace: float) -> tuple[float, Array]:
        """Estimate the scale of S and the part of S that each clipped message contributes.

        Args:
            sizes: c_k as computed from the estimate of S, (K,).
            squares: squared norms of the sums, less the noise's expected part, (K,).
            errors: standard deviations of `squares`, (K,).
            trace: trace of the estimate of S.

        Returns:
            The factor by which S is larger than its estimate, and, for S of that scale, share_i times the clip factor
            of client i in round k, (K, clients).
        """
        norms = self.shares * sizes[:, None]  # share_i c_k at scale 1
        # by scale a: (sum_i min(a share_i c_k, C_k))^2, (scales, K)
        expected = np.stack([np.minimum(scale * norms, self.limits[:, None]).sum(axis=1) for scale in _SCALES]) ** 2
        # the relative error of a square is twice that of the norm, here and in `prior`
        weights = 1 / (errors**2 + (2 * _MODEL * squares) ** 2)
        # each scale fits its own factor t <= 1 by which the squared norms are shorter, with a prior centred at 1:
        # t minimises sum_k weights_k (t expected_k - squares_k)^2 + prior (1 - t)^2, in closed form
        weighted, prior = expected * weights, (2 * _ALIKE) ** -2
        shrinkage = np.minimum((weighted @ squares + prior) / (np.sum(weighted * expected, axis=1) + prior), 1.0)
        cost = np.sum(weights * (shrinkage[:, None] * expected - squares) ** 2, axis=1) + prior * (1 - shrinkage) ** 2
        # the prior of the scale: log-normal around the trace of uniform features
        if trace > 0:  # an estimate of 0, as of messages without structure, has no scale that a prior could judge
            cost += np.log(_SCALES[:, 0] * trace / self.trace) ** 2
        likelihoods = np.exp((cost.min() - cost) / 2)
        # of all estimates s, E[1/a] / E[1/a^2] has the least expected squared relative error E[(s / a - 1)^2]
        scale = float(np.sum(likelihoods / _SCALES[:, 0]) / np.sum(likelihoods / _SCALES[:, 0] ** 2))
        # share_i min(1, C_k / (share_i scale c_k))
        return scale, np.minimum(self.shares, (self.limits / (scale * sizes))[:, None])


def clip_limit(observation: RoundView, tensors: Sequence[str]) -> float:
    """Return the clipping norm that applies to these tensors together; infinite without clipping.

    Where the clip covers further tensors too, it is the clipping norm times these tensors' share of the observed norm.

    Args:
        observation: a round; its `clips` state which tensors each client clipped together, and to which norm.
        tensors: names of tensors of the message.
    """
    norms = [
        norm * _norm(observation, tensors) / max(_norm(observation, names), np.finfo(float).tiny)
        for names, norm in observation.clips
        if set(tensors) <= set(names)
    ]
    return min(norms, default=np.inf)


def _norm(observation: RoundView, names: Sequence[str]) -> float:
    """Return the norm of these tensors of a message together."""
    return float(np.sqrt(sum(np.sum(np.square(observation.message[name])) for name in names)))
