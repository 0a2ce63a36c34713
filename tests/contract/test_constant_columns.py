"""Columns that do not vary: every algorithm runs on them or refuses by name, and an audit of nothing else says so."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from securefed import Dataset, Federation, RunOptions, chain
from securefed import _catalogue as catalogue
from securefed._auditing.cases.data_splits import even_shares
from securefed._commands.cli import app
from securefed.datasets import LoadedDataset
from securefed.defenses import secure_aggregation
from securefed.errors import DataError, SecureFedError
from tests.combinations import sampled
from tests.contract.settings import data, make

COLUMNS = {"all": slice(None), "one": slice(2, 3)}


def constant(value: float, columns: slice) -> list[Dataset]:
    """The battery's data with some columns set to a value."""
    out = []
    for part in data():
        x = part.x.copy()
        x[:, columns] = value
        out.append(Dataset(x, part.y))
    return out


@pytest.mark.parametrize(("name", "value", "columns"), sampled(catalogue.algorithms.names, [0.0, 0.5], COLUMNS))
def test_every_algorithm_runs_on_constant_columns_or_refuses_by_name(name: str, value: float, columns: str) -> None:
    clients = constant(value, COLUMNS[columns])
    options = RunOptions(keep_transcript=False)
    federation = Federation(make(name), clients, chain(secure_aggregation()), seed=1, options=options)
    try:
        output = federation.run(2).output
    except SecureFedError:
        assert columns == "all"  # one column of several is no reason to refuse
    else:
        assert all(np.isfinite(tensor).all() for tensor in output.values())


def source(x: np.ndarray) -> LoadedDataset:
    return LoadedDataset(Dataset(x, np.arange(len(x)) % 3), "mine", 1.0)


def test_rows_that_are_all_the_same_are_not_audited() -> None:
    rng = np.random.default_rng(2)
    varied = rng.uniform(0, 1, (40, 6))
    varied[:, 1:] = 0.5
    assert even_shares(source(varied), 8, 0).public.clients == 8
    for value in (0.0, 0.5):
        with pytest.raises(DataError, match="all rows are the same"):
            even_shares(source(np.full((40, 6), value)), 8, 0)


@pytest.mark.parametrize("value", [0.0, 0.5])
def test_an_audit_of_constant_columns_alone_is_refused_by_name(tmp_path: Path, value: float) -> None:
    """It ended in a ZeroDivisionError: the guess without messages is exact, and leakage is measured against it."""
    np.savez(tmp_path / "mine.npz", x=np.full((40, 6), value), y=np.arange(40) % 3)
    options = ["--algorithms", "pca/ssi", "--defenses", "plain", "--seeds", "1", "--workers", "1"]
    done = CliRunner().invoke(app, ["audit", "--data", str(tmp_path / "mine.npz"), *options, "--out", str(tmp_path)])
    assert isinstance(done.exception, SystemExit), done.exception
    assert done.exit_code == 2
    assert "all rows are the same" in " ".join(done.output.split())
