"""Draw how one leakage changed between two audits: two dots with their intervals, joined by a line.

`comparison_page`, the HTML page that compares two audits, puts one such chart into each row of its table.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Literal

from securefed._auditing.report.charts import HALVES, Triple


def dumbbell(
    label: str, leaks: Sequence[Triple], known: Sequence[bool], look: Literal["worse", "better", "same"]
) -> str:
    """Draw the leakages of two audits on one axis from 0 to 1: the earlier above, the later below.

    The page's style sheet colours them by the classes `dumbbell`, `before`, `after` and `unknown` (dashed).

    Args:
        label: text for readers who cannot see the chart.
        leaks: (mean, low, high) of the earlier and the later audit.
        known: for each, whether its verdict is conclusive; if not, the attacks failed or scatter too much.
        look: how the change is coloured.

    Returns:
        The drawing as SVG.
    """
    width, height, edge = 220, 34, 8

    def x(value: float) -> float:
        return edge + min(max(value, 0.0), 1.0) * (width - 2 * edge)

    parts = [
        f'<svg class="dumbbell {look}" viewBox="0 0 {width} {height}" role="img" aria-label="{escape(label)}">',
        # lines at 0, one half and 1
        *(f'<line class="grid" x1="{x(t):.1f}" x2="{x(t):.1f}" y1="2" y2="{height - 2}"/>' for t in HALVES),
        f'<line class="moved" x1="{x(leaks[0][0]):.1f}" y1="10" x2="{x(leaks[1][0]):.1f}" y2="24"/>',
    ]
    for name, y, (mean, low, high), sure in zip(("before", "after"), (10, 24), leaks, known, strict=True):
        css = name if sure else f"{name} unknown"
        parts.append(f'<line class="{css}" x1="{x(low):.1f}" x2="{x(high):.1f}" y1="{y}" y2="{y}"/>')
        parts.append(f'<circle class="{css}" cx="{x(mean):.1f}" cy="{y}" r="5"/>')
    return "".join(parts) + "</svg>"
