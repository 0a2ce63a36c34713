"""Measure the papers' figures that are left to a night, and check that no result is older than the code."""

from __future__ import annotations

import time

from rich.console import Console

from benchmarks.ledger import records, staleness
from benchmarks.ledger.__main__ import SEEDS
from benchmarks.ledger.catalogue import Catalogue, Entry, discover
from benchmarks.ledger.display import Display
from benchmarks.ledger.runner import run as measure
from benchmarks.nightly.parts import Part


def run(quick: bool, seed: int) -> list[Part]:
    """Measure what is left to a night, then compare the digest of every experiment with that of its result.

    A result of `make reproduce` that is older than the code is not renewed here: it fails the night.

    Args:
        quick: measure nothing.
        seed: makes no difference; the ledger's own seeds are used.

    Returns:
        One part, which fails where something is still owed; its note has the command that renews it.
    """
    began = time.monotonic()
    catalogue = discover()
    if not quick:
        chosen = left_to_a_night(catalogue)
        with Display(Console(soft_wrap=True), len(chosen)) as display:
            measure(chosen, display, quick=False, seeds=SEEDS, folder=records.FULL)
    reasons = staleness.owed(catalogue)
    notes = (staleness.sentence(reasons),) if reasons else ()
    figures = f"{len(reasons)} experiments without a result of this code"
    return [Part("the papers' figures", not reasons, time.monotonic() - began, figures, notes)]


def left_to_a_night(catalogue: Catalogue) -> list[Entry]:
    """Return the experiments that a night measures: the long ones that are owed, and those that lack seeds."""
    owed = staleness.owed(catalogue)
    chosen = [name for name, why in owed.items() if catalogue.entries[name].experiment.nightly or "seeds" in why]
    return catalogue.select(chosen) if chosen else []
