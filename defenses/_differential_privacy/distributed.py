"""Protect against the server: every client adds a share of the noise in the ring, before its mask.

`skellam`, `discrete_gaussian`, `local_gaussian` and `local_laplace` make a link of a defence's chain. Before a run it
plans (`plan`); in each exchange (one sum) every client calls `encode`, and the server `decode` on the sum.

One transform of the chain takes a client's clipped contribution, rotates it by a public random rotation (`rotation`,
which makes all entries about equally large), rounds it to integer multiples of a step (`conditional_rounding`), and
adds integer noise. `clip` stands before it, and an aggregation that hides single contributions after it. Skellam noise:
Agarwal, Kairouz, Liu (NeurIPS 2021); discrete Gaussian noise: Kairouz, Liu, Steinke (ICML 2021).

Survivors are the clients whose uploads are in the sum. A share is sized for h = t - c honest ones: t is the number of
survivors below which the aggregation refuses to open anything, c the number of them that may collude with the server
(they know their own shares). Each share has variance sigma^2 / h, if the noise of the whole sum is to have
sigma^2. More survivors only add noise. Arithmetic mod 2^ring comes after the noise and cannot weaken it.

With t = 1 every upload is protected by its own noise: local differential privacy, under any aggregation.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar, Final, Literal

import numpy as np

from securefed._clipping_noise import ClippingNoiseRecord
from securefed._hyperparameters import check_integer
from securefed._sampling import discrete_distributions as distributions
from securefed._sampling.random_stream import SecureRandomStream
from securefed._tensors import Array, Ring, Tensors
from securefed.defenses._base import ChainStage, Transform
from securefed.defenses._differential_privacy.accountant import DELTA, PLANNED_ROUNDS, epsilon_of
from securefed.defenses._differential_privacy.budget import Budget
from securefed.defenses._differential_privacy.conditional_rounding import round_conditionally, rounded_squares
from securefed.defenses._differential_privacy.privacy_loss import (
    DiscreteGaussianLoss,
    LaplaceLoss,
    PrivacyLoss,
    SkellamLoss,
)
from securefed.defenses._differential_privacy.rotation import Rotation, flatness
from securefed.defenses._fixed_point import check_ring
from securefed.defenses._plan import Plan, PrivacyPlan
from securefed.errors import ConfigError, PlanError

NoiseDistribution = Literal["skellam", "discrete_gaussian", "discrete_laplace"]

_DRAWS: Final[dict[str, Callable[..., Array]]] = {
    "skellam": distributions.skellam_draws,
    "discrete_gaussian": distributions.discrete_gaussian_draws,
    "discrete_laplace": distributions.discrete_laplace_draws,
}
_TAILS: Final[dict[str, Callable[[float, int], float]]] = {
    "skellam": distributions.skellam_tail,
    "discrete_gaussian": distributions.discrete_gaussian_tail,
    "discrete_laplace": distributions.discrete_laplace_tail,
}
_RUN_BITS: Final = 40
"""-log2 of the probability that a sum wraps in a run."""
_EXCHANGES_BITS: Final = 20
"""A sum wraps with probability at most 2^-40 in a run of up to 2^20 exchanges."""

# Smallest variance of one client's noise, in squared units. A sum of discrete Gaussian shares is close to a discrete
# Gaussian: `DiscreteGaussianLoss.tau` is 0.0005 here, 0.1 at half of this variance, and epsilon grows with it.
_SMALLEST_SHARE: Final = 1.0


@dataclass(frozen=True)
class NoiseSizes:
    """Sizes that client and server derive from the plan, in units of the ring's integers.

    Attributes:
        step: value of a unit, a power of two.
        squares: squared L2 sensitivity after rounding.
        norm_squared: largest squared L2 norm of a rounded contribution; equal to `squares` unless the unit
            of privacy is a record, which moves a contribution by less than its whole norm.
        share: variance of one client's noise.
        honest: h, the number of honest survivors that the noise is sized for.
        signal: largest entry of a client's rotated and rounded contribution; larger entries are cut to it before noise.
        upload: `signal` and the tail of the noise: the largest entry that a client sends.
    """

    step: float
    squares: int
    norm_squared: int
    share: float
    honest: int
    signal: int
    upload: int


@dataclass(frozen=True)
class DistributedNoise(Transform):
    """Rotates, rounds and adds a share of the noise; make it with `skellam`, `discrete_gaussian`, `local_...`.

    Attributes:
        distribution: distribution of the shares; `discrete_laplace` only with `survivors=1`, as its sums are not
            accounted for.
        noise_multiplier: standard deviation of the noise of h honest survivors, over the L2 sensitivity after rounding.
        survivors: t; `None` takes floor(N / 2) + 1 of N planned clients, 1 makes the noise local. The aggregation's
            threshold must reach it.
        colluding: c, the number of survivors that may collude.
        ring: width of the sums in bits; a narrower one makes uploads smaller and steps coarser.
        delta: the delta for which the plan states epsilon.

    Guarantee: a party that sees the sum and everything of up to c survivors, the server included, learns of each
        client's contribution no more than epsilon allows, provided that the aggregation opens no sum of fewer than t.
        The aggregation's documentation states if a server that deviates from the protocol can obtain such a sum.
    Range: no data makes a client refuse. Rotated values beyond their planned range are cut to it
        (probability at most 2^-40 per run), which does not increase the distance of two contributions; a vector beyond
        the planned norm, which `clip` and `records` rule out, is replaced by zeros.
    Not promised: anything against more than c colluding survivors; hidden participation.

    Raises:
        ConfigError: a parameter outside its domain.
    """

    distribution: NoiseDistribution
    noise_multiplier: float
    survivors: int | None = None
    colluding: int = 0
    ring: Ring = 32
    delta: float = DELTA
    name: ClassVar[str] = "distributed_noise"
    stage: ClassVar[ChainStage] = ChainStage.ENCODE

    def __post_init__(self) -> None:
        epsilon_of(self.noise_multiplier, 0, self.delta)  # checks their domains
        if self.survivors is not None:
            check_integer("survivors", self.survivors, 1)
        check_integer("colluding", self.colluding, 0)
        check_ring(self.ring, self.distribution)
        if self.distribution not in _DRAWS:
            raise ConfigError(f"{self.name}: the distribution is one of {sorted(_DRAWS)}, not {self.distribution!r}")
        if self.distribution == "discrete_laplace" and self.survivors != 1:
            raise ConfigError(f"{self.name}: sums of Laplace shares are not accounted for; use skellam, or survivors=1")

    def __str__(self) -> str:
        if self.survivors == 1:
            return f"local_{self.distribution}(z={self.noise_multiplier:g})"
        against = f", colluding={self.colluding}" if self.colluding else ""
        needs = "" if self.survivors is None else f", survivors={self.survivors}"
        return f"{self.distribution}(z={self.noise_multiplier:g}{needs}{against})"

    def plan(self, plan: Plan) -> Plan:
        """Add fixed point, noise, epsilons and assumptions to the plan.

        Raises:
            PlanError: no clip before it, another noise before it, no honest survivor left, no entry, or a ring too
                narrow.
        """
        privacy = self._bounded(plan)
        if privacy.noise_multiplier:
            raise PlanError(
                f"{self.distribution}: the chain adds noise already; keep one mechanism, or account for both apart"
            )
        sizes = self.sizes(plan)
        entries = _entries(plan)
        # Rounding moves a client's vector by less than sqrt(entries) steps in L2 norm. Rotating back keeps the norm, so
        # no entry is then off by more. The rest is float64's error in rotating.
        error = plan.clients * (math.sqrt(entries) * sizes.step + _reach(plan, privacy) * 2.0**-40)
        tensors = tuple(
            replace(
                tensor,
                bound=sizes.upload * sizes.step,
                ring=self.ring,
                step=sizes.step,
                max_clients=(2 ** (self.ring - 1) - 1) // sizes.upload,
                error=tensor.error + error,
            )
            for tensor in plan.tensors
        )
        loss = self.loss(plan)
        noisy = replace(
            privacy,
            noise_multiplier=self.noise_multiplier,
            noise_survivors=self._survivors(plan.clients),
            epsilon=tuple((k, loss.epsilon(k, self.delta)) for k in PLANNED_ROUNDS),
        )
        return replace(plan, tensors=tensors, privacy=noisy).assume(*self._assumptions(plan, noisy, sizes))

    def _bounded(self, plan: Plan) -> PrivacyPlan:
        """Return the plan's bound on a contribution; `PlanError` where there is none."""
        if plan.privacy is None:
            raise PlanError(f"{self.distribution}: without a clip no noise is enough; put clip(...) before it")
        return plan.privacy

    def _assumptions(self, plan: Plan, privacy: PrivacyPlan, sizes: NoiseSizes) -> tuple[str, ...]:
        """Return what epsilon is stated for and rests on, as sentences for the plan."""
        raised = 100 * (math.sqrt(sizes.squares) * sizes.step / privacy.clip - 1)
        deviation = math.sqrt(plan.clients * sizes.share) * sizes.step
        return (
            self._claim(privacy),
            "Participation is known and does not depend on data; every round counts in full for every client.",
            f"Each client adds noise for {sizes.honest} honest survivors out of {privacy.noise_survivors}; no sum of "
            "fewer is opened, as far as the aggregation can promise that of its server.",
            f"With all {plan.clients} clients the noise of an entry of the sum has standard deviation {deviation:.4g}.",
            f"Rounding to units of {sizes.step:.3g} raises the sensitivity by {raised:.2g} %.",
            f"In a run of up to 2^{_EXCHANGES_BITS} exchanges, a sum wraps around the ring, or a client's rotated "
            f"values leave their range and are cut to it, with probability at most 2^-{_RUN_BITS}; no client refuses.",
        )

    def _claim(self, privacy: PrivacyPlan) -> str:
        """Say for which neighbours and against which parties epsilon is stated."""
        what = "one client's contribution replaced by zero"
        if privacy.unit == "record":
            what = "one record of one client replaced by zeros"
        claim = f"Epsilon is stated at delta {self.delta:g}, for {what}, against "
        if self.survivors == 1:
            return claim + "any party that sees the upload itself; between any two the sensitivity is twice that."
        return claim + f"the server and {self.colluding} survivors that share all they know with it."

    def budget(self, epsilon: float, plan: Plan) -> Budget:
        """Make a budget for exactly this mechanism under `plan`, whose sizes it depends on."""
        return Budget(epsilon, self.noise_multiplier, self.delta, loss=self.loss(plan))

    def loss(self, plan: Plan) -> PrivacyLoss:
        """Return the privacy loss of one exchange with the fewest survivors that the plan allows."""
        sizes, entries = self.sizes(plan), _entries(plan)
        if self.distribution == "skellam":
            return SkellamLoss(sizes.squares, entries, sizes.honest * sizes.share)
        if self.distribution == "discrete_laplace":
            return LaplaceLoss(sizes.squares, entries, distributions.DiscreteLaplace(sizes.share).scale)
        return DiscreteGaussianLoss(sizes.squares, entries, sizes.share, sizes.honest)

    def sizes(self, plan: Plan) -> NoiseSizes:
        """Derive the sizes from the plan.

        Raises:
            PlanError: as `plan` does.
        """
        privacy = self._bounded(plan)
        if not (entries := _entries(plan)):
            raise PlanError(f"{self.distribution}: a contribution must have at least one entry to add noise to; got 0")
        return _sizes(self, privacy.clip, _reach(plan, privacy), plan.clients, entries)

    def _survivors(self, clients: int) -> int:
        """Return t for so many planned clients."""
        return clients // 2 + 1 if self.survivors is None else self.survivors

    def encode(self, contribution: Tensors, plan: Plan) -> dict[str, Array]:
        """Rotate, round and noise the clipped contribution: int64 tensors of the same names and shapes.

        It never refuses a value: entries beyond the planned range after the rotation are cut to it (probability below
        2^-60), and a vector beyond the planned norm, or that is not finite, is sent as zeros under noise.
        """
        sizes, layout, stream = self.sizes(plan), plan.layout, SecureRandomStream()
        with np.errstate(over="ignore", invalid="ignore"):
            rotated = Rotation(layout.size, plan.exchange).forward(layout.flatten(contribution)) / sizes.step
        rounded = np.clip(round_conditionally(rotated, sizes.norm_squared, stream), -sizes.signal, sizes.signal)
        return layout.unflatten(rounded + _DRAWS[self.distribution](sizes.share, layout.size, stream))

    def decode(self, total: Tensors, plan: Plan, count: int) -> dict[str, Array]:
        """Rotate the noisy sum of integers back, and return it in the algorithm's units."""
        layout = plan.layout
        units = Rotation(layout.size, plan.exchange).inverse(layout.flatten(total))
        return layout.unflatten(units * self.sizes(plan).step)

    def distortion(self, plan: Plan, count: int) -> ClippingNoiseRecord:
        """State the clipping and the noise of an exchange, for the recorded transcript."""
        sizes = self.sizes(plan)
        noise = dict.fromkeys(plan.wanted_rings, math.sqrt(count * sizes.share) * sizes.step)
        return ClippingNoiseRecord(noise=noise, released=noise)


def skellam(
    noise_multiplier: float, *, survivors: int | None = None, colluding: int = 0, ring: Ring = 32, delta: float = DELTA
) -> DistributedNoise:
    """Add distributed Skellam noise; arguments as of `DistributedNoise`.

    A Skellam variable is the difference of two Poisson variables; any number of shares add up to Skellam noise.
    """
    return DistributedNoise("skellam", noise_multiplier, survivors, colluding, ring, delta)


def discrete_gaussian(
    noise_multiplier: float, *, survivors: int | None = None, colluding: int = 0, ring: Ring = 32, delta: float = DELTA
) -> DistributedNoise:
    """Add distributed discrete Gaussian noise; arguments as of `DistributedNoise`."""
    return DistributedNoise("discrete_gaussian", noise_multiplier, survivors, colluding, ring, delta)


def local_gaussian(noise_multiplier: float, *, ring: Ring = 32, delta: float = DELTA) -> DistributedNoise:
    """Add discrete Gaussian noise that protects every upload by itself; arguments as of `DistributedNoise`."""
    return DistributedNoise("discrete_gaussian", noise_multiplier, 1, 0, ring, delta)


def local_laplace(noise_multiplier: float, *, ring: Ring = 32, delta: float = DELTA) -> DistributedNoise:
    """Add discrete Laplace noise that protects every upload by itself; arguments as of `DistributedNoise`.

    For few entries: after an L2 clip the L1 sensitivity grows with the root of their number, and epsilon with it.
    """
    return DistributedNoise("discrete_laplace", noise_multiplier, 1, 0, ring, delta)


@lru_cache(maxsize=256)
def _sizes(noise: DistributedNoise, clip: float, reach: float, clients: int, entries: int) -> NoiseSizes:
    """Find the finest power-of-two step for which the sum of all uploads fits the ring.

    With N clients it fits if N (signal + tail) <= 2^(ring - 1) - 1. `signal` bounds a rotated and rounded entry and
    `tail` its noise, both in steps; each is exceeded with probability exp(log_chance) at most.

    Args:
        noise: the mechanism.
        clip: the L2 sensitivity.
        reach: the largest L2 norm of a contribution; equal to `clip` where the unit is a client.
        clients: number of planned clients.
        entries: number of entries of a contribution.
    """
    survivors = noise._survivors(clients)
    honest = survivors - noise.colluding
    if survivors > clients:
        raise PlanError(f"{noise.distribution}: {clients} clients cannot leave {survivors} survivors")
    if honest < 1:
        raise PlanError(
            f"{noise.distribution}: of {survivors} survivors {noise.colluding} collude, so no honest one is left "
            "to add noise; assume fewer, or raise the threshold and `survivors`"
        )
    half = 2 ** (noise.ring - 1) - 1  # the largest sum that does not wrap
    # An entry leaves its range by the rotation, and by the noise, with this probability each (its logarithm): 2^-40 a
    # run over 2 events, 2^20 exchanges, all clients and all entries.
    log_chance = -math.log(2) * (_RUN_BITS + 1 + _EXCHANGES_BITS + math.log2(clients * entries))
    peak = flatness(entries, log_chance)  # largest entry of a rotated vector, over its norm
    step = 2.0 ** math.floor(math.log2(reach * peak * clients / half))
    # All lengths in the loop are in units of the step, which doubles until everything fits the ring. A step above the
    # clip would round whole contributions away.
    while clip / step >= 1:
        norm = reach / step
        largest, squares = _squares_after_rounding(norm, clip / step, entries)
        # h shares have the variance (z sensitivity)^2, rounded up so that floating point takes nothing from it.
        share = math.nextafter(noise.noise_multiplier**2 * squares / honest * (1 + 2**-50), math.inf)
        if share <= distributions.LARGEST_VARIANCE:
            if share < _SMALLEST_SHARE:  # larger steps only make it smaller, in squared units
                break
            largest_entry = math.ceil(norm * peak * (1 + 2**-30)) + 1
            signal = min(math.isqrt(largest), largest_entry)
            upload = signal + _tail_units(noise.distribution, share, log_chance)
            if clients * upload <= half:
                return NoiseSizes(step, squares, largest, share, honest, signal, upload)
        step *= 2
    raise PlanError(
        f"{noise.distribution}: the sum of {clients} clients does not fit {noise.ring} bits with shares of variance "
        f"{_SMALLEST_SHARE:g} or more; use a wider ring or another noise multiplier"
    )


def _squares_after_rounding(norm: float, sensitivity: float, entries: int) -> tuple[int, int]:
    """Bound the squared L2 norm of a rounded contribution, and its squared L2 sensitivity, all in steps.

    Args:
        norm: largest L2 norm before rounding.
        sensitivity: L2 sensitivity before rounding; equal to `norm` where the unit of privacy is a client.
        entries: number of entries of a contribution.
    """
    if sensitivity == norm:
        squares = rounded_squares(norm, entries)
        return squares, squares
    # The unit is a record, which moves a contribution by less than its norm. The first bound holds for every rounding,
    # so that none is drawn again, and both neighbours may be rounded by the same uniforms: entries |d| apart are then
    # less than |d| + 1 apart, and divergences are quasi-convex.
    largest = math.floor((norm + math.sqrt(entries)) ** 2 * (1 + 2**-40))
    return largest, math.floor((sensitivity + math.sqrt(entries)) ** 2)


def _tail_units(distribution: NoiseDistribution, variance: float, log_chance: float) -> int:
    """Find by bisection the least number that a draw reaches with probability exp(log_chance) at most."""
    low, high = 0, 1
    while _TAILS[distribution](variance, high) > log_chance:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _TAILS[distribution](variance, middle) <= log_chance else (middle, high)
    return high


def _reach(plan: Plan, privacy: PrivacyPlan) -> float:
    """Return the largest L2 norm of a contribution."""
    if privacy.unit == "client":
        return privacy.clip
    return math.hypot(*((tensor.declared or 0.0) * math.sqrt(tensor.size) for tensor in plan.tensors))


def _entries(plan: Plan) -> int:
    """Count the entries of a contribution."""
    return int(np.sum([tensor.size for tensor in plan.tensors], dtype=np.int64))
