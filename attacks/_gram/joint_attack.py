"""Decide whether sums of non-linear messages can be fitted, and report the fit: shared by FAPS, FedPG and FedPE."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from securefed._public import require
from securefed._tensors import Array
from securefed.attacks._base import Reconstruction, Target, View
from securefed.attacks._gram.joint_fit import MemberSimulation, fit_jointly
from securefed.attacks._requirements import why_incomplete
from securefed.errors import TranscriptError


@dataclass(frozen=True)
class JointFitProblem:
    """The inputs of a joint fit.

    Attributes:
        sender: simulation of one client; all clients behave alike.
        seen: the sums of the messages, flat, in the simulation's order.
        first: parameters of one client to begin with.
    """

    sender: MemberSimulation
    seen: Array
    first: Array


@dataclass(frozen=True)
class JointAttack(ABC):
    """Fit all clients of a sum at once; every round must hold the same clients, from the first on.

    The value is the sum of the matrices; `diagnostics["clients"]` has them one by one, in no order, since the sums do
    not show which belongs to which client. A fit is proven where its residual is round-off and its Jacobian in all
    matrices has full rank; `diagnostics["method"]` says whether it is.

    Attributes:
        fit_unknowns: largest number of unknowns, clients x features (features + 1) / 2; the cost of a Jacobian grows
            with their cube (300: a tenth of a second).
        starts: number of disturbed starts.
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
    def foreign(self, algorithm: object) -> str | None:
        """Return why the attack does not apply to an algorithm, or `None`."""

    @abstractmethod
    def size(self, target: Target, rounds: int) -> tuple[int, int]:
        """Return the unknowns of one client, and the entries of so many rounds' sums."""

    @abstractmethod
    def sums(self, observed: View, target: Target) -> JointFitProblem:
        """Return the inputs of the fit, for a view that `applies` accepts."""

    def finished(self, grams: Array, target: Target, members: Sequence[int]) -> tuple[Array, float]:
        """Return the matrices as they are reported one by one, and the factor from their sum to the pooled matrix."""
        return grams, 1.0

    def applies(self, target: Target, observed: View) -> str | None:
        """Return why the attack cannot run on this view, or `None`."""
        reason = self.foreign(target.algorithm) or why_incomplete(observed.rounds) or _noised(observed)
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
        """Fit the clients' matrices and report their sum."""
        reason = self.applies(target, observed)
        if reason is not None:
            raise TranscriptError(reason)
        members = sorted(observed.rounds[0].members)
        sums = self.sums(observed, target)
        senders = [sums.sender] * len(members)
        found = fit_jointly(senders, sums.seen, sums.first, starts=self.starts, jacobians=self.jacobians, rng=rng)
        grams, factor = self.finished(found.grams, target, members)
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
    """Return a reason not to try where noise was added: a fit cannot tell single clients apart in noise."""
    if any(o.noise.get(name) for o in observed.rounds for name in o.message):
        return "Noise was added to the messages, which hides by what single clients differ."
    return None
