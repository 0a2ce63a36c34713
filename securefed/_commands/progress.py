"""Report the progress of a long command: a bar on a terminal, a line now and then where the output goes to a file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from securefed._auditing.engine.pace import Noted, Pace, ticking

Report = Callable[[int, int | None, str], None]
"""Called with the number of finished parts, that of all (`None` where it is not known), and what was finished last."""


@contextmanager
def progress(name: str, console: Console, *, silent: bool = False, brief: bool = False) -> Iterator[Report]:
    """Show the progress of a command until the block ends.

    Args:
        name: the name of the command, shown until a part has finished.
        console: standard error, in general. On a terminal a bar is drawn, and removed at the end.
        silent: show nothing.
        brief: say nothing at the start, and draw no bar; the lines at their times come all the same.
    """
    pace = Pace(name)
    if silent:
        yield lambda done, total, what: None
        return
    if console.is_terminal and not brief:
        with _bar(console, pace) as bar:
            task = bar.add_task(name, total=None)

            def show(done: int, total: int | None, what: str) -> None:
                bar.update(task, completed=done, total=total, description=escape(what))

            yield Noted(pace, show)
        return
    with ticking(pace, lambda line: console.print(line, soft_wrap=True, highlight=False, markup=False)) as note:

        def begin(done: int, total: int | None, what: str) -> None:
            note.shown(done, total, what)
            if not done and not brief:
                console.print(pace.line(), soft_wrap=True, highlight=False, markup=False)

        yield Noted(pace, begin)


class _Left(TextColumn):
    """The time that the rest takes, as the lines in a file say it."""

    def __init__(self, pace: Pace) -> None:
        super().__init__("")
        self._pace = pace

    def render(self, task: object) -> Text:
        """Return the estimate of this moment."""
        return Text(self._pace.left())


def _bar(console: Console, pace: Pace) -> Progress:
    return Progress(
        SpinnerColumn(),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        _Left(pace),
        TextColumn("{task.description}"),
        console=console,
        transient=True,
    )
