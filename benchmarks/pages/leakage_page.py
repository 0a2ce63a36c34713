"""Figures and page of `benchmarks.pages.leakage`: each curve over its seeds, in pictures, a table and words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.ledger.plots import COLOURS, STYLE
from benchmarks.pages.leakage_curves import CURVES, LESSONS, SUBJECTS, Curve, Subject, is_current
from securefed._auditing.cases import case

DOCS = Path(__file__).parents[2] / "docs"
SMALLEST = 1e-17
"""Errors below it are drawn there."""
INTRODUCTION = """\
Measured by `python -m benchmarks.pages.leakage`: median and range over {seeds} seeds. Leakage is 1 - error / baseline,
as in the audit: 1 is exact, 0 is no better than a guess from public facts, and what is worse than that is drawn at 0
(`<0` in tables). The messages of one client are seen in the clear, unless a curve says otherwise. Where an attack
refuses, or takes more than its processor time, that guess stands in for it, and the cell says so. Of several attacks
the one with the least residual counts, as an attacker would choose. Rows of all sets are scaled, by one factor a set,
to the mean square norm of digits, so that a learning rate means the same everywhere. Points:
`benchmarks/results/leakage.json`; an empty cell has not been measured.
"""
Stored = Mapping[str, Any]
Cells = dict[tuple[str, float | str], list[dict[str, Any]]]
"""By subject and value: what the seeds gave."""


def write(stored: Stored) -> list[Path]:
    """Draw every curve that was measured."""
    paths = []
    for curve in CURVES:
        cells = cells_of(curve, stored)
        if cells:
            paths.append(DOCS / _picture(curve))
            _draw(curve, cells, paths[-1])
    return paths


def text(stored: Stored) -> str:
    """Return the tables and pictures of all curves, which docs/leakage.md includes."""
    measured = ((curve, cells_of(curve, stored)) for curve in CURVES)
    sections = (_section(curve, cells, _picture(curve)) for curve, cells in measured if cells)
    return "\n".join([_opening(stored), *sections])


def _picture(curve: Curve) -> str:
    return f"leakage-{curve.name}.png"


def cells_of(curve: Curve, stored: Stored) -> Cells:
    """The points measured in the setting, and by the attacks, that the curve has now."""
    points = [point for point in curve.points() if is_current(point, stored)]
    return {(point.subject, point.value): stored[point.name]["seeds"] for point in points}


def spread(seeds: Sequence[Mapping[str, Any]], key: str) -> tuple[float, float, float] | None:
    """(median, lowest, highest) over the seeds that have it, `None` where none has."""
    values = [seed[key] for seed in seeds if seed.get(key) is not None]
    return (float(median(values)), min(values), max(values)) if values else None


def _draw(curve: Curve, cells: Cells, path: Path) -> None:
    from matplotlib import style  # noqa: PLC0415
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    groups = list(dict.fromkeys(SUBJECTS[name].group for name, _ in cells))
    lower = ("federation leakage", "leakage, pooled secret") if curve.pooled else ("error", "relative error")
    with style.context(["default", STYLE]):
        figure = Figure(figsize=(4.6 * len(groups), 5.4), dpi=130, layout="constrained")
        FigureCanvasAgg(figure)
        panels = figure.subplots(2, len(groups), squeeze=False)
        for column, group in enumerate(groups):
            for row, (key, label) in enumerate((("leakage", "leakage"), lower)):
                axes = panels[row][column]
                _lines(axes, curve, cells, group, key)
                axes.set_ylabel(label)
                axes.set_xticks(range(len(curve.values)), [str(value) for value in curve.values])
            panels[0][column].set_title(group, loc="left", fontsize=10)
            panels[1][column].set_xlabel(curve.axis)
            figure.legend(
                handles=panels[0][column].get_legend_handles_labels()[0],
                loc="outside lower left" if column == 0 else "outside lower right",
                ncols=3,
                fontsize=7,
            )
        figure.savefig(path, metadata={"Software": None})


def _lines(axes: Any, curve: Curve, cells: Cells, group: str, key: str) -> None:
    names = [name for name in curve.subjects if SUBJECTS[name].group == group]
    axes.set_yscale("log" if key == "error" else "linear")
    if key != "error":
        axes.set_ylim(-0.04, 1.04)
    joined = "-" if all(isinstance(value, int | float) for value in curve.values) else ""
    for place, name in enumerate(names):
        found = [
            (x, at)
            for x, value in enumerate(curve.values)
            if (at := spread(cells.get((name, value), ()), key)) is not None
        ]
        apart = 0.07 * (place - (len(names) - 1) / 2)  # bars of lines that lie on each other stay visible
        shown = [[_drawn(part, key) for part in at] for _, at in found]
        axes.errorbar(
            [x + apart for x, _ in found],
            [middle for middle, _, _ in shown],
            yerr=[[middle - low for middle, low, _ in shown], [high - middle for middle, _, high in shown]],
            fmt=f"o{joined}", color=COLOURS[place % len(COLOURS)], label=name, markersize=3.5, linewidth=1.3,
            elinewidth=1.0,
        )  # fmt: skip


def _drawn(value: float, key: str) -> float:
    return max(value, SMALLEST) if key == "error" else max(value, 0.0)


def _opening(stored: Stored) -> str:
    seeds = max((len(content["seeds"]) for content in stored.values()), default=0)
    return "\n".join(
        [
            INTRODUCTION.format(seeds=seeds),
            *(f"- {lesson}" for lesson in LESSONS),
            "\n## The usual setting\n",
            "Eight clients; what a curve does not vary is as here. Raw digits; FedPG and PPGL: columns of highest "
            "variance, z-scored by each client. What is not named is as in the audit.\n",
            "| algorithm | hyper-parameters | rows of the target | features | rounds | attack |",
            "| --- | --- | --- | --- | --- | --- |",
            *(_setting(name, subject) for name, subject in SUBJECTS.items()),
            "",
        ]
    )


def _setting(name: str, subject: Subject) -> str:
    own = {part: value for part in ("rank", "learning_rate") if (value := getattr(subject, part)) is not None}
    setting = {**case(subject.algorithm).setting, **own}
    words = ", ".join(f"{part} {value}" for part, value in setting.items())
    rows, features = subject.rows or "even share", subject.features or "all"
    attacks = ", ".join(f"`{attack.name}`" for attack in subject.attacks)
    return f"| {name} | {words} | {rows} | {features} | {subject.rounds} | {attacks} |"


def _section(curve: Curve, cells: Cells, picture: str) -> str:
    parts = [f"\n## {curve.title}\n", curve.setting, f"\n![{curve.title}]({picture})\n", f"{curve.reading}\n"]
    key = "error" if curve.table == "error" else "leakage"
    parts += _table(curve, cells, key, f"median {key} (range)")
    if curve.pooled:
        parts += ["\nThe federation's pooled secret:\n", *_table(curve, cells, "federation leakage", "median (range)")]
    return "\n".join([*parts, *_notes(curve, cells), ""])


def _table(curve: Curve, cells: Cells, key: str, title: str) -> list[str]:
    names = [name for name in curve.subjects if any((name, value) in cells for value in curve.values)]
    head = " | ".join(str(value) for value in curve.values)
    rows = [f"| {title}; {curve.axis} | {head} |", "| --- |" + " --- |" * len(curve.values)]
    for name in names:
        rows.append(f"| {name} | " + " | ".join(_cell(cells.get((name, v)), key) for v in curve.values) + " |")
    return rows


def _cell(seeds: Sequence[Mapping[str, Any]] | None, key: str) -> str:
    found = spread(seeds, key) if seeds else None
    if seeds is None:
        return ""
    if found is None:
        return "no data" if "missing" in seeds[0] else "none"
    words = [_number(value, key) for value in found]
    text = words[0] if len(set(words)) == 1 else f"{words[0]} ({words[1]} to {words[2]})"
    for kind in ("refused", "out of time"):
        count = sum(kind in seed for seed in seeds)
        if count:
            text += f", {kind}" + ("" if count == len(seeds) else f" {count} of {len(seeds)}")
    return text


def _number(value: float, key: str) -> str:
    if key == "error":
        return f"{value:.0e}".replace("e-0", "e-").replace("e+00", "")
    return "<0" if value < -0.005 else f"{max(value, 0.0):.2f}".removeprefix("0") or "0"


def _notes(curve: Curve, cells: Cells) -> list[str]:
    """Why attacks refused, each reason once."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for (name, value), seeds in cells.items():
        for reason in dict.fromkeys(seed.get("refused") or seed.get("missing") for seed in seeds):
            if reason:
                reasons.setdefault((name, reason), []).append(str(value))
    return [""] + [f"- {name} at {', '.join(values)}: {reason}" for (name, reason), values in reasons.items()]
