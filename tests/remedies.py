"""Find the errors of the package that say what to write or give, for the tests that follow each remedy."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

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
