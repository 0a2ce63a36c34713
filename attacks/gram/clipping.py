"""What a clip did to sums of messages linear in S: each client's was scaled to a norm that is known, by a factor that
S tells.

Clients hold about shares of S by their public rows, so client i of a sum that would have the norm c_k was clipped by
min(1, C / share_i c_k), and the norm of the sum follows. As soon as one client of one round is below C the size of S
shows in the norms of the sums. Where all are clipped always only the direction of S does, and its size is a guess from
the public bound on the features: that of entries uniform within it, give or take a factor e.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from securefed.attacks.base import Observation
from securefed.attacks.gram.rounds import Members
from securefed.public import Public
from securefed.tensors import Array

_SIZES = np.geomspace(1 / 64, 64, 385)[:, None]
"""Sizes of S that are weighed, relative to the estimate."""
_ALIKE = 0.02
"""Messages of different clients do not point quite the same way: by about this share their sum is shorter."""
_MODEL = 0.004
"""By this share the norms of sums miss, beside, what clients with equal shares of S send."""


@dataclass(frozen=True)
class Clips:
    """What is public of the sums.

    Attributes:
        limits: C of the part of a message that is looked at, by round, (K,); infinite without a clip.
        shares: of S, 0 for clients that are not in the sum, (K, clients).
        trace: of S, the guess.
    """

    limits: Array
    shares: Array
    trace: float

    @classmethod
    def of(cls, limits: Array, members: Sequence[Members], public: Public) -> Clips:
        """Of sums of these members, S being that of all of them together."""
        clients = sorted(frozenset().union(*members))
        whole = sum(public.rows[client] for client in clients)
        shares = np.array([[public.rows[client] * (client in own) for client in clients] for own in members]) / whole
        return cls(limits, shares, whole * public.features * public.feature_bound**2 / 3)

    def factors(self, sizes: Array, seen: Array, errors: Array, trace: float) -> tuple[float, Array]:
        """By how much S is larger than its estimate, and what part of the larger one the sums show, by client, (K,
        clients).

        Args:
            sizes: norms of a sum of all clients, had nobody been clipped, by the estimate, (K,).
            seen: squares of those there were, less the noise's, (K,).      errors: standard deviations of these.
            trace: of the estimate.
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


def limit(observation: Observation, looked_at: Sequence[str]) -> float:
    """C of these tensors together: less than the clip's norm where it is of more than these; infinite without one."""
    norms = [
        norm * _norm(observation, looked_at) / max(_norm(observation, names), np.finfo(float).tiny)
        for names, norm in observation.clips
        if set(looked_at) <= set(names)
    ]
    return min(norms, default=np.inf)


def _norm(observation: Observation, names: Sequence[str]) -> float:
    return float(np.sqrt(sum(np.sum(np.square(observation.message[name])) for name in names)))
