"""Measure whether a defence with noise keeps its own epsilon: canaries go through its real code, and bound it.

A canary is a client that sends either nothing, or one direction u with a norm of 100 clips: the two neighbouring inputs
of the plan's epsilon. (Where a cohort of fixed size is drawn, it sends u or -u.) With a bit b for "the canary was
there", the adversary sees y = b shift + scale * noise and scores b by the log likelihood ratio. Scores that tell b too
well contradict the epsilon that the plan states, as where noise or clip are missing; `epsilon_bounds` turns them into a
lower bound. Two games are played: many independent exchanges with one canary, and one exchange with many canaries in
orthogonal directions, a bit each. The adversary sees what epsilon covers: one upload under local noise, the sum of the
fewest clients that may be opened under noise in the ring, the released sum under central noise. Chains whose unit of
privacy is a record are audited in `record_audit`.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Final

import numpy as np

from securefed._auditing.differential_privacy.epsilon_bounds import CONFIDENCE, Guesses
from securefed._auditing.differential_privacy.noise_engine import (
    Games,
    NoiseAudit,
    is_gaussian,
    judged,
    noise_scale,
    planned_noise,
    release_after_noise,
    released_sum,
)
from securefed._auditing.differential_privacy.noise_tests import Noise
from securefed._public import require
from securefed._runtime.cohorts import unpredictable
from securefed._runtime.privacy_checks import sampler_of
from securefed._tensors import Array, Layout, Tensors, TensorSpec
from securefed.defenses._base import ChainStage, Defense, Plan
from securefed.defenses._differential_privacy import FixedSizeSampling
from securefed.errors import PlanError, SecureFedError

Draw = Callable[[Sequence[int], int], Sequence[int]]
"""Draws a cohort of a fixed size: (all clients, size) -> the clients that take part."""
_FAR: Final = 100.0
"""Norm of a canary in clips, so that a clip that is missing or too large shows."""
_ENTRIES: Final = 4
"""Numbers of a tensor in exchanges with one canary; more only take longer, since the canary has one direction."""
_SMALL: Final = 3
"""Clients of these exchanges: the fewest that secure aggregation accepts."""


def audit_noise(
    defense: Defense,
    delta: float,
    *,
    runs: int = 1000,
    canaries: int = 128,
    made: int | None = None,
    clip: float | None = None,
    tensors: int = 1,
    draw: Draw = unpredictable,
    confidence: float = CONFIDENCE,
) -> NoiseAudit:
    """Audit one exchange of a defence that adds noise.

    Args:
        defense: a defence with noise.
        delta: the delta of the epsilon that its plan states.
        runs: number of exchanges with a canary, and of as many without.
        canaries: number of bits of the one run.
        made: number of guesses of them, for the largest and the smallest scores; by default a quarter of the bits.
        clip: the clip of the plan by default; canaries have 100 times that norm.
        tensors: number of tensors of a contribution; a canary is the same in all of them. Clips by tensor need more
            than one.
        draw: the draw of cohorts, where the accountant counts on `FixedSizeSampling`; the federation's own by default.
        confidence: the confidence of each bound.

    Returns:
        The bounds; where the defence refuses a canary, bounds of 0 and its error.

    Raises:
        ConfigError: too few runs or canaries.
        PlanError: the defence plans no epsilon.
    """
    require(runs >= 4 and canaries >= 8, f"at least 4 runs and 8 canaries, not {runs} and {canaries}")
    few = _CanaryExchanges(defense, _SMALL, (tensors, _ENTRIES), clip, draw)
    try:
        with_it = np.stack([few.scored(few.release(bit=True)) for _ in range(runs)])
        drawn = [few.release(bit=False) for _ in range(runs)]
        without = np.stack([few.scored(release) for release in drawn])
        scores, bits = _one_run_scores(defense, (tensors, canaries), clip, draw)
    except SecureFedError as error:
        return NoiseAudit(defense.name, few.claimed, delta, 0.0, 0.0, 0.0, refused=str(error))
    counted = Guesses.of(scores, bits, canaries // 4 if made is None else made)
    games = Games(with_it, without, counted, few.noise(drawn) if few.gaussian else None)
    return judged(defense.name, few.claimed, delta, games, confidence)


class _CanaryExchanges:
    """Exchanges of canary clients under one defence.

    Args:
        defense: a defence with noise.
        clients: number of clients.
        shape: number of tensors of a contribution, and of entries of each.
        clip: largest norm of a contribution; that of the plan by default.
        draw: the draw of cohorts of a fixed size.
    """

    def __init__(
        self, defense: Defense, clients: int, shape: tuple[int, int], clip: float | None, draw: Draw = unpredictable
    ) -> None:
        tensors, self.entries = shape
        self.defense, self.draw = defense, draw
        sampler = sampler_of(defense)
        self.fixed = sampler if isinstance(sampler, FixedSizeSampling) else None
        self.names = tuple(f"canary{place}" for place in range(tensors))
        layout = Layout(tuple(TensorSpec(name, (self.entries,)) for name in self.names))
        self._planned: Plan = defense.plan(layout, clients if self.fixed is None else self.fixed.cohort)
        found = dict(self._planned.epsilon).get(1)  # by number of exchanges
        if found is None:
            raise PlanError(f"{defense.name} plans no epsilon for one exchange, so there is nothing to audit")
        self.claimed = float(found)
        privacy = self._planned.privacy
        if privacy is None:
            raise PlanError(f"{defense.name} has no clip; put one into the chain")
        # `noise_survivors` is the number of clients whose noise together meets epsilon; 0 where the server adds it
        self.local = privacy.noise_survivors == 1
        norm = clip if clip is not None else privacy.clip
        self.norm = norm * max(self._planned.learned, default=1.0)  # `learned`: factors of an adaptive clip
        # central noise does not depend on who is there; distributed noise is least for the fewest survivors
        self.summed = 1 if self.local else max(privacy.noise_survivors, 1)

    def one(self, *, bit: bool) -> Array:
        """Return the scores of one exchange, with the canary if `bit`."""
        return self.scored(self.release(bit=bit))

    def release(self, *, bit: bool) -> dict[str, Array]:
        """Return what the adversary sees of one exchange, with the canary if `bit`."""
        return self.exchange(self._with_silent_clients([self._direction_or_none(self._direction, bit=bit)]))

    def noise(self, drawn: Sequence[Mapping[str, Array]]) -> Noise:
        """Return the noise of exchanges without the canary."""
        flat = np.stack([np.concatenate([np.ravel(release[name]) for name in self.names]) for release in drawn])
        planned = planned_noise(self.defense, self._planned, max(self.summed, 1))
        return Noise.of(flat, [np.broadcast_to(planned[name], self.entries) for name in self.names])

    def scored(self, release: Mapping[str, Array]) -> Array:
        """Return log likelihood ratios of one exchange, of all tensors and of each.

        Of noise N(0, (scale sigma)^2) the ratio of "with" to "without" is, up to a constant and the factor 1 / sigma^2,
        the sum of shift y / scale^2.
        """
        shift, scale = self._shift_and_scale
        parts = [float(np.sum(shift[name] * release[name] / scale[name] ** 2)) for name in shift]
        return np.array([sum(parts), *(parts if len(parts) > 1 else [])])

    def exchange(self, directions: Sequence[Array | None]) -> dict[str, Array]:
        """Return what the adversary sees of a sum of clients; each sends `_FAR` clips in its direction, or nothing."""

        def encoded(direction: Array | None, plan: Plan) -> Tensors:
            return self._nothing(plan) if direction is None else self.defense.encode(self._canary(direction), plan)

        return released_sum(self.defense, self._planned, [partial(encoded, direction) for direction in directions])

    def scores(self, directions: Sequence[Array], bits: Array) -> Array:
        """Score the canaries of one exchange, whose directions are orthogonal: u . y for each.

        Args:
            directions: (entries,) for each canary.
            bits: (canaries,) whether each was there.

        Returns:
            (canaries,) scores.
        """
        canaries = [self._direction_or_none(d, bit=bool(b)) for d, b in zip(directions, bits, strict=True)]
        release = self.exchange(self._with_silent_clients(canaries))
        return np.array([sum(float(release[name] @ direction) for name in self.names) for direction in directions])

    def _with_silent_clients(self, canaries: Sequence[Array | None]) -> list[Array | None]:
        """Add silent clients (zeros and their share of noise), as many as the noise is for; or draw a fixed cohort."""
        if self.fixed is None:
            return [*canaries, *[None] * (self.summed - len(canaries))]
        clients = [*canaries, *[None] * (self.fixed.clients - len(canaries))]
        return [clients[client] for client in self.draw(range(self.fixed.clients), self.fixed.cohort)]

    def _direction_or_none(self, direction: Array, *, bit: bool) -> Array | None:
        """Return the canary's direction if `bit`; else nothing, or its opposite in a cohort of a fixed size."""
        return direction if bit else None if self.fixed is None else -direction

    def _canary(self, direction: Array) -> dict[str, Array]:
        """By tensor, a contribution of 100 clips in a direction (entries,)."""
        return dict.fromkeys(self.names, direction * (_FAR * self.norm))

    def _nothing(self, plan: Plan) -> Tensors:
        """Encode zeros by the steps after the clip alone: an adaptive clip would add bits on the norm."""
        zeros: Tensors = {tensor.name: np.zeros(tensor.shape) for tensor in plan.tensors}
        for transform in self.defense.transforms:
            if transform.stage <= ChainStage.CLIP:
                continue
            zeros = transform.encode(zeros, plan)
        return zeros

    @property
    def gaussian(self) -> bool:
        """Whether the trade-off curve of an exchange is (nearly) Gaussian."""
        return is_gaussian(self.defense)

    @cached_property
    def _direction(self) -> Array:
        """(entries,) the unit vector of equal entries."""
        return np.full(self.entries, self.entries**-0.5)

    @cached_property
    def _shift_and_scale(self) -> tuple[dict[str, Array], dict[str, Array]]:
        """By tensor: how far a canary moves the release, and the factor by which the release multiplies noise."""
        plan, moved = self._planned, self._canary(self._direction)
        for transform in self.defense.transforms:
            if transform.stage <= ChainStage.CLIP:
                moved = dict(transform.encode(moved, plan))
        return release_after_noise(self.defense, moved, plan), noise_scale(self.defense, plan)


def _one_run_scores(defense: Defense, shape: tuple[int, int], clip: float | None, draw: Draw) -> tuple[Array, Array]:
    """Return scores and bits of one run with many canaries, both (canaries,).

    The canaries are orthogonal directions (unit vectors) in one sum, or one upload each under local noise.
    """
    canaries = shape[1]
    game = _CanaryExchanges(defense, canaries, shape, clip, draw)
    bits = np.random.default_rng(secrets.randbits(128)).integers(0, 2, canaries)
    if game.local:
        small = _CanaryExchanges(defense, _SMALL, (shape[0], _ENTRIES), clip)
        return np.array([small.one(bit=bool(bit))[0] for bit in bits]), bits
    # under central noise all canaries may be in the sum; else only so many as the planned noise needs
    present = canaries if game.summed == 1 else game.summed
    return game.scores(list(np.eye(canaries)[:present]), bits[:present]), bits[:present]
