"""Read a run from a TOML file, and compare what its plan promises with what the file asks for.

    algorithm = "ssi"                 # `securefed list`
    data      = "digits"              # or a file, with owner_column, label_column, standardise, encoding, ...
    clients   = 8
    rounds    = 20
    [settings]                        # of the algorithm
    rank = 5
    [defense]
    name      = "secure_aggregation"  # `securefed list`; the other keys are its settings
    threshold = 6
    [require]                         # what the plan has to promise
    hidden    = true                  # the server sees no single contribution
    threshold = 6                     # survivors that a sum needs, at least
    epsilon   = 8.0                   # after all rounds, at most
    error     = 1e-6                  # rounding error of an entry of a sum, at most

`securefed run FILE.toml` reads it. A defence states its plan before a run: rounding errors, the least number of clients
that a sum is opened over (survivors), and epsilon where it adds noise.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from securefed._commands.named_run import NamedRun
from securefed._persistence.file_errors import storage_errors
from securefed._runtime.privacy_cost import epsilon_after
from securefed.defenses._base import Defense, Plan
from securefed.errors import ConfigError

_RUN: Final = {"data": str, "clients": int, "cohort": int, "partition": str, "held_out": float, "rounds": int,
               "evaluate_every": int, "seed": int, "owner_column": str, "label_column": str,
               "standardise": bool, "encoding": str, "separator": str, "decimal": str}  # fmt: skip
_TABLES: Final = ("settings", "defense", "require")


@dataclass(frozen=True)
class Requirements:
    """Requirements on the plan of a run; `None` requires nothing.

    Attributes:
        hidden: whether the server must see no single contribution.
        threshold: survivors that a sum needs, at least.
        epsilon: epsilon after all rounds, at most.
        error: rounding error of an entry of a sum, at most.
    """

    hidden: bool | None = None
    threshold: int | None = None
    epsilon: float | None = None
    error: float | None = None


def read_run(path: Path) -> tuple[NamedRun, Requirements]:
    """Read a run and its requirements from a file.

    Raises:
        StorageError: the file cannot be read.
        ConfigError: it is no TOML, lacks the algorithm, or has a key or a value that no run has; the nearest key is
            named.
    """
    try:
        with storage_errors(f"read {path}"):
            content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is no TOML file: {error}") from error
    _check_keys(path, "", content, ("algorithm", *_RUN, *_TABLES))
    if not isinstance(content.get("algorithm"), str):
        raise ConfigError(f'{path} lacks the algorithm; write algorithm = "ssi", or another name of `securefed list`')
    tables = {name: content.get(name, {}) for name in _TABLES}
    for name, table in tables.items():
        if not isinstance(table, Mapping):
            raise ConfigError(f"{path}: {name} must be a table; write [{name}] with one setting a line")
    _check_keys(path, "[require] ", tables["require"], [field.name for field in fields(Requirements)])
    defending = dict(tables["defense"])
    run = {name: _typed(path, name, content[name], kind) for name, kind in _RUN.items() if name in content}
    required = {
        name: _typed(path, f"[require] {name}", value, {"hidden": bool, "threshold": int}.get(name, float))
        for name, value in tables["require"].items()
    }
    name = _typed(path, "[defense] name", defending.pop("name", "plain"), str)
    return NamedRun(content["algorithm"], tables["settings"], name, defending, **run), Requirements(**required)


def shortfalls(required: Requirements, defense: Defense, plan: Plan, rounds: int) -> list[str]:
    """Say, in one sentence each, where a plan promises less than is required.

    Args:
        required: what is asked for.
        defense: the defence.
        plan: its plan.
        rounds: rounds of the run.

    Returns:
        The sentences; none where the plan promises all that is required. Epsilon is infinite without noise.
    """
    out = []
    if required.hidden and not defense.aggregation.hides:
        out.append(f"the server sees every contribution under {plan.defense}, and hidden = true is required")
    if required.threshold is not None and plan.threshold < required.threshold:
        out.append(f"a sum opens with {plan.threshold} survivors, and at least {required.threshold} are required")
    if required.epsilon is not None:
        spent = epsilon_after(defense, plan, rounds)
        if spent > required.epsilon:
            out.append(f"epsilon is {spent:.3g} after {rounds} rounds, and at most {required.epsilon:g} is required")
    if required.error is not None:
        worst = max(plan.tensors, key=lambda tensor: tensor.error)
        if worst.error > required.error:
            out.append(f"{worst.name!r} is summed within {worst.error:.3g}, and {required.error:g} is required")
    return out


def _check_keys(path: Path, where: str, table: Mapping[str, Any], known: Sequence[str]) -> None:
    for key in table:
        if key not in known:
            near = get_close_matches(key, known, n=1)
            hint = f"; the nearest one is {near[0]!r}" if near else ""
            raise ConfigError(f"{path}: {where}{key!r} is no key of a run{hint}. Its keys: {', '.join(known)}")


def _typed(path: Path, name: str, value: Any, kind: type) -> Any:
    """Return a value of this type (an integer as a float where one is due); raise `ConfigError` for another."""
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        words = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}[kind]
        raise ConfigError(f"{path}: {name} must be {words}; got {value!r}")
    return value
