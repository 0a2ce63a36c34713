"""Further SVG charts: a secret's spectrum beside its reconstruction's, leakage over epsilon, leakage in two audits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Literal

import numpy as np

from securefed._auditing.svg_charts import INK, line, opening, text
from securefed._tensors import Array

_TRUTH, _ESTIMATE, _UTILITY = "#5b6675", "#b3201f", "#1f5fbf"


def spectrum(title: str, truth: Array, estimate: Array, most: int = 24) -> str:
    """Leading eigenvalues of two symmetric matrices, logarithmic: the secret's as rings, the reconstruction's as dots.

    What lies below 1e-8 of the largest is rounding, and is left out.
    """
    own, found = (np.linalg.eigvalsh((m + m.T) / 2)[::-1][:most] for m in (truth, estimate))
    top = float(own[0])
    if not top > 0:
        return ""
    floor = top * 1e-8
    low = math.floor(math.log10(float(own[own > floor].min())))
    high = math.ceil(math.log10(top) + 1e-9)
    width, height, left, bottom, head, right = 560, 230, 58, 36, 48, 20

    def x(index: int) -> float:
        return left + (index + 0.5) / len(own) * (width - left - right)

    def y(value: float) -> float:
        share = (min(max(math.log10(value), low), high) - low) / max(high - low, 1)
        return height - bottom - share * (height - bottom - head)

    parts = [opening(width, height, title), text(8, 16, title, size=13, weight=600, fill=INK)]
    parts.append(text(8, 33, "eigenvalues, largest first: grey rings the secret's, red dots the reconstruction's"))
    for exponent in range(low, high + 1, max(1, math.ceil((high - low) / 5))):
        parts.append(line(left, y(10.0**exponent), width - right, y(10.0**exponent)))
        parts.append(text(left - 6, y(10.0**exponent) + 4, f"1e{exponent}", anchor="end"))
    for index, (a, b) in enumerate(zip(own, found, strict=True)):
        if a > floor:
            parts.append(f'<circle cx="{x(index):.1f}" cy="{y(a):.1f}" r="5" fill="none" stroke="{_TRUTH}"/>')
        if b > floor:
            parts.append(f'<circle cx="{x(index):.1f}" cy="{y(b):.1f}" r="2.5" fill="{_ESTIMATE}"/>')
    parts.append(text((left + width - right) / 2, height - 10, f"first {len(own)} of {len(truth)}", anchor="middle"))
    return "".join(parts) + "</svg>"


def tradeoff(
    title: str,
    utility_name: str,
    epsilons: Sequence[float],
    leakages: Sequence[tuple[float, float, float]],
    utilities: Sequence[float],
) -> str:
    """Leakage (mean, low, high) and utility against epsilon, which is logarithmic."""
    width, height, left, bottom, head, right = 560, 230, 58, 40, 48, 140
    ends = math.log10(min(epsilons)), math.log10(max(epsilons))

    def x(epsilon: float) -> float:
        share = (math.log10(epsilon) - ends[0]) / max(ends[1] - ends[0], 1e-9)
        return left + share * (width - left - right)

    def y(value: float) -> float:
        return height - bottom - min(max(value, 0.0), 1.0) * (height - bottom - head)

    parts = [opening(width, height, title), text(8, 16, title, size=13, weight=600, fill=INK)]
    parts.append(text(8, 33, "what leaves the aggregator; below 0 is drawn at 0"))
    for tick in (0.0, 0.5, 1.0):
        parts.append(line(left, y(tick), width - right, y(tick)))
        parts.append(text(left - 6, y(tick) + 4, f"{tick:g}", anchor="end"))
    for epsilon in epsilons:
        parts.append(text(x(epsilon), height - bottom + 16, f"{epsilon:g}", anchor="middle"))
    parts.append(text((left + width - right) / 2, height - 8, "epsilon", anchor="middle"))
    for epsilon, (_, low, high) in zip(epsilons, leakages, strict=True):
        bar = f'<line x1="{x(epsilon):.1f}" x2="{x(epsilon):.1f}" y1="{y(low):.1f}" y2="{y(high):.1f}" '
        parts.append(f'{bar}stroke="{_ESTIMATE}" stroke-width="2" stroke-opacity=".5"/>')
    lines = (("leakage", _ESTIMATE, [mean for mean, _, _ in leakages]), (utility_name, _UTILITY, list(utilities)))
    for name, colour, values in lines:
        points = " ".join(f"{x(e):.1f},{y(v):.1f}" for e, v in zip(epsilons, values, strict=True))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        shift = -6 if name != "leakage" else 12
        parts.append(text(width - right + 8, y(values[-1]) + shift, name, fill=colour))
    return "".join(parts) + "</svg>"


def dumbbell(
    label: str,
    leaks: Sequence[tuple[float, float, float]],
    known: Sequence[bool],
    look: Literal["worse", "better", "same"],
) -> str:
    """Leakage (mean, low, high) of two audits on one line from 0 to 1: the earlier above, a ring, the later below,
    a disc. Unknown ones are dashed. Coloured by the page's style (classes `dumbbell`, `before`, `after`, `unknown`)."""
    width, height, edge = 220, 34, 8

    def x(value: float) -> float:
        return edge + min(max(value, 0.0), 1.0) * (width - 2 * edge)

    parts = [
        f'<svg class="dumbbell {look}" viewBox="0 0 {width} {height}" role="img" aria-label="{escape(label)}">',
        *(f'<line class="grid" x1="{x(t):.1f}" x2="{x(t):.1f}" y1="2" y2="{height - 2}"/>' for t in (0.0, 0.5, 1.0)),
    ]
    rows = tuple(zip(("before", "after"), (10, 24), leaks, known, strict=True))
    (_, top, before, _), (_, bottom, after, _) = rows
    parts.append(f'<line class="moved" x1="{x(before[0]):.1f}" y1="{top}" x2="{x(after[0]):.1f}" y2="{bottom}"/>')
    for name, y, (mean, low, high), sure in rows:
        css = name if sure else f"{name} unknown"
        parts.append(f'<line class="{css}" x1="{x(low):.1f}" x2="{x(high):.1f}" y1="{y}" y2="{y}"/>')
        parts.append(f'<circle class="{css}" cx="{x(mean):.1f}" cy="{y}" r="5"/>')
    return "".join(parts) + "</svg>"
