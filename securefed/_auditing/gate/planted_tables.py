"""Tables of which it is known what an exposed secret implies, by which `self_check` checks the implications.

Each table has a few clients, one message that opens a Gram matrix, second moments or a first gradient exactly (or with
errors that are stated), and the word that is right for what follows. Beside each leak stands the same table without
it: five people in place of one, centred rows, other rows, noise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from securefed._auditing.engine.gathering import gather
from securefed._auditing.engine.results import Attempt, Cell, Secret
from securefed._auditing.engine.runner import Source
from securefed._auditing.engine.seed_result import Place
from securefed._auditing.engine.statistics import EXPOSED, NOT_DETECTED, PARTIAL
from securefed._auditing.implied.implications import implied_attempts
from securefed._auditing.implied.truth import Truth
from securefed._public import Public
from securefed._runtime.federation import Federation
from securefed._tensors import Array
from securefed.algorithms import DSGD, SSI
from securefed.attacks import views
from securefed.attacks._base import Reconstruction, Target, View
from securefed.datasets._base import Dataset
from securefed.defenses._chain import chain
from securefed.problems import LogisticRegression

_SEEDS: Final = 10
_CLIENTS: Final = 4
UNASKED: Final = "does not follow"
"""Word of an implication whose condition does not hold, so that no cell speaks of it."""


@dataclass(frozen=True)
class PlantedTable:
    """A table and what must be said of it.

    Attributes:
        name: what was planted.
        rows: (seed) -> each client's rows, with labels where the leak is a gradient's.
        secret: the secret that follows, or does not.
        words: the verdicts that are right; `UNASKED` where there must be no cell.
        pooled: whether the view is the sum over all clients; else it is client 0's own messages.
        noise: error of the Gram matrix, relative to its norm.
        gradient: whether the message is the first gradient of logistic regression; else it is a Gram matrix.
        part: words that must name the people who were read; empty where none are named.
    """

    name: str
    rows: Callable[[int], list[Dataset]]
    secret: Secret
    words: tuple[str, ...] = (EXPOSED,)
    pooled: bool = False
    noise: float = 0.0
    gradient: bool = False
    part: str = ""


def check_table(planted: PlantedTable, seeds: int = _SEEDS) -> tuple[bool, str]:
    """Compute what follows from a table's messages; tell whether it is right, and what was said."""
    attempts = [one for seed in range(seeds) for one in _attempts(planted, seed) if one.secret == planted.secret]
    cells = gather(attempts, seeds)
    best = max(cells, key=lambda cell: cell.leakage.mean, default=None)
    if best is None:
        return UNASKED in planted.words, f"{planted.secret} {UNASKED}"
    named = planted.part in best.read.part and (bool(planted.part) or best.secret != "people" or not best.read.part)
    return best.verdict.word in planted.words and named, f"{_words(best)}"


def _words(cell: Cell) -> str:
    part = f" ({cell.read.part})" if cell.read.part else ""
    return f"{cell.secret} {cell.verdict.word}, {cell.leakage.mean:.2f} by {cell.attack}{part}"


def _attempts(planted: PlantedTable, seed: int) -> Sequence[Attempt]:
    """Open the planted message of one seed, and compute what follows."""
    data, outside = planted.rows(seed), planted.rows(seed + 1000)[0].x
    public = Public.of(data)
    truth = Truth(data, 0, outside, public, seed)
    if planted.gradient:
        method = DSGD(problem=LogisticRegression(), learning_rate=0.1)
        run = Federation(method, data, chain(), seed=seed, public=public).run(1)
        observed = (views.sum_only if planted.pooled else views.server)(run.transcript, 0)
        sources = [Source("planted", Reconstruction("personal", np.zeros(1)), None)]
        return implied_attempts(_place(planted, seed), sources, observed, Target(method, public), truth)
    members = frozenset(range(len(data)) if planted.pooled else {0})
    rows, rng = truth.rows(members), np.random.default_rng([seed, 21])
    gram = _off(rows.T @ rows, planted.noise, rng)
    other = np.concatenate([one.x for one in planted.rows(seed + 2000)])[: len(rows)]
    estimate, null = (Reconstruction("gram", value, members=members) for value in (gram, other.T @ other))
    observed = View(views.SERVER_VIEW, 0, (), {})
    target = Target(SSI(rank=1), public)
    return implied_attempts(_place(planted, seed), [Source("planted", estimate, null, True)], observed, target, truth)


def _place(planted: PlantedTable, seed: int) -> Place:
    return Place(planted.name, "plain", views.SERVER_VIEW, seed, 0)


def _off(gram: Array, noise: float, rng: np.random.Generator) -> Array:
    """Add a symmetric error of a relative size to a Gram matrix."""
    error = rng.normal(size=gram.shape)
    error = error + error.T
    return np.asarray(gram + noise * np.linalg.norm(gram) / np.linalg.norm(error) * error)


def _few_rows(seed: int) -> list[Dataset]:
    """Make four clients of four rows and eight columns."""
    return [Dataset(rows) for rows in np.random.default_rng([seed, 22]).uniform(0, 1, (_CLIENTS, 4, 8))]


def _centred(seed: int) -> list[Dataset]:
    """Make the same rows, each client's centred, in seven columns."""
    return [Dataset((one.x - one.x.mean(axis=0))[:, :7]) for one in _few_rows(seed)]


def _many_rows(seed: int) -> list[Dataset]:
    """Make clients of so many rows that none of them shows in a Gram matrix of eight columns."""
    return [Dataset(rows) for rows in np.random.default_rng([seed, 23]).normal(size=(_CLIENTS, 2000, 8))]


def _category(people: int, *, centred: bool = False, omitted: bool = False) -> Callable[[int], list[Dataset]]:
    """Make tables of 4 x 60 patients with eight laboratory values, two common categories, and a third of few people.

    Args:
        people: number of people who have the third category.
        centred: whether every column has been centred and scaled over all patients, as is published.
        omitted: whether the third category has no column.
    """

    def rows(seed: int) -> list[Dataset]:
        rng = np.random.default_rng([seed, 24])
        values, count = rng.normal(size=(60 * _CLIENTS, 8)), 60 * _CLIENTS
        values -= values.mean(axis=0)
        category = rng.integers(0, 2, count)
        category[rng.permutation(count)[:people]] = 2
        table = np.column_stack([values, np.eye(3)[category][:, : 2 if omitted else 3]])
        if centred:
            table = (table - table.mean(axis=0)) / np.where(table.std(axis=0) > 0, table.std(axis=0), 1.0)
        return [Dataset(part) for part in np.split(table, _CLIENTS)]

    return rows


def _percentages(seed: int) -> list[Dataset]:
    """Make tables as they stand, with an omitted category of one person beside percentages that add up to 100."""
    rng = np.random.default_rng([seed, 27])
    made = []
    for one in _category(1, omitted=True)(seed):
        values = 60 + 12 * one.x[:, :6]
        shares = np.round(100 * rng.dirichlet((4, 3, 2), len(values)), 1)
        made.append(Dataset(np.column_stack([values, shares, one.x[:, 8:]])))
    return made


def _dominated(people: int, outcomes: bool = False) -> Callable[[int], list[Dataset]]:
    """Make tables with scaled columns, one of which few people dominate.

    Args:
        people: number of people who hold nearly all of the sum of squares.
        outcomes: whether there is an outcome of every patient.
    """

    def rows(seed: int) -> list[Dataset]:
        rng = np.random.default_rng([seed, 28])
        table = rng.normal(size=(60 * _CLIENTS, 8))
        largest = rng.permutation(len(table))[:people]
        table[largest, 0] = 800.0 + 10.0 * rng.normal(size=people)
        table = (table - table.mean(axis=0)) / table.std(axis=0)
        labels = rng.permutation(np.arange(60) % 2)
        return [Dataset(part, labels if outcomes else None) for part in np.split(table, _CLIENTS)]

    return rows


def _told(what: str) -> Callable[[int], list[Dataset]]:
    """Make centred tables in which one person is told by a quantity, by a copy of a column, or by a total."""

    def rows(seed: int) -> list[Dataset]:
        rng = np.random.default_rng([seed, 29])
        values = rng.normal(size=(60 * _CLIENTS, 8))
        person = (rng.permutation(len(values)) == 0).astype(float)
        last = {"quantity": 2.5 * person, "copy": values[:, 0] + 3 * person, "total": values[:, :2].sum(1) + 3 * person}
        table = np.column_stack([values, last[what]])
        return [Dataset(part) for part in np.split(table - table.mean(axis=0), _CLIENTS)]

    return rows


def _outcomes(people: int) -> Callable[[int], list[Dataset]]:
    """Make the tables of a centred category of few people, with an outcome of every patient."""

    def rows(seed: int) -> list[Dataset]:
        rng = np.random.default_rng([seed, 26])
        return [Dataset(one.x, rng.permutation(len(one.x)) % 2) for one in _category(people, centred=True)(seed)]

    return rows


def _labelled(of_one_class: bool, rare: int = 0) -> Callable[[int], list[Dataset]]:
    """Make clients of four patients with labels; of client 0 all have the rare one where it is `of_one_class`.

    Args:
        of_one_class: whether client 0 has one class only.
        rare: number of people of class 1 in the pool, where not a third of all.
    """

    def rows(seed: int) -> list[Dataset]:
        rng = np.random.default_rng([seed, 25])
        labels = rng.permutation(np.arange(4 * _CLIENTS) < rare) if rare else rng.random(4 * _CLIENTS) < 0.3
        labels = labels.astype(np.int64)
        labels[-2:] = labels[-2:] if rare else (0, 1)
        if of_one_class:
            labels[:4] = 1
        values = rng.normal(size=(4 * _CLIENTS, 8))
        values -= values.mean(axis=0)
        return [Dataset(values[i : i + 4], labels[i : i + 4]) for i in range(0, 4 * _CLIENTS, 4)]

    return rows


PLANTED_TABLES: Final = (
    PlantedTable("four rows behind their Gram matrix", _few_rows, "membership"),
    PlantedTable("four centred rows behind their Gram matrix", _centred, "membership"),
    PlantedTable("four rows behind a Gram matrix 3 % off", _few_rows, "membership", (EXPOSED, PARTIAL), noise=0.03),
    PlantedTable("2000 rows behind their Gram matrix", _many_rows, "membership", (NOT_DETECTED,)),
    PlantedTable("categories in a Gram matrix", _category(30), "counts"),
    PlantedTable("centred categories in a Gram matrix", _category(30, centred=True), "counts", (UNASKED,)),
    PlantedTable("a category of one person", _category(1), "people", pooled=True, part="the row of one person"),
    PlantedTable("a centred category of one person", _category(1, centred=True), "people", pooled=True,
                 part="the row of one person"),
    PlantedTable("an omitted category of one person", _category(1, omitted=True), "people", pooled=True,
                 part="the row of one person"),
    PlantedTable("a category of three people", _category(3), "people", pooled=True, part="the mean of 3 people"),
    PlantedTable("an omitted category of one person beside percentages", _percentages, "people", pooled=True,
                 part="the row of one person"),
    PlantedTable("a person who dominates a column", _dominated(1), "people", pooled=True, part="the row of one person"),
    PlantedTable("a quantity of one person", _told("quantity"), "people", pooled=True, part="the row of one person"),
    PlantedTable("a copy that one person breaks", _told("copy"), "people", pooled=True, part="the row of one person"),
    PlantedTable("a total that one person breaks", _told("total"), "people", pooled=True, part="the row of one person"),
    PlantedTable("several classes in a first gradient", _labelled(False), "class means", (EXPOSED, PARTIAL),
                 gradient=True),
    PlantedTable("two people who dominate a column", _dominated(2), "people", pooled=True, part="the mean of 2 people"),
    PlantedTable("the outcome of the one person who dominates a column", _dominated(1, outcomes=True), "people",
                 pooled=True, gradient=True, part="the label of one person"),
    PlantedTable("a category of five people", _category(5), "people", (UNASKED,), pooled=True),
    PlantedTable("a category of one person under noise", _category(1), "people", (NOT_DETECTED,), pooled=True,
                 noise=1.0),
    PlantedTable("a client of one class in a first gradient", _labelled(True), "column means", gradient=True,
                 part="the column means"),
    PlantedTable("numbers of rows by class in a first gradient", _labelled(False), "labels", gradient=True),
    PlantedTable("column means behind a sum of clients", _labelled(False), "column means", (NOT_DETECTED,), pooled=True,
                 gradient=True),
    PlantedTable("a class of one person in a summed gradient", _labelled(False, 1), "people", pooled=True,
                 gradient=True, part="the row of one person"),
    PlantedTable("the outcome of the one person of a category in a summed gradient", _outcomes(1), "people",
                 pooled=True, gradient=True, part="the label of one person"),
    PlantedTable("outcomes of a category of five people", _outcomes(5), "people", (UNASKED,), pooled=True,
                 gradient=True),
)  # fmt: skip
