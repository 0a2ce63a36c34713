"""No two sentences of a report's first screen contradict each other, whatever was found under which protection."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from securefed._auditing.engine.audit_report import Report
from securefed._auditing.engine.results import CLIENT, Cell
from securefed._auditing.engine.statistics import PARTIAL, Verdict
from securefed._auditing.report.actions import actions
from securefed._auditing.report.audit_page import render
from securefed._auditing.report.decision import decision
from securefed._auditing.report.outcomes import outcomes
from securefed._auditing.report.palette import TONES
from securefed._auditing.report.plain_sums import added, as_attacked, with_sums
from securefed._auditing.report.sureness import sureness
from tests.auditing.page import text
from tests.auditing.test_first_screen import rows
from tests.auditing.test_report import cell, report
from tests.combinations import first_ones

FINDINGS = {"exposed": 1.0, "partial": 0.5, "little": 0.08, "quiet": 0.0, "failed": -0.4}
"""Leakages of the cells that are combined; `little` is found and within the accepted leak of .1."""
NAME = "optimization/fedavg"
PARTS = 11
"""Tests over which the combinations are spread: a prime above all numbers of values, so each part has every value."""


def made(finding: str, defense: str, view: str, secret: str = CLIENT) -> Cell:
    leak = FINDINGS[finding]
    one = cell(NAME, defense, view, leak, secret, explained=0.0 if finding == "failed" else 1.0)
    return replace(one, verdict=Verdict(PARTIAL, 0.06)) if finding == "little" else one


@dataclass(frozen=True)
class Said:
    """What the first screen says of one report, by part."""

    report: Report
    decision: str
    actions: str
    sure: str
    rows: dict[tuple[str, str], list[list[str]]]

    @staticmethod
    def of(raw: Report) -> Said:
        shown = with_sums(raw)
        todo = " ".join(f"{one.what} {one.why} {' '.join(why for why, _ in one.steps)}" for one in actions(shown))
        parts = decision(shown), todo, " ".join(sureness(shown))
        return Said(shown, *parts, rows(shown))


def combinations() -> Iterator[Report]:
    """Yield a report for each combination of findings in the clear, in sums, in noised sums and by a lying server."""
    for plain, sums, noised, changing, active, bare in itertools.product(
        (*FINDINGS, ""), (*FINDINGS, ""), ("partial", "little", "quiet", "failed", ""), ("partial", ""),
        ("partial", "quiet", "failed", ""), ("exposed", ""),
    ):  # fmt: skip
        if not plain + sums + noised + changing or (bare and not plain):
            continue
        where = (
            (plain, "plain", "server"), (sums, "secure_aggregation", "sum only"), (noised, "ddp", "sum only"),
            (changing, "secure_aggregation", "changing survivors"), (active, "secure_aggregation", "active server"),
            (bare, "plain", "active server"),
        )  # fmt: skip
        yield report(*(made(*one) for one in where if one[0]))


def contradictions(said: Said) -> Iterator[str]:
    """Name the pairs of sentences of one report that cannot both be true."""
    whole = " ".join((said.decision, said.actions, said.sure))
    known_leak = "can compute" in said.decision
    for first, second in (
        ("No attack here learnt", "They still leak"),
        ("No attack here learnt", "they still leak"),
        ("not known: the attacks failed", "They still leak"),
        ("No attack here learnt", "the server can compute"),
        ("No leak was found", "Something leaks"),
        ("no more than the accepted leak is left", "Do not rely on a protection"),
        ("no more than the accepted leak is left", "Treat the messages"),
        ("no protection was needed", "Treat the messages"),
        ("no protection was needed", "still leak"),
        ("no protection was needed", "give away all"),
        ("was not tried", "A server that lies computes"),
        ("was not tried", "A server that lies read nothing"),
        ("Use secure aggregation", "Treat the messages"),
        ("Use secure aggregation", "under every protection tried here"),
    ):
        if first in whole and second in whole:
            yield f"{first} / {second}"
    if "They still" in said.decision and not known_leak:
        yield "They leak, of data that no sentence says leak"
    if "no protection was needed" in whole and known_leak and "no more than the accepted one" not in said.decision:
        yield "a leak that needs no protection, without that it is accepted"
    lied = next((cells for (name, who), cells in said.rows.items() if "None" in name and "that lies" in who), [[""]])
    if lied[0][0].startswith("exposed") and not known_leak and "A server that lies computes" not in said.decision:
        yield "unprotected messages not known to leak, which a server that lies reads"
    order = [look.words for look in TONES.values()]
    verdicts = {key: order.index(cells[0][0].split(":")[0]) for key, cells in said.rows.items() if cells and cells[0]}
    bare = min((rank for (name, who), rank in verdicts.items() if "None" in name), default=None)
    summed = min(
        (rank for (name, who), rank in verdicts.items() if "Secure" in name and who.endswith("only sums")), default=None
    )
    if bare is not None and summed is not None and summed < 2 and summed < bare:
        yield f"unprotected messages are called {order[bare]}, their sums {order[summed]}"


@pytest.mark.parametrize("part", first_ones(range(PARTS)))
def test_no_two_sentences_of_the_first_screen_contradict_each_other(part: int) -> None:
    audits = list(combinations())[part::PARTS]
    assert len(audits) > 2600 // PARTS
    found: dict[str, list[str]] = {}
    for audit in audits:
        for what in contradictions(Said.of(audit)):
            found.setdefault(what, [f"{c.defense}, {c.view}: {c.leakage.mean}" for c in audit.cells])
    assert not found


def test_contradictions_are_noticed() -> None:
    """The sentences of an earlier version, for plain messages that are quiet and sums that leak."""
    said = Said.of(report(made("quiet", "plain", "server"), made("partial", "secure_aggregation", "sum only")))
    assert not list(contradictions(said))
    old = replace(said, decision="No attack here learnt a client's data. They still leak under every protection.")
    assert len(list(contradictions(old))) >= 2
    raw = replace(said, rows=rows(as_attacked(said.report)))
    assert list(contradictions(raw)) == ["unprotected messages are called no leak found, their sums partly exposed"]


def test_who_reads_single_messages_is_credited_with_what_their_sum_gives_away() -> None:
    failed = made("failed", "plain", "server")
    sums = made("partial", "secure_aggregation", "sum only")
    (extra,) = added(with_sums(report(failed, sums)))
    assert (extra.defense, extra.view, extra.leakage) == ("plain", "server", sums.leakage)
    assert rows(with_sums(report(failed, sums)))["None", "the server, which reads every message"] == [
        ["partly exposed"]
    ]
    assert as_attacked(with_sums(report(failed, sums))).cells == (failed, sums)
    page = text(render(report(failed, sums)))
    assert "Without protection, the server can compute a part of a client's data." in page
    assert "found by an attack on sums of the messages" in page and "found in sums" in page
    for other in (
        report(failed, made("partial", "ddp", "sum only")),  # under noise training goes another way
        report(failed, made("failed", "secure_aggregation", "sum only")),  # nothing is known of the sums
        report(made("exposed", "plain", "server"), sums),  # more is known of single messages
        report(sums),  # single messages were not attacked
        report(failed, replace(sums, view="changing survivors")),  # a run of its own
    ):
        assert with_sums(other) is other


def test_a_small_leak_in_sums_does_not_make_messages_safe_whose_attack_failed() -> None:
    audit = report(made("failed", "plain", "server"), made("little", "secure_aggregation", "sum only"))
    assert outcomes(with_sums(audit))[0].kind == "fixed"
    assert "no protection was needed" not in Said.of(audit).actions
    worked = report(made("quiet", "plain", "server"), made("little", "secure_aggregation", "sum only"))
    assert outcomes(with_sums(worked))[0].kind == "safe"
    assert Said.of(worked).decision == (
        "Without protection, the server can compute a part of a client's data. The leak is no more than the accepted "
        "one. What the sums tell of all clients' data together was not attacked."
    )


def test_messages_are_not_safe_without_protection_where_protected_ones_leak() -> None:
    audit = report(made("quiet", "plain", "server"), made("partial", "ddp", "sum only"))
    assert outcomes(audit)[0].kind == "open"
    assert decision(audit) == (
        "No attack here learnt a client's data even from unprotected messages. But under every protection tried here "
        "an attack found a leak; unprotected messages hide no more than these."
    )
