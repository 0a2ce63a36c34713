"""Check before a private run that cohorts, algorithm and budget are as the defence's accountant assumes.

Epsilon holds only for the sampling that its accountant was told: all clients in every round ("full"), a secret cohort
of fixed size that the server draws (`FixedSizeSampling`), or a secret coin that each client tosses by itself
(`PoissonSampling`, by the transform `poisson(rate)`). The checks run before the first round: `check_sampling` where
terms are made, so that no plan counts a draw that no party makes, and `check_privacy` at the server. No sum may go
without noise, and no client may remember a secret draw. Amplification by sampling counts a client's chance of not being
in the cohort as privacy, so no party may learn the cohort. An algorithm that divides by the survivors' numbers of rows,
for instance, publishes it in its model: `check_cohort_secrecy` compares trial runs on a few cohorts, which is a test
and no proof.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from securefed._messages import Aggregate, ClientId
from securefed._public import Public
from securefed._runtime.client_state import has_memory
from securefed._runtime.privacy_cost import delta_of
from securefed._tensors import Tensors
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
from securefed.errors import ConfigError, SecureFedError

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
    sampler, tossed = sampler_of(defense), coins_of(defense)
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


def coins_of(defense: Defense) -> PoissonSampling | None:
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


def check_stateless_clients(defense: Defense, state: Any) -> None:
    """Raise `ConfigError` where clients sample themselves and a client's `state` depends on its contributions."""
    if coins_of(defense) is not None and has_memory(state):
        raise ConfigError(
            "poisson(...) leaves contributions out without telling the client, and this algorithm's clients remember "
            "what they sent; use a method without running sums, or a FixedSizeSampling cohort"
        )


_SMALL = 1e-3
"""Size of the trial sums relative to a tensor's declared bound: small, so that no trial run diverges."""
_ROUNDS = 3
"""Rounds of a trial: enough to leave a cohort and come back to it.

All get the same sum, so that a stop rule which compares rounds of the same survivors sees a run without progress."""


def check_cohort_secrecy(algorithm: Algorithm[Any, Any], public: Public) -> None:
    """Check that the server's outputs do not depend on which clients a sum is of.

    The check runs the algorithm's server from the same start on the same sums, attributed to different clients: those
    with the fewest rows, those with the most, and both in turn. Broadcasts and stopping must agree bit for bit.

    Args:
        algorithm: the run's algorithm.
        public: the run's public facts; `cohort` clients are sampled for a round.

    Raises:
        ConfigError: something differs, or the algorithm cannot be run on such sums.
    """
    if public.cohort == public.clients:
        return
    by_rows = sorted(range(public.clients), key=lambda client: public.rows[client])
    small, large = (tuple(sorted(some)) for some in (by_rows[: public.cohort], by_rows[-public.cohort :]))
    total = _total(algorithm, public)
    try:
        with np.errstate(all="ignore"):
            first = _trace(algorithm, public, total, [small] * _ROUNDS)
            others = [_trace(algorithm, public, total, who) for who in ([large] * _ROUNDS, [small, large, small])]
    except (SecureFedError, ArithmeticError, ValueError) as error:
        raise ConfigError(
            f"whether {type(algorithm).__name__} keeps the draw of a cohort secret could not be tried out ({error}); "
            "account with 'full', or with poisson(...) coins"
        ) from error
    if any(not _same(first, other) for other in others):
        raise ConfigError(
            f"{type(algorithm).__name__}'s result depends on which {public.cohort} of {public.clients} clients a sum "
            "is of, so its readers learn who took part, and a secret draw must not be accounted for; give all "
            "clients the same weight (weighting='uniform', or equal numbers of rows), turn off a stop rule that "
            "compares rounds of the same survivors, or account with 'full' or with poisson(...) coins"
        )


def _total(algorithm: Algorithm[Any, Any], public: Public) -> Tensors:
    """Make a fixed sum of small contributions."""
    rng = np.random.default_rng(0)
    layout = algorithm.layout(public)
    return {spec.name: rng.uniform(0.5, 1.0, spec.shape) * _SMALL * (spec.bound or 1.0) for spec in layout}


def _trace(
    algorithm: Algorithm[Any, Any], public: Public, total: Tensors, cohorts: Sequence[tuple[ClientId, ...]]
) -> list[tuple[Tensors, str | None]]:
    """Return the public outputs (broadcast, reason to stop) of a run that gets this sum in every round.

    Args:
        algorithm: the run's algorithm.
        public: the public facts.
        total: the sum.
        cohorts: for each round, the clients that the server is told the sum is of.
    """
    server, seen = algorithm.start(public, np.random.default_rng(0)), []
    for cohort in cohorts:
        server = algorithm.combine(server, Aggregate(total, cohort))
        seen.append((algorithm.broadcast(server), algorithm.finished(server)))
    return seen


def _same(one: Sequence[tuple[Tensors, str | None]], other: Sequence[tuple[Tensors, str | None]]) -> bool:
    """Tell whether two runs have the same public outputs, bit for bit."""
    return all(
        reason == other_reason and all(np.array_equal(sent[name], other_sent[name], equal_nan=True) for name in sent)
        for (sent, reason), (other_sent, other_reason) in zip(one, other, strict=True)
    )
