"""Remedies of audits of a caller's own function or algorithm, of advice, and of comparisons."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from securefed import Dataset, audit_algorithm
from securefed._auditing.own.function_algorithm import _checked_start
from securefed._auditing.report.audit_json import read
from tests.auditing.test_report import report
from tests.remedies.followed import Followed, X, Y, arguments, evaluated, written

RNG = np.random.default_rng(0)
START = "securefed/_auditing/own/function_algorithm.py"


def draws_by_itself(rows: np.ndarray, broadcast: Any, source: Any = RNG) -> dict[str, np.ndarray]:
    return {"y": rows.sum(0) + source.normal(size=rows.shape[1])}


def draws(rows: np.ndarray, broadcast: Any, rng: np.random.Generator) -> dict[str, np.ndarray]:
    return {"y": rows.sum(0) + rng.normal(size=rows.shape[1])}


def audited(function: Any, **given: Any) -> object:
    start = {"start": {"round": np.zeros(1)}}
    quick = {"rounds": 1, "seeds": 1, "seconds": 0.1, "view": ["server"]}
    clients = given.pop("clients", [Dataset(X), Dataset(X + 1)])
    return audit_algorithm(function, clients, **(start | quick | given)).cells


def sums(rows: np.ndarray, broadcast: Any) -> dict[str, np.ndarray]:
    return {"y": rows.sum(0)}


def next_of(value: np.ndarray) -> Callable[..., dict[str, np.ndarray]]:
    return lambda *_: {"round": value}


def compared(folder: Path, text: str | None) -> object:
    if text is None:
        report().save(folder)
    else:
        (folder / "audit.json").write_text(text)
    return read(folder / "audit.json")


def labelled(rows: np.ndarray, broadcast: Any, labels: np.ndarray) -> dict[str, np.ndarray]:
    return {"y": rows.T @ labels}


def in_torch(rows: Any, broadcast: Any) -> dict[str, Any]:
    return {"y": torch.relu(rows).sum(0)}


TABLE: dict[str, Followed] = {
    "a start that is none": Followed(
        START,
        "for clients that are sent nothing give ",
        lambda _: _checked_start({}),
        lambda message, _: _checked_start(written(r"give start=(.*)$")(message, _)),
    ),
    "a start of words": Followed(
        START,
        "which is no array of finite numbers",
        lambda _: _checked_start({"z": "no"}),
        lambda *_: _checked_start({"z": np.zeros(2)}),
    ),
    "a function that draws by itself": Followed(
        START, "For draws give it a parameter `rng`", lambda _: audited(draws_by_itself), lambda *_: audited(draws)
    ),
    "a function without a start": Followed(
        "securefed/_auditing/own/own_audit.py",
        "give it as `start`",
        lambda _: audited(draws, start=None),
        lambda *_: audited(draws),
    ),
    "draws in torch": Followed(
        START,
        'use backend="numpy"',
        lambda _: audited(draws, backend="torch"),
        lambda *_: audited(draws, backend="numpy"),
    ),
    "a broadcast of another shape": Followed(
        START,
        "names and shapes of the first",
        lambda _: audited(sums, combine=next_of(np.zeros(3)), rounds=2),
        lambda *_: audited(sums, combine=next_of(np.zeros(1)), rounds=2),
    ),
    "a broadcast of other names": Followed(
        START,
        "as `start` names them",
        lambda _: audited(sums, combine=lambda *_: {"other": np.zeros(1)}, rounds=2),
        lambda *_: audited(sums, combine=next_of(np.zeros(1)), rounds=2),
    ),
    "a broadcast of whole numbers": Followed(
        START,
        "give it as floating-point numbers there",
        lambda _: audited(sums, combine=next_of(np.array([0.5])), start={"round": np.zeros(1, int)}, rounds=2),
        lambda *_: audited(sums, combine=next_of(np.array([0.5])), rounds=2),
    ),
    "a function of one argument": Followed(
        START,
        "must be callable as contribute(rows, broadcast)",
        lambda _: audited(lambda rows: {"y": rows.sum(0)}),
        lambda *_: audited(sums),
    ),
    "a JSON of something else": Followed(
        "securefed/_auditing/report/audit_json.py",
        "but not of an audit",
        lambda folder: compared(folder, "{}"),
        lambda _, folder: compared(folder, None),
    ),
    "no JSON": Followed(
        "securefed/_auditing/report/audit_json.py",
        "is not JSON (",
        lambda folder: compared(folder, "cells"),
        lambda _, folder: compared(folder, None),
    ),
    "labels that are not there": Followed(
        START,
        "asks for labels, and the first client has none",
        lambda _: audited(labelled),
        lambda message, _: audited(labelled, clients=[evaluated(r"as (securefed\.Dataset\(x, y\))", message)] * 2),
    ),
    "torch in numpy": Followed(
        START,
        "for a function of torch tensors say ",
        lambda _: audited(in_torch),
        lambda message, _: audited(in_torch, **arguments(r'say (backend="torch")', message)),
    ),
    "a pair for a client": Followed(
        "securefed/_auditing/own/own_audit.py",
        "is a tuple; give ",
        lambda _: audited(sums, clients=[(X, Y), (X, Y)]),
        lambda message, _: audited(sums, clients=[evaluated(r"give (securefed\.Dataset\(x, y\))", message)] * 2),
    ),
}
"""By name, the remedies that are followed."""
