"""Reconstruct one client's Gram matrix from sums of products S_i Z over changing sets of survivors.

In federated PCA by subspace iteration the server broadcasts a basis Z, (features, rank), and client i sends S_i Z, with
S_i = A_i A_i^T the Gram matrix of its rows A_i^T. (Clients of other methods send S_i Z beside their own message where
the method stops by the optimality (KKT) conditions of PCA.) Secure aggregation shows the server the exact sum over each
round's survivors (the clients that did not drop out), and their ids. Sums over different sets can be subtracted, so
that drop-outs alone expose single clients; no party needs to deviate from the protocol.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from securefed._public import Public, require
from securefed._tensors import Array
from securefed.algorithms._pca.server import BASIS
from securefed.attacks._base import Reconstruction, RoundView, Target, View
from securefed.attacks._gram.client_deviations import deviations
from securefed.attacks._gram.clipped_products import PerturbedProducts, is_perturbed
from securefed.attacks._gram.linear import nearest_psd, solve
from securefed.attacks._gram.observed_rounds import (
    Members,
    gram_product,
    linear_rounds,
    rounds_by_members,
    rows_of,
    shows_products,
    stacked_products,
    why_too_large,
)
from securefed.attacks._requirements import MEMORY, check_applies, why_incomplete

_TAU = 1e-12
"""Singular values of the design matrix below this share of the largest are round-off."""
_SIGNAL = 4.0
"""A singular direction is used where the products along it have at least this times the energy of noise alone, as in
`linear`, where the value was tuned.
"""


@dataclass(frozen=True)
class DifferenceGram:
    """Fit one Gram matrix S_a to every group a of clients that are in exactly the same rounds, jointly to all rounds.

    It is registered as an attack, which an audit runs on views that show sums. The equations are

        sum_a c_ka S_a Z_k = Y_k,    c_ka = 1 where group a is in round k, else 0,

    with Z_k the broadcast basis and Y_k the observed sum. Every S_a is positive semidefinite, of rank at most its
    number of rows. Alternating projections on the solutions of the equations and on such matrices begin from two
    starts: the least-squares differences of the Gram matrices that each set of survivors gives by itself, and shares of
    one common matrix in proportion to the public numbers of rows, with the least deviations. The estimate is the mean
    of the two results: the first is nearer where clients hold unlike data (digits sorted by class, the target absent
    in every second of 30 rounds: relative errors .016 and .071), the second where they hold similar data (shuffled:
    .020 and .007), and the attacker does not know which.

    Sums that a defence clipped, or to which it added noise of known size, tell little about single clients: there the
    estimate is the group's share of the pooled matrix (`clipped_products`) plus a deviation that is zero where the
    noise hides it (`client_deviations`).

    The attack reconstructs the group of the target (`Reconstruction.members`): the target alone, unless another client
    was present in exactly the same rounds.

    Attributes:
        sweeps: number of alternating projections from each start.
        memory: bytes that the system may take; more is refused before anything is allocated.
    """

    sweeps: int = 60
    memory: int = MEMORY
    name: ClassVar[str] = "gram/difference"
    secret: ClassVar[str] = "gram"

    def __post_init__(self) -> None:
        require(self.sweeps >= 1, f"sweeps must be at least 1, not {self.sweeps}")

    def applies(self, target: Target, observed: View) -> str | None:
        """Return why the attack cannot run on this view, or `None`."""
        if not shows_products(target.algorithm):
            return "The messages are no products S Z: this attack is for SSI and LocalPower, or a KKT stop."
        if observed.target is None:
            return "It needs one client as its target."
        rounds = linear_rounds(observed)
        if not any(observed.target in o.members for o in rounds):
            return (
                why_incomplete(observed.rounds, every=False)
                or f"No observed sum that is linear in S holds client {observed.target}."
            )
        if any(o.members == {observed.target} for o in rounds):
            return "The view shows the target alone: nothing needs to be subtracted."
        if len({o.members for o in rounds}) == 1:
            return "The same clients are in every sum: there is nothing to subtract."
        return why_too_large(target.public.features, rounds, len(coming_together(rounds)), self.memory)

    def run(self, observed: View, target: Target, rng: np.random.Generator) -> Reconstruction:
        """Reconstruct the Gram matrix of the target's group.

        Raises:
            TranscriptError: the attack does not apply to this view.
        """
        check_applies(self.applies(target, observed))
        rounds = linear_rounds(observed)
        groups = coming_together(rounds)
        index = next(a for a, group in enumerate(groups) if observed.target in group)
        return self._private(rounds, groups, index, target) or self._exact(rounds, groups, index, target)

    def _exact(
        self, rounds: Sequence[RoundView], groups: Sequence[Members], index: int, target: Target
    ) -> Reconstruction:
        """Solve by alternating projections from both starts, for sums without clipping or noise."""
        system = SurvivorSystem.of(rounds, groups, target.public)
        starts = system.differences(rounds, groups, target.public), system.shares()
        grams = np.mean([system.project(start, self.sweeps) for start in starts], axis=0)
        return Reconstruction(
            secret=self.secret,
            value=grams[index],
            residual=system.residual(grams),
            rank=len(system.weights),
            unknowns=len(groups) * target.public.features,
            condition=float(system.weights[0] / system.weights[-1]) if len(system.weights) else float("nan"),
            diagnostics={"rounds": len(rounds), "groups": len(groups), "noise": system.noise},
            members=groups[index],
        )

    def _private(
        self, rounds: Sequence[RoundView], groups: Sequence[Members], index: int, target: Target
    ) -> Reconstruction | None:
        """Estimate from clipped or noised sums; `None` where the defence left the sums as they were."""
        if not is_perturbed(rounds):
            return None
        products = PerturbedProducts.of(rounds, target.public)
        if not products.noise.any() and not products.may_be_clipped:
            return None
        clients = sorted(frozenset().union(*groups))  # the order of the columns of `products.clips.shares`
        pooled = products.estimate_gram(rows_of(frozenset(clients), target.public))
        places = [[clients.index(client) for client in sorted(group)] for group in groups]
        deviation, residual = deviations(products, pooled, places)
        rows = rows_of(groups[index], target.public)
        share = rows / rows_of(frozenset(clients), target.public)
        return Reconstruction(
            secret=self.secret,
            value=nearest_psd(share * pooled.gram + deviation[index], rows),
            residual=residual,
            unknowns=len(groups) * target.public.features,
            diagnostics={
                "rounds": len(rounds),
                "groups": len(groups),
                "noise": pooled.noise,
                "deviation": float(np.linalg.norm(deviation[index]) / (share * np.linalg.norm(pooled.gram) or 1.0)),
                **({"explained": True} if pooled.explained else {}),
            },
            members=groups[index],
        )


def coming_together(rounds: Sequence[RoundView]) -> list[Members]:
    """Group the clients that are in exactly the same observed rounds: differences of sums show nothing finer."""
    patterns: dict[tuple[bool, ...], set[int]] = {}
    for client in sorted(frozenset().union(*(o.members for o in rounds))):
        patterns.setdefault(tuple(client in o.members for o in rounds), set()).add(client)
    return [frozenset(group) for group in patterns.values()]


@dataclass(frozen=True)
class SurvivorSystem:
    """The equations sum_a c_ka S_a Z_k = Y_k in matrix form: [S_1 .. S_A] D = Y.

    There are A groups and K rounds; columns = K rank. The singular value decomposition D = left diag(weights) right is
    cut to the directions along which Y is more than noise.

    Attributes:
        probes: [Z_1 .. Z_K], (features, columns).
        products: Y = [Y_1 .. Y_K], (features, columns).
        design: D, with the block c_ka Z_k for group a and round k, (groups features, columns).
        present: c, with one column for each column of the Z_k, (groups, columns).
        share: each group's public share of all rows, (groups,).
        ranks: number of rows of each group, which bounds the rank of its S_a.
        left: left singular vectors of D along which the products are more than noise, (groups features, r).
        weights: the singular values of these vectors, (r,).
        right: the right singular vectors that belong to them, as rows, (r, columns).
        noise: standard deviation of the noise in an entry of Y.
    """

    probes: Array
    products: Array
    design: Array
    present: Array
    share: Array
    ranks: tuple[int, ...]
    left: Array
    weights: Array
    right: Array
    noise: float

    @classmethod
    def of(cls, rounds: Sequence[RoundView], groups: Sequence[Members], public: Public) -> SurvivorSystem:
        """Return the equations of these rounds and groups.

        Args:
            rounds: rounds that show sums of S_i Z_k.
            groups: the groups of clients (`coming_together`).
            public: the clients' public numbers of rows.
        """
        probes, products = stacked_products(rounds)
        width = rounds[0].broadcast[BASIS].shape[1]
        present = np.repeat([[float(group <= o.members) for o in rounds] for group in groups], width, axis=1)
        ranks = tuple(rows_of(group, public) for group in groups)
        share = np.asarray(ranks, float) / sum(ranks)
        noise = round_noise(rounds)
        design = (present[:, None, :] * probes).reshape(-1, probes.shape[1])
        return cls(probes, products, design, present, share, ranks, *_visible(design, products, noise), noise)

    def project(self, grams: Array, sweeps: int) -> Array:
        """Project `sweeps` times on positive semidefinite S_a of bounded rank, and on the solutions of the equations.

        Args:
            grams: the S_a to begin with, (groups, features, features).
            sweeps: number of alternations.

        Returns:
            The S_a after the last projection on positive semidefinite matrices.
        """
        for _ in range(sweeps):
            grams = self._cone(grams)
            grams = grams + self._least(self.products - self._predict(grams))
        return self._cone(grams)

    def shares(self) -> Array:
        """Return the S_a of largest posterior density where they are about shares of one common matrix.

        The prior covariance of the entries of S_a and S_b is share_a (1_ab + 10 share_b): the common part has ten times
        the variance of a group's own part, which favours explanations in which groups hold similar data. With the
        covariance written as F F^T, S_a = sum_b F_ab T_b for T_b with independent entries of variance 1, and the T_b
        are the solution of least norm.
        """
        factor = np.linalg.cholesky(np.diag(self.share) + 10 * np.outer(self.share, self.share))
        design = ((factor.T @ self.present)[:, None, :] * self.probes).reshape(-1, self.probes.shape[1])
        left_vectors, singular_values, right_vectors = _visible(design, self.products, self.noise)
        # T = Y V diag(1 / s) U^T, then S_a = sum_b F_ab T_b
        flat = ((self.products @ right_vectors.T) / singular_values) @ left_vectors.T
        return np.asarray(np.einsum("ab,xby->axy", factor, self._groups(flat)))

    def differences(self, rounds: Sequence[RoundView], groups: Sequence[Members], public: Public) -> Array:
        """Solve each set of survivors by itself, then for the groups by least squares weighted by numbers of rounds.

        Returns:
            The S_a, (groups, features, features).
        """
        sets = rounds_by_members(rounds)
        pooled = np.stack(
            [
                solve(*stacked_products(observations), rows=rows_of(members, public)).gram
                for members, observations in sets.items()
            ]
        )
        # which groups are in which set of survivors, (sets, groups)
        indicator = np.array([[float(group <= members) for group in groups] for members in sets])
        weight = np.sqrt([float(len(observations)) for observations in sets.values()])[:, None]
        flat, *_ = np.linalg.lstsq(indicator * weight, pooled.reshape(len(sets), -1) * weight, rcond=1e-8)
        return np.asarray(flat.reshape(len(groups), *pooled.shape[1:]))

    def residual(self, grams: Array) -> float:
        """Return the relative residual of all rounds."""
        scale = float(np.linalg.norm(self.products)) or 1.0
        return float(np.linalg.norm(self.products - self._predict(grams))) / scale

    def _predict(self, grams: Array) -> Array:
        """Return [S_1 .. S_A] D."""
        return np.asarray(np.hstack(list(grams)) @ self.design)

    def _least(self, residual: Array) -> Array:
        """Return the least change of all S_a that removes the visible part of `residual`, shaped as the S_a."""
        return self._groups(((residual @ self.right.T) / self.weights) @ self.left.T).transpose(1, 0, 2)

    def _cone(self, grams: Array) -> Array:
        """Return the nearest positive semidefinite matrices of bounded rank."""
        return np.stack([nearest_psd(gram, rank) for gram, rank in zip(grams, self.ranks, strict=True)])

    def _groups(self, flat: Array) -> Array:
        """Split [S_1 .. S_A], (features, groups features), into (features, groups, features)."""
        return np.asarray(flat.reshape(len(flat), len(self.ranks), -1))


def round_noise(rounds: Sequence[RoundView]) -> float:
    """Estimate the standard deviation of an entry of Y from the asymmetry of Z_k^T Y_k, symmetric without noise."""
    pairs = [o.broadcast[BASIS].T @ product for o in rounds if (product := gram_product(o)) is not None]
    off_diagonal = sum(W.size - len(W) for W in pairs)
    energy = sum(float(np.sum((W - W.T) ** 2)) for W in pairs)
    return float(np.sqrt(energy / (2 * off_diagonal))) if off_diagonal else 0.0


def _visible(design: Array, products: Array, noise: float) -> tuple[Array, Array, Array]:
    """Return the singular directions of the design along which the products are more than noise: U, s and V^T.

    Along one direction noise alone has the energy features x noise^2.

    Args:
        design: (unknowns, columns).
        products: (features, columns).
        noise: standard deviation of the noise in an entry of the products.
    """
    U, s, Vt = np.linalg.svd(design, full_matrices=False)
    significant = s > _TAU * s[0]
    U, s, Vt = U[:, significant], s[significant], Vt[significant]
    energy = np.sum((products @ Vt.T) ** 2, axis=0)
    visible = energy >= _SIGNAL * len(products) * noise**2
    return U[:, visible], s[visible], Vt[visible]
