"""Floors of a utility: scores that need no federation, beside which the score of a trained model is to be read.

A floor is what the largest class named for every row scores, a random basis, or the model that the attacked client
trains on its own rows alone, with the same settings and rounds. A model whose score does not exceed its floors gives
the client nothing, and a defence that keeps most of that score keeps nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from securefed._auditing.alerts.checks import imbalanced
from securefed._auditing.cases.case import Case
from securefed._auditing.cases.prepared_data import Prepared
from securefed._auditing.cases.utilities import (
    ACCURACY,
    BALANCED,
    BALANCED_OF_SOME,
    CAPTURED,
    MEAN_SHARE,
    balanced,
    captured_variance,
)
from securefed._runtime.federation import Federation
from securefed.datasets._base import Dataset
from securefed.defenses._chain import chain
from securefed.errors import SecureFedError

MAJORITY: Final = "always naming the largest class"
RANDOM_BASIS: Final = "a random basis"
OWN_ROWS: Final = "a model of the client's own rows alone"
_TARGET: Final = 0
_DRAWS: Final = 5
"""Random bases whose mean score is the floor; one alone scatters by .05 at 5 of 30 columns."""


def for_these_classes(case: Case, data: Dataset) -> Case:
    """Return the case with balanced accuracy in place of accuracy, where a class of the data is a small minority."""
    y = data.y
    if case.utility_name != ACCURACY or y is None or y.ndim != 1 or y.dtype.kind not in "iu":
        return case
    counts = np.unique(y, return_counts=True)[1]
    if not imbalanced(counts):
        return case
    return replace(
        case, utility=balanced(case.utility), utility_name=BALANCED if counts.min() > 1 else BALANCED_OF_SOME
    )


def floors(case: Case, prepared: Prepared, seed: int) -> Mapping[str, float]:
    """Compute the floors of a case's utility on the data of one run.

    Args:
        case: the algorithm's run, with its utility.
        prepared: the data; client 0 is the attacked one.
        seed: the seed of the run.

    Returns:
        The floors by their names in words. None of a utility that is not measured on held-out rows; and no model of the
        client's own rows where the algorithm refuses to run with one client.
    """
    if case.utility_name == MEAN_SHARE:
        return {}
    return dict((*_majority(case, prepared), *_random_basis(case, prepared, seed), *_own_rows(case, prepared, seed)))


def _majority(case: Case, prepared: Prepared) -> Iterator[tuple[str, float]]:
    """Score the class that most rows of the clients have, named for every held-out row."""
    if case.utility_name not in (ACCURACY, BALANCED, BALANCED_OF_SOME) or prepared.test.y is None:
        return
    values, counts = np.unique(np.concatenate([one.labels() for one in prepared.clients]), return_counts=True)
    largest = values[np.argmax(counts)]
    test = prepared.test.labels()
    right = float(np.mean(test == largest))
    if case.utility_name != ACCURACY:  # all rows of one class are right, if any of it are held out
        right = float(right > 0) / len(np.unique(test))
    yield MAJORITY, right


def _random_basis(case: Case, prepared: Prepared, seed: int) -> Iterator[tuple[str, float]]:
    """Score random bases of the algorithm's rank."""
    rank = getattr(case.build(), "rank", None)
    if case.utility_name != CAPTURED or not isinstance(rank, int):
        return
    rng = np.random.default_rng([seed, 0xBA515])
    draws = [{"basis": rng.normal(size=(prepared.public.features, rank))} for _ in range(_DRAWS)]
    yield RANDOM_BASIS, float(np.mean([captured_variance(draw, prepared.test) for draw in draws]))


def _own_rows(case: Case, prepared: Prepared, seed: int) -> Iterator[tuple[str, float]]:
    """Score what the attacked client trains alone: the same algorithm, settings and rounds with one client."""
    public = replace(prepared.public, clients=1, cohort=1, rows=prepared.public.rows[_TARGET : _TARGET + 1])
    own = prepared.clients[_TARGET : _TARGET + 1]
    try:
        result = Federation(case.build(), own, chain(), seed=seed, public=public).run(case.rounds)
        score = float(case.utility(result.output, prepared.test))
    except (SecureFedError, ArithmeticError, ValueError):  # it does not run, or not to the end, with one client
        return
    if np.isfinite(score):
        yield OWN_ROWS, score
