"""Print the report of an audit, and the comparison of two, on the command line.

A report of an audit consists of cells. A cell is one attack on one algorithm under one defence, from one view (what the
attacker sees: all messages, sums only, ...), for one secret (one client's data, or all clients' pooled), with its
leakage over several runs and a verdict such as `exposed`. Where an attack did not run, the report gives the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.markup import escape
from rich.table import Table

from securefed._auditing.cases.own_setup import head_text, owner_note
from securefed._auditing.differential_privacy.membership_audit import RECORD_CANARY
from securefed._auditing.engine.audit_result import AUDIT, AuditResult
from securefed._auditing.engine.incomplete_results import DID_NOT_RUN, NOT_ATTACKED
from securefed._auditing.engine.results import CLIENT, FEDERATION, Cell
from securefed._auditing.engine.statistics import ENOUGH, EXPOSED, NOT_DETECTED, PARTIAL
from securefed._auditing.report.algorithm_section import noise_sentence, utility_sentence
from securefed._auditing.report.cards import TITLES, cards, conclusion, next_steps
from securefed._auditing.report.comparison import GREW, LOST, QUIET, SHRANK, Compared
from securefed._auditing.report.membership_rows import ADVERSARIES, by_noise
from securefed._auditing.report.next_runs import enough_seeds
from securefed._auditing.report.observers import names_secrets, strength
from securefed._auditing.report.palette import TONES, tone
from securefed._auditing.report.plain_sums import added, with_sums
from securefed._auditing.report.report_words import (
    ATTACKS_FAILED,
    COUNTS,
    chance_text,
    interval_text,
    leak_text,
    search_failed,
)
from securefed._auditing.report.selections import strongest
from securefed._auditing.report.smallest_client import with_smallest
from securefed._auditing.sentences import table as sentences
from securefed._auditing.sentences.names import secret_title, short, short_defense
from securefed._commands.display import console, plain_table, say, show_alerts

_LONGEST_REASON = 200
"""Largest number of characters of a reason; `audit.json` holds the whole text."""


def show_audit(report: AuditResult) -> None:
    """Print a report: a table with one line for each algorithm, defence and view, and what follows from it.

    Each line holds the strongest attack on one client's data and on all clients' pooled, or numbers of the reasons why
    none ran. Below stand these reasons, a legend, membership inference if it was tested, and what to do next.
    """
    # What an attack found in exact sums counts for unprotected messages too, which a server can add: such cells are
    # added where single messages told less, and named below (`added`). The report on disk keeps what was measured.
    report = with_sums(report)
    show_alerts(report.alerts)
    for name in report.algorithms:
        if sizes := report.settings[name].get("sizes"):
            head = f"[bold]{escape(short(name))}[/]: {escape(head_text(sizes))}"
            console.print(head, soft_wrap=True, highlight=False)
    for note in dict.fromkeys(owner_note(report.settings[name].get("sizes", {})) for name in report.algorithms):
        if note:
            say(note)
    named = names_secrets(report)  # rows, Gram matrices, ... stand apart: the strongest attack on any of them is shown
    best = strongest(report.cells, by_owner=named)
    gaps, reasons = _gaps(report)
    console.print(_leak_table(report, best, gaps))
    for cell in best.values():
        if text := chance_text(cell):
            where = f"{short(cell.algorithm)}, {short_defense(cell.defense)}, {cell.view}"
            console.print(f"{escape(where)}: {cell.leakage.mean:.2f} is no finding: {text}", soft_wrap=True)
    if len(report.algorithms) == 1 and (noise := noise_sentence(report, report.algorithms[0])):
        say(noise)
    if len(report.algorithms) == 1 and (floor := utility_sentence(report, report.algorithms[0])):
        say(floor)
    for cell in added(report):
        where = f"{short(cell.algorithm)}, {short_defense(cell.defense)}, {cell.view}"
        say(f"{where}. {sentences.say('remark', sentences.NOTHING, sentences.NOTHING, 'added')}")
    for number, reason in enumerate(reasons, 1):
        console.print(f"({number}) {escape(_cut(reason))}", soft_wrap=True)
    legend = "  ".join(f"[{_tone(word)}]{look.mark} {word}[/]" for word, look in TONES.items())
    console.print(
        f"{legend}\nWhere it is inconclusive, the attacks failed or scatter too much, and say nothing of the data; "
        f"“worse” is worse than a guess. {COUNTS} Epsilon and everything else are in the report.",
        soft_wrap=True,
        highlight=False,
    )
    if report.membership:
        console.print()
        _show_membership(report)
    _show_cards(report)


def _leak_table(
    report: AuditResult,
    best: Mapping[tuple[str, str, str, str], Cell],
    gaps: Mapping[tuple[str, str, str], Sequence[int]],
) -> Table:
    """Lay out the strongest cells, one line for each algorithm, defence and view.

    Args:
        report: gives the order of the lines.
        best: by algorithm, defence, view and secret, the strongest cell.
        gaps: by algorithm, defence and view, the numbers of the reasons why attacks did not run.
    """
    title = "Leakage of the strongest attack: mean [95 % interval], 1 = exact, 0 = nothing"
    table = plain_table(title, ("defence", "view", "one client", "all clients pooled"), no_wrap=True)
    previous = ("", "")
    for algorithm, defense, view in sorted(dict.fromkeys([*(key[:3] for key in best), *gaps]), key=_order(report)):
        cells = [best.get((algorithm, defense, view, secret)) for secret in (CLIENT, FEDERATION)]
        texts = [_leakage(cell) if cell else "" for cell in cells]
        if names_secrets(report):
            texts = [f"{_leakage(cell)} {secret_title(cell.secret)}" if cell else "" for cell in cells]
        numbers = "".join(f" ({number})" for number in gaps.get((algorithm, defense, view), []))
        absent = f"[dim]{_absent(report, algorithm, defense, view)}{numbers}[/]" if numbers else ""
        if algorithm != previous[0]:
            table.add_row(f"[bold]{escape(short(algorithm))}[/]")
        table.add_row(
            f"  {short_defense(defense)}" if (algorithm, defense) != previous else "",
            view.replace(" + ", "+"),
            *(texts if any(texts) else [absent, ""]),
        )
        if absent and any(texts):
            table.add_row("", "", absent)
        previous = (algorithm, defense)
    return table


def _absent(report: AuditResult, algorithm: str, defense: str, view: str) -> str:
    """Say in two or three words why a line of the table has no figure, or not all of them."""
    where = algorithm, defense, view
    kinds = {item.kind for item in report.missing if (item.algorithm, item.defense, item.view) == where}
    return NOT_ATTACKED if kinds == {NOT_ATTACKED} else DID_NOT_RUN


def _show_cards(report: AuditResult) -> None:
    """Print the answer for each algorithm, the sentences of their cards, what to paste, and what to run next."""
    made = cards(report)
    console.print()
    for card in made:
        style = f"bold {card.tone.terminal}"
        console.print(f"[{style}]{card.tone.mark} {escape(card.name)}: {escape(card.answer)}[/]", highlight=False)
    say("", *conclusion(report, TITLES))
    if report.settings[AUDIT]["seeds"] < ENOUGH:
        say(f"  {enough_seeds(report)}")
    for card in made:
        for said, text in card.steps:
            say(f"\n{card.name}. {said}", *(f"  {line}" for line in text.splitlines()))
    for name, said, text in next_steps(with_smallest(report)):
        say(f"\n{name}. {said}", *(f"  {line}" for line in text.splitlines()))


def _show_membership(report: AuditResult) -> None:
    """Print one line for each algorithm and noise: how well each adversary tells records from others like them."""

    def shown(row: Mapping[str, Any] | None) -> str:
        if row is None:
            return "[dim]did not run[/]"
        value, low, high = row["auc"]
        return f"[{_tone(row['verdict'])}]{tone(row['verdict']).mark} {value:.2f} \\[{low:.2f},{high:.2f}][/]"

    title = "Which rows were in the data: AUC [95 % interval], 1 = certainty, .5 = a coin"
    table = plain_table(title, ("algorithm", "noise", *ADVERSARIES.values()), no_wrap=True)
    previous = ""
    for row in by_noise(report):
        name = row["algorithm"]
        table.add_row(name if name != previous else "", row["noise"], *map(shown, row["found"]))
        previous = name
    console.print(table)
    say("Canaries, the worst case of each noise, are in the report.")
    say(*(f"did not run: {reason}" for reason in report.skipped if RECORD_CANARY in reason))


def _gaps(report: AuditResult) -> tuple[dict[tuple[str, str, str], list[int]], list[str]]:
    """Return the numbers of the reasons by algorithm, defence and view, and the reasons, each once."""
    numbers: dict[str, int] = {}
    gaps: dict[tuple[str, str, str], list[int]] = {}
    for item in report.missing:
        said = f"{item.attack}: {item.said}" if item.attack else item.said
        said = said if item.kind == NOT_ATTACKED else f"{DID_NOT_RUN}: {said}"
        number = numbers.setdefault(said, len(numbers) + 1)
        gaps.setdefault((item.algorithm, item.defense, item.view), []).append(number)
    return gaps, list(numbers)


def _cut(reason: str) -> str:
    """Shorten a reason to `_LONGEST_REASON` characters."""
    return reason if len(reason) <= _LONGEST_REASON else f"{reason[:_LONGEST_REASON]}... (audit.json says it all)"


def _order(report: AuditResult) -> Callable[[tuple[str, str, str]], tuple[int, int, int]]:
    """Return the sort key: algorithms and defences as reported, those without a cell last; views by strength."""
    algorithms = list(dict.fromkeys([*report.algorithms, *(item.algorithm for item in report.missing)]))
    defenses = list(dict.fromkeys([*(cell.defense for cell in report.cells), *(m.defense for m in report.missing)]))
    return lambda key: (algorithms.index(key[0]), defenses.index(key[1]), strength(key[2]))


def _leakage(cell: Cell) -> str:
    """Write a cell's mean leakage and 95 % interval, or that its attacks failed, with its verdict's mark and colour."""
    start = f"[{_tone(cell.verdict.word)}]{tone(cell.verdict.word).mark}"
    if search_failed(cell):
        return f"{start} {ATTACKS_FAILED}[/]"
    mean = leak_text(cell.leakage.mean).partition(" ")[0]  # "worse", which the legend says in full
    ends = interval_text(cell.leakage.low, cell.leakage.high)  # "0.12 to 0.34", "up to 0.34" or nothing
    shown = ends if ends.startswith("up") or not ends else f"\\[{ends.replace(' to ', ',')}]"
    return f"{start} {mean:>5} {shown}[/]"


def _tone(word: str) -> str:
    """Return the colour of a verdict in a terminal, bold where something leaks."""
    return f"bold {tone(word).terminal}" if word == EXPOSED else tone(word).terminal


def show_comparison(rows: Sequence[Compared], uneven: Sequence[str], *, everything: bool) -> None:
    """Print the cells that changed, or all of them, and the settings in which the two audits differ.

    Args:
        rows: the cells of both audits, each with its leakage before and after.
        uneven: sentences on settings in which the audits differ.
        everything: whether to print also the cells that did not change.
    """
    shown = [row for row in rows if everything or row.change not in QUIET]
    table = Table(title="Leakage before and after", title_justify="left", box=None, pad_edge=False)
    for name in ("algorithm, defence, view, attack, secret", "before", "after", "change", "utility", "bytes"):
        table.add_column(name)
    style: dict[str, str] = {GREW: _tone(EXPOSED), LOST: _tone(PARTIAL), SHRANK: _tone(NOT_DETECTED)}
    for row in shown:
        attack = row.attack.rsplit("/", 1)[-1]
        where = f"{short(row.algorithm)}, {short_defense(row.defense)}, {row.view}, {attack}, {row.secret}"
        leaks = ["" if value is None else f"{value:.3f}" for value in (row.before, row.after)]
        change = f"[{style[row.change]}]{row.change}[/]" if row.change in style else row.change
        utility = "" if row.utility is None else f"{row.utility:+.3f}"
        traffic = "" if row.bytes is None else f"x {row.bytes:.2f}"
        table.add_row(escape(where), *leaks, change, utility, traffic)
    if shown:
        console.print(table)
    console.print(f"{len(rows)} cells compared, {len(rows) - len(shown)} without a change that shows and left out.")
    for sentence in uneven:
        console.print(f"- not the same audit: {escape(sentence)}", soft_wrap=True)
