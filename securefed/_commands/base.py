"""Define what all commands share: the application, common options, and the exit on an error.

Each module of commands adds its own by `@app.command(...)`. A command returns its exit code, or nothing for
success, and imports the heavy parts of the package itself, so that `--help` stays quick.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich.markup import escape
from typer.core import TyperGroup

import securefed
from securefed._commands.display import errors
from securefed.errors import ConfigError, SecureFedError

if TYPE_CHECKING:
    from securefed.datasets._tables.table_format import TableFormat

T = TypeVar("T", int, float)
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
        typer.echo(f"securefed {securefed.__version__}")
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
    int | None,
    typer.Option(
        help="Rows of every client, by default an even share of a file; under --owner-column the most rows of a client."
    ),
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
FailOnAlerts = Annotated[
    bool,
    typer.Option(
        "--fail-on-alerts",
        help="Exit with code 3 if the data themselves raise an alert: rare categories, small parties, keys, and such.",
    ),
]
Fewest = Annotated[
    int,
    typer.Option(
        help="Rows of a category, class or party, and people behind a mean, from which on they are not few: k of your "
        "release rule."
    ),
]
OwnerColumn = Annotated[str, typer.Option(help="Column that says whose row it is; each client is then one owner.")]
LabelColumn = Annotated[str, typer.Option(help="Column of the labels in a file; by default y or label.")]
Encoding = Annotated[
    str, typer.Option(help="Encoding of a .csv file that is not in UTF-8 and has no byte-order mark, such as cp1252.")
]
Separator = Annotated[
    str, typer.Option(help="Separator of a .csv file where it cannot be told: comma, semicolon, tab, bar or another.")
]
Decimal = Annotated[str, typer.Option(help="Decimal mark of a .csv file where it cannot be told: . or ,")]
Classes = Annotated[
    str,
    typer.Option(
        help="Comma-separated values of the column of labels, in the order of their numbers from 0; others are "
        "refused. Sites that read a file each declare the same ones. Without it labels are numbered by this file alone."
    ),
]
Names = Annotated[str | None, typer.Option(help="Comma-separated names; all by default (see `securefed list`).")]


def read_first(data: str, owner: str, label: str, form: TableFormat, *, quiet: bool = False) -> None:
    """Read a user's file before heavy parts are imported, so that a refusal comes at once; say what it was read as.

    Args:
        data: name of a data set, or path of a file.
        owner: name of the column of owners.
        label: name of the column of labels.
        form: how a .csv file is written, and the classes of its labels.
        quiet: whether to say nothing.
    """
    from securefed.datasets._loaders import LOADERS, load_once  # noqa: PLC0415 - not needed for --help

    if data not in LOADERS or form.classes:
        source = load_once(data, owner, label, form)
        if not quiet:
            errors.print(escape(source.summary), highlight=False, soft_wrap=True)


def table_format(encoding: str, separator: str, decimal: str, classes: str = "") -> TableFormat:
    """Return what the options say of how a .csv file is written, and of the classes of its labels."""
    from securefed.datasets._tables.table_format import TableFormat, split_classes  # noqa: PLC0415 - not for --help

    return TableFormat(encoding, separator, decimal, split_classes(classes))


def parse_settings(pairs: Iterable[str] | None) -> dict[str, Any]:
    """Parse `name=value` pairs: numbers, truth values, null and lists as in JSON or Python, all else as text.

    Raises:
        ConfigError: a text is not of the form `name=value`, or there are two values for one setting.
    """
    texts: dict[str, str] = {}
    for pair in pairs or ():
        name, equals, value = pair.partition("=")
        name = name.strip()
        if not equals or not name:
            raise ConfigError(f"a setting must be written name=value; got {pair!r}")
        if name in texts:
            raise ConfigError(f"two values for one setting, {name}: {texts[name]!r} and {value!r}; give it once")
        texts[name] = value
    return {name: _read(value) for name, value in texts.items()}


def _read(value: str) -> Any:
    try:
        return json.loads(value)
    except json.JSONDecodeError:
        pass
    try:  # what JSON does not know: .1, 1., +3, True, None
        read = ast.literal_eval(value.strip())
    except (ValueError, SyntaxError):
        return value
    return read if read is None or isinstance(read, int | float | list) else value


def split(names: str | None) -> list[str] | None:
    """Split names at commas; return `None` for no names."""
    return [name.strip() for name in names.split(",") if name.strip()] if names else None


def numbers(values: str | None, option: str, kind: type[T]) -> list[T]:
    """Split numbers of a kind (`int` or `float`) at commas; raise `ConfigError`, with the option, for anything else."""
    try:
        return [kind(value) for value in split(values) or []]
    except ValueError as error:
        what = "whole numbers" if kind is int else "numbers"
        raise ConfigError(f"{option} must be {what} with commas between them, as in 1,8,64; got {values!r}") from error
