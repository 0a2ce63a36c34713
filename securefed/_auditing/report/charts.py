"""Draw the report's charts as SVG: leakage against utility, rounds or epsilon, spectra, and two audits compared."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import cycle
from typing import Final, Literal

import numpy as np

from securefed._tensors import Array

RAMP: Final = ("#f3f6f9", "#fde3c8", "#f7b27a", "#e4693f", "#b3201f", "#7a0c16")
"""Colours of leakage 0 to 1, light to dark."""
COLOURS: Final = {"plain": "#b3201f", "secure_aggregation": "#1f5fbf", "paillier": "#5b3fa8", "dp": "#1d8a5b"}
"""By defence, the colour of its dots."""
_LINES = ("#b3201f", "#1f5fbf", "#1d8a5b", "#5b3fa8", "#b8720a", "#0f7f8c", "#a0387f", "#5b6675")
_LABEL_GAP = 13.0  # pixels between labels of lines that end close together
_INK, _SOFT, _GRID = "#1c2430", "#5b6675", "#d9dee5"
_HALVES = (0.0, 0.5, 1.0)
Ends = tuple[float, float]
Triple = tuple[float, float, float]


def colour(leakage: float) -> tuple[str, str]:
    """Return background and text colour of a table's cell."""
    position = min(max(leakage, 0.0), 1.0) * (len(RAMP) - 1)
    low = min(int(position), len(RAMP) - 2)
    ends = [[int(code[i : i + 2], 16) for i in (1, 3, 5)] for code in RAMP[low : low + 2]]
    mixed = [round(a + (b - a) * (position - low)) for a, b in zip(*ends, strict=True)]
    luminance = (0.299 * mixed[0] + 0.587 * mixed[1] + 0.114 * mixed[2]) / 255  # as the eye weighs red, green and blue
    return "#{:02x}{:02x}{:02x}".format(*mixed), _INK if luminance > 0.55 else "#ffffff"


class _Chart:
    """A chart in the making: a plot area with two axes, and the SVG elements so far.

    Args:
        title: heading, and label for readers who cannot see the chart.
        size: (width, height) in pixels.
        margins: (left, top, right, bottom) of the plot area.
        x_ends: values at the left and right ends; exponents of ten if `log_x`.
        y_ends: values at the lower and upper ends; exponents of ten if `log_y`.
        log_x: whether the axis is logarithmic.
        log_y: likewise.
    """

    def __init__(
        self,
        title: str,
        size: tuple[int, int],
        margins: tuple[int, int, int, int],
        x_ends: Ends,
        y_ends: Ends,
        *,
        log_x: bool = False,
        log_y: bool = False,
    ) -> None:
        (self.width, self.height), (self.left, self.top, self.right, self.bottom) = size, margins
        self._x_axis, self._y_axis = (x_ends, log_x), (y_ends, log_y)
        self.parts = [
            f'<svg viewBox="0 0 {self.width} {self.height}" role="img" aria-label="{escape(title)}" '
            'font-family="system-ui, sans-serif">'
        ]

    def x(self, value: float) -> float:
        """Map a value to a horizontal position; values beyond the axis lie at its ends."""
        return self.left + _share(value, *self._x_axis) * (self.width - self.left - self.right)

    def y(self, value: float) -> float:
        """Map a value to a vertical position, likewise."""
        return self.height - self.bottom - _share(value, *self._y_axis) * (self.height - self.bottom - self.top)

    def text(
        self, x: float, y: float, words: str, anchor: str = "start", fill: str = _SOFT, *, head: bool = False
    ) -> None:
        """Add text at a position in pixels."""
        font = "13" if head else "11"
        self.parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" font-size="{font}" font-weight="{600 if head else 400}" '
            f'text-anchor="{anchor}" fill="{_INK if head else fill}">{escape(words)}</text>'
        )

    def heading(self, title: str, note: str) -> None:
        """Add a title and a line below it."""
        self.text(8, 16, title, head=True)
        self.text(8, 33, note)

    def rows(self, ticks: Iterable[tuple[float, str]]) -> None:
        """Add horizontal lines of the grid with their labels."""
        for value, label in ticks:
            self.segment((self.left, self.y(value)), (self.width - self.right, self.y(value)), _GRID)
            self.text(self.left - 6, self.y(value) + 4, label, "end")

    def columns(self, ticks: Iterable[tuple[float, str]], name: str) -> None:
        """Add labels below the plot area, and the name of the axis."""
        for value, label in ticks:
            self.text(self.x(value), self.height - self.bottom + 16, label, "middle")
        self.text((self.left + self.width - self.right) / 2, self.height - 8, name, "middle")

    def segment(self, start: Ends, end: Ends, colour: str, more: str = "") -> None:
        """Add a straight line between two positions in pixels."""
        (a, b), (c, d) = start, end
        self.parts.append(f'<line x1="{a:.1f}" y1="{b:.1f}" x2="{c:.1f}" y2="{d:.1f}" stroke="{colour}"{more}/>')

    def bar(self, value: float, low: float, high: float, colour: str, more: str = "") -> None:
        """Add an interval above a value of the x axis."""
        self.segment((self.x(value), self.y(low)), (self.x(value), self.y(high)), colour, f' stroke-width="2"{more}')

    def curve(self, xs: Sequence[float], ys: Sequence[float], colour: str) -> None:
        """Add a line through points."""
        points = self.points(xs, ys)
        self.parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')

    def points(self, xs: Iterable[float], ys: Iterable[float]) -> str:
        """Write points as SVG does."""
        return " ".join(f"{self.x(a):.1f},{self.y(b):.1f}" for a, b in zip(xs, ys, strict=True))

    def circle(self, x: float, y: float, radius: float, style: str, title: str = "") -> None:
        """Add a circle at a pair of values; `title` shows under the pointer."""
        about = f"<title>{escape(title)}</title>" if title else ""
        self.parts.append(f'<circle cx="{self.x(x):.1f}" cy="{self.y(y):.1f}" r="{radius}" {style}>{about}</circle>')

    def __str__(self) -> str:
        return "".join(self.parts) + "</svg>"


def _share(value: float, ends: Ends, log: bool) -> float:
    """Map a value to its share of the way between two ends, from 0 to 1."""
    low, high = ends
    if log:
        value = math.log10(value) if value > 0 and math.isfinite(value) else low
    return (min(max(value, low), high) - low) / max(high - low, 1e-9)


@dataclass(frozen=True)
class Dot:
    """One defence in a panel.

    Attributes:
        defense: its name.
        utility: of the final model.
        leakage: mean.
        low: lower end of its interval.
        high: upper end.
        known: whether the attacks succeeded, so that `leakage` means something.
    """

    defense: str
    utility: float
    leakage: float
    low: float
    high: float
    known: bool = True


def panel(title: str, utility_name: str, dots: Sequence[Dot]) -> str:
    """Draw leakage against utility: each defence is a dot with its interval, hollow if its leakage is unknown.

    Utility runs from 0 to 1, or between whole numbers around values beyond.
    """
    known = [dot.utility for dot in dots if math.isfinite(dot.utility)]
    ends = min(0.0, *map(math.floor, known), 0.0), max(1.0, *map(math.ceil, known), 1.0)
    chart = _Chart(f"{title}: leakage against {utility_name}", (280, 210), (38, 32, 12, 40), ends, (0, 1))
    chart.text(38, 15, title, head=True)
    chart.rows((tick, f"{tick:g}") for tick in _HALVES)
    across = [ends[0] + tick * (ends[1] - ends[0]) for tick in _HALVES]
    for value in across:
        chart.segment((chart.x(value), chart.y(0)), (chart.x(value), chart.y(1)), _GRID)
    chart.columns([(value, f"{value:g}") for value in across], utility_name)
    for index, dot in enumerate(dots):
        fill, radius = COLOURS[dot.defense], max(5, 9 - 2 * index)  # dots on top of each other stay visible as rings
        if dot.known:
            chart.bar(dot.utility, dot.low, dot.high, fill)
        style = f'fill="{fill}" stroke="#fff"' if dot.known else f'fill="#fff" stroke="{fill}" stroke-dasharray="3 2"'
        leak = f"leakage {dot.leakage:.3f}" if dot.known else "leakage unknown"
        words = f"{dot.defense}: {leak}, utility {dot.utility:.3f}"
        chart.circle(dot.utility, dot.leakage, radius, style, words)
    return str(chart)


def curve(title: str, note: str, series: Mapping[str, Mapping[str, Sequence[float]]]) -> str:
    """Draw errors or condition numbers against rounds, on a logarithmic axis.

    Args:
        title: of the chart.
        note: below the title.
        series: by name, lists `rounds`, `middle`, `low` and `high` of equal length.
    """
    shown = {name: lines for name, lines in series.items() if len(lines["rounds"])}
    values = [
        v for lines in shown.values() for key in ("low", "high") for v in lines[key] if v > 0 and math.isfinite(v)
    ]
    if not values:
        return ""
    low = math.floor(math.log10(min(values)))
    high = max(math.ceil(math.log10(max(values))), low + 1)
    last = int(max(max(lines["rounds"]) for lines in shown.values()))
    chart = _Chart(title, (560, 300), (58, 48, 178, 42), (1, max(last, 2)), (low, high), log_y=True)
    chart.heading(title, note)
    chart.rows(_powers(low, high, 6))
    chart.columns(((tick, str(tick)) for tick in range(1, last + 1, max(1, round(last / 8)))), "rounds seen")
    labels: list[tuple[float, str, str]] = []
    for (name, lines), fill in zip(shown.items(), cycle(_LINES), strict=False):
        rounds = lines["rounds"]
        ring = chart.points([*rounds, *rounds[::-1]], [*lines["high"], *lines["low"][::-1]])
        chart.parts.append(f'<polygon points="{ring}" fill="{fill}" fill-opacity=".15"/>')
        chart.curve(rounds, lines["middle"], fill)
        labels.append((chart.y(lines["middle"][-1]), name, fill))
    lowest = -math.inf
    for position, name, fill in sorted(labels):
        lowest = max(position, lowest + _LABEL_GAP)
        chart.text(chart.width - chart.right + 8, lowest + 4, name, fill=fill)
    return str(chart)


def spectrum(title: str, truth: Array, estimate: Array, most: int = 24) -> str:
    """Draw the leading eigenvalues of two symmetric matrices: the secret's as rings, the reconstruction's as dots.

    Eigenvalues below 1e-8 of the largest are rounding errors, and are left out.
    """
    true, found = (np.linalg.eigvalsh((m + m.T) / 2)[::-1][:most] for m in (truth, estimate))
    top = float(true[0])
    if not top > 0:
        return ""
    floor = top * 1e-8
    low = math.floor(math.log10(float(true[true > floor].min())))
    high = math.ceil(math.log10(top) + 1e-9)
    chart = _Chart(title, (560, 230), (58, 48, 20, 36), (0, len(true)), (low, high), log_y=True)
    chart.heading(title, "eigenvalues, largest first: grey rings the secret's, red dots the reconstruction's")
    chart.rows(_powers(low, high, 5))
    for values, radius, style in ((true, 5, f'fill="none" stroke="{_SOFT}"'), (found, 2.5, f'fill="{_LINES[0]}"')):
        for index, value in enumerate(values):
            if value > floor:
                chart.circle(index + 0.5, float(value), radius, style)
    chart.columns((), f"first {len(true)} of {len(truth)}")
    return str(chart)


def tradeoff(
    title: str, utility_name: str, epsilons: Sequence[float], leakages: Sequence[Triple], utilities: Sequence[float]
) -> str:
    """Draw leakage (mean, low, high) and utility against epsilon, which is logarithmic."""
    ends = math.log10(min(epsilons)), math.log10(max(epsilons))
    chart = _Chart(title, (560, 230), (58, 48, 140, 40), ends, (0, 1), log_x=True)
    chart.heading(title, "what leaves the aggregator; below 0 is drawn at 0")
    chart.rows((tick, f"{tick:g}") for tick in _HALVES)
    chart.columns([(epsilon, f"{epsilon:g}") for epsilon in epsilons], "epsilon")
    for epsilon, (_, low, high) in zip(epsilons, leakages, strict=True):
        chart.bar(epsilon, low, high, _LINES[0], ' stroke-opacity=".5"')
    means = [mean for mean, _, _ in leakages]
    for name, fill, values, shift in (("leakage", _LINES[0], means, 12), (utility_name, _LINES[1], utilities, -6)):
        chart.curve(epsilons, values, fill)
        chart.text(chart.width - chart.right + 8, chart.y(values[-1]) + shift, name, fill=fill)
    return str(chart)


def _powers(low: int, high: int, most: int) -> list[tuple[float, str]]:
    """List at most about `most` powers of ten between two exponents, with their labels."""
    return [(10.0**k, f"1e{k}") for k in range(low, high + 1, max(1, math.ceil((high - low) / most)))]


def dumbbell(
    label: str, leaks: Sequence[Triple], known: Sequence[bool], look: Literal["worse", "better", "same"]
) -> str:
    """Draw the leakages of two audits on one axis from 0 to 1: the earlier above, the later below.

    The page's style sheet colours them by the classes `dumbbell`, `before`, `after` and `unknown` (dashed).

    Args:
        label: text for readers who cannot see the chart.
        leaks: (mean, low, high) of both audits.
        known: whether each is known.
        look: how the change is coloured.
    """
    width, height, edge = 220, 34, 8

    def x(value: float) -> float:
        return edge + min(max(value, 0.0), 1.0) * (width - 2 * edge)

    parts = [
        f'<svg class="dumbbell {look}" viewBox="0 0 {width} {height}" role="img" aria-label="{escape(label)}">',
        *(f'<line class="grid" x1="{x(t):.1f}" x2="{x(t):.1f}" y1="2" y2="{height - 2}"/>' for t in _HALVES),
        f'<line class="moved" x1="{x(leaks[0][0]):.1f}" y1="10" x2="{x(leaks[1][0]):.1f}" y2="24"/>',
    ]
    for name, y, (mean, low, high), sure in zip(("before", "after"), (10, 24), leaks, known, strict=True):
        css = name if sure else f"{name} unknown"
        parts.append(f'<line class="{css}" x1="{x(low):.1f}" x2="{x(high):.1f}" y1="{y}" y2="{y}"/>')
        parts.append(f'<circle class="{css}" cx="{x(mean):.1f}" cy="{y}" r="5"/>')
    return "".join(parts) + "</svg>"
