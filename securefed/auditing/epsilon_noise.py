"""Does a noised defence keep its own epsilon? Canaries sent through its real code, and three lower bounds.

A canary is a client whose contribution is one direction, far beyond the clip, or zero: the neighbours of the plan's
epsilon. What is attacked is what epsilon covers: under local noise one upload, under noise in the ring the sum of the
fewest clients that may be opened, under central noise the release.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from securefed.algorithms.base import require
from securefed.auditing.epsilon import CONFIDENCE, Guesses, from_scores, one_run, one_run_f
from securefed.defenses.base import Defense, Plan, Session
from securefed.errors import PlanError, SecureFedError
from securefed.tensors import Array, Layout, Tensors, TensorSpec

_NAME: Final = "canary"
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
    confidence: float = CONFIDENCE,
) -> NoiseAudit:
    """Audit one exchange of a defence that adds noise.

    Args:
        delta: the plan's.      runs: exchanges with, and as many without, a canary.
        canaries: bits of the one run.      made: guesses of them; a quarter by default (the surest).
        clip: of the plan by default; canaries have 100 times that norm.
        confidence: of each bound.

    Raises:
        ConfigError: too few runs or canaries.      PlanError: the defence plans no epsilon.
    """
    require(runs >= 4 and canaries >= 8, f"at least 4 runs and 8 canaries, not {runs} and {canaries}")
    few = _Game(defense, _SMALL, _ENTRIES, clip)
    guesses = canaries // 4 if made is None else made
    try:
        with_it = np.array([few.one(bit=True) for _ in range(runs)])
        without = np.array([few.one(bit=False) for _ in range(runs)])
        scores, bits = _many(defense, canaries, clip)
    except SecureFedError as error:
        return NoiseAudit(defense.name, few.claimed, delta, 0.0, 0.0, 0.0, str(error))
    counted = Guesses.of(scores, bits, guesses)
    return NoiseAudit(
        defense.name,
        few.claimed,
        delta,
        from_scores(with_it, without, delta, confidence),
        one_run(counted, delta, confidence),
        one_run_f(counted, delta, confidence),
        scores=(*with_it.tolist(), *without.tolist()),
        inside=(*[True] * runs, *[False] * runs),
    )


class _Game:
    """Exchanges of canary clients under one defence."""

    def __init__(self, defense: Defense, clients: int, entries: int, clip: float | None) -> None:
        self.defense = defense
        layout = Layout((TensorSpec(_NAME, (entries,)),))
        self._planned: Plan = defense.plan(layout, clients)
        found = dict(self._planned.epsilon).get(1)
        if found is None:
            raise PlanError(f"{defense.name} plans no epsilon for one exchange, so there is nothing to audit")
        self.claimed, self.entries = float(found), entries
        self.local = self._planned.noise_survivors == 1
        norm = clip if clip is not None else self._planned.clip
        if norm is None:
            raise PlanError(f"{defense.name} has no clip; give the one that it should have")
        self.norm = norm
        # central noise does not depend on who is there; distributed noise is least for the fewest survivors
        self.summed = 1 if self.local else max(self._planned.noise_survivors, 1)

    def one(self, *, bit: bool) -> float:
        """Score of one exchange with (`bit`) or without the canary."""
        direction = np.full(self.entries, self.entries**-0.5)
        seen = self.exchange([direction * bit, *[np.zeros(self.entries)] * (self.summed - 1)])
        return float(seen @ direction) / self.norm

    def exchange(self, directions: list[Array]) -> Array:
        """What is seen of the sum of contributions, each `_FAR` times the clip in its direction."""
        plan = Session(secrets.token_hex(16), 0, tuple(range(self._planned.clients)), self._planned).plan
        total: dict[str, Array] = {}
        for direction in directions:
            sent = self.defense.encode({_NAME: direction * (_FAR * self.norm)}, plan)
            total = {name: np.asarray(value) + total.get(name, 0) for name, value in sent.items()}
        decoded: Tensors = self.defense.decode(total, plan, len(directions))
        return np.asarray(self.defense.release(decoded, plan)[_NAME], np.float64)


def _many(defense: Defense, canaries: int, clip: float | None) -> tuple[Array, Array]:
    """Scores and bits of one run with many canaries: orthogonal ones in one sum, or, under local noise, in an upload
    each."""
    game = _Game(defense, canaries, canaries, clip)
    bits = np.random.default_rng(secrets.randbits(128)).integers(0, 2, canaries)
    if game.local:
        small = _Game(defense, _SMALL, _ENTRIES, clip)
        return np.array([small.one(bit=bool(bit)) for bit in bits]), bits
    present = canaries if game.summed == 1 else game.summed  # under central noise all may be there
    directions = list(_directions(bits, present))
    return game.exchange(directions)[:present] / game.norm, bits[:present]


def _directions(bits: Array, present: int) -> Iterator[Array]:
    for place, bit in enumerate(bits[:present]):
        direction = np.zeros(len(bits))
        direction[place] = bit
        yield direction
