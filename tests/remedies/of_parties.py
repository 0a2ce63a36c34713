"""Remedies of sums between parties, of recordings and of statistics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from securefed import DataUsage, Ledger, Limits, Seal
from securefed.defenses import (
    FixedSizeSampling,
    chain,
    ckks,
    clip,
    gaussian,
    new_identity,
    public_identity,
    records,
    secure_aggregation,
)  # fmt: skip
from securefed.flower import SitePolicy
from securefed.parties import SumClient, SummedTensor, SumServer, SumTerms
from securefed.recording import Recording
from securefed.statistics import LinearRegression, Mean
from tests.parties.helpers import play
from tests.parties.sums import BASE, IDENTITIES, given, parties, terms_of
from tests.remedies.followed import Followed, X, arguments, evaluated, found, run

TERM = SummedTensor("w", (2,), 1.0)
UPDATE = {"w": np.ones(2)}
TERMS, STATISTICS = "securefed/parties/_terms.py", "securefed/statistics/_base.py"


def recorded(rounds: int) -> object:
    first = {"w": np.zeros(2)}
    recording = Recording(rows=[6, 6], features=2)
    for number in range(rounds):
        recording.round(first, {client: {"w": np.full(2, number + client)} for client in range(2)})
    return recording.finish(first)


def like(example: Any = None, defense: Any = None, **settings: Any) -> SumTerms:
    return SumTerms.like(UPDATE if example is None else example, clients=3, defense=defense, **settings)


def checked(defense: Any) -> object:
    """Sum, and have a client check the result."""
    terms = terms_of(defense)
    server, members = SumServer(terms), parties(terms)
    result = play(server, members, given(), base=BASE)
    return members[0].check(result, base=BASE)


def answered(terms: SumTerms, **more: Any) -> object:
    server = SumServer(terms)
    request = server.open(**({"base": UPDATE} if terms.base else {}))[0]
    return SumClient(terms, 0).receive(request, UPDATE, **more)


def opened_twice() -> object:
    server = SumServer(like(base=False))
    server.open()
    return server.open()


def open_again(message: str) -> None:
    """Receive the replies until there is a result; or call the method that the message names."""
    server = SumServer(like(base=False))
    for end in ("result", "abandon"):
        assert f"`{end}`" in message
        server.open()
        if end == "abandon":
            getattr(server, end)()
        while end == "result" and server.result is None:
            server.receive({i: SumClient(server.terms, i).receive(data, UPDATE) for i, data in server.outgoing.items()})
    server.open()


SECRET = chain(clip(1.0), gaussian(1.0, sampler=FixedSizeSampling(2, 3)))
NOISED = chain(clip(1.0), gaussian(1.0))
NORMED = {"w": np.ones(2), "running_var": np.ones(2)}


def local_statistics(message: str) -> None:
    like(NORMED, NOISED, **arguments(r"keep (local=\(.*?\)),", message))


def with_identities(message: str) -> None:
    """Make terms with the public identities of all clients, in the form that the message writes."""
    private = {client: new_identity() for client in range(3)}
    public = {client: public_identity(key) for client, key in private.items()}
    expression = found(r"with (secure_aggregation\(.*\))$", message).replace("{0: ..., 1: ...}", "public")
    terms = like(defense=evaluated("(.*)", expression, public=public))
    SumClient(terms, 0, identity=private[0])


def coarse(message: str) -> None:
    """Give what the message says, under CKKS."""
    given = arguments(r"like (bounds=8.0),", message)
    assert "largest_weight= where updates are weighted" in message
    like(defense=ckks(), **given)
    like(defense=ckks(), **given, largest_weight=64)


def estimated(result: Any) -> object:
    return Mean(features=2, bound=16.0, rows=6).estimate(result)


def of_a_result(message: str) -> object:
    """Give the attribute of the server that the message names, once the server has all replies."""
    mean = Mean(features=2, bound=16.0, rows=6)
    terms = mean.terms(clients=3, defense=chain())
    server = SumServer(terms)
    play(server, parties(terms), {i: {"update": mean.summand(X)} for i in range(3)})
    return estimated(getattr(server, found(r"`(\w+)`", message)))


RECORDS = chain(records(), gaussian(1.0), secure_aggregation())
REGRESSION = LinearRegression(2, bound=16.0, target_bound=16.0, rows=6)


def due(update: Any) -> object:
    """Answer the request for the upload of a sum in the clear."""
    terms = SumTerms.like(nn.Linear(2, 2).state_dict(), clients=3, defense=chain(), base=False)
    return SumClient(terms, 0).receive(SumServer(terms).open()[0], update)


def thawed(folder: Path, **given: Any) -> object:
    """Go on with a client that has answered with a ledger of its data."""
    terms, path = like(base=False), folder / "data.ledger"
    if not path.exists():
        Ledger.create(path, Limits(), spent=DataUsage())
        client = SumClient(terms, 0, ledger=Ledger.open(path, Limits()))
        client.receive(SumServer(terms).open()[0], UPDATE)
        (folder / "frozen").write_bytes(client.freeze())
    return SumClient.thaw(terms, 0, (folder / "frozen").read_bytes(), **given)


def with_its_ledger(message: str, folder: Path) -> None:
    thawed(folder, **arguments(r"SumClient\(\.\.\., (ledger=Ledger\.open\(path, limits\))\)", message, Ledger=Ledger,
                               path=folder / "data.ledger", limits=Limits()))  # fmt: skip


def in_a_file(folder: Path, **given: Any) -> object:
    return SumClient(like(defense=secure_aggregation(verify=True)), 0, **{"file": folder / "state"} | given)


def with_a_seal(message: str, folder: Path) -> None:
    """Give the seal that the message names, on the command line and in a site's file too; or keep no file."""
    key = folder / "seal.key"
    run("key", key)
    in_a_file(folder, seal=evaluated(r"give a seal \((Seal\.from_file);", message, Seal=Seal)(key))
    in_a_file(folder, file=None)
    assert found(r"on the command line (--[\w-]+),", message) in run("party", "contribute", "--help")
    site = folder / "site.toml"
    site.write_text(f'{found("in a site.s file (.*?)[)]", message)} = "{key}"\n')
    assert SitePolicy.load(site).seal is not None


TABLE: dict[str, Followed] = {
    "a recording of no round": Followed(
        "securefed/recording/_recording.py",
        "the recording holds no round",
        lambda _: recorded(0),
        lambda *_: recorded(1),
    ),
    "terms without a tensor": Followed(
        "securefed/parties/_terms.py",
        "terms need at least one tensor",
        lambda _: SumTerms((), 3, cohort=3, defense=chain()),
        lambda *_: SumTerms((TERM,), 3, cohort=3, defense=chain()),
    ),
    "terms that do not verify": Followed(
        "securefed/parties/_checked_result.py",
        "these terms do not verify sums",
        lambda _: checked(secure_aggregation()),
        lambda message, _: checked(
            evaluated(r"with (secure_aggregation\(.*\))$", message.replace("...", "every"), every=IDENTITIES)
        ),
    ),
    "an update without its base, in Python": Followed(
        "securefed/parties/_client.py",
        "these terms bind each round to the model",
        lambda _: answered(like()),
        lambda message, _: [
            answered(like(), **arguments("as (base=update),", message.replace("...", "update"), update=UPDATE)),
            answered(like(**arguments("with (base=False)$", message))),
        ],
    ),
    "a base that the terms do not bind": Followed(
        "securefed/parties/_client.py",
        "a base is given, and the terms bind none",
        lambda _: answered(like(base=False), base=UPDATE),
        lambda message, _: [
            answered(like(**arguments("with (base=True),", message)), base=UPDATE),
            answered(like(base=False)),
        ],
    ),
    "coarse sums without bounds": Followed(
        "securefed/parties/_precision.py",
        "which is not declared (2^20 by default)",
        lambda _: like(defense=ckks()),
        lambda message, _: coarse(message),
    ),
    "a round that is open": Followed(
        "securefed/parties/_server.py",
        "a round is open; receive its replies",
        lambda _: opened_twice(),
        lambda message, _: open_again(message),
    ),
    "a cohort beside a secret draw": Followed(
        "securefed/parties/_server.py",
        "accounts for a secret random cohort",
        lambda _: SumServer(like(defense=SECRET, cohort=2, base=False, differences=False)).open(cohort=[0, 1]),
        lambda message, _: (
            SumServer(like(defense=SECRET, cohort=2, base=False, differences=False)).open()
            and found("leave `(cohort)` out", message)
        ),
    ),
    "differences without a base": Followed(
        TERMS,
        "differences are taken from a base",
        lambda _: like(differences=True, base=False),
        lambda message, _: like(differences=True, **arguments("leave (base=True)$", message)),
    ),
    "a variance under noise": Followed(
        TERMS, "may make the variance ", lambda _: like(NORMED, NOISED), lambda message, _: local_statistics(message)
    ),
    "an integer under noise": Followed(
        TERMS,
        "keep such tensors ",
        lambda _: like({"w": np.ones(2), "seen": np.array(3)}, NOISED),
        lambda message, _: like(
            {"w": np.ones(2), "seen": np.array(3)},
            NOISED,
            **arguments(r"clients: (local=\(.*?\))\. Of", message.replace(", ...", ",")),
        ),
    ),
    "one pattern for a list": Followed(
        TERMS,
        "local and metrics are lists of texts",
        lambda _: like(local="*running_mean"),
        lambda message, _: like(**arguments(r"such as (local=\[.*?\]);", message)),
    ),
    "an example without names": Followed(
        TERMS,
        "the example must hold arrays or tensors by name",
        lambda _: like([np.ones(2)]),
        lambda message, _: like(evaluated(r"such as (net\.state_dict\(\));", message, net=nn.Linear(2, 2))),
    ),
    "an identity that the terms do not know": Followed(
        TERMS,
        "an identity is given, and these terms hold no",
        lambda _: SumClient(like(defense=secure_aggregation()), 0, identity=new_identity()),
        lambda message, _: with_identities(message),
    ),
    "a pair of rows and targets": Followed(
        STATISTICS,
        "x is a pair, as `simulate` takes it",
        lambda _: REGRESSION.summand((X, X[:, 0])),
        lambda message, _: evaluated(r"two: (summand\(x, y\))$", message, summand=REGRESSION.summand, x=X, y=X[:, 0]),
    ),
    "rows beyond what was declared": Followed(
        STATISTICS,
        "cannot be summed; the first, row ",
        lambda _: Mean(features=2, bound=1.0, rows=6).summand(X),
        lambda message, _: Mean(
            features=2, bound=1.0, rows=6, **arguments(r"with (outliers='omit')$", message)
        ).summand(X),
    ),
    "no result": Followed(
        STATISTICS, "no round is complete", lambda _: estimated(None), lambda message, _: of_a_result(message)
    ),
    "another result": Followed(
        STATISTICS, "estimate needs a SumServer's ", lambda _: estimated(3), lambda message, _: of_a_result(message)
    ),
    "a round without its model, in Python": Followed(
        "securefed/parties/_server.py",
        "these terms bind each round to a model; give it",
        lambda _: SumServer(like()).open(),
        lambda message, _: SumServer(like()).open(**arguments(r"open\((base=model)\)", message, model=UPDATE)),
    ),
    "noise for records that are refused": Followed(
        "securefed/statistics/_one_sum.py",
        "noise for single rows does not hide ",
        lambda _: Mean(features=2, bound=16.0, rows=6).terms(clients=3, defense=RECORDS),
        lambda message, _: evaluated(
            r"instead: (Mean\(.*\))$", message.replace("...", "features=2, bound=16.0, rows=6"), Mean=Mean
        ).terms(clients=3, defense=RECORDS),
    ),
    "a module for its values": Followed(
        "securefed/parties/_client.py",
        "; give its values by name: ",
        lambda _: due(nn.Linear(2, 2)),
        lambda message, _: due(
            evaluated(r"by name: update=(net\.state_dict\(\))$", message, net=nn.Linear(2, 2)),
        ),
    ),
    "a state without its ledger": Followed(
        "securefed/parties/_client.py", "has answered with a ledger of its data", thawed, with_its_ledger
    ),
    "a check key in a file without a seal": Followed(
        "securefed/parties/_guards.py", "which must not be stored unencrypted: give a seal ", in_a_file, with_a_seal
    ),
}
"""By name, the remedies that are followed."""
