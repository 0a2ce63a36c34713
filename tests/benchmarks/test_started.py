"""Every module of the benchmarks imports, and every script, module and test that a benchmark starts is there."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "benchmarks").rglob("*.py"))
ELSEWHERE = {
    "benchmarks.peers.pfl_fedavg": "pfl",
    "benchmarks.peers.flower_secagg_app.app": "digits",
}
"""Scripts that run in an environment or a folder of their own, and what they find only there."""
OURS = ("benchmarks", "docs", "examples", "extension_templates", "notebooks", "securefed", "tests")
NAMED = re.compile(rf"(?<![\w./-])(?:{'|'.join(OURS)})(?:/[\w-]+)+\.py\b")
"""A script's path in a text."""


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def started_modules(tree: ast.AST) -> Iterator[str]:
    """The modules that follow a `-m` in a list or tuple of arguments."""
    for node in ast.walk(tree):
        if isinstance(node, ast.List | ast.Tuple):
            values = [item.value if isinstance(item, ast.Constant) else None for item in node.elts]
            for flag, module in pairwise(values):
                if flag == "-m" and isinstance(module, str) and module.isidentifier() | ("." in module):
                    yield module


def started_paths(path: Path, tree: ast.AST) -> Iterator[Path]:
    """The paths that are joined by `/` from a module's constants to a script, such as `ROOT / "tests" / "x.py"`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and isinstance(node.right, ast.Constant):
            if not str(node.right.value).endswith(".py"):
                continue
            names = {name.id for name in ast.walk(node) if isinstance(name, ast.Name)}
            given = vars(importlib.import_module(module_of(path)))
            if names <= set(given):  # else a folder that the benchmark makes
                yield eval(compile(ast.Expression(node), str(path), "eval"), given)  # noqa: S307


def named_paths(tree: ast.AST) -> Iterator[str]:
    """Scripts that a text of the module names, and its tests and folders of tests."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from NAMED.findall(node.value)
            if re.fullmatch(r"tests(/\w+)*(\.py)?", node.value) and "/" in node.value:
                yield node.value


@pytest.mark.exhaustive
def test_every_module_imports() -> None:
    code = f"""
import importlib, sys
elsewhere, failed = {ELSEWHERE!r}, []
for name in {[module_of(path) for path in FILES]!r}:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != elsewhere.get(name):
            failed.append((name, repr(error)))
    except Exception as error:
        failed.append((name, repr(error)))
sys.exit("\\n".join(map(str, failed)) or 0)
"""
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_everything_that_a_benchmark_starts_is_there(path: Path) -> None:
    tree = ast.parse(path.read_text())
    assert [name for name in started_modules(tree) if find_spec(name) is None] == []
    assert [str(script) for script in started_paths(path, tree) if not script.is_file()] == []
    assert sorted({name for name in named_paths(tree) if not (ROOT / name).exists()}) == []


def test_scripts_modules_and_tests_are_found_where_they_are_started() -> None:
    """The control: what the checks look for is there to be found."""
    found = {module_of(path): ast.parse(path.read_text()) for path in FILES}
    modules = {name for tree in found.values() for name in started_modules(tree)}
    scripts = {script.name for path in FILES for script in started_paths(path, found[module_of(path)])}
    texts = {name for tree in found.values() for name in named_paths(tree)}
    assert {"benchmarks.peers.cohort", "securefed", "pytest"} <= modules
    assert {"pfl_fedavg.py", "flower_secagg.py", "parties_http.py"} <= scripts
    assert {"benchmarks/peers/flower_secagg.py", "tests/contract/test_non_interference.py", "tests/defenses"} <= texts


def test_every_benchmark_of_make_bench_has_a_main() -> None:
    bench = importlib.import_module("benchmarks.__main__")
    for name in bench.NAMES:
        assert callable(importlib.import_module(bench._module(name)).main), name
