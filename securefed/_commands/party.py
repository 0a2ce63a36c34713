"""Define the commands `securefed party ...`: a sum between sites that exchange a folder of files by hand.

One site writes the terms (tensors, clients, defence) and all check their fingerprint. Then the server's site and the
clients' sites take turns: `sum` writes one request for each client into the exchange folder, `contribute` answers it,
until the stages of the secure sum are through and `sum` writes the mean. `party_turns` holds the server's turns,
`party_answer` the clients', `party_files` the files.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from securefed._commands.base import (
    Decimal,
    DefenseSettings,
    Encoding,
    Separator,
    app,
    parse_settings,
    split,
    table_format,
)
from securefed._commands.display import say
from securefed._persistence.file_errors import storage_errors
from securefed.errors import ConfigError

if TYPE_CHECKING:
    from securefed._commands.party_exchange import Exchange
    from securefed.datasets._tables.table_format import TableFormat
    from securefed.defenses._base import Defense
    from securefed.parties import SumTerms

party = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Sum updates of sites without open ports: messages are files in a folder that people carry or share.",
    epilog="Each site and the server: securefed party identity mine.key. One site: securefed party terms terms.json "
    "--like update.npz --clients 3 --identity 0=north.key.pub .... Then, until the mean is there: the server runs "
    "securefed party sum, every client securefed party contribute. Every command can be run again at any point without "
    "harm.",
)
app.add_typer(party, name="party")

Folder = Annotated[Path, typer.Argument(help="The exchange folder, of messages only: it holds no secrets.")]
TermsFile = Annotated[Path, typer.Option("--terms", help="Your own copy of the terms (`securefed party terms`).")]
SealKey = Annotated[
    Path | None,
    typer.Option(help="Encrypt the state under the key in this file (mode 0600; `securefed key` makes one)."),
]


@party.command(
    epilog="Examples:\n\nsecurefed party identity north.key\n\nsecurefed party identity north.key   (again: shows it)"
)
def identity(
    path: Annotated[Path, typer.Argument(help="File of the private identity; an existing one is kept.")],
) -> None:
    """Make this site's private identity, and show the public one with its fingerprint."""
    from securefed._commands.party_files import make_identity, write_whole  # noqa: PLC0415 - not for --help
    from securefed.defenses._secure_aggregation.identities import fingerprint_of, public_identity  # noqa: PLC0415

    public = public_identity(make_identity(path))
    beside = path.with_name(f"{path.name}.pub")
    write_whole(beside, f"{public.hex()}\n".encode())
    say(
        f"Private: {path}. Keep it like a password, and give it to no one.",
        f"Public:  {public.hex()} ({beside}). Send it to the site that writes the terms.",
        f"Fingerprint: {fingerprint_of(public)}. Read it to the others on the phone, against a swapped one.",
    )


@party.command(
    epilog="Examples:\n\nsecurefed party terms terms.json --like update.csv --no-base --clients 3 "
    "--identity 0=north.key.pub --identity 1=south.key.pub --identity 2=west.key.pub\n\n"
    "securefed party terms terms.json --like update.npz --clients 5 --bound 8\n\n"
    "securefed party terms terms.json --like model.safetensors --clients 5 --local '*running_*' --rounds 10 "
    "--largest-weight 5000\n\n"
    "securefed party terms terms.json --like update.npz --clients 5 --defense ddp --defense-set clip_norm=1 "
    "--defense-set noise_multiplier=1"
)
def terms(
    path: Annotated[Path, typer.Argument(help="File to write; the same one for all parties.")],
    like: Annotated[
        Path, typer.Option(help="An update as an example: .npz, .safetensors or .csv. Its values stay here.")
    ],
    clients: Annotated[int, typer.Option(help="N, the number of clients; they are numbered 0 to N - 1.")],
    defense: Annotated[str, typer.Option(help="Name of a defence (see `securefed list`).")] = "secure_aggregation",
    defense_settings: DefenseSettings = None,
    threshold: Annotated[
        int | None,
        typer.Option(help="Clients that must stay; by default more than half of them, and 3 or more."),
    ] = None,
    identity: Annotated[
        list[str] | None,
        typer.Option(help="CLIENT=PUBLIC, the digits or the .pub file of `party identity`; one for each client."),
    ] = None,
    bound: Annotated[
        list[str] | None,
        typer.Option(
            help="Largest absolute entry of an update: a number, or NAME=NUMBER; repeatable. 2^20 by default."
        ),
    ] = None,
    largest_weight: Annotated[
        float | None,
        typer.Option(help="Largest weight of a client (its number of rows); without it updates are not weighted."),
    ] = None,
    metric: Annotated[
        list[str] | None, typer.Option(help="Name of a number that is summed beside the update; repeatable.")
    ] = None,
    local: Annotated[
        list[str] | None, typer.Option(help="Pattern of arrays that stay with their client; repeatable.")
    ] = None,
    base: Annotated[bool, typer.Option(help="Bind each round to a model that all clients were given.")] = True,
    rounds: Annotated[int | None, typer.Option(help="Rounds at most; any number by default.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="Privacy budget, of a defence that adds noise.")] = None,
    answer_after: Annotated[
        float | None,
        typer.Option(help="Seconds that each client takes to answer with its update, so that the time tells nothing."),
    ] = None,
    encoding: Encoding = "",
    separator: Separator = "",
    decimal: Decimal = "",
) -> None:
    """Write what all parties agree on, and show what it promises; compare the fingerprint at all sites."""
    from securefed._commands.party_files import write_whole  # noqa: PLC0415
    from securefed.parties import SumTerms  # noqa: PLC0415

    settings = parse_settings(defense_settings) | ({} if threshold is None else {"threshold": threshold})
    (example,) = _read(table_format(encoding, separator, decimal), like)
    assert example is not None  # a path was given
    made = SumTerms.like(
        example, clients=clients, defense=_defense(defense, settings, identity or []),
        bounds=_bounds(bound or []), metrics=metric or (), largest_weight=largest_weight, base=base,
        local=local or (), rounds=rounds, epsilon=epsilon,
    )  # fmt: skip
    made = replace(made, answer_after=answer_after)
    data, plan = made.to_bytes(), made.plan  # a plan that cannot be kept is refused here
    if path.exists() and path.read_bytes() != data:
        raise ConfigError(f"{path} holds other terms; the parties may have it already: give another path")
    write_whole(path, data)
    shape = made.tensors[0].shape
    if like.name.lower().endswith((".csv", ".csv.gz", ".parquet")) and shape:
        say(f"{like} is summed row by row: all sites need the same {shape[0]} rows, in the same order.")
    say(str(plan), f"Terms: {path}, fingerprint {_fingerprint(made)}. It must be the same at all sites.")


@party.command(
    epilog="Examples:\n\nsecurefed party contribute exchange --terms terms.json --party 0 --server server.key.pub "
    "--identity north.key\n\n"
    "securefed party contribute exchange --terms terms.json --party 0 --server server.key.pub --identity north.key "
    "--update update.npz --weight 600 --base round-1-model.npz\n\n"
    "securefed party contribute /media/stick --terms terms.json --party 2 --server server.key.pub --identity west.key "
    "--update counts.csv --seal-key-file seal.key"
)
def contribute(
    folder: Folder,
    terms: TermsFile,
    number: Annotated[int, typer.Option("--party", help="This client's number, from 0.")],
    server: Annotated[
        str,
        typer.Option(
            help="The server's public identity: 64 digits or the .pub file of its `party identity`, from its operator. "
            "Requests that it did not sign are not answered: else any site that writes into the folder could ask."
        ),
    ],
    update: Annotated[
        Path | None,
        typer.Option(
            help="This site's .npz, .safetensors or .csv; where the terms are of a statistic, its table of rows (.csv "
            "or .parquet), of which the statistic's part is computed here."
        ),
    ] = None,
    weight: Annotated[
        float | None,
        typer.Option(help="Its weight, the number of rows behind it, where the terms name a largest one."),
    ] = None,
    metric: Annotated[list[str] | None, typer.Option(help="NAME=NUMBER, as the terms name them; repeatable.")] = None,
    base: Annotated[Path | None, typer.Option(help="The model that the update was computed from.")] = None,
    trained: Annotated[
        int | None,
        typer.Option(
            help="Number of the training by DP-SGD that made the update, in the ledger (`training.number` of "
            "Ledger.reserve), which must have recorded it: sending it costs no more epsilon."
        ),
    ] = None,
    identity: Annotated[Path | None, typer.Option(help="This site's private identity (`party identity`).")] = None,
    state: Annotated[
        Path | None, typer.Option(help="This client's own file between messages; client-NUMBER.state by default.")
    ] = None,
    ledger: Annotated[
        Path | None,
        typer.Option(
            help="Ledger of this site's data, the same in every run and under all terms (`securefed ledger`); by "
            "default the file beside the state whose name ends in .ledger."
        ),
    ] = None,
    seal_key_file: SealKey = None,
    encoding: Encoding = "",
    separator: Separator = "",
    decimal: Decimal = "",
) -> None:
    """Answer the newest request in the folder; the update leaves this machine masked, and in no other form."""
    from securefed._commands.party_answer import Contribution, Keys, answer  # noqa: PLC0415
    from securefed._commands.party_files import read_identity, read_public_identity  # noqa: PLC0415

    at = replace(_exchange(folder, terms, state or Path(f"client-{number}.state"), seal_key_file), ledger=ledger)
    read = _contributed(at.terms, table_format(encoding, separator, decimal), update, base)
    keys = Keys(read_public_identity(server), None if identity is None else read_identity(identity))
    numbers = {name: _number(text, f"--metric {name}") for name, text in _pairs(metric or [], "--metric").items()}
    say(*answer(at, number, keys, Contribution(read[0], weight, numbers, read[1], trained)))


@party.command(
    "sum",
    epilog="Examples:\n\nsecurefed party sum exchange --terms terms.json --identity server.key   (opens round 1, then "
    "goes on with it)\n\n"
    "securefed party sum exchange --terms terms.json --identity server.key --without 3   (client 3 is lost: goes on "
    "without it)\n\n"
    "securefed party sum exchange --terms terms.json --identity server.key --round 2 --base model.npz --seal-key-file "
    "seal.key",
)
def sum_(
    folder: Folder,
    terms: TermsFile,
    identity: Annotated[
        Path, typer.Option(help="The server's private identity (`party identity`), by which sites know its requests.")
    ],
    round: Annotated[int | None, typer.Option(help="The round to make, from 1; the newest by default.")] = None,
    base: Annotated[
        Path | None, typer.Option(help="The model to open the round with, the same at all clients.")
    ] = None,
    cohort: Annotated[str | None, typer.Option(help="Clients to invite, as 0,1,2; all planned by default.")] = None,
    without: Annotated[
        list[int] | None, typer.Option(help="A client not to wait for in this stage; repeatable.")
    ] = None,
    state: Annotated[Path, typer.Option(help="The server's own file between messages.")] = Path("server.state"),
    seal_key_file: SealKey = None,
    encoding: Encoding = "",
    separator: Separator = "",
    decimal: Decimal = "",
) -> None:
    """Take the replies that are there and go on: to the next requests, and at the end to the mean."""
    from securefed._commands.party_files import read_identity  # noqa: PLC0415
    from securefed._commands.party_turns import take_turn  # noqa: PLC0415

    at = _exchange(folder, terms, state, seal_key_file)
    invited = None if cohort is None else [_client(text, "--cohort") for text in split(cohort) or []]
    (model,) = _read(table_format(encoding, separator, decimal), base)
    say(*take_turn(at, read_identity(identity), round=round, base=model, cohort=invited, without=without or ()))


@party.command(
    epilog="Examples:\n\nsecurefed party status exchange\n\nwatch -n 60 securefed party status /media/shared"
)
def status(folder: Folder) -> None:
    """Say who is waited for."""
    from securefed._commands.party_sentences import describe  # noqa: PLC0415

    say(describe(folder))


def _read(form: TableFormat, *paths: Path | None) -> list[dict[str, Any] | None]:
    """Read the arrays of each file that is given; raise `ConfigError` where a form is named and none is a .csv file."""
    from securefed._commands.party_files import read_arrays  # noqa: PLC0415

    if form.given() and not any(path and path.name.lower().endswith((".csv", ".csv.gz")) for path in paths):
        raise ConfigError(f"no file here is a .csv file; leave out {' '.join(form.command_options())}")
    return [None if path is None else read_arrays(path, form) for path in paths]


def _contributed(terms: SumTerms, form: TableFormat, update: Path | None, base: Path | None) -> list[Any]:
    """Read a site's update and base; of a table of rows, a function that computes its part of the terms' statistic."""
    from securefed.datasets._tables.files import TABLES, read_file  # noqa: PLC0415
    from securefed.statistics import from_terms  # noqa: PLC0415

    if update is None or terms.about is None or not update.name.lower().endswith(TABLES):
        return list(_read(form, update, base))
    statistic, table = from_terms(terms), read_file(update, form)
    return [lambda: statistic.summand(table), None]


def _exchange(folder: Path, terms: Path, state: Path, seal_key_file: Path | None) -> Exchange:
    """Read what `sum` and `contribute` both need: the terms, and the key of their state."""
    from securefed._commands.party_exchange import Exchange  # noqa: PLC0415
    from securefed._persistence.sealing import Seal  # noqa: PLC0415
    from securefed.parties import SumTerms  # noqa: PLC0415

    seal = None if seal_key_file is None else Seal.from_file(seal_key_file, make=False)
    with storage_errors(f"read the terms {terms}"):
        agreed = SumTerms.from_bytes(terms.read_bytes())
    _check_no_key_holder(agreed.defense)
    return Exchange(agreed, folder, state, seal)


def _check_no_key_holder(defense: Defense) -> None:
    """Refuse a defence with parties beside server and clients: they would have to answer messages too."""
    if defense.aggregation.beside:
        raise ConfigError(
            f"{defense.name} needs a key holder, which has no command; use securefed.parties.SumHelper in Python"
        )


def _defense(name: str, settings: dict[str, object], identity: list[str]) -> Defense:
    """Build the defence, with the public identities of all clients in it."""
    import securefed.defenses._registered_defenses  # noqa: F401, PLC0415 - registers on import
    from securefed._commands.named_run import build  # noqa: PLC0415
    from securefed._commands.party_files import read_public_identity  # noqa: PLC0415
    from securefed.defenses._base import defenses  # noqa: PLC0415
    from securefed.defenses._chain import as_defense  # noqa: PLC0415
    from securefed.defenses._secure_aggregation.double_masking import SecureAggregation  # noqa: PLC0415
    from securefed.defenses._secure_aggregation.identities import Identities  # noqa: PLC0415

    made = as_defense(build(defenses, name, settings))
    _check_no_key_holder(made)
    if not identity:
        return made
    if not isinstance(made.aggregation, SecureAggregation):
        raise ConfigError(f"--identity protects secure aggregation, and {name} is another defence; leave it out")
    keys = {
        _client(client, "--identity"): read_public_identity(text)
        for client, text in _pairs(identity, "--identity").items()
    }
    return replace(made, aggregation=replace(made.aggregation, identities=Identities(keys)))


def _bounds(texts: list[str]) -> float | dict[str, float] | None:
    """Read `--bound`: one number for all tensors, or NAME=NUMBER for some; `None` where it was not given."""
    if len(texts) == 1 and "=" not in texts[0]:
        return _number(texts[0], "--bound")
    return {name: _number(text, f"--bound {name}") for name, text in _pairs(texts, "--bound").items()} or None


def _pairs(texts: list[str], option: str) -> dict[str, str]:
    """Read NAME=VALUE, each name once; `option` names the option in errors."""
    pairs: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name or name in pairs:
            raise ConfigError(f"{option} must be NAME=VALUE, each name once; got {text!r}")
        pairs[name] = value
    return pairs


def _client(text: str, option: str) -> int:
    """Read a client's number; raise `ConfigError` for anything but a whole number from 0."""
    if not text.strip().isdecimal():
        raise ConfigError(f"{option} must name clients by whole numbers from 0; got {text!r}")
    return int(text)


def _number(text: str, option: str) -> float:

    try:
        return float(text)
    except ValueError as error:
        raise ConfigError(f"{option} must be a number; got {text!r}") from error


def _fingerprint(terms: SumTerms) -> str:
    """160 bits of the digest of the terms, in groups of four digits, to compare on the phone."""
    digits = terms.digest.hex()[:40]
    return " ".join(digits[start : start + 4] for start in range(0, len(digits), 4))
