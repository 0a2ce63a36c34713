"""Check before a private run that cohorts are drawn, and noise is accounted for, exactly as the defence assumes.

Epsilon holds only for the sampling that its accountant was told: all clients in every round ("full"), a secret cohort
of fixed size that the server draws (`FixedSizeSampling`), or a secret coin that each client tosses by itself
(`PoissonSampling`, by the transform `poisson(rate)`). The checks run before the first round: `check_sampling` where
terms are made, so that no plan counts a draw that no party makes, and `check_privacy` at the server.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from securefed._runtime.privacy_cost import delta_of
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


def sampler_of(defense: Defense) -> Sampler:
    """Return the sampling that the defence's accountant assumes; `full` if it names none."""
    found = [mechanism.sampler for t in defense.transforms if isinstance(mechanism := t, CentralGaussian)]
    return found[0] if found else "full"


def check_privacy(
    defense: Defense, plan: Plan, budget: Budget | None, cohort: int, clients: int, *, chosen: bool = False
) -> bool:
    """Check the run's sampling and budget against the defence; return whether cohorts must be drawn secretly.

    Args:
        defense: the chain of the run.
        plan: its plan of a training exchange, with epsilon after several numbers of exchanges.
        budget: the server's limit on epsilon; `None` without one.
        cohort: number of clients that each sum plans for.
        clients: number of clients.
        chosen: whether cohorts are chosen by the caller, or by values that clients reveal, and not drawn.

    Raises:
        ConfigError: cohorts are not drawn as the accountant assumes, or the budget does not belong to this defence's
            noise: for some number of exchanges it would count less or more than the plan. Or there is a budget, but the
            defence adds no noise.
    """
    check_sampling(defense, cohort, clients, chosen=chosen)
    if budget is not None and not plan.noised:
        raise ConfigError(
            f"a budget of epsilon {budget.epsilon:g} counts the defence's noise, and {plan.defense!r} adds none; put "
            "noise into the chain, for instance clip(...), gaussian(...), or leave the budget out (private/fedavg has "
            "one of its own, `epsilon`)"
        )
    sampler = sampler_of(defense)
    if budget is not None:
        _check_budget(budget, plan, sampler, delta_of(defense))
    return isinstance(sampler, FixedSizeSampling)


def check_sampling(defense: Defense, cohort: int, clients: int, *, chosen: bool = False) -> None:
    """Check that clients are drawn as the defence's accountant assumes: no epsilon counts a draw that is not made.

    Args:
        defense: the chain of the run.
        cohort: number of clients that each sum plans for.
        clients: number of clients.
        chosen: whether cohorts are chosen by the caller, or by values that clients reveal, and not drawn.

    Raises:
        ConfigError: cohorts are drawn otherwise, or chosen.
    """
    sampler, tossed = sampler_of(defense), _coins(defense)
    if tossed is not None and (cohort != clients or chosen):
        raise ConfigError(
            f"poisson({tossed.rate:g}) has every client toss its own coin in every exchange: leave out the cohort, "
            "the schedule and any selection by values"
        )
    # Where the clients toss the very coins that the accountant counts on, the server draws no cohort.
    if sampler == "full" or (isinstance(sampler, PoissonSampling) and sampler == tossed):
        return
    if not isinstance(sampler, FixedSizeSampling):
        raise ConfigError(
            f"a federation draws cohorts of a fixed size, not {sampler}; account with 'full', with "
            f"FixedSizeSampling({cohort}, {clients}), or put poisson({sampler.rate:g}) behind the clip"
        )
    if (sampler.cohort, sampler.clients) != (cohort, clients):
        raise ConfigError(f"{sampler} is not this federation's draw of {cohort} of {clients} clients")
    if chosen:
        raise ConfigError(f"{sampler} accounts for a uniform secret draw; a schedule or a selection by values is none")


def samples_clients(defense: Defense) -> bool:
    """Tell whether each client decides by itself, at random, whether it takes part."""
    return _coins(defense) is not None


def _coins(defense: Defense) -> PoissonSampling | None:
    """Return the Poisson sampling that clients do by themselves, if the defence has it."""
    found = [transform.sampler for transform in defense.transforms if isinstance(transform, PoissonCohort)]
    return found[0] if found else None


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
