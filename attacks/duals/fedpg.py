"""FedPG gives its iterates away, and with them its Gram matrices, though neither U_i nor Y_i is sent.

With one local step the Riemannian gradient follows from two iterates, and it is linear in S_i; with several, the
steps are simulated and S_i is fitted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, cast

import numpy as np

from securefed.algorithms.base import require
from securefed.algorithms.pca.fedpg import FedPG
from securefed.attacks.base import Observed, Reconstruction, Target
from securefed.attacks.duals.fit import fit_steps
from securefed.attacks.duals.steps import Step, gradient_block, opened
from securefed.attacks.gram.elimination import eliminate, solve_shifted
from securefed.errors import TranscriptError
from securefed.tensors import Array

_LEVEL = 0.02


@dataclass(frozen=True)
class FedPGDuals:
    """Open U_i and Y_i round by round, and solve the steps between them for S_i.

    Works where the view shows ONE client. A sum over several clients is not linear in their Gram matrices.

    Attributes:
        trace: trace of the (normalised, if the algorithm normalises) Gram matrix, if publicly known; it fixes the
            shift S + c I to which FedPG is blind. Without it, data that look standardised (a constant diagonal)
            get the trace of standardised data, and any other the shift of least rank.
        fit_features: largest number of features at which several local steps are fitted; the cost grows with the
            sixth power (20 features: a second; 64: minutes, and the default `jacobians` end at an error of .2).
        jacobians: largest number of linearisations of that fit.

    With one local step exact once the observed subspaces span the features: about features / rank participations.
    With several, a fit is proven only at a misfit of round-off with a Jacobian of full rank; otherwise
    `diagnostics["method"]` says "fitted, not proven", and the estimate may be far off at any `residual`.
    """

    trace: float | None = None
    fit_features: int = 40
    jacobians: int = 60
    name: ClassVar[str] = "duals/fedpg"
    secret: ClassVar[str] = "gram"

    def __post_init__(self) -> None:
        require(self.trace is None or self.trace > 0, f"trace must be positive, or None, not {self.trace}")
        require(self.jacobians >= 1, f"jacobians must be at least 1, not {self.jacobians}")
        require(self.fit_features >= 0, f"fit_features must be at least 0, not {self.fit_features}")

    def applies(self, target: Target, observed: Observed) -> str | None:
        if not isinstance(target.algorithm, FedPG):
            return "The messages hold no dual variables of FedPG."
        if len(observed.members) > 1:
            return "Not attacked: a sum over several clients is not linear in their Gram matrices."
        if target.algorithm.local_steps > 1 and target.public.features > self.fit_features:
            return f"Fitting several local steps is limited to {self.fit_features} features here (`fit_features`)."
        if len(observed.rounds) < 2:
            return "Two participations are the least that show a gradient and its subspace."
        return None

    def run(self, observed: Observed, target: Target, rng: np.random.Generator) -> Reconstruction:
        reason = self.applies(target, observed)
        if reason is not None:
            raise TranscriptError(reason)
        algorithm = cast(FedPG, target.algorithm)
        (client,) = observed.members
        rows = target.public.rows[client]
        steps = opened(observed.rounds, algorithm.rho)
        if len(steps) < 2:
            raise TranscriptError("The broadcasts that followed do not fit the messages: fewer than two steps open.")
        found = self._solved(steps, rows, algorithm) if algorithm.local_steps == 1 else self._fitted(steps, algorithm)
        scale = rows if algorithm.normalise else 1
        return Reconstruction(
            secret=self.secret,
            value=found.gram * scale,
            residual=found.residual,
            rank=found.rank,
            unknowns=found.unknowns,
            condition=found.condition,
            diagnostics={"steps": len(steps), "method": found.method, "standardised": found.standardised},
            members=observed.members,
        )

    def _solved(self, steps: Sequence[Step], rows: int, algorithm: FedPG) -> _Found:
        blocks = [gradient_block(step, algorithm.step_size) for step in steps]
        seen = eliminate([step.start for step in steps], blocks)
        solution, _ = solve_shifted(seen, rows=rows, trace=self.trace)
        standardised = self._looks_standardised(solution.gram) and solution.rank == len(solution.gram)
        if standardised:
            solution, _ = solve_shifted(seen, trace=float(len(solution.gram)))
        return _Found(solution.gram, "solved", standardised, seen.residual, seen.rank, seen.unknowns, seen.condition)

    def _fitted(self, steps: Sequence[Step], algorithm: FedPG) -> _Found:
        features = len(steps[0].start)
        found = fit_steps(steps, features, algorithm.step_size, algorithm.local_steps, self.jacobians)
        gram = found.gram
        standardised = found.proven and self._looks_standardised(gram)
        trace = float(features) if standardised else self.trace
        shift = -float(np.linalg.eigvalsh(gram)[0]) if trace is None else (trace - float(np.trace(gram))) / features
        gram = gram + shift * np.eye(features)
        method = "fitted" if found.proven else "fitted, not proven"
        return _Found(gram, method, standardised, found.misfit, found.rank, found.unknowns, found.condition)

    def _looks_standardised(self, gram: Array) -> bool:
        """Whether every feature has the same variance, up to the blind shift; it is 1 then."""
        return self.trace is None and float(np.ptp(np.diag(gram))) <= _LEVEL


@dataclass(frozen=True)
class _Found:
    gram: Array
    method: str
    standardised: bool
    residual: float
    rank: int
    unknowns: int
    condition: float
