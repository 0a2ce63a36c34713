"""Judge noise by the games that canaries played with it: bounds on epsilon, and tests of the noise itself.

`noise_audit` plays the games with whole contributions and `record_audit` with single rows; both hand over what the
adversary saw, and are judged alike. Where noise is nearly Gaussian and no client is sampled, its size is known from the
plan, and so are its trade-off curve and the distribution of its entries.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from securefed._auditing.differential_privacy.epsilon_bounds import Guesses, from_scores, one_run, one_run_f, tradeoff
from securefed._auditing.differential_privacy.noise_tests import Noise, odd_noise, size_bound
from securefed._runtime.privacy_checks import sampler_of
from securefed._tensors import Array, Tensors
from securefed.defenses._base import ChainStage, Defense, Plan, Session
from securefed.defenses._differential_privacy import CentralGaussian, DistributedNoise


@dataclass(frozen=True)
class Games:
    """The adversary's scores in both games, and the noise.

    Attributes:
        with_it: (runs, statistics) scores of exchanges with the canary. The first statistic is the one that tells most
            where nothing is wrong.
        without: (runs, statistics) the same without it.
        guesses: the guesses of one run with many canaries.
        noise: that of the exchanges without the canary; `None` where it is not (nearly) Gaussian, or not the defence's.
    """

    with_it: Array
    without: Array
    guesses: Guesses
    noise: Noise | None


@dataclass(frozen=True)
class NoiseAudit:
    """Lower bounds on epsilon of one exchange of a defence.

    Attributes:
        defense: its name.
        claimed: epsilon that its plan states for one exchange.
        delta: the delta of that epsilon.
        repeated: Clopper-Pearson bound over independent exchanges (`epsilon_bounds.from_scores`).
        one_run: bound from one exchange with many canaries.
        one_run_f: the same by Gaussian trade-off curves; a bound only where the noise is (nearly) Gaussian.
        tradeoff: bound over independent exchanges by Gaussian trade-off curves, which fails with half the probability
            that `confidence` leaves the others; 0 where the noise is not (nearly) Gaussian, or clients are sampled.
        deviation: upper bound on the noise's standard deviation in units of the planned one, from all entries of
            exchanges without the canary, of the tensor with the least; it fails with an eighth of that probability.
            Below 1 there is less noise than planned. NaN where the noise is not (nearly) Gaussian, or clients are
            sampled.
        faults: in which ways the entries of that noise are not normal, not independent, or shared between exchanges, a
            sentence each (`noise_tests`); noise as planned has one with an eighth of that probability.
        refused: the defence's error if it refused a canary, whose bounds are then 0; empty otherwise.
        scores: the scores of the independent exchanges, for membership rates.
        inside: whether the canary was there, for each score.
    """

    defense: str
    claimed: float
    delta: float
    repeated: float
    one_run: float
    one_run_f: float
    tradeoff: float = 0.0
    deviation: float = math.nan
    faults: tuple[str, ...] = ()
    refused: str = ""
    scores: tuple[float, ...] = ()
    inside: tuple[bool, ...] = ()

    @property
    def bound(self) -> float:
        """The larger of the two bounds that hold for any noise, each at the confidence asked for."""
        return max(self.repeated, self.one_run)

    @property
    def violated(self) -> bool:
        """Whether epsilon is larger than claimed, or the noise is smaller than planned, or not normal and independent.

        Noise that keeps its claim is flagged with at most 2.75 times the error of one bound, by the union bound over
        all of them: 1 for `repeated`, 1 for `one_run`, 1/2 for `tradeoff`, 1/8 for `deviation` and 1/8 for `faults`.
        """
        return max(self.bound, self.tradeoff) > self.claimed or self.deviation < 1 or bool(self.faults)

    @property
    def flagged(self) -> bool:
        """Whether something is wrong: epsilon is larger than claimed, or a client that follows the chain is refused."""
        return self.violated or bool(self.refused)


def judged(name: str, claimed: float, delta: float, games: Games, confidence: float) -> NoiseAudit:
    """Compute the bounds that hold for any noise, and for Gaussian noise those of its trade-off curve and its entries.

    Args:
        name: the name of the defence.
        claimed: epsilon that its plan states for one exchange.
        delta: the delta of that epsilon.
        games: what the adversary saw.
        confidence: the confidence of each bound; see `NoiseAudit` for those that fail less often.
    """
    with_it, without = games.with_it, games.without
    found = NoiseAudit(
        name,
        claimed,
        delta,
        repeated=from_scores(with_it, without, delta, confidence),
        one_run=one_run(games.guesses, delta, confidence),
        one_run_f=one_run_f(games.guesses, delta, confidence),
        scores=(*with_it[:, 0].tolist(), *without[:, 0].tolist()),
        inside=(*[True] * len(with_it), *[False] * len(without)),
    )
    if games.noise is None:
        return found
    risk = 1 - confidence
    return replace(
        found,
        tradeoff=tradeoff(with_it[:, 0], without[:, 0], delta, 1 - risk / 2),
        deviation=size_bound(games.noise, risk / 8),
        faults=tuple(odd_noise(games.noise, risk / 8)),
    )


def is_gaussian(defense: Defense) -> bool:
    """Whether the trade-off curve of an exchange is (nearly) Gaussian: such noise, and no sampling of clients."""
    noises = [item for item in defense.transforms if isinstance(item, CentralGaussian | DistributedNoise)]
    return (
        len(noises) == 1
        and sampler_of(defense) == "full"
        and getattr(noises[0], "distribution", "gaussian") != "discrete_laplace"
    )


def planned_noise(defense: Defense, plan: Plan, summed: int) -> Mapping[str, float]:
    """Return by tensor the planned standard deviation of each number of what the adversary sees.

    Args:
        defense: a defence with noise.
        plan: its plan.
        summed: number of clients in the sum.
    """
    record = defense.distortion(plan, summed)
    # `released`: noise of the server on the released sum; `noise`: that of the clients in the sum
    return record.released if any(record.released.values()) else record.noise


def released_sum(defense: Defense, planned: Plan, clients: Sequence[Callable[[Plan], Tensors]]) -> dict[str, Array]:
    """Run one exchange through a defence's own code: sum the clients' encoded messages, decode and release the sum.

    Args:
        defense: a defence with noise.
        planned: its plan; the exchange draws secrets of its own.
        clients: for each client in the sum, the function that encodes its message.
    """
    plan = Session(secrets.token_hex(16), 0, tuple(range(planned.clients)), planned).plan
    total: dict[str, Array] = {}
    for encode in clients:
        total = {name: np.asarray(value) + total.get(name, 0) for name, value in encode(plan).items()}
    released = defense.release(defense.decode(total, plan, len(clients)), plan)
    return {name: np.asarray(value, np.float64) for name, value in released.items()}


def release_after_noise(defense: Defense, tensors: Tensors, plan: Plan) -> dict[str, Array]:
    """Apply to a sum what its release does after the noise.

    These are factors: the units of an adaptive clip, and 1 / rate under Poisson sampling.
    """
    for transform in reversed(defense.transforms):
        if transform.stage < ChainStage.NOISE:
            tensors = transform.release(tensors, plan)
    return {name: np.asarray(value, np.float64) for name, value in tensors.items()}


def noise_scale(defense: Defense, plan: Plan) -> dict[str, Array]:
    """Return by tensor the factor by which the release multiplies each number's noise."""
    return release_after_noise(defense, {tensor.name: np.ones(tensor.shape) for tensor in plan.tensors}, plan)
