"""Make the tables that the pages of the research record include, from the results that are kept as JSON."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from benchmarks import __main__ as benchmarks
from benchmarks.ledger import page, records
from benchmarks.ledger.catalogue import Catalogue, discover
from benchmarks.nightly import page as nightly
from benchmarks.pages import active, active_convolutions, active_distances, active_groups, active_page, leakage_page
from benchmarks.rows import RESULTS

FOLDER = "records"
INCLUDED = {
    "attacks-pca": ("attacks_pca",),
    "attacks-samples": ("attacks_samples", "attacks_batch"),
    "attacks-networks": ("attacks_networks", "attacks_labels", "attacks_detection"),
    "attacks-training": ("attacks_texts",),
    "privacy": ("privacy",),
    "torch": ("masked_all_reduce",),
    "flower": ("flower_strategy", "flower_run"),
}
"""Pages, and the benchmarks whose rows stand on each."""
PARTS = {
    "attacks-sums": ("auditors", ("error of one client's messages",)),
    "audit-noise": ("auditors", ("coverage", "bound")),
}
"""Pages that show some rows of a benchmark, and how the quantities of these begin."""
SPEED = {
    "secure_aggregation": (
        ("client CPU a round", "N=64, d=1e+05, 0 drop at upload"),
        ("server CPU a round", "N=64, d=1e+05, 6 drop at upload"),
        ("client CPU a round", "N=64, d=1e+05, 0 drop at upload, active"),
        ("server CPU a round", "N=64, d=1e+05, 0 drop at upload, active"),
    ),
    "paillier": (
        ("encrypt", "2048 bits, 32-bit slots, short noise"),
        ("encrypt", "2048 bits, 32-bit slots, half noise"),
    ),
    "cohort": (("FedAvg round, simulated, CPU", "50 clients, 2NN, T=5, 12 rows a step"),),
}
"""Rows of the page of figures: by benchmark, quantity and setting."""


def pages() -> dict[str, str]:
    """Return the tables by path, and the page of all rows of the benchmarks."""
    included = {name: "\n".join(map(benchmarks.section, of)) for name, of in INCLUDED.items()}
    included |= {
        "active": active_page.rows_read(active.cells(), active_groups.cells(), _stored("active", "active_groups")),
        "active-convolutions": active_page.convolutions(active_convolutions.cells(), _stored("active_convolutions")),
        "active-distances": active_page.distances(active_distances.cells(), _stored("active_distances")),
        **{name: benchmarks.section(of, only=only) for name, (of, only) in PARTS.items()},
        "speed": benchmarks.chosen(SPEED),
        "scaling": _table(_stored("scaling")["measured"]),
        "leakage": leakage_page.text(_stored("leakage")),
        "nightly": nightly.text(json.loads((RESULTS / "nightly.json").read_text())),
        "reproduction": page.text(catalogue(), page.known(catalogue(), records.FULL)),
    }
    return {
        "benchmark-results.md": benchmarks.page(),
        **{f"{FOLDER}/{name}.md": text for name, text in included.items()},
    }


@cache
def catalogue() -> Catalogue:
    """Return the experiments of the ledger; importing them takes seconds."""
    return discover()


def _table(measured: dict[str, Any]) -> str:
    rows = [measured["columns"], ["---"] * len(measured["columns"]), *measured["rows"]]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"


def _stored(*names: str) -> dict[str, Any]:
    """Return what files of results hold, together."""
    return {key: value for name in names for key, value in json.loads((RESULTS / f"{name}.json").read_text()).items()}
