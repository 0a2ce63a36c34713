"""Curves as pictures like the papers' figures. The same curves give the same bytes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.ledger.ledger import Curve
from benchmarks.ledger.records import stem

# Okabe and Ito's colours without yellow, which vanishes on white; told apart by colour-blind readers.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000")
DASHES = ("solid", "dashed", "dotted", "dashdot")  # the next seven series take the next dash
FEW = 15  # points that are marked one by one
STYLE = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.frameon": False,
}


def figures(curves: Sequence[Curve]) -> dict[str, list[Curve]]:
    """The curves of each figure, in the order in which they were handed in."""
    found: dict[str, list[Curve]] = {}
    for curve in curves:
        found.setdefault(curve.figure, []).append(curve)
    return found


def file_name(experiment: str, figure: str, among: int) -> str:
    """`NAME.png`, or `NAME-FIGURE.png` where an experiment has several figures."""
    plain = re.sub(r"[^a-z0-9]+", "-", figure.lower()).strip("-")
    return f"{stem(experiment)}.png" if among == 1 else f"{stem(experiment)}-{plain}.png"


def draw(curves: Sequence[Curve], path: Path) -> None:
    """Draw the curves of one figure: a line per series, and a band from the lowest to the highest seed."""
    from matplotlib import style  # noqa: PLC0415  (half a second that a run without plots does not need)
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    series: dict[str, list[Curve]] = {}
    for curve in curves:
        series.setdefault(curve.series, []).append(curve)
    first = curves[0]
    with style.context(["default", STYLE]):  # whatever the settings of this machine are
        figure = Figure(figsize=(6.4, 3.4), dpi=130, layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        drawn = [_series(axes, seeds, place) for place, seeds in enumerate(series.values())]
        axes.set(xlabel=first.x_label, ylabel=first.y_label, yscale="log" if first.log_y else "linear")
        axes.set_title(first.figure, loc="left", fontsize=10)
        drawn.sort(key=lambda handle: -handle.get_ydata()[-1])  # the legend reads as the lines end: highest first
        figure.legend(handles=drawn, loc="outside right upper", handlelength=2.2)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, metadata={"Software": None})


def _series(axes: Any, seeds: Sequence[Curve], place: int) -> Any:
    """One series: mean line and band where the seeds share their x, and what is left of each seed as a thin line."""
    look = {"color": COLOURS[place % len(COLOURS)], "linestyle": DASHES[place // len(COLOURS) % len(DASHES)]}
    x, ys = shared(seeds)
    if len(seeds) > 1:
        axes.fill_between(x, ys.min(axis=0), ys.max(axis=0), color=look["color"], alpha=0.18, linewidth=0)
        for curve in seeds:
            if len(curve.x) > len(x):
                axes.plot(curve.x, curve.y, linewidth=0.7, alpha=0.6, **look)
    marker = "o" if len(x) <= FEW else ""
    (line,) = axes.plot(x, middle(ys, seeds[0].log_y), marker=marker, markersize=3.5, linewidth=1.6, **look)
    line.set_label(seeds[0].series)
    return line


def shared(seeds: Sequence[Curve]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """x that all seeds have, and their y there, `(seeds, x)`; the first seed's alone where they share none."""
    common = set(seeds[0].x).intersection(*(curve.x for curve in seeds))
    if not common:
        return np.array(seeds[0].x), np.array([seeds[0].y])
    ys = [[y for x, y in zip(curve.x, curve.y, strict=True) if x in common] for curve in seeds]
    return np.array(sorted(common)), np.array(ys)


def middle(ys: NDArray[np.float64], log: bool) -> NDArray[np.float64]:
    """Mean over seeds, geometric on a logarithmic axis, where the arithmetic one would lie at the highest seed."""
    mean: NDArray[np.float64] = np.log(ys).mean(axis=0) if log else ys.mean(axis=0)
    return np.exp(mean) if log else mean
