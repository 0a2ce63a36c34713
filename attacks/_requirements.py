"""Check an attack's requirements before it starts: broadcasts of every round, memory, number of rounds, labels.

Every attack calls these checks in `applies`: a transcript that lacks something is refused in a sentence that names it,
before anything large is allocated. `attacks/_diagnosis.py` describes afterwards what a gap has cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from securefed.attacks._base import RoundView, View
from securefed.errors import TranscriptError

MEMORY: Final = 4 * 2**30
"""Bytes that an attack may take beside the transcript, unless its own setting `memory` gives another number."""


def check_applies(reason: str | None) -> None:
    """Raise `TranscriptError` with what an attack's `applies` returned, unless that is `None`."""
    if reason is not None:
        raise TranscriptError(reason)


def why_incomplete(rounds: Sequence[RoundView], *, every: bool = True) -> str | None:
    """Return why an attack cannot start from these rounds, or `None` where it can.

    Args:
        rounds: the rounds of the view.
        every: whether the attack follows its clients from round to round, so that one missing broadcast is a reason.
            Its caller may give it the rounds before the gap (`unbroken`), as an audit does. Otherwise the attack uses
            each round by itself and leaves out those without a broadcast: only if all are missing it cannot start.
    """
    if not rounds:
        return "The view holds no messages."
    silent = [o.round for o in rounds if not o.broadcast]
    if len(silent) == len(rounds):
        return (
            "The view holds no broadcast, and a message is only an answer to one: this costs the attack everything. "
            "Record what clients start from."
        )
    if not silent or not every:
        return None
    whole = next(k for k, o in enumerate(rounds) if not o.broadcast)
    named = ", ".join(map(str, silent[:5])) + ", ..." * (len(silent) > 5)
    return (
        f"The view holds no broadcast of {len(silent)} of {len(rounds)} rounds (exchange {named}), and this attack "
        f"follows its clients from round to round: only the {whole} before the first gap are of use to it."
    )


def unbroken(observed: View) -> View:
    """Keep the rounds before the first one whose broadcast is missing; all rounds where none is missing.

    Callers use it before an attack that needs every broadcast. Where the first broadcast is missing, no round is left.
    """
    count = next((k for k, o in enumerate(observed.rounds) if not o.broadcast), len(observed.rounds))
    return observed if count == len(observed.rounds) else replace(observed, rounds=observed.rounds[:count])


def too_large(
    needed: float, limit: float, what: str, remedy: str = "raise the attack's setting `memory` (in bytes)"
) -> str | None:
    """Return why a computation needs too much memory, or `None` where it fits.

    Args:
        needed: an upper estimate, in bytes.
        limit: bytes that it may take.
        what: the computation, in words that hold its size.
        remedy: what the user can do.
    """
    if needed <= limit:
        return None
    return f"{what} takes about {needed / 2**30:.3g} GiB, the limit is {limit / 2**30:.3g} GiB; {remedy}."


def too_long(vectors: int, parameters: int) -> str | None:
    """Return why so many float64 vectors of a model's parameters need too much memory, or `None` where they fit."""
    return too_large(
        8 * vectors * parameters, MEMORY, f"{vectors} vectors of {parameters} parameters", "show fewer rounds"
    )


def has_labels(problem: Any) -> bool:
    """Return whether the problem compares rows with labels."""
    return hasattr(problem, "predict") and getattr(problem, "compared_with", "labels") == "labels"
