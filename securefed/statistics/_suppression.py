"""Leave small cells out of a table that is released, so that its readers do not find few people in them.

A cell of one person, in a table by diagnosis and ward, is a statement about that person. Suppression protects
against readers of the table only: the server, which holds the sum, sees every cell. Against the server, coarsen levels
before the sum, or add noise.

Totals of rows and columns are often known, from another table or the number of rows. A single cell that is left out of
a line is then the total less the others. So each line that loses a cell loses a second one, and more until the cells
that are left out hold `least` rows together.
"""

from __future__ import annotations

import numpy as np

from securefed._tensors import Array


def small_cells(table: Array, least: int, lines: tuple[int, ...]) -> Array:
    """Find the cells to leave out of a table.

    Args:
        table: numbers of rows.
        least: cells with fewer rows, and not none, are left out; 1 for none.
        lines: axes along which totals may be known.

    Returns:
        Of the table's shape: true where a cell is left out.
    """
    out = (table > 0) & (table < least)
    before = -1
    while before != (before := int(out.sum())):  # a second cell is also in a line of another direction
        for axis in lines:
            counts, hidden = np.moveaxis(table, axis, -1), np.moveaxis(out, axis, -1)
            for place in np.ndindex(counts.shape[:-1]):
                _hide_more(counts[place], hidden[place], least)
    return np.asarray(out)


def _hide_more(counts: Array, hidden: Array, least: int) -> None:
    """Leave more cells out of one line, in place, the smallest first, until its total does not tell one of them."""
    if len(counts) < 2 or not hidden.any():
        return
    order = np.argsort(np.where(counts > 0, counts, np.inf), kind="stable")  # cells of no rows last
    for cell in order[~hidden[order]]:
        if hidden.sum() >= 2 and counts[hidden].sum() >= least:
            return
        hidden[cell] = True
