"""Check before a private run that cohorts are drawn, and noise is accounted for, exactly as the defence assumes.

Epsilon holds only for the sampling that its accountant was told: all clients in every round ("full"), a secret cohort
of fixed size that the server draws (`FixedSizeSampling`), or a secret coin that each client tosses by itself
(`PoissonSampling`, by the transform `poisson(rate)`). The checks run before the first round: `check_sampling` where
terms are made, so that no plan counts a draw that no party makes, `check_privacy` in the server's round engine,
`check_evaluation` where terms or an evaluation are made, `check_stateless_clients` at clients.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import is_dataclass, replace
from typing import Any

from securefed._persistence.packing import pack
from securefed._public import Public
from securefed._runtime.client_sampling import Schedule, check_sampler, revealed_scalars
from securefed._runtime.privacy_cost import delta_of
from securefed.algorithms._base import Algorithm
from securefed.algorithms._capabilities import SupportsPrivacyCost, supports
from securefed.defenses._base import Defense, Plan
from securefed.defenses._differential_privacy import (
    Budget,
    CentralGaussian,
    FixedSizeSampling,
    PoissonCohort,
    PoissonSampling,
    Sampler,
)
from securefed.errors import ConfigError

_SAME = 1e-9
"""Largest relative difference of two epsilons that count as equal: both come from one formula, up to rounding."""
_EMPTY = "nmt"
"""Kinds of packed fields that hold no value of their own: n none, m mapping, t tuple. `pack` stores a field `x` under
the name `x:KIND`, so that the last letter of the name is its kind.
"""


def check_evaluation(plan: Plan, algorithm: Algorithm[Any, Any]) -> None:
    """Check that sums of an evaluation may be asked for.

    Raises:
        ConfigError: under a clip, which would clip losses and counts like an update; or of an algorithm whose own
            noise makes records private, for these sums have none. Evaluate the output instead. Or of an algorithm
            that defines no evaluation.
    """
    if getattr(type(algorithm), "evaluate", None) is Algorithm.evaluate:
        raise ConfigError(
            f"{type(algorithm).__name__} defines no evaluation; leave out evaluate_every, or write `evaluation_layout` "
            "and `evaluate`."
        )
    if plan.privacy is not None:
        raise ConfigError("evaluation sums cannot pass a clip; score the released model on public rows instead")
    if supports(algorithm, SupportsPrivacyCost):
        raise ConfigError(
            f"{type(algorithm).__name__} makes records private by noise of its own, and evaluation sums would be exact "
            "numbers of the same records, without noise and outside epsilon; leave out evaluate_every, and score the "
            "released model on public rows instead"
        )


def sampler_of(defense: Defense) -> Sampler:
    """Return the sampling that the defence's accountant assumes; `full` if it names none."""
    found = [mechanism.sampler for t in defense.transforms if isinstance(mechanism := t, CentralGaussian)]
    return found[0] if found else "full"


def check_privacy(
    defense: Defense,
    plan: Plan,
    budget: Budget | None,
    public: Public,
    schedule: Schedule | None,
    algorithm: Algorithm[Any, Any],
) -> bool:
    """Check the run's sampling and budget against the defence; return whether cohorts must be drawn secretly.

    Args:
        defense: the chain of the run.
        plan: its plan of a training exchange, with epsilon after several numbers of exchanges.
        budget: the server's limit on epsilon; `None` without one.
        public: the public facts, with the number of clients and of the planned cohort.
        schedule: a fixed choice of cohorts by the caller; `None` for a random one.
        algorithm: the run's algorithm.

    Raises:
        ConfigError: the federation does not draw cohorts as the accountant assumes, or the budget does not belong to
            this defence's noise: for some number of exchanges it would count less or more than the plan. Or there is
            a budget, but the defence adds no noise.
    """
    sampler = sampler_of(defense)
    check_sampling(defense, public, schedule, algorithm)
    if budget is not None and not plan.noised:
        raise ConfigError(
            f"a budget of epsilon {budget.epsilon:g} counts the defence's noise, and {plan.defense!r} adds none; put "
            "noise into the chain, for instance clip(...), gaussian(...), or leave the budget out (private/fedavg has "
            "one of its own, `epsilon`)"
        )
    if budget is not None:
        _check_budget(budget, plan, sampler, delta_of(defense))
    return isinstance(sampler, FixedSizeSampling)


def check_sampling(defense: Defense, public: Public, schedule: Schedule | None, algorithm: Algorithm[Any, Any]) -> None:
    """Check that clients are drawn as the defence's accountant assumes: no epsilon counts a draw that is not made.

    Args:
        defense: the chain of the run.
        public: the public facts.
        schedule: a fixed choice of cohorts by the caller; `None` for a random one.
        algorithm: the run's algorithm.

    Raises:
        ConfigError: the federation draws cohorts otherwise, or reveals them.
    """
    sampler, tossed = sampler_of(defense), _coins(defense)
    if tossed is not None:
        _check_coins(tossed, public, schedule, algorithm)
    # Where the clients toss the very coins that the accountant counts on, the server draws no cohort.
    if not (isinstance(sampler, PoissonSampling) and sampler == tossed):
        check_sampler(sampler, public, schedule, algorithm)


def samples_clients(defense: Defense) -> bool:
    """Tell whether each client decides by itself, at random, whether it takes part."""
    return _coins(defense) is not None


def _coins(defense: Defense) -> PoissonSampling | None:
    """Return the Poisson sampling that clients do by themselves, if the defence has it."""
    found = [transform.sampler for transform in defense.transforms if isinstance(transform, PoissonCohort)]
    return found[0] if found else None


def _check_coins(
    sampler: PoissonSampling, public: Public, schedule: Schedule | None, algorithm: Algorithm[Any, Any]
) -> None:
    """Raise `ConfigError` unless every client tosses in every exchange, whatever its data."""
    if public.cohort != public.clients or schedule is not None or revealed_scalars(algorithm):
        raise ConfigError(
            f"poisson({sampler.rate:g}) has every client toss its own coin in every exchange: leave out the cohort, "
            "the schedule and any selection by values"
        )


def has_memory(state: Any) -> bool:
    """Tell whether a client's state holds anything that its data, hyper-parameters and seed do not determine.

    A state that cannot be packed (a user's own class may keep any object) counts as one that does.
    """
    if state is None or not is_dataclass(state):
        return state is not None
    return any(name[-1] not in _EMPTY for name in pack(state))


def check_stateless_clients(defense: Defense, state: Any) -> None:
    """Raise `ConfigError` where clients sample themselves and a client's `state` depends on its contributions."""
    if _coins(defense) is not None and has_memory(state):
        raise ConfigError(
            "poisson(...) leaves contributions out without telling the client, and this algorithm's clients remember "
            "what they sent; use a method without running sums, or a FixedSizeSampling cohort"
        )


def _check_budget(budget: Budget, plan: Plan, sampler: Sampler, delta: float) -> None:
    """Raise `ConfigError` unless the budget counts the same epsilon as the plan, which is compared at `delta`."""
    # epsilon of n exchanges at `delta`; how many the budget has already counted plays no part
    after: Callable[[int], float] = replace(budget, delta=delta, exchanges=0).after
    noise, planned = budget.noise_multiplier, 0.0 if plan.privacy is None else plan.privacy.noise_multiplier
    same = noise == planned and budget.sampler == sampler
    if not same or not all(abs(after(rounds) - epsilon) <= _SAME * epsilon for rounds, epsilon in plan.epsilon):
        raise ConfigError(
            f"the budget accounts for noise multiplier {noise:g} ({budget.sampler}), the defence {plan.defense!r} adds "
            f"{planned:g} ({sampler}) and its plan counts epsilon {dict(plan.epsilon)}; make the budget with the "
            "mechanism's own budget(...)"
        )
