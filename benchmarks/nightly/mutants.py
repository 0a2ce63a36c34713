"""Mutants: one operator, comparison or constant of a module changed; and an import hook that loads a module mutated.

No file is changed: `python -m pytest -p benchmarks.nightly.mutants` with MUTANT="module:number" in its environment
compiles that module from its mutated syntax tree. Processes that the tests start load the module as it is written.
"""

from __future__ import annotations

import ast
import copy
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

VARIABLE = "MUTANT"
BINARY: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Add, ast.LShift: ast.RShift, ast.RShift: ast.LShift, ast.BitAnd: ast.BitOr, ast.BitXor: ast.BitOr,
}  # fmt: skip
COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """A change of one place of a module.

    Attributes:
        module: its dotted name.
        number: which of its places.
        line: of the source.
        words: the place before and after.
    """

    module: str
    number: int
    line: int
    words: str


def mutants(module: str, source: str) -> list[Mutant]:
    """Return every mutant of a module's source, in the order of its syntax tree."""
    return [place.mutant(module, number) for number, place in enumerate(_places(ast.parse(source)))]


def count(source: str) -> int:
    """Return how many mutants a source has."""
    return sum(1 for _ in _places(ast.parse(source)))


def mutant(module: str, source: str, number: int) -> Mutant:
    """Return one mutant of a module's source."""
    return list(_places(ast.parse(source)))[number].mutant(module, number)


def mutated(source: str, number: int) -> ast.Module:
    """Return the syntax tree of the source with one place changed."""
    tree = ast.parse(source)
    place = list(_places(tree))[number]
    setattr(place.node, place.field, place.value)
    return ast.fix_missing_locations(tree)


@dataclass(frozen=True)
class _Place:
    """A field of a node of a syntax tree, and its value in the mutant."""

    node: Any
    field: str
    value: Any

    def mutant(self, module: str, number: int) -> Mutant:
        changed = copy.copy(self.node)
        setattr(changed, self.field, self.value)
        pair = (self.node.test, changed.test) if self.field == "test" else (self.node, changed)
        before, after = (ast.unparse(ast.fix_missing_locations(node)) for node in pair)
        return Mutant(module, number, self.node.lineno, f"`{before}` -> `{after}`")


def _places(tree: ast.Module) -> Iterator[_Place]:
    """Yield the places that are mutated; annotations, docstrings and error texts are none."""
    for node in _code(tree):
        if isinstance(node, ast.BinOp) and type(node.op) in BINARY and not _text(node):
            yield _Place(node, "op", BINARY[type(node.op)]())
        elif isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in COMPARED:
            yield _Place(node, "ops", [COMPARED[type(node.ops[0])]()])
        elif isinstance(node, ast.BoolOp):
            yield _Place(node, "op", ast.Or() if isinstance(node.op, ast.And) else ast.And())
        elif isinstance(node, ast.Constant) and type(node.value) in (int, bool):
            yield _Place(node, "value", not node.value if isinstance(node.value, bool) else node.value + 1)
        elif isinstance(node, ast.IfExp | ast.If) and not _type_checking(node.test):
            yield _Place(node, "test", ast.UnaryOp(ast.Not(), node.test))


def _code(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of code, without annotations, texts of errors and formatted strings."""
    yield node
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns") or isinstance(value, ast.JoinedStr):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not isinstance(child, ast.JoinedStr | ast.Raise):
                yield from _code(child)


def _text(node: ast.BinOp) -> bool:
    return any(isinstance(side, ast.JoinedStr | ast.Constant) and not isinstance(getattr(side, "value", ""), int)
               for side in (node.left, node.right))  # fmt: skip


def _type_checking(test: ast.expr) -> bool:
    return isinstance(test, ast.Name) and test.id == "TYPE_CHECKING"


class _Loader(importlib.machinery.SourceFileLoader):
    """Compiles one module from its mutated syntax tree, and keeps no bytecode."""

    number = 0

    def get_code(self, fullname: str) -> CodeType:
        tree = mutated(Path(self.path).read_text(encoding="utf-8"), self.number)
        return compile(tree, self.path, "exec", dont_inherit=True)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the mutated module before the other finders do."""

    def __init__(self, module: str, number: int) -> None:
        self.module, self.number = module, number

    def find_spec(self, name: str, path: Any, target: ModuleType | None = None) -> Any:
        if name != self.module:
            return None
        sys.meta_path.remove(self)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            sys.meta_path.insert(0, self)
        assert spec is not None
        assert spec.origin is not None
        loader = _Loader(name, spec.origin)
        loader.number = self.number
        return importlib.util.spec_from_file_location(name, spec.origin, loader=loader)


if os.environ.get(VARIABLE):
    _module, _, _number = os.environ[VARIABLE].rpartition(":")
    assert _module not in sys.modules, f"{_module} is imported already: its mutant would not be tested"
    sys.meta_path.insert(0, _Finder(_module, int(_number)))
