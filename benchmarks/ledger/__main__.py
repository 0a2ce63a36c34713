"""The papers' tables and figures beside ours: run the experiments and keep their results.

Examples:
  python -m benchmarks.ledger                          all but the longest, at most an hour on two cores
  python -m benchmarks.ledger --nightly                the longest as well, for hours; the nightly run makes them
  python -m benchmarks.ledger --quick                  a cut-down run of all, five minutes, judges nothing
  python -m benchmarks.ledger losac faps/table1        one paper, and one experiment
  python -m benchmarks.ledger ppgl --seeds 21,22,23    with other seeds (results of other seeds are replaced)
  python -m benchmarks.ledger --list                   what there is, and which results are up to date
  python -m benchmarks.ledger --page                   only write the page again
  python -m benchmarks.ledger --check                  name the results that are older than the code; runs nothing

Data are read from the folder named by SECUREFED_DATA. An interrupted run goes on where it stopped: results of the same
seeds and the same code stand. The exit code is 1 when an experiment failed, a line owes evidence, or the check finds a
result to renew, 2 for bad usage.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from rich.console import Console

from benchmarks.ledger import page, records, staleness
from benchmarks.ledger.catalogue import Catalogue, discover
from benchmarks.ledger.display import Display, overview
from benchmarks.ledger.runner import run
from securefed.errors import SecureFedError

SEEDS = (11, 12, 13)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; its exit code."""
    given = _parser().parse_args(arguments)
    console = Console(soft_wrap=True, width=None if sys.stdout.isatty() else 180)  # a log is wider than 80
    try:
        return _main(given, console)
    except SecureFedError as error:
        console.print(f"error: {error}", style="red", markup=False)
        return 2
    except KeyboardInterrupt:
        console.print("interrupted: what had finished is kept; the same command goes on from there")
        return 130


def _main(given: argparse.Namespace, console: Console) -> int:
    catalogue = discover()
    for what, why in catalogue.broken.items():
        console.print(f"could not be collected: {what}: {why}", style="red", markup=False)
    chosen = catalogue.select(given.names, given.nightly)
    seeds = given.seeds or (SEEDS[:1] if given.quick else SEEDS)
    folder = records.CUT_DOWN if given.quick else records.FULL
    if given.list:
        console.print(overview(catalogue, chosen, folder))
        return 0
    if given.check:
        words = staleness.sentence(staleness.owed(catalogue, records.FULL))
        console.print(words or "every result was made by the code that stands here", markup=False)
        return int(bool(words))
    if given.page:
        return _write_page(catalogue, console)
    with Display(console, len(chosen)) as display:
        done = run(
            chosen,
            display,
            quick=given.quick,
            seeds=seeds,
            folder=folder,
            workers=given.workers,
            fresh=given.fresh,
        )
    failed = [result.name for result in done if result.failure is not None]
    owing = [result.name for result in done if result.owing]
    if failed:
        console.print(f"failed: {', '.join(failed)}", style="red", markup=False)
    if owing:
        console.print(f"lines without the evidence they owe: {', '.join(owing)}", style="red", markup=False)
    if not given.quick:
        _write_page(catalogue, console)
    return int(bool(failed or owing or (catalogue.broken and not given.names)))


def _write_page(catalogue: Catalogue, console: Console) -> int:
    written = page.write(catalogue, folder=records.FULL, docs=page.DOCS)
    console.print(f"wrote {written.parent.name}/{written.name}", markup=False)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.ledger",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="experiments or papers (default: all); see --list")
    parser.add_argument("--quick", action="store_true", help="one seed, cut down; results kept apart, no page")
    parser.add_argument("--nightly", action="store_true", help="include those that are left to the nightly run")
    parser.add_argument(
        "--seeds", type=_seeds, help=f"comma-separated (default {','.join(map(str, SEEDS))}; quick: {SEEDS[0]})"
    )
    parser.add_argument("--workers", type=int, default=2, help="experiments at a time, one thread each (default 2)")
    parser.add_argument("--fresh", action="store_true", help="run again even where results are up to date")
    parser.add_argument("--page", action="store_true", help="only write the page from the results there are")
    parser.add_argument("--check", action="store_true", help="name what has to run again; exit code 1 if anything has")
    parser.add_argument("--list", action="store_true", help="list the experiments and the state of their results")
    return parser


def _seeds(text: str) -> tuple[int, ...]:
    seeds = tuple(int(seed) for seed in text.split(","))  # argparse turns a ValueError into its own message
    if len(set(seeds)) < len(seeds) or min(seeds) < 0:
        raise argparse.ArgumentTypeError(f"seeds must be different and not negative, not {text}")
    return seeds


if __name__ == "__main__":
    sys.exit(main())
