"""Every reference figure of the attacks beside ours: `python -m benchmarks attacks_reference`.

Medians over ten seeds or more. Every seed of a measurement is kept as soon as it is there
(`results/cells/attacks_reference.json`) and not run again, so a run can be cut off and go on:

    python -m benchmarks.pages.attacks_reference [NAME ...] [--fresh] [--seconds S] [--page]

NAME: beginnings of measurements' names (default all). --fresh: run them although they are there. --seconds: begin
nothing after so long. --page: run nothing. Writes `results/attacks_reference.json` and `docs/attacks-reference.md`.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

import torch

from benchmarks.pages.references import aggregates, cells, duals, faps, networks, page, samples, subspaces
from benchmarks.pages.references.figures import Figure, Measurement
from benchmarks.rows import Row, write

FIGURES: tuple[Figure, ...] = tuple(
    figure for module in (aggregates, subspaces, faps, duals, samples, networks) for figure in module.FIGURES
)


def measurements(names: Sequence[str] = ()) -> list[Measurement]:
    """Each once, in the order of figures; those whose name begins with one of `names`, if there are any."""
    found = {figure.measurement.name: figure.measurement for figure in FIGURES}
    return [one for name, one in found.items() if not names or name.startswith(tuple(names))]


def rows(figures: Sequence[Figure], known: cells.Cells) -> list[Row]:
    """The figures that were run, for the common page."""
    out = []
    for figure in figures:
        values = cells.values(known, figure.measurement, figure.key)
        if not values:
            continue
        verdict = page.judged(figure, known)
        quantity = f"{figure.where}: {figure.claim}"
        unit = "share of seeds" if figure.counts else figure.unit or "relative error"
        spread = (min(values), max(values))
        met = None if verdict in ("not run", "beside", "corrected") else verdict != "missed"
        out.append(
            Row(
                quantity,
                figure.setting,
                figure.summary(values),
                unit,
                len(values),
                spread,
                target=figure.printed or None,
                met=met,
            )
        )
    return out


def main(arguments: Sequence[str] = ()) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--fresh", action="store_true")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--page", action="store_true")
    chosen = parser.parse_args(arguments)
    if chosen.names and not measurements(chosen.names):
        known = ", ".join(one.name for one in measurements())
        parser.error(f"no measurement's name begins with {chosen.names[0]!r}; known: {known}")
    if not chosen.page:
        torch.set_num_threads(1)
        cells.measure(measurements(chosen.names), fresh=chosen.fresh, until=time.time() + chosen.seconds)
    known_cells = cells.read()
    print(write("attacks_reference", rows(FIGURES, known_cells)))
    print(page.write(FIGURES, known_cells))


if __name__ == "__main__":
    main(sys.argv[1:])
