"""Principal components that few rows dominate: people who stand out in many columns at once, and in none alone.

The second moments G of scaled columns have eigenvectors a with G a = lambda a. Where few rows hold most of the sum of
squares along one, and it most of what these rows are, sqrt(lambda) a is about their row: a published component is then
the profile of a patient.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from securefed._auditing.alerts.domination import SEVERAL, dominating, set_apart
from securefed._auditing.alerts.loose_relations import MOST_COLUMNS
from securefed._tensors import Array

_ALONG: Final = 0.5
"""Share of the few rows' own squares that lies along the component, from which on it tells more than half of them."""
_FEWEST: Final = 3
"""Fewest columns; of two a component says little that the columns do not."""


@dataclass(frozen=True)
class DominatedComponent:
    """A principal component of the scaled columns, and the few rows that dominate it.

    Attributes:
        number: its number, 1 for the largest.
        coefficients: (features,) its direction, in the units of the table.
        offset: its mean over all rows.
        weights: (rows,) the component of the few rows; 0 for others.
        share: of the sum of squares along the component, what they hold.
    """

    number: int
    coefficients: Array
    offset: float
    weights: Array
    share: float


def dominated_components(columns: Array, fewest: int, several: float = SEVERAL) -> Iterator[DominatedComponent]:
    """List the principal components that fewer than `fewest` rows dominate.

    Args:
        columns: (rows, features) a table of numbers.
        fewest: number of rows from which on they are not few.
        several: share of the sum of squares from which on more than one row dominates.
    """
    scale = columns.std(axis=0)
    used = np.flatnonzero(scale > 0)
    if not _FEWEST <= len(used) <= MOST_COLUMNS:
        return
    table = (columns[:, used] - columns[:, used].mean(axis=0)) / scale[used]
    vectors = np.linalg.eigh(table.T @ table)[1][:, ::-1]
    for number, vector in enumerate(vectors.T, 1):
        along = table @ vector
        for count, share in dominating(along, np.ones(len(along), int), fewest, several)[:1]:
            largest = np.argsort(-np.abs(along), kind="stable")[:count]
            if not set_apart(along, count) or np.sum(along[largest] ** 2) < _ALONG * np.sum(table[largest] ** 2):
                continue
            coefficients, weights = np.zeros(columns.shape[1]), np.zeros(len(along))
            coefficients[used] = vector / scale[used]
            weights[largest] = along[largest]
            yield DominatedComponent(number, coefficients, float(columns.mean(axis=0) @ coefficients), weights, share)
