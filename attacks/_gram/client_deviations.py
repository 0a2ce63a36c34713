"""Estimate single clients' Gram matrices S_i from clipped or noised sums of products S_i Z over changing survivors.

Write S_i = share_i S + D_i, with S the pooled matrix (already estimated by `clipped_products`), share_i the client's
public share of all rows and D_i its deviation. Round k sends the basis Z_k and observes

    Y_k = sum_i g_ki (S + D_i / share_i) Z_k + noise,

where g_ki is share_i times the factor by which the clip scaled client i's message, and 0 where client i is absent.
Clients that are always present together form a group, whose members the clip is taken to scale alike. The groups' D_a
are estimated by ridge regression: a random-effects model in which the entries of D_a have variance tau^2 share_a; tau
and the noise maximise the likelihood. Where noise hides the deviations tau is 0, and the estimate of S_a is share_a S.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from securefed._tensors import Array
from securefed.attacks._gram.clipped_products import PerturbedProducts, PerturbedSolution

_FAINTEST, _STEP = 1e-4, 1.26
"""Smallest ratio of the deviations' variance to the noise's, in the direction that shows the deviations best, that is
compared with no deviation; and the factor between the ratios that are compared.
"""
_ROUND_OFF = float(np.finfo(np.float64).eps)
"""Smallest standard deviation of the noise, relative to the upper bound of tau: the noise that callers give is 0 where
none was added and the rounds show no asymmetry.
"""


def deviations(
    rounds: PerturbedProducts, pooled: PerturbedSolution, groups: Sequence[Sequence[int]]
) -> tuple[Array, float]:
    """Estimate the deviations D_a of all groups of clients.

    Args:
        rounds: bases Z_k and products Y_k, with what is known of clips and noise.
        pooled: estimate of the pooled S and of the g_ki (`parts`).
        groups: groups of clients; each client is given by its column of `rounds.clips.shares`, (K, clients).

    Returns:
        The symmetric D_a, (groups, features, features), and the relative residual of the Y_k with them.
    """
    # [D_1 / sqrt(share_1) .. ] design = remainder, with equal prior variances tau^2 of all unknown entries
    shares = np.array([rounds.clips.shares.max(axis=0)[list(group)].sum() for group in groups])
    group_parts = np.stack([pooled.parts[:, list(group)].sum(axis=1) for group in groups])  # g_ka, (groups, K)
    # Y_k - sum_i g_ki S Z_k, (K, features, rank)
    remainder = rounds.products - pooled.parts.sum(axis=1)[:, None, None] * (pooled.gram @ rounds.bases)
    weighted = (group_parts / np.sqrt(shares)[:, None])[:, :, None, None] * rounds.bases  # (groups, K, features, rank)
    design = np.concatenate([np.hstack(list(group_bases)) for group_bases in weighted])  # (groups features, K rank)
    U, s, Vt = np.linalg.svd(design, full_matrices=False)
    # the remainder along each singular direction, (features, r)
    projected = np.hstack(list(remainder)) @ Vt.T
    # the bound of tau^2: mean square tau^2 share_a of the entries of D_a = that of share_a S, at the smallest share
    largest = shares.min() * (float(np.linalg.norm(pooled.gram)) / len(projected)) ** 2
    energies = np.sum(projected**2, axis=0)
    ratio = _likeliest(s, energies, float(np.sum(remainder**2)), remainder.size, len(projected), pooled.noise, largest)
    # ridge regression: the component along singular direction i is shrunk by r s_i / (1 + r s_i^2), r the ratio
    solution = (projected * (ratio * s / (1 + ratio * s**2))) @ U.T
    # from (features, groups features) to D_a, (groups, features, features), then its symmetric part
    deviation = solution.reshape(len(solution), len(groups), -1).transpose(1, 0, 2) * np.sqrt(shares)[:, None, None]
    deviation = (deviation + deviation.mT) / 2
    # less what the deviations add, sum_a g_ka D_a Z_k / share_a
    residual = remainder - np.einsum(
        "akxr->kxr", (group_parts / shares[:, None])[:, :, None, None] * (deviation[:, None] @ rounds.bases)
    )
    return deviation, float(np.linalg.norm(residual) / (np.linalg.norm(rounds.products) or 1.0))


def _likeliest(
    s: Array, energies: Array, total_energy: float, entries: int, features: int, noise: float, largest: float
) -> float:
    """Return the ratio r of tau^2 to the variance of the noise that maximises the likelihood.

    In units of the noise's variance the observed entries have the variance 1 + r s_i^2 along singular direction i, and
    1 outside. The variance of the noise itself is the one that fits best, but at least `noise` squared.

    The ratios that are compared lie between one that leaves no visible deviation and that of the largest tau^2 to the
    least noise, since the errors of S and of the g_ki may be far larger than `noise`.

    Args:
        s: singular values of the regression's design matrix.
        energies: sum of squares of the observed entries along each singular direction, over `features` entries.
        total_energy: sum of squares of all observed entries.
        entries: number of observed entries.
        features: number of features.
        noise: lower bound on the standard deviation of the noise.
        largest: upper bound on tau^2.
    """
    # sum of squares outside the singular directions, where D_a shows nothing
    outside = max(total_energy - float(energies.sum()), 0.0)
    floor = max(noise**2, _ROUND_OFF**2 * largest, np.finfo(float).tiny)

    def negative_log_likelihood(ratio: float) -> float:
        """Return twice the negative log-likelihood, up to a constant."""
        gains = 1 + ratio * s**2
        unexplained = outside + np.sum(energies / gains)
        variance = max(unexplained / entries, floor)
        return float(features * np.log(gains).sum() + entries * np.log(variance) + unexplained / variance)

    highest = largest / floor
    lowest = min(_FAINTEST / float(s[0] ** 2 or 1.0), highest)
    count = 2 + int(np.log(highest / lowest) / np.log(_STEP)) if highest else 0
    return float(min([0.0, *np.geomspace(lowest, highest, count)] if count else [0.0], key=negative_log_likelihood))
