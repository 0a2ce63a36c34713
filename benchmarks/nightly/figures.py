"""Check that every figure of the papers was measured by the code that stands here."""

from __future__ import annotations

import time

from benchmarks.ledger import staleness
from benchmarks.nightly.parts import Part


def run(quick: bool, seed: int) -> list[Part]:
    """Compare the digest of every experiment with the one that its result was made with; nothing is run again.

    Args:
        quick: makes no difference.
        seed: makes no difference.

    Returns:
        One part, which fails where a result is older than the code; its note has the command that renews it.
    """
    began = time.monotonic()
    reasons = staleness.owed()
    notes = (staleness.sentence(reasons),) if reasons else ()
    figures = f"{len(reasons)} experiments without a result of this code"
    return [Part("the papers' figures", not reasons, time.monotonic() - began, figures, notes)]
