"""Files that the release before this one wrote are read, or refused by name with what to do."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from securefed import Dataset, Federation, Ledger, Limits, RunOptions, Transcript, chain
from securefed._auditing.report import audit_json
from securefed.algorithms import SSI, LoSAC
from securefed.attacks import views
from securefed.defenses import clip, gaussian, secure_aggregation
from securefed.errors import StorageError
from securefed.problems import SoftmaxRegression

SAVED = Path(__file__).parent / "saved"
RNG = np.random.default_rng(0)
ROWS = [Dataset(RNG.uniform(-1, 1, (4, 4))) for _ in range(3)]
LABELLED = [Dataset(RNG.uniform(-1, 1, (4, 4)), np.arange(4) % 2) for _ in range(3)]


def test_a_transcript_is_read_with_its_views() -> None:
    transcript = Transcript.load(SAVED / "run.transcript")
    assert [record.survivors for record in transcript.records] == [(0, 1, 2)] * 2
    view = views.sum_only(transcript, 0)
    assert len(view.rounds) == 2
    assert view.rounds[0].clips


def test_a_ledger_goes_on(tmp_path: Path) -> None:
    path = Path(shutil.copy(SAVED / "site.ledger", tmp_path))
    ledger = Ledger.open(path, Limits(exchanges=10))
    assert ledger.spent.exchanges == 4  # two declared, two charged


def test_a_report_is_compared_with(tmp_path: Path) -> None:
    report = audit_json.read(SAVED / "audit.json")
    assert len(report["cells"]) > 5
    assert {cell["verdict"] for cell in report["cells"]} >= {"exposed"}


def test_a_checkpoint_is_refused_by_name_with_what_to_do(tmp_path: Path) -> None:
    path = Path(shutil.copy(SAVED / "run.checkpoint", tmp_path))
    defense = chain(clip(1.0), gaussian(1.0), secure_aggregation())
    with pytest.raises(StorageError, match=r"has version 1, and this release reads version 4; finish the run with"):
        Federation(SSI(rank=2, tolerance=0.0), ROWS, defense, seed=0, options=RunOptions(checkpoint=path))


def test_a_clients_state_is_refused_by_name_with_what_to_do() -> None:
    federation = Federation(LoSAC(problem=SoftmaxRegression()), LABELLED, chain(secure_aggregation()), seed=0)
    with pytest.raises(StorageError, match=r"has version 2, and this release reads version 4; finish the run with"):
        federation.nodes[0].thaw((SAVED / "client.state").read_bytes())
