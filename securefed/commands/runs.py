"""`securefed run | key | plan | list`: runs, what they will cost, and what there is."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from securefed.commands.base import DATA_HELP, DefenseSettings, Settings, app, guarded
from securefed.printing import console, progress_bar, show_plan, show_registry

if TYPE_CHECKING:
    from securefed.sealing import Seal


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
    defense_settings: DefenseSettings = None,
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

    guarded(command)


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

    guarded(command)


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


class Kind(StrEnum):
    """Kinds of things that `securefed list` shows."""

    algorithms = "algorithms"
    defenses = "defenses"
    attacks = "attacks"


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

    guarded(command)


@app.command(
    epilog="Examples:\n\nsecurefed plan fedpg secure_aggregation --clients 100\n\nsecurefed plan ssi paillier\n\n"
    "securefed plan optimization/fedavg secure_aggregation --set problem=2nn --data mnist\n\n"
    "securefed plan fedpg secure_aggregation --clients 100 --tree 1000000\n\n"
    "securefed plan fedpg secure_aggregation --clients 100 --defense-set pipelined=true --defense-set verify=true"
)
def plan(
    algorithm: Annotated[str, typer.Argument(help="As `securefed list` names it.")],
    defense: Annotated[str, typer.Argument(help="As `securefed list` names it.")],
    clients: Annotated[int, typer.Option(help="Planned cohort.")] = 8,
    data: Annotated[str, typer.Option(help="Data set whose shape and range to plan for.")] = "digits",
    settings: Settings = None,
    defense_settings: DefenseSettings = None,
    tree: Annotated[
        int | None, typer.Option(help="Also the cost for so many clients, by a tree of groups of --clients each.")
    ] = None,
) -> None:
    """Say before a run: bounds, bits, largest cohort without wrap, error, stages, bytes, cost, what is assumed."""

    def command() -> int:
        from securefed.auditing.command import plan_for  # noqa: PLC0415
        from securefed.running import parse_settings  # noqa: PLC0415

        own, defending = parse_settings(settings or []), parse_settings(defense_settings or [])
        show_plan(*plan_for(algorithm, defense, clients, data, own, defending), tree)
        return 0

    guarded(command)
