"""Print results on the command line: sentences, registries and plans.

`audit_tables` prints the report of an audit, whose parts take longer to import.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

console = Console()
errors = Console(stderr=True)


def say(*sentences: str) -> None:
    """Print sentences as they are, a line each; the terminal wraps them."""
    for sentence in sentences:
        console.print(sentence, soft_wrap=True, highlight=False, markup=False)


def show_alerts(found: Iterable[Any]) -> None:
    """Print the alerts on the data, and that they are personal data where they speak of few people."""
    from securefed._auditing.alerts.alert import about_people  # noqa: PLC0415 - heavy, and not needed for --help

    alerts = list(found)
    for alert in alerts:
        console.print(f"[bold yellow]alert[/]: {escape(str(alert))}", soft_wrap=True, highlight=False)
    if text := about_people(alerts):
        say(text)


def refuse_alerts(found: Iterable[Any]) -> bool:
    """Print on standard error that alerts on the data fail the command; return whether there are any."""
    alerts = list(found)
    for alert in alerts:
        errors.print(f"[bold red]{alert.kind}[/]: {escape(alert.text)}", highlight=False, soft_wrap=True)
    return bool(alerts)


def plain_table(title: str, names: Iterable[str] = (), *, gap: int = 1, **column: Any) -> Table:
    """Make a table without lines.

    Args:
        title: above the table.
        names: the names of its columns.
        gap: spaces between two columns.
        **column: as of `Table.add_column`, for each of them.
    """
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, gap, 0, 0))
    for name in names:
        table.add_column(name, **column)
    return table


def show_registry(title: str, registry: Any) -> None:
    """Print every entry with its source and its properties, such as what a method needs of the server."""
    console.print(f"[bold underline]{title}[/] ({len(registry)})\n")
    for entry in registry:
        console.print(f"[bold]{escape(entry.name)}[/]  {escape(entry.summary)}", highlight=False)
        for key, value in ({"source": entry.source} | entry.details).items():
            line = Text(f"{key.replace('_', ' ')}: {value}", style="dim")
            console.print(Padding(line, (0, 0, 0, 4)))
    console.print()


def show_plan(plan: Any) -> None:
    """Print a plan."""
    say(*str(plan).splitlines())
