"""Write the page of all commands from the command line itself: every command, argument and option with its help."""

from __future__ import annotations

import re
from typing import Any

import typer

from securefed._commands.cli import app


def pages() -> dict[str, str]:
    """Return the page `commands.md`."""
    group = typer.main.get_command(app)
    lines = ["# All commands and options", "", "What `securefed COMMAND --help` shows, on one page.", ""]
    for name, command in sorted(group.commands.items()):  # type: ignore[attr-defined]
        inner = getattr(command, "commands", None)
        if inner is None:
            lines += _command(f"securefed {name}", command)
        else:
            lines += [f"## securefed {name}", "", _plain(command.help), ""]
            for below, one in sorted(inner.items()):
                lines += _command(f"securefed {name} {below}", one, level="###")
    return {"commands.md": "\n".join(lines) + "\n"}


def _command(title: str, command: Any, level: str = "##") -> list[str]:
    lines = [f"{level} {title}", "", _plain(command.help), ""]
    rows = [_row(parameter) for parameter in command.params if not getattr(parameter, "hidden", False)]
    if rows:
        lines += ["| argument or option | meaning | default |", "| --- | --- | --- |", *rows, ""]
    return lines


def _row(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        name = f"`{parameter.make_metavar(typer.Context(typer.main.get_command(app)))}`"
    else:
        name = ", ".join(f"`{one}`" for one in (*parameter.opts, *parameter.secondary_opts))
    default = "" if parameter.default in (None, False) or callable(parameter.default) else f"`{parameter.default}`"
    if parameter.required:
        default = "required"
    return f"| {name} | {_cell(getattr(parameter, 'help', None))} | {default} |"


def _cell(text: str | None) -> str:
    return _plain(text).replace("|", "\\|").replace("\n", " ")


def _plain(text: str | None) -> str:
    """Return help text as Markdown: without rich's colours, with its examples as blocks of code."""
    clean = re.sub(r"\[/?(?:bold|dim|cyan|green|red|yellow|italic)[^\]]*\]", "", (text or "").replace("\b", ""))
    clean = clean.replace("\f", "").replace("<", "&lt;")
    paragraphs = [part.strip("\n") for part in re.split(r"\n\s*\n", clean)]
    return "\n\n".join(_paragraph(part) for part in paragraphs if part.strip())


def _paragraph(text: str) -> str:
    if text.lstrip().startswith("securefed "):
        return "```text\n" + "\n".join(line.strip() for line in text.splitlines()).replace("&lt;", "<") + "\n```"
    return text
