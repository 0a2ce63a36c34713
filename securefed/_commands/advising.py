"""Define the command `securefed advise`, which finds the settings under which a leak is acceptable.

The search (`securefed._auditing.advice.search`) runs the algorithm under several defences, attacks each run, and
measures the leak: 0 where the strongest attack knows no more of a client's data than a public guess, 1 where it has
them exactly. A setting is a defence with rows per client and rounds. It holds if the upper bound of its leak is at most
the acceptable leak, and a larger leak would have shown. Here the search's options are declared and its result is
printed as a table, sentences and commands to paste.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.markup import escape

from securefed._commands.base import (
    DATA_HELP,
    EXIT_LEAK,
    Classes,
    Decimal,
    Encoding,
    FailOnAlerts,
    Fewest,
    LabelColumn,
    OwnerColumn,
    Rounds,
    RowsPerClient,
    Separator,
    Settings,
    Standardise,
    app,
    parse_settings,
    read_first,
    table_format,
)
from securefed._commands.display import console, errors, plain_table, refuse_alerts, say, show_alerts
from securefed._commands.progress import progress
from securefed._persistence.file_errors import storage_errors
from securefed.errors import ConfigError

if TYPE_CHECKING:
    from rich.table import Table

    from securefed._auditing.advice.advice_values import Advice, Setting

_WIDE: Final = 120
"""Columns of a terminal from which on the table shows everything."""


@app.command(
    epilog="Examples:\n\n"
    "securefed advise optimization/fedavg --data digits --clients 8 --rows-per-client 16\n\n"
    "securefed advise optimization/fedavg --data rows.csv --owner-column hospital --label-column outcome --standardise "
    "--rounds 20 --set problem=logistic --set learning_rate=0.1 --acceptable 0.2\n\n"
    "securefed advise --questions   (choose a defence by questions, without measuring anything)"
)
def advise(
    algorithm: Annotated[str | None, typer.Argument(help="Name of an algorithm (see `securefed list`).")] = None,
    data: Annotated[str, typer.Option(help=DATA_HELP)] = "digits",
    acceptable: Annotated[
        float, typer.Option(help="Mean leakage of a client's data that you can live with: 0 is nothing, 1 all of it.")
    ] = 0.1,
    clients: Annotated[
        int | None, typer.Option(help="Clients in a round; 8, or one for each owner, by default.")
    ] = None,
    rows_per_client: RowsPerClient = None,
    rounds: Rounds = None,
    settings: Settings = None,
    standardise: Standardise = False,
    owner_column: OwnerColumn = "",
    label_column: LabelColumn = "",
    encoding: Encoding = "",
    separator: Separator = "",
    decimal: Decimal = "",
    classes: Classes = "",
    colluding: Annotated[int, typer.Option(help="Clients that tell the server all they know.")] = 0,
    keep: Annotated[float, typer.Option(help="Share of the utility in the clear that a usable setting keeps.")] = 0.9,
    seeds: Annotated[int, typer.Option(help="Runs of each setting; 10 or more for an advice to rely on.")] = 10,
    fineness: Annotated[int, typer.Option(help="2 searches twice as fine.")] = 1,
    workers: Annotated[int | None, typer.Option(help="Number of processes; one for each core by default.")] = None,
    out: Annotated[Path | None, typer.Option(help="File for the advice as JSON, with the figures for a plot.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the advice as JSON instead of the table.")] = False,
    fail_on_alerts: FailOnAlerts = False,
    fewest: Fewest = 5,
    questions: Annotated[bool, typer.Option("--questions", help="Print the choice of a defence by questions.")] = False,
) -> int:
    """Find defences and settings that keep a leak acceptable on your data, and what each costs."""
    if questions:
        from securefed._auditing.advice.decision_tree import outline  # noqa: PLC0415 - not needed for --help

        say(*(line.replace("**", "") for line in outline()))
        return 0
    if algorithm is None:
        raise ConfigError("advise needs the name of an algorithm (see `securefed list`), or --questions")
    form = table_format(encoding, separator, decimal, classes)
    read_first(data, owner_column, label_column, form, quiet=as_json)
    if workers != 1:
        from securefed._auditing.engine.worker_processes import warm_up  # noqa: PLC0415 - not needed for --help

        warm_up()
    from securefed._auditing.advice import search  # noqa: PLC0415 - heavy, and not needed for --help

    with progress("advise", errors, brief=as_json) as step:
        found = search.advise(
            algorithm,
            data=data,
            acceptable=acceptable,
            clients=clients,
            rows_per_client=rows_per_client,
            rounds=rounds,
            settings=parse_settings(settings),
            standardise=standardise,
            owner_column=owner_column,
            label_column=label_column,
            colluding=colluding,
            fewest=fewest,
            keep=keep,
            seeds=seeds,
            fineness=fineness,
            workers=workers,
            progress=step,
            **form.given(),
        )
    _write(found, out)
    if as_json:
        typer.echo(json.dumps(found.to_json(), indent=1, allow_nan=False))
    else:
        show_advice(found, seeds)
    return EXIT_LEAK if fail_on_alerts and refuse_alerts(found.alerts) else 0


def _write(found: Advice, out: Path | None) -> None:
    """Write the advice as JSON to a file; raise `StorageError` where that fails."""
    if out is None:
        return
    with storage_errors(f"write {out}", "choose another file with --out"):
        out.write_text(json.dumps(found.to_json(), indent=1, allow_nan=False) + "\n", encoding="utf-8")


def show_advice(found: Advice, seeds: int) -> None:
    """Print the answers with the commands to paste (`advised_words.answers`), then every setting that was tried.

    Args:
        found: the advice.
        seeds: runs of each setting; where they are few, the last line says how many more to run.
    """
    from securefed._auditing.advice import advised_words as words  # noqa: PLC0415 - heavy, and not needed for --help
    from securefed._auditing.engine.statistics import ENOUGH  # noqa: PLC0415

    show_alerts(found.alerts)
    console.print(f"[bold]What to do about {escape(found.algorithm)} on {escape(found.data)}[/]", highlight=False)
    for number, one in enumerate(words.answers(found), 1):
        say(f"\n{number}. {one.words}", *([f"\n{one.paste}"] if one.paste else []))
    if found.records:
        console.print(_record_table(found))
    console.print()
    console.print(_table(found))
    console.print(
        "> advised, + holds for one client's data as long as the same clients take part in every round, - not shown to "
        "hold. `rows`: of the attacked client in the first run (of several owners, "
        "another one in each run). `leak`: mean of the strongest attack on what the server sees; `up to`: 95 % bound "
        "for all settings together; `seen from`: smallest leak that would have shown. `utility`: mean, ± the standard "
        "deviation of single runs; `floor`: the best score that needs no federation; `kept`: share of what the clear "
        f"adds to it, at least. {words.noise_words(found)} {words.explained_words(found.tried)}",
        highlight=False,
    )
    say(*words.pooled_lines(found))
    for reason in dict.fromkeys(one.note for one in found.tried if math.isnan(one.leak)):
        say(f"`{words.UNKNOWN}`: {reason}.")
    if seeds < ENOUGH:
        say(f"\n{seeds} runs of each setting are too few to rely on; add --seeds {ENOUGH}.")


def _record_table(found: Advice) -> Table:
    """Lay out the settings that hide single rows."""
    from securefed._auditing.advice.advised_words import record_rows  # noqa: PLC0415 - not needed for --help

    names = ("epsilon of a row", "right guesses of 100, at most", "utility", "usable")
    table = plain_table("\nSingle rows", names, gap=2, justify="right")
    for row in record_rows(found):
        table.add_row(*row)
    return table


def _table(found: Advice) -> Table:
    """Lay the settings out; a narrow terminal leaves out the utility in the clear and the seconds."""
    wide = console.width >= _WIDE
    table = plain_table(f"{found.algorithm} on {found.data}: settings tried; {found.acceptable:g} is acceptable")
    table.add_column("")
    table.add_column("setting", overflow="fold")
    figures = (
        "rows",
        "rounds",
        "leak",
        "up to",
        "seen from",
        "utility",
        *(("clear", "floor", "kept") if wide else ()),
        "bytes up",
    )
    for name in (*figures, *(("s",) if wide else ())):
        table.add_column(name, justify="right", min_width=max(len(word) for word in name.split()))
    for one in found.tried:
        table.add_row(*_cells(one, "[bold green]>[/]" if one == found.advised else "", wide=wide))
    return table


def _cells(one: Setting, mark: str, *, wide: bool) -> list[str]:
    """Write one row of the table."""
    from securefed._auditing.advice import advised_words  # noqa: PLC0415 - not needed for --help

    ran = not math.isnan(one.bytes_up)
    usable = "" if one.usable or one.usable_from is None else f" (usable from {one.usable_from} clients)"
    words = one.defense if wide else one.defense.replace("secure aggregation (sums of at least", "sums (of")
    # holds: the leak's upper bound and the smallest leak that would have shown are at most the acceptable leak
    mark = mark or ("[green]+[/]" if one.holds else "[red]-[/]")
    sizes = [str(one.rows_per_client), str(one.rounds)]
    leaks = [*advised_words.leak_words(one), advised_words.utility_words(one)]
    clear = list(advised_words.floor_words(one)) if wide else []
    seconds = [f"{one.seconds_per_round:.2g}" if ran else ""] if wide else []
    return [mark, escape(words + usable), *sizes, *leaks, *clear, f"{one.bytes_up:,.0f}" if ran else "", *seconds]
