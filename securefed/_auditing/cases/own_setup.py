"""Change an algorithm's audit case to a user's own training: rows a client, owners, rounds, hyper-parameters.

An audit case (`Case`) is the setting in which an algorithm is audited by default. `audit` and `advise` make an
`OwnSetup` of their arguments and apply it to the case of every algorithm. `head` and `head_text` state the sizes of the
run, which stand at the head of an algorithm's table in the report.

The fields of a case that an `OwnSetup` changes are its hyper-parameters (`setting`), `rounds` and `clip`, and these:

    prepare    how rows are split: a function (data set, number of clients, seed) -> each client's rows, held-out rows
    split      the name of that function as the algorithm's class gives it: `standardised=8`, `rows_each=1`, ...
    data       the split in words, for the report
    absences   the split of the runs in which the target stays away in some rounds; `None` for that of the others
    wide       a second, harder run on more columns of the data; `None` for none
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from securefed._auditing.alerts import FEWEST
from securefed._auditing.cases.case import Case
from securefed._auditing.cases.data_splits import by_owner, rows_each, standardised
from securefed._auditing.cases.prepared_data import Preparation, Prepared
from securefed._auditing.cases.utilities import utility
from securefed._hyperparameters import check_integer
from securefed.algorithms._base import Algorithm, algorithms
from securefed.datasets._base import Dataset
from securefed.datasets._loaded_dataset import LoadedDataset
from securefed.datasets._row_tables import standardised as scaled
from securefed.datasets.scaling import z_score
from securefed.errors import ConfigError

Pairs = tuple[tuple[str, Any], ...]
"""(name, value) of hyper-parameters; a tuple, so that settings can be hashed."""


@dataclass(frozen=True)
class OwnSetup:
    """Changes that a user makes to the audit case of every algorithm; by default none.

    Attributes:
        rows: rows of every client; under `owner` the most rows of a client.
        rounds: number of training rounds.
        settings: (name, value) pairs of hyper-parameters, which replace those of the case; `None` goes back to the
            algorithm's own default.
        standardise: whether every column is scaled to mean 0 and standard deviation 1 over the rows of all clients.
        owner: fact of the rows that says whose they are; each client is one owner (`data_splits.by_owner` says which).
        fewest: number of people from which on their mean is no leak about people, and a category, class or party is
            not rare: k of the user's release rule.

    Raises:
        ConfigError: rows or rounds are no integers of at least 1, or `fewest` is none of at least 2.
    """

    rows: int | None = None
    rounds: int | None = None
    settings: Pairs = ()
    standardise: bool = False
    owner: str = ""
    fewest: int = FEWEST

    def __post_init__(self) -> None:
        check_integer("fewest", self.fewest, 2)
        for name, value in (("rows_per_client", self.rows), ("rounds", self.rounds)):
            if value is not None:
                check_integer(name, value, 1)

    def published(self, data: str) -> bool:
        """Return whether cases run as published, on the data of that name; their clips are then the published ones."""
        return data == "digits" and self._nothing

    @property
    def _nothing(self) -> bool:
        """Whether cases run unchanged."""
        return replace(self, fewest=FEWEST) == OwnSetup()

    def apply(self, case: Case) -> Case:
        """Return the case with these changes.

        Raises:
            ConfigError: the algorithm has no such hyper-parameter, or refuses its value.
        """
        if self._nothing:
            return case
        changed = replace(case, rounds=self.rounds or case.rounds)
        if self.settings:
            changed = _with_settings(changed, self.settings)
        if self.rows or self.owner or self.standardise:
            prepare, words = self._split(case)
            # where the user says who holds which rows, that holds for the runs with absences too
            absences = None if self.rows or self.owner else case.absences
            if self.standardise:
                prepare, absences = _scaled(prepare), None if absences is None else _scaled(absences)
                words += ", every column scaled over the rows of all clients"
            changed = replace(changed, prepare=prepare, data=words, absences=absences)
        return replace(changed, wide=None)  # the harder run has a split and rounds of its own

    def _split(self, case: Case) -> tuple[Preparation, str]:
        """Return how rows are split, and the split in words."""
        labelled = case.split.startswith("rows_each")  # the split of methods that train classifiers, which need labels
        if self.owner:
            most = f", at most {self.rows} rows each" if self.rows else ""
            prepare = by_owner(self.owner, self.rows, labelled=labelled)
            return prepare, f"the rows of one {self.owner} for every client{most}"
        if self.rows is None:
            return case.prepare, case.data
        each = "one row" if self.rows == 1 else f"{self.rows} rows"
        if case.split.startswith("standardised"):
            columns = case.split.partition("=")[2]  # the number in `standardised=8`; empty for all columns
            prepare = standardised(int(columns) if columns else None, self.rows)
            return prepare, f"{each} for every client, z-scored by each client"
        return rows_each(self.rows, labelled=labelled), f"{each} for every client; utility on held-out rows"


def _with_settings(case: Case, settings: Pairs) -> Case:
    """Replace hyper-parameters of a case, in its algorithm and in its utility."""
    merged = {name: value for name, value in (dict(case.setting) | dict(settings)).items() if value is not None}
    changed = replace(case, setting=merged)
    try:
        changed.build()
    except TypeError as error:
        named = ", ".join(f"{name}={value}" for name, value in settings)
        raise ConfigError(f"{case.name} does not take these settings ({named}): {error}") from error
    declared = algorithms[case.name].audit_case
    assert declared is not None  # the case came from it
    score, label = utility(declared.utility, changed.build)  # the same utility, of the algorithm as changed
    return replace(changed, utility=score, utility_name=label)


def _scaled(prepare: Preparation) -> Preparation:
    """Return a split whose columns have mean 0 and standard deviation 1 over all clients' rows, without the held-out.

    So do the parties of a federation scale: by the rows that they train on. Means over other rows too would leave sums
    of columns that no attack knows, and which blur what exact centring gives away. The data set is scaled first
    (`_row_tables.standardised`), by which splits choose columns.
    """

    def prepare_scaled(source: LoadedDataset, clients: int, seed: int) -> Prepared:
        made = prepare(scaled(source), clients, seed)
        scale = z_score(Dataset(np.concatenate([part.x for part in made.clients])))
        parts, test = tuple(scale(part) for part in made.clients), scale(made.test)
        bound = max(float(np.abs(part.x).max()) for part in (*parts, test)) or 1.0
        return replace(made, clients=parts, test=test, public=replace(made.public, feature_bound=bound))

    return prepare_scaled


def head(prepared: Prepared, case: Case) -> dict[str, Any]:
    """Say at which sizes an algorithm runs: the head of its table of leakages.

    Returns:
        Clients, rows of the target and of the others, columns of a row, rounds, numbers that a client sends in a round,
        and those of step, local steps, epochs and batch that the algorithm has; a batch of `None` is all rows.
    """
    algorithm: Algorithm[Any, Any] = case.build()
    rows = prepared.public.rows
    others = sorted({int(count) for count in rows[1:]})
    sizes: dict[str, Any] = {
        "clients": len(rows),
        "rows of client 0": int(rows[0]),
        "rows of the others": others[0] if len(others) == 1 else [others[0], others[-1]],
        "columns": prepared.public.features,
        "rounds": case.rounds,
        "numbers a round": algorithm.layout(prepared.public).size,
    }
    for attribute, word in _STEPS.items():
        if hasattr(algorithm, attribute):
            sizes[word] = _plain(getattr(algorithm, attribute))
    return sizes


# By attribute of an algorithm, the word for it in the head.
_STEPS: Mapping[str, str] = {
    "learning_rate": "step",
    "local_steps": "local steps",
    "local_epochs": "local epochs",
    "batch_size": "batch",
}


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, int | float | str | bool) else str(value)


def head_text(sizes: Mapping[str, Any]) -> str:
    """Write what `head` returned in one line; columns and numbers a round stand in `audit.json` alone."""
    values = {name: value for name, value in sizes.items() if name not in ("columns", "numbers a round", "owners")}
    own, others = values.pop("rows of client 0", ""), values.pop("rows of the others", "")
    first = " in the first run" if values.pop("owner", "") else ""
    least, most = others if isinstance(others, list | tuple) else (others, others)
    if least == most == own:
        rows = "1 row each" if own == 1 else f"{own} rows each"
    else:
        rows = f"the attacked client {own} rows{first}, others {least if least == most else f'{least} to {most}'}"
    parts = [f"{values.pop('clients')} clients", rows]
    parts.append(f"{values.pop('rounds')} rounds")
    if "batch" in values and values["batch"] is None:
        values["batch"] = "all rows"
    parts += [f"{word} {value}" for word, value in values.items() if value is not None]
    return ", ".join(parts)


def owner_note(sizes: Mapping[str, Any]) -> str:
    """Say of whom the figures are, where each run attacks another owner of rows; empty elsewhere.

    Args:
        sizes: what `head` returned, where clients are owners with the name of their column under `owner` and their
            number under `owners`.
    """
    owner, own, others = sizes.get("owner", ""), sizes.get("rows of client 0"), sizes.get("rows of the others")
    if not owner or own == others:
        return ""
    how = "drawn at random" if sizes["clients"] < sizes["owners"] else "in turn, the smallest in the first"
    return (
        f"Every run attacks one {owner}, {how}: each figure is a mean over {owner}s of different sizes, and data of "
        "one with fewer rows usually leak more than that mean."
    )


def owners_of(source: LoadedDataset, owner: str) -> int:
    """Count the owners of a data set's rows."""
    return len(np.unique(source.groups[owner]))
