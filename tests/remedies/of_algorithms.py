"""Remedies of algorithms, of their runs, and of sums without a run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from securefed import (
    Algorithm,
    Dataset,
    DataUsage,
    Federation,
    Layout,
    Ledger,
    Limits,
    Public,
    RunOptions,
    TensorSpec,
    secure_mean,
)
from securefed._runtime.privacy_cost import DPSGDLoss, GaussianLoss, PrivacyCost, PrivacyMechanism
from securefed.algorithms import FLAME, SSI, FedAvg, GraphFedAvg, LocalPower, ScaffoldProx, algorithms, record_level
from securefed.algorithms._validation import check_object
from securefed.defenses import Budget, FixedSizeSampling, chain, clip, gaussian, secure_aggregation
from tests.remedies.followed import Followed, X, Y, arguments, evaluated, found

VALIDATION = "securefed/algorithms/_validation.py"
RECORDS = "securefed/algorithms/_private/record_level.py"
DATA = [Dataset(X / 12, Y), Dataset(X / 12, Y), Dataset(X / 12, Y)]
UNEVEN = [Dataset(X, Y), Dataset(X, Y), Dataset(np.ones((60, 2)), np.arange(60) % 2)]
SECRET = chain(clip(1.0), gaussian(5.0, sampler=FixedSizeSampling(2, 3)))


class Lacking:
    """An object with one method of an algorithm."""

    def start(self, public: Any, rng: Any) -> None: ...


class Beginning(Algorithm[Any, Any]):
    """A class with none of the six methods of an algorithm."""


class Kept:
    """A value that no file can hold."""


@dataclass(frozen=True)
class Remembering:
    """A state of a client with something that no file can hold."""

    data: Any


class Unstored(SSI):
    """An algorithm with clients whose state cannot be stored."""

    state: Any = Remembering

    def enroll(self, data: Dataset, public: Public, rng: np.random.Generator) -> Any:
        return self.state(Kept())


class Unevaluated(SSI):
    """An algorithm that defines no evaluation."""

    evaluation_layout, evaluate = Algorithm.evaluation_layout, Algorithm.evaluate


class OtherLayout(SSI):
    """An algorithm with another layout than its class says."""

    made: Any = None

    def layout(self, public: Public) -> Any:
        return self.made


class Choosing(FedAvg):
    """An algorithm that chooses clients by what they reveal."""

    candidates: int = 3

    @property
    def reveals(self) -> dict[str, str]:
        return {"rows": "its number of rows"}

    def reveal(self, client: Any, rng: np.random.Generator) -> dict[str, float]:
        return {"rows": float(client.data.rows)}

    def choose(self, revealed: Any, cohort: int) -> Any:
        return sorted(revealed)[:cohort]


def unstored(folder: Path, state: Any = Remembering) -> object:
    algorithm = type("Unstored", (Unstored,), {"state": state})(rank=1)
    return Federation(algorithm, DATA, options=RunOptions(checkpoint=folder / "run.checkpoint"))


def marked(message: str, folder: Path) -> None:
    """Mark the field as the message says; the run may then be stored."""
    local = evaluated(r"with (securefed\.local)\(\)", message)
    kind = dataclass(frozen=True)(type("Marked", (), {"__annotations__": {"data": Any}, "data": local()}))
    unstored(folder, kind)


def written_methods(message: str) -> None:
    names = found(r"lacks (.*); an", message).replace("`", "").split(", ")
    assert len(names) == 6
    type("Whole", (Beginning,), {name: getattr(SSI, name) for name in names})()


def evaluated_run(**given: Any) -> object:
    return Federation(Unevaluated(rank=1), DATA).run(1, **given)


def evaluation_methods(message: str) -> None:
    """Write the two methods that the message names, and leave out the argument that it names."""
    names = [name for name in ("evaluation_layout", "evaluate") if f"`{name}`" in message]
    whole = type("Whole", (Unevaluated,), {name: MEASURED[name] for name in names})
    assert len(names) == 2 and Federation(whole(rank=1), DATA).run(1, evaluate_every=1)
    assert found(r"leave out (\w+),", message) == "evaluate_every" and evaluated_run()


def measured(self: Any, client: Any, broadcast: Any) -> dict[str, Any]:
    return {"loss": np.array(0.5)}


MEASURED = {
    "evaluate": measured,
    "evaluation_layout": lambda self, public: Layout((TensorSpec("loss", (), 1.0),)),
}


def with_budget(defense: Any, budget: Budget | None = None) -> object:
    return Federation(FedAvg(), DATA, defense, options=RunOptions(budget=budget))


def noised(message: str) -> None:
    """Put the two links into the chain that the message names, with numbers; or leave the budget out."""
    links = [evaluated("(.*)", f"{name}(1.0)") for name in found(r"instance (clip.*gaussian\(\.\.\.\))", message)
             .replace("(...)", "").split(", ")]  # fmt: skip
    with_budget(chain(*links), Budget(1e6, 1.0))
    with_budget(chain())


def charged(limits: Limits, cost: PrivacyCost) -> object:
    return Ledger.in_memory(limits).charge("run", 0, cost)


def without_a_limit(message: str) -> None:
    charged(evaluated(r"set (Limits\(.*\))", message, Limits=Limits), PrivacyCost(()))
    charged(Limits(epsilon=1e6), PrivacyCost((PrivacyMechanism(GaussianLoss(4.0)),)))


def equal_weights(message: str) -> None:
    """Follow two of the remedies: the same weight for all clients, and an accountant without a secret draw."""
    Federation(FedAvg(**arguments(r"\((weighting='\w+'),", message)), UNEVEN, SECRET, cohort=2)
    sampler = found(r"account with '(\w+)'", message)
    Federation(FedAvg(), UNEVEN, chain(clip(1.0), gaussian(5.0, sampler=sampler)), cohort=2)


def graph(**settings: Any) -> object:
    data = [Dataset(np.random.default_rng(0).uniform(-1, 1, (4, 3))) for _ in range(2)]
    return record_level(GraphFedAvg(**settings), 1.0).layout(Public.of(data))


def smaller_steps(message: str) -> None:
    graph(local_steps=3, momentum=0, step_size=float(found(r"at most (\S+) \(", message)))
    graph(momentum=0, step_size=1e-3, **arguments(r"or (local_steps=1)$", message))


def covered(message: str) -> None:
    names = found(r"use (pca/ssi.*)$", message)
    settings = {
        "pca/localpower": {"rank": 1} | arguments(r"localpower with (local_steps=\(1,\))", message),
        "pca/ssi": {"rank": 1},
        "graph/fedavg": arguments("fedprox with (local_steps=1)$", message),
        "graph/fedprox": arguments("fedprox with (local_steps=1)$", message),
    }
    for name, given in settings.items():
        assert name in names
        record_level(algorithms.make(name, **given), 1.0)


def flame(message: str) -> None:
    """Follow both: no candidates for uniform selection, and as many as a round takes for biased."""
    FLAME(**arguments(r"with (selection='uniform');", message), candidates=int(found(r"must be (\d) with", message)))
    few = Public.of(DATA, cohort=2)
    assert "at least as many as a round takes" in message
    FLAME(**arguments(r"with (selection='biased') it", message), candidates=few.cohort).layout(few)


def proximal(regulariser: Any) -> object:
    return ScaffoldProx(regulariser=regulariser)


def mean(**given: Any) -> object:
    return secure_mean([{"w": np.ones(2)}] * 3, **{"defense": None} | given)


TABLE: dict[str, Followed] = {
    "a class for an algorithm": Followed(
        VALIDATION,
        "algorithm must be an object; got the class",
        lambda _: check_object(SSI),
        lambda message, _: check_object(evaluated(r"Write (.*)\.$", message)),
    ),
    "a name for an algorithm": Followed(
        VALIDATION,
        "algorithm must be an object; got the text",
        lambda _: check_object("ssi"),
        lambda message, _: [
            check_object(evaluated(pattern, message.replace("...", "rank=2")))
            for pattern in (r"Write (SSI\(rank=2\))", r"or (securefed\.\S* rank=2\))")
        ],
    ),
    "what is no algorithm": Followed(
        VALIDATION,
        "algorithm must be an algorithm, such as",
        lambda _: check_object(3),
        lambda message, _: check_object(evaluated(r"such as (\S+);", message)),
    ),
    "methods that lack": Followed(
        VALIDATION,
        "derive it from ",
        lambda _: check_object(Lacking()),
        lambda message, _: check_object(
            type("Whole", (Lacking, SSI, evaluated(r"from (securefed\.Algorithm)", message)), {})(rank=2)
        ),
    ),
    "an algorithm without methods": Followed(
        "securefed/algorithms/_base.py",
        "an algorithm has to define its six methods",
        lambda _: Beginning(),
        lambda message, _: written_methods(message),
    ),
    "a state that no file can hold": Followed(VALIDATION, "returned a state that cannot be stored", unstored, marked),
    "no layout": Followed(
        VALIDATION,
        "must return a securefed.Layout, such as",
        lambda _: Federation(OtherLayout(rank=1), DATA),
        lambda message, _: Federation(
            type(
                "Whole",
                (OtherLayout,),
                {"made": evaluated(r"such as (Layout.*); got", message, Layout=Layout, TensorSpec=TensorSpec)},
            )(rank=1),
            DATA,
        ),
    ),
    "no problem": Followed(
        "securefed/algorithms/_optimization/method.py",
        "problem must be a problem, such as",
        lambda _: FedAvg(problem="softmax"),
        lambda message, _: FedAvg(problem=evaluated(r"such as (\S+);", message)),
    ),
    "no regulariser": Followed(
        "securefed/algorithms/_optimization/proximal.py",
        "regulariser must be a regulariser, such as",
        lambda _: proximal("l1"),
        lambda message, _: proximal(evaluated(r"such as (\S+);", message)),
    ),
    "candidates without a selection": Followed(
        "securefed/algorithms/_personalized/flame.py",
        "candidates must be 0 with selection='uniform'",
        lambda _: FLAME(candidates=3),
        lambda message, _: flame(message),
    ),
    "records under local steps": Followed(
        RECORDS,
        "is not linear in a record",
        lambda _: record_level(LocalPower(rank=1, local_steps=(2,)), 1.0),
        lambda message, _: record_level(LocalPower(rank=1, **arguments(r"use (local_steps=.*)$", message)), 1.0),
    ),
    "records under momentum": Followed(
        RECORDS,
        "local steps with momentum",
        lambda _: record_level(GraphFedAvg(local_steps=2, momentum=0.5), 1.0),
        lambda message, _: [
            record_level(GraphFedAvg(**{"local_steps": 2, "momentum": 0.5} | arguments(pattern, message)), 1.0)
            for pattern in (r"use (momentum=0),", r"or (local_steps=1)$")
        ],
    ),
    "records of another algorithm": Followed(
        RECORDS,
        "no bound on what one record changes is derived",
        lambda _: record_level(FedAvg(), 1.0),
        lambda message, _: covered(message),
    ),
    "records under large steps": Followed(
        RECORDS,
        "(2 / L at degree zero",
        lambda _: graph(local_steps=3, momentum=0, step_size=1e-3),
        lambda message, _: smaller_steps(message),
    ),
    "clients that are chosen by what they reveal": Followed(
        "securefed/_runtime/cohorts.py",
        "which travels outside the defence",
        lambda _: Federation(Choosing(), DATA, secure_aggregation()),
        lambda message, _: Federation(
            Choosing(), DATA, secure_aggregation(), **arguments("pass (reveal=True)", message)
        ),
    ),
    "a result that shows a secret draw": Followed(
        "securefed/_runtime/privacy_checks.py",
        "a secret draw must not be accounted for",
        lambda _: Federation(FedAvg(), UNEVEN, SECRET, cohort=2),
        lambda message, _: equal_weights(message),
    ),
    "no evaluation": Followed(
        "securefed/_runtime/privacy_checks.py",
        "defines no evaluation",
        lambda _: evaluated_run(evaluate_every=1),
        lambda message, _: evaluation_methods(message),
    ),
    "a budget without noise": Followed(
        "securefed/_runtime/privacy_checks.py",
        "put noise into the chain",
        lambda _: with_budget(chain(), Budget(1.0, 1.0)),
        lambda message, _: noised(message),
    ),
    "DP-SGD that hides a client": Followed(
        "securefed/_runtime/privacy_cost.py",
        "their noise is scaled to one of them",
        lambda _: PrivacyMechanism(DPSGDLoss(1.0, 0.25, 4)),
        lambda message, _: PrivacyMechanism(DPSGDLoss(1.0, 0.25, 4), **arguments("give (unit='record')", message)),
    ),
    "a ledger for noise, and none": Followed(
        "securefed/_runtime/ledger.py",
        "so that its epsilon is infinite",
        lambda _: charged(Limits(epsilon=1.0), PrivacyCost(())),
        lambda message, _: without_a_limit(message),
    ),
    "a sum without a defence": Followed(
        "securefed/parties/_simulation.py",
        "needs a defense, such as",
        lambda _: mean(),
        lambda message, _: [
            mean(**arguments(pattern, message)) for pattern in (r"such as (defense=\S+\));", r"write (defense=\S+)$")
        ],
    ),
    "no ledger": Followed(
        "securefed/_runtime/ledger.py",
        "there is no ledger ",
        lambda folder: Ledger.open(folder / "ledger", Limits()),
        lambda message, folder: evaluated(
            r"used for: (Ledger\.create\(.*\)), with",
            message.replace("exchanges=..., epsilon=..., delta=...", "exchanges=1, epsilon=1.0, delta=1e-6"),
            Ledger=Ledger,
            DataUsage=DataUsage,
            path=folder / "ledger",
            limits=Limits(),
        ),
    ),
}
"""By name, the remedies that are followed."""
