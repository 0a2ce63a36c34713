"""Entries of the table of remedies, and functions that do what a message says."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import securefed
from securefed import Dataset, algorithms, chain, defenses
from securefed._commands.cli import app
from securefed.errors import SecureFedError

X = np.arange(12.0).reshape(6, 2)
Y = np.array([0, 1, 1, 0, 1, 0])
OPTION = r"(?<![\w-])--[a-z][a-z-]*"
NAMES: dict[str, Any] = {
    **{name: getattr(algorithms, name) for name in algorithms.__all__},
    **{name: getattr(defenses, name) for name in defenses.__all__},
    **{"numpy": np, "np": np, "securefed": securefed, "Dataset": Dataset, "chain": chain, "x": X, "y": Y},
}
"""Names that an expression of a message may use."""


@dataclass(frozen=True)
class Followed:
    """A remedy and how it is followed.

    Attributes:
        file: the file that raises the error.
        piece: a part of its message that stands in the source as it is.
        raises: raises the error; it takes an empty folder, which is the working directory.
        remedy: does what the message says, with the message and the folder; a false result fails, `None` does not.
    """

    file: str
    piece: str
    raises: Callable[[Path], object]
    remedy: Callable[[str, Path], object]


def found(pattern: str, message: str) -> str:
    """Return what the pattern's group finds in the message."""
    match = re.search(pattern, message)
    assert match, message
    return match[1]


def evaluated(pattern: str, message: str, **names: Any) -> Any:
    """Evaluate the expression that the pattern's group finds in the message."""
    return eval(found(pattern, message), NAMES | names)  # noqa: S307 - our own message


def written(pattern: str, **names: Any) -> Callable[[str, Path], Any]:
    """Evaluate the expression that the pattern's group finds in the message, as a remedy."""
    return lambda message, _: evaluated(pattern, message, **names)


def arguments(pattern: str, message: str, **names: Any) -> dict[str, Any]:
    """Read `NAME=VALUE, ...`, which the pattern's group finds in the message, as the arguments of a call."""
    made: dict[str, Any] = eval(f"dict({found(pattern, message)})", NAMES | names)  # noqa: S307 - our own message
    return made


def run(*arguments: object) -> str:
    """Run a command and return what it printed; an error of it is raised."""
    done = CliRunner().invoke(app, [str(part) for part in arguments], env={"COLUMNS": "400"})
    printed = " ".join(done.output.split())
    if done.exit_code == 2:
        raise SecureFedError(printed)
    assert done.exit_code in (0, 3), (arguments, printed, done.exception)
    return printed


def command(*arguments: str) -> Callable[..., object]:
    """Run a command, HERE for the folder; as `raises` or as `remedy`."""
    return lambda *given: run(*(part.replace("HERE", str(given[-1])) for part in arguments))


def with_options(message: str, values: Mapping[str, object]) -> list[object]:
    """Return the options that a message names, once each, with their values; `True` for an option without one."""
    names = list(dict.fromkeys(re.findall(OPTION, message)))
    assert names, message
    return [part for name in names for part in ([name] if values[name] is True else [name, values[name]])]


def without_options(message: str, given: Mapping[str, object]) -> list[object]:
    """Return the options of a command without those that its message names."""
    named = set(re.findall(OPTION, message))
    assert named & set(given), message
    return [part for name, value in given.items() if name not in named for part in (name, value)]


def refused(function: Callable[[], object]) -> str:
    """Return the message of the error that a function raises."""
    with pytest.raises((SecureFedError, AssertionError)) as raised:
        function()
    return str(raised.value)
