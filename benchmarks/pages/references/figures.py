"""A reference figure, the measurement that it is held against, and the verdict.

A figure stands as it was printed. Its digits say how exact it is: 5e-10 is anything from 4.5e-10 to 5.5e-10, a bare
power of ten (1e-14) anything that is nearest to it, 3.2e-15 to 3.2e-14. A median inside is "met", on the better side
"beaten", on the other "missed"; "corrected" where what was measured says that the figure cannot be had as stated: it
lies below the error that the messages leave at best, which is computed seed by seed and reached, or a method that is
said to fail fails less.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

EXACT = 1e-6
"""The relative error below which the references call a reconstruction exact."""
FEWEST = 10
"""Seeds below which nothing is judged."""
REACHED = 3.0
"""A median of at most so many times the one that the messages allow has reached it."""
Verdict = Literal["met", "beaten", "corrected", "missed", "not run", "beside"]
Cell = Mapping[str, float | str]


@dataclass(frozen=True)
class Measurement:
    """What one seed gives.

    Attributes:
        name: of its results.      run: one seed's values by name; `seconds` is the attack's processor time.
        seeds: how many there are.
    """

    name: str
    run: Callable[[int], Cell]
    seeds: int = 10


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One figure of the references.

    Attributes:
        where: its document and section.      claim: its own words, short.
        printed: the figure: `1e-14`, `.03-.2`, `4e-4 to 2e-3` (ranges), `9 of 10` (seeds), `exact`; empty for what no
            reference gives, which stands beside the others unjudged.
        setting: what is measured here, and on what.
        measurement, key: whose values are held against it.
        better: which way is better; low for values and high for counts of seeds unless it says otherwise.
        counted: of a count of seeds, which values count.
        unit: of a value.
        allowed: key of the error below which these messages let no attack get, in the seed's own values.
        fails: whether the figure is of a method or setting that is said to fail.
        evidence: what is known about a figure that is missed, or about a setting that is not stated.
    """

    where: str
    claim: str
    printed: str
    setting: str
    measurement: Measurement
    key: str = "error"
    better: Literal["low", "high"] | None = None
    counted: Callable[[float], bool] = lambda value: value < EXACT
    unit: str = ""
    allowed: str = ""
    fails: bool = False
    evidence: str = ""

    @property
    def counts(self) -> bool:
        return " of " in self.printed

    def judge(self, values: Sequence[float], allowed: Sequence[float] = ()) -> Verdict:
        """The verdict on one value for each seed, and on what is `allowed`, where that was computed for all."""
        if len(values) < FEWEST:
            return "not run"
        if not self.printed:
            return "beside"
        low, high = limits(self.printed)
        ours = self.summary(values)
        lower = self.better == "low" or (self.better is None and not self.counts)
        better, worse = (ours < low, ours > high) if lower else (ours > high, ours < low)
        if worse or math.isnan(ours):
            least = float(np.median(allowed)) if len(allowed) == len(values) else 0.0
            return "corrected" if self.fails or (high < least and ours <= REACHED * least) else "missed"
        return "beaten" if better else "met"

    def summary(self, values: Sequence[float]) -> float:
        """The median, or the share of seeds that count."""
        return float(np.mean([self.counted(v) for v in values]) if self.counts else np.median(values))

    def shown(self, values: Sequence[float]) -> str:
        """The summary and the spread in words."""
        if not values:
            return ""
        spread = f"{compact(min(values))} to {compact(max(values))}"
        if self.counts:
            return f"{sum(self.counted(v) for v in values)} of {len(values)} (values {spread})"
        return f"{compact(self.summary(values))}{self.unit and ' ' + self.unit} ({spread})"


def limits(printed: str) -> tuple[float, float]:
    """The range of values that round to what is printed.

    Raises:
        ValueError: it holds no number.
    """
    if printed == "exact":
        return 0.0, EXACT
    if " of " in printed:
        part, whole = map(float, printed.split(" of "))
        return part / whole - 1e-9, part / whole + 1e-9
    numbers = re.findall(r"(?:\d+\.?\d*|\.\d+)(?:e-?\d+)?", printed)
    if not numbers:
        raise ValueError(f"a printed figure holds a number, is 'exact' or 'k of n', not {printed!r}")
    ranges = [_rounding(number) for number in numbers]
    return min(low for low, _ in ranges), max(high for _, high in ranges)


def compact(value: float) -> str:
    """Two digits, as the references write them."""
    if not math.isfinite(value):
        return "none" if value > 0 else "?"
    if value == 0 or 1e-3 <= abs(value) < 1e4:
        text = f"{value:.2g}" if abs(value) < 100 else f"{value:.0f}"
        return text.removeprefix("0") if text.startswith("0.") else text
    mantissa, _, exponent = f"{value:.1e}".partition("e")
    return f"{mantissa.removesuffix('.0')}e{int(exponent)}"


def _rounding(number: str) -> tuple[float, float]:
    mantissa, _, exponent = number.partition("e")
    scale, digits = 10.0 ** int(exponent or 0), len(mantissa.partition(".")[2])
    if exponent and float(mantissa) == 1.0 and not digits:
        return scale / math.sqrt(10), scale * math.sqrt(10)
    half = 0.5 * 10.0**-digits
    return (float(mantissa) - half) * scale, (float(mantissa) + half) * scale
