"""Every example that `securefed COMMAND --help` prints is parsed by the command line itself."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
import typer

from securefed._commands.base import parse_settings
from securefed._commands.cli import app
from securefed._commands.named_run import build
from securefed.defenses._base import defenses

ROOT: Any = typer.main.get_command(app)


def commands(group: Any) -> Iterator[Any]:
    """All commands below this one, without the groups."""
    for command in group.commands.values():
        yield from commands(command) if hasattr(command, "commands") else [command]


def examples() -> list[str]:
    """The examples of all commands, without the remarks in brackets after three spaces and without pipes."""
    lines = (line for command in commands(ROOT) for line in (command.epilog or "").splitlines())
    whole = [line.partition("   (")[0].partition(" | ")[0].strip() for line in lines]
    return [line[line.index("securefed ") :] for line in whole if "securefed " in line]


def parse(words: list[str]) -> None:
    """Parse the arguments of a command as the command line does, without running it."""
    group = ROOT
    while hasattr(group, "commands"):
        name, *words = words
        assert name in group.commands, f"there is no command {name}"
        group = group.commands[name]
    group.make_context(group.name, words)


@pytest.mark.parametrize("example", examples())
def test_an_example_of_help_parses(example: str) -> None:
    parse(shlex.split(example)[1:])


@pytest.mark.parametrize("example", [text for text in examples() if "--defense " in text and "--defense-set" in text])
def test_an_example_sets_what_the_defence_has(example: str) -> None:
    words = shlex.split(example)
    settings = parse_settings([value for option, value in pairwise(words) if option == "--defense-set"])
    build(defenses, words[words.index("--defense") + 1], settings)  # raises for a setting that there is not


def test_every_command_has_an_example_and_what_does_not_exist_is_refused() -> None:
    assert all("securefed" in (command.epilog or "") for command in commands(ROOT))
    with pytest.raises(Exception, match="No such option"):
        parse(["audit", "--no-such-option"])
