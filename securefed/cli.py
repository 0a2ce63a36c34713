"""The command line: `securefed audit | attack | compare | run | key | plan | list`."""

from __future__ import annotations

import json
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from securefed.errors import SecureFedError
from securefed.printing import console, errors, progress_bar, show_audit, show_comparison, show_plan, show_registry

if TYPE_CHECKING:
    from securefed.auditing.cells import Report
    from securefed.sealing import Seal

EXIT_BAD_INPUT, EXIT_LEAK = 2, 3

app = typer.Typer(
    name="securefed",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_show_locals=False,  # locals may hold rows or keys
    help="What do the messages of a federated run give away, and how is it stopped?",
)
DATA_HELP = (
    "digits, breast_cancer; from the folder SECUREFED_DATA mnist, unsw_nb15, ton_iot, iot23, uci_har, esr, esr_five, "
    "coil20, abide; or PATH.npz with x and y."
)
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help="name=value, a parameter of the algorithm; repeatable. Values are JSON or text."),
]
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
    "securefed audit --algorithms all   (every algorithm; the default takes a minute)\n\n"
    "securefed audit --algorithms fedpg --epsilons 1,8,64,512   (leakage and utility against epsilon)\n\n"
    "securefed audit --data mydata.npz --fail-above 0.2 --out report   (exit code 3 above the threshold)\n\n"
    "securefed audit --json | jq '.cells[] | select(.verdict == \"exposed\") | .algorithm'"
)
def audit(
    algorithms: Annotated[
        str | None, typer.Option(help="Comma-separated names, or `all`; by default the quick ones.")
    ] = None,
    defenses: Names = None,
    attacks: Names = None,
    data: Annotated[str, typer.Option(help=DATA_HELP)] = "digits",
    clients: Annotated[int, typer.Option(help="Clients in the federation; the target is client 0.")] = 8,
    seeds: Annotated[int, typer.Option(help="Runs of each cell; 10 or more for a report to rely on.")] = 10,
    epsilon: Annotated[float, typer.Option(help="Of the DP defence, for all rounds together.")] = 8.0,
    delta: Annotated[float, typer.Option(help="Of the DP defence, likewise.")] = 1e-5,
    epsilons: Annotated[
        str | None, typer.Option(help="Comma-separated; adds curves of leakage and utility against epsilon.")
    ] = None,
    acceptable: Annotated[
        float, typer.Option(help="Leakage up to which a defence counts as a remedy in the report.")
    ] = 0.1,
    out: Annotated[Path, typer.Option(help="Folder for audit.html and audit.json.")] = Path("audit-report"),
    fail_above: Annotated[
        float | None, typer.Option(help="Exit with code 3 if a cell's upper bound of leakage exceeds this.")
    ] = None,
    every_seed: Annotated[
        bool, typer.Option("--every-seed", help="Run secure aggregation and Paillier themselves on every seed.")
    ] = False,
    membership: Annotated[
        bool, typer.Option("--membership", help="Also ask which of the target's rows were there, under every noise.")
    ] = False,
    workers: Annotated[int | None, typer.Option(help="Processes; all cores by default.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print audit.json instead of the table.")] = False,
    check_itself: Annotated[
        bool, typer.Option("--self-check", help="Only check that planted leaks are found and planted safety passes.")
    ] = False,
) -> None:
    """Attack every algorithm under every defence and report how much of a client's data the messages give away."""

    def command() -> int:
        if check_itself:
            return _self_check()
        from securefed.auditing import command as auditing  # noqa: PLC0415 - heavy, and not needed for --help

        with progress_bar(silent=as_json) as progress:
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
                epsilons=_numbers(epsilons),
                acceptable=acceptable,
                every_seed=every_seed,
                membership=membership,
                workers=workers,
            )
        if as_json:
            typer.echo(json.dumps(report.to_json(), indent=1))
        else:
            show_audit(report)
            console.print(
                f"\nReport: [bold]{escape(str(out / 'audit.html'))}[/] (data: {escape(str(out / 'audit.json'))})"
            )
        return _gate(report, fail_above)

    _guarded(command)


@app.command(
    epilog="Examples:\n\nsecurefed attack run.transcript ssi --set rank=5\n\n"
    "securefed attack run.transcript optimization/fedavg --set problem=softmax --set local_steps=5 "
    "--try learning_rate=0.01 --try learning_rate=0.1   (unknown: the one that explains the messages is named)"
)
def attack(
    transcript: Annotated[Path, typer.Argument(help="A recorded run: `Transcript.save`, or an imported one.")],
    algorithm: Annotated[str, typer.Argument(help="As `securefed list` names it.")],
    settings: Settings = None,
    candidates: Annotated[
        list[str] | None,
        typer.Option("--try", help="name=value, a guess at a setting that is not known; repeatable."),
    ] = None,
    attacks: Names = None,
    target: Annotated[int, typer.Option(help="The client attacked.")] = 0,
    classes: Annotated[int | None, typer.Option(help="Labels, where the transcript does not say.")] = None,
    rows: Annotated[
        Path | None, typer.Option(help="PATH.npz with x, client and maybe y: the clients' rows, to score against.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Attack a recorded run: what its messages give away, and what it lacks for more."""

    def command() -> int:
        from securefed.auditing.command import attack_file  # noqa: PLC0415 - heavy, and not needed for --help
        from securefed.running import parse_settings  # noqa: PLC0415

        found = attack_file(
            transcript,
            algorithm,
            parse_settings(settings or []),
            [parse_settings([candidate]) for candidate in candidates or []],
            attacks=_split(attacks),
            target=target,
            classes=classes,
            rows=rows,
        )
        typer.echo(json.dumps(found.to_json(), indent=1) if as_json else str(found))
        return 0

    _guarded(command)


@app.command(
    epilog="Examples:\n\nsecurefed compare before/audit.json after/audit.json\n\n"
    "securefed compare main.json branch.json --fail-on-growth   (exit code 3 if a leak grew)"
)
def compare(
    before: Annotated[Path, typer.Argument(help="audit.json of the earlier audit.")],
    after: Annotated[Path, typer.Argument(help="audit.json of the later one.")],
    every: Annotated[bool, typer.Option("--all", help="Also the cells that did not change.")] = False,
    fail_on_growth: Annotated[
        bool, typer.Option("--fail-on-growth", help="Exit with code 3 if a leak grew beyond both intervals.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print every cell as JSON instead of the table.")] = False,
) -> None:
    """Compare two audits: which leaks grew or shrank by more than their intervals, and what that cost."""

    def command() -> int:
        from securefed.auditing import comparison  # noqa: PLC0415 - not needed for --help

        reports = comparison.read(before), comparison.read(after)
        rows = comparison.compare(*reports)
        uneven = list(comparison.settings_that_differ(*reports))
        if as_json:
            typer.echo(json.dumps({"cells": [row.to_json() for row in rows], "differences": uneven}, indent=1))
        else:
            show_comparison(rows, uneven, everything=every)
        grew = any(row.change == comparison.GREW for row in rows)
        return EXIT_LEAK if grew and fail_on_growth else 0

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
                show_registry(name.value, registry)
        return 0

    _guarded(command)


@app.command(
    epilog="Examples:\n\nsecurefed plan fedpg secure_aggregation --clients 100\n\nsecurefed plan ssi paillier\n\n"
    "securefed plan optimization/fedavg secure_aggregation --set problem=2nn --data mnist\n\n"
    "securefed plan fedpg secure_aggregation --clients 100 --tree 1000000"
)
def plan(
    algorithm: Annotated[str, typer.Argument(help="As `securefed list` names it.")],
    defense: Annotated[str, typer.Argument(help="As `securefed list` names it.")],
    clients: Annotated[int, typer.Option(help="Planned cohort.")] = 8,
    data: Annotated[str, typer.Option(help="Data set whose shape and range to plan for.")] = "digits",
    settings: Settings = None,
    tree: Annotated[
        int | None, typer.Option(help="Also the cost for so many clients, by a tree of groups of --clients each.")
    ] = None,
) -> None:
    """Say before a run: bounds, bits, largest cohort without wrap, error, stages, bytes, cost, what is assumed."""

    def command() -> int:
        from securefed.auditing.command import plan_for  # noqa: PLC0415
        from securefed.running import parse_settings  # noqa: PLC0415

        show_plan(plan_for(algorithm, defense, clients, data, parse_settings(settings or [])), defense, tree)
        return 0

    _guarded(command)


@app.command(
    epilog="Examples:\n\n"
    "securefed run ssi --set rank=5 --rounds 20\n\n"
    "securefed run losac --set learning_rate=0.001 --set blocks=5 --partition by_label --evaluate-every 10\n\n"
    "securefed run optimization/fedavg --set problem=2nn --data mnist --clients 100 --cohort 10 --rounds 100 "
    "--defense secure_aggregation --checkpoint run.checkpoint --out result\n\n"
    "securefed key seal.key   (once; then the checkpoint is encrypted)\n\n"
    "securefed run ssi --set rank=5 --checkpoint run.checkpoint --seal-key-file seal.key"
)
def run(
    algorithm: Annotated[str, typer.Argument(help="As `securefed list` names it.")],
    settings: Settings = None,
    data: Annotated[str, typer.Option(help=DATA_HELP)] = "digits",
    clients: Annotated[int, typer.Option(help="N, the clients enrolled.")] = 8,
    cohort: Annotated[int | None, typer.Option(help="S, clients of a round; all by default.")] = None,
    partition: Annotated[
        str,
        typer.Option(
            help="How rows are split: iid, power_law=1, one_small=ROWS, by_label, shards=2, partly_sorted=0.5, "
            "dirichlet=0.3, by_feature=COLUMN, by_group=FACT."
        ),
    ] = "iid",
    held_out: Annotated[float, typer.Option(help="Share of the rows kept for scoring the result.")] = 0.2,
    rounds: Annotated[int, typer.Option(help="Rounds; fewer where the algorithm's own stop rule holds.")] = 50,
    defense: Annotated[str, typer.Option(help="As `securefed list` names it.")] = "plain",
    defense_settings: Annotated[
        list[str] | None, typer.Option("--defense-set", help="name=value, a parameter of the defence; repeatable.")
    ] = None,
    reveal: Annotated[
        bool, typer.Option("--reveal", help="Accept that clients reveal the scalars the algorithm selects by.")
    ] = False,
    evaluate_every: Annotated[int, typer.Option(help="Sum the clients' evaluation every so many rounds.")] = 0,
    seed: Annotated[int, typer.Option(help="Of split, start, cohorts and batches; never of a secret.")] = 0,
    checkpoint: Annotated[
        Path | None, typer.Option(help="File to keep the run in, and to resume it from if it exists.")
    ] = None,
    seal_key_file: Annotated[
        Path | None,
        typer.Option(help="Encrypt the checkpoint under the key in this file (mode 0600; `securefed key` makes one)."),
    ] = None,
    seal_anchor: Annotated[
        Path | None,
        typer.Option(help="Small file, kept elsewhere, that remembers the newest checkpoint: older ones are refused."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for run.json and the results as .safetensors files.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print run.json instead of the summary.")] = False,
) -> None:
    """Run one algorithm on real data, in the clear or under a defence."""

    def command() -> int:
        seal = _seal(seal_key_file, seal_anchor, checkpoint)
        from securefed import running  # noqa: PLC0415 - heavy, and not needed for --help

        what = running.Run(
            algorithm,
            running.parse_settings(settings or []),
            defense,
            running.parse_settings(defense_settings or []),
            data,
            clients,
            cohort,
            partition,
            held_out,
            rounds,
            evaluate_every,
            seed,
        )
        with progress_bar(silent=as_json) as progress:
            bar = progress.add_task(algorithm, total=rounds)
            ran = running.execute(
                what,
                checkpoint=checkpoint,
                seal=seal,
                reveal=reveal or None,
                progress=lambda entry: progress.update(bar, completed=entry.round + 1, description=running.line(entry)),
            )
        if out is not None:
            ran.save(out)
        if as_json:
            typer.echo(json.dumps(ran.to_json(), indent=1))
        else:
            for sentence in running.summary(ran):
                console.print(escape(sentence), soft_wrap=True, highlight=False)
            if out is not None:
                console.print(f"Results: [bold]{escape(str(out))}[/]")
        return 0

    _guarded(command)


@app.command(
    epilog="Examples:\n\nsecurefed key seal.key\n\n"
    "securefed run ssi --set rank=5 --checkpoint run.checkpoint --seal-key-file seal.key --seal-anchor /else/anchor"
)
def key(path: Annotated[Path, typer.Argument(help="Where to; a file that is there is left alone.")]) -> None:
    """Make a key that files are encrypted with, 32 bytes in a file that only its owner can read."""

    def command() -> int:
        from securefed.sealing import make_key  # noqa: PLC0415

        make_key(path)
        console.print(
            f"Key: [bold]{escape(str(path))}[/]. Keep it away from the files that it seals, and a copy in a safe "
            "place: without it they do not open.",
            soft_wrap=True,
        )
        return 0

    _guarded(command)


def _seal(key_file: Path | None, anchor: Path | None, checkpoint: Path | None) -> Seal | None:
    from securefed.errors import ConfigError  # noqa: PLC0415
    from securefed.sealing import Seal  # noqa: PLC0415

    if key_file is None:
        if anchor is not None:
            raise ConfigError("--seal-anchor remembers sealed files; give --seal-key-file as well")
        return None
    if checkpoint is None:
        raise ConfigError("--seal-key-file encrypts the checkpoint, and there is none; give --checkpoint as well")
    return Seal.from_file(key_file, anchor, make=False)


def _gate(report: Report, threshold: float | None) -> int:
    if threshold is None:
        return 0
    above = [cell for cell in report.cells if cell.leakage.high > threshold]
    for cell in above:
        where = f"{cell.algorithm}, {cell.defense}, {cell.view}, {cell.attack}, {cell.secret}"
        errors.print(f"[bold red]above {threshold:g}[/]: {where}: up to {cell.leakage.high:.3f}", highlight=False)
    return EXIT_LEAK if above else 0


def _self_check() -> int:
    from securefed.auditing.selfcheck import failures, self_check  # noqa: PLC0415 - heavy, and not needed for --help

    checked = self_check()
    for item in checked:
        mark = "[green]right[/]" if item.right else "[bold red]wrong[/]"
        console.print(f"{mark}  planted {item.planted.name}: {escape(item.said)}", highlight=False)
    return 1 if failures(checked) else 0


def _split(names: str | None) -> list[str] | None:
    return [name.strip() for name in names.split(",") if name.strip()] if names else None


def _numbers(values: str | None) -> list[float]:
    from securefed.errors import ConfigError  # noqa: PLC0415

    try:
        return [float(value) for value in _split(values) or []]
    except ValueError as error:
        raise ConfigError(f"--epsilons takes numbers with commas between them, not {values!r}") from error
