"""Small SVG charts for the report: a leakage-utility panel, and error curves on a logarithmic axis."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import cycle

RAMP = ("#f3f6f9", "#fde3c8", "#f7b27a", "#e4693f", "#b3201f", "#7a0c16")
"""Leakage 0 to 1, light to dark."""
COLOURS = {
    "plain": "#b3201f",
    "secure_aggregation": "#1f5fbf",
    "paillier": "#5b3fa8",
    "dp": "#1d8a5b",
}
_LINES = ("#b3201f", "#1f5fbf", "#1d8a5b", "#5b3fa8", "#b8720a", "#0f7f8c", "#a0387f", "#5b6675")
_LABEL_GAP = 13.0
INK, SOFT, _GRID = "#1c2430", "#5b6675", "#d9dee5"


def colour(leakage: float) -> tuple[str, str]:
    """(background, ink) of a heat-map cell."""
    position = min(max(leakage, 0.0), 1.0) * (len(RAMP) - 1)
    low = min(int(position), len(RAMP) - 2)
    mixed = [round(a + (b - a) * (position - low)) for a, b in zip(_rgb(RAMP[low]), _rgb(RAMP[low + 1]), strict=True)]
    luminance = (0.299 * mixed[0] + 0.587 * mixed[1] + 0.114 * mixed[2]) / 255
    return "#{:02x}{:02x}{:02x}".format(*mixed), INK if luminance > 0.55 else "#ffffff"


def _rgb(value: str) -> tuple[int, int, int]:
    return int(value[1:3], 16), int(value[3:5], 16), int(value[5:7], 16)


@dataclass(frozen=True)
class Dot:
    """One defence in a panel; `known` is false where the attacks failed, so that `leakage` says nothing."""

    defense: str
    utility: float
    leakage: float
    low: float
    high: float
    known: bool = True


def panel(title: str, utility_name: str, dots: Sequence[Dot]) -> str:
    """One algorithm: each defence a dot with its interval, hollow where nothing is known of its leakage."""
    width, height, left, bottom, top, right = 280, 210, 38, 40, 32, 12
    ends = _range([dot.utility for dot in dots])

    def x(value: float) -> float:
        return left + (value - ends[0]) / (ends[1] - ends[0]) * (width - left - right)

    def y(value: float) -> float:
        return height - bottom - min(max(value, 0.0), 1.0) * (height - bottom - top)

    parts = [opening(width, height, f"{title}: leakage against {utility_name}")]
    parts.append(text(left, 15, title, size=13, weight=600, fill=INK))
    for tick in (0.0, 0.5, 1.0):
        parts.append(line(left, y(tick), width - right, y(tick)))
        across = ends[0] + tick * (ends[1] - ends[0])
        parts.append(line(x(across), y(0), x(across), y(1)))
        parts.append(text(left - 10, y(tick) + 4, f"{tick:g}", anchor="end"))
        parts.append(text(x(across), height - bottom + 18, f"{across:g}", anchor="middle"))
    parts.append(text((left + width - right) / 2, height - 8, utility_name, anchor="middle"))
    for index, dot in enumerate(dots):
        fill, radius = COLOURS[dot.defense], max(5, 9 - 2 * index)  # dots on top of each other stay visible as rings
        at = x(dot.utility)
        if dot.known:
            parts.append(f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{y(dot.low):.1f}" y2="{y(dot.high):.1f}" ')
            parts.append(f'stroke="{fill}" stroke-width="2"/>')
        look = f'fill="{fill}" stroke="#fff"' if dot.known else f'fill="#fff" stroke="{fill}" stroke-dasharray="3 2"'
        said = f"leakage {dot.leakage:.3f}" if dot.known else "leakage unknown"
        parts.append(f'<circle cx="{at:.1f}" cy="{y(dot.leakage):.1f}" r="{radius}" {look}>')
        parts.append(f"<title>{escape(dot.defense)}: {said}, utility {dot.utility:.3f}</title></circle>")
    return "".join(parts) + "</svg>"


def _range(values: Sequence[float]) -> tuple[float, float]:
    """0 to 1, or whole numbers around values beyond."""
    known = [value for value in values if math.isfinite(value)]
    return min(0.0, *map(math.floor, known), 0.0), max(1.0, *map(math.ceil, known), 1.0)


def curve(title: str, note: str, series: Sequence[Mapping[str, Sequence[float]]], names: Sequence[str]) -> str:
    """Error (or condition number) against rounds, logarithmic; series hold `rounds`, `middle`, `low`, `high`."""
    width, height, left, bottom, top, right = 560, 300, 58, 42, 48, 178
    series, names = zip(*[(s, name) for s, name in zip(series, names, strict=True) if len(s["rounds"])], strict=True)
    values = [v for s in series for key in ("low", "high") for v in s[key] if v > 0 and math.isfinite(v)]
    if not values:
        return ""
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    high = max(high, low + 1)
    last = int(max(max(s["rounds"]) for s in series))

    def x(value: float) -> float:
        return left + (value - 1) / max(last - 1, 1) * (width - left - right)

    def y(value: float) -> float:
        exponent = math.log10(value) if value > 0 and math.isfinite(value) else low
        return height - bottom - (min(max(exponent, low), high) - low) / (high - low) * (height - bottom - top)

    parts = [opening(width, height, title), text(8, 16, title, size=13, weight=600, fill=INK)]
    parts.append(text(8, 33, note))
    labels: list[tuple[float, str, str]] = []
    stride = max(1, math.ceil((high - low) / 6))
    for exponent in range(low, high + 1, stride):
        parts.append(line(left, y(10.0**exponent), width - right, y(10.0**exponent)))
        parts.append(text(left - 6, y(10.0**exponent) + 4, f"1e{exponent}", anchor="end"))
    for tick in range(1, last + 1, max(1, round(last / 8))):
        parts.append(text(x(tick), height - bottom + 16, str(tick), anchor="middle"))
    parts.append(text((left + width - right) / 2, height - 8, "rounds seen", anchor="middle"))
    for s, name, fill in zip(series, names, cycle(_LINES), strict=False):
        upper = [(x(r), y(v)) for r, v in zip(s["rounds"], s["high"], strict=True)]
        lower = [(x(r), y(v)) for r, v in zip(s["rounds"], s["low"], strict=True)]
        ring = " ".join(f"{a:.1f},{b:.1f}" for a, b in upper + lower[::-1])
        middle = [(x(r), y(v)) for r, v in zip(s["rounds"], s["middle"], strict=True)]
        parts.append(f'<polygon points="{ring}" fill="{fill}" fill-opacity=".15"/>')
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b in middle)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{fill}" stroke-width="2"/>')
        labels.append((middle[-1][1], name, fill))
    floor = -math.inf
    for wanted, name, fill in sorted(labels):
        floor = max(wanted, floor + _LABEL_GAP)  # labels of lines that end together stay apart
        parts.append(text(width - right + 8, floor + 4, name, fill=fill))
    return "".join(parts) + "</svg>"


def opening(width: int, height: int, label: str) -> str:
    """The start of a chart of this size, with a label for those who cannot see it."""
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(label)}" '
        'font-family="system-ui, sans-serif">'
    )


def line(x1: float, y1: float, x2: float, y2: float) -> str:
    """A line of the grid."""
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{_GRID}"/>'


def text(
    x: float, y: float, words: str, *, anchor: str = "start", size: int = 11, weight: int = 400, fill: str = SOFT
) -> str:
    """Words, escaped."""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" font-weight="{weight}" text-anchor="{anchor}" '
        f'fill="{fill}">{escape(words)}</text>'
    )
