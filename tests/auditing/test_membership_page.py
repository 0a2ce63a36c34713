"""The membership part of a report: a sentence, a table of the audited algorithms, and canaries apart from it."""

from __future__ import annotations

from dataclasses import replace

from securefed._auditing.engine.statistics import NOT_DETECTED, PARTIAL
from securefed._auditing.report.audit_page import render
from securefed._auditing.report.membership_sentence import canaries, membership
from tests.auditing.page import tables, text
from tests.auditing.test_report import SMALL


def test_membership_is_summed_up_in_a_sentence() -> None:
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
    less = row | {"algorithm": "pca/faps", "auc": [0.8, 0.7, 0.9]}
    assert membership(replace(SMALL, membership=(less, row, quiet))).startswith(
        "Which rows were in the data: in 2 of 3 tests an attacker can tell, most surely in SSI without noise if it "
        "knows all other"
    )
    said = membership(replace(SMALL, membership=(row, quiet)))
    assert said == (
        "Which rows were in the data: in 1 of 2 tests an attacker can tell, most surely in SSI without noise if it "
        "knows all other rows (90% of comparisons right; a coin gets 50%)."
    )
    assert said in text(render(replace(SMALL, membership=(row, quiet))))
    assert (
        membership(replace(SMALL, membership=(quiet,)))
        == "Which rows were in the data: no test showed that an attacker can tell."
    )
    assert membership(SMALL) == ""
    whole = row | {"algorithm": "any", "adversary": "client canary"}
    own, other = (whole | {"algorithm": name, "adversary": "record canary"} for name in ("pca/ssi", "private/fedavg"))
    made = replace(SMALL, membership=(row, quiet, whole, own, other))
    assert membership(made) == said  # a canary is no test of whether an attacker can tell in this audit
    assert canaries(made) == [whole, own]
    assert membership(replace(SMALL, membership=(whole,))).startswith("Which rows were in the data was not tested")
    short, figures = (rows for rows in tables(render(made)) if rows[0][0] == "algorithm" and "noise" in rows[0])
    assert [line[:2] for line in short[1:]] == [["SSI", "none"], ["SSI", "local laplace"]]
    assert len(figures) == 5 and not any("private" in line[0] for line in figures)
