"""Measure how one lying client of 20 changes a model under grouped sums: `python -m benchmarks robust_means`.

Digits (1,797 rows of 64 columns, a quarter kept to test), softmax regression by FedAvg, 20 clients in 5 groups of 4,
20 rounds, 10 seeds. A run makes the sums of groups in the clear, by the code that estimates from masked ones
(`ClearGroups`; a test compares the two bit for bit). The liar knows what all others contribute in the round, and sends

    10 times      10 times its bound, in every entry, with the sign against the honest mean
    against       .99 of its bound in every entry, with the sign against the honest mean
    constant      .99 of its bound in every entry
    little        what makes its group's mean the honest mean less 1.5 standard deviations of the honest groups' means
                  (after Baruch et al. 2019), at most .99 of its bound

A row holds the change of accuracy by the lie: the median of the seeds, the lowest and the highest. It is the difference
to the run in which the same client is honest; for "10 times, less its group" to the run in which its group is lost.
The rows "no liar" hold an estimator's change to the plain mean. One of the 449 rows to test is .0022.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import numpy as np

from benchmarks.rows import Row, row, write
from securefed import Dataset, Federation, RunOptions
from securefed._messages import Aggregate, Message, PartyId
from securefed._tensors import Tensors
from securefed.algorithms import FedAvg
from securefed.datasets import load, partition
from securefed.defenses import Defense, Identities, grouped, quantise, secure_aggregation
from securefed.defenses._grouped_sums import Grouped
from securefed.defenses._grouped_sums.robust import ESTIMATORS
from securefed.defenses._grouped_sums.sums import GroupedServer, combined
from securefed.defenses._plain import Plain, PlainServer
from securefed.defenses._plan import Plan, Session
from securefed.problems import SoftmaxRegression

CLIENTS, GROUPS, ROUNDS, SEEDS, LIAR = 20, 5, 20, 10, 7
LIES = ("10 times", "against", "constant", "little")
LOST = "lost"
"""Instead of a lie: the liar's group is not in the sum."""
TARGET = 0.01


@dataclass(frozen=True)
class ClearGroups(Plain):
    """Sums each group in the clear, and estimates as `Grouped` does; one client may lie.

    Attributes:
        grouped: the groups and the estimator.
        lie: what the liar sends; empty for none.
        liar: its number.
    """

    grouped: Grouped = field(default_factory=partial(grouped, secure_aggregation(), groups=GROUPS))
    lie: str = ""
    liar: int = LIAR
    exact: ClassVar[bool] = True

    def plan(self, plan: Plan) -> Plan:
        """Return the plan of the groups, in one stage."""
        return self.grouped.plan(plan).assume("Not private: the server sees every contribution.")

    def server_step(self, state: PlainServer, replies: Mapping[PartyId, Message]) -> Aggregate:
        """Add the contributions of each group, the liar's too, and estimate."""
        sent = {client: dict(reply.body) for client, reply in replies.items()}
        plan = state.plan
        assert plan.exchange is not None
        session = Session(*plan.exchange, tuple(range(plan.clients)), plan)
        members = [self.grouped.session_of(session, group) for group in range(self.grouped.groups)]
        cohorts = tuple(() if own is None else own.cohort for own in members)
        if self.lie in LIES and self.liar in sent:
            sent[self.liar] = dict(self._lie(plan, sent, cohorts))
        sums = {}
        for number, cohort in enumerate(cohorts):
            total = {t.name: sum(sent[client][t.name] for client in cohort) for t in plan.tensors}
            sums[number] = Aggregate(total, cohort)  # type: ignore[arg-type]
        void = {number: "lost" for number, cohort in enumerate(cohorts) if self.lie == LOST and self.liar in cohort}
        left = {number: summed for number, summed in sums.items() if number not in void}
        return combined(GroupedServer((None,) * len(cohorts), plan, cohorts, void), left)

    def _lie(self, plan: Plan, sent: Mapping[int, Tensors], cohorts: tuple[tuple[int, ...], ...]) -> Iterator[Any]:
        """Yield the liar's tensors, by name."""
        for tensor in plan.tensors:
            assert tensor.bound is not None
            honest = np.stack([sent[client][tensor.name] for client in sent if client != self.liar]).astype(float)
            mean, most = honest.mean(axis=0), 0.99 * tensor.bound / tensor.step
            if self.lie == "little":
                groups = [[c for c in cohort if c != self.liar] for cohort in cohorts]
                means = np.stack([np.mean([sent[c][tensor.name] for c in cohort], axis=0) for cohort in groups])
                wanted = mean - 1.5 * means.std(axis=0)  # of the group's mean
                own = next(cohort for cohort in cohorts if self.liar in cohort)
                others = sum(sent[c][tensor.name] for c in own if c != self.liar)
                value = np.clip(len(own) * wanted - others, -most, most)
            elif self.lie == "constant":
                value = np.full(tensor.shape, most)
            else:
                value = -np.sign(mean) * (10 * tensor.bound / tensor.step if self.lie == "10 times" else most)
            yield tensor.name, np.rint(value).astype(np.int64)


def main() -> None:
    """Measure and write `results/robust_means.json`."""
    rows = []
    for r in (line for split in ("iid", "dirichlet") for line in _split(split)):
        rows.append(r)
        write("robust_means", rows)  # each row as it is there, as all take half an hour
        print(
            f"{r.quantity:20} {r.setting:44} {r.ours:+.4f} ({r.spread[0]:+.4f} to {r.spread[1]:+.4f}) {r.met}",
            flush=True,
        )


def _split(split: str) -> Iterator[Row]:
    """Measure all estimators on one way of dealing rows to clients."""
    plain = [accuracy(seed, split, "mean") for seed in range(SEEDS)]
    yield row("accuracy", f"{split}, mean, no liar", plain, "share")
    for name in ("mean", *ESTIMATORS):
        without = plain if name == "mean" else [accuracy(seed, split, name) for seed in range(SEEDS)]
        if name != "mean":
            yield row("change of accuracy", f"{split}, {name}, no liar", _less(without, plain), "share")
        for lie in LIES if split == "iid" else ("against",):
            lied = [accuracy(seed, split, name, lie) for seed in range(SEEDS)]
            yield row("change of accuracy", f"{split}, {name}, {lie}", _less(lied, without), "share")
            if lie == "10 times" and name != "mean":
                change = _less(lied, [accuracy(seed, split, name, LOST) for seed in range(SEEDS)])
                met = max(map(abs, change)) <= TARGET
                yield row("change of accuracy", f"{split}, {name}, {lie}, less its group", change, "share",
                          target=f"within {TARGET} in all seeds", met=met)  # fmt: skip


def _less(some: list[float], others: list[float]) -> list[float]:
    return [one - other for one, other in zip(some, others, strict=True)]


def accuracy(seed: int, split: str, aggregator: Any, lie: str = "", rounds: int = ROUNDS) -> float:
    """Train, and return the accuracy on the rows that were kept to test.

    Args:
        seed: of the rows' split.
        split: "iid" or "dirichlet" (skewed labels, concentration 1).
        aggregator: name of the estimator.
        lie: one of `LIES`, or `LOST`; empty for neither.
        rounds: rounds of training.
    """
    rng = np.random.default_rng(seed)
    train, test = partition.split(load("digits").data, 0.25, rng)
    data = (
        partition.iid(train, CLIENTS, rng)
        if split == "iid"
        else partition.dirichlet(train, CLIENTS, rng, alpha=1.0, minimum=10)
    )
    keys = Identities({client: bytes([seed, client]) * 16 for client in range(CLIENTS)})  # the same groups in all runs
    groups = grouped(secure_aggregation(identities=keys), groups=GROUPS, aggregator=aggregator)
    found = federation(data, Defense((quantise(),), ClearGroups(groups, lie)), seed).run(rounds).output
    return _accuracy(found, test)


def federation(data: list[Dataset], defense: Defense, seed: int) -> Federation:
    """Make the federation that is measured."""
    method = FedAvg(problem=SoftmaxRegression(), learning_rate=0.5, local_steps=5)
    return Federation(method, data, defense, seed=seed, options=RunOptions(keep_transcript=False))


def _accuracy(model: Tensors, test: Dataset) -> float:
    scores = test.x @ model["weight"].T + model["bias"]
    return float(np.mean(scores.argmax(axis=1) == test.y))


if __name__ == "__main__":
    main()
