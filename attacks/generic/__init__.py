"""Attacks that know nothing of an algorithm but how to run its client step: for methods nobody has attacked yet.

Each tries hypothetical rows in a `Replay` of the observed rounds and compares what they would have sent with what was
sent. They are as strong as that: a method with an attack of its own should be audited by it too.
"""

from __future__ import annotations

from securefed.attacks.generic.clear import ClearRows
from securefed.attacks.generic.digits import LowDigits
from securefed.attacks.generic.fit import FitRows
from securefed.attacks.generic.labels import LearnedCounts, RegressCounts
from securefed.attacks.generic.moments import uses_labels
from securefed.attacks.generic.probe import Moments, ProbeGram
from securefed.attacks.generic.regression import Learned, LearnedGram, RegressRows
from securefed.attacks.generic.replay import Allowance, Differentiable, Replay

__all__ = [
    "Allowance",
    "ClearRows",
    "Differentiable",
    "FitRows",
    "Learned",
    "LearnedCounts",
    "LearnedGram",
    "LowDigits",
    "Moments",
    "ProbeGram",
    "RegressCounts",
    "RegressRows",
    "Replay",
    "uses_labels",
]
