"""Recover moments of rows from messages that are sums over rows of one quadratic function.

The code of the step need not be known. Such a client step is linear in the moments M = [1 X]^T [1 X]: the number of
rows (public), their sum, and the Gram matrix S = X^T X. Its messages are L vec(M), with a matrix L that depends on the
broadcasts only. The attack builds L column by column from probes with one row that is not zero, and solves L m = y over
symmetric positive semidefinite matrices whose rank is at most the number of rows. Where the function depends on a row's
class, every class has moments of its own; the numbers of rows by class are among them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.special import ive

from securefed._tensors import Array
from securefed.attacks._base import Reconstruction, Target, View
from securefed.attacks._generic.client_replay import Replay
from securefed.attacks._generic.moment_map import LINEAR, MomentSystem, ScaledClientStep
from securefed.attacks._gram.linear import nearest_psd
from securefed.errors import TranscriptError

_TAU = 1e-12
"""Relative size from which on a singular value of L counts."""
_ROUNDED, _NOISE = 100.0, 10.0
"""Multiples of the messages' rounding: for the departure from linearity, and for singular values of L."""
_MOST_UNKNOWNS = 2200
"""Largest number of unknowns."""
_MOST_PROJECTIONS = 300
"""Largest number of alternating projections; none are needed where the rounds determine M."""
_CONVERGED = 1e-14
"""Relative change at which the projections stop."""
_LEAST = 1e-3
"""Spread assumed for a feature that does not vary in the prior, relative to the bound."""


@dataclass(frozen=True)
class ProbeGram:
    """Probe the client step, solve least squares, and project in turn onto the solutions and onto M >= 0.

    S is exact up to round-off if L has full column rank. Steps that subtract the mean of their own rows, or divide by
    anything but the public number of rows, are no such sums; the attack detects this and refuses.
    """

    name: ClassVar[str] = "generic/probe"
    secret: ClassVar[str] = "gram"

    def applies(self, target: Target, observed: View) -> str | None:
        """Return why the attack cannot run on this view, or `None` if it can."""
        if not observed.rounds:
            return "The view holds no round."
        unknowns = (target.public.features + 1) * (target.public.features + 2) // 2
        if unknowns > _MOST_UNKNOWNS:
            return f"{unknowns} unknowns are more than the {_MOST_UNKNOWNS} that are probed; project the columns."
        return None

    def run(self, observed: View, target: Target, rng: np.random.Generator) -> Reconstruction:
        """Reconstruct the secret of the view's members.

        Raises:
            TranscriptError: the view lacks what the attack needs.
        """
        return self.solve(Replay(observed, target), rng).gram()

    def solve(
        self,
        replay: Replay,
        rng: np.random.Generator,
        prior: Array | None = None,
        labels: Array | None = None,
        *,
        counted: bool = True,
    ) -> RecoveredMoments:
        """Find the moments of all members' rows; class by class where the client step depends on classes.

        Args:
            replay: the observed rounds.
            rng: of the rows that are tried.
            prior: rows like the members' that the attacker has; what the rounds leave open is taken from them.
            labels: theirs, where the attacker has them; rows can have these labels and the members' own.
            counted: whether the attacker knows how many of the members' rows have each label.

        Returns:
            What follows from them: the Gram matrix, the rows, the numbers of rows by class.

        Raises:
            TranscriptError: the messages are not linear in M, or M has too many entries to be probed.
        """
        if not replay.deterministic:
            raise TranscriptError("the client step draws at random, so its messages are no function of the rows alone")
        step = ScaledClientStep.of(replay, rng, None if counted else labels)
        size = step.width + 1
        if step.kinds * size * (size + 1) // 2 > _MOST_UNKNOWNS:
            raise TranscriptError(
                f"{step.kinds * size * (size + 1) // 2} unknowns, moments of {step.kinds} classes, are more than the "
                f"{_MOST_UNKNOWNS} that are probed; audit fewer columns or classes"
            )
        off = step.departure(rng)
        tolerance = max(LINEAR, _ROUNDED * replay.units.rounding)
        if not off <= tolerance:
            raise TranscriptError(f"the messages are not linear in the rows' moments: off by {off:.1e} of their size")
        probes = MomentSystem.of(step, counted=counted)
        constant, matrix = probes.constant, probes.matrix
        sent = probes.messages - constant
        U, s, Vt = np.linalg.svd(matrix, full_matrices=False)
        kept = s > max(_TAU, _NOISE * replay.units.rounding) * s[0]
        if not s[0] > 0:
            raise TranscriptError("one row alone changes no message, so that nothing can be solved for")
        U, s, Vt = U[:, kept], s[kept], Vt[kept]
        guess = np.zeros(matrix.shape[1])
        if prior is not None:
            guess = probes.moments(prior, labels, step, counted=counted)
        found = guess + Vt.T @ ((U.T @ (sent - matrix @ guess)) / s)
        beside = float(np.linalg.norm(sent - U @ (U.T @ sent)))  # what no M would have sent
        moments = self._complete(found, Vt, step, probes, counted=counted)
        return RecoveredMoments(
            tuple(moments),
            step,
            probes.size > step.width,
            residual=float(np.linalg.norm(matrix @ probes.packed(moments) - sent)),
            rank=len(s),
            unknowns=matrix.shape[1],
            condition=float(s[0] / s[-1]),
            off=off,
            explained=beside <= tolerance * float(np.linalg.norm(sent)),
        )

    def _complete(
        self, found: Array, directions: Array, step: ScaledClientStep, probes: MomentSystem, *, counted: bool
    ) -> list[Array]:
        """Return positive semidefinite matrices that agree with the messages, of rank at most the number of rows."""
        most = [step.replay.rows] * step.kinds
        if counted:
            most = [int(count) for count in np.bincount(step.known, minlength=step.kinds)]
        current, known = found, directions @ found
        scale = float(np.linalg.norm(found)) or 1.0

        def nearest(moments: Array) -> list[Array]:
            pairs = zip(probes.unpacked(moments), most, strict=True)
            return [nearest_psd(part, rank) if rank else np.zeros_like(part) for part, rank in pairs]

        for _ in range(_MOST_PROJECTIONS if len(directions) < directions.shape[1] else 0):
            cone = probes.packed(nearest(current))
            moved = cone + directions.T @ (known - directions @ cone)
            done = float(np.linalg.norm(moved - current)) <= _CONVERGED * scale
            current = moved
            if done:
                break
        ended = nearest(current)
        off = float(np.linalg.norm(directions @ probes.packed(ended) - known))
        if (step.classes or step.response) and off > LINEAR * float(np.linalg.norm(known)):
            return probes.unpacked(
                current
            )  # it agrees with the messages; with few rows, the projection onto the cone does not
        return ended


@dataclass(frozen=True)
class RecoveredMoments:
    """Moments that a probe recovered, and the estimates that follow from them.

    Attributes:
        parts: (size, size) moments of each class, in the units of `ScaledClientStep`.
        step: the client step.
        sums: whether the first row and column hold the number of rows and their sum.
        residual: norm of the residual of the linear system.
        rank: rank of the linear system.
        unknowns: number of its unknowns.
        condition: its condition number over the directions that count.
        off: departure of the messages from linearity.
        explained: whether some moments explain the messages.
    """

    parts: tuple[Array, ...]
    step: ScaledClientStep
    sums: bool
    residual: float
    rank: int
    unknowns: int
    condition: float
    off: float
    explained: bool

    def gram(self) -> Reconstruction:
        """Return the Gram matrix of all members' rows."""
        return self._reconstruction("gram", np.sum([self._second(part) for part in self.parts], axis=0))

    def counts(self) -> Reconstruction:
        """Return the number of rows with each label from 0 to the largest, (classes,).

        Raises:
            TranscriptError: the messages do not depend on labels that are classes.
        """
        if not self.step.classes:
            raise TranscriptError("the messages do not depend on labels, as far as other labels of the same rows show")
        if not self.sums:
            raise TranscriptError("the messages tell products of rows by class, but neither sums nor numbers of rows")
        out = np.zeros(max(self.step.classes, default=0) + 1)
        out[list(self.step.classes)] = [part[0, 0] for part in self.parts[: len(self.step.classes)]]
        return self._reconstruction("labels", out)

    def rows(self, prior: Array) -> Reconstruction:
        """Return the mean of all rows that have these moments, under a prior of independent normal columns.

        Moments leave rows open up to a rotation among them, so that every row is estimated by the mean of its class.
        A single row is its own mean. Where sums are unknown, the mean points in the direction that the prior's mean
        makes likely.

        Args:
            prior: rows like the members'.
        """
        known, out = self.step.known, np.empty((self.step.replay.rows, self.step.replay.features))
        for kind, part in enumerate(self.parts):
            mine = known == kind
            if mine.any():
                out[mine] = self._mean(part, int(mine.sum()), prior)
        return self._reconstruction("samples", out)

    def _mean(self, part: Array, count: int, prior: Array) -> Array:
        features, bound = self.step.replay.features, self.step.replay.target.public.feature_bound
        if self.sums:
            return np.asarray(part[0, 1 : 1 + features] * bound / count)
        gram, mean = self._second(part), prior.mean(axis=0)
        spread = np.maximum(prior.var(axis=0), (_LEAST * bound) ** 2)
        towards = gram @ (mean / spread)
        length = float(np.sqrt(max(mean / spread @ towards, 0.0)))
        if not length > 0:
            return np.zeros(features)
        return np.asarray(_resultant(np.sqrt(count) * length, count) * towards / (length * np.sqrt(count)))

    def _second(self, part: Array) -> Array:
        begin, features = int(self.sums), self.step.replay.features
        own = part[begin : begin + features, begin : begin + features]
        return np.asarray(own * self.step.replay.target.public.feature_bound**2)

    def _reconstruction(self, secret: str, value: Array) -> Reconstruction:
        return Reconstruction(
            secret,
            value,
            residual=self.residual,
            rank=self.rank,
            unknowns=self.unknowns,
            condition=self.condition,
            diagnostics={
                "departure from linearity": self.off,
                "depends on sums of rows": self.sums,
                "explained": self.explained,
            },
            members=frozenset(self.step.replay.members),
        )


def _resultant(concentration: float, dimension: int) -> float:
    """Return the mean length of a von Mises-Fisher direction, I_{d/2}(k) / I_{d/2 - 1}(k); tanh(k) in one dimension."""
    order = dimension / 2
    return float(ive(order, concentration) / (ive(order - 1, concentration) or 1.0))
