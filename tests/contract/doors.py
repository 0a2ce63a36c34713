"""One sum through each door of the message layer, in a run of its own, by clients that keep a ledger of their data.

Every door has five clients with identities. `play(cohort, model)` makes a run of the same terms over these clients:
`model` numbers the base of the sum, which doors without one do not have.
"""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import httpx
import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, RecordDict
from flwr.serverapp.strategy import FedAvg

from securefed import Dataset, DataUsage, Federation, Ledger, Limits, Public, RunOptions, Terms
from securefed._commands.party_answer import Contribution, Keys, answer
from securefed._commands.party_exchange import Exchange
from securefed._commands.party_turns import take_turn
from securefed._runtime.client import ClientNode
from securefed.algorithms import SSI
from securefed.defenses import Identities, chain, new_identity, public_identity, secure_aggregation
from securefed.defenses._secure_aggregation import SecureAggregation
from securefed.errors import RoundVoid
from securefed.flower import SecureStrategy, SitePolicy, client_app, secure_mod, serve
from securefed.parties import SumClient, SumResult, SumServer, SumTerms
from securefed.statistics import ContingencyTable
from tests.flower import ordinary_app
from tests.flower.grid import LocalGrid, Node
from tests.parties.helpers import play
from tests.test_examples import load

N = 5
ALL = tuple(range(N))
IDENTITIES = Identities.generate(N)
SERVER_KEY = new_identity()
"""The server's private identity, where it signs its requests."""
WEIGHT: float | None = 1.0
"""The weight of each client, where the terms sum weights."""
UPDATES = {i: {"w": np.array([i + 1.0, 10.0 * i])} for i in ALL}
ROWS = np.random.default_rng(0)
DATA = [Dataset(ROWS.uniform(-1, 1, (8, 4)), np.arange(8) % 2) for _ in ALL]
CODES = [np.stack([np.arange(20 + i) % 2, np.arange(20 + i) % 3], 1).astype(float) for i in ALL]


class Door(ABC):
    """One door.

    Attributes:
        name: as a table shows it.
        base: whether its sums begin from a base (rule A), or have none (rule B).
        folder: where ledgers and states lie.
    """

    name: ClassVar[str]
    base: ClassVar[bool] = False

    def __init__(self, folder: Path) -> None:
        self.folder, self.runs = folder, 0
        self.failing: int | None = None  # a client whose update cannot be computed

    @abstractmethod
    def run(self, cohort: Sequence[int], model: float) -> tuple[int, ...]:
        """Make a sum over the cohort; return its survivors, or raise `RoundVoid`."""

    def play(self, cohort: Sequence[int], model: float = 0.0) -> tuple[int, ...]:
        """Make a sum over the cohort in a run of its own; return its survivors, none where it was refused."""
        self.runs += 1
        try:
            return self.run(cohort, model)
        except RoundVoid:
            return ()

    def path(self, party: int) -> Path:
        """The ledger of a client's data."""
        return self.folder / f"{party}.ledger"

    def ledger(self, party: int) -> Ledger:
        """Open it, as every run does; made at first."""
        if not self.path(party).exists():
            Ledger.create(self.path(party), Limits(), spent=DataUsage())
        return Ledger.open(self.path(party))


def masking(**options: Any) -> SecureAggregation:
    return secure_aggregation(identities=Identities(IDENTITIES.public), **options)


def fails(*_: Any) -> Any:
    raise ValueError("this client's update cannot be computed")


def failing_at(compute: Any, client: int, failing: int | None, pending: Any) -> Any:
    return ValueError("no update") if client == failing else compute(pending)


class InProcess(Door):
    name, base = "Federation", True

    def run(self, cohort: Sequence[int], model: float) -> tuple[int, ...]:
        federation = Federation(
            SSI(rank=2, tolerance=0.0), DATA, chain(secure_aggregation(identities=IDENTITIES)), seed=int(model),
            ledgers={i: self.ledger(i) for i in ALL}, options=RunOptions(schedule=lambda _: tuple(cohort), max_void=1),
            batched=False,
        )  # fmt: skip
        for node in federation.nodes.values():
            node.compute = partial(failing_at, node.compute, node.client, self.failing)  # type: ignore[method-assign]
        return federation.run(1).history[0].survivors


class Sums(Door):
    name, base = "SumClient, SumServer", True
    terms = SumTerms.like(UPDATES[0], clients=N, defense=masking(), largest_weight=1.0, max_void=1)

    def client(self, party: int) -> SumClient:
        return SumClient(self.terms, party, identity=IDENTITIES.own[party], ledger=self.ledger(party))

    def update(self, party: int) -> Any:
        return fails if party == self.failing else UPDATES[party]

    def given(self, model: float) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the arguments of `SumServer.open` and `SumClient.receive` beside cohort and update."""
        base = {"w": np.full(2, model)}
        return ({"base": base}, {"base": base}) if self.base else ({}, {})

    def result(self, cohort: Sequence[int], model: float = 0.0) -> SumResult:
        opened, own = self.given(model)
        mine = {i: {"update": self.update(i), **own} for i in ALL}
        return play(SumServer(self.terms), {i: self.client(i) for i in ALL}, mine, cohort=cohort, **opened)

    def run(self, cohort: Sequence[int], model: float) -> tuple[int, ...]:
        return self.result(cohort, model).survivors


class SumsWithoutBase(Sums):
    name, base = "SumClient, SumServer without a base", False
    terms = replace(Sums.terms, base=False)


class Statistics(Sums):
    name, base = "statistics", False
    statistic = ContingencyTable((2, 3), rows=100)
    terms = replace(statistic.terms(clients=N, defense=masking()), max_void=1)

    def update(self, party: int) -> Any:
        return fails if party == self.failing else lambda: self.statistic.summand(CODES[party])


def keys_of(party: int) -> Keys:
    """Return the keys of a client of `securefed party`."""
    return Keys(public_identity(SERVER_KEY), IDENTITIES.own[party])


class PartyFolder(Sums):
    name, base = "securefed party", True

    def run(self, cohort: Sequence[int], model: float) -> tuple[int, ...]:
        place = self.folder / f"exchange-{self.runs}"
        place.mkdir()
        base = {"w": np.full(2, model)} if self.base else None

        def at(state: str, **more: Any) -> Exchange:
            return Exchange(self.terms, place, self.folder / f"{state}-{self.runs}.state", **more)

        take_turn(at("server"), SERVER_KEY, base=base, cohort=cohort)
        while not (place / "round-1-result.json").exists():
            for party in cohort:
                self.ledger(party)
                own = {"w": np.full(2, np.nan)} if party == self.failing else UPDATES[party]
                mine = Contribution(own, WEIGHT, base=base)
                answer(at(f"client-{party}", ledger=self.path(party)), party, keys_of(party), mine)
            take_turn(at("server"), SERVER_KEY)
        return SumResult.from_folder(place, self.terms).survivors


class PartyFolderWithoutBase(PartyFolder):
    name, base = "securefed party --no-base", False
    terms = SumsWithoutBase.terms


class Http(SumsWithoutBase):
    name = "HTTP example"

    def run(self, cohort: Sequence[int], model: float) -> tuple[int, ...]:
        module, server = load("http/parties_http"), SumServer(self.terms)
        whole = server.open
        server.open = lambda: whole(cohort=cohort)  # type: ignore[method-assign, assignment]
        rounds = module.Rounds(server, {number: f"token {number}" for number in ALL}, patience=60)

        async def client(number: int) -> None:
            headers = {"Authorization": f"Bearer token {number}"}
            transport = httpx.ASGITransport(rounds.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://sum", headers=headers) as http:
                await module.contribute(http, self.client(number), self.update(number), weight=WEIGHT)

        async def everything() -> Any:
            return (await asyncio.gather(rounds.run(), *map(client, cohort), return_exceptions=True))[0]

        summed = asyncio.run(everything())
        if isinstance(summed, Exception):
            raise summed
        return summed.survivors


class Mod(Door):
    name, base = "secure_mod", True
    options: ClassVar[dict[str, Any]] = {}

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.grid = ordinary_app.grid()

    def policy(self, party: int) -> SitePolicy:
        return SitePolicy(
            party=party, identity=IDENTITIES.own[party], identities=IDENTITIES.public, ledger=self.ledger(party)
        )

    def run(self, cohort: Sequence[int], model: float) -> tuple[int, ...]:
        places = sorted(self.grid.nodes)
        for party, place in enumerate(places):
            node = self.grid.nodes[place]
            train = fails if party == self.failing else ordinary_app.train
            node.app = ordinary_app.app(secure_mod(self.policy(party)), train=train)
            node.context = Context(self.runs, 0, node.config, RecordDict(), {})
        left_out = {place for party, place in enumerate(places) if party not in cohort}
        self.grid.lose = lambda message: message.metadata.dst_node_id in left_out and "arrays" in message.content
        random.seed(5)
        strategy = SecureStrategy(
            FedAvg(fraction_evaluate=0.0), masking(), poll=0.001, patience=0.05,
            **{"train_metrics": ("train_loss",), "largest_weight": 64.0} | self.options,
        )  # fmt: skip
        initial = ordinary_app.initial()
        initial["b"] = Array(np.full(1, model))
        strategy.start(self.grid, ArrayRecord(dict(initial)), 1, 0.3)
        survivors = strategy.history[0].survivors if strategy.history else ()
        return tuple(places.index(place) for place in survivors)


class ClientApp(Door):
    name, base = "serve, client_app", True
    kept: ClassVar[dict[str, Any]] = {}

    def run(self, cohort: Sequence[int], model: float) -> tuple[int, ...]:
        defense = chain(secure_aggregation(identities=IDENTITIES))
        terms = Terms.of(SSI(rank=2, tolerance=0.0), Public.of(DATA), defense, seed=int(model))
        own = self.kept or {"ledger": lambda context: self.ledger(context.node_config["partition-id"])}
        app = client_app(lambda _: terms, lambda context: DATA[context.node_config["partition-id"]], **own)
        grid = LocalGrid({100 + i: Node(app, {"partition-id": i}) for i in ALL})
        options = RunOptions(schedule=lambda _: tuple(cohort), max_void=1, timeout=0.02)
        with pytest.MonkeyPatch.context() as patch:
            compute = ClientNode.compute

            def computed(node: ClientNode, pending: Any) -> Any:
                return failing_at(partial(compute, node), node.client, self.failing, pending)

            patch.setattr(ClientNode, "compute", computed)
            return serve(grid, terms, 1, wait=2.0, poll=0.001, options=options).history[0].survivors


DOORS: tuple[type[Door], ...] = (
    InProcess, Sums, SumsWithoutBase, Statistics, PartyFolder, PartyFolderWithoutBase, Http, Mod, ClientApp,
)  # fmt: skip
