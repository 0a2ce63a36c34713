"""Draw the folder tree of CONTRIBUTING.md from the packages' own docstrings.

`python -m tests.house` writes the tree into CONTRIBUTING.md; `tests/test_house.py` fails where the page is out of date.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "CONTRIBUTING.md"
BEGIN, END = "<!-- tree: begin -->", "<!-- tree: end -->"
PACKAGES = ("securefed", "attacks", "defenses")
WIDTH = 34
OTHERS = {
    "examples": "Whole small applications that sum updates securely, each started by one command and run by the tests.",
    "extension_templates": "Commented examples to start your own algorithm, attack, transform and aggregation from.",
    "examples/flower_demo": "`make flower-demo`: one Flower app, plain and secured, with a SuperNode that dies.",
    "notebooks": "Ten notebooks to teach with: attacks, defences, exercises with solutions; their outputs are kept.",
    "docs": "The documentation site (`make docs`): pages for users, and the generated pages of figures.",
    "docs/generators": "Write the site's pages that come from code and from results, and mend what Sphinx reads.",
    "benchmarks/peers": "Benchmarks of speed and accuracy beside other libraries, one command each.",
    "benchmarks/ledger": "Experiments of the papers: their figures beside ours, judged against fixed targets.",
    "benchmarks/nightly": "`make nightly`: fresh schedules and cases, mutants, fuzzers, soaks with random kills.",
    "benchmarks/pages": "Measurements behind the generated pages of the documentation.",
    "benchmarks/results": "Results of the benchmarks as JSON, and the table of targets made of them.",
    "tests": "Tests, in folders that mirror the package.",
    "tests/contract": "Batteries over the registries: every algorithm under every defence, with deviating parties.",
    "tests/frozen": "Protocol vectors, saved files and exit codes of 0.1, which a later release keeps or versions.",
}
"""Folders beside the package."""


def tree() -> str:
    """Return one line for each folder."""
    lines = [line for top in PACKAGES for line in _folder(ROOT / top, 0)]
    lines += [f"{folder}/".ljust(WIDTH) + line for folder, line in OTHERS.items()]
    return "\n".join(["```", *lines, "```"])


def page() -> str:
    """Return CONTRIBUTING.md with the tree as it is now."""
    text = PAGE.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{tree()}\n{END}{after}"


def folders() -> Iterator[Path]:
    """Iterate over the folders of the package."""
    for top in PACKAGES:
        yield from (ROOT / top, *_inside(ROOT / top))


def description(folder: Path) -> str:
    """Return the first line of a folder's docstring."""
    return (ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or "").partition("\n")[0]


def module_graph() -> dict[str, set[str]]:
    """Return, for each module of the package, the modules that it imports, at its top, in functions or for types.

    The `__init__` of a package counts by its top only: it names what is exported, for lazy imports.
    """
    files = {_dotted(path): path for folder in folders() for path in folder.glob("*.py")}
    graph: dict[str, set[str]] = {}
    for module, path in files.items():
        tree = ast.parse(path.read_text())
        nodes = tree.body if path.stem == "__init__" else statements(tree)
        found = {name for node in nodes for name in _imports(node)}
        graph[module] = {name if name in files else name.rpartition(".")[0] for name in found} & set(files) - {module}
    return graph


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """Iterate over all statements inside a node, without entering their expressions."""
    for field in ("body", "orelse", "finalbody", "handlers", "cases"):
        for child in getattr(node, field, ()):
            yield child
            yield from statements(child)


def _dotted(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts[:-1] if parts[-1] == "__init__" else parts
    return ".".join(parts if parts[0] == "securefed" else ("securefed", *parts))


def _imports(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("securefed"):
        yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _inside(folder: Path) -> list[Path]:
    found = [f for f in sorted(folder.rglob("*")) if f.is_dir() and any(f.glob("*.py"))]
    return [f for f in found if "__pycache__" not in f.parts]


def _folder(folder: Path, depth: int) -> Iterator[str]:
    yield f"{'    ' * depth}{folder.name}/".ljust(WIDTH) + description(folder)
    for inner in sorted(folder.iterdir()):
        if inner.is_dir() and inner.name != "__pycache__" and any(inner.rglob("*.py")):
            yield from _folder(inner, depth + 1)


if __name__ == "__main__":
    PAGE.write_text(page())
