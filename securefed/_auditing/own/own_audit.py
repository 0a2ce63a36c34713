"""Audit a user's own algorithm: an instance that satisfies `Algorithm`, or a bare client function.

No attack code is needed, since every attack only runs the client step: it tries hypothetical rows and compares what
they would have sent with what was sent. Each attack is repeated on messages that say nothing of the secret: that
repetition is its null, and shows what chance gives. The report is the same as that of registered algorithms
(`audit_report.Report`): one cell for each view (what a server sees), secret and attack, over all seeds (runs).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Unpack

import numpy as np

from securefed._auditing.alerts import TableFacts, facts_of_clients
from securefed._auditing.engine.audit_report import Report
from securefed._auditing.engine.clear_runs import audit_in_the_clear
from securefed._auditing.engine.pace import logged
from securefed._auditing.engine.seed_result import SeedResult
from securefed._auditing.engine.seed_tasks import Progress
from securefed._auditing.own.attack_settings import AttackOptions, AttackSettings
from securefed._auditing.own.function_algorithm import Backend, Combine, Contribute, as_algorithm
from securefed._auditing.own.instance_checks import Rehearsal
from securefed._auditing.own.own_seed_run import OwnSeedRun
from securefed._public import Public
from securefed._tensors import Array, Tensors
from securefed.algorithms._base import Algorithm
from securefed.algorithms._validation import missing_methods
from securefed.attacks._generic import TimeBudget
from securefed.datasets._base import Dataset
from securefed.errors import ConfigError, DataError

Clients = Sequence[Dataset | Array] | Callable[[int], Sequence[Dataset | Array]]
"""The clients' rows, or a function of the seed that draws them (better, since seeds then vary the data too)."""


@logged
def audit_algorithm(
    algorithm: Algorithm[Any, Any] | Contribute,
    clients: Clients,
    *,
    rounds: int = 5,
    seeds: int = 10,
    start: Tensors | None = None,
    combine: Combine | None = None,
    backend: Backend = "numpy",
    progress: Progress | None = None,
    **options: Unpack[AttackOptions],
) -> Report:
    """Run an algorithm in the clear, and attack what a server sees, or what it sees of sums alone.

    Args:
        algorithm: an instance that satisfies `Algorithm`; or a function `contribute(rows, broadcast)` that returns
            tensors by name. It gets each client's rows as a (rows, features) array and may also have parameters named
            `labels` and `rng`.
        clients: each client's rows (`Dataset` where there are labels), at least 2 clients; or a function of the seed.
        rounds: the number of rounds of each run. Where a round's message is linear in the rows or their Gram matrix,
            and has fewer columns than the rows have features, an attack needs at least features / columns rounds.
        seeds: number of runs; verdicts to rely on need 10.
        start: for a function: the first broadcast.
        combine: for a function: (broadcast, total, clients) -> the next broadcast; without it every round repeats
            `start`.
        backend: the backend of a function: "torch" if it takes and returns float64 torch tensors (exact derivatives).
        progress: called before the first run and after every one with (runs done, runs in all, name of the run just
            done); without it, progress is logged (INFO).
        **options: fields of `AttackSettings` by name, such as `view`, `population` or `seconds`.

    Returns:
        A report with one cell for each view, secret and attack. Leakage is 1 - error of the attack's estimate / error
        of a guess: of a client's rows the mean row of all clients, of its Gram matrix that of all clients scaled to its
        number of rows. For all clients together, in sums, the guess knows each column's mean and standard deviation.
        Estimated rows are also compared with rows that had no part in the messages. Where they come closer to these
        than the mean row does (say, to half its error), the guess's error is lowered as much, since no message taught
        the attack that.

    Raises:
        ConfigError: arguments contradict each other, or a function cannot be called.
        DataError: clients or messages cannot be run; the message names client and round. Also if names, shapes or the
            order of the tensors differ from the first client's.
    """
    began = time.perf_counter()
    if seeds < 1 or rounds < 1:
        raise ConfigError(f"an audit needs at least one seed and one round, not {seeds} and {rounds}")
    attacks = AttackSettings(**options)
    is_instance = _is_instance(algorithm, start, combine)
    draw: Any = clients if callable(clients) else lambda _, given=list(clients): given
    if attacks.active and not is_instance:
        raise ConfigError("active=True needs an Algorithm: the attacks that choose broadcasts know none for functions")
    function = None if is_instance else (start, combine, backend)
    subject = OwnSubject(algorithm, function, draw, rounds, seeds, attacks, attacks.seconds)
    report = audit_in_the_clear(subject, seeds, attacks.views, progress, word="seeds")
    return replace(report, seconds=time.perf_counter() - began)


@dataclass
class OwnSubject:
    """A user's algorithm under audit; a `clear_runs.ClearSubject`.

    Attributes:
        algorithm: an instance, or a client function.
        function: for a function: its first broadcast, `combine` and backend; `None` for an instance.
        draw: (seed) -> each client's rows.
        rounds: the number of rounds of each run.
        seeds: number of runs.
        options: the options of the attacks.
        seconds_left: time left for all attacks that are still to come.
        clients: number of clients.
        labelled: whether the clients have labels.
        label_counts: whether counts of labels were a secret in some run.
        name: the name of the algorithm; known once a seed has run.
        table: facts of the rows of the first seed.
    """

    algorithm: Any
    function: tuple[Any, Any, Any] | None
    draw: Callable[[int], Iterable[Dataset | Array]]
    rounds: int
    seeds: int
    options: AttackSettings
    seconds_left: float
    clients: int = 0
    labelled: bool = False
    label_counts: bool = False
    name: str = ""
    table: TableFacts = TableFacts(())
    # of an instance: every client's first message, made before the first run, to name failures and to notice an
    # instance that changes itself and could not be replayed
    _rehearsal: Rehearsal | None = None

    def describe(self) -> Mapping[str, Any]:
        """Say what the algorithm ran with; `also attacked` lists the secrets beside the rows."""
        own = fields(self.algorithm) if is_dataclass(self.algorithm) else ()
        also = ["membership", "pooled data"]
        if self.label_counts:
            also.append("counts of labels")
        if self.options.unknown != "rows":
            also.append(self.options.unknown)
        return {
            "hyper-parameters": {field.name: str(getattr(self.algorithm, field.name)) for field in own},
            "data": "the caller's rows",
            "rounds": self.rounds,
            "secret": "data",
            "also attacked": ", ".join(also),
            "clip": "none",
            "utility": "utility",  # head of a column that stays empty: the model's utility is not measured
        }

    @property
    def shared(self) -> Mapping[str, Any]:
        """The number of clients; known once a seed has run."""
        return {"clients": self.clients}

    def left_out(self) -> tuple[str, ...]:
        """List nothing: all that is left out is attacks on single views."""
        return ()

    def audit_seed(self, seed: int) -> SeedResult:
        """Run one seed in the clear and attack its views; each gets an equal part of the seconds that are left."""
        data = _datasets(self.draw(seed))
        self.clients, self.labelled = len(data), self.labelled or data[0].y is not None
        if seed == 0:
            self.table = facts_of_clients(data)
        method: Any = self.algorithm
        if self.function is None:
            if self._rehearsal is None:
                public = Public.of(data, feature_bound=self.options.feature_bound)
                self._rehearsal = Rehearsal(method, data, public)
        else:
            start, combine, backend = self.function
            method = as_algorithm(method, data[0], start, combine, backend)
        run = OwnSeedRun(method, data, self.rounds, seed, self.options)
        self.name, self.label_counts = run.name, self.label_counts or run.has_label_counts
        if self._rehearsal is not None and seed == 0:
            self._rehearsal.repeat()  # after the first run the first client's message must be the same
        for place, view in enumerate(self.options.views):
            # of all pairs of a seed and a view, those that are not done yet, this one included
            parts = (self.seeds - seed) * len(self.options.views) - place
            budget = TimeBudget.of(max(self.seconds_left, 0.0) / parts)
            run.attack(view, budget)
            self.seconds_left -= budget.seconds - budget.remaining  # more than the budget where a null took longer
        for view in self.options.views if self.options.active else ():
            run.attack_actively(view)
        return run.result

    def assumptions(self) -> tuple[str, ...]:
        """List what the attackers are given."""
        given = [
            "the algorithm, its hyper-parameters, every broadcast and each client's number of rows are public",
            "the pooled rows of all clients fill in what the rounds leave open, and are every attack's baseline too",
        ]
        if self.labelled:
            counts = "what messages tell of their counts is a secret of its own"
            unasked = "no attack looks for them"
            text = "labels are known to whoever attacks rows; "
            given.append(text + (counts if self.label_counts else unasked))
        if self.seeds < self.clients:
            given.append(f"{self.seeds} of {self.clients} clients were targets, one a seed")
        return tuple(given)


def _is_instance(algorithm: Any, start: Tensors | None, combine: Combine | None) -> bool:
    """Tell an `Algorithm` from a function. Raises `ConfigError` if it is neither, or lacks its arguments."""
    if isinstance(algorithm, type):
        raise ConfigError(f"{algorithm.__name__} is a class; give an instance")
    if isinstance(algorithm, Algorithm):
        if start is not None or combine is not None:
            raise ConfigError("start and combine belong to a function; an Algorithm has steps of its own")
        return True
    if not callable(algorithm):
        lacks = ", ".join(missing_methods(algorithm))
        raise ConfigError(
            f"{type(algorithm).__name__} is neither a function nor a securefed.Algorithm: it lacks {lacks}"
        )
    if start is None:
        raise ConfigError("a function needs its first broadcast: give it as `start`")
    return False


def _datasets(clients: Iterable[Dataset | Array]) -> list[Dataset]:
    """Check the clients' rows: at least two clients, and labels for all of them or for none.

    Raises:
        ConfigError: too few clients, or labels for some only.
        DataError: some client's rows are no matrix of numbers.
    """
    data = [_dataset(index, item) for index, item in enumerate(clients)]
    if len(data) < 2:
        raise ConfigError(f"an audit needs at least 2 clients, not {len(data)}; the others are the baseline")
    odd = [index for index, item in enumerate(data) if (item.y is None) != (data[0].y is None)]
    if odd:
        raise ConfigError(f"client 0 and client {odd[0]} differ in having labels; give all clients labels, or none")
    return data


def _dataset(index: int, item: Any) -> Dataset:
    """Return one client's rows as a `Dataset`; errors name the client by its `index`."""
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
