"""The command line: `securefed audit | list | plan`."""

from __future__ import annotations

import json
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from securefed.errors import SecureFedError

if TYPE_CHECKING:
    from securefed.auditing.cells import Cell, Report

EXIT_BAD_INPUT, EXIT_LEAK = 2, 3

app = typer.Typer(
    name="securefed",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    help="What do the messages of a federated run give away, and how is it stopped?",
)
console = Console()
errors = Console(stderr=True)

Names = Annotated[str | None, typer.Option(help="Comma-separated names; all by default (see `securefed list`).")]


class Kind(StrEnum):
    """What `securefed list` can list."""

    algorithms = "algorithms"
    defenses = "defenses"
    attacks = "attacks"


def _guarded(command: Callable[[], int]) -> None:
    """Run a command; a named refusal becomes one readable line and exit code 2."""
    try:
        code = command()
    except SecureFedError as error:
        errors.print(f"[bold red]{type(error).__name__}[/]: {escape(str(error))}", highlight=False, soft_wrap=True)
        raise typer.Exit(EXIT_BAD_INPUT) from error
    if code:
        raise typer.Exit(code)


@app.command(
    epilog="Examples:\n\n"
    "securefed audit\n\n"
    "securefed audit --algorithms ssi,fedavg --defenses plain,secure_aggregation --seeds 3\n\n"
    "securefed audit --data mydata.npz --fail-above 0.2 --out report   (exit code 3 above the threshold)\n\n"
    "securefed audit --json | jq '.cells[] | select(.verdict == \"exposed\") | .algorithm'"
)
def audit(
    algorithms: Names = None,
    defenses: Names = None,
    attacks: Names = None,
    data: Annotated[
        str, typer.Option(help="digits, breast_cancer, mnist (needs SECUREFED_DATA), or PATH.npz with x and y.")
    ] = "digits",
    clients: Annotated[int, typer.Option(help="Clients in the federation; the target is client 0.")] = 8,
    seeds: Annotated[int, typer.Option(help="Runs of each cell; 10 or more for a report to rely on.")] = 10,
    epsilon: Annotated[float, typer.Option(help="Of the DP defence, for all rounds together.")] = 8.0,
    delta: Annotated[float, typer.Option(help="Of the DP defence, likewise.")] = 1e-5,
    out: Annotated[Path, typer.Option(help="Folder for audit.html and audit.json.")] = Path("audit-report"),
    fail_above: Annotated[
        float | None, typer.Option(help="Exit with code 3 if a cell's upper bound of leakage exceeds this.")
    ] = None,
    every_seed: Annotated[bool, typer.Option("--every-seed", help="Run Paillier itself on every seed.")] = False,
    workers: Annotated[int | None, typer.Option(help="Processes; all cores by default.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print audit.json instead of the table.")] = False,
) -> None:
    """Attack every algorithm under every defence and report how much of a client's data the messages give away."""

    def command() -> int:
        from securefed.auditing import command as auditing  # noqa: PLC0415 - heavy, and not needed for --help

        with _progress(silent=as_json) as progress:
            bar = progress.add_task("audit", total=None)

            def step(done: int, total: int, what: str) -> None:
                progress.update(bar, completed=done, total=total, description=what)

            report = auditing.run_and_save(
                out,
                step,
                algorithms=_split(algorithms),
                defenses=_split(defenses),
                attacks=_split(attacks),
                data=data,
                clients=clients,
                seeds=seeds,
                epsilon=epsilon,
                delta=delta,
                every_seed=every_seed,
                workers=workers,
            )
        if as_json:
            typer.echo(json.dumps(report.to_json(), indent=1))
        else:
            _show(report)
            console.print(
                f"\nReport: [bold]{escape(str(out / 'audit.html'))}[/] (data: {escape(str(out / 'audit.json'))})"
            )
        return _gate(report, fail_above)

    _guarded(command)


@app.command("list", epilog="Examples:\n\nsecurefed list\n\nsecurefed list attacks")
def list_(kind: Annotated[Kind | None, typer.Argument(help="Only these.")] = None) -> None:
    """Name every algorithm, defence and attack with its source."""

    def command() -> int:
        from securefed import catalogue  # noqa: PLC0415 - heavy, and not needed for --help

        for name, registry in (
            (Kind.algorithms, catalogue.algorithms),
            (Kind.defenses, catalogue.defenses),
            (Kind.attacks, catalogue.attacks),
        ):
            if kind in (None, name):
                _print_registry(name.value, registry)
        return 0

    _guarded(command)


@app.command(
    epilog="Examples:\n\nsecurefed plan fedavg secure_aggregation --clients 100\n\nsecurefed plan ssi paillier"
)
def plan(
    algorithm: Annotated[str, typer.Argument(help="As `securefed list` names it.")],
    defense: Annotated[str, typer.Argument(help="As `securefed list` names it.")],
    clients: Annotated[int, typer.Option(help="Planned cohort.")] = 8,
    data: Annotated[str, typer.Option(help="Data set whose shape and range to plan for.")] = "digits",
) -> None:
    """Say before a run: bounds, bits, largest cohort without wrap, error, stages, bytes, threshold, assumptions."""

    def command() -> int:
        from securefed.auditing.command import plan_for  # noqa: PLC0415

        _print_plan(plan_for(algorithm, defense, clients, data))
        return 0

    _guarded(command)


def _split(names: str | None) -> list[str] | None:
    return [name.strip() for name in names.split(",") if name.strip()] if names else None


def _progress(silent: bool) -> Progress:
    return Progress(
        SpinnerColumn(),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
        console=errors,
        transient=True,
        disable=silent,
    )


def _show(report: Report) -> None:
    from securefed.auditing.cells import CLIENT, FEDERATION  # noqa: PLC0415
    from securefed.auditing.report import headline, strongest  # noqa: PLC0415
    from securefed.auditing.words import short, short_defense  # noqa: PLC0415

    best = strongest(report.cells)
    table = Table(
        title="Leakage of the strongest attack: mean [95 % interval], 1 = exact, 0 = nothing",
        title_justify="left",
        box=None,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    for name in ("algorithm", "defence", "view", "one client", "everybody pooled"):
        table.add_column(name, no_wrap=True)
    previous = ("", "")
    for algorithm, defense, view in dict.fromkeys(key[:3] for key in best):
        cells = [best.get((algorithm, defense, view, secret)) for secret in (CLIENT, FEDERATION)]
        table.add_row(
            short(algorithm) if algorithm != previous[0] else "",
            short_defense(defense) if (algorithm, defense) != previous else "",
            view.replace(" + ", "+"),
            *(_leakage(cell) if cell else "" for cell in cells),
        )
        previous = (algorithm, defense)
    console.print(table)
    console.print("red: exposed, yellow: partial, green: not detected. Epsilon and everything else are in the report.")
    console.print(f"\n{headline(report)}", soft_wrap=True)


def _leakage(cell: Cell) -> str:
    from securefed.auditing.words import leak_text  # noqa: PLC0415

    leak = cell.leakage
    style = {"exposed": "bold red", "partial": "yellow", "not detected": "green"}[cell.verdict.word]
    return f"[{style}]{leak_text(leak.mean):>5} \\[{leak_text(leak.low)},{leak_text(leak.high)}][/]"


def _gate(report: Report, threshold: float | None) -> int:
    if threshold is None:
        return 0
    above = [cell for cell in report.cells if cell.leakage.high > threshold]
    for cell in above:
        where = f"{cell.algorithm}, {cell.defense}, {cell.view}, {cell.attack}, {cell.secret}"
        errors.print(f"[bold red]above {threshold:g}[/]: {where}: up to {cell.leakage.high:.3f}", highlight=False)
    return EXIT_LEAK if above else 0


def _print_registry(title: str, registry: Any) -> None:
    console.print(f"[bold underline]{title}[/] ({len(registry)})\n")
    for entry in registry:
        console.print(f"[bold]{escape(entry.name)}[/]  {escape(entry.summary)}", highlight=False)
        for key, value in ({"source": entry.source} | entry.details).items():
            line = Text(f"{key.replace('_', ' ')}: {value}", style="dim")
            console.print(Padding(line, (0, 0, 0, 4)))
    console.print()


def _print_plan(found: Any) -> None:
    table = Table(title=f"{found.defense}, {found.clients} clients", title_justify="left", box=None)
    for name in ("tensor", "shape", "bound", "ring", "step", "largest N", "error of the sum"):
        table.add_column(name)
    for tensor in found.tensors:
        bound = "none" if tensor.bound is None else f"{tensor.bound:.4g}"
        ring = f"2^{tensor.ring}" if tensor.ring else "float64"
        row = (
            tensor.name,
            str(tensor.shape),
            bound,
            ring,
            f"{tensor.step:.3g}",
            str(tensor.max_clients),
            f"{tensor.error:.3g}",
        )
        table.add_row(*row)
    console.print(table)
    console.print(f"stages: {' -> '.join(found.stages)}")
    console.print(f"upload per client and round: {found.upload_bytes:,} bytes, headers left out")
    console.print(
        f"survivors needed: {found.threshold} of {found.clients}; single contributions are open to: {found.open_to}"
    )
    for rounds, epsilon in found.epsilon:
        console.print(f"epsilon after {rounds} rounds: {epsilon:.3f}")
    for sentence in found.assumptions:
        console.print(f"- {escape(sentence)}", soft_wrap=True)
