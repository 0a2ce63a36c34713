"""The table of sentences of the alerts: the risk of each kind, what to do, and a sentence for many columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from securefed._auditing.alerts import alert as kinds

NAMED: Final = 6
"""Most names of a list that are shown; the others are counted."""
_ONE_OR_FEW: Final = "over one row that is this person's data, over a few their mean"

OPENS: Final[Mapping[str, str]] = {
    kinds.FEW_ROWS: "Any sum over so few rows is nearly the rows: no protection of sums hides them.",
    kinds.SMALL_PARTY: (
        "Means, counts and second moments of so few rows are nearly the rows themselves. Its leak stands on a line of "
        "its own; let it join with another party, or leave it out."
    ),
    kinds.RARE_CATEGORY: (
        "A second moment, a table of counts or a gradient holds the sum of exactly these rows, also in a sum over all "
        f"parties: {_ONE_OR_FEW}. Merge the category with another, or leave the column out."
    ),
    kinds.COMBINATION: (
        "Second moments, tables of counts and gradients of these columns, added or subtracted, hold the sum of exactly "
        f"these rows, also in a sum over all parties: {_ONE_OR_FEW}. Merge these people with another category, or "
        "leave one of the columns out."
    ),
    kinds.SMALL_CLASS: (
        f"Class means and gradients hold the sum of exactly these rows: {_ONE_OR_FEW}. Merge the class with another."
    ),
    kinds.DOMINATED: (
        "Products of this column with the others are nearly that row times one number, so that a second moment, also "
        "one over all parties, gives the row away. Take the logarithm or clip the column before training."
    ),
    kinds.KEY: "It looks like a key: where the column leaks, each row is named. Leave it out; no model learns from it.",
    kinds.REPEATED: (
        "Where they are one person's, noise that hides a row hides that person less, epsilon for a row is not epsilon "
        "for the person, and held-out rows may be known from training. Keep one of each, or count people and not rows."
    ),
    kinds.MINORITY: (
        "Accuracy says little then: naming the largest class always is right for all other rows. Utilities here are "
        "balanced over the classes where the class has less than a twentieth of the rows; and few people are in it."
    ),
    kinds.MISSING: "How the gaps are filled decides what these rows say; fill or drop them at every party alike.",
    kinds.NOT_SCALED: (
        "Training and leakage are those of the largest columns; scale them, or give --standardise (standardise=True)."
    ),
    kinds.CONSTANT: (
        "A constant other than 0 turns second moments into the sums of every other column; leave the column out."
    ),
    kinds.DUPLICATE: "They give an attack more equations for the same unknowns; leave all but one out.",
}
"""By kind of alert, the risk and what to do."""
OF_A_CODE: Final = (
    "If these numbers are codes of categories: columns of 0 and 1, a lookup table (embedding) or a table of counts "
    f"made of them holds the sum of exactly these rows, also in a sum over all parties: {_ONE_OR_FEW}. Merge the rare "
    "codes with others, or leave the column out."
)
"""The risk of a rare value in a column of numbers, and what to do."""
OF_FEW_LARGE: Final = (
    "Products of this column with the others are nearly a weighted mean of these rows, so that a second moment, also "
    "one over all parties, gives it away. Take the logarithm or clip the column before training."
)
"""The risk of a column that several rows dominate together, and what to do."""
OF_FAR_OFF: Final = (
    "Second moments of these columns, added or subtracted, are nearly a weighted sum of these rows, also over all "
    f"parties: {_ONE_OR_FEW}. Correct the values, or leave one of the columns out."
)
"""The risk of few rows that are far off what columns say of each other, and what to do."""
OF_A_PROFILE: Final = (
    "That component is nearly what these rows are in many columns at once, so that second moments over all parties, "
    "and the published component itself, give them away. Take logarithms or clip the columns before training."
)
"""The risk of a principal component that few rows dominate, and what to do."""
TOGETHER: Final[Mapping[str, str]] = {
    kinds.RARE_CATEGORY: "{number} columns have values that few rows hold, the rarest {least}: {names}.",
    kinds.COMBINATION: "{number} combinations of columns single few rows out, the rarest {least}: {names}.",
    kinds.DOMINATED: "In {number} columns one row, or a few, hold most of the sum of squares: {names}.",
    kinds.KEY: "{number} columns have another value in each row: {names}.",
    kinds.MISSING: "{number} columns have gaps, in {least} at least: {names}.",
    kinds.CONSTANT: "{number} columns are constant: {names}.",
    kinds.DUPLICATE: "{number} groups of columns hold the same values: {names}.",
}
"""By kind, the sentence for more columns than get an alert each."""


def listed(names: Sequence[str]) -> str:
    """List names; of many the first, and how many more there are."""
    if len(names) > NAMED:
        return f"{', '.join(names[:NAMED])} and {len(names) - NAMED} more"
    return ", ".join(names[:-1]) + f" and {names[-1]}" if len(names) > 1 else "".join(names)
