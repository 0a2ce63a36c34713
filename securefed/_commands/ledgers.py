"""Define the commands `securefed ledger ...`: what an operator decides about the use of its data, outside any exchange.

A ledger is a client's own file, one for each data set (`Ledger`). It counts exchanges and epsilon, and remembers over
which parties the data were summed, so that no two sums subtract. Runs read and write it; these commands make one, show
it, set its limits, declare that rows changed, and raise the number of exchanges that the client may sit out.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from securefed._commands.base import app
from securefed._commands.display import say

if TYPE_CHECKING:
    from securefed._persistence.sealing import Seal
    from securefed._runtime.ledger import Ledger

ledger = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Make and read the ledger of a site's data, and decide what it allows.",
    epilog="A client without a ledger makes one beside its state. Name one for each data set to keep it over all runs: "
    "securefed ledger create data.ledger, then securefed party contribute ... --ledger data.ledger.",
)
app.add_typer(ledger, name="ledger")

File = Annotated[Path, typer.Argument(help="The ledger's file.")]
SealKey = Annotated[
    Path | None, typer.Option(help="The ledger is encrypted under the key in this file (`securefed key` makes one).")
]


@ledger.command(
    epilog="Examples:\n\nsecurefed ledger create data.ledger\n\nsecurefed ledger create data.ledger --exchanges 40   "
    "(after a loss: at least 40 were answered)"
)
def create(
    path: File,
    exchanges: Annotated[int, typer.Option(help="Exchanges that the data served before, as far as is known.")] = 0,
    seal_key_file: SealKey = None,
) -> None:
    """Make a ledger: for the first time, or after a loss. Sums that the data entered before, it does not know."""
    from securefed._runtime.ledger import Ledger  # noqa: PLC0415 - not for --help
    from securefed._runtime.ledger_entries import DataUsage, Limits  # noqa: PLC0415

    Ledger.create(path, Limits(), spent=DataUsage(exchanges=exchanges), seal=_seal(path, seal_key_file))
    say(
        f"Ledger: {path}. Give it to every run with these data.",
        "It knows no earlier sum: a sum that the data entered before may be subtracted from one that they enter now.",
    )


@ledger.command(epilog="Examples:\n\nsecurefed ledger show data.ledger")
def show(path: File, seal_key_file: SealKey = None) -> None:
    """Say what the data were used for, and what is left."""
    found = _open(path, seal_key_file)
    sums, (of_base, in_all) = found.sums, found.sums.most_out
    groups, book = sorted(len(block) for block in sums.blocks), found.book
    say(
        _limits_of(found),
        f"Exchanges answered: {book.exchanges}.",
        f"Trainings by DP-SGD: {book.trainings}, with {sum(book.trained.values())} steps; {len(book.reserved)} "
        "reserved and not recorded, which stay spent.",
        f"Version of the data: {sums.data}. Sums from a base: {len(sums.sums)}.",
        f"Parties that the sums without a base tell apart, in groups of: {', '.join(map(str, groups)) or 'none yet'}.",
        f"Sat out of {sum(sums.out.values())} exchanges of {in_all} in all, at most {of_base} of one base.",
    )


@ledger.command(
    epilog="Examples:\n\nsecurefed ledger changed data.ledger --rows 40   (since the last declaration, 40 rows came, "
    "went or changed)"
)
def changed(
    path: File,
    rows: Annotated[int, typer.Option(help="Rows that came, went or changed since the last declaration.")],
    seal_key_file: SealKey = None,
) -> None:
    """Declare that the data changed, between exchanges: what they enter from now on is compared with no earlier sum."""
    found = _open(path, seal_key_file)
    found.change_rows(rows)
    version = found.sums.data
    if rows:
        say(f"Version {version} of the data begins. Sums before and after subtract to what these {rows} rows add.")
    else:
        say(f"No row changed: version {version} of the data goes on.")


@ledger.command(
    epilog="Examples:\n\nsecurefed ledger limit data.ledger --exchanges 2000 --epsilon 8 --unit record\n\n"
    "securefed ledger limit data.ledger   (lifts all limits)"
)
def limit(
    path: File,
    exchanges: Annotated[int | None, typer.Option(help="Largest number of exchanges; any by default.")] = None,
    epsilon: Annotated[
        float | None,
        typer.Option(help="Largest epsilon of all noise together; by default any. Exchanges without noise have none."),
    ] = None,
    delta: Annotated[float, typer.Option(help="Probability with which epsilon may fail.")] = 1e-5,
    unit: Annotated[str, typer.Option(help="Whose epsilon it is: of the whole client, or of one record.")] = "client",
    seal_key_file: SealKey = None,
) -> None:
    """Set the limits of all use of the data together, in place of those before; every door keeps to them."""
    from securefed._runtime.ledger import Ledger  # noqa: PLC0415 - not for --help
    from securefed._runtime.ledger_entries import Limits  # noqa: PLC0415

    limits = Limits(exchanges, epsilon, delta, unit)  # type: ignore[arg-type]  # checked there
    found = Ledger.open(path, limits, _seal(path, seal_key_file))
    found.change_sums(lambda sums: sums, always=True)
    say(_limits_of(found))


@ledger.command(epilog="Examples:\n\nsecurefed ledger absences data.ledger --of-base 16 --in-all 128")
def absences(
    path: File,
    of_base: Annotated[int, typer.Option(help="Exchanges of one base that this client may sit out.")],
    in_all: Annotated[int, typer.Option(help="Exchanges that it may sit out in all.")],
    seal_key_file: SealKey = None,
) -> None:
    """Let the client sit out more exchanges than 8 of one base and 64 in all, and say what that gives away."""
    say(_open(path, seal_key_file).allow_absences(of_base, in_all))


def _open(path: Path, seal_key_file: Path | None) -> Ledger:
    from securefed._runtime.ledger import Ledger  # noqa: PLC0415 - not for --help

    return Ledger.open(path, seal=_seal(path, seal_key_file))


def _limits_of(found: Ledger) -> str:
    limits = found.limits
    number = "any number of" if limits.exchanges is None else f"at most {limits.exchanges}"
    epsilon = "any" if limits.epsilon is None else f"at most {limits.epsilon:g}"
    return f"Limits: {number} exchanges, and {epsilon} epsilon for one {limits.unit} at delta {limits.delta:g}."


def _seal(path: Path, key: Path | None) -> Seal | None:
    from securefed._persistence.sealing import Seal  # noqa: PLC0415 - not for --help

    return None if key is None else Seal.from_file(key, make=False).for_file(path.name)
