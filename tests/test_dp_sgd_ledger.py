"""DP-SGD in a site's own local step: the ledger reserves a training, records the steps that ran, and limits epsilon."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from opacus import PrivacyEngine
from torch import nn
from typer.testing import CliRunner

from securefed import DataUsage, Ledger, Limits
from securefed._commands.cli import app
from securefed.defenses import secure_aggregation
from securefed.errors import BudgetSpent, ConfigError, LedgerLost, RoundVoid
from securefed.parties import SumClient, SumServer, SumTerms
from tests.test_records import renyi

CLIENTS, ROWS, BATCH, STEPS = 3, 20, 5, 4
NOISE, RATE = 1.0, BATCH / ROWS
RECORD = Limits(epsilon=50.0, unit="record")


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3))


class Site:
    """A site that trains by opacus, and keeps a ledger of its data."""

    def __init__(self, folder: Path, number: int = 0, limits: Limits = RECORD) -> None:
        self.path, self.limits = folder / f"{number}.ledger", limits
        if not self.path.exists():
            Ledger.create(self.path, limits, spent=DataUsage())
        self.ledger = Ledger.open(self.path, limits)
        rng = np.random.default_rng(number)
        x, y = rng.normal(size=(ROWS, 4)).astype(np.float32), np.arange(ROWS) % 3
        rows = torch.utils.data.TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
        model = network()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # opacus', of its generator
            self.engine = PrivacyEngine(accountant="rdp")
            self.model, self.optimizer, self.loader = self.engine.make_private(
                module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
                data_loader=torch.utils.data.DataLoader(rows, batch_size=BATCH), noise_multiplier=NOISE,
                max_grad_norm=1.0,
            )  # fmt: skip

    def reserve(self, steps: int = STEPS) -> Any:
        return self.ledger.reserve(self.engine, noise_multiplier=NOISE, rate=RATE, steps=steps)

    def train(self, steps: int = STEPS) -> dict[str, Any]:
        done = 0
        while done < steps:
            for x, y in self.loader:
                if done == steps:
                    break
                self.optimizer.zero_grad()
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # torch's, of hooks
                    nn.functional.cross_entropy(self.model(x), y).backward()
                self.optimizer.step()
                done += 1
        return self.model.state_dict()

    @property
    def epsilon(self) -> float:
        """As a fresh process reads it."""
        return Ledger.open(self.path, self.limits).spent.epsilon


EXAMPLE = network().state_dict()
TERMS = SumTerms.like(EXAMPLE, clients=CLIENTS, defense=secure_aggregation(), max_void=1)


def summed(sites: list[Site], trained: bool, terms: SumTerms = TERMS) -> SumServer:
    clients = {i: SumClient(terms, i, ledger=site.ledger) for i, site in enumerate(sites)}
    server = SumServer(terms)
    server.open(EXAMPLE)
    while server.result is None:
        replies = {}
        for i, request in server.outgoing.items():
            given: dict[str, Any] = {"base": EXAMPLE}
            if clients[i].wants_update(request):
                training = sites[i].reserve() if trained else None
                given |= {"update": sites[i].train(), "trained": training}
                if training is not None:
                    sites[i].ledger.record(training)
            replies[i] = clients[i].receive(request, **given)
        server.receive(replies)
    return server


def test_an_exchange_that_carries_dp_sgd_costs_the_training_and_no_more(tmp_path: Path) -> None:
    sites = [Site(tmp_path, i) for i in range(CLIENTS)]
    for number in (1, 2):
        server = summed(sites, trained=True)
        assert server.result is not None and len(server.result.survivors) == CLIENTS
        for site in sites:
            usage = Ledger.open(site.path, RECORD).spent
            assert usage.exchanges == number
            assert usage.epsilon == pytest.approx(renyi(NOISE, RATE, number * STEPS), abs=1e-9)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                assert usage.epsilon == pytest.approx(site.engine.get_epsilon(1e-5), abs=0.02)


def test_without_the_training_the_exchange_has_no_finite_epsilon(tmp_path: Path) -> None:
    """The control: a limit refuses the exchange, and without a limit the ledger says infinity."""
    with pytest.raises(RoundVoid, match="allows no further exchange"):
        summed([Site(tmp_path, i) for i in range(CLIENTS)], trained=False)
    unlimited = [Site(tmp_path / "unlimited", i, Limits(unit="record")) for i in range(CLIENTS)]
    summed(unlimited, trained=False)
    assert unlimited[0].epsilon == math.inf
    hidden = [Site(tmp_path / "client", i, Limits(unit="client")) for i in range(CLIENTS)]
    summed(hidden, trained=True)
    assert hidden[0].epsilon == math.inf  # DP-SGD hides a row, and no client


def test_a_training_beyond_the_limit_is_refused_before_it_begins(tmp_path: Path) -> None:
    allowed = renyi(NOISE, RATE, STEPS)
    site = Site(tmp_path, limits=Limits(epsilon=allowed * 1.01, unit="record"))
    with pytest.raises(BudgetSpent, match="with this training the ledger would stand at epsilon"):
        site.reserve(2 * STEPS)
    assert site.epsilon == 0
    site.ledger.record(site.reserve())  # nothing ran
    assert site.epsilon == 0
    training = site.reserve()
    site.train()
    site.ledger.record(training)
    assert site.epsilon == pytest.approx(allowed)
    with pytest.raises(BudgetSpent):
        site.reserve(1)
    of_client = Site(tmp_path / "client", limits=Limits(epsilon=8.0))
    with pytest.raises(BudgetSpent, match="training has noise that hides single records only"):
        of_client.reserve()


def test_a_crash_between_the_two_leaves_the_reservation_spent(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.reserve(10)
    site.train(2)
    again = Site(tmp_path)  # the process ended
    assert again.epsilon == pytest.approx(renyi(NOISE, RATE, 10))
    training = again.reserve(STEPS)
    again.train(STEPS)
    again.ledger.record(training)
    assert again.epsilon == pytest.approx(renyi(NOISE, RATE, 10 + STEPS))


def test_what_ran_is_counted_whatever_was_reserved(tmp_path: Path) -> None:
    site = Site(tmp_path)
    training = site.reserve(10)
    site.train(3)
    site.ledger.record(training)
    assert site.epsilon == pytest.approx(renyi(NOISE, RATE, 3))  # fewer
    training = site.reserve(1)
    site.train(3)
    site.ledger.record(training)
    assert site.epsilon == pytest.approx(renyi(NOISE, RATE, 6))  # more, within the limit
    site.train(2)  # without a reservation
    site.ledger.record(site.reserve(1))
    assert site.epsilon == pytest.approx(renyi(NOISE, RATE, 8))
    with pytest.raises(ConfigError, match="recorded before"):
        site.ledger.record(training)
    tight = Site(tmp_path / "tight", limits=Limits(epsilon=renyi(NOISE, RATE, 2), unit="record"))
    training = tight.reserve(2)
    tight.train(3)
    with pytest.raises(BudgetSpent):
        tight.ledger.record(training)
    assert tight.epsilon == pytest.approx(renyi(NOISE, RATE, 3))
    tight.train(1)  # without a reservation: counted, though none is given afterwards
    with pytest.raises(BudgetSpent):
        tight.reserve(1)
    assert tight.epsilon == pytest.approx(renyi(NOISE, RATE, 4))


def test_a_training_that_exceeds_its_reservation_makes_the_client_sit_out(tmp_path: Path) -> None:
    """Where the update is a function, `record` inside it keeps the update from being sent."""
    sites = [Site(tmp_path, i, Limits(epsilon=renyi(NOISE, RATE, STEPS) * 1.01, unit="record")) for i in range(CLIENTS)]
    clients = {i: SumClient(TERMS, i, ledger=site.ledger) for i, site in enumerate(sites)}
    server = SumServer(TERMS)
    server.open(EXAMPLE)
    with pytest.raises(RoundVoid, match="sat out"):
        while server.result is None:
            replies = {}
            for i, request in server.outgoing.items():
                training = sites[i].reserve() if clients[i].wants_update(request) else None

                def update(i: int = i, training: Any = training) -> Any:
                    state = sites[i].train(STEPS + (i == 1))
                    sites[i].ledger.record(training)
                    return state

                replies[i] = clients[i].receive(request, update, base=EXAMPLE, trained=training)
            server.receive(replies)
    assert sites[1].epsilon > sites[1].limits.epsilon  # type: ignore[operator]


@pytest.mark.parametrize("steps", [STEPS, STEPS + 1])
@pytest.mark.parametrize("late", [False, True])
def test_steps_that_no_ledger_counts_are_not_sent(tmp_path: Path, steps: int, late: bool) -> None:
    """Beyond the reservation and not recorded: refused, or, where a function trains, the client sits out."""
    site = Site(tmp_path)
    clients = {0: SumClient(TERMS, 0, ledger=site.ledger), **{i: SumClient(TERMS, i) for i in (1, 2)}}
    server, training = SumServer(TERMS), site.reserve()
    server.open(EXAMPLE)
    while not server.wants_updates:
        server.receive({i: clients[i].receive(request) for i, request in server.outgoing.items()})
    given: dict[int, Any] = {0: {"trained": training}, 1: {}, 2: {}}
    updates = {0: (lambda: site.train(steps)) if late else site.train(steps), 1: EXAMPLE, 2: EXAMPLE}

    def replies() -> dict[int, bytes]:
        requests = server.outgoing.items()
        return {i: clients[i].receive(request, updates[i], base=EXAMPLE, **given[i]) for i, request in requests}

    if steps > STEPS and not late:
        with pytest.raises(ConfigError, match="count them first"):
            replies()
        Ledger.open(site.path, site.limits).record(training)  # the remedy, by another process too
        server.receive(replies())
        return
    server.receive(replies())
    while server.result is None and steps == STEPS:
        server.receive({i: clients[i].receive(request) for i, request in server.outgoing.items()})
    if steps > STEPS:
        with pytest.raises(RoundVoid, match="sat out"):
            while server.result is None:
                server.receive({i: clients[i].receive(request) for i, request in server.outgoing.items()})


def test_a_training_that_does_not_belong_to_the_exchange_is_refused(tmp_path: Path) -> None:
    site, other = Site(tmp_path), Site(tmp_path, 1)
    server = SumServer(TERMS)
    clients = {i: SumClient(TERMS, i, ledger=site.ledger if i == 0 else None) for i in range(CLIENTS)}
    server.open(EXAMPLE)
    for _ in range(2):
        server.receive({i: clients[i].receive(request) for i, request in server.outgoing.items()})
    request, training = server.outgoing[0], site.reserve()
    update, more = {"update": EXAMPLE, "base": EXAMPLE}, {"trained": other.reserve()}
    other.reserve()
    with pytest.raises(ConfigError, match="needs the ledger that counts the training"):
        clients[1].receive(server.outgoing[1], **update, **more)
    with pytest.raises(ConfigError, match="must be a training of this client's ledger"):
        clients[0].receive(request, **update, trained=other.reserve())
    with pytest.raises(ConfigError, match="must be a training"):
        clients[0].receive(request, **update, trained=3)
    measured = SumTerms.like(EXAMPLE, clients=CLIENTS, defense=secure_aggregation(), metrics={"loss": 8.0})
    server, client = SumServer(measured), SumClient(measured, 0, ledger=site.ledger)
    others = {i: SumClient(measured, i) for i in (1, 2)}
    server.open(EXAMPLE)
    for _ in range(2):
        given = {0: client, **others}
        server.receive({i: given[i].receive(request) for i, request in server.outgoing.items()})
    with pytest.raises(ConfigError, match=r"'loss'.* are sent without noise"):
        client.receive(server.outgoing[0], **update, metrics={"loss": 1.0}, trained=training)


def test_no_engine_and_a_lost_ledger_are_named(tmp_path: Path) -> None:
    site = Site(tmp_path)
    with pytest.raises(ConfigError, match="opacus PrivacyEngine"):
        site.ledger.reserve(object(), noise_multiplier=NOISE, rate=RATE, steps=1)
    for wrong in ({"noise_multiplier": -1.0}, {"rate": 1.5}, {"steps": 0}, {"steps": 2.5}):
        with pytest.raises(ConfigError):
            site.ledger.reserve(site.engine, **{"noise_multiplier": NOISE, "rate": RATE, "steps": 1} | wrong)
    training = site.reserve()
    site.path.unlink()
    with pytest.raises(LedgerLost):
        site.ledger.record(training)


def test_the_operator_reads_what_was_trained_and_what_a_crash_left(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.ledger.record(site.reserve())
    training = site.reserve()
    site.train(2)
    site.ledger.record(training)
    site.reserve()
    shown = CliRunner().invoke(app, ["ledger", "show", str(site.path)])
    assert shown.exit_code == 0, shown.output
    said = " ".join(shown.output.split())
    assert "Trainings by DP-SGD: 3, with 2 steps; 1 reserved and not recorded, which stay spent." in said
