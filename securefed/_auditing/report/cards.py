"""One card for each algorithm: what the audit answers, when that is true, and what to paste.

The page's first screen shows the cards, the terminal and `AuditResult.conclusion` the same sentences, those that are
true of several algorithms once (`conclusion`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from securefed._auditing.engine.audit_result import AUDIT, AuditResult
from securefed._auditing.engine.results import CLIENT
from securefed._auditing.gate.leakage_limits import reasons
from securefed._auditing.report.client_sentences import answer, of_client, of_costs, of_limits
from securefed._auditing.report.held_settings import to_paste
from securefed._auditing.report.matrix import anchor
from securefed._auditing.report.next_runs import advised_first, base, changed, open_runs
from securefed._auditing.report.other_sentences import of_everyone, of_helpers, of_liars, of_records
from securefed._auditing.report.outcomes import Outcome, outcome_of
from securefed._auditing.report.palette import Tone, tone
from securefed._auditing.report.plain_sums import as_attacked
from securefed._auditing.report.sentence import Sentence, merged, texts
from securefed._auditing.report.smallest_client import of_smallest, with_smallest
from securefed._auditing.report.sureness import cut, few
from securefed._auditing.sentences.names import short
from securefed._auditing.sentences.table import NOTHING, say

_LOOKS: Final = {"yes": "not detected", "only if": "partial", "no": "exposed", "not known": "inconclusive"}
"""By answer, the verdict whose colour and mark it has."""
TITLES: Final = {
    "client": "One client's data",
    "limits": "What that does not cover",
    "costs": "What it costs",
    "everyone": "All clients' data together",
    "records": "Whether a given row was in the data",
    "liars": "A server that lies, or has help",
    "smallest": "The smallest client",
}
"""By part of a card, its heading."""


@dataclass(frozen=True)
class Card:
    """What an audit says of one algorithm.

    Attributes:
        algorithm: its name in the report.
        name: the name as it is usually written.
        tone: how the answer looks.
        answer: whether a protection keeps one client's data from the server, in a few words.
        parts: by heading, the sentences below it.
        paste: settings of the protection to use, ready to paste; empty where none holds.
        gate: a command that fails when the answer changes; empty where it would fail today.
        level: the accepted leak.
    """

    algorithm: str
    name: str
    tone: Tone
    answer: str
    parts: dict[str, tuple[str, ...]]
    paste: str
    gate: str
    level: float

    @property
    def anchor(self) -> str:
        """Name of the algorithm's section in links."""
        return anchor(self.algorithm)

    @property
    def steps(self) -> list[tuple[str, str]]:
        """Pairs of a sentence and the text to paste below it."""
        made = ((say("paste", "some", CLIENT), self.paste), (say("gate", "some", CLIENT, level=self.level), self.gate))
        return [pair for pair in made if pair[1]]


def cards(report: AuditResult) -> list[Card]:
    """Make the card of each algorithm, in the order of the report."""
    return [_card(report, name) for name in report.algorithms]


def _card(report: AuditResult, name: str) -> Card:
    told = with_smallest(report)
    found = outcome_of(told, name)
    said, head = _said(told, name, found), answer(told, name, found)
    held = found if found is not None and found.kind in ("held", "fixed") and report.command else None
    return Card(
        algorithm=name,
        name=short(name),
        tone=tone(_LOOKS[head.key.word]),
        answer=str(head),
        parts={title: texts(said[part]) for part, title in TITLES.items() if said[part]},
        paste=to_paste(report, name, held.remedies[0].defense, fixed=held.kind == "fixed") if held else "",
        gate=_gate(told, name, held) if held else "",
        level=report.settings[AUDIT]["acceptable"],
    )


def _said(report: AuditResult, name: str, found: Outcome | None) -> dict[str, list[Sentence]]:
    """Say all of an algorithm, by the part of the card."""
    return {
        "client": of_client(report, name, found),
        "limits": of_limits(found),
        "costs": of_costs(found),
        "everyone": list(of_everyone(report, name, found)),
        "records": list(of_records(report, name)),
        "liars": [*of_liars(report, name), *of_helpers(report, name)],
        "smallest": list(of_smallest(report, name)),
    }


def _gate(report: AuditResult, name: str, found: Outcome) -> str:
    """Write the command that fails when a protection no longer holds; empty where it would fail today."""
    level, defense = report.settings[AUDIT]["acceptable"], found.remedies[0].defense
    setting = found.rulings[defense].setting
    views = setting.allowed if found.kind == "held" else setting.same_clients
    cells = tuple(cell for cell in as_attacked(report).of(name) if cell.defense == defense)
    missing = tuple(one for one in report.missing if (one.algorithm, one.defense) == (name, defense))
    judged = replace(report, cells=cells, missing=missing)
    if base(name) != name or reasons(judged, level, views, (CLIENT,)):
        return ""
    own = {"--algorithms": name, "--defenses": defense}
    gate = {"--fail-above": f"{level:g}", "--views": ",".join(views), "--secrets": CLIENT, "--out": "audit-gate"}
    return changed(report.command, own | gate)


def common(made: Sequence[Card]) -> tuple[str, ...]:
    """List the sentences that stand on every one of several cards, but for those on one client's data."""
    if len(made) < 2:
        return ()
    everywhere = set.intersection(*({line for lines in _about_others(card) for line in lines} for card in made))
    return tuple(line for lines in _about_others(made[0]) for line in lines if line in everywhere)


def _about_others(card: Card) -> list[tuple[str, ...]]:
    own = (TITLES["client"], TITLES["limits"], TITLES["costs"])
    return [lines for title, lines in card.parts.items() if title not in own]


def without(parts: Mapping[str, tuple[str, ...]], shared: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Leave sentences that stand below the cards out of the parts of a card."""
    left = {title: tuple(line for line in lines if line not in shared) for title, lines in parts.items()}
    return {title: lines for title, lines in left.items() if lines}


def next_steps(report: AuditResult) -> list[tuple[str, str, str]]:
    """List (algorithms, sentence, command) of what to run next: to settle what is not known, and to search settings."""
    out = [(run.names, run.why, run.command) for run in open_runs(as_attacked(report))]
    name, command = advised_first(report)
    if command:
        said = say("next", NOTHING, NOTHING, "advise", level=report.settings[AUDIT]["acceptable"])
        out.append((short(name), said, command))
    return out


def conclusion(
    report: AuditResult, parts: Iterable[str] = ("client", "limits", "everyone", "records", "liars")
) -> list[str]:
    """Say what follows from an audit, each sentence once with the names of the algorithms that it is true of.

    Args:
        report: the report of the audit.
        parts: keys of `TITLES`, the parts of the cards to speak of.
    """
    told = with_smallest(report)
    said = {short(name): _said(told, name, outcome_of(told, name)) for name in report.algorithms}
    main = [
        line
        for part in parts
        for line in merged({name: own[part] for name, own in said.items()}, len(report.algorithms))
    ]
    return [*texts(cut(report)), *dict.fromkeys(main), *texts(few(report))]
