"""Run one algorithm on named data under a named defence, as `securefed run` does.

`prepare` loads the data and splits the rows over clients, `federation` builds the simulated run, `execute` runs it,
and `summary` and `FinishedRun.save` give the result to people and to files.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from inspect import signature
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from safetensors.numpy import save_file

from securefed import _catalogue as catalogue
from securefed._class_names import ClassName
from securefed._hyperparameters import check_integer
from securefed._persistence.file_errors import storage_errors
from securefed._persistence.sealing import Seal
from securefed._public import Public
from securefed._registry import Registry
from securefed._runtime.federation import Federation
from securefed._runtime.history import Result, RoundHistory
from securefed._runtime.run_options import RunOptions
from securefed._runtime.server import Progress
from securefed.datasets import partition
from securefed.datasets._base import Dataset
from securefed.datasets._loaded_dataset import LoadedDataset
from securefed.datasets._loaders import load_once
from securefed.datasets._named_partitions import partitioned
from securefed.datasets._row_tables import standardised
from securefed.datasets._tables.table_format import TableFormat
from securefed.errors import ConfigError, SecureFedError

T = TypeVar("T")
_DATA_STREAM = 0xDA7A
"""Mixed with the seed for the draws of the data split, so that they are independent of the run's other draws."""
_CLIENTS = 8
"""Clients of a run that names neither their number nor owners of rows."""


@dataclass(frozen=True)
class NamedRun:
    """A run whose algorithm, defence, data and partition are given by name, as on the command line.

    Attributes:
        algorithm: name of the algorithm in `securefed list`.
        settings: parameters of the algorithm.
        defense: name of the defence in `securefed list`.
        defense_settings: parameters of the defence.
        data: a set's name, or the path of an `.npz`, `.csv` or `.parquet` file.
        clients: N; by default 8, or one for each owner of rows.
        cohort: number of clients in a round; all by default.
        partition: how rows are split over clients: a name, or `name=value`, of `securefed.datasets.partitioned`.
        held_out: share of the rows kept for scoring the result (the official test rows where there are some); 0: none.
        rounds: largest number of rounds.
        evaluate_every: rounds between two evaluations by the clients; 0: none.
        seed: the seed of data split, start, cohorts and mini-batches.
        owner_column: column that says whose row it is; each client is then one owner, and `partition` must be `iid`,
            its default.
        label_column: column of the labels in a file; by default `y` or `label`.
        standardise: scale every column to mean 0 and standard deviation 1 over all rows.
        encoding: encoding of a `.csv` file, where it cannot be told.
        separator: its separator, likewise.
        decimal: its decimal mark, likewise.
        classes: the values that the column of labels of a file may hold, in the order of their numbers.
    """

    algorithm: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    defense: str = "plain"
    defense_settings: Mapping[str, Any] = field(default_factory=dict)
    data: str = "digits"
    clients: int | None = None
    cohort: int | None = None
    partition: str = "iid"
    held_out: float = 0.2
    rounds: int = 50
    evaluate_every: int = 0
    seed: int = 0
    owner_column: str = ""
    label_column: str = ""
    standardise: bool = False
    encoding: str = ""
    separator: str = ""
    decimal: str = ""
    classes: Sequence[ClassName] = ()

    @property
    def form(self) -> TableFormat:
        """The form of the table, and the classes of its labels."""
        return TableFormat(self.encoding, self.separator, self.decimal, self.classes)


@dataclass(frozen=True)
class FinishedRun:
    """A finished run with its measures.

    Attributes:
        run: what was asked for.
        result: the algorithm's result and history.
        score: the score of the result on held-out rows, by the algorithm's own measure; `None` where it has none.
        seconds: duration of the run.
    """

    run: NamedRun
    result: Result
    score: float | None
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Return JSON values: the run, its plan in brief, the history, the score."""
        result, plan = self.result, self.result.plan
        return {
            "run": {**vars(self.run), "settings": _texts(self.run.settings)},
            "plan": {
                "defense": plan.defense,
                "stages": list(plan.stages),
                "upload_bytes": plan.upload_bytes,
                "open_to": plan.open_to,
                "assumptions": list(plan.assumptions),
                "epsilon": [list(pair) for pair in plan.epsilon],
            },
            "rounds": len(result.history),
            "stopped": result.stopped,
            "history": [entry.to_json() | {"measures": measures(entry.metrics)} for entry in result.history],
            "score": self.score,
            "bytes": {"up": sum(h.up for h in result.history), "down": sum(h.down for h in result.history)},
            "seconds": self.seconds,
        }

    def save(self, folder: Path) -> None:
        """Write `run.json`, `output.safetensors` and, for personal results, `personal.safetensors`."""
        with storage_errors(f"write into {folder}", "choose another folder"):
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "run.json").write_text(json.dumps(self.to_json(), indent=1) + "\n")
            save_file(
                {n: np.ascontiguousarray(v) for n, v in self.result.output.items()}, folder / "output.safetensors"
            )
            personal = {
                f"client{client}.{name}": np.ascontiguousarray(value)
                for client, tensors in self.result.personal.items()
                for name, value in tensors.items()
            }
            if personal:
                save_file(personal, folder / "personal.safetensors")


def prepare(run: NamedRun) -> tuple[LoadedDataset, list[Dataset], Dataset | None]:
    """Load the data of a run and split it.

    Returns:
        The data set, the rows of each client, and the held-out rows: those of the official split where there is one.

    Raises:
        ConfigError: an unknown name, or a split that the data does not allow, or a partition beside owners of rows.
        DataError: the data cannot be read.
    """
    check_integer("seed", run.seed, 0)
    rng = np.random.default_rng([run.seed, _DATA_STREAM])
    source = load_once(run.data, run.owner_column, run.label_column, run.form)
    if run.standardise:
        source = standardised(source)
    test = source.test if run.held_out else None
    if run.held_out and test is None:
        rest, held_out = partition.split_rows(source.data.rows, run.held_out, rng)
        test = source.data.take(held_out)
        groups = {name: values[rest] for name, values in source.groups.items()}
        source = replace(source, data=source.data.take(rest), groups=groups)
    if not run.owner_column:
        return source, partitioned(source, run.partition, _CLIENTS if run.clients is None else run.clients, rng), test
    if run.partition != NamedRun.partition:
        raise ConfigError(
            f"rows are split by their owner ({run.owner_column}) or by the partition {run.partition}, not by both; "
            "leave one out"
        )
    return source, partition.by_group(source.data, source.groups[run.owner_column], run.clients), test


def build(kind: Registry[T], name: str, settings: Mapping[str, Any]) -> T:
    """Build a registered algorithm or defence; raise `ConfigError` for unknown or missing settings."""
    try:
        return kind.make(name, **settings)
    except TypeError as error:
        make = kind[name].make
        # where `make` is a class's `from_settings(**settings)`, which takes any name, that class has the settings
        built = getattr(make, "__self__", make)
        settings_of = [parameter for parameter in signature(built).parameters if parameter != "settings"]
        raise ConfigError(
            f"{kind.kind} {kind[name].name!r}: {_argument_error(kind.kind, str(error), settings_of)}"
        ) from error


def _argument_error(kind: str, message: str, known: Sequence[str]) -> str:
    """Turn Python's error on missing or unknown arguments into a sentence for the command line.

    Args:
        kind: `algorithm` or `defense`.
        message: Python's message.
        known: names of the settings.
    """
    option = "--defense-set" if kind == "defense" else "--set"
    if (missing := re.search(r"missing \d+ required [\w -]*arguments?: (.+)", message)) is not None:
        names = missing[1].replace("'", "")
        return f"it needs {names}; write {' '.join(f'{option} {name}=VALUE' for name in re.split(', | and ', names))}"
    if (unknown := re.search(r"unexpected keyword argument '(\w+)'", message)) is not None:
        near = get_close_matches(unknown[1], known, n=1)
        hint = f"; the nearest one is {near[0]}" if near else ""
        return f"it has no setting {unknown[1]}{hint}. Its settings: {', '.join(known) or 'none'}"
    return message


def federation(run: NamedRun, *, reveal: bool | None = None) -> Federation:
    """Build the federation of a run, for its plan; messages are not kept.

    Args:
        run: the run.
        reveal: accept that clients reveal, outside the defence, the scalars by which some algorithms select clients; by
            default as `Federation` has it.
    """
    return _setup(run, None, None, reveal)[0]


def execute(
    run: NamedRun,
    *,
    checkpoint: Path | None = None,
    seal: Seal | None = None,
    reveal: bool | None = None,
    progress: Progress | None = None,
    unfinished: Callable[[FinishedRun], None] | None = None,
) -> FinishedRun:
    """Execute a run; it resumes from the file `checkpoint` if there is one, encrypted where there is a `seal`.

    Args:
        run: the run.
        checkpoint: file to which the run is saved, and from which it resumes.
        seal: encrypts that file.
        reveal: as for `federation`.
        progress: called after every round.
        unfinished: called with the complete rounds where an error ends the run after them; the error is then raised.
    """
    made, test = _setup(run, checkpoint, seal, reveal)
    start = time.perf_counter()

    def finished(result: Result) -> FinishedRun:
        utility = getattr(made.algorithm, "utility", None)
        score = float(utility(result.output, test)) if utility is not None and test is not None else None
        return FinishedRun(run, result, score, time.perf_counter() - start)

    try:
        return finished(made.run(run.rounds, evaluate_every=run.evaluate_every, progress=progress))
    except SecureFedError as error:
        if unfinished is not None and error.result is not None:
            unfinished(finished(error.result))
        raise


def _setup(
    run: NamedRun, checkpoint: Path | None, seal: Seal | None, reveal: bool | None
) -> tuple[Federation, Dataset | None]:
    algorithm = build(catalogue.algorithms, run.algorithm, run.settings)
    defense = build(catalogue.defenses, run.defense, run.defense_settings)
    source, clients, test = prepare(run)
    public = Public.of(clients, cohort=run.cohort, feature_bound=source.feature_bound)
    made = Federation(
        algorithm,
        clients,
        defense,
        seed=run.seed,
        public=public,
        reveal=reveal,
        options=RunOptions(checkpoint=checkpoint, seal=seal, keep_transcript=False),
    )
    return made, test


def measures(sums: Mapping[str, float]) -> dict[str, float]:
    """Turn sums of the clients' evaluations into readable ratios.

    Args:
        sums: totals over clients by name: `count` (rows) with `loss`, `correct`, ...; or, for PCA, `captured` and
            `total` (variance of the rows, within the subspace and altogether); and `clients`, their number.

    Returns:
        Means per row (`correct` becomes `accuracy`), or the share that is captured; other sums as they are.
    """
    if sums.get("count"):
        names = [name for name in sums if name not in ("count", "clients")]
        return {("accuracy" if name == "correct" else name): sums[name] / sums["count"] for name in names}
    if sums.get("total"):
        return {"captured": sums["captured"] / sums["total"]}
    return {name: value for name, value in sums.items() if name != "clients"}


def line(entry: RoundHistory) -> str:
    """Describe a round in one line, for a progress display."""
    found = ", ".join(f"{name} {value:.4g}" for name, value in measures(entry.metrics).items())
    return f"round {entry.round + 1}, {len(entry.survivors)} clients" + (f", {found}" if found else "")


def summary(ran: FinishedRun) -> list[str]:
    """Summarise a run, one sentence a line."""
    history, result = ran.result.history, ran.result
    out = str(result).splitlines()
    shown = [(entry.round + 1, measures(entry.metrics)) for entry in history if entry.metrics]
    for number, found in shown[-1:]:
        values = ", ".join(f"{name} {value:.6g}" for name, value in found.items())
        out.append(f"clients' evaluation after round {number}: {values}")
    if ran.score is not None:
        out.append(f"score of the result on held-out rows: {ran.score:.4f}")
    out += [f"assumed: {sentence}" for sentence in result.plan.assumptions]
    return out


def _texts(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value if isinstance(value, int | float | str | bool | None) else repr(value)
        for name, value in settings.items()
    }
