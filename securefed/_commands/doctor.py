"""Define the command `securefed doctor`: what is installed, and whether random source, ciphers and clocks work.

The checks themselves stand in `health`; this module prints their findings.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich.markup import escape

from securefed._commands.base import EXIT_BAD_INPUT, app
from securefed._commands.display import console

_MARKS = {True: "[green]ok     [/]", False: "[bold red]BROKEN [/]", None: "[dim]missing[/]"}


@app.command(epilog="Examples:\n\nsecurefed doctor\n\nsecurefed doctor --json")
def doctor(as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False) -> int:
    """Say what is installed, what is missing, and whether random source, AES, keys and clocks are as needed.

    Exits with 0 where the core works, whatever extras are missing, and with 2 otherwise.
    """
    from securefed._commands.health import examine  # noqa: PLC0415 - imports what it tests

    findings = examine()
    if as_json:
        typer.echo(json.dumps([asdict(finding) for finding in findings], indent=1))
    else:
        for finding in findings:
            line = f"{_MARKS[finding.sound]} {escape(finding.what)}: {escape(finding.detail)}"
            console.print(line, highlight=False, soft_wrap=True)
    return EXIT_BAD_INPUT if any(finding.sound is False for finding in findings) else 0
