"""Draw the charts of an algorithm: error by rounds, leakage and utility by epsilon, and the spectrum of a secret.

`algorithm_section` calls the functions here, each of which returns a figure of HTML around an SVG drawing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from securefed._auditing.report.plot import DASHES, Plot, figure, powers, series_colour
from securefed._tensors import Array

HALVES = (0.0, 0.5, 1.0)
"""Ticks of an axis of shares."""
Triple = tuple[float, float, float]
"""(mean, low, high) of a leakage."""
Series = Mapping[str, Mapping[str, Sequence[float]]]
"""By the name of a line, lists `rounds`, `middle`, `low` and `high` of equal length."""


def curve(title: str, note: str, series: Series) -> str:
    """Draw errors or condition numbers against rounds, on a logarithmic axis.

    Args:
        title: the title of the chart.
        note: below the title.
        series: by name, lists `rounds`, `middle`, `low` and `high` of equal length.

    Returns:
        The figure; empty where no value is positive.
    """
    shown, values = _known(series)
    values = [value for value in values if value > 0]
    if not values:
        return ""
    ends, ticks = _sizes(shown)
    low, high = _exponents(values)
    plot = Plot(f"{title}, by rounds seen. {_said(shown)}.", ends, (low, high), log_y=True)
    plot.rows(powers(low, high, 6))
    plot.columns([(tick, str(tick)) for tick in _apart(ticks, (ends[1] - ends[0]) / 12)], "rounds seen")
    return _drawn(title, note, plot, shown)


def _known(lines: Series) -> tuple[Series, list[float]]:
    """Leave out the lines without points; list the finite ends of all ranges too."""
    shown = {name: line for name, line in lines.items() if len(line["rounds"])}
    values = [v for line in shown.values() for key in ("low", "high") for v in line[key] if math.isfinite(v)]
    return shown, values


def _sizes(shown: Series) -> tuple[tuple[int, int], list[int]]:
    """Find the ends of the horizontal axis, which differ, and its numbers."""
    ticks = sorted({int(number) for line in shown.values() for number in line["rounds"]})
    return (ticks[0], max(ticks[-1], ticks[0] + 1)), ticks


def _said(shown: Series) -> str:
    """Say where each line begins and ends, for readers who cannot see the chart."""
    return "; ".join(
        f"{name}: {line['middle'][0]:.1g} at {line['rounds'][0]:g}, {line['middle'][-1]:.1g} at {line['rounds'][-1]:g}"
        for name, line in shown.items()
    )


def _drawn(title: str, note: str, plot: Plot, shown: Series) -> str:
    """Draw each line over the band from its `low` to its `high`, and return the figure."""
    for index, line in enumerate(shown.values()):
        plot.band(line["rounds"], line["low"], line["high"], series_colour(index))
        plot.curve(line["rounds"], line["middle"], series_colour(index), DASHES[index % len(DASHES)])
    return figure(title, note, plot, list(shown))


def _exponents(values: Sequence[float]) -> tuple[int, int]:
    """Find the powers of ten around some positive values."""
    low = math.floor(math.log10(min(values)))
    return low, max(math.ceil(math.log10(max(values))), low + 1)


def _apart(ticks: Sequence[int], least: float) -> list[int]:
    """Leave ticks out whose labels would touch: those nearer than `least` to the one before, the ends aside.

    Where the last tick would be left out, it takes the place of the one kept before it, unless that is the first.
    """
    kept = [ticks[0]]
    for tick in ticks[1:]:
        if tick - kept[-1] >= least:
            kept.append(tick)
    if kept[-1] == ticks[-1]:
        return kept
    return [*(kept[:-1] if len(kept) > 1 else kept), ticks[-1]]


def share_curve(title: str, note: str, series: Series) -> str:
    """Draw shares from 0 to 1 against the rows of a client, which are on a logarithmic axis.

    Arguments are those of `curve`, except that the lists named `rounds` hold numbers of rows.
    """
    shown, values = _known(series)
    if not values:
        return ""
    ends, ticks = _sizes(shown)
    exponents = math.log10(ends[0]), math.log10(ends[1])
    plot = Plot(f"{title}, by rows a client. {_said(shown)}.", exponents, (0, 1), log_x=True)
    plot.rows((tick, f"{tick:g}") for tick in HALVES)
    plot.columns([(tick, str(tick)) for tick in ticks], "rows a client")
    return _drawn(title, note, plot, shown)


def spectrum(title: str, truth: Array, estimate: Array, most: int = 24) -> str:
    """Draw the leading eigenvalues of two symmetric matrices: the secret's as rings, the reconstruction's as dots.

    Eigenvalues below 1e-8 of the largest are rounding errors, and are left out.

    Args:
        title: the title of the chart.
        truth: the secret, (features, features).
        estimate: its reconstruction, of the same shape.
        most: number of eigenvalues at most.

    Returns:
        The figure; empty where the secret has no positive eigenvalue.
    """
    true, found = (np.linalg.eigvalsh((m + m.T) / 2)[::-1][:most] for m in (truth, estimate))
    top = float(true[0])
    if not top > 0:
        return ""
    floor = top * 1e-8
    true, found = true[true > floor], found[: int((true > floor).sum())]
    low = math.floor(math.log10(float(true.min())))
    high = math.ceil(math.log10(top) + 1e-9)
    label = f"{title}: largest {top:.2g}, reconstructed as {float(found[0]):.2g}"
    plot = Plot(label, (0, len(true)), (low, high), log_y=True)
    plot.rows(powers(low, high, 5))
    rings, dots = "fill:none;stroke:var(--truth);stroke-width:1.5", "fill:var(--series-0)"
    for values, radius, style in ((true, 5, rings), (found, 2.5, dots)):
        for index, value in enumerate(values):
            if value > floor:
                plot.circle(index + 0.5, float(value), radius, style)
    plot.columns((), f"first {len(true)} of {len(truth)} eigenvalues, largest first")
    return figure(title, "Grey rings: the secret's eigenvalues. Red dots: the reconstruction's.", plot)


def tradeoff(
    title: str, utility_name: str, epsilons: Sequence[float], leakages: Sequence[Triple], utilities: Sequence[float]
) -> str:
    """Draw leakage and utility against epsilon, on a logarithmic axis.

    Args:
        title: the title of the chart.
        utility_name: what the utility measures.
        epsilons: the values of epsilon.
        leakages: (mean, low, high) at each.
        utilities: mean utility at each.
    """
    ends = math.log10(min(epsilons)), math.log10(max(epsilons))
    means = [mean for mean, _, _ in leakages]
    said = "; ".join(
        f"epsilon {epsilon:g}: leakage {max(leak, 0.0):.2f}, {utility_name} {utility:.2f}"
        for epsilon, leak, utility in zip(epsilons, means, utilities, strict=True)
    )
    plot = Plot(f"{title}. {said}.", ends, (0, 1), log_x=True)
    plot.rows((tick, f"{tick:g}") for tick in HALVES)
    plot.columns([(epsilon, f"{epsilon:g}") for epsilon in epsilons], "epsilon (less is more private)")
    for epsilon, (_, low, high) in zip(epsilons, leakages, strict=True):
        plot.bar(epsilon, low, high, series_colour(0))
    for index, values in enumerate((means, utilities)):
        plot.curve(epsilons, values, series_colour(index), DASHES[index])
    note = "What leaves the aggregator. Bars: intervals. A leakage worse than a guess is drawn at 0."
    return figure(title, note, plot, ["leakage", utility_name])
