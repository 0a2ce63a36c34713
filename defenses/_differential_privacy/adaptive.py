"""Clip at a quantile of the contributions' norms, which is estimated privately during the run.

`adaptive_clip(...)` makes a link of a defence's chain, with noise after it. Client and server call it in each exchange
(one sum of all contributions): `encode` at the clients, `release` and `learn` at the server.

Andrew, Thakkar, McMahan, Ramaswamy, "Differentially private learning with adaptive clipping" (NeurIPS 2021). Every
client adds a bit b to its contribution x: 1 if the norm of x is at most the clip C, else 0. The sum of the bits is
noised with everything else. From it all parties estimate the share of clients within C, and before the next exchange

    log C  <-  log C + eta (gamma - share),     gamma the wanted quantile, eta the rate.

What a client sends is the pair (x / C clipped to norm 1, w (b - 1/2)) with a weight w: its L2 norm is sqrt(1 + w^2 / 4)
at most WHATEVER C is (from 1e-150 to 1e150; clients refuse others). One noise on that vector covers both releases, so
one accountant does, and the plan holds for the whole run. In the paper's terms: noise multiplier z of the pair,
z_Delta = z sqrt(1 + w^2 / 4) of the contributions and sigma_b = z_Delta / w of the count satisfy
z^-2 = z_Delta^-2 + (2 sigma_b)^-2 (their theorem 1).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from securefed._clipping_noise import ClippingNoiseRecord
from securefed._hyperparameters import check_number, check_positive
from securefed._tensors import Array, Layout, Tensors
from securefed.defenses._base import AdaptiveTransform, ChainStage
from securefed.defenses._differential_privacy.clip import clipped, finite, norm_of
from securefed.defenses._plan import Plan, PrivacyPlan, TensorPlan
from securefed.errors import PlanError

BELOW = "clip.below"
"""Name of the tensor of bits that is added to a contribution."""

_EPS = float(np.finfo(np.float64).eps)
_SMALLEST, _LARGEST = 1e-150, 1e150  # range of C, in which C^2 neither vanishes nor overflows in float64
_LONGEST_STEP = 1.0  # of log C in one exchange: noise on few clients may take the estimated share far outside 0..1
_RATE = 0.2  # the paper's


@dataclass(frozen=True)
class AdaptiveClip(AdaptiveTransform):
    """Clips at C; after each training release log C moves by rate (quantile - share of the clients within C).

    Attributes:
        quantile: gamma in (0, 1): the share of the clients whose contributions C should leave unclipped.
        initial: C of the first exchange.
        rate: eta_C > 0; the paper uses 0.2. The share is noised, so a small cohort wants a smaller rate.
        share: the share of the squared sensitivity that the bits take, in (0, 1): the noise on contributions is
            1 / sqrt(1 - share) times what a fixed clip would need, that on a count z / (2 sqrt(share)).
        each: whether every tensor has a clip C and a bit of its own; else one serves the whole contribution.

    Guarantee: as for `Clip`, at C; and the L2 norm of what is summed, bits included, is within `PrivacyPlan.clip`.
    Units: up to the release everything is in units of C (the plan's bounds, steps and errors, and the sums that an
        attacker's view holds before it); the release multiplies by C, a public number in `Plan.learned`.
    Not promised: privacy, without noise after it; that C reaches the quantile where norms change faster than C.

    Raises:
        ConfigError: a parameter outside its domain.
    """

    quantile: float
    initial: float = 1.0
    rate: float = _RATE
    share: float = 0.05
    each: bool = False
    name: ClassVar[str] = "adaptive_clip"
    stage: ClassVar[ChainStage] = ChainStage.CLIP

    def __post_init__(self) -> None:
        for name, value in (("quantile", self.quantile), ("share", self.share)):
            check_number(f"{self.name}: {name}", value, below=1, positive=True)
        check_number(f"{self.name}: initial", self.initial, _SMALLEST, most=_LARGEST)
        check_positive(f"{self.name}: rate", self.rate)

    def __str__(self) -> str:
        rate = f", rate={self.rate:g}" if self.rate != _RATE else ""
        each = ", each" if self.each else ""
        return f"{self.name}(quantile={self.quantile:g}, initial={self.initial:g}{rate}{each})"

    @property
    def weight(self) -> float:
        """w: weight of a bit beside a contribution of norm 1."""
        return 2 * math.sqrt(self.share / (1 - self.share))

    def start(self, layout: Layout) -> tuple[float, ...]:
        """Return the clips C of the first exchange: one, or with `each` one for every tensor."""
        return (self.initial,) * (len(layout.specs) if self.each else 1)

    def plan(self, plan: Plan) -> Plan:
        """State the plan in units of C, with a further tensor of bits. It holds for every C.

        Raises:
            PlanError: a server names a C that `learn` never gives. Far below, floats have few digits left, and what is
                clipped at C exceeds it.
        """
        clips = plan.learned
        if wrong := [clip for clip in clips if not _SMALLEST <= clip <= _LARGEST]:
            raise PlanError(
                f"{self.name}: a learned clip lies in {_SMALLEST:g}..{_LARGEST:g}, not {wrong[0]:g}; the server is "
                "broken or hostile: take no further part"
            )
        # Each of the groups of tensors has norm 1 at most, and its bit is w / 2 or -w / 2.
        squared_norm = len(clips) * (1 + self.weight**2 / 4)
        own = tuple(replace(tensor, bound=1.0, sensitivity=None) for tensor in plan.tensors)
        # one bit for each clip, summed in a ring of 32 bits; later links of the chain set ring and step, and lower the
        # number of clients
        bits = TensorPlan(BELOW, (len(clips),), bound=self.weight / 2, ring=0, step=0.0, max_clients=2**31, error=0.0)
        adapted = replace(
            plan,
            tensors=(*own, bits),
            wanted_rings={**plan.wanted_rings, BELOW: 32},
            added=(*plan.added, BELOW),
            privacy=PrivacyPlan(math.sqrt(squared_norm) * (1 + 4 * _EPS)),
        )
        values = ", ".join(f"{clip:.4g}" for clip in clips)
        what = "every tensor by itself" if self.each else "contributions"
        return adapted.assume(
            f"Clips {what} at {values} in this exchange, then moves towards the norm within which a share of "
            f"{self.quantile:g} of the clients stay; the clips are public.",
            f"Every client adds whether it stayed within, for {100 * self.share:g} % of the squared sensitivity; "
            "epsilon covers both. Bounds, steps and errors are in units of the clip.",
        )

    def encode(self, contribution: Tensors, plan: Plan) -> dict[str, Array]:
        """Clip in units of C and add the bits; a contribution that is not finite counts as zeros, which lie below."""
        out: dict[str, Array] = {}
        below = []
        for names, clip in self._groups(plan):
            part = finite({name: contribution[name] for name in names}, plan)
            below.append(norm_of(part) <= clip)
            out |= {name: value / clip for name, value in clipped(part, clip).items()}
        return out | {BELOW: self.weight * (np.asarray(below, np.float64) - 0.5)}

    def release(self, total: Tensors, plan: Plan) -> dict[str, Array]:
        """Return the sum in the algorithm's units, and the bits' sum as it is."""
        own = {name: np.asarray(total[name] * clip) for names, clip in self._groups(plan) for name in names}
        return own | {BELOW: total[BELOW]}

    def learn(self, released: Tensors, plan: Plan, count: int) -> tuple[float, ...]:
        """Compute the next C, or the same where no client contributed; log C moves by 1 at most.

        Args:
            released: with the bits sum_i w (b_i - 1/2) plus noise, from which the share of clients within C follows.
            plan: the plan of that exchange, with C in `learned`.
            count: number of clients in the sum.
        """
        if not count:
            return plan.learned
        within = 0.5 + np.asarray(released[BELOW], np.float64) / (self.weight * count)
        steps = np.clip(self.rate * (within - self.quantile), -_LONGEST_STEP, _LONGEST_STEP)
        moved = np.clip(np.asarray(plan.learned) * np.exp(-steps), _SMALLEST, _LARGEST)  # their algorithm 1
        return tuple(float(clip) for clip in moved)

    def distortion(self, plan: Plan, count: int) -> ClippingNoiseRecord:
        """State the clips of an exchange, and what 1 in each tensor's sum is worth, for the recorded transcript."""
        groups = self._groups(plan)
        return ClippingNoiseRecord(clips=tuple(groups), units={name: clip for names, clip in groups for name in names})

    def _groups(self, plan: Plan) -> list[tuple[tuple[str, ...], float]]:
        """Return the names of the tensors that are clipped together, each with its C."""
        names = plan.own.names
        groups = [(name,) for name in names] if self.each else [names]
        return list(zip(groups, plan.learned, strict=True))


def adaptive_clip(
    quantile: float, *, initial: float = 1.0, rate: float = _RATE, share: float = 0.05, each: bool = False
) -> AdaptiveClip:
    """Clip at a quantile of the clients' norms, learned privately; arguments as of `AdaptiveClip`."""
    return AdaptiveClip(quantile, initial, rate, share, each)
