"""Check before a private run that an algorithm fits its defence: no sum without noise, no memory of a secret draw."""

from __future__ import annotations

from typing import Any

from securefed._public import Public
from securefed._runtime.client_state import has_memory
from securefed._runtime.cohort_secrecy import check_cohort_secrecy
from securefed._runtime.sampling_checks import sampler_of, samples_clients
from securefed.algorithms._base import Algorithm
from securefed.algorithms._capabilities import SupportsPrivacyCost, supports
from securefed.defenses._base import Defense, Plan
from securefed.defenses._differential_privacy import FixedSizeSampling
from securefed.errors import ConfigError


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


def check_secret_cohorts(defense: Defense, algorithm: Algorithm[Any, Any], public: Public) -> None:
    """Raise `ConfigError` where the accountant counts on a secret draw, and the algorithm's results reveal it."""
    if isinstance(sampler_of(defense), FixedSizeSampling):
        check_cohort_secrecy(algorithm, public)


def check_stateless_clients(defense: Defense, state: Any) -> None:
    """Raise `ConfigError` where clients sample themselves and a client's `state` depends on its contributions."""
    if samples_clients(defense) and has_memory(state):
        raise ConfigError(
            "poisson(...) leaves contributions out without telling the client, and this algorithm's clients remember "
            "what they sent; use a method without running sums, or a FixedSizeSampling cohort"
        )
