"""Every sentence of the threat model points to a test that exists, or says that it is assumed."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest

from securefed import _catalogue as catalogue
from tests.house import statements

TESTS = Path(__file__).parent
PAGE = TESTS.parent / "docs" / "threat-model.md"
POINTER = re.compile(r"`(test_\w+\.py)::(test_\w+)`")
UNDER = ("`test_", "*Assumed*: ")
"""How a line begins that does not go on with the sentence above it."""
SENTENCE = re.compile(r"\.\s+[A-Z]")


UNRUN = {"skip", "skipif", "xfail"}
SLOW = "test_epsilon_records.py::test_a_row_of_dp_sgd_is_as_private_as_accounted_for_and_bugs_are_flagged"
"""A test that `make test` leaves out."""
PROSE = re.compile(r"What stands above holds(?: for each exchange)?, with these differences\.")


@cache
def files_by_name() -> Mapping[str, list[Path]]:
    """The test files by name."""
    found: dict[str, list[Path]] = {}
    for path in TESTS.rglob("test_*.py"):
        found.setdefault(path.name, []).append(path)
    return found


@cache
def trees_of(file: str) -> tuple[ast.Module, ...]:
    """Syntax trees of the test files of that name."""
    return tuple(ast.parse(path.read_text()) for path in files_by_name().get(file, ()))


@cache
def left_out(file: str) -> tuple[str, ...]:
    """Names of the tests in the test files of that name that `make test` leaves out whole."""
    functions = [node for tree in trees_of(file) for node in statements(tree) if isinstance(node, ast.FunctionDef)]
    marks = {node.name: {ast.unparse(mark) for mark in node.decorator_list} for node in functions}
    return tuple(name for name, found in marks.items() if "pytest.mark.exhaustive" in found)


@cache
def names_in(file: str) -> tuple[str, ...]:
    """Names of the tests that pytest collects from the test files of that name, and always runs."""
    return tuple(name for tree in trees_of(file) for name in collected(tree))


def collected(tree: ast.Module) -> list[str]:
    """Functions of the module, and of its test classes, that no mark or call skips."""
    bodies = [tree, *(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name.startswith("Test"))]
    functions = [node for body in bodies for node in body.body if isinstance(node, ast.FunctionDef)]
    return [node.name for node in functions if node.name.startswith("test_") and not _unrun(node)]


def _unrun(function: ast.FunctionDef) -> bool:
    return any(isinstance(node, ast.Attribute) and node.attr in UNRUN for node in ast.walk(function))


def items(page: str) -> list[tuple[str, str]]:
    """Each list item: its sentence, and what stands under it."""
    out = []
    for block in re.split(r"\n(?=- )", page)[1:]:
        lines = [line.strip() for line in block.split("\n\n")[0].removeprefix("- ").splitlines()]
        end = next((i for i, line in enumerate(lines) if line.startswith(UNDER)), len(lines))
        out.append((" ".join(lines[:end]), " ".join(lines[end:])))
    return out


def faults(page: str) -> list[str]:
    """What is wrong with the page, in words."""
    out = []
    for sentence, under in items(page):
        pointers = POINTER.findall(under)
        if not pointers and not under.startswith("*Assumed*: "):
            out.append(f"stands alone: {sentence}")
        if POINTER.sub("", under).strip(" ,") and pointers:
            out.append(f"words beside the tests: {sentence}")
        if not sentence.endswith(".") or SENTENCE.search(sentence):
            out.append(f"not one sentence: {sentence}")
        out += [f"no such test: {file}::{name}" for file, name in pointers if names_in(file).count(name) != 1]
        if pointers and all(name in left_out(file) for file, name in pointers):
            out.append(f"no test of it in `make test`: {sentence}")
    return out


def test_only_tests_that_run_count() -> None:
    source = """
def test_it(): ...
def helper():
    def test_inside(): ...
class TestThem:
    def test_too(self): ...
class Other:
    def test_not(self): ...
@pytest.mark.skipif(True, reason="")
def test_skipped(): ...
def test_gives_up():
    pytest.skip("")
@pytest.mark.parametrize("x", [pytest.param(1, marks=pytest.mark.xfail)])
def test_fails(x): ...
"""
    assert collected(ast.parse(source)) == ["test_it", "test_too"]


def test_statements_are_list_items_and_nothing_else_is_said() -> None:
    """After the introduction (up to the first section) all words are headings, items, or one known sentence."""
    for section in PAGE.read_text().split("\n## ")[1:]:
        for paragraph in re.split(r"\n\s*\n", section.partition("\n")[2].strip()):
            assert paragraph.startswith(("- ", "**")) or PROSE.fullmatch(paragraph), paragraph


def test_every_sentence_points_to_a_test_that_exists_or_is_assumed() -> None:
    page = PAGE.read_text()
    assert len(items(page)) > 80
    assert faults(page) == []


@pytest.mark.parametrize("name", catalogue.defenses.names)
def test_every_registered_defence_has_its_section(name: str) -> None:
    headings = [line for line in PAGE.read_text().splitlines() if line.startswith("## ")]
    assert any(f"`{name}" in heading for heading in headings)


def test_every_section_says_who_what_and_what_not() -> None:
    for section in PAGE.read_text().split("\n## ")[2:]:
        parts = {"Who may collude", "Hidden", "Visible", "Assumed", "Not promised"}
        if "with these differences" in section:
            parts -= {"Who may collude", "Assumed"}
        missing = [part for part in parts if f"\n**{part}**\n" not in section]
        assert not missing, (section.splitlines()[0], missing)


@pytest.mark.parametrize(
    ("item", "says"),
    [
        ("- All is well.\n", "stands alone"),
        ("- All is well.\n  *Assumed*: so.\n", None),
        ("- All is well.\n  `test_threat_model.py::test_no_such_thing`\n", "no such test"),
        ("- All is well.\n  `test_nowhere.py::test_it`\n", "no such test"),
        ("- All is well. It is.\n  *Assumed*: so.\n", "not one sentence"),
        ("- All is\n  well.\n  *Assumed*: so.\n", None),
        ("- All is\n  well. It is.\n  *Assumed*: so.\n", "not one sentence"),
        ("- All is well.\n  `test_threat_model.py::test_the_check_sees_faults` mostly\n", "words beside"),
        ("- All is well.\n  `test_threat_model.py::test_the_check_sees_faults`\n", None),
        (f"- All is well.\n  `{SLOW}`\n", "no test of it in `make test`"),
        (f"- All is well.\n  `{SLOW}`, `test_threat_model.py::test_the_check_sees_faults`\n", None),
    ],
)
def test_the_check_sees_faults(item: str, says: str | None) -> None:
    found = faults(f"# Page\n\n{item}")
    assert found == [] if says is None else says in found[0]
