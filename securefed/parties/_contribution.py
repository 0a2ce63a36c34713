"""Read an update of the caller's training loop, and turn it into what a client contributes to a sum."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from securefed._runtime.dp_sgd import Training
from securefed._runtime.ledger import Ledger
from securefed._tensors import Array
from securefed.errors import ConfigError, DataError
from securefed.parties._terms import METRIC, UPDATE, WEIGHT, SumTerms
from securefed.parties._update import is_local, read_update, without_wrapper

Trained = Training | int | Callable[[], Training | int]
"""A training by DP-SGD that a ledger counts, its number there, or a function that returns either once it has ended."""
_LOG = logging.getLogger("securefed.client")


def structure(update: Mapping[str, Any], terms: SumTerms) -> dict[str, Array]:
    """Read an update; raise `DataError` where names, shapes or types are not those of the terms."""
    arrays = read_update(update, terms.shapes, "the update")
    update = without_wrapper(update, arrays)
    for tensor in terms.tensors:
        if tensor.integer and arrays[tensor.name].dtype.kind == "f":
            _LOG.warning(
                "%r is of type %s, and the terms say integers, whose mean is rounded; where it must not be, make "
                "the terms from an example of this type, such as 0.0 for 0", tensor.name, arrays[tensor.name].dtype,
            )  # fmt: skip
    for name in update:
        if name not in arrays and not is_local(name, terms.local):
            raise DataError(f"the update holds {name!r}, which the terms neither sum nor keep local")
    return arrays


def contribution(
    terms: SumTerms,
    given: Mapping[str, Array],
    weight: float,
    metrics: Mapping[str, float],
    base: Mapping[str, Array] | None,
) -> dict[str, Array]:
    """Return what a client contributes for an update x of weight w.

    It holds (w / W) x, or (w / W) (x - base) where differences are summed, beside the weight w / W and the metrics. W
    is the largest weight that the terms allow. Without weights, w / W counts as 1.

    Args:
        terms: the terms of the sum.
        given: the update by name, as `structure` returns it.
        weight: its weight w.
        metrics: the client's metrics, by name.
        base: the model that the update was computed from; `None` without one.

    Raises:
        DataError: a weight below 0 or not finite.
    """
    if not 0 <= weight < math.inf:
        raise DataError(f"weight must be finite and at least 0; got {weight!r}")
    relative = weight / terms.largest_weight if terms.weighted else 1.0
    out: dict[str, Array] = {}
    for name, value in given.items():
        begin = base[name] if terms.differences and base is not None else None
        entries = value if begin is None else np.subtract(value, begin, dtype=np.float64)
        out[f"{UPDATE}{name}"] = np.multiply(entries, relative, dtype=np.float64)
    out |= {f"{METRIC}{name}": np.asarray(metrics[name]) for name, _ in terms.metrics}
    if terms.weighted:
        out[WEIGHT] = np.asarray(relative)
    return out


def build_nothing(terms: SumTerms, base: Mapping[str, Array] | None) -> None:
    """Take the time of building a contribution, where the update failed and the server must not learn that."""
    zeros = {tensor.name: np.broadcast_to(0 if tensor.integer else 0.0, tensor.shape) for tensor in terms.tensors}
    contribution(terms, structure(zeros, terms), 0.0, {name: 0.0 for name, _ in terms.metrics}, base)


def number(value: Any, what: str) -> float:
    """Return a number as a float; raise `DataError` for another type, as for a tensor of other names."""
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError) as error:  # torch raises the last for a tensor of several entries
        raise DataError(f"{what} must be a number; got {value!r}") from error


def given_weight(terms: SumTerms, weight: float | Callable[[], float] | None) -> float | Callable[[], float]:
    """Read the weight that the caller gives, 1 by default, or keep a function that returns it.

    Where the terms sum no weights, any that is given is refused, 1 too: a client that refused a weight of 2 and
    answered with a weight of 1 would show the server which of them it has.

    Raises:
        ConfigError: a weight is given, and the terms sum none.
        DataError: it is no number.
    """
    if weight is None:
        return 1.0
    if not terms.weighted:
        remedy = (
            "under noise or a clip every client weighs the same: leave weight out"
            if terms.plan.privacy is not None
            else "make them with SumTerms.like(..., largest_weight=...), the largest weight of a client, or leave "
            "weight out"
        )
        raise ConfigError(f"a weight is given, and these terms ({terms.defense.name}) sum none; {remedy}")
    return weight if callable(weight) else number(weight, "weight")


def given_metrics(terms: SumTerms, metrics: Mapping[str, float]) -> dict[str, float]:
    """Read the metrics; raise `ConfigError` unless they are those of the terms, `DataError` unless they are numbers."""
    wanted = {name for name, _ in terms.metrics}
    if set(metrics) != wanted:
        raise ConfigError(f"the terms name the metrics {sorted(wanted)}; got {sorted(metrics)}")
    return {name: number(value, f"metric {name!r}") for name, value in metrics.items()}


def check_trained(terms: SumTerms, ledger: Ledger | None, trained: Trained | None, *, ended: bool = False) -> None:
    """Check that the client's ledger counts the training of an update, within its limits, and that it is sent alone.

    Args:
        terms: the terms of the sum.
        ledger: the client's.
        trained: the training; `None` for an update of another kind.
        ended: whether the update was computed, so that a function that returns the training can be called.

    Raises:
        ConfigError: the ledger does not count it, or something else of the rows is summed beside the model.
        BudgetSpent: the ledger is beyond a limit.
    """
    if trained is None:
        return
    if ledger is None:
        raise ConfigError("trained= needs the ledger that counts the training: SumClient(..., ledger=ledger)")
    if terms.metrics:
        raise ConfigError(
            f"the metrics {[name for name, _ in terms.metrics]} are sent without noise, beside an update that DP-SGD "
            "made private; make terms without metrics, or leave trained out"
        )
    if not callable(trained) or ended:
        ledger.check_training(trained() if callable(trained) else trained)
