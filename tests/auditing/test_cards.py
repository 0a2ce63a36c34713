"""The cards of the first screen: an answer for each algorithm, what it does not cover, and what to paste."""

from __future__ import annotations

import shlex
from dataclasses import replace

import pytest

from securefed._auditing.engine.audit_report import Report
from securefed._auditing.engine.audit_result import AUDIT
from securefed._auditing.engine.cell_parts import RunCounts
from securefed._auditing.engine.incomplete_results import Missing
from securefed._auditing.engine.results import FEDERATION
from securefed._auditing.engine.statistics import EXPOSED, INCONCLUSIVE, NOT_DETECTED, PARTIAL, Verdict
from securefed._auditing.report.audit_page import render
from securefed._auditing.report.cards import Card, cards, conclusion
from securefed._auditing.report.outcomes import outcomes
from securefed._auditing.report.selections import remedies
from securefed._auditing.report.sureness import gaps, sureness
from securefed.attacks.views import CHANGING_SURVIVORS
from tests.auditing.page import text
from tests.auditing.test_report import SMALL, cell, report

STUCK = cell("pca/fedpg", "secure_aggregation", "sum only", -0.4, explained=0.0)
"""An attack on sums that failed."""
OPEN = report(
    *SMALL.cells,
    cell("optimization/dsgd", "plain", "server", 1.0),
    cell("optimization/dsgd", "secure_aggregation", "sum only", 1.0),
    cell("optimization/dsgd", "secure_aggregation", "collusion(7)", 1.0),
    cell("pca/fedpg", "plain", "server", 1.0),
    STUCK,
    costs=SMALL.costs,
)


def said(made: Report) -> str:
    return " ".join(conclusion(made))


def whole(card: Card) -> str:
    return " ".join([card.answer, *(line for lines in card.parts.values() for line in lines)])


def card_of(made: Report, name: str) -> Card:
    return next(card for card in cards(made) if card.name == name)


def seeded(made: Report, seeds: int) -> Report:
    return replace(made, settings={**made.settings, AUDIT: {**made.settings[AUDIT], "seeds": seeds}})


def test_every_algorithm_has_one_of_four_answers() -> None:
    held = "Only if the same clients take part in every round, with secure aggregation or DP on secure aggregation"
    assert {card.name: card.answer for card in cards(OPEN)} == {
        "FAPS": held,
        "SSI": held,
        "DSGD": "No",
        "FedPG": "Not known",
    }
    assert [card.tone.name for card in cards(OPEN)] == ["partial", "partial", "exposed", "unsure"]


def test_the_conclusion_says_each_sentence_once_with_the_algorithms_that_it_is_true_of() -> None:
    lines = conclusion(OPEN)
    assert "FAPS: Without protection, the server can compute a part of a client's data." in lines
    assert "SSI, DSGD and FedPG: Without protection, the server can compute a client's data." in lines
    assert (
        "FAPS and SSI: With secure aggregation or DP on secure aggregation no leak above 0.06 of one client's data is "
        "left that these attacks see (accepted: 0.1), as long as the same clients take part in every round."
    ) in lines
    assert (
        "DSGD: A client's data still leak under every protection tried here: treat the messages like the data"
        in said(OPEN)
    )
    assert "FedPG: Under secure aggregation the attacks on a client's data failed." in said(OPEN)
    assert "SSI: The sums give all clients' data together away." in said(OPEN)
    assert "FAPS, DSGD and FedPG: What the sums tell of all clients' data together was not attacked." in lines
    assert "DSGD: Keep most of the clients independent of the server" in said(OPEN)
    shown = text(render(OPEN))
    for card in cards(OPEN):
        for lines in card.parts.values():
            assert all(line in shown for line in lines)


def test_a_protection_that_holds_only_while_clients_stay_says_so_and_what_it_does_not_cover() -> None:
    fixed = report(*(c for c in SMALL.of("pca/ssi") if c.defense != "dp"), costs=SMALL.costs)
    (card,) = cards(fixed)
    assert card.answer == "Only if the same clients take part in every round, with secure aggregation"
    assert card.parts["What that does not cover"] == (
        "Where clients stay away, sums over clients that come and go leak.",
        "Not tested: sums over as few clients as the threshold allows.",
        "1 client or more together with the server may open a sum.",
    )
    assert card.parts["What it costs"] == ("Secure aggregation takes up to 1.5 times the bytes of plain messages.",)
    assert "threshold=8" in card.paste and "threshold=5" not in card.paste
    assert set(card.parts["What that does not cover"]) < set(conclusion(fixed))
    leaking = [replace(c, leakage=replace(c.leakage, high=0.3)) if c.view == "sum only" else c for c in fixed.cells]
    assert cards(report(*leaking))[0].answer == "No"


def test_a_limit_of_one_of_several_protections_names_it() -> None:
    sums = [cell("pca/ssi", name, "sum only", 0.0) for name in ("secure_aggregation", "paillier")]
    (card,) = cards(report(cell("pca/ssi", "plain", "server", 1.0), *sums))
    limits = card.parts["What that does not cover"]
    assert "Under Paillier this holds as long as the key holder does not help the server." in limits
    assert "1 client or more together with the server may open a sum." in limits


def test_the_gate_line_judges_what_the_answer_is_about_and_passes_today() -> None:
    kept = [
        cell("pca/ssi", "secure_aggregation", view, 0.0) for view in ("sum only", "smallest sum", CHANGING_SURVIVORS)
    ]
    (card,) = cards(report(cell("pca/ssi", "plain", "server", 1.0), *kept))
    assert card.answer == "Yes, with secure aggregation"
    words = shlex.split(card.gate)
    given = dict(zip(words[2::2], words[3::2], strict=True))
    assert given["--views"] == "sum only,smallest sum,changing survivors"
    assert (given["--algorithms"], given["--defenses"]) == ("pca/ssi", "secure_aggregation")
    assert (given["--fail-above"], given["--secrets"]) == ("0.1", "client")
    fails = replace(
        kept[0], attack="other", verdict=Verdict(INCONCLUSIVE, 3.0), leakage=replace(kept[0].leakage, high=0.2)
    )
    assert cards(report(cell("pca/ssi", "plain", "server", 1.0), *kept, fails))[0].gate == ""
    assert card_of(OPEN, "DSGD").gate == card_of(OPEN, "DSGD").paste == ""


def test_no_protection_is_advised_against_nothing_and_none_is_called_safe() -> None:
    quiet = report(cell("pca/ssi", "plain", "server", 0.0), cell("pca/ssi", "paillier", "sum only", 0.0))
    (card,) = cards(quiet)
    assert card.answer == "Yes, against these attacks, even without protection"
    assert "No attack here learnt a client's data even from unprotected messages." in whole(card)
    assert "Other attacks may find more." in whole(card)
    assert "What the sums tell of all clients' data together was not attacked." in whole(card)
    stuck = report(cell("pca/ssi", "plain", "server", 0.0, explained=0.0))
    (card,) = cards(stuck)
    assert card.answer == "Not known, and no protection was tried"
    assert "is not known, since the attacks failed or their results scatter too much" in whole(card)
    leaking = report(cell("pca/ssi", "plain", "server", 1.0))
    assert cards(leaking)[0].answer == "No, and no protection was tried"


def test_what_was_not_attacked_is_said_on_every_card() -> None:
    """Silence about sums, rows, records and a lying server never looks like nothing there."""
    (card,) = cards(report(cell("pca/ssi", "plain", "server", 1.0)))
    for part in (
        "all clients' data together was not attacked",
        "a row was in the data was not tested",
        "was not tried",
    ):
        assert part in whole(card)
    nothing = replace(report(), settings=report(cell("pca/ssi", "plain", "server", 1.0)).settings)
    (card,) = cards(nothing)
    assert card.answer == "Not known: nothing was attacked"
    assert "says nothing of what the messages give away" in whole(card)
    (card,) = cards(report(cell("pca/ssi", "ddp", "sum only", 0.0)))
    assert "What unprotected messages give away of a client's data was not attacked." in whole(card)


@pytest.mark.parametrize(("seeds", "answer"), [(1, "Not known: too few runs (1 run)"), (10, None)])
def test_few_runs_answer_nothing(seeds: int, answer: str | None) -> None:
    kept = report(cell("pca/ssi", "plain", "server", 1.0), cell("pca/ssi", "secure_aggregation", "sum only", 0.0))
    (card,) = cards(seeded(kept, seeds))
    assert (card.answer == answer) == (seeds < 3)
    assert ("Rely on 10 runs or more" in said(seeded(kept, seeds))) == (seeds < 3)
    quiet = report(cell("pca/ssi", "plain", "server", 0.0), cell("pca/ssi", "plain", "sum only", 0.0, FEDERATION))
    assert said(seeded(quiet, 2)).count("too few to say that nothing leaks") == 2
    assert "too few" not in said(quiet)


def test_how_sure_it_is_counts_runs_power_failures_and_gaps() -> None:
    runs, power, unknown = map(str, sureness(OPEN))
    assert runs == "Every figure is the mean of 10 runs with other random draws, with a 95 % interval."
    assert power == (
        "“No leak found” (4 of 13 situations) is true of leaks that these attacks can see: they notice mean leaks "
        "from 0.06 (best case) to 0.06. Others may find more."
    )
    assert unknown.startswith("“Not known” (1 of 13 situations)")
    assert not list(gaps(OPEN))
    lacking = replace(OPEN, missing=(Missing("pca/ssi", "dp", "released", "", 0, 10, "no rows"),))
    assert [str(one) for one in gaps(lacking)] == ["1 part of the audit did not run, or not in full."]
    assert 'href="#not-run"' in render(lacking) and 'id="not-run"' in render(lacking)
    assert "10 runs would make it narrower" in str(sureness(seeded(OPEN, 3))[-1])
    assert "One run only" in str(sureness(seeded(OPEN, 1))[-1])


def test_a_wide_interval_is_no_leak_and_no_safety() -> None:
    """Under a protection whose interval reaches above the level, without a leak that was found, nothing is known."""
    leak = cell("pca/ssi", "plain", "server", 1.0)
    quiet = cell("pca/ssi", "secure_aggregation", "sum only", 0.02)
    wide = replace(quiet, leakage=replace(quiet.leakage, high=0.3))
    found = replace(wide, verdict=Verdict(PARTIAL, 0.1))
    kinds = [outcomes(report(leak, one))[0].kind for one in (quiet, wide, found)]
    assert kinds == ["fixed", "unknown", "open"]  # clients that come and go were not attacked


def test_why_nothing_is_known_of_a_protection() -> None:
    """Each cause alone: a failed search, scatter, a leak too small to be noticed. A leak that was found is none."""
    plain = cell("pca/faps", "plain", "server", 1.0)
    quiet = cell("pca/faps", "ddp", "sum only", 0.0)
    missed = replace(quiet, verdict=Verdict(NOT_DETECTED, 0.43))
    wide = replace(quiet, verdict=Verdict(INCONCLUSIVE, 3.0))
    for one, why in (
        (replace(wide, runs=RunCounts(explained=0.0)), "Under Distributed DP the attacks on a client's data failed."),
        (wide, "Under Distributed DP the results scatter too much to tell."),
        (replace(quiet, verdict=Verdict(NOT_DETECTED, float("nan"))), "one run does not say how small a leak"),
        (missed, "but a leak below 0.43 could have been missed."),
    ):
        leaking = cell("pca/faps", "secure_aggregation", "sum only", 0.9)
        (card,) = cards(report(plain, leaking, one))
        assert card.answer == "Not known" and why in whole(card) and "no sign of safety" in whole(card)
    two_views = report(plain, wide, replace(missed, view="changing survivors"))
    assert whole(cards(two_views)[0]).count("Under Distributed DP") == 1  # named once, by the gravest cause
    told = replace(plain, secret="membership", verdict=Verdict("exposed", 0.1))
    assert "Not all that unprotected messages give away was looked for" in said(report(plain, told, quiet))


def test_pooled_data_and_helpers_are_warned_of_only_where_they_leak() -> None:
    (card,) = cards(report(cell("pca/ssi", "secure_aggregation", "sum only", 0.98, FEDERATION)))
    assert "decide whether the server may know them" in whole(card)
    (card,) = cards(report(cell("pca/ssi", "ddp", "sum only", 0.0, FEDERATION)))
    assert "Of all clients' data together no leak was found." in whole(card)
    (card,) = cards(report(cell("pca/ssi", "paillier", "server + key holder", 1.0)))
    assert "Keep the key holder independent of the server" in whole(card)
    (card,) = cards(report(cell("pca/ssi", "paillier", "server + key holder", 0.0)))
    assert "independent" not in whole(card)
    bare = report(cell("pca/ssi", "plain", "collusion(7)", 1.0))
    assert "independent" not in said(bare), "no protection that they could undo"


def test_a_server_that_lies_is_named_and_warned_of_where_it_gets_past_a_protection() -> None:
    honest = cell("optimization/dsgd", "secure_aggregation", "sum only", 0.0)
    lying = cell("optimization/dsgd", "secure_aggregation", "active server", 0.7)
    made = report(honest, lying)
    assert (
        "A server that lies computes a part of a client's data in spite of secure aggregation (a leak of 0.70): make "
        "sure that it cannot send what it likes."
    ) in said(made)
    quiet = cell("optimization/dsgd", "ddp", "active server", 0.0)
    assert "Under Distributed DP a server that lies found no leak." in said(report(honest, lying, quiet))
    alone = said(report(honest, quiet))
    assert "A server that lies was tried by gram/power. It read at most 0.00 of a client's data." in alone
    assert "Under Distributed DP a server that lies found no leak." in alone
    weak = replace(quiet, verdict=Verdict(NOT_DETECTED, 0.75))
    assert "Whether a server that lies reads more under Distributed DP is not known." in said(report(honest, weak))
    asked = replace(report(honest), command="securefed audit --active")
    assert "no such attack applies: none of them looks for the secret of this algorithm." in said(asked)
    assert "A server that lies was not tried: add --active to the command." in said(report(honest))
    clear = cell("pca/faps", "plain", "active server", 0.7)
    one = "FAPS: A server that lies computes a part of a client's data from unprotected messages."
    assert one in conclusion(report(clear, cell("pca/ssi", "plain", "active server", 0.0)))
    known = report(cell("pca/faps", "plain", "server", 0.8), clear)
    assert "from unprotected messages" not in said(known).partition("lies")[2]


def test_an_audit_that_tells_secrets_apart_says_which_of_them_leak() -> None:
    """Counts of labels that are exposed do not expose the rows."""
    made = report(
        cell("step", "plain", "server", 1.0, "labels"),
        cell("step", "plain", "server", 0.3, "samples"),
        cell("step", "plain", "server", 0.0, "gram"),
        cell("step", "plain", "server", 0.6, "membership"),
        cell("step", "secure_aggregation", "sum only", 0.3, "pooled samples"),
    )
    lines = conclusion(made)
    assert lines[:2] == [
        "Without protection, the server can compute a client's label counts.",
        "Without protection, the server can compute a part of a client's samples.",
    ]
    assert "right in 80% of comparisons, a coin in 50%." in said(made)
    twice = report(
        *(cell("step", "plain", view, leak, "samples") for view, leak in (("server", 0.3), ("sum only", 1.0)))
    )
    assert "Without protection, the server can compute a client's samples." in conclusion(twice)
    assert "a part of a client's samples" not in said(twice)  # the worse of two views


def test_a_protection_under_which_a_known_leak_was_not_looked_for_is_not_advised() -> None:
    plain = [cell("step", "plain", "server", 1.0, secret) for secret in ("labels", "statistics")]
    sums = [cell("step", "secure_aggregation", "sum only", 0.0, secret) for secret in ("labels", "statistics")]
    assert outcomes(report(*plain, *sums))[0].kind == "fixed"
    assert outcomes(report(*plain, sums[0]))[0].kind == "unknown"
    assert remedies(report(*plain, sums[0]), "step", 0.1) == []


def test_people_in_the_sums_stand_on_the_card() -> None:
    cells = []
    for name, people in (("pca/ssi", "the mean of 3 people (age)"), ("pca/localpower", "the row of one person (ward)")):
        cells += [cell(name, "plain", "server", 1.0), cell(name, "secure_aggregation", "sum only", 0.0)]
        cells.append(cell(name, "secure_aggregation", "sum only", 1.0, "people", part=f"{people} of all clients' rows"))
    lines = conclusion(report(*cells))
    assert "SSI: People stand in the sums: the server reads the mean of 3 people (age)." in lines
    assert "LocalPower: People stand in the sums: the server reads the row of one person (ward)." in lines
    assert "People" not in said(report(*(one for one in cells if one.secret != "people")))  # the control


def test_a_stronger_observer_never_has_a_milder_verdict() -> None:
    """The lying server's own attack found nothing; the honest server is not known, so neither is the lying one."""
    stuck = cell("pca/ssi", "secure_aggregation", "sum only", -0.4, explained=0.0)
    lying = cell("pca/ssi", "secure_aggregation", "active server", 0.0)
    assert text(render(report(lying, stuck))).count("as seen by “sum only”") == 1
    helped = [cell("pca/ssi", "secure_aggregation", f"collusion({k})", leak) for k, leak in ((2, 1.0), (7, 0.0))]
    assert "as seen by “collusion(2)”" in text(render(report(*helped)))
    going = cell("pca/ssi", "secure_aggregation", "changing survivors", 1.0)
    assert "as seen by" not in text(render(report(lying, going)))  # other sums


def test_membership_says_what_the_attacker_must_know() -> None:
    def row(defense: str, adversary: str, verdict: str, auc: float) -> dict[str, object]:
        return {
            "algorithm": "pca/ssi",
            "defense": defense,
            "adversary": adversary,
            "verdict": verdict,
            "auc": [auc] * 3,
        }

    made = report(cell("pca/ssi", "plain", "server", 0.01))
    found = row("plain", "informed", EXPOSED, 1.0)
    lines = conclusion(replace(made, membership=(found, row("skellam", "informed", NOT_DETECTED, 0.5))))
    assert (
        "An attacker who knows all other rows, those of the other clients too, can tell from unprotected messages "
        "whether one row (a patient) was in a client's data: right in 100% of comparisons, a coin in 50%."
    ) in lines
    assert "Sums do not stop an attacker who knows other rows: it subtracts them." in lines
    assert "Under the kinds of noise tried here no test showed that an attacker can tell." in lines
    unsure = said(replace(made, membership=(found, row("skellam", "informed", INCONCLUSIVE, 0.6))))
    assert "no test showed that" not in unsure and "In 1 of 2 tests the rows were too few" in unsure
    noised = said(replace(made, membership=(row("skellam", "population", PARTIAL, 0.7),)))
    assert "what such rows are like, can tell in spite of skellam" in noised and "Sums do not stop" not in noised
    quiet = replace(made, membership=(row("plain", "informed", NOT_DETECTED, 0.5),))
    assert "No test showed that an attacker can tell which rows were in the data." in said(quiet)
    canary = replace(made, membership=(row("plain", "client canary", EXPOSED, 1.0),))
    assert "Which rows were in the data was not tested" in said(canary)


def test_numbers_of_several_algorithms_are_never_mixed() -> None:
    """Upper bounds are said once, as the largest; every other number stands with the algorithm that it is of."""
    row = {"adversary": "informed", "defense": "plain", "verdict": EXPOSED}
    made = report(cell("pca/ssi", "plain", "server", 0.0), cell("pca/faps", "plain", "server", 0.0))
    members = ({**row, "algorithm": "pca/ssi", "auc": [0.8] * 3}, {**row, "algorithm": "pca/faps", "auc": [1.0] * 3})
    lines = conclusion(replace(made, membership=members))
    assert [line[:4] for line in lines if "right in 80%" in line] == ["SSI:"]
    assert [line[:5] for line in lines if "right in 100%" in line] == ["FAPS:"]


def test_a_leak_under_one_protection_is_said_beside_what_is_not_known_of_another() -> None:
    dsgd = OPEN.of("optimization/dsgd")
    quiet = replace(dsgd[1], defense="ddp", leakage=STUCK.leakage, verdict=STUCK.verdict, runs=STUCK.runs)
    made = report(*dsgd, quiet)
    assert card_of(made, "DSGD").answer == "Not known"
    assert "Under secure aggregation a client's data still leak." in whole(card_of(made, "DSGD"))
    away = report(*SMALL.cells, replace(dsgd[1], algorithm="pca/ssi", defense="ddp", view=CHANGING_SURVIVORS))
    assert "Under Distributed DP a client's data leak where clients stay away" in whole(card_of(away, "SSI"))
    assert "still leak" not in whole(card_of(report(*SMALL.cells), "SSI"))
