"""Audit of one's own algorithm: an object that satisfies `Algorithm`, or a client function, attacked as it stands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from securefed._auditing.own_class import Rehearsal
from securefed._auditing.own_function import Backend, Combine, Contribute, as_algorithm
from securefed._auditing.own_run import OwnRun
from securefed._auditing.own_tally import GATED, POOLED, SECRETS, OwnCell, Secret, Tally
from securefed._public import Public
from securefed._tensors import Array, Tensors
from securefed.algorithms._base import Algorithm
from securefed.algorithms._validation import missing_methods
from securefed.attacks import views
from securefed.attacks._generic import FitRows, TimeBudget
from securefed.datasets._base import Dataset
from securefed.errors import ConfigError, DataError

__all__ = ["GATED", "SECRETS", "VIEWS", "Clients", "OwnAudit", "OwnCell", "Secret", "audit_algorithm"]
VIEWS = (views.SERVER_VIEW, views.SUM_ONLY)


@dataclass(frozen=True)
class OwnAudit:
    """What the generic attacks found.

    Attributes:
        name: of the algorithm.      cells: every attack that ran.      skipped: what did not, and why.
        seeds, rounds: of each run.      assumptions: what the attackers were given.
        counted: whether clients have labels that are classes, and unlike ones, so that their numbers are a secret.
    """

    name: str
    cells: tuple[OwnCell, ...]
    skipped: tuple[str, ...]
    seeds: int
    rounds: int
    assumptions: tuple[str, ...]
    counted: bool = False

    @property
    def worst(self) -> OwnCell:
        """The gated cell of highest mean leakage. Raises `ConfigError` where no attack ran."""
        gated = [cell for cell in self.cells if cell.secret in GATED]
        if not gated:
            raise ConfigError(f"no attack applied to {self.name}: {'; '.join(self.skipped)}")
        return max(gated, key=lambda cell: cell.leakage.mean)

    def unseen(self, view: str, secret: Secret) -> str | None:
        """Why a leak of that kind would not have been seen; `None` where an attack looked for it and would have.

        Only an attack whose estimate was scored for this very secret has looked for it. An attack that reads rows off
        looks for nothing that does not stand there, and regression sees all there is only where the clients' own draws
        leave nothing to fit. The pooled secrets belong to sums, and the numbers of labels to labels that are classes.
        """
        if (secret == "labels" and not self.counted) or (secret in POOLED and view != views.SUM_ONLY):
            return None
        cells = [c for c in self.cells if c.view == view and c.secret == secret and c.searches]
        if any(cell.sighted for cell in cells):
            return None
        halting = [f"{cell.attack}{cell.remarks}" for cell in cells]
        where = [reason for reason in self.skipped if reason.startswith(view)]
        return (
            f"{view}, {secret}: no attack would have seen a leak: {'; '.join([*halting, *where]) or 'none was tried'}"
        )

    def __str__(self) -> str:
        lines = [f"{self.name}: {self.seeds} seeds of {self.rounds} rounds; 1 = exact, 0 = nothing"]
        lines += [f"  {cell}" for cell in self.cells]
        lines += [f"  skipped: {reason}" for reason in self.skipped]
        return "\n".join([*lines, *(f"  assumed: {assumption}" for assumption in self.assumptions)])


Clients = Sequence[Dataset | Array] | Callable[[int], Sequence[Dataset | Array]]
"""The clients' rows, or a function of the seed that draws them (better: seeds then vary the data too)."""


def audit_algorithm(
    algorithm: Algorithm[Any, Any] | Contribute,
    clients: Clients,
    *,
    rounds: int = 5,
    seeds: int = 10,
    start: Tensors | None = None,
    combine: Combine | None = None,
    backend: Backend = "numpy",
    population: Array | None = None,
    feature_bound: float | None = None,
    view: Sequence[str] = VIEWS,
    fit: FitRows | None = None,
    seconds: float = 900.0,
) -> OwnAudit:
    """Run an algorithm in the clear and attack what a server, or a sum, would show. No code for the attack is needed.

    Args:
        algorithm: an instance that satisfies `Algorithm`; or a function `contribute(rows, broadcast)` that returns
            tensors by name. It gets each client's rows as a (rows, features) array and may also have parameters named
            `labels` and `rng`.
        clients: each client's rows (`Dataset` where there are labels), at least 2 clients; or a function of the seed.
        rounds: of each run; a linear message needs features / width of them.      seeds: runs; 10 to rely on.
        start: for a function: the first broadcast.      combine: for a function: (broadcast, total, clients) -> the
            next broadcast; without it every round repeats `start`.
        backend: of a function: "torch" where it takes and returns float64 torch tensors (exact derivatives).
        population: rows that the membership attack knows to be like the clients'; the other clients' by default.
        feature_bound: declared range of the data; the largest entry of all clients by default.
        view: "server" (one client in the clear), "sum only" (what secure aggregation leaves).
        fit: limits of the fitting attack.
        seconds: for all attacks together (the runs themselves not counted); those that a slow client step keeps from
            ending are skipped by name. 900 seconds are far more than a step of milliseconds needs.

    Returns:
        Cells by view, secret and attack. Samples are compared with the mean row, Gram matrices with the pooled one; of
        sums, all clients' data together (`pooled gram`, `pooled samples`) with each column's mean and spread.

    Raises:
        ConfigError: parameters that clash, a function that cannot be called.
        DataError: clients or messages that cannot be run: which client, which round, and why; names, shapes or an
            order of the tensors that differ from the first client's.
    """
    if seeds < 1 or rounds < 1:
        raise ConfigError(f"an audit needs at least one seed and one round, not {seeds} and {rounds}")
    if not seconds > 0:
        raise ConfigError(f"seconds must be positive, not {seconds}")
    looks = (view,) if isinstance(view, str) else tuple(view)
    unknown = sorted(set(looks) - set(VIEWS))
    if unknown:
        raise ConfigError(f'views are "server" and "sum only", not {unknown[0]!r}')
    is_algorithm = _checked(algorithm, start, combine)
    given = clients if callable(clients) else list(clients)
    tally, labelled, counted, name, left = Tally(), False, False, "", seconds
    rehearsal: Rehearsal | None = None
    for seed in range(seeds):
        data = _datasets(given(seed) if callable(given) else given)
        labelled = labelled or data[0].y is not None
        if is_algorithm:
            method: Any = algorithm
            rehearsal = rehearsal or Rehearsal(method, data, Public.of(data, feature_bound=feature_bound))
        else:
            assert start is not None
            method = as_algorithm(algorithm, data[0], start, combine, backend)  # type: ignore[arg-type]
        name = getattr(method, "name", type(method).__name__)
        run = OwnRun(method, data, rounds, seed, population, feature_bound, fit or FitRows(), tally)
        counted = counted or run.counted
        if rehearsal is not None and seed == 0:
            rehearsal.again()
        for place, what in enumerate(looks):
            budget = TimeBudget.of(left / ((seeds - seed) * len(looks) - place))
            run.look(what, budget)
            left -= budget.seconds - max(budget.remaining, 0.0)
    known = ["the algorithm, its hyper-parameters, every broadcast and each client's number of rows are public"]
    known += ["what the rounds leave open is filled in from the pooled rows, which are every attack's baseline too"]
    if labelled:
        asked = "what messages say of their number is a secret of its own" if counted else "nobody asks for them"
        known.append(f"labels are known to whoever attacks rows; {asked}")
    known += [f"{seeds} of {len(data)} clients were targets, one a seed"] if seeds < len(data) else []
    return OwnAudit(name, tally.cells(seeds), tally.reasons(seeds), seeds, rounds, tuple(known), counted)


def _checked(algorithm: Any, start: Tensors | None, combine: Combine | None) -> bool:
    """Whether it is an `Algorithm`; else a function. Raises `ConfigError` where it is neither."""
    if isinstance(algorithm, type):
        raise ConfigError(f"{algorithm.__name__} is a class; give an instance")
    if isinstance(algorithm, Algorithm):
        if start is not None or combine is not None:
            raise ConfigError("start and combine belong to a function; an Algorithm has steps of its own")
        return True
    if not callable(algorithm):
        lacks = missing_methods(algorithm)
        raise ConfigError(
            f"{type(algorithm).__name__} is neither a function nor a securefed.Algorithm: it lacks {', '.join(lacks)}"
        )
    if start is None:
        raise ConfigError("a function needs its first broadcast as `start`; an Algorithm lacks it here")
    return False


def _datasets(clients: Sequence[Dataset | Array]) -> list[Dataset]:
    data = [_dataset(index, item) for index, item in enumerate(clients)]
    if len(data) < 2:
        raise ConfigError(f"an audit needs at least 2 clients, not {len(data)}; the others are the baseline")
    bare = [index for index, item in enumerate(data) if (item.y is None) != (data[0].y is None)]
    if bare:
        raise ConfigError(f"client 0 and client {bare[0]} differ in having labels; give all clients labels, or none")
    return data


def _dataset(index: int, item: Any) -> Dataset:
    if isinstance(item, Dataset):
        return item
    if isinstance(item, tuple):
        raise ConfigError(f"client {index} is a tuple; give securefed.Dataset(x, y) where there are labels")
    try:
        return Dataset(np.asarray(item))
    except DataError as error:
        raise DataError(f"client {index}: {error}") from error
    except (TypeError, ValueError) as error:
        raise DataError(f"client {index}: its rows are no matrix of numbers: {error}") from error
