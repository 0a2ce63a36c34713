"""Find the places of the package that raise an error which says what to write, give or run."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
_CODE = r"`[^`]+`|(?<!\w)--[a-z]|\b[Ww]rite [\w.{}]*[(\[]"
_TELLS = r"\b(?:give|use|pass|set|say|take|make|leave|allow|replace|lower|such as|with|or)\b"
_REMEDY = re.compile(rf"{_CODE}|(?i:{_TELLS})[^;]*?(?:(?<![\w.])[a-z_]+=['\"\w(\[{{]|(?<![\w.])[a-z]+\.\w+\.?\w*\()")
"""Code in backticks, an option of the command line, an expression to write, or an argument or a call to give."""
_DEPTH = 2
"""Names and helpers in a message that are followed to their text, each in the text of the one before."""


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
            yield from _of(path)


def _of(path: Path) -> Iterator[Site]:
    module = _parsed(path)
    scope = _imported(module) | _names(module)
    for function, node in _statements(module, None):
        text = _text(node, scope if function is None else scope | _names(function), _DEPTH)
        if _REMEDY.search(text):
            yield Site(path.relative_to(ROOT).as_posix(), getattr(node, "lineno", 0), text)


@cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def _imported(module: ast.Module) -> dict[str, list[ast.AST]]:
    """By name, the expressions that other modules of the package bind to what this one imports."""
    found = {}
    for node in module.body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("securefed."):
            parts = re.sub(r"^securefed\.(attacks|defenses)\b", r"\1", node.module or "").split(".")
            path = ROOT.joinpath(*parts).with_suffix(".py")
            bound = _names(_parsed(path)) if path.exists() else {}
            found |= {name.asname or name.name: bound[name.name] for name in node.names if name.name in bound}
    return found


def _statements(parent: ast.AST, function: ast.FunctionDef | None) -> Iterator[tuple[ast.AST | None, ast.AST]]:
    """Yield the error of each `raise` and the message of each `require`, with the function around it."""
    for node in ast.iter_child_nodes(parent):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            yield function, node.exc
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            if getattr(node.value.func, "id", "") == "require":
                yield from ((function, argument) for argument in node.value.args[1:])
        elif isinstance(node, ast.stmt | ast.ExceptHandler | ast.match_case):
            yield from _statements(node, node if isinstance(node, ast.FunctionDef) and not function else function)


@cache
def _names(scope: ast.AST) -> dict[str, list[ast.AST]]:
    """By name, the expressions that a scope binds to a variable, and its functions."""
    found: dict[str, list[ast.AST]] = {}
    nodes = scope.body if isinstance(scope, ast.Module) else ast.walk(scope)
    for node in nodes:
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for name in (target.id for target in targets if isinstance(target, ast.Name)):
                found.setdefault(name, []).append(node.value)
        if isinstance(node, ast.FunctionDef):
            found[node.name] = [node]
    return found


def _text(node: ast.AST, names: dict[str, list[ast.AST]], depth: int) -> str:
    """Return the text of a message, with {} around that of each value that is put into it."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.FunctionDef):
        returned = [inner.value for inner in ast.walk(node) if isinstance(inner, ast.Return) and inner.value]
        return "".join(_text(value, names, depth) for value in returned)
    if isinstance(node, ast.Name):
        return "".join(_text(value, names, depth - 1) for value in names.get(node.id, ())) if depth else ""
    inner = "".join(_text(child, names, depth) for child in ast.iter_child_nodes(node))
    return f"{{{inner}}}" if isinstance(node, ast.FormattedValue) else inner
