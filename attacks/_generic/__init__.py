"""Attack any algorithm without code made for it: the attacks only run the algorithm's client step.

The audit of a user's own algorithm calls these attacks. Each tries hypothetical rows in a `Replay` of the observed
rounds, which runs the clients' code on them, and compares the messages with the observed ones. A method that has an
attack of its own should be audited by that one too.
"""

from __future__ import annotations

from securefed.attacks._generic.client_replay import Differentiable, Replay
from securefed.attacks._generic.label_regression import LearnedCounts, RegressCounts
from securefed.attacks._generic.low_digits import LowDigits
from securefed.attacks._generic.moment_map import uses_labels
from securefed.attacks._generic.moment_probe import ProbeGram, RecoveredMoments
from securefed.attacks._generic.raw_bits import RawBits
from securefed.attacks._generic.readable_rows import ClearRows
from securefed.attacks._generic.row_fit import FitRows
from securefed.attacks._generic.row_regression import LearnedGram, LearnedRows, RegressRows
from securefed.attacks._generic.time_budget import StepClock, TimeBudget, WallClock, clock, on_clock
from securefed.attacks._generic.unknown_fit import FitUnknown

__all__ = [
    "ClearRows",
    "Differentiable",
    "FitRows",
    "FitUnknown",
    "LearnedCounts",
    "LearnedGram",
    "LearnedRows",
    "LowDigits",
    "ProbeGram",
    "RawBits",
    "RecoveredMoments",
    "RegressCounts",
    "RegressRows",
    "Replay",
    "StepClock",
    "TimeBudget",
    "WallClock",
    "clock",
    "on_clock",
    "uses_labels",
]
