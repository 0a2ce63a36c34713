"""A ServerApp that was killed and is started again: its sums go on counting, and its budget is not spent twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from flwr.serverapp.strategy import FedAvg

from securefed import Seal
from securefed.defenses import chain, clip, secure_aggregation, skellam
from securefed.errors import BudgetSpent, ConfigError, RolledBackError, StorageError
from securefed.flower import SecureStrategy, secure_mod
from tests.flower import ordinary_app
from tests.flower.grid import LocalGrid
from tests.flower.test_secure_mod import uploads
from tests.flower.test_secure_strategy import QUICK, agree, run, secured


class Killed(BaseException):
    """The ServerApp's process ended."""


def private(folder: Path | None, **more: Any) -> SecureStrategy:
    defense = chain(clip(1.0), skellam(1.0), secure_aggregation())
    return SecureStrategy(FedAvg(fraction_evaluate=0.0), defense, local=("seen",), folder=folder, **QUICK, **more)


def killed_at_the_upload(strategy: SecureStrategy, grid: LocalGrid) -> None:
    """Run until the first SuperNode is asked for its update, and then end."""

    def lose(message: Any) -> bool:
        if uploads(message):
            raise Killed
        return False

    grid.lose = lose
    with pytest.raises(Killed):
        run(strategy, grid, rounds=1)


def again(clients: int = 3) -> LocalGrid:
    """The SuperNodes in a new Flower run: nothing is left in their contexts."""
    return ordinary_app.grid(secure_mod, clients=clients)


def test_epsilon_goes_on_where_the_server_was_killed_and_without_a_folder_it_does_not(tmp_path: Path) -> None:
    whole = private(None)
    run(whole, again(), rounds=4)
    first = private(tmp_path)
    assert first.epsilon == 0
    run(first, again(), rounds=2)
    killed_at_the_upload(private(tmp_path), again())
    second, fresh = private(tmp_path), private(None)
    for strategy in (second, fresh):
        run(strategy, again(), rounds=1)
        assert [(len(entry.survivors), entry.exchanges) for entry in strategy.history] == [(3, 4)]
    assert first.epsilon < second.epsilon == whole.epsilon  # four exchanges, one of them cut short
    assert fresh.epsilon < first.epsilon


def test_a_budget_is_not_spent_twice(tmp_path: Path) -> None:
    once = private(None)
    run(once, again(), rounds=1)
    budget = once.epsilon * 1.01  # for one exchange
    killed_at_the_upload(private(tmp_path, epsilon=budget), again())
    with pytest.raises(BudgetSpent, match="2 exchanges would cost"):
        run(private(tmp_path, epsilon=budget), again(), rounds=1)


def test_the_model_and_the_metrics_are_those_of_a_run_that_was_not_interrupted(tmp_path: Path) -> None:
    seal = Seal(bytes(range(32)))
    run(secured(FedAvg(), folder=tmp_path, seal=seal), again(), rounds=1)
    agree(
        run(secured(FedAvg(), folder=tmp_path, seal=seal), again(), rounds=2),
        run(FedAvg(), ordinary_app.grid(clients=3), rounds=2),
    )
    assert sorted(path.name for path in tmp_path.iterdir() if not path.name.startswith(".")) == [
        "evaluate.state", "evaluate.terms.json", "train.state", "train.terms.json",
    ]  # fmt: skip


def test_fewer_supernodes_may_be_connected_and_other_settings_are_refused(tmp_path: Path) -> None:
    run(secured(FedAvg(fraction_evaluate=0.0), folder=tmp_path), again(5), rounds=1)
    fewer = secured(FedAvg(fraction_evaluate=0.0), folder=tmp_path)
    run(fewer, again(4), rounds=1)
    assert len(fewer.history[0].survivors) == 4
    with pytest.raises(ConfigError, match="under other terms"):
        run(secured(FedAvg(fraction_evaluate=0.0), folder=tmp_path, bounds=3.0), again(), rounds=1)
    (tmp_path / "train.terms.json").unlink()
    with pytest.raises(StorageError, match=r"train\.terms\.json is gone"):
        run(secured(FedAvg(fraction_evaluate=0.0), folder=tmp_path), again(), rounds=1)


def test_a_state_that_is_gone_is_no_new_budget(tmp_path: Path) -> None:
    run(private(tmp_path), again(), rounds=1)
    kept = (tmp_path / "train.state").read_bytes()
    (tmp_path / "train.state").unlink()
    with pytest.raises(StorageError, match="with it the count of exchanges and epsilon"):
        run(private(tmp_path), again(), rounds=1)
    (tmp_path / "train.state").write_bytes(kept)
    run(private(tmp_path), again(), rounds=1)  # the control: with its file it goes on


def test_each_phase_has_an_anchor_of_its_own_and_no_older_state_goes_on(tmp_path: Path) -> None:
    """One anchor for both files would call each of them older than the other."""
    seal = Seal(bytes(range(32)), tmp_path / "elsewhere" / "anchor")
    folder, copies = tmp_path / "sums", []
    for _ in range(2):
        run(secured(FedAvg(), folder=folder, seal=seal), again(), rounds=1)
        copies.append((folder / "train.state").read_bytes())
    assert sorted(path.name for path in (tmp_path / "elsewhere").iterdir()) == [
        "anchor-evaluate.state", "anchor-train.state",
    ]  # fmt: skip
    (folder / "train.state").write_bytes(copies[0])
    with pytest.raises(RolledBackError, match="was written since"):
        run(secured(FedAvg(), folder=folder, seal=seal), again(), rounds=1)
    (folder / "train.state").write_bytes(copies[1])
    run(secured(FedAvg(), folder=folder, seal=seal), again(), rounds=1)
