"""How costs grow with clients and entries, and the model that `securefed plan` predicts them with.

    python -m benchmarks scaling [--fresh] [--fit]

Measures one exchange a point, writes it to `results/scaling.json` at once, and goes on where it stopped; `--fresh`
begins anew, `--fit` only fits and draws. Writes `securefed/costs.json`, `docs/scaling.md` and its figures. CPU time,
not wall time; the points of one curve are measured in turns with the others, so that a busy hour falls on all.
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from scipy.optimize import nnls

from benchmarks import scaling_page
from benchmarks.exchange import exchange, uniform
from benchmarks.rows import RESULTS
from securefed import costs
from securefed.defenses.base import Defense, Plan
from securefed.defenses.compose import chain
from securefed.defenses.secure_aggregation import secure_aggregation
from securefed.tensors import Layout, TensorSpec

POINTS = RESULTS / "scaling.json"
DEFENSES: dict[str, Defense] = {
    "complete": chain(secure_aggregation()),
    "sparse": chain(secure_aggregation(graph="sparse", adversarial=0.1, dropouts=0.1)),
}


@dataclass(frozen=True, order=True)
class Point:
    """One exchange to measure; `lost` clients do not upload. `check`: kept out of the fit."""

    graph: str
    clients: int
    entries: int
    lost: int
    check: bool = False

    @property
    def name(self) -> str:
        return f"{self.graph}, N={self.clients}, d={self.entries:.0e}, {self.lost} lost"

    def plan(self) -> Plan:
        return DEFENSES[self.graph].plan(layout(self.entries), self.clients)


CLIENTS = {"complete": (10, 20, 50, 100, 200), "sparse": (50, 100, 200, 500)}
ENTRIES = {("complete", 10): (10**4, 10**5, 10**6, 10**7), ("sparse", 100): (10**4, 10**5, 10**6)}
CHECKS = (Point("complete", 400, 10**5, 40, True), Point("sparse", 1000, 10**5, 100, True))
TREE = ("sparse", 10_000, 100, 10**4)
"""Graph, clients, members of a group, entries of the simulated tree."""


def points() -> list[Point]:
    """All points, the cheap ones first."""
    out = {
        Point(graph, n, 10**d, lost)
        for graph, all_ in CLIENTS.items()
        for n in all_
        for lost in (0, n // 10)
        for d in (4, 5)
    }
    out |= {Point(graph, n, d, lost) for (graph, n), all_ in ENTRIES.items() for d in all_ for lost in (0, n // 10)}
    return [*sorted(out, key=lambda p: p.clients * p.entries), *CHECKS]


def layout(entries: int) -> Layout:
    return Layout((TensorSpec("w", (entries,), 8.0),))


def main(arguments: Sequence[str] = ()) -> None:
    """Measure what is missing, fit, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fresh", action="store_true", help="measure everything again")
    parser.add_argument("--fit", action="store_true", help="only fit and draw")
    chosen = parser.parse_args(arguments)
    stored = {} if chosen.fresh or not POINTS.exists() else json.loads(POINTS.read_text())
    if not chosen.fit:
        for number, point in enumerate(points()):
            if point.name not in stored:
                stored[point.name] = asdict(point) | measure(point)
                POINTS.write_text(json.dumps(stored, indent=1) + "\n")
                print(f"{number + 1}/{len(points())} {point.name}", flush=True)
        if "tree" not in stored:
            stored["tree"] = simulate_tree(*TREE)
            POINTS.write_text(json.dumps(stored, indent=1) + "\n")
    measured = [content for name, content in stored.items() if name != "tree"]
    model = fit(measured)
    costs.FIGURES.write_text(json.dumps(model, indent=1) + "\n")
    costs.figures.cache_clear()
    for path in scaling_page.write(measured, stored.get("tree"), model):
        print(f"wrote {path}")


def measure(point: Point) -> dict[str, Any]:
    """Medians of two or three exchanges, fewer where one takes long, and the memory of one more step each."""
    defense, plan, value = DEFENSES[point.graph], point.plan(), uniform(point.clients, point.entries)
    runs = 3 if point.clients * point.entries * (point.clients if point.graph == "complete" else 22) < 3e9 else 1
    found = []
    for run in range(runs):
        total, cost = exchange(
            defense.aggregation, plan, lambda c: defense.encode(value(c), plan), point.lost, trace=run == 0
        )
        found.append(cost)
    kinds = min(point.clients, 8)
    exact = sum(defense.encode(value(k), plan)["w"] * len(total.survivors[k::kinds]) for k in range(kinds))
    assert np.array_equal(total.total["w"], exact), f"{point.name}: the sum is not exact"
    assert sum(found[0].sent.values()) == plan.upload_bytes
    return {
        "client_cpu": median(f.client for f in found),
        "server_cpu": median(f.server for f in found),
        "sent": plan.upload_bytes,
        "received": found[0].received,
        "client_memory": found[0].client_memory,
        "server_memory": found[0].server_memory,
        "runs": runs,
    }


def simulate_tree(graph: str, clients: int, members: int, entries: int) -> dict[str, Any]:
    """All exchanges of a tree of two levels: its CPU, and that the root's sum is exact."""
    defense = DEFENSES[graph]
    groups = clients // members
    leaf = costs.level_plan(defense, layout(entries), clients, members)
    root = costs.level_plan(defense, layout(entries), clients, groups)
    value, sums, leaves = uniform(clients, entries), [], []
    for group in range(groups):
        total, cost = exchange(
            defense.aggregation, leaf, lambda c, g=group: defense.encode(value(g * members + c), leaf)
        )
        sums.append(total.total)
        leaves.append(cost)
        if (group + 1) % 10 == 0:
            print(f"tree: group {group + 1}/{groups}", flush=True)
    found, top = exchange(defense.aggregation, root, lambda c: sums[c])
    each = [defense.encode(value(k), leaf)["w"] for k in range(8)]
    exact = sum(each[c % 8] for c in range(clients))
    assert np.array_equal(found.total["w"], exact), "the tree's sum is not exact"
    return {
        "graph": graph, "clients": clients, "members": members, "entries": entries,
        "client_cpu": median(c.client for c in leaves),
        "aggregator_cpu": median(c.server for c in leaves) + top.client,
        "root_cpu": top.server,
        "aggregators_cpu": sum(c.server for c in leaves) + groups * top.client + top.server,
        "received": leaves[0].received,
    }  # fmt: skip


def fit(measured: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Constants of every quantity's terms, and relative errors at the points fitted and at those kept out."""
    constants: dict[str, dict[str, float]] = {}
    error: dict[str, dict[str, float]] = {}
    checked: list[dict[str, Any]] = []
    sizes = [costs.Size.of(Point(**{k: m[k] for k in Point.__dataclass_fields__}).plan(), m["lost"]) for m in measured]
    for quantity, terms in costs.TERMS.items():
        features = np.array([[term(size) for term in terms.values()] for size in sizes], float)
        wanted = np.array([m[quantity] for m in measured], float)
        fitted = np.array([not m["check"] for m in measured])
        # Relative residuals: a percent at the smallest point counts as much as at the largest.
        found, _ = nnls(features[fitted] / wanted[fitted, None], np.ones(fitted.sum()))
        off = features @ found / wanted - 1
        constants[quantity] = dict(zip(terms, found.tolist(), strict=True))
        error[quantity] = {
            "median": float(np.median(np.abs(off[fitted]))), "largest": float(np.abs(off[fitted]).max()),
        }  # fmt: skip
        checked += [
            {"quantity": quantity, "setting": m["name"], "measured": m[quantity], "off": float(o)}
            for m, o, inside in zip([{**m, "name": _name(m)} for m in measured], off, fitted, strict=True)
            if not inside
        ]
    return {"machine": machine(), "constants": constants, "error": error, "checked": checked}


def _name(m: dict[str, Any]) -> str:
    return Point(**{k: m[k] for k in Point.__dataclass_fields__}).name


def machine() -> dict[str, str]:
    """What the figures were measured on."""
    info = Path("/proc/cpuinfo")
    names = [line.split(":")[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")] if (
        info.exists()
    ) else []  # fmt: skip
    return {
        "processor": names[0] if names else platform.processor() or platform.machine(),
        "python": platform.python_version(),
        "numpy": np.__version__,
    }
