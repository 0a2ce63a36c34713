"""Reconstruct every client's Gram matrix from sums of non-linear messages: the base class for FAPS, FedPG and FedPE.

In these methods of federated PCA client i has rows A_i^T and the Gram matrix S_i = A_i A_i^T, (features, features). A
sum of messages that are not linear in the S_i depends on each S_i, not only on their sum. Where the same
clients are in every round from the first on, and no noise was added, all clients are simulated and their S_i fitted to
the observed sums (`joint_fit`). This class decides whether a view allows that and reports the fit; a subclass provides
the simulation of its algorithm. A view (`View`) is what an attacker observes of a run: for each round the broadcast and
a sum of messages over a set of clients, its `members`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from securefed._public import require
from securefed._tensors import Array
from securefed.attacks._base import Reconstruction, Target, View
from securefed.attacks._engine.fit import SearchLimits, Simulation, fit, unequal_starts
from securefed.attacks._fitting.levenberg_marquardt import StallLimit
from securefed.attacks._gram.coordinates import SymmetricMatrices
from securefed.attacks._requirements import check_applies, why_incomplete

_GOAL = 3e-13
"""Relative residual at which a fit stops: about round-off of double precision."""
_PATIENCE = StallLimit(1e-8, far=10, close=None)
"""A fit ends when ten Jacobians have not halved its residual while that is above 1e-8; below, it goes on to `_GOAL`."""
_EQUAL_CLIENTS = SearchLimits(40, _GOAL, StallLimit(0.0, far=5))
"""Limits of the fit of equal clients, which only gives a start and need not be accurate."""


@dataclass(frozen=True)
class JointFitProblem:
    """The inputs of a joint fit.

    Attributes:
        sender: simulation of one client: its messages as a function of the parameters of its S_i. It serves for all
            clients, which differ in nothing but S_i.
        observed: the sums of the messages as one vector, in the simulation's order and units.
        first: parameters of one client's S_i, as the simulation takes them. The fit begins there, with all clients
            equal.
    """

    sender: Simulation
    observed: Array
    first: Array


@dataclass(frozen=True)
class JointAttack(ABC):
    """Fit all clients of a sum at once; every round must hold the same clients, from the first on.

    The reconstructed value is the sum of the S_i. `diagnostics["clients"]` holds them one by one, in arbitrary order,
    since the sums do not show which matrix belongs to which client. `diagnostics["method"]` says whether the fit is
    proven: its residual is round-off, and its Jacobian in the parameters of all S_i has full rank.

    Attributes:
        fit_unknowns: largest number of unknowns, clients x features (features + 1) / 2; the cost of a Jacobian grows
            with their cube (300: a tenth of a second).
        starts: largest number of random starts.
        jacobians: largest number of Jacobians of each start.
    """

    fit_unknowns: int = 300
    starts: int = 6
    jacobians: int = 150
    secret: ClassVar[str] = "gram"

    def __post_init__(self) -> None:
        require(self.fit_unknowns >= 0, f"fit_unknowns must be at least 0, not {self.fit_unknowns}")
        require(self.starts >= 1, f"starts must be at least 1, not {self.starts}")
        require(self.jacobians >= 1, f"jacobians must be at least 1, not {self.jacobians}")

    @abstractmethod
    def why_other_algorithm(self, algorithm: object) -> str | None:
        """Return why the attack does not apply to an algorithm, or `None`."""

    @abstractmethod
    def size(self, target: Target, rounds: int) -> tuple[int, int]:
        """Return the number of unknowns of one client, and the number of observed entries in so many rounds.

        Args:
            target: the algorithm and the public facts.
            rounds: number of observed rounds.
        """

    @abstractmethod
    def fit_problem(self, observed: View, target: Target) -> JointFitProblem:
        """Return the inputs of the fit, for a view that `applies` accepts."""

    def rescaled(self, grams: Array, target: Target, members: Sequence[int]) -> tuple[Array, float]:
        """Convert the fitted matrices to the units in which they are reported; here nothing is converted.

        Args:
            grams: the fitted S_i, (clients, features, features), in arbitrary order.
            target: the algorithm and the public facts.
            members: ids of the clients.

        Returns:
            The clients' matrices, and the factor by which their sum is multiplied to give the reconstructed value.
        """
        return grams, 1.0

    def applies(self, target: Target, observed: View) -> str | None:
        """Return why the attack cannot run on this view, or `None`."""
        reason = self.why_other_algorithm(target.algorithm) or why_incomplete(observed.rounds) or _noised(observed)
        if reason is not None:
            return reason
        members = observed.rounds[0].members
        if len(members) < 2:
            return "The view shows one client, whose messages other attacks open."
        if any(o.members != members for o in observed.rounds):
            return "The clients of the sums change, so no client's run can be simulated from its start."
        single, entries = self.size(target, len(observed.rounds))
        unknowns = len(members) * single
        if entries < unknowns:
            return f"{entries} entries of the sums cannot determine {unknowns} unknowns of {len(members)} clients."
        if unknowns > self.fit_unknowns:
            return f"{unknowns} unknowns; the limit is {self.fit_unknowns}: raise `fit_unknowns`."
        return None

    def run(self, observed: View, target: Target, rng: np.random.Generator) -> Reconstruction:
        """Fit the clients' Gram matrices and report their sum.

        Raises:
            TranscriptError: the attack does not apply to this view.
        """
        check_applies(self.applies(target, observed))
        members = sorted(observed.rounds[0].members)
        problem = self.fit_problem(observed, target)
        count = len(members)
        # one matrix for all clients that explains the sums best; from there each client's is changed at random
        common = fit([problem.sender], problem.observed / count, [problem.first], _EQUAL_CLIENTS)
        start = common.points[0] if np.isfinite(common.residual) else problem.first
        found = fit(
            [problem.sender] * count,
            problem.observed,
            unequal_starts(start, count, self.starts, rng),
            SearchLimits(self.jacobians, _GOAL, _PATIENCE),
        )
        coordinates = SymmetricMatrices.of(target.public.features)
        fitted = np.stack([coordinates.matrix(x) for x in found.points])
        grams, factor = self.rescaled(fitted, target, members)
        return Reconstruction(
            secret=self.secret,
            value=factor * grams.sum(axis=0),
            residual=found.residual,
            rank=found.rank,
            unknowns=found.unknowns,
            condition=found.condition,
            diagnostics={
                "method": "fitted" if found.proven else "fitted, not proven",
                "starts": found.starts,
                "clients": grams,
            },
            members=frozenset(members),
        )


def _noised(observed: View) -> str | None:
    """Return a refusal where noise was added, since it hides the differences between clients; else `None`."""
    if any(o.noise.get(name) for o in observed.rounds for name in o.message):
        return "Noise was added to the messages, which hides the differences between single clients."
    return None
