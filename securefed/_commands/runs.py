"""Define the commands `securefed run`, `key`, `plan` and `list`.

`run` simulates a federation in this process, described by options or by a TOML file (`run_file`); `key` makes the key
that encrypts its checkpoint; `plan` shows before a run what a defence promises, its stages and its
bytes; `list` shows what there is.
"""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from securefed._commands.base import (
    DATA_HELP,
    EXIT_DECLINED,
    Classes,
    Decimal,
    DefenseSettings,
    Encoding,
    LabelColumn,
    OwnerColumn,
    Separator,
    Settings,
    Standardise,
    app,
    parse_settings,
    read_first,
    table_format,
)
from securefed._commands.display import console, errors, say, show_plan, show_registry
from securefed._commands.progress import progress
from securefed.errors import ConfigError

if TYPE_CHECKING:
    from securefed._commands.named_run import NamedRun
    from securefed._persistence.sealing import Seal

_BESIDE_A_FILE = {
    "algorithm", "reveal", "checkpoint", "seal_key_file", "seal_anchor", "out", "as_json", "yes",
}  # fmt: skip
"""Parameters of `securefed run` that do not describe the run, so that they stand beside a file that does."""


@app.command(
    epilog="Examples:\n\n"
    "securefed run ssi --set rank=5 --rounds 20\n\n"
    "securefed run study.toml --out result   (the whole run in one file; its form: docs/command-line.md)\n\n"
    "securefed run optimization/fedavg --set problem=logistic --data rows.csv --owner-column hospital "
    "--label-column outcome --standardise --defense secure_aggregation\n\n"
    "securefed run losac --set learning_rate=0.001 --set blocks=5 --partition by_label --evaluate-every 10\n\n"
    "securefed run optimization/fedavg --set problem=2nn --data mnist --clients 100 --cohort 10 --rounds 100 "
    "--defense secure_aggregation --checkpoint run.checkpoint --out result\n\n"
    "securefed key seal.key   (once; then the checkpoint is encrypted)\n\n"
    "securefed run ssi --set rank=5 --checkpoint run.checkpoint --seal-key-file seal.key"
)
def run(
    context: typer.Context,
    algorithm: Annotated[
        str, typer.Argument(help="Name of an algorithm (see `securefed list`), or a .toml file that describes the run.")
    ],
    settings: Settings = None,
    data: Annotated[str, typer.Option(help=DATA_HELP)] = "digits",
    clients: Annotated[
        int | None, typer.Option(help="N, the number of clients enrolled; 8, or one for each owner, by default.")
    ] = None,
    cohort: Annotated[int | None, typer.Option(help="S, the number of clients in a round; all by default.")] = None,
    partition: Annotated[
        str,
        typer.Option(
            help="How rows are split: iid, power_law=1, one_small=ROWS, by_label, shards=2, partly_sorted=0.5, "
            "dirichlet=0.3, by_feature=COLUMN, by_group=FACT."
        ),
    ] = "iid",
    owner_column: OwnerColumn = "",
    label_column: LabelColumn = "",
    encoding: Encoding = "",
    separator: Separator = "",
    decimal: Decimal = "",
    classes: Classes = "",
    standardise: Standardise = False,
    held_out: Annotated[float, typer.Option(help="Share of the rows kept for scoring the result; 0 for none.")] = 0.2,
    rounds: Annotated[
        int, typer.Option(help="Largest number of rounds; the algorithm's own stop rule may end the run earlier.")
    ] = 50,
    defense: Annotated[str, typer.Option(help="Name of a defence (see `securefed list`).")] = "plain",
    defense_settings: DefenseSettings = None,
    reveal: Annotated[
        bool,
        typer.Option("--reveal", help="Allow clients to reveal the scalars by which the algorithm selects clients."),
    ] = False,
    evaluate_every: Annotated[int, typer.Option(help="Evaluate at the clients every so many rounds; 0 for never.")] = 0,
    seed: Annotated[
        int, typer.Option(help="Seed of data split, initial values, cohorts and mini-batches; secrets never use it.")
    ] = 0,
    checkpoint: Annotated[
        Path | None, typer.Option(help="File in which the run is saved, and from which it resumes if the file exists.")
    ] = None,
    seal_key_file: Annotated[
        Path | None,
        typer.Option(help="Encrypt the checkpoint under the key in this file (mode 0600; `securefed key` makes one)."),
    ] = None,
    seal_anchor: Annotated[
        Path | None,
        typer.Option(
            help="Small file on another disk that records the newest checkpoint; older checkpoints are refused."
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for run.json and the results as .safetensors files.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print run.json instead of the summary.")] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Run although the plan promises less than the file requires, without asking.")
    ] = False,
) -> int:
    """Run one algorithm on real data, in the clear or under a defence.

    Exit codes: 0 done; 1 not run, because the plan promises less than the file requires; 2 bad input, or a run that
    could not be completed: the rounds before are then in the folder of --out.
    """
    seal = _seal(seal_key_file, seal_anchor, checkpoint)
    if not algorithm.endswith(".toml"):
        form = table_format(encoding, separator, decimal, classes)
        read_first(data, owner_column, label_column, form, quiet=as_json)
    from securefed._commands import named_run as running  # noqa: PLC0415 - heavy, and not needed for --help

    if algorithm.endswith(".toml"):
        what, agreed = _from_file(context, Path(algorithm), reveal or None, quiet=as_json, yes=yes)
        if not agreed:
            return EXIT_DECLINED
    else:
        own, defending = parse_settings(settings), parse_settings(defense_settings)
        what = running.NamedRun(
            algorithm, own, defense, defending, data, clients, cohort, partition, held_out, rounds, evaluate_every,
            seed, owner_column, label_column, standardise, encoding, separator, decimal, form.classes,
        )  # fmt: skip

    def keep(rounds: running.FinishedRun) -> None:
        done = len(rounds.result.history)
        if out is None:
            errors.print(f"{done} rounds were complete; give --out FOLDER to keep their model where a run ends early")
            return
        rounds.save(out)
        errors.print(f"{done} rounds were complete; their model is in {escape(str(out))}")

    with progress(what.algorithm, errors, silent=as_json) as step:
        ran = running.execute(
            what,
            checkpoint=checkpoint,
            seal=seal,
            reveal=reveal or None,
            progress=lambda entry: step(entry.round + 1, what.rounds, running.line(entry)),
            unfinished=keep,
        )
    if out is not None:
        ran.save(out)
    if as_json:
        typer.echo(json.dumps(ran.to_json(), indent=1))
    else:
        say(*running.summary(ran))
        if out is not None:
            console.print(f"Results: [bold]{escape(str(out))}[/]")
    return 0


def _from_file(
    context: typer.Context, path: Path, reveal: bool | None, *, quiet: bool, yes: bool
) -> tuple[NamedRun, bool]:
    """Read a run from a file, print its plan, and ask where it promises less than the file requires.

    Returns:
        The run, and whether it may begin.
    """
    from securefed._commands.named_run import federation  # noqa: PLC0415 - heavy, and not needed for --help
    from securefed._commands.run_file import read_run, shortfalls  # noqa: PLC0415

    given = [name for name in context.params if name not in _BESIDE_A_FILE and _was_given(context, name)]
    if given:
        raise ConfigError(
            f"{', '.join('--' + name.replace('_', '-') for name in given)}: the run is described by {path}; write it "
            "there"
        )
    what, required = read_run(path)
    read_first(what.data, what.owner_column, what.label_column, what.form, quiet=quiet)
    made = federation(what, reveal=reveal)
    if not quiet:
        show_plan(made.plan)
    missing = shortfalls(required, made.defense, made.plan, what.rounds)
    for sentence in missing:
        errors.print(f"[bold red]Less than required:[/] {escape(sentence)}", soft_wrap=True, highlight=False)
    if not missing or yes:
        return what, True
    asked = sys.stdin.isatty() and not quiet
    return what, asked and typer.confirm("Run all the same?", default=False)


def _was_given(context: typer.Context, name: str) -> bool:
    """Tell whether the user wrote this option, so that its value is not the default."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


@app.command(
    epilog="Examples:\n\nsecurefed key seal.key\n\n"
    "securefed run ssi --set rank=5 --checkpoint run.checkpoint --seal-key-file seal.key --seal-anchor /else/anchor"
)
def key(path: Annotated[Path, typer.Argument(help="File to write; an existing file is not changed.")]) -> None:
    """Make a key for encrypting files: 32 bytes, in a file that only its owner can read."""
    from securefed._persistence.sealing import make_key  # noqa: PLC0415

    make_key(path)
    console.print(
        f"Key: [bold]{escape(str(path))}[/]. Do not store it beside the files that it encrypts, and keep a "
        "copy in a safe place: without the key they cannot be opened.",
        soft_wrap=True,
    )


def _seal(key_file: Path | None, anchor: Path | None, checkpoint: Path | None) -> Seal | None:
    """Return what encrypts the checkpoint, if the options ask for it; raise `ConfigError` where one lacks another."""
    from securefed._persistence.sealing import Seal  # noqa: PLC0415

    if key_file is None:
        if anchor is not None:
            raise ConfigError("--seal-anchor needs an encrypted checkpoint; give --seal-key-file as well")
        return None
    if checkpoint is None:
        raise ConfigError(
            "--seal-key-file encrypts the checkpoint, and no checkpoint is given; give --checkpoint as well"
        )
    return Seal.from_file(key_file, anchor, make=False)


class RegistryName(StrEnum):
    """Registries that `securefed list` shows."""

    algorithms = "algorithms"
    defenses = "defenses"
    attacks = "attacks"
    active = "active"


@app.command("list", epilog="Examples:\n\nsecurefed list\n\nsecurefed list attacks\n\nsecurefed list active")
def list_(
    kind: Annotated[RegistryName | None, typer.Argument(help="Which names to show; all by default.")] = None,
) -> None:
    """List every algorithm, defence and attack with its source; active attacks are those of `audit --active`."""
    from securefed import _catalogue as catalogue  # noqa: PLC0415 - heavy, and not needed for --help
    from securefed.attacks import active_attacks  # noqa: PLC0415 - likewise

    for name, title, registry in (
        (RegistryName.algorithms, "algorithms", catalogue.algorithms),
        (RegistryName.defenses, "defenses", catalogue.defenses),
        (RegistryName.attacks, "attacks", catalogue.attacks),
        (RegistryName.active, "active attacks, by a server that chooses its broadcasts", active_attacks),
    ):
        if kind in (None, name):
            show_registry(title, registry)


@app.command(
    epilog="Examples:\n\nsecurefed plan fedpg secure_aggregation --clients 100\n\nsecurefed plan ssi paillier\n\n"
    "securefed plan optimization/fedavg secure_aggregation --set problem=2nn --data mnist\n\n"
    "securefed plan fedpg secure_aggregation --clients 100 --defense-set pipelined=true --defense-set verify=true"
)
def plan(
    algorithm: Annotated[str, typer.Argument(help="Name of an algorithm (see `securefed list`).")],
    defense: Annotated[str, typer.Argument(help="Name of a defence (see `securefed list`).")],
    clients: Annotated[int, typer.Option(help="Number of clients planned for a round.")] = 8,
    data: Annotated[str, typer.Option(help="Data set whose shape and range to plan for.")] = "digits",
    encoding: Encoding = "",
    separator: Separator = "",
    decimal: Decimal = "",
    settings: Settings = None,
    defense_settings: DefenseSettings = None,
) -> None:
    """Show a run's plan in advance: bounds, bits, largest cohort, error, stages, bytes, assumptions."""
    form = table_format(encoding, separator, decimal)
    read_first(data, "", "", form)
    from securefed._commands.audit_run import plan_for  # noqa: PLC0415

    own, defending = parse_settings(settings), parse_settings(defense_settings)
    show_plan(plan_for(algorithm, defense, clients, data, own, defending, form))
