"""Add Gaussian noise to the sum at the aggregator, before anything leaves it.

`gaussian(z)` makes a link of a defence's chain, after a clip. The aggregator is the server's process that opens and
decodes the sum; it calls `release` once an exchange. To every entry of the sum that adds a normal deviate of standard
deviation z s, with z the noise multiplier and s the L2 distance by which one client (or record) moves the sum: the norm
to which `clip` cuts, and what rounding adds. Dwork and Roth, "The algorithmic foundations of differential privacy"
(2014), appendix A; accounting in `accountant`.

Guarantee: what leaves the aggregator (the released sums, hence the model) is (epsilon, delta)-differentially private
for each client's whole contribution; the set of participants counts as public.
Not promised: anything against the server itself, or any party that sees the decoded sum before the noise; anything
about a refusal or a failure of a client, which all parties can see. The noise is central, so dropouts do not weaken it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from securefed._clipping_noise import ClippingNoiseRecord
from securefed._sampling.random_stream import SecureRandomStream
from securefed._sampling.rounded_normal import GRID_BITS, grid_for, rounded_normal_draws
from securefed._tensors import Array, Tensors
from securefed.defenses._base import ChainStage, Transform
from securefed.defenses._differential_privacy.accountant import (
    DELTA,
    PLANNED_ROUNDS,
    FixedSizeSampling,
    PoissonSampling,
    Sampler,
    epsilon_of,
)
from securefed.defenses._differential_privacy.budget import Budget
from securefed.defenses._plan import Plan, PrivacyPlan, TensorPlan
from securefed.errors import ConfigError, PlanError

_EPS = float(np.finfo(np.float64).eps)
Draw = Callable[[float, int], Array]
"""Draws normal deviates, rounded to integers (int64): called with their standard deviation and number."""


@dataclass(frozen=True)
class CentralGaussian(Transform):
    """Adds N(0, (noise_multiplier * sensitivity)^2) to every entry of the decoded sum.

    `sensitivity` is the clip plus what rounding adds (`sensitivity(plan)`), so the multiplier is exactly the
    accountant's. Floating point: noise computed naively leaves gaps in the output that reveal the sum (Mironov, CCS
    2012). Here the sum is rounded to a grid (a power of two, 2^-32 to 2^-30 of the noise's standard deviation), the
    noise is a normal deviate rounded to the same grid and drawn exactly (`rounded_normal`), and both are added as
    integers. So a release is the Gaussian mechanism's output, rounded: the accountant's epsilon holds as it is, at
    every delta, no tail of the noise is cut, and every multiple of the grid is reached from every sum.

    Every tensor's bound is set to the clip, so that no clipped contribution is ever refused for its range: a refusal
    would be a signal that depends on data and that epsilon does not count.

    Attributes:
        noise_multiplier: z, standard deviation over sensitivity; `calibrate` finds it for a wanted epsilon.
        delta: the delta for which the plan states epsilon.
        sampler: how cohorts are drawn. `full` holds for any sampler that does not look at data; `PoissonSampling(q)`
            and `FixedSizeSampling(m, n)` are valid only if that sampling really runs and no outsider learns which
            clients took part.

    Raises:
        ConfigError: a parameter outside its domain.
    """

    noise_multiplier: float
    delta: float = DELTA
    sampler: Sampler = "full"
    name: ClassVar[str] = "gaussian"
    stage: ClassVar[ChainStage] = ChainStage.NOISE

    def __post_init__(self) -> None:
        epsilon_of(self.noise_multiplier, 0, self.delta, self.sampler)  # checks their domains

    def __str__(self) -> str:
        return f"{self.name}(z={self.noise_multiplier:g})"

    def budget(self, epsilon: float) -> Budget:
        """Make a budget of `epsilon` in all, at this delta, for exactly this mechanism."""
        return Budget(epsilon, self.noise_multiplier, self.delta, sampler=self.sampler)

    def plan(self, plan: Plan) -> Plan:
        """Add noise, epsilons and assumptions to the plan.

        Raises:
            PlanError: there is no clip before it, or the noise is too small or too large for its grid.
        """
        privacy = plan.privacy
        if privacy is None:
            raise PlanError(f"{self.name}: without a clip no noise is enough; put clip(...) before it")
        if privacy.unit == "record" and self.sampler != "full":
            raise PlanError(f"{self.name}: {self.sampler} samples clients, not records; use 'full'")
        # Sum and noise, in steps of the grid, must be integers below 2^52 each, so that float64 adds them exactly.
        if plan.clients * _largest(plan, privacy) > 2**52 * grid_for(self.noise_multiplier * privacy.clip):
            raise PlanError(
                f"{self.name}: a noise multiplier of {self.noise_multiplier:g} is too small beside {plan.clients} "
                "clients: their sum does not fit the grid on which the noise is added; use more noise"
            )
        entries = sum(tensor.size for tensor in plan.tensors)
        # A step of the grid is at most 2^-30 z times the sensitivity without it: sqrt(entries) steps add half at most.
        if self.noise_multiplier * math.sqrt(entries) > 2 ** (GRID_BITS - 1):
            raise PlanError(
                f"{self.name}: a noise multiplier of {self.noise_multiplier:g} is too large beside {entries} entries: "
                "rounding them to the noise's grid would move a sum further than the clip does; use less noise"
            )
        pairs = tuple((k, epsilon_of(self.noise_multiplier, k, self.delta, self.sampler)) for k in PLANNED_ROUNDS)
        tensors = plan.tensors
        if privacy.unit == "client":
            tensors = tuple(replace(tensor, bound=privacy.clip) for tensor in tensors)
        noisy = replace(privacy, noise_multiplier=self.noise_multiplier, epsilon=pairs)
        return replace(plan, tensors=tensors, privacy=noisy).assume(*self._assumptions(privacy))

    def _assumptions(self, privacy: PrivacyPlan) -> tuple[str, ...]:
        """Return what epsilon is stated for and rests on, as sentences for the plan."""
        neighbours = "adding or removing one client's whole contribution"
        if privacy.unit == "record":
            neighbours = "replacing one record of one client by zeros"
        if isinstance(self.sampler, FixedSizeSampling):
            neighbours = "replacing one client's whole contribution by another"
            participation = (
                f"Each round draws {self.sampler.cohort} of {self.sampler.clients} clients, each set equally likely, "
                "and no party outside the aggregator learns which."
            )
        elif isinstance(self.sampler, PoissonSampling):
            participation = (
                f"Each client takes part in each round independently with probability {self.sampler.rate:g}, and "
                "no party outside the aggregator learns which do."
            )
        else:
            participation = (
                "Participation is known and does not depend on data; every round counts in full for every client."
            )
        return (
            f"Epsilon is stated at delta {self.delta:g}, for {neighbours}.",
            participation,
            "A release is the Gaussian mechanism's output rounded to a grid, drawn exactly: epsilon is that of the "
            "mechanism at every delta, and no outcome of the noise is out of reach.",
            "The aggregator adds the noise and shows no party the sum before it; the server itself learns that sum.",
        )

    def release(self, total: Tensors, plan: Plan) -> dict[str, Array]:
        """Add noise to the decoded sum, float64 tensors; fresh from the operating system in every call."""
        stream = SecureRandomStream()
        return _release(total, plan, lambda deviation, count: rounded_normal_draws(deviation, count, stream))

    def distortion(self, plan: Plan, count: int) -> ClippingNoiseRecord:
        """State the clipping and the noise of an exchange, for the recorded transcript."""
        names = plan.wanted_rings  # by the name of every tensor
        return ClippingNoiseRecord(released=dict.fromkeys(names, _deviation(plan)))


@dataclass(frozen=True)
class InsecureGaussian(Transform):
    """`CentralGaussian` with noise that a party which knows `seed` can subtract: for simulations only.

    The noise of a release is a function of `seed` and of the sum itself, so that a run can be repeated and different
    sums get independent noise; EQUAL sums get equal noise.

    Attributes:
        mechanism: the mechanism that is simulated.
        seed: seeds the noise.
    """

    mechanism: CentralGaussian
    seed: int
    name: ClassVar[str] = "insecure_gaussian"
    stage: ClassVar[ChainStage] = ChainStage.NOISE

    def __str__(self) -> str:
        return f"{self.name}(z={self.mechanism.noise_multiplier:g}, seed={self.seed})"

    def plan(self, plan: Plan) -> Plan:
        """Plan as the mechanism does, and add the assumption that warns of the seed."""
        return self.mechanism.plan(plan).assume("INSECURE: the noise comes from a seed, so epsilon does not hold.")

    def release(self, total: Tensors, plan: Plan) -> dict[str, Array]:
        """Add noise that depends on the seed and on the sum."""
        digest = hashlib.sha256(plan.layout.flatten(total).tobytes()).digest()
        rng = np.random.default_rng([self.seed, *np.frombuffer(digest, np.uint32).tolist()])
        return _release(total, plan, seeded(rng))

    def distortion(self, plan: Plan, count: int) -> ClippingNoiseRecord:
        """State the clipping and the noise of an exchange, for the recorded transcript."""
        return self.mechanism.distortion(plan, count)


def gaussian(noise_multiplier: float, *, delta: float = DELTA, sampler: Sampler = "full") -> CentralGaussian:
    """Add central Gaussian noise to the sum; arguments as of `CentralGaussian`."""
    return CentralGaussian(noise_multiplier, delta, sampler)


def sensitivity(plan: Plan) -> float:
    """Compute the L2 distance between sums before noise, with and without one client: the clip plus rounding.

    Rounding adds per entry: half a step for the client's own rounding to fixed point (a whole one where the unit is a
    record, as both neighbours' contributions are rounded); the float64 rounding of both neighbours' sums; and one grid
    unit where the sum is coarsened to the noise's grid. With r_k what rounding adds per entry of tensor k, of n_k
    entries, it is clip + sqrt(sum_k n_k r_k^2).

    Raises:
        PlanError: the plan has no clip.
    """
    privacy = plan.privacy
    if privacy is None:
        raise PlanError("without a clip the sensitivity is not bounded; put clip(...) into the chain")
    grid = _grid(plan, privacy) if privacy.noise_multiplier else 0.0
    # steps and grid are powers of two: a sum of multiples of a step that is no smaller lies on the grid already
    moved = (t.size * (_rounding(t, plan, privacy) + (0.0 if t.step >= grid else grid)) ** 2 for t in plan.tensors)
    return privacy.clip + math.sqrt(sum(moved))


def _rounding(tensor: TensorPlan, plan: Plan, privacy: PrivacyPlan) -> float:
    """Bound how far rounding to fixed point and in float64 moves an entry between neighbours' sums."""
    assert tensor.bound is not None
    largest = plan.clients * (tensor.bound + tensor.step)
    if tensor.step:
        # integers up to 2^53 become float64 exactly; larger ones are off by half an epsilon, in each of both sums
        arithmetic = 0.0 if largest <= 2**53 * tensor.step else _EPS * largest
    else:
        arithmetic = plan.clients * _EPS * largest
    return (tensor.step if privacy.unit == "record" else tensor.step / 2) + arithmetic


def _largest(plan: Plan, privacy: PrivacyPlan) -> float:
    """Return the largest absolute entry that a contribution may have."""
    return privacy.clip if privacy.unit == "client" else max(tensor.bound or 0.0 for tensor in plan.tensors)


def _grid(plan: Plan, privacy: PrivacyPlan) -> float:
    """Return the grid to which sum and noise are rounded.

    It is chosen for the noise of the sensitivity without the rounding to the grid itself, since that rounding depends
    on the grid. The rounding adds at most half to the sensitivity (`CentralGaussian.plan` ensures that), so the
    standard deviation of the noise is at most 2^32 grid units.
    """
    squares = sum(tensor.size * _rounding(tensor, plan, privacy) ** 2 for tensor in plan.tensors)
    return grid_for(privacy.noise_multiplier * (privacy.clip + math.sqrt(squares)))


def _deviation(plan: Plan) -> float:
    """Compute the standard deviation of the noise in an entry of the sum."""
    return (0.0 if plan.privacy is None else plan.privacy.noise_multiplier) * sensitivity(plan)


def seeded(rng: np.random.Generator) -> Draw:
    """Return draws for simulations that can be repeated: `rng`'s normal deviates, rounded."""
    return lambda deviation, count: np.rint(rng.standard_normal(count) * deviation).astype(np.int64)


def _release(total: Tensors, plan: Plan, draw: Draw) -> dict[str, Array]:
    """Round the sum to the grid, and add the drawn noise in units of the grid."""
    if plan.privacy is None or not plan.privacy.noise_multiplier:
        raise ConfigError("the plan has no noise; it is not the plan of this chain")
    # The grid is a power of two: dividing and multiplying by it is exact.
    grid, deviation = _grid(plan, plan.privacy), _deviation(plan)
    out = {}
    for tensor in plan.tensors:
        noise = draw(deviation / grid, tensor.size).reshape(tensor.shape)
        # Both terms are integers below 2^52: the sum by `CentralGaussian.plan`, the noise as its deviation is 2^32 at
        # most. So their sum is exact in float64, and so is the product with a power of two.
        out[tensor.name] = np.asarray((np.rint(np.asarray(total[tensor.name], np.float64) / grid) + noise) * grid)
    return out
