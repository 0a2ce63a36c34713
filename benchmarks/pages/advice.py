"""Measure whether advice holds.

On each data set a search; where it advises a setting, that setting runs afresh on ten new seeds, whose 95 % bound must
lie within the promise; where it advises none, a search twice as fine must find none. The sets are cut to their columns
of highest variance, so that a search takes a minute. Results: `results/advice.json`, one set replaced at a time.

Examples:
  python -m benchmarks.pages.advice                                   every set under every algorithm, ten minutes
  python -m benchmarks.pages.advice digits --algorithm pca/ssi        one set under one algorithm
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.rows import RESULTS
from securefed._auditing.advice.search import advise, listing
from securefed._auditing.advice.trials import Trials
from securefed._auditing.cases import case
from securefed._auditing.cases.data_splits import most_varied
from securefed._auditing.cases.own_setup import OwnSetup
from securefed.datasets import Dataset, load

SETS = ("digits", "breast_cancer", "unsw_nb15", "uci_har", "text", "generated")
"""`text` (word counts of texts about two topics) and `generated` (rows of rank three with noise) are drawn here."""
CLIENTS = 8
TRAINING: dict[str, dict[str, Any]] = {
    "pca/ssi": {"rounds": 6, "settings": {"rank": 2}},
    "optimization/dsgd": {"rounds": 2, "rows_per_client": 1, "settings": {"learning_rate": 0.5}},
}
"""By algorithm, the training that the user asks about; one row a client in few rounds is where advice is hardest."""
COLUMNS, MOST_ROWS = 10, 1000
ACCEPTABLE = 0.1
SEEDS, FRESH = 5, range(1000, 1010)
PATH = RESULTS / "advice.json"


def main() -> None:
    """Measure the named sets under the named algorithms and write their results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="DATA", help=f"which sets (default all): {', '.join(SETS)}")
    parser.add_argument("--algorithm", action="append", choices=list(TRAINING), help="which algorithms (default all)")
    given = parser.parse_args()
    if unknown := sorted(set(given.names) - set(SETS)):
        parser.error(f"unknown data set {unknown[0]!r}; known: {', '.join(SETS)}")
    for algorithm in given.algorithm or TRAINING:
        for name in given.names or SETS:
            with tempfile.TemporaryDirectory() as folder:
                found = measure(algorithm, name, Path(folder))
            known = json.loads(PATH.read_text()) if PATH.exists() else {}
            known[f"{algorithm} on {name}"] = found
            PATH.write_text(json.dumps(known, indent=1, allow_nan=False) + "\n")
            print(
                algorithm, name, json.dumps({key: value for key, value in found.items() if key != "advice"}), flush=True
            )


def measure(algorithm: str, name: str, folder: Path) -> dict[str, Any]:
    """Search on one set, and check the advice."""
    start = time.process_time()
    path, sizes = _cut(name, folder), TRAINING[algorithm] | {"clients": CLIENTS, "standardise": True}
    search: dict[str, Any] = {"data": str(path), "acceptable": ACCEPTABLE, "seeds": SEEDS, **sizes}
    advice = advise(algorithm, **search)
    out: dict[str, Any] = {"acceptable": ACCEPTABLE, "sentences": list(advice.sentences), "seeds": SEEDS}
    if advice.advised is None:
        finer = advise(algorithm, fineness=2, **search)
        out |= {"advised": None, "clients needed": advice.clients_needed, "finer clients": finer.clients_needed}
        out |= {"finer search finds": finer.advised and finer.advised.defense, "met": finer.advised is None}
    else:
        own = OwnSetup(
            sizes.get("rows_per_client"), sizes["rounds"], tuple(sizes["settings"].items()), standardise=True
        )
        trials = Trials(own.apply(case(algorithm)), own, load(path), 1e-5)
        listed = listing(trials, CLIENTS)
        trial = trials.run(listed[advice.tried.index(advice.advised)], FRESH, 1.0)
        out |= {
            "advised": advice.advised.defense,
            "promised": advice.advised.leak_upper,
            "fresh seeds": len(FRESH),
            "fresh leak": trial.mean,
            "fresh bound": trial.upper(1),
            "fresh bound, corrected": trial.upper(len(listed)),
            "fresh utility": float(np.mean(trial.utilities)),
            "met": trial.upper(len(listed)) <= ACCEPTABLE,
        }
    advice_json = advice.to_json() | {"data": name}
    for one in [*advice_json["tried"], *([advice_json["advised"]] if advice_json["advised"] else [])]:
        one["paste"] = one["paste"].replace(str(path), f"{name}.npz")
    return out | {"core seconds": round(time.process_time() - start, 1), "advice": advice_json}


def _cut(name: str, folder: Path) -> Path:
    """Write some rows of a set, and its columns of highest variance, as a user's own file."""
    rng = np.random.default_rng(0)
    path = folder / f"{name}.npz"
    if name == "generated":
        mixed = rng.standard_normal((MOST_ROWS, 3)) @ rng.standard_normal((3, COLUMNS))
        np.savez(path, x=mixed + 0.1 * rng.standard_normal(mixed.shape), y=(mixed[:, 0] > 0).astype(int))
        return path
    data = most_varied(_word_counts(rng) if name == "text" else load(name).data, COLUMNS)
    rows = rng.permutation(data.rows)[:MOST_ROWS]
    np.savez(path, x=data.x[rows], y=data.labels()[rows])
    return path


def _word_counts(rng: np.random.Generator) -> Dataset:
    """Count the words of texts of 40 words; each of two topics has its own frequencies (Zipf's) of 60 words."""
    frequencies = np.array([rng.permutation(1 / np.arange(1.0, 61.0)) for _ in range(2)])
    topics = rng.integers(2, size=MOST_ROWS)
    counts = [rng.multinomial(40, frequencies[topic] / frequencies[topic].sum()) for topic in topics]
    return Dataset(np.asarray(counts, dtype=float), topics)


if __name__ == "__main__":
    main()
