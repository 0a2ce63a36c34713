"""Which results are older than the code, failed, missing or short of seeds, and the command that renews them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path

from benchmarks.ledger import records
from benchmarks.ledger.catalogue import Catalogue, Entry, discover
from benchmarks.ledger.records import Record
from benchmarks.ledger.sources import digest

OLD = "older than the code"


def stale(entry: Entry, result: Record) -> bool:
    """Whether the code that a result depends on has changed since."""
    return result.kind.digest != digest(entry.module, entry.experiment)


def owed(catalogue: Catalogue | None = None, folder: Path | None = None) -> dict[str, str]:
    """Return the experiments that have to run again before the page holds, by name, with the reason."""
    catalogue = catalogue or discover()
    reasons = {
        name: _reason(entry, records.read(folder or records.FULL, name)) for name, entry in catalogue.entries.items()
    }
    return {name: reason for name, reason in reasons.items() if reason}


def _reason(entry: Entry, result: Record | None) -> str:
    if result is None or result.kind.quick:
        return "not run yet"
    if result.findings is None:
        return "failed"
    if stale(entry, result):
        return OLD
    return missing_seeds(entry, result)


def missing_seeds(entry: Entry, result: Record) -> str:
    """Return how many of its seeds a result has; "" for all."""
    have, asked = len(result.kind.seeds), entry.experiment.seeds
    return f"{have} of {asked} seeds" if have < asked else ""


def sentence(reasons: Mapping[str, str]) -> str:
    """Return what is owed and the command that renews it; "" where nothing is owed."""
    if not reasons:
        return ""
    return (
        f"{len(reasons)} experiments of the papers have no result of this code "
        f"({', '.join(f'{name}: {reason}' for name, reason in reasons.items())}). Renew them: "
        f"make reproduce REPRODUCE_ARGS={shlex.quote(' '.join(reasons))}"
    )
