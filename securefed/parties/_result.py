"""The result of one round of sums."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from securefed._messages import ClientId
from securefed._runtime.open_exchange import ExchangeResult
from securefed._tensors import Array
from securefed.defenses._base import Plan
from securefed.defenses._differential_privacy import PoissonCohort
from securefed.errors import DataError
from securefed.parties._terms import METRIC, UPDATE, WEIGHT, SumTerms
from securefed.parties._update import is_local, like

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class SumResult:
    """What the server has after one round.

    Attributes:
        mean: by name, the weighted mean of the survivors' updates: float64, integers rounded to nearest. Under noise
            the sum over a fixed divisor, the planned cohort, whoever took part. Where differences are summed, the base
            plus the mean difference.
        total: by name, the sum of weight times update (of the differences, where these are summed).
        weight: total weight of the survivors; under noise the fixed divisor.
        metrics: by name, the sum of the survivors' metrics.
        noise: by name, standard deviation of the noise in an entry of `total`; empty without noise.
        survivors: clients in the sum.
        round: number of the round, from 0.
        plan: the defence's plan; `TensorPlan.error` bounds the rounding error of the sums.
        void: why earlier attempts at this round were void.
        refusals: by party, why its message was refused.
    """

    mean: Mapping[str, Array]
    total: Mapping[str, Array]
    weight: float
    metrics: Mapping[str, float]
    noise: Mapping[str, float]
    survivors: tuple[ClientId, ...]
    round: int
    plan: Plan
    void: tuple[str, ...]
    refusals: Mapping[int, str]
    _local: tuple[str, ...] = ()

    def like(self, example: Mapping[str, T]) -> dict[str, T]:
        """Return the mean in the types, dtypes and devices of an example, for `load_state_dict`.

        Args:
            example: arrays or tensors by name; those that the terms keep local are taken from it as they are.

        Raises:
            DataError: the example holds a tensor that was neither summed nor kept local.
        """
        out = {}
        for name, value in example.items():
            if name in self.mean:
                out[name] = like(self.mean[name], value)
            elif is_local(name, self._local):
                out[name] = value
            else:
                raise DataError(
                    f"{name!r} was not summed, and the terms do not keep it local; give the model of the terms"
                )
        return out


def result_of(
    terms: SumTerms, summed: ExchangeResult, base: Mapping[str, Array] | None, round: int, void: tuple[str, ...]
) -> SumResult:
    """Compute means from the released sums.

    Args:
        terms: the terms.
        summed: the completed exchange.
        base: the model that the updates were computed from; `None` without one.
        round: number of the round.
        void: why earlier attempts were void.
    """
    released, survivors = summed.record.released, summed.record.survivors
    scale = terms.largest_weight if terms.weighted else 1.0
    weight = float(released[WEIGHT]) * scale if terms.weighted else _divisor(terms, len(survivors))
    total = {t.name: np.asarray(released[f"{UPDATE}{t.name}"]) * scale for t in terms.tensors}
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = {name: value / weight for name, value in total.items()}
    if terms.differences and base is not None:
        mean = {name: value + base[name] for name, value in mean.items()}
    for tensor in terms.tensors:
        if tensor.integer:
            mean[tensor.name] = np.rint(mean[tensor.name])
    metrics = {name: float(released[f"{METRIC}{name}"]) for name, _ in terms.metrics}
    deviations = summed.record.distortion.released
    noise = {t.name: deviations[f"{UPDATE}{t.name}"] for t in terms.tensors if f"{UPDATE}{t.name}" in deviations}
    return SumResult(
        mean, total, weight, metrics, noise, survivors, round, summed.plan, void, dict(summed.refusals), terms.local
    )


def _divisor(terms: SumTerms, survivors: int) -> float:
    """Return what an unweighted sum is divided by: the survivors, or under noise the planned (or expected) cohort."""
    if terms.plan.privacy is None:
        return float(survivors)
    coins = [link.sampler.rate for link in terms.defense.transforms if isinstance(link, PoissonCohort)]
    return terms.cohort * (coins[0] if coins else 1.0)
