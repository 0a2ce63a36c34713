"""Remedies of runs over Flower: what ends them, and what the message says to write."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from flwr.serverapp.strategy import FedAvg

from securefed import Seal
from securefed.defenses import chain, secure_aggregation
from securefed.flower import AppReply, SitePolicy, secure_mod, serve
from tests.flower import ordinary_app
from tests.flower import test_dp_sgd_in_apps as dp_sgd
from tests.flower.ordinary_app import CLIENTS
from tests.flower.test_first_run import WRONG, configures, replying
from tests.flower.test_flower_runs import grid_of, quick, terms_of
from tests.flower.test_secure_strategy import run, secured
from tests.remedies.followed import Followed, arguments, found

TERMS = terms_of("pca/ssi", chain(secure_aggregation()))
VERIFIED = terms_of("pca/ssi", chain(secure_aggregation(verify=True)))


def small_grid(clients: int = 2, **numbers: Any) -> None:
    """Run a strategy of Flower's over few SuperNodes."""
    run(secured(FedAvg(**numbers)), ordinary_app.grid(secure_mod, clients=clients), rounds=1)


def enough(message: str) -> None:
    """Start as many SuperNodes as the message says, and give the strategy its numbers; or do not evaluate."""
    clients = int(found(r"and start (\d+) SuperNodes", message))
    train, available = (arguments(rf"\b(min_{name}_nodes=\d+)", message) for name in ("train", "available"))
    for other in (r"\b(min_evaluate_nodes=\d+)", r"\(or (fraction_evaluate=0\.0),"):
        small_grid(clients, **train, **available, **arguments(other, message))
    assert found(r"--num-supernodes (\d+)", message) == str(clients)


def kept(folder: Path, **options: Any) -> object:
    return serve(grid_of(VERIFIED, folder=lambda _: folder, **options), VERIFIED, 1, **quick())


def with_a_seal(message: str, folder: Path) -> None:
    """Give the seal that the message names; or no folder."""
    assert found(r"give a seal \((\w+)\.from_file; seal= of client_app,", message) == Seal.__name__
    kept(folder / "sealed", seal=lambda _: Seal(bytes(32)))
    serve(grid_of(VERIFIED), VERIFIED, 1, **quick())


def one_away(present: bool, **options: Any) -> object:
    """Serve five clients, of which one has no SuperNode unless it is present."""
    grid = grid_of(TERMS)
    if not present:
        del grid.nodes[104]
    return serve(grid, TERMS, 1, **options, **quick() | {"wait": 0.05})


def fewer(message: str) -> None:
    """Start the SuperNode, or lower the argument that the message names."""
    one_away(present=True)
    one_away(present=False, **{found("or lower `(.*?)`", message): CLIENTS - 1})


def mods(message: str) -> None:
    """Make the mod in the three ways that the message writes."""
    assert all(way in message for way in ("takes a SitePolicy,", "reply=AppReply(...)", "mods=[secure_mod]"))
    for mod in (secure_mod(SitePolicy()), secure_mod(reply=AppReply()), secure_mod):
        run(secured(FedAvg()), ordinary_app.grid(mod), rounds=1)


def in_order(*mods: Any) -> None:
    run(secured(FedAvg()), ordinary_app.grid(*mods), rounds=1)


def announced(message: str) -> None:
    """Let the sites announce errors as the message writes: the run then names what the reply lacks; mend that."""
    policy = found(r"mods=\[(secure_mod\(SitePolicy\(.*?\)\))\]", message)
    mod = eval(policy, {"secure_mod": secure_mod, "SitePolicy": SitePolicy})  # noqa: S307 - our own message
    change = WRONG["a metric is missing"][0]
    grid, told = ordinary_app.grid(mod, train=replying(change)), ""
    try:
        run(secured(FedAvg()), grid)
    except Exception as error:
        told = str(error)
    assert "lacks 'train_loss'" in told
    assert re.search(r"numbers num-examples \(up to 64\), train_loss", message)
    run(secured(FedAvg()), ordinary_app.grid(mod), rounds=1)  # the app as it was, which replies with both


def silent() -> None:
    grid = ordinary_app.grid(secure_mod, train=replying(WRONG["a metric is missing"][0]))
    run(secured(FedAvg(), max_void=1), grid, rounds=1)


def private_sites(folder: Path, **more: Any) -> object:
    """Run sites whose policy says that they send models which DP-SGD trained."""
    folder.mkdir(exist_ok=True)
    sites = [dp_sgd.Site(folder, i) for i in range(dp_sgd.CLIENTS)]
    return dp_sgd.play(sites, [dp_sgd.private(site) for site in sites], {}, **more)


def models_alone(message: str, folder: Path) -> None:
    """Make the strategy without the argument that the message names, around one that does not evaluate."""
    assert found(r"make SecureStrategy without (\w+),", message) == "train_metrics"
    evaluated = arguments(r"around a strategy with (fraction_evaluate=0\.0)", message)
    private_sites(folder / "again", evaluate=evaluated["fraction_evaluate"])


TABLE: dict[str, Followed] = {
    "metrics beside a model that DP-SGD trained": Followed(
        "securefed/flower/_mod.py",
        "this site sends models that DP-SGD trained",
        lambda folder: private_sites(folder, train_metrics=("loss",)),
        models_alone,
    ),
    "too few SuperNodes": Followed(
        "securefed/flower/_cohorts.py",
        ": the strategy samples ",
        lambda _: small_grid(),
        lambda message, _: enough(message),
    ),
    "a check key in a folder without a seal": Followed(
        "securefed/parties/_guards.py",
        "seal= of client_app",
        kept,
        with_a_seal,
    ),
    "a client that does not enrol": Followed(
        "securefed/flower/_enrolment.py",
        " clients enrolled within ",
        lambda _: one_away(present=False),
        lambda message, _: fewer(message),
    ),
    "a mod of nothing": Followed(
        "securefed/flower/_mod.py",
        "secure_mod takes a SitePolicy, or reply=AppReply(...)",
        lambda _: secure_mod(),
        lambda message, _: mods(message),
    ),
    "a mod before the secure one": Followed(
        "securefed/flower/_mod.py",
        "something changed them on the way. For a mod of the app, ",
        lambda _: in_order(configures, secure_mod),
        lambda message, _: (
            found(r"ClientApp\(mods=\[(secure_mod), \.\.\.\]\)", message) and in_order(secure_mod, configures)
        ),
    ),
    "a run without a sum": Followed(
        "securefed/flower/_outcome.py",
        " gave a sum, so there is no result; the last one: ",
        lambda _: silent(),
        lambda message, _: announced(message),
    ),
}
"""By name, the remedies that are followed."""
