"""Find the errors of the package that say what to write or give, and follow what they say."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import securefed
from securefed import Dataset, chain
from securefed._commands.cli import app
from securefed._commands.run_file import read_run
from securefed.algorithms import SSI
from securefed.datasets import load
from securefed.defenses import clip, gaussian
from securefed.errors import SecureFedError

ROOT = Path(__file__).parents[1]
_REMEDY = re.compile(r"`[^`]+`|(?<!\w)--[a-z]|\b[Ww]rite [\w.{}]*[(\[]")
"""Code in backticks, an option of the command line, or an expression to write."""


@dataclass(frozen=True)
class Site:
    """One place that raises an error with a remedy.

    Attributes:
        file: its file, from the root of the repository.
        line: the line of the statement.
        text: the message, as far as the source says it.
    """

    file: str
    line: int
    text: str


def sites() -> Iterator[Site]:
    """Yield every `raise` and every `require(...)` of the package whose message holds a remedy."""
    for top in ("securefed", "attacks", "defenses"):
        for path in sorted((ROOT / top).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                text = _message(node)
                if _REMEDY.search(text):
                    yield Site(path.relative_to(ROOT).as_posix(), getattr(node, "lineno", 0), text)


def _message(node: ast.AST) -> str:
    if isinstance(node, ast.Raise) and node.exc is not None:
        return _text(node.exc)
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "require":
        return "".join(map(_text, node.args[1:]))
    return ""


def _text(node: ast.AST) -> str:
    """Return the text of a message, with {} around that of each value that is put into it."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    inner = "".join(map(_text, ast.iter_child_nodes(node)))
    return f"{{{inner}}}" if isinstance(node, ast.FormattedValue) else inner


NOT_YET: dict[str, int] = {
    "attacks/_active/trap_weights.py": 1,
    "attacks/_distances/distance_fit.py": 1,
    "attacks/_generic/row_fit.py": 1,
    "attacks/_generic/time_budget.py": 1,
    "attacks/_membership/likelihood_ratio.py": 1,
    "defenses/_base.py": 3,
    "defenses/_differential_privacy/distributed.py": 1,
    "defenses/_secure_aggregation/thresholds.py": 2,
    "securefed/_auditing/advice/record_privacy.py": 1,
    "securefed/_auditing/cases/case.py": 2,
    "securefed/_auditing/cases/utilities.py": 1,
    "securefed/_auditing/training/membership_scores.py": 1,
    "securefed/_auditing/training/model_inputs.py": 1,
    "securefed/_auditing/training/training_audit.py": 1,
    "securefed/_commands/audit_run.py": 2,
    "securefed/_commands/party.py": 1,
    "securefed/_commands/party_files.py": 3,
    "securefed/_commands/party_turns.py": 10,
    "securefed/_runtime/privacy_checks.py": 2,
    "securefed/datasets/_row_tables.py": 2,
    "securefed/flower/_client.py": 1,
    "securefed/flower/_server.py": 1,
    "securefed/parties/_server.py": 2,
    "securefed/recording/_flower.py": 1,
    "securefed/statistics/_base.py": 3,
    "securefed/testing/_aggregation_checks.py": 2,
    "securefed/testing/_attack_checks.py": 2,
    "securefed/torch/_record.py": 1,
}
"""By file, the errors whose remedy is not followed yet."""
X = np.arange(12.0).reshape(6, 2)
NAMES = {
    "numpy": np,
    "np": np,
    "securefed": securefed,
    "Dataset": Dataset,
    "SSI": SSI,
    "chain": chain,
    "clip": clip,
    "gaussian": gaussian,
    "x": X,
}
"""Names that an expression of a message may use."""


@dataclass(frozen=True)
class Followed:
    """A remedy and how it is followed.

    Attributes:
        file: the file that raises the error.
        piece: a part of its message that stands in the source as it is.
        raises: raises the error; it takes an empty folder.
        remedy: does what the message says, with the message and the folder; a false result fails, `None` does not.
    """

    file: str
    piece: str
    raises: Callable[[Path], object]
    remedy: Callable[[str, Path], object]


def written(pattern: str, **names: Any) -> Callable[[str, Path], Any]:
    """Evaluate the expression that the pattern's group finds in the message."""

    def follow(message: str, folder: Path) -> Any:
        found = re.search(pattern, message)
        assert found, message
        return eval(found[1], NAMES | names)  # noqa: S307 - our own message

    return follow


def command(*arguments: str) -> Callable[..., object]:
    """Run a command in the folder; as `raises`, raise what it printed."""

    def run(*given: Any) -> object:
        folder = given[-1]
        done = CliRunner().invoke(app, [part.replace("HERE", str(folder)) for part in arguments])
        if done.exit_code == 2:
            raise SecureFedError(" ".join(done.output.split()))
        return done.exit_code in (0, 3) or pytest.fail(done.output)

    return run


def run_file(folder: Path, text: str) -> object:
    (folder / "run.toml").write_text(text)
    return read_run(folder / "run.toml")


def data_file(folder: Path, suffix: str) -> object:
    np.savez(folder / "data.npz", x=X, y=np.arange(6))
    return load(str(folder / f"data.{suffix}"))
