"""Remedies of grouped sums."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from flwr.serverapp.strategy import FedMedian

from securefed import Layout, Public, TensorSpec, Terms
from securefed.defenses import Identities, chain, clip, gaussian, grouped, paillier, secure_aggregation
from securefed.flower import SecureStrategy
from securefed.parties import SumTerms
from tests.contract.settings import data, make
from tests.remedies.followed import Followed, arguments, evaluated, found

GROUPED, CHECKS = "defenses/_grouped_sums/grouped.py", "securefed/_runtime/terms.py"
LAYOUT = Layout((TensorSpec("w", (6,), 1.0),))
N = 15


def five(masking: Any = None, **more: Any) -> Any:
    return grouped(masking or secure_aggregation(), **{"groups": 5} | more)


def known(clients: int) -> Any:
    return secure_aggregation(identities=Identities.generate(clients))


def planned(defense: Any, clients: int = N) -> object:
    return chain(defense).plan(LAYOUT, clients)


def terms(**more: Any) -> SumTerms:
    return SumTerms.like({"w": np.zeros(2)}, clients=N, defense=five(), **more)


def run_of(algorithm: Any, defense: Any) -> Terms:
    return Terms.of(algorithm, Public.of(data() * 5), chain(defense))


TABLE: dict[str, Followed] = {
    "groups of another aggregation": Followed(
        GROUPED,
        "the sums of groups are masked",
        lambda _: five(paillier()),
        lambda message, _: planned(evaluated(r"as in (chain\(.*\))$", message)),
    ),
    "a pipelined group": Followed(
        GROUPED,
        "is for one sum of all clients, and groups make several",
        lambda _: five(secure_aggregation(pipelined=True)),
        lambda message, _: planned(five(secure_aggregation(**arguments(r"give (pipelined=False) and", message)))),
    ),
    "a sparse group": Followed(
        GROUPED,
        "groups are small, and graph=",
        lambda _: five(secure_aggregation(graph="auto", adversarial=0.1, dropouts=0.1)),
        lambda message, _: planned(five(secure_aggregation(**arguments(r"give (graph='complete') to", message)))),
    ),
    "a mean that is to stand liars": Followed(
        GROUPED,
        "the mean stands no liar",
        lambda _: five(aggregator="mean", liars=1),
        lambda message, _: (
            planned(five(aggregator="mean", **arguments(r"give (liars=0),", message))),
            planned(five(liars=1, **arguments(r"or (aggregator='\w+')", message))),
        ),
    ),
    "a robust mean of no liars": Followed(
        GROUPED,
        "is set for liars=1 or more",
        lambda _: five(liars=0),
        lambda message, _: planned(five(**arguments(r"for none take (.*)$", message))),
    ),
    "too few groups for the liars": Followed(
        GROUPED,
        "groups for liars=",
        lambda _: five(aggregator="krum", liars=2),
        lambda message, _: planned(
            five(aggregator="krum", liars=2, **arguments(r"give (groups=\d+) or more", message)), 21
        ),
    ),
    "too few clients for the groups": Followed(
        GROUPED,
        "leave a group of fewer than",
        lambda _: planned(five(), 14),
        lambda message, _: (
            planned(five(), int(found(r"at least (\d+) clients", message))),
            planned(five(**arguments(r"give (groups=\d+) or fewer", message)), 14),
        ),
    ),
    "groups under noise": Followed(
        GROUPED,
        "adds noise that is sized for one sum",
        lambda _: chain(clip(1.0), gaussian(1.0), five()).plan(LAYOUT, N),
        lambda message, _: chain(
            clip(1.0), gaussian(1.0), evaluated(r"noise take `(secure_aggregation\(\))` without groups", message)
        ).plan(LAYOUT, N),
    ),
    "identities of other clients than planned": Followed(
        GROUPED,
        "groups are drawn from the identities of all",
        lambda _: planned(five(known(16))),
        lambda message, _: planned(
            five(
                secure_aggregation(
                    identities=Identities.generate(int(found(r"of the clients 0 to (\d+)", message)) + 1)
                )
            )
        ),
    ),
    "more least parties than a group has": Followed(
        "securefed/parties/_guards.py",
        "each client of a group counts ",
        lambda _: replace(terms(), least_parties=4),
        lambda message, _: replace(terms(), **arguments(r"give (least_parties=\d+),", message)),
    ),
    "an algorithm with running sums": Followed(
        CHECKS,
        "keeps running sums or duals",
        lambda _: run_of(make("optimization/scaffold"), five()),
        lambda message, _: (
            run_of(make("optimization/scaffold"), evaluated(r"take `(secure_aggregation\(\))` without", message)),
            run_of(evaluated(r"such as (\w+)\(\.\.\.\)$", message)(learning_rate=0.1), five()),
        ),
    ),
    "a cohort smaller than the run": Followed(
        GROUPED,
        "groups are drawn over all",
        lambda _: terms(cohort=12),
        lambda message, _: terms(**arguments(r"give (cohort=\d+)$", message)),
    ),
    "a robust strategy of Flower's without groups": Followed(
        "securefed/flower/_strategy.py",
        "needs the single replies that a secure sum hides",
        lambda _: SecureStrategy(FedMedian(), secure_aggregation(), largest_weight=9),
        lambda message, _: SecureStrategy(
            FedMedian(**arguments(r"and (fraction_evaluate=0.0)$", message)),
            evaluated(r"groups: (grouped\(.*\)) as the defence", message),
        ),
    ),
}
