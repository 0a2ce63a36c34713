"""Compute the sums of the columns of pooled rows that the second moments G of these rows show, or that are public.

A sum over all rows but few needs them: the rows without any category of a group are all rows less those with one. The
attacker has three sources, in this order:

    a weighted sum of columns that is the same number in every row: a constant, categories of which every row has one,
    percentages that add up to 100, a year of birth and an age. With X a = 1 the sums are X^T 1 = X^T X a = G a
    a column that was centred: 0
    a column of two known values: its own second moment shows how many rows have each
"""

from __future__ import annotations

from typing import Final

import numpy as np

from securefed._tensors import Array

_OFF: Final = 0.05
"""Most that a weighted sum of columns may differ from 1, as the norm over all rows: sums of columns are then off by
about this part of one typical row. Percentages of 300 rows that are rounded to a tenth have .01."""
_CENTRED: Final = 3.0
"""Standard errors up to which the mean of a column counts as 0: rows that were centred with others held out."""
_EXACT: Final = 1e-9
"""Part of a column's largest entry up to which its mean is 0 by rounding."""
_SCALED: Final = 2.0
"""Factor up to which the deviation of a column that was scaled with other rows may differ from 1."""
_ROWS_PER_COLUMN: Final = 2
"""Rows for each column from which on a weighted sum that is the same in every row is no chance of few rows."""


def column_sums(gram: Array, rows: Array) -> Array:
    """Return the sums of the columns as the attacker knows them, (features,); NaN where it does not.

    Args:
        gram: the estimated second moments.
        rows: the rows that they sum over, by which it is told what is public of the columns.
    """
    same = same_in_every_row(rows)
    if same is not None:
        return np.asarray(gram @ same)
    known = np.full(rows.shape[1], np.nan)
    known[is_centred(rows)] = 0.0
    for place in np.flatnonzero(np.isnan(known)):
        values = np.unique(rows[:, place])
        if len(values) == 2 and abs(values[0]) != abs(values[1]):
            low, high = values
            has = (gram[place, place] - len(rows) * low**2) / (high**2 - low**2)
            known[place] = len(rows) * low + has * (high - low)
    return known


def same_in_every_row(rows: Array) -> Array | None:
    """Return coefficients (features,) of a weighted sum of columns that is 1 in every row; `None` for none."""
    size = np.sqrt((rows**2).mean(axis=0))
    if len(rows) < _ROWS_PER_COLUMN * rows.shape[1] or not size.any():
        return None
    size[size == 0] = 1.0
    found = np.linalg.lstsq(rows / size, np.ones(len(rows)), rcond=1e-10)[0]
    off = np.linalg.norm(rows / size @ found - 1)
    return np.asarray(found / size) if off <= _OFF else None


def is_centred(rows: Array) -> Array:
    """Tell of each column whether it was centred: its mean is 0, exactly or as in a column scaled with more rows.

    The mean of a column as it stands may be near 0 beside its scatter, as that of a count that is 0 in nearly all rows.
    """
    means, spread = np.abs(rows.mean(axis=0)), rows.std(axis=0)
    exact = means <= _EXACT * np.abs(rows).max(axis=0)
    near = (means <= _CENTRED * spread / np.sqrt(len(rows))) & (rows.min(axis=0) < 0) & (rows.max(axis=0) > 0)
    return np.asarray(exact | (near & (spread > 1 / _SCALED) & (spread < _SCALED)))
