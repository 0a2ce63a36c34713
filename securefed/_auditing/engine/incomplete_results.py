"""Find what an audit was asked for and did not run, or ran for some seeds only.

`audit_report.make_report` calls `missing` at the end of an audit. The gate, which fails an audit whose leaks exceed a
limit, must not pass because cells of the table are missing; so every gap is listed with its reason.

For each algorithm, defence and seed the audit makes one run and attacks it in several views, each of which is what one
kind of attacker sees. It hands over an `Attempt` for each attack that ran, and a `Gap` with a reason for what did not:
with the names of a view and an attack where that attack did not run on that view, with both empty where the whole run
ended early.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from securefed._auditing.engine.results import Attempt
from securefed._auditing.engine.seed_result import Gap
from securefed._auditing.sentences.names import short, short_defense

UNTRIED: Final = "no chosen attack looks at any of its views"
"""Reason for a defence under which nothing was attacked and nothing was refused."""
NOT_READ: Final = "no attack here reads such messages, so that nothing is known of what they give away"
"""Reason for a view whose run was complete and whose messages every attack refused."""
DID_NOT_RUN, NOT_ATTACKED = "did not run", "not attacked"
"""Kinds of what is missing: a run that is not there, or a complete one whose messages no attack reads."""


@dataclass(frozen=True)
class Missing:
    """Something that the audit was asked for and that did not run, or ran for some seeds only.

    Attributes:
        algorithm: its name.
        defense: name of the defence; empty where the whole algorithm is missing.
        view: name of the view; empty where the whole defence is missing.
        attack: name of the attack; empty where the whole view is missing.
        ran: number of seeds that ran.
        asked: seeds of the audit.
        reason: why the first missing seed is missing.
        kind: `DID_NOT_RUN` or `NOT_ATTACKED`.
        refusals: what the attacks said that were tried and did not run on the first missing seed.
    """

    algorithm: str
    defense: str
    view: str
    attack: str
    ran: int
    asked: int
    reason: str
    kind: str = DID_NOT_RUN
    refusals: tuple[str, ...] = ()

    @property
    def where(self) -> str:
        """Name what is missing."""
        names = (short(self.algorithm), self.defense and short_defense(self.defense), self.view, self.attack)
        return ", ".join(name for name in names if name)

    @property
    def said(self) -> str:
        """Say how many seeds ran, and why the others did not; or that no attack read what was run."""
        if self.kind == NOT_ATTACKED:
            return f"{NOT_ATTACKED}: {self.reason}"
        return f"{self.ran} of {self.asked} seeds ran: {self.reason}"

    def __str__(self) -> str:
        return f"{self.where}: {self.said}"


def missing(
    algorithms: Iterable[str],
    defenses: Sequence[str],
    seeds: int,
    attempts: Iterable[Attempt],
    gaps: Iterable[Gap],
    unfit: Mapping[str, str],
) -> tuple[Missing, ...]:
    """List every gap of an audit, those of one algorithm and defence from the largest to the smallest.

    Gaps that follow from a larger one are left out: where a whole run is missing its views are not listed, and where a
    view was not attacked its attacks are not. An
    attack that ran on a view in no seed is not listed either: it is taken not to apply there.

    Args:
        algorithms: the algorithms that were to run, without the unfit ones.
        defenses: under which each of them was to run.
        seeds: number of runs of each algorithm and defence, numbered from 0.
        attempts: attacks that ran.
        gaps: what the runs report as not run.
        unfit: algorithms that the data do not suit, and why.
    """
    ran, reported = tuple(attempts), tuple(gaps)
    out = [Missing(name, "", "", "", 0, seeds, reason) for name, reason in unfit.items()]
    for algorithm in algorithms:
        for defense in defenses:
            place = (algorithm, defense)
            out += _missing_of(
                place,
                seeds,
                [attempt for attempt in ran if (attempt.algorithm, attempt.defense) == place],
                [gap for gap in reported if (gap.algorithm, gap.defense) == place],
            )
    return tuple(out)


def _missing_of(
    place: tuple[str, str], seeds: int, attempts: Sequence[Attempt], gaps: Sequence[Gap]
) -> Iterator[Missing]:
    """List the gaps of one algorithm under one defence: of whole runs, then view by view.

    Args:
        place: algorithm and defence.
        seeds: number of runs.
        attempts: attacks that ran there.
        gaps: what is reported as not run there.
    """
    # a gap without a view is a run that ended early; of several for one seed the first reason is kept
    ended = {gap.seed: gap.reason for gap in reversed(gaps) if not gap.view}
    if not attempts:  # say why the first run ended, and why no attack ran in the first seed that has such a gap
        tried = [gap for gap in gaps if gap.attack]
        refusals = _refusals(gap for gap in tried if gap.seed == tried[0].seed)
        if ended:
            yield Missing(*place, "", "", 0, seeds, ended[min(ended)], refusals=refusals)
        elif refusals:
            yield Missing(*place, "", "", 0, seeds, NOT_READ, NOT_ATTACKED, refusals)
        else:
            yield Missing(*place, "", "", 0, seeds, UNTRIED)
        return
    if ended:
        yield Missing(*place, "", "", seeds - len(ended), seeds, ended[min(ended)])
    completed = set(range(seeds)) - set(ended)
    for view in dict.fromkeys([*(a.view for a in attempts), *(gap.view for gap in gaps if gap.view)]):
        ran: dict[str, set[int]] = {}  # by attack, the seeds in which it ran on this view
        for attempt in attempts:
            if attempt.view == view and not attempt.derived:  # what follows from an estimate has no gap of its own
                ran.setdefault(attempt.attack, set()).add(attempt.seed)
        yield from _missing_in_view((*place, view), seeds, completed, ran, [gap for gap in gaps if gap.view == view])


def _missing_in_view(
    place: tuple[str, str, str], seeds: int, completed: set[int], ran: Mapping[str, set[int]], gaps: Sequence[Gap]
) -> Iterator[Missing]:
    """List the gaps of one view: first that of seeds in which no attack ran on it, then those of single attacks.

    Args:
        place: algorithm, defence and view.
        seeds: number of runs.
        completed: seeds whose run did not end early.
        ran: by attack, the seeds in which it ran on this view.
        gaps: what is reported as not run on this view.
    """
    attacked = set().union(*ran.values())
    if not completed <= attacked:
        first = min(completed - attacked)
        refusals = _refusals(gap for gap in gaps if gap.seed == first)
        kind = NOT_ATTACKED if refusals and not attacked else DID_NOT_RUN
        yield Missing(*place, "", len(attacked), seeds, NOT_READ if refusals else UNTRIED, kind, refusals)
    for attack, own in ran.items():
        if not attacked <= own:  # in some seed other attacks ran on this view and this one did not
            first = min(attacked - own)
            why = next((gap.reason for gap in gaps if (gap.attack, gap.seed) == (attack, first)), UNTRIED)
            yield Missing(*place, attack, len(own), seeds, why)


def _refusals(gaps: Iterable[Gap]) -> tuple[str, ...]:
    """List what attacks said that did not run, each once."""
    return tuple(dict.fromkeys(f"{gap.attack}: {gap.reason}" for gap in gaps))
