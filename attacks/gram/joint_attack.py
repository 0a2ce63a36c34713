"""What the attacks on sums of non-linear messages share: when there is enough to fit, and what they report."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from securefed.attacks.base import Observed, Reconstruction, Target
from securefed.attacks.gram.joint import Sender, fit_jointly
from securefed.attacks.requirements import untold
from securefed.errors import TranscriptError
from securefed.public import require
from securefed.tensors import Array


@dataclass(frozen=True)
class Sums:
    """What is to be fitted.

    Attributes:
        sender: any of the clients, which all behave alike.      seen: their sums, flat, in the sender's order.
        first: parameters of a client to begin with.
    """

    sender: Sender
    seen: Array
    first: Array


@dataclass(frozen=True)
class JointAttack(ABC):
    """Fit all clients of a sum at once; every round must hold the same ones, from the first on.

    Attributes:
        fit_unknowns: largest number of unknowns, clients x features (features + 1) / 2: the cost of a linearisation
            grows with their cube (300: a tenth of a second).
        starts: disturbed starts.      jacobians: largest number of linearisations of each.

    `diagnostics["clients"]` has the matrices one by one, in no order: nothing says whose is whose. The value is their
    sum. Proven only at a misfit of round-off with a Jacobian of full rank in all matrices together;
    `diagnostics["method"]` says whether it is.
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
        """Why it is not an algorithm of this attack."""

    @abstractmethod
    def size(self, target: Target, rounds: int) -> tuple[int, int]:
        """Unknowns of one client, and entries of that many sums."""

    @abstractmethod
    def sums(self, observed: Observed, target: Target) -> Sums:
        """What is to be fitted, of a view that `applies`."""

    def finished(self, grams: Array, target: Target, members: Sequence[int]) -> tuple[Array, float]:
        """The matrices as they are reported one by one, and what times their sum is the pooled one."""
        return grams, 1.0

    def applies(self, target: Target, observed: Observed) -> str | None:
        reason = self.foreign(target.algorithm) or untold(observed.rounds) or _noised(observed)
        if reason is not None:
            return reason
        members = observed.rounds[0].members
        if len(members) < 2:
            return "The view shows one client, whose messages other attacks open."
        if any(o.members != members for o in observed.rounds):
            return "The clients of the sums change, so nobody's run can be simulated from the start."
        single, entries = self.size(target, len(observed.rounds))
        unknowns = len(members) * single
        if entries < unknowns:
            return f"{entries} entries of the sums cannot determine {unknowns} unknowns of {len(members)} clients."
        if unknowns > self.fit_unknowns:
            return f"{unknowns} unknowns of {len(members)} clients; the limit is {self.fit_unknowns} (`fit_unknowns`)."
        return None

    def run(self, observed: Observed, target: Target, rng: np.random.Generator) -> Reconstruction:
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
            residual=found.misfit,
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


def _noised(observed: Observed) -> str | None:
    """Why there is nothing to fit: no search tells single clients apart in noise."""
    if any(o.noise.get(name) for o in observed.rounds for name in o.message):
        return "Noise was added to the messages, which hides by what single clients differ."
    return None
