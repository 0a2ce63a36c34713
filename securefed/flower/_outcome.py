"""Outcome of a run's phases: what became of each, whether clients checked the last sums, and the error of an empty run.

A phase is the training or the evaluation of a round; each makes one sum over the SuperNodes that the strategy sampled.
Where the terms verify (`verify=True`), clients check a sum before they answer the first request of the next one. The
last sum of each phase has no next one. So at the end of a run `SumGrid` publishes its result, with the announced sum,
to the clients in it, and `secure_mod` checks it as `SumClient.check` does. What became of that is said in words.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from securefed.errors import RoundVoid
from securefed.flower._sum_messages import ARRAY, EVALUATE, METRIC, TRAIN
from securefed.parties._terms import SumTerms

_NAMED: Final = 6
"""So many arrays are named in an error."""
_LOG = logging.getLogger("securefed.flower")
UNVERIFIED: Final = (
    "no client checked a sum of this run: the terms do not let them; use secure_aggregation(verify=True, "
    "identities=...)"
)
"""Said of a run whose terms verify no sums."""
_VOID: Final = (
    "{phase}: the last round was void; clients checked the sum before it, if any, when they answered its requests"
)


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


def void(phase: str) -> str:
    """Return the sentence on a phase whose last round gave no sum."""
    return _VOID.format(phase=phase)


def outcome(phase: str, asked: Collection[int], confirmed: Collection[int], reasons: Mapping[int, str]) -> str:
    """Return the sentence on the last sum of a phase, and log it.

    Args:
        phase: `train` or `evaluate`.
        asked: the SuperNodes in the sum.
        confirmed: those that found it right.
        reasons: by SuperNode, why it did not confirm it, as far as it said so.
    """
    said = f"{phase}: {len(confirmed)} of {len(asked)} SuperNodes checked the last sum and found it right"
    missing = [node for node in asked if node not in set(confirmed)]
    if missing:
        told = [f"{node}: {reasons.get(node, 'no answer')}" for node in missing]
        said += f"; by the others it is not checked, or refused ({'; '.join(told)})"
    _LOG.log(logging.ERROR if missing else logging.INFO, "%s", said)
    return said


def report(publish: Callable[[str], str], phases: Collection[str], terms: Mapping[str, SumTerms]) -> str:
    """Publish the last sums of a run, and return what became of each; empty where there was none.

    A run keeps its result where a sum cannot be published.

    Args:
        publish: publishes the last sum of a phase, and says what became of it.
        phases: those of the run, `train` or `evaluate`.
        terms: by phase.
    """
    if phases and not any(terms[phase].plan.verified for phase in phases):
        return UNVERIFIED
    said = []
    for phase in phases:
        try:
            said.append(publish(phase))
        except Exception as error:
            _LOG.exception("%s: the last sum could not be published", phase)
            said.append(f"{phase}: the last sum could not be published, so that no client checked it: {error!r}")
    return "; ".join(said)
