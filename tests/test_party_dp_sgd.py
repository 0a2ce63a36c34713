"""`securefed party` with a model that DP-SGD trained: the ledger is asked after the training, and before the reply."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from securefed import Ledger, Limits
from securefed._commands.cli import app
from tests.test_dp_sgd_ledger import CLIENTS, EXAMPLE, NOISE, RATE, STEPS, Site, renyi

RUNNER = CliRunner()
RECORD = Limits(epsilon=renyi(NOISE, RATE, STEPS) * 1.01, unit="record")


def command(*words: Any, code: int = 0) -> str:
    done = RUNNER.invoke(app, [*map(str, words)], env={"COLUMNS": "200"})
    assert done.exit_code == code, (words, done.output, done.exception)
    return " ".join(done.output.split())


@pytest.fixture
def sites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Site]:
    """Sites with ledgers and their limits, in a folder with terms and keys; each trained, and wrote its model."""
    monkeypatch.chdir(tmp_path)
    np.savez("start.npz", **{name: value.numpy() for name, value in EXAMPLE.items()})
    for name in (*range(CLIENTS), "server"):
        command("party", "identity", f"{name}.key")
    command("party", "terms", "terms.json", "--like", "start.npz", "--clients", CLIENTS)
    Path("exchange").mkdir()
    return [Site(tmp_path, i, RECORD) for i in range(CLIENTS)]


def model(site: Site, number: int, steps: int = STEPS) -> None:
    trained = {name.removeprefix("_module."): value.numpy() for name, value in site.train(steps).items()}
    np.savez(f"model-{number}.npz", **trained)


def contribute(client: int, *more: Any, code: int = 0) -> str:
    given = ("--update", f"model-{client}.npz", "--base", "start.npz", "--ledger", f"{client}.ledger")
    keys = ("--server", "server.key.pub")
    return command(
        "party", "contribute", "exchange", "--terms", "terms.json", "--party", client, *given, *keys, *more, code=code
    )


def server() -> str:
    base = () if list(Path("exchange").iterdir()) else ("--base", "start.npz")
    return command("party", "sum", "exchange", "--terms", "terms.json", "--identity", "server.key", *base)


def to_the_upload(sites: list[Site]) -> list[int]:
    """Train at all sites, and play until the server asks for the models; return the trainings' numbers."""
    numbers = []
    for number, site in enumerate(sites):
        training = site.reserve()
        model(site, number)
        site.ledger.record(training)
        numbers.append(training.number)
    server()
    for _ in range(2):
        for client in range(CLIENTS):
            contribute(client)
        server()
    return numbers


def test_a_model_of_a_counted_training_costs_no_more(sites: list[Site]) -> None:
    numbers = to_the_upload(sites)
    for _ in range(2):
        for client, number in enumerate(numbers):
            assert "is answered" in contribute(client, "--trained", number)
        server()
    assert Path("exchange/round-1-mean.npz").exists()
    usage = Ledger.open("0.ledger").spent  # at the limits of the file
    assert usage.exchanges == 1
    assert usage.epsilon == pytest.approx(renyi(NOISE, RATE, STEPS), abs=1e-9)
    assert "at most 1 epsilon" not in command("ledger", "show", "0.ledger")
    assert "for one record" in command("ledger", "show", "0.ledger")


def test_the_limits_of_the_ledger_hold_in_the_folder(sites: list[Site]) -> None:
    """Without `--trained` the exchange has no finite epsilon: it is refused, and without a limit it is counted so."""
    to_the_upload(sites)
    assert "this client's ledger allows no further exchange" in contribute(0)
    assert sites[0].epsilon == pytest.approx(renyi(NOISE, RATE, STEPS), abs=1e-9)
    assert "any epsilon" in command("ledger", "limit", "1.ledger", "--unit", "record")
    assert "is answered" in contribute(1)
    assert Ledger.open("1.ledger").spent.epsilon == math.inf


def test_a_training_that_is_not_counted_within_the_limits_is_not_sent(sites: list[Site]) -> None:
    number = to_the_upload(sites)[0]
    open_one = sites[0].ledger
    assert "must be a training of this client's ledger" in contribute(0, "--trained", 7, code=2)
    command("ledger", "limit", "0.ledger", "--epsilon", 50, "--unit", "record")
    reserved = Ledger.open("0.ledger").reserve(sites[0].engine, noise_multiplier=NOISE, rate=RATE, steps=1)
    assert "not counted yet" in contribute(0, "--trained", reserved.number, code=2)
    open_one.record(reserved)
    assert command("ledger", "limit", "0.ledger", "--epsilon", 0.1, "--unit", "record").startswith("Limits: any number")
    assert "its limit is 0.1" in contribute(0, "--trained", number, code=2)
    assert not list(Path("exchange").glob("*stage-3*client-0.reply"))
    command("ledger", "limit", "0.ledger", "--epsilon", 50, "--unit", "record")
    assert "is answered" in contribute(0, "--trained", number)
