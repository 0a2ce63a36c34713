"""Define what all commands share: the application, common options, and the exit on an error.

Each module of commands adds its own by `@app.command(...)`. A command returns its exit code, or nothing for
success, and imports the heavy parts of the package itself, so that `--help` stays quick.
"""

from __future__ import annotations

from importlib import metadata
from typing import Annotated, Any

import typer
from rich.markup import escape
from typer.core import TyperGroup

from securefed._commands.display import errors
from securefed.errors import ConfigError, SecureFedError

EXIT_DECLINED, EXIT_BAD_INPUT, EXIT_LEAK = 1, 2, 3
"""Exit codes: a plan promises less than was required, bad input, and a leak above the limit that was given."""


class _Commands(TyperGroup):
    """Run a command, and exit with its code; print an error of the library in one line and exit with code 2."""

    def invoke(self, ctx: Any) -> None:
        try:
            code = super().invoke(ctx)
        except SecureFedError as error:
            errors.print(f"[bold red]{type(error).__name__}[/]: {escape(str(error))}", highlight=False, soft_wrap=True)
            raise typer.Exit(EXIT_BAD_INPUT) from error
        raise typer.Exit(code or 0)


app = typer.Typer(
    name="securefed",
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_show_locals=False,  # locals may hold rows or keys
    help="Run federated algorithms, with and without defences, and measure what their messages leak.",
)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"securefed {metadata.version('securefed')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


DATA_HELP = (
    "digits, breast_cancer; from the folder SECUREFED_DATA mnist, unsw_nb15, ton_iot, iot23, uci_har, esr, esr_five, "
    "coil20, abide; or PATH.npz with x and y, PATH.csv or PATH.parquet."
)
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="name=value, a setting of the algorithm; repeatable. Values as in JSON or Python, else text.",
    ),
]
DefenseSettings = Annotated[
    list[str] | None,
    typer.Option(
        "--defense-set",
        help="name=value, a setting of the defence; repeatable. Values as in JSON or Python, else text.",
    ),
]
RowsPerClient = Annotated[
    int | None, typer.Option(help="Rows of every client; under --owner-column the most rows of a client.")
]
Rounds = Annotated[int | None, typer.Option(help="Training rounds; by default those of each algorithm's audit case.")]
Standardise = Annotated[
    bool,
    typer.Option(
        "--standardise",
        help="Scale every column to mean 0 and standard deviation 1 over the rows of all clients together. Between "
        "real sites these numbers are themselves disclosed; the page on advice says how to compute them.",
    ),
]
OwnerColumn = Annotated[str, typer.Option(help="Column that says whose row it is; each client is then one owner.")]
LabelColumn = Annotated[str, typer.Option(help="Column of the labels in a file; by default y or label.")]
Names = Annotated[str | None, typer.Option(help="Comma-separated names; all by default (see `securefed list`).")]


def split(names: str | None) -> list[str] | None:
    """Split names at commas; return `None` for no names."""
    return [name.strip() for name in names.split(",") if name.strip()] if names else None


def numbers(values: str | None) -> list[float]:
    """Split numbers at commas; raise `ConfigError` for anything else."""
    try:
        return [float(value) for value in split(values) or []]
    except ValueError as error:
        raise ConfigError(
            f"--epsilons must be numbers with commas between them, as in 1,8,64; got {values!r}"
        ) from error


def whole_numbers(values: str | None, option: str) -> list[int] | None:
    """Split whole numbers at commas; `None` for no text; raise `ConfigError` for anything else."""
    try:
        return [int(value) for value in split(values) or []] or None
    except ValueError as error:
        raise ConfigError(f"{option} must be whole numbers with commas between them; got {values!r}") from error
