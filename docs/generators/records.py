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
    "attacks-networks": ("attacks_networks", "attacks_labels", "attacks_detection", "inversion_peers"),
    "attacks-training": ("attacks_texts",),
    "privacy": ("privacy",),
    "torch": ("masked_all_reduce",),
    "flower": ("flower_strategy", "flower_run"),
}
"""Pages, and the benchmarks whose rows stand on each."""


def pages() -> dict[str, str]:
    """Return the tables by path, and the page of all rows of the benchmarks."""
    included = {name: "\n".join(map(benchmarks.section, of)) for name, of in INCLUDED.items()}
    included |= {
        "active": active_page.rows_read(active.cells(), active_groups.cells(), _stored("active", "active_groups")),
        "active-convolutions": active_page.convolutions(active_convolutions.cells(), _stored("active_convolutions")),
        "active-distances": active_page.distances(active_distances.cells(), _stored("active_distances")),
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


def _stored(*names: str) -> dict[str, Any]:
    """Return what files of results hold, together."""
    return {key: value for name in names for key, value in json.loads((RESULTS / f"{name}.json").read_text()).items()}
