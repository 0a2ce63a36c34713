"""Every command ends with the exit code that docs/command-line.md says, for each of the four codes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from securefed._commands.cli import app
from tests.frozen.test_saved_releases import FILES

STUDY = """
algorithm = "pca/ssi"
data = "digits"
clients = 4
rounds = 1
[settings]
rank = 2
[defense]
name = "plain"
[require]
hidden = true
"""
AUDIT = "audit --algorithms pca/ssi --seeds 1 --clients 3 --workers 1 --defenses plain --out out"
RUN = "run pca/ssi --data digits --clients 4 --rounds 1 --set rank=2"
DONE = (
    "--version",
    "list",
    "list attacks",
    "doctor",
    "plan pca/ssi plain",
    f"{RUN} --defense secure_aggregation",
    f"{RUN} --out out",
    "run study.toml --yes",
    AUDIT,
    "compare audit.json audit.json",
    "compare less.json audit.json",
    "compare audit.json audit.json --fail-on-growth",
    "key new.key",
    "ledger create new.ledger",
    "ledger show site.ledger",
    "party identity site.key",
    "party status party/exchange",
)
OTHERS: dict[str, tuple[int, str]] = {
    "run study.toml": (1, "Less than required"),
    "run pca/unknown --data digits": (2, "pca/unknown"),
    "run pca/ssi --data digits --rounds 1": (2, "it needs rank"),
    "run pca/ssi --data nowhere.csv --set rank=2": (2, "there is no such file"),
    "run pca/ssi --no-such-option": (2, "No such option"),
    "no-such-command": (2, "No such command"),
    "plan pca/ssi secure_aggregation --clients 1": (2, "Error: "),
    "audit --algorithms unknown --out out": (2, "unknown"),
    "audit --algorithms pca/ssi --fail-above 2 --out out": (2, "below 1"),
    "compare study.toml audit.json": (2, "is not JSON"),
    "ledger create site.ledger": (2, "no ledger is overwritten"),
    "ledger show nowhere.ledger": (2, "there is no ledger"),
    "party status nowhere": (2, "cannot read the exchange folder"),
    "party terms party/terms.json --like party/update.npz --clients 9": (2, "holds other terms"),
    f"{AUDIT} --fail-above 0.2": (3, "above 0.2: pca/ssi, plain"),
    "compare less.json audit.json --fail-on-growth": (3, "nothing before to compare with"),
}
CODES = dict.fromkeys(DONE, (0, "")) | OTHERS
"""By line, the code and a part of what it says."""


@pytest.mark.parametrize("line", CODES)
def test_a_command_ends_with_its_code(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.unpack_archive(FILES / "0.1.zip", tmp_path)
    monkeypatch.chdir(tmp_path)
    Path("study.toml").write_text(STUDY)
    report = json.loads(Path("audit.json").read_text())
    report["cells"] = [cell for cell in report["cells"] if cell["verdict"] != "exposed"]
    Path("less.json").write_text(json.dumps(report))
    done = CliRunner().invoke(app, line.split(), env={"COLUMNS": "200"})
    code, says = CODES[line]
    assert done.exit_code == code, (done.output, done.exception)
    assert says in " ".join(done.output.split())
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception


def test_every_code_of_the_page_is_tested() -> None:
    page = (Path(__file__).parents[2] / "docs" / "command-line.md").read_text().partition("## Exit codes")[2]
    rows = [row.split("|")[1] for row in page.splitlines() if row.startswith("| ")]
    assert {int(cell) for cell in rows if cell.strip().isdigit()} == {code for code, _ in CODES.values()}
