"""Remedies of Flower apps."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg
from torch import nn

from securefed.defenses import chain, clip, secure_aggregation, skellam
from securefed.flower import SecureQueries, SecureStrategy, SitePolicy
from securefed.flower._app_reply import summed
from securefed.flower._client import party_of
from securefed.flower._sum_messages import arrays_of, base_of
from securefed.flower._wanted_terms import metric_shapes
from securefed.parties import SumTerms
from securefed.statistics import Mean
from tests.parties.sums import terms_of
from tests.remedies.followed import Followed, arguments, evaluated, found
from tests.stats.doors import flower_grid

STRATEGY = "securefed/flower/_strategy.py"
NOISE = chain(clip(1.0), skellam(1.0), secure_aggregation())


def strategy(defense: Any = None, fraction: float = 0.0, **given: Any) -> SecureStrategy:
    return SecureStrategy(FedAvg(fraction_evaluate=fraction), defense or secure_aggregation(), **given)


def metrics(message: str) -> None:
    strategy(fraction=1.0, largest_weight=9, **arguments(r"SecureStrategy (evaluate_metrics=\(.*?\)),",
             message.replace(", ...", ",")))  # fmt: skip
    SecureStrategy(FedAvg(**arguments(r"strategy (fraction_evaluate=0.0)$", message)), secure_aggregation(),
                   largest_weight=9)  # fmt: skip


def site(largest_weight: float) -> None:
    SitePolicy(largest_weight=1234564.0).check(terms_of(secure_aggregation(), largest_weight=largest_weight), 0)


def party(config: dict[str, Any]) -> object:
    return party_of(SimpleNamespace(node_config=config))  # type: ignore[arg-type]


def listed(evaluate_metrics: Any) -> object:
    """Read a reply whose loss is a list, under terms with these metrics."""
    wanted = metric_shapes("evaluate_metrics", evaluate_metrics, alike=False)
    terms = SumTerms.like(base_of({}, wanted, bytes(32)), clients=3, defense=secure_aggregation())
    reply = RecordDict({"metrics": MetricRecord({"loss": [0.5] * 10})})
    return summed(reply, terms, "evaluate", "num-examples")


def asked(statistic: Any) -> object:
    """Ask for a statistic of four sites."""
    tables = [np.full((6, 1), 50.0)] * 4
    return SecureQueries(flower_grid(tables), secure_aggregation(), poll=0.001, patience=0.05).ask(statistic)


TABLE: dict[str, Followed] = {
    "a SuperNode without a number": Followed(
        "securefed/flower/_client.py",
        "this SuperNode's config names no client",
        lambda _: party({}),
        lambda message, _: (
            party({name: int(value) for name, value in [found('--node-config "(.*?)"', message).split("=")]}) == 0
        ),
    ),
    "metrics under a clip": Followed(
        STRATEGY,
        "so metrics cannot ",
        lambda _: strategy(NOISE, 1.0),
        lambda message, _: SecureStrategy(FedAvg(**arguments(r"set (fraction_evaluate=0.0) in", message)), NOISE),
    ),
    "an evaluation without metrics": Followed(
        STRATEGY,
        "no metric is named to be summed",
        lambda _: strategy(fraction=1.0, largest_weight=9, evaluate_metrics=()),
        lambda message, _: metrics(message),
    ),
    "a metric that is a list": Followed(
        "securefed/flower/_app_reply.py",
        "must be one number, and is a list",
        lambda _: listed(("loss",)),
        lambda message, _: listed(**arguments(r"length, (evaluate_metrics=\{.*?\})", message)),
    ),
    "what is no statistic": Followed(
        "securefed/flower/_queries.py",
        "ask takes a statistic",
        lambda _: asked(3),
        lambda message, _: asked(evaluated(r"such as (Mean\(.*?\));", message, Mean=Mean)),
    ),
    "no largest weight": Followed(
        STRATEGY,
        "the largest weight that one client may have is not ",
        lambda _: strategy(),
        lambda message, _: strategy(**arguments("SecureStrategy (largest_weight=1000),", message)),
    ),
    "an array that cannot be read": Followed(
        "securefed/flower/_sum_messages.py",
        "are no NumPy array",
        lambda _: arrays_of(ArrayRecord({"w": Array("float64", (2,), "numpy.ndarray", b"no array")})),
        lambda message, _: arrays_of(
            evaluated(r"as (ArrayRecord\(.*?\)) does", message, ArrayRecord=ArrayRecord, model=nn.Linear(2, 1))
        ),
    ),
    "a site with more rows than the terms": Followed(
        "securefed/flower/_site.py",
        "this site's updates weigh up to ",
        lambda _: site(32),
        lambda message, _: site(**arguments(r"SecureStrategy (largest_weight=\S+)", message)),
    ),
}
"""By name, the remedies that are followed."""
