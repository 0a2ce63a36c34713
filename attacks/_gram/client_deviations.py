"""Estimate one client's S from clipped or noised sums over changing survivors.

The estimate is the client's share of the pooled S and a deviation from it. Y_k ~ sum_i g_ki (S + D_i / share_i) Z_k,
with g_ki the part of S that client i of round k shows. With S solved from all rounds the rest is linear in the
deviations D_a of the groups that come together. They are random, with entries of variance tau^2 share_a, and tau, and
the noise where it is not known, are those of largest likelihood. Where noise hides the deviations tau is 0 and the
estimate is the share.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from securefed._tensors import Array
from securefed.attacks._gram.clipped_products import PerturbedProducts, PerturbedSolution

_SIZES = np.concatenate([[0.0], np.geomspace(1e-8, 1.0, 81)])
"""Values of tau^2 that are compared, relative to the largest that is expected: no deviation exceeds the share."""


def deviations(
    seen: PerturbedProducts, pooled: PerturbedSolution, groups: Sequence[Sequence[int]]
) -> tuple[Array, float]:
    """Return D_a of every group, and the relative residual of the rounds with them.

    Args:
        seen: the rounds.
        pooled: S of all clients together.
        groups: of clients, by their place among `seen.clips.shares`.

    Returns:
        The D_a, symmetric, (groups, features, features), and the residual.
    """
    shares = np.array([seen.clips.shares.max(axis=0)[list(group)].sum() for group in groups])
    part = np.stack([pooled.parts[:, list(group)].sum(axis=1) for group in groups])  # g_ka, (groups, K)
    rest = seen.products - pooled.parts.sum(axis=1)[:, None, None] * (pooled.gram @ seen.bases)
    weighted = (part / np.sqrt(shares)[:, None])[:, :, None, None] * seen.bases  # of D_a / sqrt(share_a)
    design = np.concatenate([np.hstack(list(own)) for own in weighted])  # (groups features, K rank)
    U, s, Vt = np.linalg.svd(design, full_matrices=False)
    along = np.hstack(list(rest)) @ Vt.T
    largest = shares.min() * (float(np.linalg.norm(pooled.gram)) / len(along)) ** 2
    seen_along = np.sum(along**2, axis=0)
    ratio = _likeliest(s, seen_along, float(np.sum(rest**2)), rest.size, len(along), pooled.noise, largest)
    flat = (along * (ratio * s / (1 + ratio * s**2))) @ U.T
    found = flat.reshape(len(flat), len(groups), -1).transpose(1, 0, 2) * np.sqrt(shares)[:, None, None]
    found = (found + found.mT) / 2
    left = rest - np.einsum("akxr->kxr", (part / shares[:, None])[:, :, None, None] * (found[:, None] @ seen.bases))
    return found, float(np.linalg.norm(left) / (np.linalg.norm(seen.products) or 1.0))


def _likeliest(
    s: Array, energies: Array, whole: float, entries: int, features: int, noise: float, largest: float
) -> float:
    """Return tau^2 over the variance of the noise, of largest likelihood.

    Args:
        s: singular values of the design.
        energies: of what is observed along them, over `features` entries each.
        whole: energy of all entries.
        entries: number of entries.
        features: number of features.
        noise: least standard deviation of the noise.
        largest: largest tau^2.
    """
    rest = max(whole - float(energies.sum()), 0.0)
    floor = max(noise**2, np.finfo(float).tiny)

    def surprise(ratio: float) -> float:
        gains = 1 + ratio * s**2
        left = rest + np.sum(energies / gains)
        variance = max(left / entries, floor)
        return float(features * np.log(gains).sum() + entries * np.log(variance) + left / variance)

    return float(min(_SIZES * largest / floor, key=surprise))
