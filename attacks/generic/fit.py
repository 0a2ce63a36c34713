"""Simulate the client step on hypothetical rows and fit them to everything that was seen.

Levenberg-Marquardt on ||messages(rows) - seen||, the Jacobian through autodiff or by finite differences, from several
starts; rows that stand in a message are among them. The order of the rows is not determined and does not matter.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from securefed.attacks.base import Observed, Reconstruction, Target
from securefed.attacks.generic.clear import candidates
from securefed.attacks.generic.replay import Replay
from securefed.attacks.levenberg import Fit, Patience, levenberg
from securefed.errors import SecureFedError, TranscriptError
from securefed.public import require
from securefed.tensors import Array

_RANK = 1e-9
_FEWEST = 8
_READ_OFF = 2
_NEAR = 0.1
_ENOUGH, _EXPLAINED = 1e-5, 1e-4
_SOLVED, _DRAWN = 3.0, 1.5
_LEAST = 1e-3
"""Spread of a feature that does not vary in the prior, relative to the bound."""
_SPREADS = (0.1, 0.5, 0.02, 1.0)


@dataclass(frozen=True)
class FitRows:
    """Fit all members' rows jointly to all rounds.

    Attributes:
        starts: random starts beside those read off the messages.      steps: Jacobians for each start.
        calls: client steps that the search may take where derivatives are differences: fewer starts and steps then, and
            below 8 steps it refuses before it computes anything.
        most: unknowns (rows x features) beyond which it refuses likewise.
        goal: misfit, in units of what the messages vary by, that counts as solved; what they are rounded to where that
            is more, and the clients' own noise.

    Guarantee: none; a misfit above that (diagnostics: `explained`) says that the search failed, not that nothing leaks.
    `rank` below `unknowns` says that the rounds do not determine the rows.
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

    def applies(self, target: Target, observed: Observed) -> str | None:
        if not observed.rounds:
            return "The view holds no round."
        unknowns = sum(target.public.rows[i] for i in observed.members) * target.public.features
        if unknowns > self.most:
            return f"{unknowns} unknowns are more than the {self.most} that are fitted; audit smaller clients."
        return None

    def run(self, observed: Observed, target: Target, rng: np.random.Generator) -> Reconstruction:
        return self.attack(Replay(observed, target), rng)

    def attack(self, replay: Replay, rng: np.random.Generator) -> Reconstruction:
        """As `run`, on a replay.

        Raises:
            TranscriptError: the client step fails on every start, draws from a generator of its own, or draws so much
                that any rows would explain what was sent.
        """
        if not replay.repeatable:
            raise TranscriptError(
                "the client step gives two answers to one question: it draws from a generator of its own, and nothing "
                "can be fitted to it; let it draw from `rng`"
            )
        if replay.units.drowned:
            raise TranscriptError(
                "the clients' own draws change a message as much as their rows do, so that any rows would explain it; "
                "generic/regression tells what is left"
            )
        allowed, steps = self._effort(replay)
        best: Fit | None = None
        tried = 0
        for start in self._starts(replay, rng):
            if tried >= allowed:
                break
            tried += 1
            try:
                fit = self._search(replay, start, steps)
            except (SecureFedError, ArithmeticError, ValueError):
                if replay.allowance is not None:
                    replay.allowance.check()
                continue
            if best is None or fit.norm < best.norm:
                best = fit
            if best.norm <= self._goal(replay) or (replay.prior is not None and best.norm <= _ENOUGH):
                break
        if best is None or not np.isfinite(best.norm):
            raise TranscriptError("the client step refused every start of the fit")
        return self._finish(replay, best, tried)

    def _effort(self, replay: Replay) -> tuple[int, int]:
        """Starts and steps that `calls` allow."""
        if replay.differentiable:
            return _READ_OFF + self.starts, self.steps
        steps = min(self.steps, self.calls // replay.calls)
        if steps < _FEWEST:
            raise TranscriptError(
                f"{_FEWEST} steps of the fit would take {_FEWEST * replay.calls} client steps, more than {self.calls}; "
                "raise `calls`, write the step in torch, or audit smaller clients"
            )
        return max(1, self.calls // (replay.calls * steps)), steps

    def _goal(self, replay: Replay) -> float:
        return max(self.goal, replay.units.rounding)

    def _search(self, replay: Replay, start: Array, steps: int) -> Fit:
        """Messages in units of what they vary by, rows in units of the public bound. Under a defence's noise rows that
        are further from the best guess than usual count against what they explain: the likeliest are sought."""
        bound, shape = replay.target.public.feature_bound, (replay.rows, replay.features)
        unit, (guess, weight) = replay.units.unit, _guess(replay)

        def linearised(point: Array) -> tuple[Array, Array]:
            rows = point.reshape(shape) * bound
            residual = (replay(rows) - replay.seen) / unit
            if not np.isfinite(residual).all():
                return residual, np.full((len(residual), point.size), np.nan)
            jacobian = replay.jacobian(rows) * (bound / unit[:, None])
            if not replay.noise.any():
                return residual, jacobian
            return np.concatenate([residual, weight * (point - guess)]), np.vstack([jacobian, np.diag(weight)])

        start = start.reshape(-1) / bound
        return levenberg(linearised, start, steps=steps, goal=self._goal(replay), patience=Patience(1e-3))

    def _starts(self, replay: Replay, rng: np.random.Generator) -> Iterator[Array]:
        shape, bound = (replay.rows, replay.features), replay.target.public.feature_bound
        if replay.prior is not None:  # near the best guess, so that what the rounds leave open stays at it
            spread = _NEAR * replay.prior.std(axis=0)
            yield np.clip(replay.prior.mean(axis=0) + spread * rng.normal(size=shape), -bound, bound)
        for rows in candidates(replay.observed.rounds[0].message, replay.features):
            if rows.shape == shape:
                yield np.clip(rows, -bound, bound)
        for index in range(self.starts):
            yield rng.normal(scale=_SPREADS[index % len(_SPREADS)] * bound, size=shape)

    def _finish(self, replay: Replay, best: Fit, tried: int) -> Reconstruction:
        bound = replay.target.public.feature_bound
        rows = best.point.reshape(replay.rows, replay.features) * bound
        if best.norm > self._goal(replay):
            rows = np.clip(np.nan_to_num(rows), -bound, bound)
        values = np.zeros(0)
        if best.jacobian.size and np.isfinite(best.jacobian).all():
            values = np.linalg.svd(best.jacobian[: len(replay.seen)], compute_uv=False)
        kept = values[values > _RANK * values.max(initial=0.0)]
        return Reconstruction(
            self.secret,
            rows,
            residual=best.norm,
            rank=len(kept),
            unknowns=rows.size,
            condition=float(kept[0] / kept[-1]) if kept.size else float("nan"),
            members=frozenset(replay.members),
            diagnostics={
                "starts": tried,
                "steps": best.steps,
                "client step draws at random": not replay.deterministic,
                "explained": best.norm <= max(_EXPLAINED, _SOLVED * self._goal(replay), _DRAWN * replay.units.noise),
            },
        )


def _guess(replay: Replay) -> tuple[Array, Array]:
    """What rows are like before any message, in units of the public bound, and the weight of a row's distance from it
    beside the messages': (rows * features,) each."""
    bound, size = replay.target.public.feature_bound, (replay.rows, replay.features)
    mean, spread = np.zeros(replay.features), np.full(replay.features, 1 / np.sqrt(3))
    if replay.prior is not None:
        mean = replay.prior.mean(axis=0) / bound
        spread = np.maximum(replay.prior.std(axis=0) / bound, _LEAST)
    loud = float(np.sqrt(np.mean((replay.noise / replay.units.unit) ** 2)))
    return np.broadcast_to(mean, size).ravel(), np.broadcast_to(loud / spread, size).ravel()
