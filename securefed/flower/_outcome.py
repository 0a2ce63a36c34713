"""Outcome of a run's phases: what became of each, and the error of a run that trained nothing.

A phase is the training or the evaluation of a round; each makes one sum over the SuperNodes that the strategy sampled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from securefed.errors import RoundVoid
from securefed.flower._sum_messages import ARRAY, EVALUATE, METRIC, TRAIN
from securefed.parties._terms import SumTerms

_NAMED: Final = 6
"""So many arrays are named in an error."""


@dataclass(frozen=True)
class SecureRound:
    """Record of one phase of a round: the sum over its SuperNodes, or why there is none.

    Attributes:
        phase: `train` or `evaluate`.
        exchanges: number of times that the server sent messages to its clients and waited for their replies.
        survivors: ids of the SuperNodes in the sum; empty where the round was void.
        seconds: time that it took.
        void: why attempts at the sum were void.
        refusals: by SuperNode, why its message was refused, or why it refused the server's.
        error: largest rounding error of an entry of the mean that the plan allows; 0 where the round was void.
    """

    phase: str
    exchanges: int
    survivors: tuple[int, ...]
    seconds: float
    void: tuple[str, ...] = ()
    refusals: Mapping[int, str] = field(default_factory=dict)
    error: float = 0.0


def check_outcome(rounds: Sequence[SecureRound], terms: Mapping[str, SumTerms], weighted_by: str) -> None:
    """Raise `RoundVoid` where no round gave a sum, so that a run which trained nothing does not end well.

    Args:
        rounds: the phases of the run. Where there is no training among them, the run only evaluates.
        terms: by phase, its terms, as far as they were made.
        weighted_by: name of the metric that weights updates.

    Raises:
        RoundVoid: phases took place, and all were void.
    """
    for phase in (TRAIN, EVALUATE):
        tried = [entry for entry in rounds if entry.phase == phase]
        if tried and not any(entry.survivors for entry in tried):
            last = tried[-1]
            reasons = [*last.void, *(f"SuperNode {node}: {text}" for node, text in last.refusals.items())]
            raise RoundVoid(
                f"none of {len(tried)} rounds of {phase} gave a sum, so there is no result; the last one: "
                f"{'; '.join(reasons) or 'no reply'}. {_expected(phase, terms.get(phase), weighted_by)}"
            )
        if tried:
            return


def _expected(phase: str, terms: SumTerms | None, weighted_by: str) -> str:
    """Say what a reply must hold, from the public terms alone, and where to read what is wrong with one."""
    if terms is None:
        return ""
    arrays = [f"{n.removeprefix(ARRAY)!r} {shape}" for n, shape in terms.shapes.items() if n.startswith(ARRAY)]
    numbers = [n.removeprefix(METRIC) for n in terms.shapes if n.startswith(METRIC)]
    records = []
    if arrays:
        more = "" if len(arrays) <= _NAMED else f" and {len(arrays) - _NAMED} more"
        records.append(f"one ArrayRecord with the arrays {', '.join(arrays[:_NAMED])}{more}")
    if terms.weighted:
        numbers = [f"{weighted_by} (up to {terms.largest_weight:g})", *numbers]
    if numbers:
        records.append(f"one MetricRecord with the single numbers {', '.join(numbers)}")
    return (
        f"A reply of @app.{phase} must hold {' and '.join(records)}, all finite; a SuperNode whose app raises or "
        "replies otherwise sits out, and its own log says why. To read that here while you try an app, let the "
        "sites announce it: mods=[secure_mod(SitePolicy(announce_errors=True))], or announce_errors = true in "
        "the site's file"
    )
