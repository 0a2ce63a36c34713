"""Play fresh schedules, cases, kernels, mutants, fuzzers and soaks, and keep the result.

Examples:
  python -m benchmarks.nightly                     all of it, for hours
  python -m benchmarks.nightly --quick             a few minutes
  python -m benchmarks.nightly --seed 7 soaks      one part, from a given seed

The exit code is 1 where a part failed.
"""

from __future__ import annotations

import argparse
import importlib
import secrets
import sys
from collections.abc import Sequence

from benchmarks.nightly import page
from benchmarks.nightly.parts import Part

PARTS = {
    "schedules": ("schedules",),
    "kernels": ("kernels",),
    "mutants": ("mutation",),
    "fuzzers": ("fuzz",),
    "figures": ("figures",),
    "soaks": ("soak_http", "soak_flower"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the chosen parts; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"which ones (default all): {', '.join(PARTS)}")
    parser.add_argument("--quick", action="store_true", help="a few minutes instead of hours")
    parser.add_argument("--seed", type=int, help="of all draws; a fresh one by default")
    given = parser.parse_args(arguments)
    if unknown := sorted(set(given.parts) - set(PARTS)):
        parser.error(f"unknown part {unknown[0]!r}; known: {', '.join(PARTS)}")
    seed = secrets.randbelow(2**31) if given.seed is None else given.seed
    print(f"seed {seed}", flush=True)
    done: list[Part] = []
    for name in given.parts or PARTS:
        for module in PARTS[name]:
            for part in importlib.import_module(f"benchmarks.nightly.{module}").run(given.quick, seed):
                done.append(part)
                print(f"{'passed' if part.passed else 'FAILED'}  {part.name}: {part.figures}", flush=True)
                for note in part.notes:
                    print(f"        {note}", flush=True)
    page.keep(done, seed, given.quick)
    print(f"seed {seed}: {'passed' if all(part.passed for part in done) else 'failed'}")
    return int(not all(part.passed for part in done))


if __name__ == "__main__":
    sys.exit(main())
