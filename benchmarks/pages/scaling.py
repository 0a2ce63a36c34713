"""How costs grow with clients and entries, and the model that `securefed plan` predicts them with.

    python -m benchmarks scaling
    python -m benchmarks.pages.scaling [--fresh] [--fit] [--seconds S]

Measures one exchange a point, writes it to `results/scaling.json` at once, and goes on where it stopped; `--fresh`
begins anew, `--fit` only fits and draws, `--seconds` starts no further point after so long. Writes
`securefed/_costs/figures.json`, `docs/scaling.md` and its figures once all is measured. CPU time, not wall time; the
points of one curve are measured in turns with the others, so that a busy hour falls on all.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from scipy.optimize import nnls

from benchmarks.pages import scaling_page
from benchmarks.pages.scaling_points import OPTIONS, layout, masking, measured, points, restored, sized
from benchmarks.peers.exchange import exchange, uniform
from benchmarks.rows import RESULTS
from securefed import _costs as costs

POINTS = RESULTS / "scaling.json"
TREES: tuple[tuple[str, tuple[str, ...], int, int, int], ...] = (
    ("sparse", (), 10_000, 100, 10**4),
    ("sparse", OPTIONS, 1_000, 50, 10**4),
)
"""Graph, options, clients, members of a group, entries of the simulated trees."""


def main(arguments: Sequence[str] = ()) -> None:
    """Measure what is missing, fit, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fresh", action="store_true", help="measure everything again")
    parser.add_argument("--fit", action="store_true", help="only fit and draw")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no further point after so long")
    chosen = parser.parse_args(arguments)
    stored = {} if chosen.fresh or not POINTS.exists() else json.loads(POINTS.read_text())
    if not chosen.fit and (left := _measure(stored, time.monotonic() + chosen.seconds)):
        print(f"{left} left to measure; call again")
        return
    trees = [content for content in stored.values() if content["kind"] == "tree"]
    found = [content for content in stored.values() if content["kind"] != "tree"]
    model = fit(found)
    costs.FIGURES.write_text(json.dumps(model, indent=1) + "\n")
    costs.figures.cache_clear()
    missing = [name for name in _wanted() if _unmeasured(stored, name)]
    for path in scaling_page.write(found, trees, model, missing):
        print(f"wrote {path}")


def _wanted() -> dict[str, Callable[[], dict[str, Any]]]:
    """By name, what measures a point or a tree."""
    wanted = {point.name: partial(measured, point) for point in points()}
    return wanted | {_tree_name(*tree): partial(simulate_tree, *tree) for tree in TREES}


def _unmeasured(stored: dict[str, Any], name: str) -> bool:
    """Whether it is missing, or from before the machine's load was noted."""
    return "load" not in stored.get(name, {})


def _measure(stored: dict[str, Any], until: float) -> int:
    """Fill `stored`, point by point; how many are left."""
    wanted = _wanted()
    missing = [name for name in wanted if _unmeasured(stored, name)]
    while missing and time.monotonic() < until:
        name = missing.pop(0)
        stored[name] = wanted[name]()
        POINTS.write_text(json.dumps(stored, indent=1) + "\n")
        print(f"{len(wanted) - len(missing)}/{len(wanted)} {name}", flush=True)
    return len(missing)


def _tree_name(graph: str, options: Sequence[str], clients: int, members: int, entries: int) -> str:
    return f"tree, {', '.join((graph, *options))}, N={clients}, groups of {members}, d={entries:.0e}"


def simulate_tree(graph: str, options: tuple[str, ...], clients: int, members: int, entries: int) -> dict[str, Any]:
    """All exchanges of a tree of two levels: its CPU, and that the root's sum is exact."""
    groups, prepared, load = clients // members, "pipelined" in options, os.getloadavg()[0]
    defenses = [masking(graph, options, many if "signed" in options else 0) for many in (members, groups)]
    leaf = costs.level_plan(defenses[0], layout(entries), clients, members)
    root = costs.level_plan(defenses[1], layout(entries), clients, groups, members)
    value, sums, leaves = uniform(clients, entries), [], []
    for group in range(groups):
        total, cost = exchange(
            defenses[0].aggregation, leaf,
            lambda c, g=group: defenses[0].encode(value(g * members + c), leaf), prepared=prepared,
        )  # fmt: skip
        sums.append(total.total)
        leaves.append(cost)
    found, top = exchange(defenses[1].aggregation, root, lambda c: sums[c % groups], prepared=prepared)
    each = [defenses[0].encode(value(k), leaf)["w"] for k in range(8)]
    exact = sum(each[c % 8] for c in range(clients))
    assert np.array_equal(found.total["w"], exact), "the tree's sum is not exact"
    return {
        "kind": "tree", "graph": graph, "options": list(options), "clients": clients, "members": members,
        "entries": entries, "load": load,
        "client_cpu": median(c.client for c in leaves),
        "aggregator_cpu": median(c.server for c in leaves) + top.client,
        "root_cpu": top.server,
        "aggregators_cpu": sum(c.server for c in leaves) + groups * top.client + top.server,
        "received": leaves[0].received,
    }  # fmt: skip


def fit(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Constants of every model's terms, and relative errors at the points fitted and at those kept out."""
    constants: dict[str, dict[str, dict[str, float]]] = {model: {} for model in costs.MODELS}
    errors: dict[str, dict[str, dict[str, float]]] = {model: {} for model in costs.MODELS}
    checked: list[dict[str, Any]] = []
    exchanges = [(m, point.name, sized(point)) for m, point in ((m, restored(m)) for m in found)]
    for model, of in costs.MODELS.items():
        own = [(m, name, size.counts) for m, name, size in exchanges if size.model == model]
        inside = np.array([not m["check"] for m, _, _ in own])
        for quantity, terms in of.items():
            counts = np.array([[each[quantity][term] for term in terms] for _, _, each in own], float)
            wanted = np.array([m[quantity] for m, _, _ in own], float)
            # Relative residuals: a percent at the smallest point counts as much as at the largest. Columns of like
            # size, for the solver's sake.
            relative = counts[inside] / wanted[inside, None]
            scale = relative.max(axis=0, initial=0)
            scale[scale == 0] = 1
            solved, _ = nnls(relative / scale, np.ones(inside.sum()))
            solved /= scale
            off = counts @ solved / wanted - 1
            constants[model][quantity] = dict(zip(terms, solved.tolist(), strict=True))
            errors[model][quantity] = {
                "median": float(np.median(np.abs(off[inside]))), "largest": float(np.abs(off[inside]).max()),
            }  # fmt: skip
            checked += [
                {"quantity": quantity, "setting": name, "measured": m[quantity], "off": float(o)}
                for (m, name, _), o in zip(own, off, strict=True)
                if m["check"]
            ]
    loads = [m["load"] for m in found]
    return {
        "machine": machine() | {"load": [min(loads), median(loads), max(loads)]},
        "models": constants, "errors": errors, "checked": checked,
    }  # fmt: skip


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    info = Path("/proc/cpuinfo")
    names = [line.split(":")[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")] if (
        info.exists()
    ) else []  # fmt: skip
    return {
        "processor": names[0] if names else platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "numpy": np.__version__,
    }


if __name__ == "__main__":
    main(sys.argv[1:])
