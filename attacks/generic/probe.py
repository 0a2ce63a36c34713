"""Is the message a sum over rows of one quadratic function? If so, probe the map and invert it, without its code.

Such a client step is linear in the moments M = [1 X]^T [1 X]: the number of rows (public), their sum, and the Gram
matrix S = X^T X. Its messages are L vec(M), with a matrix L that depends on broadcasts only. The attacker builds L
column by column from probes with one row that is not zero, and solves L m = y over symmetric matrices that are
positive semidefinite of at most as many ranks as there are rows. Where a row's function depends on its class, every
class has moments of its own; the numbers of rows by class are among them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.special import ive

from securefed.attacks.base import Observed, Reconstruction, Target
from securefed.attacks.generic.moments import LINEAR, Probes, Step
from securefed.attacks.generic.replay import Replay
from securefed.attacks.gram.linear import nearest_psd
from securefed.errors import TranscriptError
from securefed.public import require
from securefed.tensors import Array

_TAU = 1e-12
_ROUNDED, _NOISE = 100.0, 10.0
_MOST = 2200
_SETTLED = 1e-14
_LEAST = 1e-3
"""Spread of a feature that does not vary in the prior, relative to the bound."""


@dataclass(frozen=True)
class ProbeGram:
    """Probe, then least squares, then alternating projections onto what was seen and onto M >= 0.

    Attributes:
        sweeps: projections at most; none are needed where the rounds determine M.

    Guarantee: S exact up to round-off where L has full column rank. Not promised: steps that subtract their own rows'
    mean, or divide by anything but the public number of rows; they are no such sums, and the attack says so.
    """

    sweeps: int = 300
    name: ClassVar[str] = "generic/probe"
    secret: ClassVar[str] = "gram"

    def __post_init__(self) -> None:
        require(self.sweeps >= 0, f"sweeps cannot be negative, not {self.sweeps}")

    def applies(self, target: Target, observed: Observed) -> str | None:
        if not observed.rounds:
            return "The view holds no round."
        unknowns = (target.public.features + 1) * (target.public.features + 2) // 2
        if unknowns > _MOST:
            return f"{unknowns} unknowns are more than the {_MOST} that are probed; project the columns."
        return None

    def run(self, observed: Observed, target: Target, rng: np.random.Generator) -> Reconstruction:
        return self.attack(Replay(observed, target), rng)

    def attack(self, replay: Replay, rng: np.random.Generator, prior: Array | None = None) -> Reconstruction:
        """As `run`, on a replay.

        Args:
            prior: rows like the members' that the attacker has; what the rounds leave open is taken from them.

        Raises:
            TranscriptError: the messages are not linear in M.
        """
        return self.solve(replay, rng, prior).gram()

    def solve(
        self,
        replay: Replay,
        rng: np.random.Generator,
        prior: Array | None = None,
        labels: Array | None = None,
        *,
        counted: bool = True,
    ) -> Moments:
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
        step = Step.of(replay, rng, None if counted else labels)
        size = step.width + 1
        if step.kinds * size * (size + 1) // 2 > _MOST:
            raise TranscriptError(
                f"{step.kinds * size * (size + 1) // 2} unknowns, moments of {step.kinds} classes, are more than the "
                f"{_MOST} that are probed; audit fewer columns or classes"
            )
        off = step.departure(rng)
        tolerance = max(LINEAR, _ROUNDED * replay.units.rounding)
        if not off <= tolerance:
            raise TranscriptError(f"the messages are not linear in the rows' moments: off by {off:.1e} of their size")
        probes = Probes.of(step, counted=counted)
        constant, matrix = probes.constant, probes.matrix
        sent = probes.seen - constant
        U, s, Vt = np.linalg.svd(matrix, full_matrices=False)
        kept = s > max(_TAU, _NOISE * replay.units.rounding) * s[0]
        if not s[0] > 0:
            raise TranscriptError("one row alone changes no message, so that nothing can be solved for")
        U, s, Vt = U[:, kept], s[kept], Vt[kept]
        guess = np.zeros(matrix.shape[1])
        if prior is not None:
            guess = probes.moments(prior, labels, step, counted=counted)
        found = guess + Vt.T @ ((U.T @ (sent - matrix @ guess)) / s)
        beside = float(np.linalg.norm(sent - U @ (U.T @ sent)))  # what no M at all would have sent
        moments = self._complete(found, Vt, step, probes, counted=counted)
        return Moments(
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

    def _complete(self, found: Array, seen: Array, step: Step, probes: Probes, *, counted: bool) -> list[Array]:
        """Positive semidefinite matrices of at most as many ranks as rows that agree with what was seen."""
        most = [step.replay.rows] * step.kinds
        if counted:
            most = [int(count) for count in np.bincount(step.known, minlength=step.kinds)]
        current, known = found, seen @ found
        scale = float(np.linalg.norm(found)) or 1.0

        def nearest(moments: Array) -> list[Array]:
            pairs = zip(probes.unpacked(moments), most, strict=True)
            return [nearest_psd(part, rank) if rank else np.zeros_like(part) for part, rank in pairs]

        for _ in range(self.sweeps if len(seen) < seen.shape[1] else 0):
            cone = probes.packed(nearest(current))
            moved = cone + seen.T @ (known - seen @ cone)
            done = float(np.linalg.norm(moved - current)) <= _SETTLED * scale
            current = moved
            if done:
                break
        ended = nearest(current)
        off = float(np.linalg.norm(seen @ probes.packed(ended) - known))
        if (step.classes or step.response) and off > LINEAR * float(np.linalg.norm(known)):
            return probes.unpacked(current)  # what was seen is exact in it, and of few rows the cone's end is far
        return ended


@dataclass(frozen=True)
class Moments:
    """What a probe found, and what follows from it.

    Attributes:
        parts: (size, size) moments of each class, in the units of `Step`.
        step: the client step.
        sums: whether the first row and column hold the number of rows and their sum.
        residual, rank, unknowns, condition, off, explained: as the reconstructions report them.
    """

    parts: tuple[Array, ...]
    step: Step
    sums: bool
    residual: float
    rank: int
    unknowns: int
    condition: float
    off: float
    explained: bool

    def gram(self) -> Reconstruction:
        """The Gram matrix of all members' rows."""
        return self._said("gram", np.sum([self._second(part) for part in self.parts], axis=0))

    def counts(self) -> Reconstruction:
        """(classes,) how many rows have each label from 0 to the largest.

        Raises:
            TranscriptError: the messages do not depend on labels that are classes.
        """
        if not self.step.classes:
            raise TranscriptError("the messages do not depend on labels, as far as other labels of the same rows show")
        if not self.sums:
            raise TranscriptError("the messages tell products of rows by class, and neither sums nor numbers of rows")
        out = np.zeros(max(self.step.classes, default=0) + 1)
        out[list(self.step.classes)] = [part[0, 0] for part in self.parts[: len(self.step.classes)]]
        return self._said("labels", out)

    def rows(self, prior: Array) -> Reconstruction:
        """The mean of all rows that have these moments, each as likely as under independent normal columns.

        Moments leave rows open up to a rotation among them. So every row is estimated by the mean of its class, and one
        row alone by itself; where sums are unknown, by the mean in the direction that the prior's mean makes likely.

        Args:
            prior: rows like the members'.
        """
        known, out = self.step.known, np.empty((self.step.replay.rows, self.step.replay.features))
        for kind, part in enumerate(self.parts):
            mine = known == kind
            if mine.any():
                out[mine] = self._mean(part, int(mine.sum()), prior)
        return self._said("samples", out)

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

    def _said(self, secret: str, value: Array) -> Reconstruction:
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
    """Mean length of a von Mises-Fisher direction: I_{d/2}(k) / I_{d/2 - 1}(k); of one dimension tanh(k)."""
    order = dimension / 2
    return float(ive(order, concentration) / (ive(order - 1, concentration) or 1.0))


def departure(replay: Replay, rng: np.random.Generator) -> float:
    """How far the messages are from a sum over rows of one quadratic function, relative to what they vary by."""
    return Step(replay).departure(rng)
