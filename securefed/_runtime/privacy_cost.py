"""Compute the privacy cost of an exchange, as a value that a ledger keeps, and the cost of many exchanges together.

An exchange makes one sum of clients' contributions, with or without noise. Its noise is recorded with the exact
parameters that its accountant needs, so that the epsilon of any number of exchanges, of any number of runs, follows
from the counts alone. A client's ledger keeps a `PrivacyCost` for each exchange that it answers (`cost_of`), and asks
for epsilon of all of them (`epsilon_of_all`) before it answers one more.

Exchanges whose noise is of one family compose tightly, by the accountants that a defence's plan (what it states before
a run) uses too: Gaussian noise with full participation by the sum of its squared signal-to-noise ratios, integer noise
that clients add in the ring (before the sum modulo 2^bits) by the sum of its Renyi divergences, steps of DP-SGD by
Renyi divergences of sampled Gaussian noise. Different families are added by basic composition: each of k families is
accounted for at delta / k, and their epsilons are added. Sub-sampled Gaussian noise is one family for each pair of
multiplier and sampler.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any, Final

import numpy as np

from securefed._hyperparameters import check_choice, check_integer
from securefed.defenses._base import Defense, Plan, Unit
from securefed.defenses._differential_privacy.accountant import (
    DELTA,
    FixedSizeSampling,
    PoissonSampling,
    Sampler,
    epsilon_of,
)
from securefed.defenses._differential_privacy.distributed import DistributedNoise
from securefed.defenses._differential_privacy.gaussian import CentralGaussian, InsecureGaussian
from securefed.defenses._differential_privacy.privacy_loss import (
    DiscreteGaussianLoss,
    LaplaceLoss,
    PrivacyLoss,
    SkellamLoss,
    composed_epsilon,
)
from securefed.errors import ConfigError


@dataclass(frozen=True)
class GaussianLoss:
    """One release of central Gaussian noise.

    Attributes:
        noise_multiplier: standard deviation of the noise over the sensitivity.
        sampler: how cohorts are drawn, as the accountant assumes.

    Raises:
        ConfigError: a parameter outside its domain.
    """

    noise_multiplier: float
    sampler: Sampler = "full"

    def __post_init__(self) -> None:
        epsilon_of(self.noise_multiplier, 0, sampler=self.sampler)

    def epsilon(self, rounds: int, delta: float = DELTA) -> float:
        """Compute epsilon of this number of releases, at `delta`."""
        return epsilon_of(self.noise_multiplier, rounds, delta, self.sampler)


@dataclass(frozen=True)
class DPSGDLoss:
    """The local steps of DP-SGD that make one contribution.

    Attributes:
        noise_multiplier: standard deviation of a step's noise over the clipping norm of a row's gradient.
        rate: probability with which a step draws each row.
        steps: number of steps.

    Raises:
        ConfigError: a parameter outside its domain.
    """

    noise_multiplier: float
    rate: float
    steps: int

    def __post_init__(self) -> None:
        epsilon_of(self.noise_multiplier, 0, sampler=PoissonSampling(self.rate))
        check_integer("steps", self.steps, 1, note="(of DP-SGD in one contribution)")

    def epsilon(self, rounds: int, delta: float = DELTA) -> float:
        """Compute epsilon of this number of contributions, at `delta`."""
        return _steps_epsilon(((self, rounds),), delta)


@dataclass(frozen=True)
class TrainedLoss:
    """The release of a model that DP-SGD trained before: it costs nothing beside the training (post-processing).

    The ledger counts the training itself (`Ledger.reserve`).
    """

    def epsilon(self, rounds: int, delta: float = DELTA) -> float:
        """Return 0."""
        return 0.0


_KINDS: Final[dict[str, type[Any]]] = {
    "gaussian": GaussianLoss,
    "skellam": SkellamLoss,
    "discrete_gaussian": DiscreteGaussianLoss,
    "discrete_laplace": LaplaceLoss,
    "dp_sgd": DPSGDLoss,
    "trained": TrainedLoss,
}
_IN_THE_RING: Final = (SkellamLoss, DiscreteGaussianLoss, LaplaceLoss)
"""Integer noises, which clients add to their encoded contributions before these are summed modulo 2^bits."""


@dataclass(frozen=True)
class PrivacyMechanism:
    """One noise that protects an exchange.

    Attributes:
        loss: its law, with all parameters that its accountant needs.
        unit: whom it hides: a whole "client", or one "record" of a client.

    Raises:
        ConfigError: an unknown unit, or steps of DP-SGD that are said to hide a whole client.
    """

    loss: PrivacyLoss
    unit: Unit = "client"

    def __post_init__(self) -> None:
        check_choice("unit", self.unit, ("client", "record"))
        if isinstance(self.loss, DPSGDLoss | TrainedLoss) and self.unit != "record":
            raise ConfigError(
                "DP-SGD hides a 'record' of a client, not a 'client': its steps clip the gradients of single rows, and "
                "their noise is scaled to one of them; give unit='record'"
            )

    def protecting(self, unit: Unit) -> PrivacyLoss | None:
        """Return the privacy loss for a `unit`, or `None` if the mechanism does not protect that unit.

        A client's noise hides each record as well: without the record, the contribution would be another vector of norm
        at most C, the clip. Two such vectors lie at most 2 C apart, and the noise was scaled for C (contribution or
        zero). A record's noise does not hide a client.
        """
        if unit == self.unit:
            return self.loss
        return _for_replacement(self.loss) if unit == "record" else None

    def to_json(self) -> dict[str, Any]:
        """In JSON values. Inverse: `from_json`."""
        kind = next(name for name, loss in _KINDS.items() if type(self.loss) is loss)
        values = {name: _sampler_to_json(value) for name, value in vars(self.loss).items()}
        return {"kind": kind, "unit": self.unit, "parameters": values}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> PrivacyMechanism:
        """Read a mechanism from JSON values. Inverse of `to_json`.

        Raises:
            KeyError, TypeError, ValueError: it did not come from `to_json`.
        """
        parameters = {name: _sampler_from_json(value) for name, value in values["parameters"].items()}
        return cls(_KINDS[values["kind"]](**parameters), values["unit"])


@dataclass(frozen=True)
class PrivacyCost:
    """Privacy cost of one exchange to its client.

    Attributes:
        mechanisms: noises that the answer passes one after the other, each of which protects it alone; empty where
            the answer carries no noise, which has no finite epsilon.
    """

    mechanisms: tuple[PrivacyMechanism, ...] = ()

    def protecting(self, unit: Unit) -> tuple[PrivacyLoss, ...]:
        """Return the privacy losses that each bound what the exchange reveals about a `unit`."""
        found = [mechanism.protecting(unit) for mechanism in self.mechanisms]
        return tuple(loss for loss in found if loss is not None)

    def epsilon(self, exchanges: int, delta: float = DELTA, unit: Unit = "client") -> float:
        """Epsilon of so many exchanges of this cost alone; infinite where nothing hides the `unit`.

        Args:
            exchanges: how many, from 0.
            delta: probability with which epsilon may fail.
            unit: whose privacy it is about.
        """
        return epsilon_of_all({self: exchanges}, delta, unit)

    def of_trained(self) -> PrivacyCost:
        """Return the cost of the same exchange where its contribution is a model that DP-SGD trained before."""
        return PrivacyCost((PrivacyMechanism(TrainedLoss(), "record"), *self.mechanisms))

    def to_json(self) -> list[dict[str, Any]]:
        """In JSON values. Inverse: `from_json`."""
        return [mechanism.to_json() for mechanism in self.mechanisms]

    @classmethod
    def from_json(cls, values: list[dict[str, Any]]) -> PrivacyCost:
        """Read a cost from JSON values. Inverse of `to_json`; raises as `PrivacyMechanism.from_json`."""
        return cls(tuple(PrivacyMechanism.from_json(value) for value in values))


def cost_of(defense: Defense, plan: Plan, steps: tuple[float, float, int] | None = None) -> PrivacyCost:
    """Derive what one exchange under `plan` costs each client that answers it.

    Args:
        defense: the chain that the exchange runs under.
        plan: the plan of that exchange, made by `defense.plan`.
        steps: what an algorithm's local training runs for one contribution, as (noise multiplier, sampling rate,
            steps) of DP-SGD (`SupportsPrivacyCost.noised_steps`); `None` where it trains without noise, and for
            evaluations.

    Returns:
        The cost: central Gaussian and distributed noise with the parameters of the plan's own epsilons. Noise that
        comes from a seed (`InsecureGaussian`) hides nothing, and counts as none.

    Raises:
        ConfigError: the plan adds noise that no known mechanism accounts for.
    """
    found = [] if steps is None else [PrivacyMechanism(DPSGDLoss(*steps), "record")]
    noises = [t for t in defense.transforms if isinstance(t, CentralGaussian | InsecureGaussian | DistributedNoise)]
    if plan.noised and not noises:
        raise ConfigError(
            f"the plan of {plan.defense!r} adds noise that a ledger cannot account for; known are gaussian(...), "
            "skellam(...), discrete_gaussian(...), local_gaussian(...) and local_laplace(...)"
        )
    privacy = plan.privacy
    for noise in noises:
        if isinstance(noise, CentralGaussian) and privacy is not None:
            found.append(PrivacyMechanism(GaussianLoss(privacy.noise_multiplier, noise.sampler), privacy.unit))
        elif isinstance(noise, DistributedNoise) and privacy is not None:
            found.append(PrivacyMechanism(noise.loss(plan), privacy.unit))
    return PrivacyCost(tuple(found))


def delta_of(defense: Defense) -> float:
    """Return the delta of a defence's noise, at which its plan states epsilon; the customary one where it adds none."""
    for transform in defense.transforms:
        noise = transform.mechanism if isinstance(transform, InsecureGaussian) else transform
        if isinstance(noise, CentralGaussian | DistributedNoise):
            return noise.delta
    return DELTA


def epsilon_after(defense: Defense, plan: Plan, exchanges: int) -> float:
    """Compute epsilon of so many exchanges as the plan states it: for its unit, at the delta of the defence's noise.

    Args:
        defense: the chain that the exchanges run under.
        plan: the plan of one of them, made by `defense.plan`.
        exchanges: how many, from 0.

    Returns:
        Epsilon; 0 before any exchange, infinite without noise.

    Raises:
        ConfigError: as `cost_of`.
    """
    if exchanges == 0:
        return 0.0
    if plan.privacy is None or not plan.noised:
        return math.inf
    return cost_of(defense, plan).epsilon(exchanges, delta_of(defense), plan.privacy.unit)


def epsilon_of_all(counts: Mapping[PrivacyCost, int], delta: float = DELTA, unit: Unit = "client") -> float:
    """Epsilon of all these exchanges together, at `delta`.

    Two runs are neighbours if what one client (or one record of it) contributes is there in one, and replaced by zeros
    in all exchanges of the other; numbers of rows are public. Where several mechanisms protect an exchange, each alone
    bounds its epsilon, and the one with the smaller bound for its exchanges counts.
    Assumed: which noises are used is not decided by what earlier exchanges released.

    Args:
        counts: how many exchanges there were of each cost.
        delta: shared equally by the families of noise that occur.
        unit: whose privacy it is about.

    Returns:
        The sum over families; 0 without exchanges, infinite where one of them hides nothing of the `unit`.
    """
    chosen: Counter[PrivacyLoss] = Counter()
    for cost, exchanges in counts.items():
        if not exchanges:
            continue
        losses = cost.protecting(unit)
        if not losses:
            return math.inf
        best = losses[0] if len(losses) == 1 else min(losses, key=lambda loss: loss.epsilon(exchanges, delta))
        if not isinstance(best, TrainedLoss):  # which needs no part of delta
            chosen[best] += exchanges
    families: dict[Hashable, list[tuple[Any, int]]] = defaultdict(list)
    for loss, exchanges in chosen.items():
        families[_family(loss)].append((loss, exchanges))
    return math.fsum(_accountant(parts[0][0])(tuple(parts), delta / len(families)) for parts in families.values())


def _family(loss: PrivacyLoss) -> Hashable:
    """Return a key that is equal for losses that one accountant composes tightly."""
    if isinstance(loss, _IN_THE_RING):
        return "ring"
    return loss if isinstance(loss, GaussianLoss) and loss.sampler != "full" else type(loss)


def _accountant(loss: PrivacyLoss) -> Callable[[tuple[tuple[Any, int], ...], float], float]:
    """Return the accountant of a family of noises."""
    if isinstance(loss, _IN_THE_RING):
        return composed_epsilon
    return _steps_epsilon if isinstance(loss, DPSGDLoss) else _gaussian_epsilon


def _gaussian_epsilon(parts: tuple[tuple[GaussianLoss, int], ...], delta: float) -> float:
    """Compute epsilon of Gaussian releases.

    One loss is accounted for as in a plan. Several, all with full participation, compose: a release with multiplier z
    is mu-GDP with mu = 1 / z, and k_i releases with z_i for each i are together mu-GDP with mu^2 = sum_i k_i / z_i^2
    (Dong, Roth, Su, "Gaussian differential privacy", 2022, corollary 3.3), hence like one release with z = 1 / mu.

    Args:
        parts: pairs of a loss and its number of releases.
        delta: probability with which epsilon may fail.
    """
    if len(parts) == 1:
        return parts[0][0].epsilon(parts[0][1], delta)
    return epsilon_of(1 / math.sqrt(math.fsum(k / loss.noise_multiplier**2 for loss, k in parts)), 1, delta)


@lru_cache(maxsize=1024)
def _steps_epsilon(parts: tuple[tuple[DPSGDLoss, int], ...], delta: float) -> float:
    """Compute epsilon of local DP-SGD, by adding the Renyi divergences of all steps of all contributions.

    Args:
        parts: pairs of a loss and its number of contributions.
        delta: probability with which epsilon may fail.
    """
    import dp_accounting  # noqa: PLC0415 - takes a second, and only DP-SGD needs it
    from dp_accounting.rdp import RdpAccountant  # noqa: PLC0415

    accountant = RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
    for loss, exchanges in parts:
        noise = dp_accounting.GaussianDpEvent(loss.noise_multiplier)
        accountant.compose(dp_accounting.PoissonSampledDpEvent(loss.rate, noise), loss.steps * exchanges)
    return max(0.0, float(np.float64(accountant.get_epsilon(delta))))


def _for_replacement(loss: PrivacyLoss) -> PrivacyLoss:
    """Return the loss when a clipped contribution is replaced by another, instead of by zeros.

    The distance is at most twice as large, so its square is at most four times as large; for Gaussian noise, whose
    multiplier is noise over distance, the multiplier is half. A cohort of fixed size is accounted for by replacement
    already. For a Poisson cohort the result leaves out amplification by sampling, and is then an upper bound.
    """
    if isinstance(loss, GaussianLoss):
        return loss if isinstance(loss.sampler, FixedSizeSampling) else GaussianLoss(loss.noise_multiplier / 2)
    assert isinstance(loss, _IN_THE_RING)
    return replace(loss, squares=4 * loss.squares)  # `squares`: squared L2 sensitivity


def _sampler_to_json(value: Any) -> Any:
    return asdict(value) if isinstance(value, PoissonSampling | FixedSizeSampling) else value


def _sampler_from_json(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return PoissonSampling(**value) if "rate" in value else FixedSizeSampling(**value)
