"""Turn this package's docstrings, which are plain text in Google's sections, into reStructuredText.

The docstrings are written for `help`: single backticks around code, indented examples, paragraphs with a hanging
indent, asterisks and underscores that mean themselves. Here the examples become literal blocks, the paragraphs plain
ones, and what reStructuredText would read as markup is escaped.
"""

from __future__ import annotations

import re
from typing import Any

_CODE = re.compile(r"(``.+?``|`[^`]+`)")
_MARKUP = re.compile(r"([*|\\])|(?<=\w)_(?=\W|$)")
_LABEL = re.compile(r"^[A-Z][\w ]{2,40}: \S")
_SECTION = re.compile(
    r"^(Args|Arguments|Attributes|Returns|Raises|Yields|Example|Examples|Note|References|Warning|Sources?):$"
)


def convert(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Rewrite the lines of one docstring in place, for Sphinx's event `autodoc-process-docstring`."""
    if what == "module":
        lines[:] = [line for line in lines if not line.startswith("Public names:")]
    lines[:] = converted(lines)


def skip(app: Any, what: str, name: str, obj: Any, skipped: bool, options: Any) -> bool | None:
    """Leave out members that begin with an underscore, for Sphinx's event `autodoc-skip-member`."""
    return True if name.startswith("_") else None


def converted(lines: list[str]) -> list[str]:
    """Return the lines of a docstring as reStructuredText."""
    lines = _plain_paragraphs(lines)
    out: list[str] = []
    index = 0
    while index < len(lines):
        line = lines[index]
        example = _example_after(lines, index)
        if example is None:
            out.append(_escaped(line))
            index += 1
            continue
        indent = " " * _indent(line)
        out += [_escaped(line), "", f"{indent}.. code-block:: text", "", *example]
        index += 2 + len(example)
    return out


def _plain_paragraphs(lines: list[str]) -> list[str]:
    """Take hanging indents out of the text outside of sections, and set labelled paragraphs apart."""
    out: list[str] = []
    in_section = hanging = False
    for line in lines:
        if not line.strip():
            hanging = False
        elif _indent(line) == 0:
            in_section = bool(_SECTION.match(line))
            hanging = not in_section and not line.startswith(("- ", ".."))
            if hanging and (_LABEL.match(line) or line.endswith(":")) and out and out[-1].strip():
                out.append("")
        out.append(line.strip() if hanging and _indent(line) else line)
    return out


def _example_after(lines: list[str], index: int) -> list[str] | None:
    """Return the indented block that follows a line and an empty line; `None` where there is none."""
    line = lines[index]
    if not line.strip() or _SECTION.match(line.strip()) or index + 2 >= len(lines) or lines[index + 1].strip():
        return None
    depth = _indent(line)
    if not lines[index + 2].strip() or _indent(lines[index + 2]) <= depth + 1:
        return None
    block: list[str] = []
    for following in lines[index + 2 :]:
        if following.strip() and _indent(following) <= depth + 1:
            break
        block.append(following)
    return block


def _escaped(line: str) -> str:
    bullet = re.match(r"\s*[-*] ", line)
    start = bullet.end() if bullet else 0
    parts = _CODE.split(line[start:])
    return line[:start] + "".join(part if part.startswith("`") else _MARKUP.sub(_escape, part) for part in parts)


def _escape(match: re.Match[str]) -> str:
    return "\\" + match.group(0)


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
