"""What fails a gate between two audits: growth, new leaks, lost sight; and nothing else."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from securefed._auditing.engine.results import FEDERATION, Cell
from securefed._auditing.engine.statistics import EXPOSED, INCONCLUSIVE, NOT_DETECTED, PARTIAL
from securefed._auditing.gate.grown_leaks import growth, unjudged
from securefed._commands.cli import app
from tests.auditing.test_comparison_page import audit, judged

WEAK = judged(0.2, PARTIAL)
STRONGER = judged(0.6, PARTIAL, attack="gram/new")
OTHER = {"defense": "paillier", "view": "sum only"}


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        (
            [WEAK],
            [judged(0.4, PARTIAL)],
            "grew: SSI, Plain, server, gram/power, client: from 0.20 (0.19 to 0.21) to 0.40",
        ),
        ([WEAK], [WEAK, STRONGER], "grew: SSI, Plain, server, gram/power, then gram/new, client: from 0.20"),
        (
            [WEAK],
            [WEAK, judged(1.0, EXPOSED, **OTHER)],
            "new: SSI, Paillier, sum only, gram/power, client: exposed at 1.00",
        ),
        (
            [WEAK],
            [WEAK, judged(0.3, PARTIAL, secret=FEDERATION)],
            "new: SSI, Plain, server, gram/power, federation: partial",
        ),
        ([], [WEAK], "new: SSI, Plain, server, gram/power, client: partial at 0.20 (0.19 to 0.21)"),
        (
            [WEAK],
            [judged(-1.0, INCONCLUSIVE)],
            "no longer known: SSI, Plain, server, gram/power, client: partial at 0.20",
        ),
    ],
)
def test_growth_is_one_reason_and_says_where(before: list[Cell], after: list[Cell], says: str) -> None:
    (reason,) = growth(audit(*before), audit(*after))
    assert str(reason).startswith(says)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([WEAK], [WEAK]),
        ([WEAK], [judged(0.215, PARTIAL)]),
        ([STRONGER], [judged(0.2, PARTIAL, attack="gram/new")]),
        ([STRONGER], [STRONGER, WEAK]),  # a new attack that finds less than is known adds nothing
        ([WEAK], [WEAK, judged(0.0, NOT_DETECTED, **OTHER)]),
        ([WEAK], [WEAK, judged(0.0, INCONCLUSIVE, **OTHER)]),  # nothing was known there, and nothing is
        ([WEAK], [WEAK, judged(-1.0, INCONCLUSIVE, attack="gram/new")]),
        ([judged(0.0, INCONCLUSIVE)], [judged(0.0, NOT_DETECTED)]),
        ([WEAK], [judged(0.205, INCONCLUSIVE)]),  # still as large: nothing went out of sight
        ([judged(0.0, NOT_DETECTED)], [judged(-1.0, INCONCLUSIVE)]),
    ],
)
def test_what_gives_away_no_more_passes(before: list[Cell], after: list[Cell]) -> None:
    assert not growth(audit(*before), audit(*after))
    known = [before[0].verdict.word, after[0].verdict.word]
    not_judged = known[0] != INCONCLUSIVE and known[1] == INCONCLUSIVE
    assert len(unjudged(audit(*before), audit(*after))) == not_judged


def test_membership_counts_where_it_grew_or_is_found_anew() -> None:
    row = {"algorithm": "pca/ssi", "defense": "plain", "adversary": "informed", "auc": [0.6, 0.55, 0.65]}
    low, high = row | {"verdict": NOT_DETECTED}, row | {"auc": [0.9, 0.85, 0.95], "verdict": EXPOSED}
    bare, before, after = (audit(WEAK) | {"membership": rows} for rows in ([], [low], [high]))
    assert [str(reason) for reason in growth(before, after)] == [
        "grew: SSI, Plain, membership, informed: AUC from 0.60 to 0.90"
    ]
    assert [str(reason) for reason in growth(bare, after)] == [
        "new: SSI, Plain, membership, informed: exposed at AUC 0.90, and nothing before"
    ]
    assert not growth(bare, before) and not growth(after, before)
    assert [str(reason) for reason in growth(after, bare)] == [
        "no longer tried: SSI, Plain, membership: the earlier audit has 1 result here, a leak; "
        '--allow-missing "SSI, Plain, membership" accepts that'
    ]


@pytest.mark.parametrize(
    ("cells", "code", "says"),
    [
        ([WEAK], 0, ""),
        ([WEAK, judged(1.0, EXPOSED, **OTHER)], 3, "new: SSI, Paillier, sum only, gram/power, client: exposed at 1.00"),
        ([WEAK, STRONGER], 3, "grew: SSI, Plain, server"),
        ([WEAK, judged(0.0, NOT_DETECTED, **OTHER)], 0, ""),
        (
            [judged(0.0, NOT_DETECTED, **OTHER)],
            3,
            'no longer tried: SSI, Plain: the earlier audit has 1 result here, a leak; --allow-missing "SSI, Plain"',
        ),
        (
            [judged(0.2, INCONCLUSIVE)],
            0,
            "not judged: SSI, Plain, server, gram/power, client: partial before, and inconclusive now",
        ),
    ],
)
def test_the_command_exits_as_it_says_and_names_the_reason(
    tmp_path: Path, cells: list[Cell], code: int, says: str
) -> None:
    def written(name: str, report: dict[str, Any]) -> str:
        (tmp_path / name).write_text(json.dumps(report))
        return str(tmp_path / name)

    files = [written("before.json", audit(WEAK)), written("after.json", audit(*cells))]
    done = CliRunner().invoke(app, ["compare", *files, "--fail-on-growth", "--json"], env={"COLUMNS": "200"})
    assert done.exit_code == code
    assert says in done.stderr and bool(done.stderr) == bool(says)
    assert bool(json.loads(done.stdout)["growth"]) == (code == 3)
    assert CliRunner().invoke(app, ["compare", *files, "--json"]).exit_code == 0


GAP = {"algorithm": "pca/faps", "defense": "plain", "view": "", "attack": "", "ran": 0, "asked": 10, "reason": "no"}
VIEW = {**GAP, "view": "released"}
SOME = {**GAP, "ran": 7}


@pytest.mark.parametrize(
    ("earlier", "later", "fails"),
    [
        ([], [GAP], True),
        ([GAP], [GAP], True),  # of an algorithm nothing is known, now as then
        ([], [VIEW], True),
        ([VIEW], [VIEW], False),
        ([], [SOME], True),
        ([SOME], [{**SOME, "ran": 6}], True),
        ([SOME], [SOME], False),
        ([GAP], [], False),
    ],
)
def test_what_the_later_audit_was_asked_for_and_did_not_run_fails(earlier: list, later: list, fails: bool) -> None:
    before, after = ({**audit(WEAK), "missing": gaps} for gaps in (earlier, later))
    found = growth(before, after)
    assert bool(found) == fails
    assert all(str(reason).startswith("did not run: FAPS, Plain") and "of 10 seeds" in reason.said for reason in found)


def test_a_later_audit_without_a_cell_fails() -> None:
    for allowed in ((), ("SSI",), ("the later audit",)):
        reasons = growth(audit(WEAK), audit(), allowed)
        assert str(reasons[0]) == "did not run: the later audit: it holds no cell"
        assert [reason.where for reason in reasons[1:]] == ["SSI"] * (allowed != ("SSI",))


FULL = [
    judged(leak, word, algorithm=algorithm, defense=defense, view=view, secret=secret)
    for algorithm in ("pca/ssi", "pca/faps")
    for defense, view, leak, word in (("plain", "server", 0.9, EXPOSED), ("paillier", "sum only", 0.0, NOT_DETECTED))
    for secret in ("client", "federation", "membership")
]
"""Twelve situations, six of them leaks."""


@pytest.mark.parametrize(
    ("left", "names"),
    [
        (
            FULL[:4],
            [f"SSI, Paillier, sum only, gram/power, {name}" for name in ("federation", "membership")] + ["FAPS"],
        ),
        (FULL[:6], ["FAPS"]),
        (FULL[:9], ["FAPS, Paillier"]),
        (FULL[1:], ["SSI, Plain, server, gram/power, client"]),
        ([replace(FULL[0], attack="gram/other"), *FULL[1:]], ["SSI, Plain, server, gram/power, client"]),
        ([replace(FULL[0], attack="gram/other"), *FULL[3:]], ["SSI, Plain, server, gram/power"]),
    ],
)
def test_what_the_later_audit_no_longer_tries_fails_until_its_name_is_allowed(
    tmp_path: Path, left: list[Cell], names: list[str]
) -> None:
    files = [tmp_path / "before.json", tmp_path / "after.json"]
    for file, cells in zip(files, (FULL, left), strict=True):
        file.write_text(json.dumps(audit(*cells)))
    command = ["compare", *map(str, files), "--fail-on-growth", "--json"]

    def gate(*allowed: str) -> Any:
        options = [part for name in allowed for part in ("--allow-missing", name)]
        return CliRunner().invoke(app, [*command, *options], env={"COLUMNS": "200"})

    failed = gate()
    assert failed.exit_code == 3
    printed = [line.split(": ")[1] for line in failed.stderr.splitlines()]
    assert printed == names
    assert gate(*printed[:-1], "FA").exit_code == 3  # a part of a name is no name
    allowed = gate(*printed)
    assert (allowed.exit_code, allowed.stderr, json.loads(allowed.stdout)["growth"]) == (0, "", [])


def test_a_name_allows_what_begins_with_it_and_no_leak_that_grew() -> None:
    grown = [judged(0.99, EXPOSED, half=0.001, algorithm="pca/faps", secret="client"), *FULL[:6]]
    assert not growth(audit(*FULL), audit(*FULL[:7]), ("FAPS",))
    assert [reason.kind for reason in growth(audit(*FULL), audit(*grown), ("FAPS",))] == ["grew"]


def test_fewer_seeds_than_before_fail_until_they_are_allowed() -> None:
    before, after = (audit(WEAK) for _ in range(2))
    for report, seeds in ((before, 10), (after, 2)):
        report["settings"]["audit"] = {"seeds": seeds}
    (reason,) = growth(before, after)
    assert str(reason).startswith("no longer tried: seeds: 10 before and 2 now")
    assert not growth(before, after, ("seeds",)) and not growth(after, before)


def test_what_did_not_run_is_named_once_and_can_be_allowed() -> None:
    before, after = audit(*FULL), {**audit(*FULL[:6]), "missing": [{**GAP, "defense": ""}]}
    assert [str(reason) for reason in growth(before, after)] == ["did not run: FAPS: 0 of 10 seeds ran: no"]
    assert not growth(before, after, ("FAPS",))
