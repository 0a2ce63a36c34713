"""A digest of everything a result depends on, so that a result is known to be older than the code it stands for.

It covers the experiment's module and what that imports, directly or not, of this package and of the library's
algorithms, problems and data sets: a change to the graph methods leaves the results of PCA as they are. Comments,
docstrings and layout do not enter: polishing the prose does not cost an hour of runs. The message layer is left out as
well, for it computes the same sums (`tests/contract/test_parity.py`), and so is which attacks are registered.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
from collections.abc import Iterator
from functools import cache
from pathlib import Path

LIBRARY = tuple(f"securefed.{part}" for part in ("algorithms", "problems", "datasets", "detection", "_catalogue"))
OTHERS = "securefed.problems._torch_module"
"""Wraps modules that users bring; no experiment has one (`tests/benchmarks/test_experiments.py`)."""
ASIDE = ("securefed.attacks", "securefed.defenses")
FRAMEWORK = frozenset({"ledger"})  # how a figure is judged is applied when the page is made, not when it is measured


@cache
def digest(module: str) -> str:
    """Hexadecimal digest of the code that results of this module's experiments depend on."""
    state = hashlib.sha256()
    for name, path in sorted(needed(module).items()):
        state.update(f"{name}:{_of_file(path)}\n".encode())
    return state.hexdigest()[:16]


def needed(module: str) -> dict[str, Path]:
    """The module and what it imports of its own package and of the library, directly or not: name -> file."""
    packages = (module.rpartition(".")[0], *LIBRARY)
    found: dict[str, Path] = {}
    ahead = [module]
    while ahead:
        name = ahead.pop()
        path = _file(name) if name not in found else None
        if path is not None:
            found[name] = path
            ahead += [other for other in _imports(path, packages) if other not in found]
    return found


def _file(name: str) -> Path | None:
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError:  # a name inside a module, not a module
        return None
    return None if spec is None or spec.origin is None else Path(spec.origin)


@cache
def _import_statements(path: Path) -> list[ast.Import | ast.ImportFrom]:
    return [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Import | ast.ImportFrom)]


def _imports(path: Path, packages: tuple[str, ...]) -> Iterator[str]:
    """What is imported of `packages`; of `from a import b` both `a` and `a.b`, which may be a module."""
    for node in _import_statements(path):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        else:
            continue
        inside = [n for n in names if any(n == p or n.startswith(f"{p}.") for p in packages)]
        named = (n for n in inside if n != packages[0] and not n.startswith(OTHERS))
        yield from (n for n in named if n.rpartition(".")[2] not in FRAMEWORK)


def _of_file(path: Path) -> str:
    return hashlib.sha256(code_of(path.read_text()).encode()).hexdigest()


def code_of(source: str) -> str:
    """The syntax tree as text, without docstrings, comments and layout; the same in every version of Python.

    `ast.dump` would do but for its format, which versions change.
    """
    return _text(ast.parse(source))


def _text(node: object) -> str:
    if isinstance(node, list):
        return "[" + " ".join(_text(item) for item in node if not _is_prose(item) and not _registers(item)) + "]"
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = ((name, getattr(node, name, None)) for name in node._fields)
    said = (f"{name}={_text(value)}" for name, value in fields if value is not None and value != [])
    return f"{type(node).__name__}({' '.join(said)})"


def _is_prose(node: object) -> bool:
    """A string that stands alone is a docstring or a comment."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _registers(node: object) -> bool:
    """A bare import of attacks or defences, which the catalogue makes for what it registers."""
    return isinstance(node, ast.Import) and all(alias.name.startswith(ASIDE) for alias in node.names)
