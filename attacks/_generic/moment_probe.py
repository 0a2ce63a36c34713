"""Recover moments of clients' rows X from messages that are sums over rows of one quadratic function of each row.

Such a client step is linear in the moments M = [1 X]^T [1 X]: the number of rows (public), their sum, and the Gram
matrix S = X^T X. Its messages are y = L vec(M), with a matrix L that depends on the broadcasts only. The attack runs
the client step as a black box: it computes L column by column, from the messages of clients of which one row is not
zero (`moment_map`). It solves L m = y by least squares. Where the rounds do not determine M, alternating projections
find a solution that is a positive semidefinite matrix of rank at most the number of rows, as M is. The rows are those
of all members: the clients whose sum each observed message is.

Rows may have labels, and the function of a row may depend on its label. `ScaledClientStep` finds that out by trying
other labels, and this module reads from it:

    classes     the labels that rows can have, where they are classes and change the messages; else empty
    kinds       number of moment matrices: one for each class, or one for all rows where `classes` is empty
    known       (rows,) index of the moment matrix that each of the members' rows belongs to, by the members' labels
    response    where labels are real numbers (responses) that change the messages, the largest one; else 0. The
                response, divided by it, is then the last column of every row x.
    width       number of columns of a row x, the response included
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from securefed._tensors import Array
from securefed.attacks._base import Reconstruction, Target, View
from securefed.attacks._generic.client_replay import Replay
from securefed.attacks._generic.moment_map import LINEAR, MomentSystem, ScaledClientStep
from securefed.attacks._gram.linear import nearest_psd
from securefed.errors import TranscriptError

_TAU = 1e-12
"""Singular values of L below this share of the largest count as zero."""
_DEPARTURE_ROUNDING, _SINGULAR_ROUNDING = 100.0, 10.0
"""Multiples of the messages' rounding error up to which a departure from linearity, and a relative singular value of L,
count as rounding.
"""
_MOST_UNKNOWNS = 2200
"""Largest number of unknowns; each takes about two runs of the client step."""
_MOST_PROJECTIONS = 300
"""Largest number of alternating projections; none are needed where the rounds determine M."""
_CONVERGED = 1e-14
"""Relative change at which the projections stop."""


@dataclass(frozen=True)
class ProbeGram:
    """Probe the client step, solve least squares, and project in turn onto the solutions and onto M >= 0.

    S is exact up to round-off if L has full column rank. Steps that subtract the mean of their own rows, or divide by
    anything but the public number of rows, are no such sums; the attack detects this and refuses.
    """

    name: ClassVar[str] = "generic/probe"
    secret: ClassVar[str] = "gram"

    def applies(self, target: Target, observed: View) -> str | None:
        """Return why the attack cannot run on this view, or `None` if it can.

        One moment matrix is counted here. Whether there is one for each class shows only when the client step runs:
        `solve` counts again then, and refuses by raising.
        """
        if not observed.rounds:
            return "The view holds no round."
        unknowns = (target.public.features + 1) * (target.public.features + 2) // 2
        if unknowns > _MOST_UNKNOWNS:
            return f"{unknowns} unknowns are more than the {_MOST_UNKNOWNS} that are probed; project the columns."
        return None

    def run(self, observed: View | Replay, target: Target, rng: np.random.Generator) -> Reconstruction:
        """Reconstruct the Gram matrix of the view's members.

        The replay of a view has no labels, so that there are no classes: of the rows' moments only the number of rows,
        which is public, is known.

        Raises:
            TranscriptError: the view lacks what the attack needs.
        """
        return self.solve(Replay.of(observed, target), rng).gram()

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

        An attack on rows or their Gram matrix is given the members' labels by the audit (`replay.labels`), so that its
        result shows what an attacker learns of the rows who already knows the labels: `counted=True`. An attack on the
        labels must not use them: `counted=False`. Which labels exist is then taken from the prior's labels, since those
        of the members would show which classes have no row at all, and only the total number of rows is known.

        Args:
            replay: the observed rounds; its labels, if any, are the members' true ones.
            rng: generator of the rows that are tried.
            prior: rows like the members' that the attacker has; what the rounds leave open is taken from their moments.
            labels: labels of the prior's rows, where the attacker has them.
            counted: whether the attacker knows the members' labels, and so how many rows each class has.

        Returns:
            The moments. Call `gram` and `rows` of it after `counted=True`, and `counts` after `counted=False`.

        Raises:
            TranscriptError: the messages are not linear in M, or M has too many entries to be probed.
        """
        tolerance = max(LINEAR, _DEPARTURE_ROUNDING * replay.units.rounding)
        step, departure = _linear_step(replay, rng, None if counted else labels, tolerance)
        probes = MomentSystem.of(step, counted=counted)
        matrix, sent = probes.matrix, probes.messages - probes.constant
        # Of all least-squares solutions that nearest to the guess: m = guess + V diag(1 / s) U^T (sent - L guess), with
        # L = U diag(s) V^T. Directions of m that L does not show keep the guess.
        U, s, Vt = np.linalg.svd(matrix, full_matrices=False)
        significant = s > max(_TAU, _SINGULAR_ROUNDING * replay.units.rounding) * s[0]
        if not s[0] > 0:
            raise TranscriptError("one row alone changes no message, so that nothing can be solved for")
        U, s, Vt = U[:, significant], s[significant], Vt[significant]
        guess = np.zeros(matrix.shape[1])
        if prior is not None:
            guess = probes.moments(prior, labels, step, counted=counted)
        least_squares = guess + Vt.T @ ((U.T @ (sent - matrix @ guess)) / s)
        unexplained = float(np.linalg.norm(sent - U @ (U.T @ sent)))  # the part of the messages that no M would give
        moments = self._complete(least_squares, Vt, step, probes, counted=counted)
        return RecoveredMoments(
            tuple(moments),
            step,
            sums=probes.size > step.width,  # then the moments are those of [1 x], else of x alone
            residual=float(np.linalg.norm(matrix @ probes.packed(moments) - sent)),
            rank=len(s),
            unknowns=matrix.shape[1],
            condition=float(s[0] / s[-1]),
            off=departure,
            explained=unexplained <= tolerance * float(np.linalg.norm(sent)),
        )

    def _complete(
        self, least_squares: Array, directions: Array, step: ScaledClientStep, probes: MomentSystem, *, counted: bool
    ) -> list[Array]:
        """Project in turn onto the solutions and onto positive semidefinite matrices of bounded rank.

        Args:
            least_squares: packed moments that solve the system.
            directions: orthonormal rows D in which the messages determine the moments: D m is known.
            step: the client step.
            probes: the linear system.
            counted: whether the numbers of rows of each class, which bound the ranks, are known.

        Returns:
            The moments of each class, (size, size).
        """
        largest_ranks = [step.replay.rows] * step.kinds
        if counted:
            largest_ranks = [int(count) for count in np.bincount(step.known, minlength=step.kinds)]
        current, observed = least_squares, directions @ least_squares
        scale = float(np.linalg.norm(least_squares)) or 1.0

        def nearest(moments: Array) -> list[Array]:
            pairs = zip(probes.unpacked(moments), largest_ranks, strict=True)
            return [nearest_psd(part, rank) if rank else np.zeros_like(part) for part, rank in pairs]

        for _ in range(_MOST_PROJECTIONS if len(directions) < directions.shape[1] else 0):
            cone = probes.packed(nearest(current))
            next_point = cone + directions.T @ (observed - directions @ cone)
            converged = float(np.linalg.norm(next_point - current)) <= _CONVERGED * scale
            current = next_point
            if converged:
                break
        projected = nearest(current)
        disagreement = float(np.linalg.norm(directions @ probes.packed(projected) - observed))
        if (step.classes or step.response) and disagreement > LINEAR * float(np.linalg.norm(observed)):
            # Matrices of bounded rank are no convex set, and the alternation may end beside it. Where classes or
            # responses matter, the answer is then the solution of the system, as counts of labels are read from it;
            # elsewhere it is the positive semidefinite matrix in any case, and `residual` shows the disagreement.
            return probes.unpacked(current)
        return projected


def _linear_step(
    replay: Replay, rng: np.random.Generator, labels: Array | None, tolerance: float
) -> tuple[ScaledClientStep, float]:
    """Return the client step, and the relative departure of its messages from linearity in M.

    Args:
        replay: runs the step.
        rng: generator of the rows that are tried.
        labels: those that rows can have; `None` for the members' own.
        tolerance: largest departure.

    Raises:
        TranscriptError: the messages are not linear in M, or M has too many entries to be probed.
    """
    if not replay.deterministic:
        raise TranscriptError("the client step draws at random, so its messages are no function of the rows alone")
    step = ScaledClientStep.of(replay, rng, labels)
    size = step.width + 1
    unknowns = step.kinds * size * (size + 1) // 2
    if unknowns > _MOST_UNKNOWNS:
        raise TranscriptError(
            f"{unknowns} unknowns, moments of {step.kinds} classes, are more than the {_MOST_UNKNOWNS} that are "
            "probed; audit fewer columns or classes"
        )
    departure = step.departure(rng)
    if not departure <= tolerance:
        raise TranscriptError(f"the messages are not linear in the rows' moments: off by {departure:.1e} of their size")
    return step, departure


@dataclass(frozen=True)
class RecoveredMoments:
    """Moments that a probe recovered, and the estimates that follow from them.

    Attributes:
        parts: (size, size) moments of each class, in the units of `ScaledClientStep`.
        step: the client step.
        sums: whether the first row and column of the moments hold the number of rows and their sum.
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

        That is a finding only of moments solved with `counted=False`; otherwise the counts were an input.

        Raises:
            TranscriptError: the messages do not depend on labels that are classes.
        """
        if not self.step.classes:
            raise TranscriptError("the messages do not depend on labels, as far as other labels of the same rows show")
        if not self.sums:
            raise TranscriptError("the messages tell products of rows by class, but neither sums nor numbers of rows")
        out = np.zeros(max(self.step.classes, default=0) + 1)
        out[list(self.step.classes)] = [part[0, 0] for part in self.parts]  # one part for each class
        return self._reconstruction("labels", out)

    def rows(self, prior: Array) -> Reconstruction:
        """Return the mean row of each class, which is all that moments tell of rows: they do not change if rows mix.

        Every row gets the mean of its class by the members' own labels (`step.known`), so that this is meant for
        moments solved with `counted=True`: an attacker who does not know the labels cannot say which row is whose.

        Args:
            prior: rows like the members'.
        """
        kind_of_row, estimates = self.step.known, np.empty((self.step.replay.rows, self.step.replay.features))
        for kind, part in enumerate(self.parts):
            of_kind = kind_of_row == kind
            if of_kind.any():
                estimates[of_kind] = self._mean(part, int(of_kind.sum()), prior)
        return self._reconstruction("samples", estimates)

    def _mean(self, part: Array, count: int, prior: Array) -> Array:
        """Return the estimated mean of the `count` rows of one class, (features,).

        With known sums it is their sum over their number. Else the Gram matrix is known, which does not change if rows
        are mixed by an orthogonal matrix: one row x follows from x x^T up to its sign, which is taken from the prior's
        mean, and several rows are taken at that mean.
        """
        features, mean = self.step.replay.features, prior.mean(axis=0)
        if self.sums:
            return np.asarray(part[0, 1 : 1 + features] * self.step.replay.target.public.feature_bound / count)
        if count > 1:
            return np.asarray(mean)
        values, vectors = np.linalg.eigh(self._second(part))
        row = np.sqrt(max(float(values[-1]), 0.0)) * vectors[:, -1]
        return np.asarray(row if row @ mean >= 0 else -row)

    def _second(self, part: Array) -> Array:
        """Return the Gram matrix of one class, in the data's own units."""
        begin, features = int(self.sums), self.step.replay.features
        block = part[begin : begin + features, begin : begin + features]
        return np.asarray(block * self.step.replay.target.public.feature_bound**2)

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
