"""Fit all members' rows to all observed messages, by running the client step on hypothetical rows.

Levenberg-Marquardt minimises the residual ||(messages(rows) - observed) / unit||, a Euclidean norm over all entries of
all observed messages. Members are the clients whose sum an observed message is. messages(rows) runs the code with which
they compute their messages, the client step (`Replay`). The units (`MessageUnits`) are scaled so that the messages of
other rows, drawn at random, have a residual of about 1. Under a defence's noise, the vector also holds the distance of
the rows from the attacker's best guess (`_prior`). Derivatives come from torch, from running the step on a
`DualArray`, or from finite differences. The search
has several starts, among them rows that a message contains as they are. The order of the rows is not determined.

The residual is compared with three thresholds:

    goal: `FitRows.goal` or the messages' rounding error, the larger. The messages are reproduced to the last digit: the
        search ends. The rows of a fit that ends above it are clipped to the public bound.
    1e-5, with a prior only (rows that the attacker has): no further start is tried. The search started near the prior's
        mean, so that what the messages leave open has stayed near it; a start at random rows would leave it random.
    explained: 1e-4, 3 times the goal or 1.5 times the noise, the largest. The reported `diagnostics["explained"]`, by
        which an audit calls the fit a success.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import ClassVar

import numpy as np

from securefed._public import require
from securefed._tensors import Array
from securefed.attacks._base import Reconstruction, Target, View
from securefed.attacks._engine.fit import Fit, Prior, SearchLimits, fit
from securefed.attacks._engine.unknowns import RowEntries
from securefed.attacks._fitting.levenberg_marquardt import StallLimit
from securefed.attacks._generic.client_replay import Replay
from securefed.attacks._generic.readable_rows import candidates
from securefed.attacks._generic.replayed_member import ReplayedMember
from securefed.errors import TranscriptError

_RANK_TOLERANCE = 1e-9
"""Singular values of the Jacobian below this share of the largest do not count for the rank; finite differences have
errors of about this size.
"""
_FEWEST_STEPS = 8
"""Number of steps below which a fit with derivatives from differences is refused, since it would hardly converge."""
_READ_STARTS = 2
"""Starts allowed beside the random ones, for rows that were read off a message and for the prior."""
_PRIOR_SPREAD = 0.1
"""Standard deviation of the start around the mean of the prior, the rows that the attacker has, relative to theirs."""
_GOOD_WITH_PRIOR, _EXPLAINED = 1e-5, 1e-4
"""Residual at which no further start is tried if there is a prior, and up to which messages count as explained; see the
head of this file.
"""
_GOAL_FACTOR, _NOISE_FACTOR = 3.0, 1.5
"""Messages also count as explained up to these multiples of the goal, and of the noise of the clients' own draws and of
the defence (`MessageUnits.noise`).
"""
_LEAST_DEVIATION = 1e-3
"""Standard deviation assumed for a feature that does not vary in the prior, relative to the bound; it keeps the penalty
finite.
"""
_SPREADS = (0.1, 0.5, 0.02, 1.0)
"""Standard deviations of the random starts, relative to the bound, used in turn."""


@dataclass(frozen=True)
class FitRows:
    """Fit all members' rows jointly to all rounds.

    Nothing is guaranteed: `diagnostics["explained"]` false means that the search failed, not that nothing leaks. A
    `rank` below `unknowns` means that the rounds do not determine the rows.

    Attributes:
        starts: number of random starts beside those read off the messages.
        steps: largest number of Jacobians for each start.
        calls: largest number of runs of a client step, where derivatives are finite differences. Starts and steps are
            reduced to fit; the attack refuses if fewer than 8 steps are possible. To allow more, write
            `audit_algorithm(..., fit=FitRows(calls=100_000))`.
        most: largest number of unknowns (rows x features); the attack refuses if there are more.
        goal: residual at which the search ends; the rounding error of the messages takes its place if that is larger.
    """

    starts: int = 3
    steps: int = 40
    calls: int = 20_000
    most: int = 600
    goal: float = 1e-9
    name: ClassVar[str] = "generic/fit"
    secret: ClassVar[str] = "samples"

    def __post_init__(self) -> None:
        require(self.starts >= 1, f"starts must be at least 1, not {self.starts}")
        require(self.steps >= 1, f"steps must be at least 1, not {self.steps}")
        require(self.calls >= 1, f"calls must be at least 1, not {self.calls}")
        require(self.most >= 1, f"most must be at least 1, not {self.most}")
        require(0 < self.goal < 1, f"goal must lie between 0 and 1, not {self.goal}")

    def applies(self, target: Target, observed: View) -> str | None:
        """Return why the attack cannot run on this view, or `None` if it can."""
        if not observed.rounds:
            return "The view holds no round."
        unknowns = sum(target.public.rows[i] for i in observed.members) * target.public.features
        if unknowns > self.most:
            return f"{unknowns} unknowns are more than the {self.most} that are fitted; audit smaller clients."
        return None

    def run(self, observed: View | Replay, target: Target, rng: np.random.Generator) -> Reconstruction:
        """Recover the rows behind the observed messages; an audit gives a replay with a prior and a time budget.

        Raises:
            TranscriptError: the client step fails on every start, or its answers are not repeatable, or it draws so
                much at random that any rows would explain the messages; or the view cannot be replayed.
        """
        replay = Replay.of(observed, target)
        if not replay.repeatable:
            raise TranscriptError(
                "the client step returns different messages for the same rows and seed, so that nothing can be fitted: "
                "it draws from a generator of its own; let it draw from `rng`"
            )
        if replay.units.noise_dominates:
            raise TranscriptError(
                "the clients' random draws change a message as much as their rows do, so that any rows would explain "
                "it; use generic/regression instead"
            )
        starts, steps = self._effort(replay)
        goal = max(self.goal, replay.units.rounding)
        enough = goal if replay.prior is None else max(goal, _GOOD_WITH_PRIOR)
        bound = replay.target.public.feature_bound
        unknowns = [RowEntries(size, replay.features, bound) for size in replay.sizes]
        found = fit(
            [ReplayedMember(replay, index, unknown) for index, unknown in enumerate(unknowns)],
            replay.messages,
            islice(self._starts(replay, rng), starts),
            SearchLimits(steps, goal, StallLimit(1e-3), enough=enough, singular=_RANK_TOLERANCE, curved=False),
            replay.units.unit,
            _prior(replay) if replay.noise.any() else None,
        )
        if not np.isfinite(found.residual):
            raise TranscriptError("the client step refused every start of the fit")
        return self._reconstruction(replay, found, goal)

    def _effort(self, replay: Replay) -> tuple[int, int]:
        """Return the numbers of starts and of Jacobians a start that `calls` allows.

        `replay.calls` is the number of client steps that one Jacobian by finite differences takes.
        """
        if replay.differentiable:
            return _READ_STARTS + self.starts, self.steps
        steps = min(self.steps, self.calls // replay.calls)
        if steps < _FEWEST_STEPS:
            raise TranscriptError(
                f"{_FEWEST_STEPS} steps of the fit would take {_FEWEST_STEPS * replay.calls} client steps, more than "
                f"{self.calls}; allow them by audit_algorithm(..., fit=FitRows(calls={_FEWEST_STEPS * replay.calls})) "
                "with FitRows from securefed.attacks, write the step in torch, or audit smaller clients"
            )
        return max(1, self.calls // (replay.calls * steps)), steps

    def _starts(self, replay: Replay, rng: np.random.Generator) -> Iterator[Array]:
        """Yield starts: near the prior's mean, rows that the first message contains, then random rows.

        They are rows in units of the public bound, flat.
        """
        shape, bound = (replay.rows, replay.features), replay.target.public.feature_bound
        if replay.prior is not None:  # near the best guess, so that what the rounds leave open stays at it
            spread = _PRIOR_SPREAD * replay.prior.std(axis=0)
            near = replay.prior.mean(axis=0) + spread * rng.normal(size=shape)
            yield np.clip(near / bound, -1, 1).ravel()
        for rows in candidates(replay.observed.rounds[0].message, replay.features):
            if rows.shape == shape:
                yield np.clip(rows / bound, -1, 1).ravel()
        for index in range(self.starts):
            yield rng.normal(scale=_SPREADS[index % len(_SPREADS)], size=shape).ravel()

    def _reconstruction(self, replay: Replay, found: Fit, goal: float) -> Reconstruction:
        """Return the fit as a reconstruction; rows of a failed fit are clipped to the public bound."""
        bound = replay.target.public.feature_bound
        rows = np.concatenate(found.points).reshape(replay.rows, replay.features) * bound
        if found.residual > goal:
            rows = np.clip(np.nan_to_num(rows), -bound, bound)
        explained = max(_EXPLAINED, _GOAL_FACTOR * goal, _NOISE_FACTOR * replay.units.noise)
        return Reconstruction(
            self.secret,
            rows,
            residual=found.residual,
            rank=found.rank,
            unknowns=rows.size,
            condition=found.condition,
            members=frozenset(replay.members),
            diagnostics={
                "starts": found.starts,
                "steps": found.jacobians,
                "client step draws at random": not replay.deterministic,
                "explained": found.residual <= explained,
            },
        )


def _prior(replay: Replay) -> Prior:
    """Return the prior of the rows, in units of the public bound.

    The residual is in units of the messages, and so the prior is weighted with the noise in that unit: the sum of
    squares is then, up to a factor, minus the log posterior density of the rows. Without a prior of the attacker's,
    features are taken as uniform within the bound, with standard deviation 1/sqrt(3) in its units.
    """
    bound, size = replay.target.public.feature_bound, (replay.rows, replay.features)
    mean, spread = np.zeros(replay.features), np.full(replay.features, 1 / np.sqrt(3))
    if replay.prior is not None:
        mean = replay.prior.mean(axis=0) / bound
        spread = np.maximum(replay.prior.std(axis=0) / bound, _LEAST_DEVIATION)
    noise = float(np.sqrt(np.mean((replay.noise / replay.units.unit) ** 2)))
    return Prior(np.diag(np.broadcast_to(noise / spread, size).ravel()), np.broadcast_to(mean, size).ravel())
