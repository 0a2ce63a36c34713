"""Does a noised defence keep its own epsilon? Canaries sent through its real code, and three lower bounds.

A canary is a client whose contribution is one direction, far beyond the clip, or nothing at all: the neighbours of the
plan's epsilon (under cohorts of a fixed size, that direction or its opposite). What is attacked is what epsilon covers:
under local noise one upload, under noise in the ring the sum of the fewest clients that may be opened, under central
noise the release. Chains whose unit is a record are audited through their algorithm, in `epsilon_records`.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from securefed._auditing.epsilon import CONFIDENCE, Guesses, from_scores, one_run, one_run_f
from securefed._public import require
from securefed._runtime.client_sampling import unpredictable
from securefed._runtime.privacy_checks import sampler_of
from securefed._tensors import Array, Layout, Tensors, TensorSpec
from securefed.defenses._base import Defense, Plan, Session
from securefed.defenses._differential_privacy import FixedSizeSampling
from securefed.defenses._transform import ChainStage
from securefed.errors import PlanError, SecureFedError

Draw = Callable[[Sequence[int], int], Sequence[int]]
"""How a cohort of a fixed size is drawn: (everybody, size) -> who takes part."""
_FAR: Final = 100.0
_ENTRIES: Final = 4
_SMALL: Final = 3


@dataclass(frozen=True)
class NoiseAudit:
    """What canaries say about one exchange of a defence.

    Attributes:
        defense: its name.      claimed: epsilon of its plan, one exchange, at `delta`.
        repeated: Clopper-Pearson over independent exchanges.      one_run: of one exchange with many canaries.
        one_run_f: the same by Gaussian trade-off curves; a bound only where the noise is (nearly) Gaussian.
        refused: what the defence itself said to a canary, where it refused one; its bounds are 0 then.
        scores, inside: of the independent exchanges, and whether the canary was there.
    """

    defense: str
    claimed: float
    delta: float
    repeated: float
    one_run: float
    one_run_f: float
    refused: str = ""
    scores: tuple[float, ...] = ()
    inside: tuple[bool, ...] = ()

    @property
    def bound(self) -> float:
        """The larger of the two bounds that hold for any noise, each at the confidence asked for."""
        return max(self.repeated, self.one_run)

    @property
    def violated(self) -> bool:
        """Whether epsilon is more than claimed; wrong with at most twice the probability that the bounds may fail."""
        return self.bound > self.claimed

    @property
    def flagged(self) -> bool:
        """Whether something is wrong: epsilon is violated, or a client that does what the chain says is refused."""
        return self.violated or bool(self.refused)


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
        delta: the plan's.      runs: exchanges with, and as many without, a canary.
        canaries: bits of the one run.      made: guesses of them; a quarter by default (the surest).
        clip: of the plan by default; canaries have 100 times that norm.
        tensors: that a contribution has; a canary is the same in all of them. For clips by tensor: more than one.
        draw: of cohorts, where the accountant was told `FixedSizeSampling`; the federation's own by default.
        confidence: of each bound.

    Raises:
        ConfigError: too few runs or canaries.      PlanError: the defence plans no epsilon.
    """
    require(runs >= 4 and canaries >= 8, f"at least 4 runs and 8 canaries, not {runs} and {canaries}")
    few = _Game(defense, _SMALL, (tensors, _ENTRIES), clip, draw)
    try:
        with_it = np.stack([few.one(bit=True) for _ in range(runs)])
        without = np.stack([few.one(bit=False) for _ in range(runs)])
        scores, bits = _many(defense, (tensors, canaries), clip, draw)
    except SecureFedError as error:
        return NoiseAudit(defense.name, few.claimed, delta, 0.0, 0.0, 0.0, str(error))
    counted = Guesses.of(scores, bits, canaries // 4 if made is None else made)
    return concluded(defense.name, few.claimed, delta, (with_it, without), counted, confidence)


def concluded(
    name: str, claimed: float, delta: float, repeated: tuple[Array, Array], guesses: Guesses, confidence: float
) -> NoiseAudit:
    """The bounds of `repeated` exchanges, (runs, statistics) with and without the canary, and of one run's guesses.

    The first statistic is the one that tells most where nothing is wrong.
    """
    with_it, without = repeated
    return NoiseAudit(
        name,
        claimed,
        delta,
        from_scores(with_it, without, delta, confidence),
        one_run(guesses, delta, confidence),
        one_run_f(guesses, delta, confidence),
        scores=(*with_it[:, 0].tolist(), *without[:, 0].tolist()),
        inside=(*[True] * len(with_it), *[False] * len(without)),
    )


class _Game:
    """Exchanges of canary clients under one defence; contributions are `tensors` tensors of `entries` entries."""

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
        found = dict(self._planned.epsilon).get(1)
        if found is None:
            raise PlanError(f"{defense.name} plans no epsilon for one exchange, so there is nothing to audit")
        self.claimed = float(found)
        privacy = self._planned.privacy
        if privacy is None:
            raise PlanError(f"{defense.name} has no clip; put one into the chain")
        self.local = privacy.noise_survivors == 1
        norm = clip if clip is not None else privacy.clip
        self.norm = norm * max(self._planned.learned, default=1.0)
        # central noise does not depend on who is there; distributed noise is least for the fewest survivors
        self.summed = 1 if self.local else max(privacy.noise_survivors, 1)

    def one(self, *, bit: bool) -> Array:
        """(statistics,) of one exchange with (`bit`) or without the canary: likelihood ratios of all, and by tensor."""
        seen = self.exchange(self._others([self._bit(self._direction, bit=bit)]))
        shift, scale = self._marks
        parts = [float(np.sum(shift[name] * seen[name] / scale[name] ** 2)) for name in shift]
        return np.array([sum(parts), *(parts if len(parts) > 1 else [])])

    def exchange(self, directions: Sequence[Array | None]) -> dict[str, Array]:
        """What is seen of the sum of these clients: each `_FAR` times the clip in its direction, or nothing at all."""
        plan = Session(secrets.token_hex(16), 0, tuple(range(self._planned.clients)), self._planned).plan
        total: dict[str, Array] = {}
        for direction in directions:
            sent = self._nothing(plan) if direction is None else self.defense.encode(self._canary(direction), plan)
            total = {name: np.asarray(value) + total.get(name, 0) for name, value in sent.items()}
        decoded: Tensors = self.defense.decode(total, plan, len(directions))
        return {name: np.asarray(v, np.float64) for name, v in self.defense.release(decoded, plan).items()}

    def scores(self, directions: Sequence[Array], bits: Array) -> Array:
        """(canaries,) of one exchange of canaries whose directions are orthogonal."""
        canaries = [self._bit(d, bit=bool(b)) for d, b in zip(directions, bits, strict=True)]
        seen = self.exchange(self._others(canaries))
        return np.array([sum(float(seen[name] @ direction) for name in self.names) for direction in directions])

    def _others(self, canaries: Sequence[Array | None]) -> list[Array | None]:
        """Those who are summed: canaries and silent clients, as many as the noise is for; or a cohort that is drawn."""
        if self.fixed is None:
            return [*canaries, *[None] * (self.summed - len(canaries))]
        everybody = [*canaries, *[None] * (self.fixed.clients - len(canaries))]
        return [everybody[client] for client in self.draw(range(self.fixed.clients), self.fixed.cohort)]

    def _bit(self, direction: Array, *, bit: bool) -> Array | None:
        """A canary's direction; else nothing, or, in a cohort of a fixed size, the opposite of another client."""
        return direction if bit else None if self.fixed is None else -direction

    def _canary(self, direction: Array) -> dict[str, Array]:
        return dict.fromkeys(self.names, direction * (_FAR * self.norm))

    def _nothing(self, plan: Plan) -> Tensors:
        """What is encoded where there is no contribution, nor anything that a clip adds to one."""
        zeros: Tensors = {tensor.name: np.zeros(tensor.shape) for tensor in plan.tensors}
        for transform in self.defense.transforms:
            if transform.stage <= ChainStage.CLIP:
                continue
            zeros = transform.encode(zeros, plan)
        return zeros

    @cached_property
    def _direction(self) -> Array:
        return np.full(self.entries, self.entries**-0.5)

    @cached_property
    def _marks(self) -> tuple[dict[str, Array], dict[str, Array]]:
        """What a canary moves a release by, and what the release multiplies noise by."""
        plan, moved = self._planned, self._canary(self._direction)
        for transform in self.defense.transforms:
            if transform.stage <= ChainStage.CLIP:
                moved = dict(transform.encode(moved, plan))
        ones: Tensors = {tensor.name: np.ones(tensor.shape) for tensor in plan.tensors}
        return outwards(self.defense, moved, plan), outwards(self.defense, ones, plan)


def outwards(defense: Defense, tensors: Tensors, plan: Plan) -> dict[str, Array]:
    """What a release does to a noised sum besides: its units (an adaptive clip's), its rate (of coins)."""
    for transform in reversed(defense.transforms):
        if transform.stage < ChainStage.NOISE:
            tensors = transform.release(tensors, plan)
    return {name: np.asarray(value, np.float64) for name, value in tensors.items()}


def _many(defense: Defense, shape: tuple[int, int], clip: float | None, draw: Draw) -> tuple[Array, Array]:
    """Scores and bits of one run with many canaries: orthogonal ones in one sum, or, under local noise, in an upload
    each."""
    canaries = shape[1]
    game = _Game(defense, canaries, shape, clip, draw)
    bits = np.random.default_rng(secrets.randbits(128)).integers(0, 2, canaries)
    if game.local:
        small = _Game(defense, _SMALL, (shape[0], _ENTRIES), clip)
        return np.array([small.one(bit=bool(bit))[0] for bit in bits]), bits
    present = canaries if game.summed == 1 else game.summed  # under central noise all may be there
    return game.scores(list(np.eye(canaries)[:present]), bits[:present]), bits[:present]
