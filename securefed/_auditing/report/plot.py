"""Draw one plot as SVG: axes, ticks, lines, bands, bars and points, in the colours of the page around it.

`charts` draws with it. The title, the note and the names of the lines stand around the drawing as
text of the page, which wraps and keeps its size on narrow screens; the drawing itself holds the numbers of its axes
alone. Colours are the palette's custom properties, so that one drawing serves light and dark pages and print.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

from securefed._auditing.report.palette import SERIES

Ends = tuple[float, float]
"""Two ends of an axis, or the (x, y) of a point in pixels."""
WIDTH: Final = 360
"""Natural width in pixels: that of a telephone, so that no drawing is scaled below its font's size."""
HEIGHT: Final = 210
"""Natural height in pixels."""
DASHES: Final = ("", "7 3", "2 3", "9 3 2 3", "12 4")
"""Dashes of the lines in turn: a second mark beside the colour."""


def series_colour(index: int) -> str:
    """Name the colour of a line."""
    return f"var(--series-{index % SERIES})"


class Plot:
    """A drawing in the making: a plot area with two axes, and the SVG elements so far.

    Args:
        label: what the drawing shows, with its main figures, for readers who cannot see it.
        x_ends: values at the left and right ends; exponents of ten if `log_x`.
        y_ends: values at the lower and upper ends; exponents of ten if `log_y`.
        log_x: whether the axis is logarithmic; the methods take the values themselves all the same.
        log_y: the same for the vertical axis.

    Attributes:
        parts: the SVG so far; `str` of the plot closes it.
    """

    _LEFT, _TOP, _RIGHT, _BOTTOM = 46, 8, 12, 38  # room for tick labels of five characters and a name below

    def __init__(self, label: str, x_ends: Ends, y_ends: Ends, *, log_x: bool = False, log_y: bool = False) -> None:
        self._x_axis, self._y_axis = (x_ends, log_x), (y_ends, log_y)
        self.parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}">']

    def x(self, value: float) -> float:
        """Map a value to a horizontal position; values beyond the axis lie at its ends."""
        return self._LEFT + _share(value, *self._x_axis) * (WIDTH - self._LEFT - self._RIGHT)

    def y(self, value: float) -> float:
        """Map a value to a vertical position, likewise."""
        return HEIGHT - self._BOTTOM - _share(value, *self._y_axis) * (HEIGHT - self._BOTTOM - self._TOP)

    def rows(self, ticks: Iterable[tuple[float, str]]) -> None:
        """Add horizontal lines of the grid with their labels; a label `1e-3` becomes a power of ten."""
        for value, label in ticks:
            self._line((self._LEFT, self.y(value)), (WIDTH - self._RIGHT, self.y(value)), "stroke:var(--line)")
            self._text(self._LEFT - 6, self.y(value) + 4, label, "end")

    def columns(self, ticks: Iterable[tuple[float, str]], name: str) -> None:
        """Add labels below the plot area, and the name of the axis."""
        bottom = HEIGHT - self._BOTTOM
        for value, label in ticks:
            self._line((self.x(value), bottom), (self.x(value), bottom + 4), "stroke:var(--soft)")
            self._text(self.x(value), bottom + 17, label, "middle")
        self._line((self._LEFT, bottom), (WIDTH - self._RIGHT, bottom), "stroke:var(--soft)")
        self._text((self._LEFT + WIDTH - self._RIGHT) / 2, HEIGHT - 4, name, "middle")

    def bar(self, value: float, low: float, high: float, colour: str) -> None:
        """Add a vertical line from `low` to `high` at a value of the x axis: an interval."""
        ends = (self.x(value), self.y(low)), (self.x(value), self.y(high))
        self._line(*ends, f"stroke:{colour};stroke-width:2;stroke-opacity:.55")

    def band(self, xs: Sequence[float], lows: Sequence[float], highs: Sequence[float], colour: str) -> None:
        """Add the range between two curves: a polygon along the upper one and back along the lower."""
        ring = self._points([*xs, *xs[::-1]], [*highs, *lows[::-1]])
        self.parts.append(f'<polygon points="{ring}" style="fill:{colour};fill-opacity:.14"/>')

    def curve(self, xs: Sequence[float], ys: Sequence[float], colour: str, dash: str = "") -> None:
        """Add a line through points; of a single point, a dot."""
        if len(xs) == 1:
            self.circle(xs[0], ys[0], 3.5, f"fill:{colour}")
        dashes = f";stroke-dasharray:{dash}" if dash else ""
        style = f"fill:none;stroke:{colour};stroke-width:2;stroke-linejoin:round{dashes}"
        self.parts.append(f'<polyline points="{self._points(xs, ys)}" style="{style}"/>')

    def circle(self, x: float, y: float, radius: float, style: str) -> None:
        """Add a circle at a pair of values, with a radius in pixels."""
        self.parts.append(f'<circle cx="{self.x(x):.1f}" cy="{self.y(y):.1f}" r="{radius}" style="{style}"></circle>')

    def _text(self, x: float, y: float, words: str, anchor: str) -> None:
        """Add text at a pixel; `1eK` becomes 10 with the exponent K raised."""
        base, power = words.split("e") if words.startswith("1e") else (words, "")
        shown = f'10<tspan dy="-4" font-size="9">{int(power)}</tspan>' if power and base == "1" else escape(words)
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{shown}</text>')

    def _line(self, start: Ends, end: Ends, style: str) -> None:
        (a, b), (c, d) = start, end
        self.parts.append(f'<line x1="{a:.1f}" y1="{b:.1f}" x2="{c:.1f}" y2="{d:.1f}" style="{style}"/>')

    def _points(self, xs: Iterable[float], ys: Iterable[float]) -> str:
        return " ".join(f"{self.x(a):.1f},{self.y(b):.1f}" for a, b in zip(xs, ys, strict=True))

    def __str__(self) -> str:
        return "".join(self.parts) + "</svg>"


def figure(title: str, note: str, plot: Plot, names: Sequence[str] = ()) -> str:
    """Put a plot below its title and note, and above the names of its lines.

    Args:
        title: the title of the figure.
        note: what the figure shows; empty for none.
        plot: the drawing.
        names: the names of the lines, in the order of their colours and dashes.
    """
    keys = "".join(f"<li>{_key(index)}{escape(name)}</li>" for index, name in enumerate(names))
    legend = f'<ul class="keys">{keys}</ul>' if names else ""
    said = f"<span>{escape(note)}</span>" if note else ""
    return f'<figure class="chart"><figcaption><b>{escape(title)}</b>{said}</figcaption>{plot}{legend}</figure>'


def powers(low: int, high: int, most: int) -> list[tuple[float, str]]:
    """List powers of ten from 10^low to 10^high with their labels `1eK`, evenly spaced: at most `most` + 1 of them."""
    return [(10.0**k, f"1e{k}") for k in range(low, high + 1, max(1, math.ceil((high - low) / most)))]


def _key(index: int) -> str:
    dash = DASHES[index % len(DASHES)]
    style = f"stroke:{series_colour(index)};stroke-width:2.5" + (f";stroke-dasharray:{dash}" if dash else "")
    return f'<svg width="26" height="8" aria-hidden="true"><line x1="0" x2="26" y1="4" y2="4" style="{style}"/></svg> '


def _share(value: float, ends: Ends, log: bool) -> float:
    """Map a value to its share of the way between two ends, from 0 to 1."""
    low, high = ends
    if log:
        value = math.log10(value) if value > 0 and math.isfinite(value) else low
    return (min(max(value, low), high) - low) / max(high - low, 1e-9)
