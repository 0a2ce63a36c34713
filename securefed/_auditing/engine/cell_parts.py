"""The parts of a cell: its runs, the figures of its attack's family, what was read, and what the attack cannot tell.

A cell (`results.Cell`) is one attack on one secret in one view, over all runs. Each family of attacks has figures of
its own: attacks that estimate data have errors, and the rank and condition of the system that they solve; attacks that
recognise records have a rate of true positives.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class RunCounts:
    """How many runs a cell rests on, and what they showed apart from the mean.

    Attributes:
        asked: number of seeds of the audit; `Cell.leakage.seeds` of them could be attacked.
        failed: number of runs in which the attack returned nothing finite.
        exposed: number of runs that leaked .9 or more, which a mean may hide.
        highest: leakage of the run that leaked most.
        explained: share of the runs whose messages the estimate explains; NaN where the attack cannot tell. Below .8
            the search failed too often for its silence to mean anything.
    """

    asked: int = 0
    failed: int = 0
    exposed: int = 0
    highest: float = math.nan
    explained: float = math.nan


@dataclass(frozen=True)
class EstimateFigures:
    """Figures of attacks that estimate data, as means over the runs.

    Attributes:
        error: mean relative error.
        error_median: median relative error.
        baseline_error: mean relative error of the guess.
        residual: mean relative residual of the messages under the estimates.
        rank: mean rank of the attack's linear system.
        unknowns: the number of unknowns of that system.
        condition: mean condition number of that system.
    """

    error: float = math.nan
    error_median: float = math.nan
    baseline_error: float = math.nan
    residual: float = math.nan
    rank: float = 0.0
    unknowns: int = 0
    condition: float = math.nan


@dataclass(frozen=True)
class MembershipFigures:
    """Figures of attacks that tell whether a record took part.

    Attributes:
        tpr: mean true positive rate at 1 % false positives.
    """

    tpr: float = math.nan


Figures = EstimateFigures | MembershipFigures


@dataclass(frozen=True)
class Read:
    """Findings of single runs, which a mean may hide.

    Attributes:
        client: target of the run that leaked most.
        whole: whether some run gave all of the secret away.
        part: a column, row or person that was read in some run; empty if none, or if all rows were.
        columns: names of the columns that were read (`column_scores`), the best known first.
    """

    client: int = 0
    whole: bool = False
    part: str = ""
    columns: tuple[str, ...] = ()


@dataclass(frozen=True)
class Reach:
    """The limits of an attack on the secret.

    Attributes:
        derived: whether the attack sought another secret, from which this one follows.
        added: whether the cell stands for unprotected messages, though the attack was made on their sums
            (`plain_sums`).
        open: what the messages cannot determine of the secret, where the attack explains them and nothing was found;
            the rest of the secret may be known. Empty elsewhere.
        bound: why no attack on this view can do better than the guess; empty where that is not known.
        without: name of the strongest attack on the secret, where it did not run in this view; empty if it ran.
    """

    derived: bool = False
    added: bool = False
    open: str = ""
    bound: str = ""
    without: str = ""
