"""The membership part of a report: a table of the audited algorithms, and canaries apart from it."""

from __future__ import annotations

from dataclasses import replace

from securefed._auditing.engine.statistics import NOT_DETECTED, PARTIAL
from securefed._auditing.report.audit_page import render
from securefed._auditing.report.membership_rows import canaries
from tests.auditing.page import tables
from tests.auditing.test_report import SMALL


def test_canaries_stand_apart_from_the_audited_algorithms() -> None:
    row = {"algorithm": "pca/ssi", "defense": "plain", "adversary": "informed", "epsilon": None, "verdict": PARTIAL}
    row |= {
        "auc": [0.9, 0.8, 1.0],
        "tpr": [0.1, 0, 0.2],
        "null": [0.3, 0.7],
        "members": 9,
        "others": 9,
        "detectable": 0.1,
    }
    quiet = row | {"defense": "local_laplace", "verdict": NOT_DETECTED, "auc": [0.5, 0.4, 0.6]}
    whole = row | {"algorithm": "any", "adversary": "client canary"}
    own, other = (whole | {"algorithm": name, "adversary": "record canary"} for name in ("pca/ssi", "private/fedavg"))
    made = replace(SMALL, membership=(row, quiet, whole, own, other))
    assert canaries(made) == [whole, own]
    short, figures = (rows for rows in tables(render(made)) if rows[0][0] == "algorithm" and "noise" in rows[0])
    assert [line[:2] for line in short[1:]] == [["SSI", "none"], ["SSI", "local laplace"]]
    assert len(figures) == 5 and not any("private" in line[0] for line in figures)
