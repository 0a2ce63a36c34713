"""Estimate by how much each client was clipped, from the norms of sums of messages linear in S.

Clients hold about shares of S by their public rows, so client i of a sum that would have the norm c_k was scaled by
min(1, C / share_i c_k), and the norm of the sum follows. As soon as one client of one round is below C the size of S
shows in the norms of the sums. Where all are always clipped only the direction of S does, and its size is guessed from
the public bound on the features: that of entries uniform within it, with a standard deviation of a factor e.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from securefed._public import Public
from securefed._tensors import Array
from securefed.attacks._base import RoundView
from securefed.attacks._gram.observed_rounds import Members

_SIZES = np.geomspace(1 / 64, 64, 385)[:, None]
"""Sizes of S that are compared, relative to the estimate."""
_ALIKE = 0.02
"""Messages of different clients do not point quite the same way: their sum is shorter by about this share."""
_MODEL = 0.004
"""Relative error of the sums' norms beside that, since clients do not hold exact shares of S."""


@dataclass(frozen=True)
class ClippedSums:
    """The public facts of clipped sums.

    Attributes:
        limits: C of the part of a message that is used, by round, (K,); infinite without a clip.
        shares: of S, by round and client, 0 for clients that are not in the sum, (K, clients).
        trace: guess of tr S from the public bound on the features.
    """

    limits: Array
    shares: Array
    trace: float

    @classmethod
    def of(cls, limits: Array, members: Sequence[Members], public: Public) -> ClippedSums:
        """Return the facts of sums of these members, S being that of all of them together."""
        clients = sorted(frozenset().union(*members))
        whole = sum(public.rows[client] for client in clients)
        shares = np.array([[public.rows[client] * (client in own) for client in clients] for own in members]) / whole
        return cls(limits, shares, whole * public.features * public.feature_bound**2 / 3)

    def factors(self, sizes: Array, seen: Array, errors: Array, trace: float) -> tuple[float, Array]:
        """Estimate the size of S, and what part of S the sums show.

        Args:
            sizes: norms that a sum of all clients would have without the clip, by the estimate of S, (K,).
            seen: squared norms of the sums, less the noise's, (K,).
            errors: standard deviations of `seen`, (K,).
            trace: of the estimate of S.

        Returns:
            The factor by which S is larger than its estimate, and the part of the larger S that the sums show, by round
            and client, (K, clients).
        """
        each = self.shares * sizes[:, None]
        expected = np.stack([np.minimum(size * each, self.limits[:, None]).sum(axis=1) for size in _SIZES]) ** 2
        weights = 1 / (errors**2 + (2 * _MODEL * seen) ** 2)
        # the sums are shorter by one share in all rounds, likely small and never negative
        own, sure = expected * weights, (2 * _ALIKE) ** -2
        shorter = np.minimum((own @ seen + sure) / (np.sum(own * expected, axis=1) + sure), 1.0)
        cost = np.sum(weights * (shorter[:, None] * expected - seen) ** 2, axis=1) + sure * (1 - shorter) ** 2
        cost += np.log(_SIZES[:, 0] * trace / self.trace) ** 2
        odds = np.exp((cost.min() - cost) / 2)
        scale = float(np.sum(odds / _SIZES[:, 0]) / np.sum(odds / _SIZES[:, 0] ** 2))  # of least relative error
        return scale, np.minimum(self.shares, (self.limits / (scale * sizes))[:, None])


def clip_limit(observation: RoundView, looked_at: Sequence[str]) -> float:
    """Return C of these tensors together; infinite without a clip.

    C is less than the clip's norm where the clip covers more tensors.
    """
    norms = [
        norm * _norm(observation, looked_at) / max(_norm(observation, names), np.finfo(float).tiny)
        for names, norm in observation.clips
        if set(looked_at) <= set(names)
    ]
    return min(norms, default=np.inf)


def _norm(observation: RoundView, names: Sequence[str]) -> float:
    return float(np.sqrt(sum(np.sum(np.square(observation.message[name])) for name in names)))
