"""What an experiment is and what it hands in: one `Line` per figure of a paper, one `Curve` per plotted series.

A line is judged by the mean of our values over seeds against a range fixed in the source: nobody can find a verdict
by looking at the result. A setting on which the paper is silent, and which was chosen after the fact, is declared
(`stated=False`) and shows in the verdict. A line that misses its range needs evidence why.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import partial
from statistics import mean, stdev
from typing import Any

from securefed._public import require
from securefed.errors import ConfigError

REPRODUCED = "reproduced"
UNSTATED = "reproduced under an unstated setting"
MISSED = "not reproduced"
COMPARISON = "for comparison"
QUICK = "quick run, not judged"


@dataclass(frozen=True)
class Line:
    """One figure of a paper beside ours.

    Attributes:
        where: the place in the paper, "Table 2, HAR".
        quantity: what is counted, "rounds to 85 %, LoSAC".
        setting: everything needed to repeat it.
        printed: the paper's value; None where it prints none (a curve, a claim).
        values: ours, one per seed, finite. A count that was never reached has no value: state the limit in `quantity`
            ("rounds to 85 %, 500 at most") and hand in the limit.
        target: inclusive range of the mean of `values` that counts as reproduced; None leaves an end open. Both ends
            open is allowed only where the paper prints nothing: such a line stands beside the others, unjudged.
        stated: False where the paper is silent on a part of the setting that was chosen after the fact.
        unit: behind the numbers, "" for none.
        evidence: why, required where the verdict is neither `REPRODUCED` nor `COMPARISON`.
    """

    where: str
    quantity: str
    setting: str
    printed: float | None
    values: tuple[float, ...]
    target: tuple[float | None, float | None]
    stated: bool = True
    unit: str = ""
    evidence: str = ""

    def __post_init__(self) -> None:
        about = f"line {self.where!r}, {self.quantity!r}"
        for text in ("where", "quantity", "setting"):
            require(
                bool(getattr(self, text).strip()), f"{about}: `{text}` is empty; a reader could not repeat the figure"
            )
        object.__setattr__(self, "values", _finite(self.values, f"{about}: values"))
        require(len(self.values) > 0, f"{about}: no values; hand in one per seed")
        if self.printed is not None:
            object.__setattr__(self, "printed", _finite([self.printed], f"{about}: printed")[0])
        require(len(self.target) == 2, f"{about}: target must be (low, high), not {self.target!r}")
        low, high = (None if end is None else _finite([end], f"{about}: target")[0] for end in self.target)
        object.__setattr__(self, "target", (low, high))
        require(low is None or high is None or low <= high, f"{about}: target {low} .. {high} is out of order")
        judged = low is not None or high is not None
        require(judged or self.printed is None, f"{about}: the paper prints {self.printed}, so the target needs an end")

    @property
    def mean(self) -> float:
        """Mean over seeds, correctly rounded: three times 0.9 is 0.9, inside a range that ends there."""
        return mean(self.values)

    @property
    def spread(self) -> tuple[float, float]:
        """Lowest and highest value."""
        return min(self.values), max(self.values)

    @property
    def deviation(self) -> float | None:
        """Standard deviation of the sample (n - 1); None for a single value."""
        return stdev(self.values) if len(self.values) > 1 else None

    @property
    def verdict(self) -> str:
        """The verdict of a full run; a quick run's lines are `QUICK`, which `Record.verdict` knows."""
        low, high = self.target
        if low is None and high is None:
            return COMPARISON
        if (low is not None and self.mean < low) or (high is not None and self.mean > high):
            return MISSED
        return REPRODUCED if self.stated else UNSTATED

    @property
    def explained(self) -> bool:
        """Whether evidence is given, or none is due."""
        return bool(self.evidence.strip()) or self.verdict in (REPRODUCED, COMPARISON)


@dataclass(frozen=True)
class Curve:
    """One series of a figure. A series that recurs (same figure, same name) is one curve per seed: mean and band.

    Attributes:
        figure: names the plot and its file, "Fig. 2, HAR".
        series: its label.
        x, y: equally many finite points, x ascending, y positive where `log_y`; y is kept to six digits, which is more
            than a plot shows and keeps the result files small.
    """

    figure: str
    series: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    x_label: str
    y_label: str
    log_y: bool = False

    def __post_init__(self) -> None:
        about = f"curve {self.series!r} of {self.figure!r}"
        require(bool(self.figure.strip() and self.series.strip()), f"{about}: figure and series need names")
        for axis in ("x", "y"):
            object.__setattr__(self, axis, _finite(getattr(self, axis), f"{about}: {axis}"))
        object.__setattr__(self, "y", tuple(float(f"{value:.6g}") for value in self.y))
        require(len(self.x) == len(self.y) > 0, f"{about}: {len(self.x)} x and {len(self.y)} y; needs as many, and one")
        require(all(a < b for a, b in zip(self.x, self.x[1:], strict=False)), f"{about}: x must ascend")
        require(
            not self.log_y or min(self.y) > 0, f"{about}: a logarithmic axis needs y > 0; the lowest is {min(self.y)}"
        )


@dataclass(frozen=True)
class Findings:
    """What an experiment hands in."""

    lines: tuple[Line, ...]
    curves: tuple[Curve, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "lines", tuple(self.lines))
        object.__setattr__(self, "curves", tuple(self.curves))
        require(bool(self.lines), "findings without a line; an experiment states at least one figure")
        names = [(line.where, line.quantity, line.setting) for line in self.lines]
        twice = sorted({name for name in names if names.count(name) > 1})
        require(
            not twice, f"two lines for the same figure and setting: {twice[:1]}; put the seeds into one line's values"
        )
        for figure in {curve.figure for curve in self.curves}:
            axes = {(c.x_label, c.y_label, c.log_y) for c in self.curves if c.figure == figure}
            require(len(axes) == 1, f"figure {figure!r} has different axes: {sorted(axes)}; give each its own figure")

    @property
    def unexplained(self) -> tuple[Line, ...]:
        """Lines that owe evidence; a full run that has some does not pass."""
        return tuple(line for line in self.lines if not line.explained)

    def to_json(self) -> dict[str, Any]:
        """Plain lists and numbers; `from_json` gives an equal object back."""
        return {"lines": [asdict(line) for line in self.lines], "curves": [asdict(curve) for curve in self.curves]}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Findings:
        """The findings that `to_json` wrote.

        Raises:
            ConfigError: a field is missing, unknown or outside its domain.
        """
        try:
            lines = tuple(Line(**{**line, "target": tuple(line["target"])}) for line in content["lines"])
            return cls(lines, tuple(Curve(**curve) for curve in content["curves"]))
        except (KeyError, TypeError) as error:
            raise ConfigError(f"not findings of this ledger ({error}); run the experiment again") from error


@dataclass(frozen=True)
class Context:
    """What an experiment is given: fresh seeds, whether to cut down to a quick run, and where to say how far it is."""

    seeds: tuple[int, ...]
    quick: bool
    progress: Callable[[str], None]

    def __post_init__(self) -> None:
        require(bool(self.seeds), "no seeds; give at least one")
        require(
            len(set(self.seeds)) == len(self.seeds), f"a seed recurs in {self.seeds}; it would count twice in the mean"
        )


@dataclass(frozen=True)
class Experiment:
    """A part of a paper that runs alone, in one process.

    Attributes:
        name: "paper/what", lower case: "losac/table2-har".
        paper: the paper's title; groups the page.
        title: a heading, "Table 2: UCI HAR".
        run: does the work. It may raise: the ledger records the message and goes on with the others.
        core_minutes: of a full run, measured; the longest start first.
        messages: whether the message layer decides a figure, such as bytes or time; then its code counts as well.
        seeds: how many it is run with; one outside the figures that a paper is known for.
        nightly: whether it is too long for `make reproduce`, so that the nightly run makes it.
    """

    name: str
    paper: str
    title: str
    run: Callable[[Context], Findings]
    core_minutes: float
    messages: bool = False
    seeds: int = 3
    nightly: bool = False

    def __post_init__(self) -> None:
        family, _, what = self.name.partition("/")
        plain = self.name == self.name.lower() and self.name.count("/") == 1 and not set(self.name) & set(" .\\:")
        require(bool(family and what and plain), f"experiment name {self.name!r} must read 'paper/what', lower case")
        require(bool(self.paper.strip() and self.title.strip()), f"experiment {self.name!r} needs a paper and a title")
        ok = math.isfinite(self.core_minutes) and self.core_minutes > 0
        require(ok, f"experiment {self.name!r}: core_minutes must be positive and finite, not {self.core_minutes}")
        require(self.seeds >= 1, f"experiment {self.name!r}: seeds must be at least 1, not {self.seeds}")


at_night = partial(Experiment, seeds=1, nightly=True)
"""Make an experiment that is left to the nightly run, with one seed."""


def _finite(values: Iterable[float], what: str) -> tuple[float, ...]:
    numbers = tuple(float(value) for value in values)
    require(all(map(math.isfinite, numbers)), f"{what} must be finite, not {numbers}")
    return numbers
