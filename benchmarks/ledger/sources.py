"""A digest of the code that an experiment depends on, so that a result is known to be older than the code.

It covers the experiment and every definition that it reaches by name in this project (`definitions`): in its own module
and in those that it imports, algorithms, problems, data sets and attacks. The message layer computes the same sums
whatever it does (`tests/contract/test_parity.py`); it counts in experiments that say that it decides a figure of
theirs, such as bytes (`Experiment.messages`). In the others only the draw of a round's clients counts.
"""

from __future__ import annotations

import ast
import hashlib
import subprocess
from functools import cache

from benchmarks.ledger.definitions import ROOT, Definition, Sources, text
from benchmarks.ledger.ledger import Experiment

JUDGES = "benchmarks.ledger.ledger"
"""How a figure is judged is applied when the page is made, not when it is measured."""
CARRIES = ("_costs", "_extras", "_lazy", "_messages", "_persistence", "_registry", "_runtime", "_transports")
MESSAGE_LAYER = tuple(f"securefed.{part}" for part in (*CARRIES, "defenses", "parties"))
FOLDERS = ("securefed", "attacks", "defenses", "benchmarks")
"""Where code lies that an experiment may run."""
COHORTS = ("securefed._runtime.cohorts", "uniform")
"""Draws the clients of a round, which decide a figure wherever not all take part."""


@cache
def tree() -> Sources:
    """The sources on disk, read once."""
    return Sources()


def digest(module: str, experiment: Experiment, sources: Sources | None = None) -> str:
    """Return the hexadecimal digest of the code that the results of an experiment depend on.

    Args:
        module: that defines the experiment in its `EXPERIMENTS`.
        experiment: of that module.
        sources: the files on disk by default.
    """
    sources = sources or tree()
    call = _call(module, experiment.name, sources)
    state = hashlib.sha256(text(call).encode())
    for (where, name), code in sorted(reached(module, experiment, sources).items()):
        state.update(f"{where}.{name}:{code}\n".encode())
    return state.hexdigest()[:16]


def reached(module: str, experiment: Experiment, sources: Sources | None = None) -> dict[Definition, str]:
    """Return the definitions that an experiment depends on, each with a digest of its code."""
    sources = sources or tree()
    read = sources.module(module)
    assert read is not None
    uses = list(sources.uses(read, _call(module, experiment.name, sources)))
    top = module.partition(".")[0]

    def follows(name: str) -> bool:
        ours = name.partition(".")[0] in (top, "securefed")
        return ours and name != JUDGES and (experiment.messages or not in_message_layer(name))

    found = sources.reached(uses, follows)
    if not experiment.messages and ("securefed._runtime.federation", "Federation") in _named(sources, found):
        found |= sources.reached([COHORTS], lambda name: name == COHORTS[0])
    return found


def commit() -> str:
    """Return the commit of the code on disk, and whether the code was changed since; "" outside a clone."""
    try:
        head = _git("rev-parse", "--short=12", "HEAD").strip()
        changed = _git("status", "--porcelain", "--", *(f"{folder}/*.py" for folder in FOLDERS)).strip()
    except (OSError, subprocess.CalledProcessError):
        return ""
    return f"{head} with changes" if changed else head


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def in_message_layer(module: str) -> bool:
    """Whether a module carries sums, and decides none."""
    return any(module == part or module.startswith(f"{part}.") for part in MESSAGE_LAYER)


def _named(sources: Sources, found: dict[Definition, str]) -> set[Definition]:
    """Return the definitions that these ones name, whether or not the digest follows them."""
    named: set[Definition] = set()
    for where, name in found:
        module = sources.module(where)
        assert module is not None
        named |= set(sources.definition(module, name)[1])
    return named


def _call(module: str, name: str, sources: Sources) -> ast.AST:
    """Return what an experiment runs: the argument of its `Experiment(...)`, or all experiments of the module."""
    read = sources.module(module)
    assert read is not None
    everything = read.bound["EXPERIMENTS"][0]
    for part in ast.walk(everything):
        if isinstance(part, ast.Call) and part.args and isinstance(part.args[0], ast.Constant):
            given = dict(zip(RUN_ARGUMENTS, part.args, strict=False)) | {word.arg: word.value for word in part.keywords}
            if part.args[0].value == name and "run" in given:
                return given["run"]
    return everything


RUN_ARGUMENTS = ("name", "paper", "title", "run", "core_minutes")
"""Of `Experiment`, in order; a title or an estimate of time decides no figure."""
