"""Remedies of audit cases, of advice on records, and of recordings of Flower."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import numpy as np

from securefed import Dataset, Public, audit_algorithm
from securefed._auditing.advice.record_privacy import _settings
from securefed._auditing.cases import case
from securefed._auditing.cases.utilities import utility
from securefed.algorithms import SSI, AuditCase
from securefed.recording import FlowerRecording
from tests.remedies.followed import Followed, X, Y, evaluated, found, run

CASES, PRIVACY = "securefed/_auditing/cases/case.py", "securefed/_auditing/advice/record_privacy.py"


class Uncased(SSI):
    """An algorithm without an audit case."""

    audit_case = None


class Cased(SSI):
    """The same with one."""

    audit_case = SSI.audit_case


class Scored(SSI):
    """An algorithm with a utility of its own."""

    def utility(self, output: Any, test: Any) -> float:
        return 0.0


def given_a_case(message: str) -> None:
    """Write the attribute that the message names, with the settings of a subspace."""
    name, value = found("attribute `(.*?)`", message).split(" = ")
    whole = SSI.audit_case
    assert whole is not None and isinstance(whole, evaluated("(.*)", value.replace("(...)", ""), AuditCase=AuditCase))
    assert getattr(Cased, name) is whole
    case(f"{__name__}:Cased")


def in_python(message: str) -> None:
    """Call what the message calls in Python, and run the command that it quotes."""
    call = found(r"`(audit_algorithm\(algorithm, clients\))`", message)
    options = ", rounds=1, seeds=1, seconds=0.1, view=['server'])"
    evaluated("(.*)", call.removesuffix(")") + options, audit_algorithm=audit_algorithm, algorithm=SSI(rank=1),
              clients=[Dataset(X / 12), Dataset(X / 11)])  # fmt: skip
    assert "advise" in found("`securefed (.*?)`", message) and run("advise", "--help")


def described(name: str, algorithm: Any) -> object:
    return _settings(SimpleNamespace(name=name, build=lambda: algorithm), Public.of([Dataset(X, Y)]))  # type: ignore[arg-type]


def recorded(rounds: int) -> object:
    recording = FlowerRecording(features=2)
    for _ in range(rounds):
        replies = [(SimpleNamespace(node_id=n, cid=str(n)), n) for n in range(2)]
        models = {n: {"w": np.ones(2) * n} for n, _ in enumerate(replies)}
        recording._add({"w": np.zeros(2)}, models, dict.fromkeys(models, 3))
    return recording.finish()


TABLE: dict[str, Followed] = {
    "a class without an audit case": Followed(
        CASES,
        "has no audit case; give the class an attribute",
        lambda _: case(f"{__name__}:Uncased"),
        lambda message, _: given_a_case(message),
    ),
    "a registered algorithm without an audit case": Followed(
        CASES,
        "is registered but cannot be audited by name",
        lambda _: case("private/fedavg"),
        lambda message, _: in_python(message),
    ),
    "an algorithm without a utility": Followed(
        "securefed/_auditing/cases/utilities.py",
        "which its audit case names; write it",
        lambda _: utility("score", lambda: SSI(rank=1)),
        lambda message, _: [
            utility("score", lambda: Scored(rank=1)),
            *(utility(name, lambda: SSI(rank=1)) for name in found("or name one of (.*)$", message).split(", ")),
        ],
    ),
    "record privacy of another algorithm": Followed(
        PRIVACY,
        "trains classifiers by gradients, and ",
        lambda _: described("pca/ssi", SSI(rank=1)),
        lambda message, _: evaluated("in Python `(record_level)`", message)(SSI(rank=1), 1.0),
    ),
    "record privacy of another model": Followed(
        PRIVACY,
        "a command names no private form of this model",
        lambda _: described("optimization/fedavg", SimpleNamespace(problem=object())),
        lambda message, _: hasattr(evaluated("give `(PrivateFedAvg)`", message), "layout"),
    ),
    "a Flower recording of no round": Followed(
        "securefed/recording/_flower.py",
        "no training round with a reply was recorded",
        lambda _: recorded(0),
        lambda message, _: (
            all(hasattr(FlowerRecording, name) for name in re.findall(r"`(\w+)`", message)) and recorded(1)
        ),
    ),
}
"""By name, the remedies that are followed."""
