"""Examples in docstrings and shell lines on pages name what exists: imports work, options are the command's."""

from __future__ import annotations

import ast
import re
import shlex
import textwrap
from pathlib import Path
from typing import Any

import pytest
import typer

from docs.generators.docstrings import _example_after
from securefed._commands.cli import app

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *(p for p in sorted((ROOT / "docs").rglob("*.md")) if "generated" not in p.parts)]
_CODE = re.compile(r"^(?:from|import) ", flags=re.MULTILINE)  # formulas, trees and tables are indented too


def docstrings(top: Path) -> list[tuple[str, str]]:
    """Every docstring below a folder, with the place where it stands."""
    found = []
    for path in sorted(top.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                text = ast.get_docstring(node)
                if text:
                    found.append((f"{path.relative_to(ROOT)}:{getattr(node, 'name', '')}", text))
    return found


def examples(text: str) -> list[str]:
    """The indented blocks of a docstring that are Python."""
    lines = text.splitlines()
    blocks = [_example_after(lines, index) for index in range(len(lines))]
    code = [textwrap.dedent("\n".join(block)) for block in blocks if block]
    return [block for block in code if _CODE.search(block)]


def shell_lines(text: str) -> list[str]:
    """The calls of `securefed` in the blocks of a page, without comments."""
    lines, fence = [], None
    for line in text.replace("\\\n", " ").splitlines():  # a backslash goes on in the next line
        if line.startswith("```"):
            fence = None if fence is not None else line.removeprefix("```")
        elif fence in ("", "text", "bash", "sh"):
            lines.append(line.strip())
    return [line.partition("  #")[0] for line in lines if line.startswith("securefed ") and "..." not in line]


def unknown_options(line: str) -> list[str]:
    """The options of a shell line that its command does not have; the command itself if there is none."""
    words = shlex.split(line.partition(" | ")[0])[1:]
    command: Any = typer.main.get_command(app)
    while words and hasattr(command, "commands"):
        if words[0] not in command.commands:
            return [words[0]]
        command = command.commands[words.pop(0)]
    known = {one for parameter in command.params for one in (*parameter.opts, *parameter.secondary_opts)}
    return [word for word in words if word.startswith("--") and word.partition("=")[0] not in known]


@pytest.mark.parametrize("top", ["securefed", "attacks", "defenses"])
def test_the_examples_of_docstrings_are_python_whose_imports_work(top: str) -> None:
    count = 0
    for where, text in docstrings(ROOT / top):
        for block in examples(text):
            try:
                tree = ast.parse(block)
            except SyntaxError as error:
                pytest.fail(f"{where}: {error}\n{block}")
            for node in tree.body:
                if isinstance(node, ast.Import | ast.ImportFrom):
                    exec(compile(ast.Module([node], []), where, "exec"), {})  # noqa: S102 - our own docstring
            count += 1
    assert count > 0


def test_a_docstring_that_imports_what_is_not_there_is_found() -> None:
    """The positive control."""
    (block,) = examples("Do it:\n\n    from securefed.defenses import no_such_thing\n")
    with pytest.raises(ImportError):
        exec(block, {})  # noqa: S102


def test_every_option_in_a_shell_line_is_the_commands() -> None:
    lines = [(page.name, line) for page in PAGES for line in shell_lines(page.read_text())]
    assert len(lines) > 12
    assert [(page, line, wrong) for page, line in lines if (wrong := unknown_options(line))] == []
    assert unknown_options("securefed audit --no-such-option 3") == ["--no-such-option"]  # the controls
    assert unknown_options("securefed nothing") == ["nothing"]
