"""Each door through which sites compute a statistic: a function that carries out one secure sum over their tables."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import httpx
import pandas as pd

from securefed._commands.party_answer import Contribution, Keys, answer
from securefed._commands.party_exchange import Exchange
from securefed._commands.party_turns import take_turn
from securefed.datasets import read_table
from securefed.defenses import new_identity, public_identity, secure_aggregation
from securefed.flower import SecureQueries, SitePolicy, secure_mod, statistics
from securefed.parties import SumClient, SumResult, SumServer, SumTerms
from securefed.statistics import from_terms
from tests.flower import ordinary_app
from tests.flower.grid import LocalGrid
from tests.parties.helpers import play
from tests.test_examples import load

Ask = Callable[[Any], Any]
Tables = list[dict[str, Any]]
SERVER: Final = new_identity()


def terms_of(statistic: Any, tables: Tables) -> SumTerms:
    """The terms as they reach every party."""
    return SumTerms.from_bytes(statistic.terms(clients=len(tables), defense=secure_aggregation()).to_bytes())


def parties(tables: Tables, folder: Path) -> Ask:
    """`SumServer` and `SumClient`."""

    def ask(statistic: Any) -> Any:
        terms = terms_of(statistic, tables)
        mine = {i: {"update": lambda i=i: from_terms(terms).summand(tables[i])} for i in range(len(tables))}
        return statistic.estimate(play(SumServer(terms), {i: SumClient(terms, i) for i in mine}, mine))

    return ask


def files(tables: Tables, folder: Path) -> Ask:
    """`securefed party`: each site has a .csv file of its rows, and messages are files."""
    for number, table in enumerate(tables):
        pd.DataFrame(table).to_csv(folder / f"site-{number}.csv", index=False)
    rounds = iter(range(99))

    def part(terms: SumTerms, party: int) -> Any:
        return from_terms(terms).summand(read_table(folder / f"site-{party}.csv"))

    def ask(statistic: Any) -> Any:
        terms, here = terms_of(statistic, tables), folder / f"sum-{next(rounds)}"
        (place := here / "exchange").mkdir(parents=True)

        def at(state: str) -> Exchange:
            return Exchange(terms, place, here / f"{state}.state")

        keys = Keys(public_identity(SERVER))
        take_turn(at("server"), SERVER)
        while not (place / "round-1-result.json").exists():
            for party in range(len(tables)):
                answer(at(f"client-{party}"), party, keys, Contribution(lambda: part(terms, party)))  # noqa: B023
            take_turn(at("server"), SERVER)
        return statistic.estimate(SumResult.from_folder(place, terms))

    return ask


def http(tables: Tables, folder: Path) -> Ask:
    """The HTTP example."""
    module = load("http/parties_http")

    async def carried(terms: SumTerms) -> SumResult:
        rounds = module.Rounds(SumServer(terms), {i: f"token {i}" for i in range(len(tables))}, patience=60)

        async def client(number: int) -> None:
            headers = {"Authorization": f"Bearer token {number}"}
            transport = httpx.ASGITransport(rounds.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://sum", headers=headers) as channel:
                update = lambda: from_terms(terms).summand(tables[number])  # noqa: E731
                await module.contribute(channel, SumClient(terms, number), update, weight=None)

        return (await asyncio.gather(rounds.run(), *map(client, range(len(tables)))))[0]

    return lambda statistic: statistic.estimate(asyncio.run(carried(terms_of(statistic, tables))))


def flower_grid(tables: Tables, **options: Any) -> LocalGrid:
    """SuperNodes whose apps answer statistics of the tables."""
    made = ordinary_app.grid(secure_mod(SitePolicy(**options)), clients=len(tables))
    for node in made.nodes.values():
        node.app.query("statistic")(statistics(lambda context: tables[int(context.node_config["partition-id"])]))
    return made


def flower(tables: Tables, folder: Path) -> Ask:
    """`SecureQueries`, `secure_mod` and `statistics`."""
    return SecureQueries(flower_grid(tables), secure_aggregation(), poll=0.001, patience=0.05).ask


DOORS: Final[dict[str, Callable[[Tables, Path], Ask]]] = {
    "parties": parties, "folder": files, "HTTP": http, "Flower": flower
}  # fmt: skip
