"""No two sentences of a report's first screen contradict each other, whatever was found under which protection."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import pytest

from securefed._auditing.engine.audit_report import Report
from securefed._auditing.engine.results import CLIENT, Cell
from securefed._auditing.engine.statistics import PARTIAL, Verdict
from securefed._auditing.report.audit_page import render
from securefed._auditing.report.cards import TITLES, cards, conclusion, next_steps
from securefed._auditing.report.outcomes import outcomes
from securefed._auditing.report.plain_sums import added, as_attacked, with_sums
from securefed._auditing.report.sureness import sureness
from tests.auditing.page import text
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


def said_of(raw: Report) -> str:
    """Return all that the first screen says of one report."""
    shown = with_sums(raw)
    steps = (f"{said} {command}" for _, said, command in next_steps(shown))
    answers = (card.answer for card in cards(shown))
    return " ".join([*answers, *conclusion(shown, TITLES), *steps, *map(str, sureness(shown))])


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


def contradictions(whole: str) -> Iterator[str]:
    """Name the pairs of sentences of one report that cannot both be true."""
    for first, second in (
        ("No attack here learnt", "still leak under every protection"),
        ("not known, since the attacks failed", "still leak under every protection"),
        ("No attack here learnt", "the server can compute"),
        ("is left that these attacks see", "do not rely on it yet"),
        ("is left that these attacks see", "treat the messages"),
        ("No protection was needed", "treat the messages"),
        ("No protection was needed", "still leak"),
        ("was not tried", "A server that lies computes"),
        ("was not tried", "A server that lies was tried"),
    ):
        if first in whole and second in whole:
            yield f"{first} / {second}"
    if "still leak under every protection" in whole and "the server can compute" not in whole:
        yield "They leak, of data that no sentence says leak"
    held = "No protection was needed" in whole or "(accepted: 0.1)." in whole
    if whole.startswith("Yes") and not held:
        yield "an answer that its sentences do not give"
    if whole.startswith("Only if the same") and "(accepted: 0.1), as long as" not in whole:
        yield "a condition that its sentences do not give"
    if (held and whole.startswith(("No", "Not known"))) or (whole.startswith("Yes") and "in spite of" in whole):
        yield "a sentence of safety without its answer"


@pytest.mark.parametrize("part", first_ones(range(PARTS)))
def test_no_two_sentences_of_the_first_screen_contradict_each_other(part: int) -> None:
    audits = list(combinations())[part::PARTS]
    assert len(audits) > 2600 // PARTS
    found: dict[str, list[str]] = {}
    for audit in audits:
        for what in contradictions(said_of(audit)):
            found.setdefault(what, [f"{c.defense}, {c.view}: {c.leakage.mean}" for c in audit.cells])
    assert not found


def test_contradictions_are_noticed() -> None:
    """The sentences of an earlier version, for plain messages that are quiet and sums that leak."""
    whole = said_of(report(made("quiet", "plain", "server"), made("partial", "secure_aggregation", "sum only")))
    assert not list(contradictions(whole))
    old = "No. No attack here learnt a client's data. A client's data still leak under every protection tried here."
    assert len(list(contradictions(old))) >= 2


def test_who_reads_single_messages_is_credited_with_what_their_sum_gives_away() -> None:
    failed = made("failed", "plain", "server")
    sums = made("partial", "secure_aggregation", "sum only")
    (extra,) = added(with_sums(report(failed, sums)))
    assert (extra.defense, extra.view, extra.leakage) == ("plain", "server", sums.leakage)
    assert conclusion(with_sums(report(failed, sums)))[0] == (
        "Without protection, the server can compute a part of a client's data."
    )
    assert as_attacked(with_sums(report(failed, sums))).cells == (failed, sums)
    page = text(render(report(failed, sums)))
    assert "Without protection, the server can compute a part of a client's data." in page
    assert "Found by an attack on sums of the messages" in page and "found in sums" in page
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
    assert "No protection was needed" not in said_of(audit)
    worked = report(made("quiet", "plain", "server"), made("little", "secure_aggregation", "sum only"))
    assert outcomes(with_sums(worked))[0].kind == "safe"
    assert "Without protection, the server can compute a part of a client's data." in said_of(worked)
    assert "gave at most 0.1 of one client's data away" in said_of(worked)


def test_messages_are_not_safe_without_protection_where_protected_ones_leak() -> None:
    audit = report(made("quiet", "plain", "server"), made("partial", "ddp", "sum only"))
    assert outcomes(audit)[0].kind == "open"
    assert "No attack here learnt a client's data even from unprotected messages." in said_of(audit)
    assert "unprotected messages hide no more than these" in said_of(audit)
