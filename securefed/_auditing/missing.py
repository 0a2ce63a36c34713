"""What an audit was asked for and did not run, or ran for some seeds only: a gate must not pass for lack of cells."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from securefed._auditing.audit_cells import Missing, Score
from securefed._auditing.task_results import Gap

UNTRIED: Final = "no chosen attack looks at any of its views"


def missing(
    algorithms: Sequence[str],
    defenses: Sequence[str],
    seeds: int,
    scores: Iterable[Score],
    gaps: Iterable[Gap],
    unfit: Mapping[str, str] | None = None,
) -> tuple[Missing, ...]:
    """Every gap of an audit, the larger ones first and without those that follow from them.

    Args:
        algorithms, defenses: what was to run.
        seeds: of each.
        scores: what ran.
        gaps: what tasks say did not.
        unfit: algorithms that the data do not suit, and why.
    """
    known, held = tuple(scores), tuple(gaps)
    out = [Missing(name, "", "", "", 0, seeds, reason) for name, reason in (unfit or {}).items()]
    for algorithm in algorithms:
        for defense in defenses:
            place = (algorithm, defense)
            own = [score for score in known if (score.algorithm, score.defense) == place]
            out += _of(place, seeds, own, [gap for gap in held if (gap.algorithm, gap.defense) == place])
    return tuple(out)


def _of(place: tuple[str, str], seeds: int, scores: Sequence[Score], gaps: Sequence[Gap]) -> Iterator[Missing]:
    """Of one algorithm under one defence."""
    ended = {gap.seed: gap.reason for gap in reversed(gaps) if not gap.view}
    if ended:
        yield Missing(*place, "", "", seeds - len(ended), seeds, ended[min(ended)])
    elif not scores:
        reasons = [f"{gap.attack}: {gap.reason}" for gap in gaps if gap.attack and gap.seed == gaps[0].seed]
        yield Missing(*place, "", "", 0, seeds, "; ".join(dict.fromkeys(reasons)) or UNTRIED)
        return
    for view in dict.fromkeys([*(score.view for score in scores), *(gap.view for gap in gaps if gap.view)]):
        ran: dict[str, set[int]] = {}
        for score in scores:
            if score.view == view:
                ran.setdefault(score.attack, set()).add(score.seed)
        whole = set().union(*ran.values())
        wanted = set(range(seeds)) - set(ended)
        said = [gap for gap in gaps if gap.view == view]
        if not wanted <= whole:
            first = min(wanted - whole)
            reasons = [f"{gap.attack}: {gap.reason}" for gap in said if gap.seed == first]
            yield Missing(*place, view, "", len(whole), seeds, f"no attack applies ({'; '.join(reasons) or UNTRIED})")
        for attack, found in ran.items():
            if not whole <= found:
                first = min(whole - found)
                reason = next((gap.reason for gap in said if (gap.attack, gap.seed) == (attack, first)), UNTRIED)
                yield Missing(*place, view, attack, len(found), seeds, reason)
