"""Gram matrices from subspace iteration: Y_k = S Z_k is linear in S (faps proposition 2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from securefed.algorithms.base import require
from securefed.attacks.base import Observed, Reconstruction, Target
from securefed.attacks.gram.linear import ESTIMATORS, TAU, Estimator, solve
from securefed.attacks.gram.rounds import (
    by_members,
    errors,
    linear,
    memory_for,
    most_seen,
    rows_of,
    shows_products,
    stacked,
)
from securefed.attacks.requirements import MEMORY, untold
from securefed.errors import TranscriptError


@dataclass(frozen=True)
class PowerGram:
    """Stack the Z_k and Y_k of the rounds that show one set of clients, and solve S Z = Y.

    Works on any view: a sum of linear messages is one client with the pooled rows. Where the members change from
    round to round only the set seen most often is used; `gram/difference` uses the others too.

    Attributes:
        estimator: `minimum-norm` (the paper's), `symmetric`, or `psd`, the strongest (see `linear.solve`).
        tau: relative cut of the probes' singular values.
        memory: bytes that the solve may take; more is refused before anything is allocated.

    Exact once the probes span the features (features / rank rounds), and with `psd` already after min(rows) / rank
    rounds. What few digits or noise hide of a direction shows in its asymmetry: directions that hold nothing else are
    left out and counted (`diagnostics["directions lost to noise"]`). LocalPower's rounds with more than one local step
    are left out.
    """

    estimator: Estimator = "psd"
    tau: float = TAU
    memory: int = MEMORY
    name: ClassVar[str] = "gram/power"
    secret: ClassVar[str] = "gram"

    def __post_init__(self) -> None:
        require(self.estimator in ESTIMATORS, f"estimator is one of {', '.join(ESTIMATORS)}, not {self.estimator!r}")
        require(0 < self.tau < 1, f"tau must lie in (0, 1), not {self.tau}")

    def applies(self, target: Target, observed: Observed) -> str | None:
        if not shows_products(target.algorithm):
            return "The messages are no products S Z: this attack is for SSI and LocalPower, or a KKT stop."
        if (reason := untold(observed.rounds, every=False)) is not None:
            return reason
        rounds = linear(observed)
        if not rounds:
            return "Every observed round has several local steps or is one of FAPS: no message is linear in S."
        if most_seen(by_members(rounds), observed.target) is None:
            return f"No observed sum holds client {observed.target}."
        return memory_for(target.public.features, rounds, 1, self.memory)

    def run(self, observed: Observed, target: Target, rng: np.random.Generator) -> Reconstruction:
        reason = self.applies(target, observed)
        if reason is not None:
            raise TranscriptError(reason)
        groups = by_members(linear(observed))
        members = most_seen(groups, observed.target)
        assert members is not None
        probes, products = stacked(groups[members])
        rows = rows_of(members, target.public)
        sizes = errors(groups[members])
        solution = solve(probes, products, estimator=self.estimator, tau=self.tau, rows=rows, errors=sizes)
        directions = min(target.public.features, rows or target.public.features)  # that many determine S
        return Reconstruction(
            secret=self.secret,
            value=solution.gram,
            residual=solution.residual,
            rank=min(solution.rank, directions),
            unknowns=directions,
            condition=solution.condition,
            diagnostics={
                "rounds": len(groups[members]),
                "rounds observed": len(observed.rounds),
                "estimator": self.estimator,
                "noise": solution.noise,
                "directions lost to noise": solution.lost,
            },
            members=members,
        )
