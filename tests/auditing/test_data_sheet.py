"""A report says when it was made, of which data, and opens its folds where it is printed."""

from __future__ import annotations

import hashlib
import json
import re
from datetime import UTC, datetime
from pathlib import Path

from securefed import audit
from securefed._auditing.alerts import DataSheet, sheet_lines
from tests.auditing.page import text
from tests.auditing.test_alerts import hospital


def test_a_report_carries_date_parties_columns_and_the_digest_of_its_file(tmp_path: Path) -> None:
    path = hospital(tmp_path / "rows.csv")
    report = audit(
        ["ssi"], ["plain"], data=str(path), owner_column="hospital", label_column="outcome", seeds=1, rounds=1,
        workers=1,
    )  # fmt: skip
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    report.save(tmp_path)
    saved = json.loads((tmp_path / "audit.json").read_text())
    assert saved["data"] == {
        "rows": 300,
        "columns": ["age", "bmi", "sodium", "nt_probnp", "disease"],
        "parties": {"north": 120, "south": 90, "east": 86, "west": 4},
        "party": "hospital",
        "digest": digest,
    }
    assert abs((datetime.now(UTC) - datetime.fromisoformat(saved["date"])).total_seconds()) < 86400
    html = (tmp_path / "audit.html").read_text()
    assert f"{datetime.fromisoformat(report.date):%d %B %Y}." in text(html)
    for part in (
        digest,
        "age, bmi, sodium, nt_probnp, disease",
        "rows by hospital east 86, north 120, south 90, west 4",
    ):
        assert part in text(html)


def test_a_named_set_has_no_file_and_no_digest() -> None:
    report = audit(["ssi"], ["plain"], seeds=1, rounds=1, workers=1)
    assert report.data.digest == "" and report.data.rows == 1797 and report.data.parties == {}
    assert sheet_lines(DataSheet()) == []


def test_print_opens_the_folds(tmp_path: Path) -> None:
    audit(["ssi"], ["plain"], seeds=1, rounds=1, workers=1).save(tmp_path)
    html = (tmp_path / "audit.html").read_text()
    assert "<details>" in html
    printed = html[html.index("@media print") :]
    assert re.search(r"details::details-content \{[^}]*content-visibility: visible", printed)
