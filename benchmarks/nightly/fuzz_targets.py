"""Readers of the message layer that the fuzzers feed: of requests, replies, terms, states, ledgers and results.

Each target has valid inputs to begin from, taken from an honest run, and a context: named bytes that the reader needs
beside the input, such as terms and the state of a client. With the context a finding is reproduced in another process.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.nightly.fuzz_flower import FLOWER_READERS, flower_inputs
from securefed import DataUsage, Ledger, Limits
from securefed._commands.party_answer import Contribution, Keys, answer
from securefed._commands.party_exchange import Exchange
from securefed._commands.party_turns import take_turn
from securefed.defenses import (
    Identities,
    chain,
    clip,
    new_identity,
    public_identity,
    secure_aggregation,
    skellam,
)
from securefed.parties import SumClient, SumResult, SumServer, SumTerms

N, VICTIM = 4, 1
BASE = {"w": np.linspace(-1, 1, 6).reshape(3, 2), "b": np.zeros(2)}
UPDATE = {"w": np.full((3, 2), 0.25), "b": np.ones(2)}
Context = Mapping[str, bytes]
Reader = Callable[[bytes], None]


@dataclass
class Target:
    """One reader.

    Attributes:
        name: the name of its `READERS` entry, then a case.
        context: all that it needs beside the input.
        inputs: valid ones.
    """

    name: str
    context: dict[str, bytes]
    inputs: list[bytes] = field(default_factory=list)

    @property
    def kind(self) -> str:
        """Kind of input that the target reads: a key of `READERS`."""
        return self.name.partition(":")[0]

    @property
    def reader(self) -> Reader:
        """The function that reads an input; it may raise the package's named errors."""
        return READERS[self.kind](self.context)


@cache
def _scratch() -> tempfile.TemporaryDirectory[str]:
    """A folder for files that are read; it goes when the process ends."""
    return tempfile.TemporaryDirectory(prefix="fuzzed-")


def _terms(data: bytes) -> SumTerms:
    return _terms_of(bytes(data))


@cache
def _terms_of(data: bytes) -> SumTerms:
    terms = SumTerms.from_bytes(data)
    terms.plan  # noqa: B018 - made once, and no part of an input's cost
    return terms


def _given(terms: SumTerms) -> dict[str, Any]:
    given: dict[str, Any] = {"update": UPDATE, "base": BASE}
    return given | ({"weight": 3.0, "metrics": {"loss": 0.5}} if terms.weighted else {})


def _client(context: Context, state: bytes) -> SumClient:
    return SumClient.thaw(_terms(context["terms"]), VICTIM, state, identity=context.get("identity") or None)


def read_request(context: Context) -> Reader:
    """A client answers a request at one stage of a sum; it is set up anew for each input."""
    terms, client = _terms(context["terms"]), _client(context, context["state"])
    return lambda data: client.receive(data, **_given(terms)) and None


def read_reply(context: Context) -> Reader:
    """A server takes a client's reply beside the honest ones of the others, and ends the stage."""
    server = SumServer.thaw(_terms(context["terms"]), context["server"])
    others = {int(name[6:]): data for name, data in context.items() if name.startswith("reply-")}
    return lambda data: server.receive({**others, VICTIM: data}) and None


def read_terms(context: Context) -> Reader:
    """A site reads terms that a server proposes."""

    def read(data: bytes) -> None:
        terms = SumTerms.from_bytes(data)
        str(terms.plan), terms.digest, terms.most_bytes

    return read


def read_client_state(context: Context) -> Reader:
    """A client goes on from a state."""
    return lambda data: _client(context, data) and None


def read_server_state(context: Context) -> Reader:
    """A server goes on from a state."""
    return lambda data: SumServer.thaw(_terms(context["terms"]), data) and None


def read_ledger(context: Context) -> Reader:
    """A site opens the ledger of its data."""
    place = Path(_scratch().name) / "fuzzed.ledger"

    def read(data: bytes) -> None:
        place.write_bytes(data)
        found = Ledger.open(place, Limits(exchanges=10))
        _ = found.spent, found.sums

    return read


def read_result(context: Context) -> Reader:
    """A client reads a published result and checks it."""
    terms, client = _terms(context["terms"]), _client(context, context["state"])
    return lambda data: client.check(SumResult.from_bytes(data, terms), base=BASE) and None


def read_result_files(context: Context) -> Reader:
    """A site reads a result in a folder, one of whose files is the input."""
    terms, name = _terms(context["terms"]), context["name"].decode()
    folder = Path(_scratch().name)
    for other, data in context.items():
        if other.startswith("file/"):
            (folder / other[5:]).write_bytes(data)

    def read(data: bytes) -> None:
        (folder / name).write_bytes(data)
        SumResult.from_folder(folder, terms, server=context["server"])

    def unsigned(data: bytes) -> None:
        (folder / name).write_bytes(data)
        SumResult.from_folder(folder, terms)

    return read if name.endswith("signature") else unsigned


READERS: dict[str, Callable[[Context], Reader]] = {
    "request": read_request,
    "reply": read_reply,
    "terms": read_terms,
    "client state": read_client_state,
    "server state": read_server_state,
    "ledger": read_ledger,
    "result": read_result,
    "result file": read_result_files,
    **FLOWER_READERS,
}


def targets() -> list[Target]:
    """Play honest sums under several defences, and make a target of everything that a party reads in them."""
    keys = [new_identity() for _ in range(N)]
    public = Identities({client: public_identity(key) for client, key in enumerate(keys)})
    defenses: dict[str, tuple[Any, dict[str, Any]]] = {
        "clear": (None, {"largest_weight": 8.0, "metrics": {"loss": 4.0}}),
        "masks": (secure_aggregation(), {"largest_weight": 8.0, "metrics": {"loss": 4.0}}),
        "verified": (secure_aggregation(identities=public, verify=True), {}),
        "noise": (chain(clip(1.0), skellam(1.0), secure_aggregation()), {"epsilon": 100.0}),
    }
    found: list[Target] = []
    for name, (defense, more) in defenses.items():
        terms = SumTerms.like(BASE, clients=N, defense=defense, **more)
        found += _of_a_run(name, terms, keys if name == "verified" else [b""] * N)
    flower = [Target(*given) for given in flower_inputs()]
    return [*_merged(found), *_of_files(), *_merged(flower)]


def _of_a_run(name: str, terms: SumTerms, keys: list[bytes]) -> Iterator[Target]:
    agreed = terms.to_bytes()
    yield Target("terms", {}, [agreed])
    clients = [SumClient(terms, i, identity=keys[i] or None) for i in range(N)]
    server = SumServer(terms)
    mine = {"terms": agreed, "identity": keys[VICTIM]}
    for _ in range(2):
        server.open(BASE)
        while server.result is None:
            stage, requests, frozen, state = (
                server.round,
                dict(server.outgoing),
                server.freeze(),
                clients[VICTIM].freeze(),
            )
            replies = {i: clients[i].receive(request, **_given(terms)) for i, request in requests.items()}
            place = f"{name}, round {stage}, {len(frozen)}"
            yield Target(f"request:{place}", mine | {"state": state}, [requests[VICTIM]])
            others = {f"reply-{i}": reply for i, reply in replies.items() if i != VICTIM}
            yield Target(f"reply:{place}", {"terms": agreed, "server": frozen, **others}, [replies[VICTIM]])
            if state:
                yield Target(f"client state:{name}", mine, [state])
            yield Target(f"server state:{name}", {"terms": agreed}, [frozen])
            server.receive(replies)
    if name == "verified":
        yield Target("result:verified", mine | {"state": clients[VICTIM].freeze()}, [server.result.to_bytes(terms)])


def _of_files() -> Iterator[Target]:
    """Make a sum through a folder, under terms without a base, and take its result's files and a ledger."""
    identity = new_identity()
    folder = Path(tempfile.mkdtemp(dir=_scratch().name))
    terms = SumTerms.like({"w": np.zeros(3)}, clients=3, defense=secure_aggregation(), largest_weight=8.0, base=False)
    place = folder / "exchange"
    place.mkdir()
    take_turn(Exchange(terms, place, folder / "server.state"), identity)
    while not (place / "round-1-result.json").exists():
        for party in range(3):
            mine = Contribution({"w": np.ones(3)}, 1.0)
            answer(Exchange(terms, place, folder / f"{party}.state"), party, Keys(public_identity(identity)), mine)
        take_turn(Exchange(terms, place, folder / "server.state"), identity)
    names = ("round-1-result.json", "round-1-mean.npz", "round-1-result.signature")
    files = {f"file/{name}": (place / name).read_bytes() for name in names}
    context = {"terms": terms.to_bytes(), "server": public_identity(identity), **files}
    for name in names:
        yield Target(f"result file:{name}", context | {"name": name.encode()}, [files[f"file/{name}"]])
    Ledger.create(folder / "new.ledger", Limits(), spent=DataUsage(3, 1.0, 1e-7))
    yield Target("ledger", {}, [(folder / "new.ledger").read_bytes(), (folder / "1.ledger").read_bytes()])


def _merged(found: list[Target]) -> list[Target]:
    """Put the inputs of targets of one name and one context together."""
    out: dict[tuple[str, tuple[bytes, ...]], Target] = {}
    for target in found:
        kept = out.setdefault((target.name, tuple(target.context.values())), target)
        if kept is not target:
            kept.inputs += target.inputs
    return list(out.values())
