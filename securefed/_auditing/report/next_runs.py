"""Say which command to run next: to settle what an audit left open, and to be advised on settings.

The page and the terminal show `open_runs` and `advised_first` below the cards. A cell of the report is one attack on
one secret in one view (what an attacker sees), over all runs, each with a seed of its own. It holds

    leakage, null_leakage     mean and 95 % interval of 1 - error / error of a guess, and the same of chance: of the
                              attack on messages that say nothing
    explained                 share of the runs in which the attack's estimate explains the messages; NaN where the
                              attack cannot tell. Below `SIGHTED` its search failed, and its silence means nothing
    verdict.word              a leak, `NOT_DETECTED`, or `INCONCLUSIVE`: the search failed, or the runs are too few or
                              scatter too much
    verdict.detectable        smallest mean leakage that would have been noticed in 8 of 10 audits

A command is the audit's own with other values of some options. An audit of a user's own algorithm has no command; the
number of runs is then given as an argument of the call.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from securefed._auditing.engine.audit_result import AUDIT, AuditResult
from securefed._auditing.engine.results import CLIENT, Cell
from securefed._auditing.engine.statistics import (
    ENOUGH,
    INCONCLUSIVE,
    LEAST_ACCEPTABLE,
    NOT_DETECTED,
    PARTIAL_FROM,
    seeds_for,
    upper,
)
from securefed._auditing.report.message_size import too_few_numbers
from securefed._auditing.report.observers import names_secrets
from securefed._auditing.report.outcomes import outcomes
from securefed._auditing.report.report_words import search_failed
from securefed._auditing.report.selections import PLAIN, alone, strongest
from securefed._auditing.sentences.names import short
from securefed._auditing.sentences.table import NOTHING, counted, listed, say
from securefed._catalogue import algorithms

_MORE: Final = 4
"""Runs that are suggested, over those that were made: four times as many halve the width of an interval, and take an
hour where the audit took a quarter of one."""
_LEVELS: Final = (0.1, 0.2, 0.3, 0.5, 0.9)
"""Sizes of a leak of which the suggestion says whether the runs would show it, beside the accepted one."""
_LEAST: Final = 3
"""Fewest clients that `securefed advise` and secure aggregation accept; a smaller case has so many."""
_SMALLER: Final = 4
"""Factor by which a smaller case has fewer rows a client."""
_KEPT: Final = (
    "--data", "--encoding", "--separator", "--decimal", "--classes", "--clients", "--owner-column", "--label-column",
    "--rows-per-client", "--rounds", "--set", "--standardise", "--fewest",
)  # fmt: skip
"""Options of `securefed audit` that `securefed advise` has too, with the same meaning."""
# Options without a value.
_FLAGS: Final = ("--standardise", "--active", "--membership", "--every-seed")


class NextRun(NamedTuple):
    """One command to run next.

    Attributes:
        names: the algorithms of which something is open.
        why: the cause, and what the command changes.
        command: the command to paste; empty where nothing smaller is left to try.
    """

    names: str
    why: str
    command: str


def open_runs(report: AuditResult) -> list[NextRun]:
    """List what to run next for all that is not known: one command for each cause.

    Two causes exist. Results scatter too much: more runs narrow the interval. The search of an attack failed: more runs
    do not help, but a smaller case has less to search for. The latter comes first, since it takes less time.
    """
    cells = _open(report)
    failed = [cell for cell in cells if search_failed(cell)]
    return [*_smaller(report, failed), *_more_seeds(report, [cell for cell in cells if cell not in failed])]


def _open(report: AuditResult) -> list[Cell]:
    """Select the cells that leave a question open: inconclusive ones, and quiet ones without the power to settle it.

    Of the attacks on one secret in one view only the strongest counts. A protection holds if the upper end of the
    interval and `detectable` are at most the accepted leakage. So a cell that found nothing (a quiet one) is open where
    one of them is above, but only if it could settle an algorithm of which `outcomes` does not know whether a
    protection holds: if it is about one client's data, under a protection, in a view of the server alone (`alone`).

    Where the report is about one algorithm and names its secrets (`names_secrets`: rows, counts of labels, ...), each
    secret has an attack that counts. Elsewhere all secrets of one owner (a client, all clients) are one.
    """
    # A confirmation tells whether a record took part, to an adversary who knows all other rows. It works on every
    # message without noise, so no protection is judged by it, and its outcome is no open question.
    cells = [cell for cell in report.cells if cell.owner != "confirmation"]
    best = strongest(cells, by_owner=not names_secrets(report)).values()
    level = report.settings[AUDIT]["acceptable"]
    waiting = {item.name for item in outcomes(report) if item.kind == "unknown"}

    def weak(cell: Cell) -> bool:
        counts = cell.owner == CLIENT and cell.view in alone(report) and cell.defense != PLAIN
        quiet = cell.verdict.word == NOT_DETECTED and not max(cell.verdict.detectable, upper(cell.leakage)) <= level
        return counts and quiet and short(cell.algorithm) in waiting

    return [cell for cell in best if cell.verdict.word == INCONCLUSIVE or weak(cell)]


def _next(
    report: AuditResult, cells: Sequence[Cell], reason: str, changes: Mapping[str, Any], **places: object
) -> NextRun:
    """Make one suggestion for all algorithms of some cells; without changes there is no command."""
    why = say("next", NOTHING, NOTHING, reason, **places)
    names = listed(short(cell.algorithm) for cell in cells)
    return NextRun(names, why, _command(report, cells, **changes) if changes else "")


def _more_seeds(report: AuditResult, cells: Sequence[Cell]) -> list[NextRun]:
    """Suggest more runs for all cells whose results scatter too much, and say how small a leak they would show.

    Below `ENOUGH` runs no interval can be trusted, so that number is suggested first. An audit of a recording has one
    run for each recorded upload, and cannot have more. Where no number of runs tells, since guessing alone reaches
    too far (`PARTIAL_FROM`) or the results scatter, the suggestion says what would help.
    """
    if not cells:
        return []
    shared = report.settings[AUDIT]
    done = shared["seeds"]
    runs = {"done": counted(done, "run"), "runs": counted(done, "run")}
    if done < ENOUGH:
        return [_next(report, cells, "few runs", {"seeds": ENOUGH}, **runs, enough=ENOUGH)]
    seeds = min(_MORE * done, shared.get("recorded", _MORE * done))
    if seeds == done:
        return [_next(report, cells, "recording", {}, **runs)]
    runs["runs"] = counted(seeds, "run")
    levels: dict[str, tuple[float, Cell]] = {}  # by algorithm, its cell in which the runs show least
    for cell in cells:
        level = _shown_leak(cell, shared["acceptable"], seeds)
        levels[cell.algorithm] = max(levels.get(cell.algorithm, (0.0, cell)), (level, cell), key=lambda pair: pair[0])
    out = []
    for level in sorted({pair[0] for pair in levels.values()}):
        same = [cell for one, cell in levels.values() if one == level]
        if math.isfinite(level):
            out.append(
                _next(report, same, "seeds", {"seeds": seeds}, **runs, time=_duration(report, seeds), leak=level)
            )
        elif (chance := max(cell.null_leakage.high for cell in same)) > PARTIAL_FROM:
            out.append(_next(report, same, "hopeless guess", {}, **runs, chance=chance))
        else:
            out.append(_next(report, same, "hopeless scatter", {}, **runs))
    return out


def _duration(report: AuditResult, seeds: int) -> str:
    """Say in brackets how long so many runs take at the pace of the audit; empty if that is not known.

    The attacks of an audit without a command share its argument `seconds`, whatever the number of runs.
    """
    times = seeds / report.settings[AUDIT]["seeds"]
    if not report.command:
        return f" (with {times:.0f} times the `seconds`)"
    seconds = report.seconds * times
    unit = next((pair for pair in ((3600, "hours"), (60, "minutes")) if seconds >= 2 * pair[0]), (1, "seconds"))
    return f" (about {seconds / unit[0]:.0f} {unit[1]})" if seconds else ""


def _shown_leak(cell: Cell, acceptable: float, seeds: int) -> float:
    """Return the smallest leak, from the accepted one on, that so many runs would show; infinity if they show none."""
    for level in sorted({acceptable, *(one for one in _LEVELS if one > acceptable)}):
        needed = seeds_for(cell.leakage, cell.null_leakage, level)
        if needed is not None and needed <= seeds:
            return level
    return math.inf


def _smaller(report: AuditResult, cells: Sequence[Cell]) -> list[NextRun]:
    """Suggest a smaller case where the search of an attack did not explain the messages.

    Where the messages hold fewer numbers than the rows, no search can succeed, and other questions are suggested.
    """
    groups: dict[tuple[str, int, tuple[tuple[str, Any], ...]], list[Cell]] = {}
    short_of: dict[str, list[Cell]] = {}
    for cell in cells:
        if too_few_numbers(report, cell.algorithm) is None:
            groups.setdefault(_less(report, cell), []).append(cell)
        else:
            short_of.setdefault(cell.algorithm, []).append(cell)
    out = [run for same in short_of.values() for run in _undetermined(report, same)]
    return out + [
        _next(report, same, reason, dict(changes), count=count) for (reason, count, changes), same in groups.items()
    ]


def _undetermined(report: AuditResult, cells: Sequence[Cell]) -> list[NextRun]:
    """Suggest other questions where the messages of an algorithm hold fewer numbers than the rows."""
    found = too_few_numbers(report, cells[0].algorithm)
    assert found is not None
    rows = {"rows": counted(found.determined, "row")}
    out = [_next(report, cells, "determined", {"rows_per_client": found.determined}, **rows)]
    if "--membership" not in report.command:
        out.insert(0, _next(report, cells, "members", {"membership": ""}, **found.places()))
    return out


def _less(report: AuditResult, cell: Cell) -> tuple[str, int, tuple[tuple[str, Any], ...]]:
    """Choose what to make smaller, the clients of a sum, else rows, steps or rounds: reason, size, and the option."""
    settings = report.settings[cell.algorithm]
    clients, rounds = report.settings[AUDIT]["clients"], settings["rounds"]
    rows, steps = _rows(report, cell.algorithm), settings.get("sizes", {}).get("local steps")
    if "sum" in cell.view and clients > _LEAST:
        return "clients", _LEAST, (("clients", _LEAST),)
    if rows is not None and rows > 1:
        fewer = max(rows // _SMALLER, 1)
        return "rows", fewer, (("rows_per_client", fewer),)
    if isinstance(steps, int) and steps > 1:
        return "steps", 1, (("set", "local_steps=1"),)
    if rounds > 1:
        return "rounds", rounds // 2, (("rounds", rounds // 2),)
    return "columns", 0, ()


def _rows(report: AuditResult, algorithm: str) -> int | None:
    rows = report.settings[algorithm].get("sizes", {}).get("rows of client 0")
    return None if rows is None else int(rows)


def _command(report: AuditResult, cells: Sequence[Cell], **changes: Any) -> str:
    """Write the audit's command with changes, for the algorithms and defences of some cells alone.

    The folder of its results is named after the changes, so that this report stays.
    """
    if not report.command:  # `seeds` is the only argument that every call has
        return ", ".join(f"{name}={value!r}" for name, value in changes.items() if name == "seeds")
    own = list(dict.fromkeys(base(cell.algorithm) for cell in cells))
    defenses = list(dict.fromkeys([PLAIN, *(cell.defense for cell in cells)]))
    options = {f"--{name.replace('_', '-')}": str(value) for name, value in changes.items()}
    named = {"--algorithms": ",".join(own), "--defenses": ",".join(defenses)}
    if not set(own) <= set(algorithms.names):  # a user's own class, which the command names by its module
        del named["--algorithms"]
    return changed(report.command, {**named, **options, "--out": _folder(changes)})


def _folder(changes: Mapping[str, Any]) -> str:
    """Name a folder after changes of a command: audit-seeds-40, audit-membership."""
    words = [word for name, value in changes.items() for word in (name, str(value)) if word and name != "set"]
    sets = [str(value).replace("=", "-") for name, value in changes.items() if name == "set"]
    return "-".join(["audit", *words, *sets]).replace("_", "-")


def base(algorithm: str) -> str:
    """Return the registered name of an algorithm that stands in the report with its rows a client."""
    return algorithm.partition(" (")[0]


def changed(command: str, options: Mapping[str, str]) -> str:
    """Write a shell command with other values of some options; `--set` is added to those that stand there."""
    parts = [(name, value) for name, value in parsed(command) if name == "--set" or name not in options]
    start = command.split(" --", maxsplit=1)[0]
    named = {name: value for name, value in options.items() if name in ("--algorithms", "--defenses")}
    rest = [(name, value) for name, value in options.items() if name not in named]
    return _joined(start, [*named.items(), *parts, *rest])


def parsed(command: str) -> list[tuple[str, str]]:
    """Read the options of a shell command, in order; a flag has an empty value."""
    words, out = iter(shlex.split(command)), []
    for word in words:
        if word.startswith("--"):
            out.append((word, "" if word in _FLAGS else next(words, "")))
    return out


def _joined(start: str, options: Iterable[tuple[str, str]]) -> str:
    return " ".join([start, *(f"{name} {shlex.quote(value)}" if value else name for name, value in options)])


def enough_seeds(report: AuditResult) -> str:
    """Write the command of the same audit with enough runs; of an audit without a command the argument."""
    if not report.command:
        return f"seeds={ENOUGH}"
    return changed(report.command, {"--seeds": str(ENOUGH), "--out": _folder({"seeds": ENOUGH})})


def advice_command(report: AuditResult, algorithm: str) -> str:
    """Write `securefed advise` for one algorithm, with the audit's data and settings; empty for the caller's own.

    Where the audit accepts less than `securefed advise` can search for, the command asks for the least that it can.
    """
    if not report.command or base(algorithm) not in algorithms.names or report.settings[AUDIT]["clients"] < _LEAST:
        return ""
    options = [(name, value) for name, value in parsed(report.command) if name in _KEPT and name != "--rows-per-client"]
    sizes = dict(parsed(report.command)).get("--rows-per-client", "")
    if sizes:  # of several, the one of this row of the report
        rows = str(_rows(report, algorithm)) if "," in sizes else sizes
        options.append(("--rows-per-client", rows))
    options.append(("--acceptable", f"{max(report.settings[AUDIT]['acceptable'], LEAST_ACCEPTABLE):g}"))
    return _joined(f"securefed advise {base(algorithm)}", options)


def advised_first(report: AuditResult) -> tuple[str, str]:
    """Choose the algorithm to ask advice on first: one without a protection that holds; return name and command.

    The kinds of `Outcome`, in the order in which advice is needed, the first name of a kind first:

        open     every protection that was attacked leaks
        unknown  no leak was found under some protection, but its attacks failed or scatter too much
        fixed    a protection holds while the same clients take part in every round
        held     a protection holds
        safe     plain messages hold; an algorithm without an outcome counts as safe too
    """
    kinds = {item.name: item.kind for item in outcomes(report)}
    order = ("open", "unknown", "fixed", "held", "safe")
    names = sorted(report.algorithms, key=lambda name: order.index(kinds.get(short(name), "safe")))
    return next(((name, text) for name in names if (text := advice_command(report, name))), ("", ""))
