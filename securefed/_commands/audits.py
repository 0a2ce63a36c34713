"""Define the commands `securefed audit`, `attack` and `compare`, which measure what messages leak.

`audit` runs registered algorithms under defences and attacks what the server sees; `attack` attacks a recorded run;
`compare` compares two audits. A cell of an audit is one algorithm under one defence, seen from one view (all messages,
sums only, ...) and attacked for one secret (one client's data, all clients' pooled). A gate is an exit code of 3 where
a leak is above a limit (`--fail-above`) or has grown (`--fail-on-growth`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
    Names,
    OwnerColumn,
    Rounds,
    Separator,
    Settings,
    Standardise,
    app,
    numbers,
    parse_settings,
    read_first,
    split,
    table_format,
)
from securefed._commands.display import console, errors, refuse_alerts
from securefed._commands.progress import progress
from securefed._extras import check_installed
from securefed.errors import ConfigError

if TYPE_CHECKING:
    from securefed._auditing.engine.audit_report import Report


@app.command(
    epilog="Examples:\n\n"
    "securefed audit\n\n"
    "securefed audit --algorithms ssi,fedpg --defenses plain,secure_aggregation --seeds 3\n\n"
    "securefed audit --algorithms all   (every algorithm; the default takes a minute)\n\n"
    "securefed audit --algorithms fedpg --epsilons 1,8,64,512   (leakage and utility against epsilon)\n\n"
    "securefed audit --data rows.csv --owner-column hospital --label-column outcome --standardise --rounds 20 "
    "--algorithms optimization/fedavg --set problem=logistic --set learning_rate=0.1 --set local_steps=5\n\n"
    "securefed audit --data mydata.npz --fail-above 0.2 --out report   (exit code 3 above the threshold)\n\n"
    'securefed audit --defenses ddp --fail-above 0.2 --views "sum only" --secrets client   (what the gate judges)\n\n'
    "securefed audit --json | jq '.cells[] | select(.verdict == \"exposed\") | .algorithm'"
)
def audit(
    algorithms: Annotated[
        str | None, typer.Option(help="Comma-separated names, or `all`; by default the quick ones.")
    ] = None,
    defenses: Annotated[
        str | None,
        typer.Option(
            help="Comma-separated names (see `securefed list`), or `all`; by default plain, secure_aggregation, "
            "paillier, ddp. Without the extra `paillier` the default leaves that defence out, and the report says so."
        ),
    ] = None,
    attacks: Names = None,
    data: Annotated[str, typer.Option(help=DATA_HELP)] = "digits",
    clients: Annotated[
        int | None,
        typer.Option(help="Clients in the federation, 8 or one for each owner by default; the target is client 0."),
    ] = None,
    rows_per_client: Annotated[
        str | None,
        typer.Option(
            help="Rows of every client; by default an even share of a file, and of a named set those of each audit "
            "case. Several numbers with commas between them make one row of the report for each. Under --owner-column "
            "the most rows of a client."
        ),
    ] = None,
    rounds: Rounds = None,
    settings: Settings = None,
    standardise: Standardise = False,
    owner_column: OwnerColumn = "",
    label_column: LabelColumn = "",
    encoding: Encoding = "",
    separator: Separator = "",
    decimal: Decimal = "",
    classes: Classes = "",
    seeds: Annotated[int, typer.Option(help="Runs of each cell; 10 or more for a report to rely on.")] = 10,
    epsilon: Annotated[float, typer.Option(help="Epsilon of the DP defence, for all rounds together.")] = 8.0,
    delta: Annotated[float, typer.Option(help="Delta of the DP defence, for all rounds together.")] = 1e-5,
    epsilons: Annotated[
        str | None, typer.Option(help="Comma-separated; adds curves of leakage and utility against epsilon.")
    ] = None,
    acceptable: Annotated[
        float, typer.Option(help="Leakage up to which a defence counts as a remedy in the report.")
    ] = 0.1,
    out: Annotated[Path, typer.Option(help="Folder for audit.html and audit.json.")] = Path("audit-report"),
    fail_above: Annotated[
        float | None,
        typer.Option(
            help="Exit with code 3 if a cell's upper bound exceeds this (0 to below 1), attacks failed, or something "
            "did not run on every seed."
        ),
    ] = None,
    views: Annotated[
        str | None,
        typer.Option(help='Comma-separated views that --fail-above judges, such as "sum only"; all by default.'),
    ] = None,
    secrets: Annotated[
        str | None,
        typer.Option(help="Comma-separated secrets that --fail-above judges: client, federation; both by default."),
    ] = None,
    fail_on_alerts: FailOnAlerts = False,
    fewest: Fewest = 5,
    every_seed: Annotated[
        bool, typer.Option("--every-seed", help="Run secure aggregation and Paillier themselves on every seed.")
    ] = False,
    survivor_change: Annotated[
        int, typer.Option(help="Number of clients that join or leave together where the survivors change.")
    ] = 1,
    colluders: Annotated[
        int, typer.Option(help="Clients that tell the server what they sent; its attacks then run with their help.")
    ] = 0,
    membership: Annotated[
        bool,
        typer.Option("--membership", help="Also test membership of the target's rows, under every defence with noise."),
    ] = False,
    active: Annotated[
        bool,
        typer.Option("--active", help="Also attack with a server that chooses its broadcasts instead of following."),
    ] = False,
    workers: Annotated[int | None, typer.Option(help="Number of processes; one for each core by default.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print audit.json instead of the table.")] = False,
    check_itself: Annotated[
        bool,
        typer.Option("--self-check", help="Only check that planted leaks are found and that planted safe runs pass."),
    ] = False,
) -> int:
    """Attack every algorithm under every defence and report how much of a client's data the messages leak."""
    if check_itself:
        return _self_check()
    judged = split(views) or (), split(secrets) or ()
    _check_gate(fail_above, *judged)
    form = table_format(encoding, separator, decimal, classes)
    read_first(data, owner_column, label_column, form, quiet=as_json)
    check_installed("the audit's page", "jinja2", "PIL")  # before minutes of attacks
    if workers != 1:
        from securefed._auditing.engine.worker_processes import warm_up  # noqa: PLC0415 - not needed for --help

        warm_up()
    from securefed._commands import audit_run as auditing  # noqa: PLC0415 - heavy, and not needed for --help

    with _kept(out / auditing.UNFINISHED), progress("audit", errors, brief=as_json) as step:
        report = auditing.run_and_save(
            out,
            step,
            algorithms=split(algorithms),
            defenses=split(defenses),
            attacks=split(attacks),
            data=data,
            clients=clients,
            rows_per_client=numbers(rows_per_client, "--rows-per-client", int) or None,
            rounds=rounds,
            settings=parse_settings(settings),
            standardise=standardise,
            owner_column=owner_column,
            label_column=label_column,
            seeds=seeds,
            epsilon=epsilon,
            delta=delta,
            epsilons=numbers(epsilons, "--epsilons", float),
            acceptable=acceptable,
            every_seed=every_seed,
            survivor_change=survivor_change,
            colluders=colluders,
            fewest=fewest,
            membership=membership,
            active=active,
            workers=workers,
            **form.given(),
        )
    if as_json:
        typer.echo(json.dumps(report.to_json(), indent=1))
    else:
        from securefed._commands.audit_tables import show_audit  # noqa: PLC0415 - heavy, and not needed for --help

        show_audit(report)
        console.print(f"\nReport: [bold]{escape(str(out / 'audit.html'))}[/] (data: {escape(str(out / 'audit.json'))})")
    code = _gate(report, fail_above, *judged)
    return EXIT_LEAK if fail_on_alerts and refuse_alerts(report.alerts) else code


@app.command(
    epilog="Examples:\n\nsecurefed attack run.transcript ssi --set rank=5\n\n"
    "securefed attack run.transcript optimization/fedavg --set problem=softmax --set local_steps=5 "
    "--try learning_rate=0.01 --try learning_rate=0.1   (the candidate that explains the messages is named)"
)
def attack(
    transcript: Annotated[Path, typer.Argument(help="A recorded run: `Transcript.save`, or an imported one.")],
    algorithm: Annotated[str, typer.Argument(help="Name of an algorithm (see `securefed list`).")],
    settings: Settings = None,
    candidates: Annotated[
        list[str] | None,
        typer.Option("--try", help="name=value, a candidate for an unknown setting; repeatable."),
    ] = None,
    attacks: Names = None,
    target: Annotated[int, typer.Option(help="Number of the client that is attacked.")] = 0,
    classes: Annotated[
        int | None, typer.Option(help="Number of classes, where the transcript does not state it.")
    ] = None,
    rows: Annotated[
        Path | None, typer.Option(help="PATH.npz with x, client and maybe y: the clients' rows, to score against.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Attack a recorded run and report what its messages leak, and what the recording lacks."""
    from securefed._commands.audit_run import attack_file  # noqa: PLC0415 - heavy, and not needed for --help

    with progress("attack", errors, silent=as_json) as step:
        found = attack_file(
            transcript,
            algorithm,
            parse_settings(settings),
            [parse_settings([candidate]) for candidate in candidates or []],
            attacks=split(attacks),
            target=target,
            classes=classes,
            rows=rows,
            progress=step,
        )
    typer.echo(json.dumps(found.to_json(), indent=1) if as_json else str(found))


@app.command(
    epilog="Examples:\n\nsecurefed compare before/audit.json after/audit.json\n\n"
    "securefed compare before/audit.json after/audit.json --out compared   (also as a page, comparison.html)\n\n"
    "securefed compare main.json branch.json --fail-on-growth   (exit code 3 if a leak grew, is new, can no "
    "longer be measured, or was not looked for again)\n\n"
    "securefed compare main.json branch.json --fail-on-growth --allow-missing FedPG   (FedPG was left out on purpose)"
)
def compare(
    before: Annotated[Path, typer.Argument(help="audit.json of the earlier audit.")],
    after: Annotated[Path, typer.Argument(help="audit.json of the later one.")],
    every: Annotated[bool, typer.Option("--all", help="Show also the cells that did not change.")] = False,
    fail_on_growth: Annotated[
        bool,
        typer.Option(
            "--fail-on-growth",
            help="Exit with code 3 if a leak grew beyond both intervals, one was found where the earlier audit tried "
            "nothing, one went out of sight because attacks fail that did not, or the later audit did not run all that "
            "it was asked for, or all that the earlier audit tried.",
        ),
    ] = False,
    allow_missing: Annotated[
        list[str] | None,
        typer.Option(
            help="Name of what the later audit may leave out under --fail-on-growth, as the gate prints it, or its "
            "beginning up to a comma; repeatable."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for comparison.html and comparison.json; none are written without it.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print comparison.json instead of the table.")] = False,
) -> int:
    """Compare two audits: leaks that grew or shrank by more than their intervals, utility and bytes."""
    from securefed._auditing.report import audit_json, comparison, comparison_page  # noqa: PLC0415 - not needed for --help

    allowed = tuple(allow_missing or ())
    reports = audit_json.read(before), audit_json.read(after)
    rows = comparison.compare(*reports)
    if out is not None:
        comparison_page.save(out, *reports, allowed)
    if as_json:
        typer.echo(json.dumps(comparison_page.to_json(*reports, allowed), indent=1, allow_nan=False))
    else:
        from securefed._commands.audit_tables import show_comparison  # noqa: PLC0415 - likewise

        show_comparison(rows, [str(item) for item in comparison.differences(*reports)], everything=every)
        console.print(f"\n{comparison_page.summary(*reports)}", highlight=False, markup=False)
        if out is not None:
            where = [escape(str(out / f"comparison.{kind}")) for kind in ("html", "json")]
            console.print(f"\nPage: [bold]{where[0]}[/] (data: {where[1]})")
    return _gate_growth(*reports, allowed) if fail_on_growth else 0


def _gate_growth(before: Mapping[str, Any], after: Mapping[str, Any], allowed: Sequence[str]) -> int:
    from securefed._auditing.gate.grown_leaks import growth, unjudged  # noqa: PLC0415 - heavy, and not needed for --help

    code = _refuse((reason.kind, reason.where, reason.said) for reason in growth(before, after, allowed))
    for sentence in unjudged(before, after):
        errors.print(f"not judged: {escape(sentence)}", highlight=False, soft_wrap=True)
    return code


def _check_gate(limit: float | None, views: Sequence[str], secrets: Sequence[str]) -> None:
    """Refuse a gate that could not judge, before minutes of attacks."""
    if limit is None and not views and not secrets:
        return
    from securefed._auditing.gate.leakage_limits import require_limit, require_names  # noqa: PLC0415 - heavy

    if limit is None:
        raise ConfigError("--views and --secrets say what a gate judges; add --fail-above 0.2, or leave them out")
    require_limit(limit, "--fail-above")
    require_names(views, secrets, ("--views", "--secrets"))


def _gate(report: Report, limit: float | None, views: Sequence[str], secrets: Sequence[str]) -> int:
    """Print the cells above the limit, if there is one; return the exit code."""
    if limit is None:
        return 0
    from securefed._auditing.gate.leakage_limits import reasons  # noqa: PLC0415 - heavy, and not needed for --help
    from securefed._auditing.report.smallest_client import with_smallest  # noqa: PLC0415 - likewise

    found, above = reasons(with_smallest(report), limit, views, secrets), f"above {limit:g}"
    return _refuse((above if r.kind == "above" else r.kind, r.where, r.said) for r in found)


def _refuse(reasons: Iterable[tuple[str, str, str]]) -> int:
    """Print the reasons (kind, where, sentence) why a gate fails; return the exit code, 0 where there are none."""
    code = 0
    for kind, where, sentence in reasons:
        errors.print(f"[bold red]{kind}[/]: {escape(where)}: {escape(sentence)}", highlight=False, soft_wrap=True)
        code = EXIT_LEAK
    return code


@contextmanager
def _kept(folder: Path) -> Iterator[None]:
    """Say, where an audit stops early, how many parts it has kept; nothing if it finished none."""
    before = set(folder.glob("*.task"))
    try:
        yield
    except BaseException:
        if (now := set(folder.glob("*.task"))) - before:
            errors.print(f"{len(now)} parts are done and kept in {folder}; the same command goes on from them")
        raise


def _self_check() -> int:
    from securefed._auditing.gate.self_check import failures, self_check  # noqa: PLC0415 - heavy, and not needed for --help

    checked = self_check()
    for item in checked:
        mark = "[green]right[/]" if item.right else "[bold red]wrong[/]"
        console.print(f"{mark}  planted {item.name}: {escape(item.said)}", highlight=False)
    return 1 if failures(checked) else 0
