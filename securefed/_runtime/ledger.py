"""Count the use of a client's data over all runs: exchanges answered and epsilon spent, within the operator's limits.

    limits = Limits(exchanges=1000, epsilon=8.0)
    ledger = Ledger.create("client.ledger", limits, spent=DataUsage())      # the first time
    ledger = Ledger.open("client.ledger", limits)                           # afterwards
    ledger.charge(run, exchange, cost)                   # before the contribution is computed
    training = ledger.reserve(engine, noise_multiplier=1.0, rate=0.1, steps=10)    # before DP-SGD by opacus ...
    ledger.record(training)                                                        # ... and after it

An exchange is the making of one sum, to which the client contributes once; the client charges it when it accepts the
request for its contribution. It also remembers which sums the data entered, and over which parties, so that no two of
them subtract (`sum_memory`).
There is one ledger for each client and data set. It does not depend on terms: runs with other hyper-parameters, another
defence or another server count in the same ledger. It belongs to the client, so starting run after run does not help a
server.

Guarantees: a charge is on disk before `charge` returns, so a contribution computed afterwards is counted whatever
happens to the process. The same exchange of the same run counts once. A charge beyond a limit is refused. If the file
is lost, the operator has to state what was spent.
Not guaranteed: that the file is the newest, unless it is sealed (`Seal`) with an anchor of its own, a small file
elsewhere that remembers the newest version; anything if there is a second ledger of the same data, such as a copy or a
hard link (a symbolic link leads to the one ledger); a correct count if two processes charge at the same time on a
system without `fcntl` (Windows). A ledger in memory is as recent as the checkpoint that holds it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final
from weakref import WeakKeyDictionary

from securefed._hyperparameters import check_integer
from securefed._persistence import container
from securefed._persistence.file_errors import storage_errors
from securefed._persistence.packing import nest, unnest
from securefed._persistence.sealing import Seal
from securefed._persistence.state_file import locked
from securefed._runtime.ledger_entries import DataUsage, LedgerEntries, Limits, Training, cost_of_training, steps_of
from securefed._runtime.privacy_cost import PrivacyCost
from securefed._runtime.sum_memory import SumMemory, what_absences_give
from securefed.errors import BudgetSpent, ConfigError, DataError, LedgerLost, StorageError

_KIND: Final = "ledger"
_UNLIMITED: Final = Limits()
LEAST_CHANGE: Final = 5
"""Fewest rows that a declared change of the data has."""


class Ledger:
    """Counts the use of a client's data. Made by `create`, `open` or `in_memory`.

    Attributes:
        limits: what its operator allows.
        path: its file; `None` in memory.
    """

    def __init__(self, limits: Limits | None, path: Path | str | None, seal: Seal | None, book: LedgerEntries) -> None:
        self.limits, self.path = limits or _UNLIMITED, None if path is None else Path(path)
        self._stated = limits is not None  # else they are those in the file
        self._seal, self._book, self._sums = seal, book, SumMemory()
        self._counted: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()  # by engine, its steps that are counted

    @classmethod
    def create(cls, path: Path | str, limits: Limits, *, spent: DataUsage, seal: Seal | None = None) -> Ledger:
        """Make the ledger's file: for the first time, or after a loss.

        Args:
            path: where; there must be no file yet.
            limits: what the operator allows.
            spent: earlier use of the data that this file does not count; `DataUsage()` for none. After
                a loss, state at least what the lost ledger may have held.
            seal: encrypts the file.

        Raises:
            StorageError: there is a file already, which is never overwritten, or it cannot be written.
            ConfigError: `spent` leaves nothing of `limits.delta`.
        """
        place = Path(path)
        ledger = cls(limits, place, seal, LedgerEntries(declared=spent))
        ledger._check_delta(ledger._book)
        with storage_errors(f"write {_KIND} {place}", "choose another path"):
            place.parent.mkdir(parents=True, exist_ok=True)
        with ledger._locked():
            if place.exists():
                raise StorageError(f"{place} is there already, and no ledger is overwritten; open it with Ledger.open")
            ledger._write(ledger._book)
        return ledger

    @classmethod
    def open(cls, path: Path | str, limits: Limits | None = None, seal: Seal | None = None) -> Ledger:
        """Go on with the ledger that `create` made.

        Args:
            path: its file.
            limits: what the operator allows from now on; by default what the file says (the newest ones).
            seal: what the file was sealed with.

        Raises:
            LedgerLost: there is no such file.
            StorageError: it cannot be read, was altered, or is sealed otherwise.
            RolledBackError: it is older than the anchor of `seal` remembers.
            ConfigError: what was declared as spent leaves nothing of `limits.delta`.
        """
        ledger = cls(limits, Path(path), seal, LedgerEntries())
        ledger._check_there(Path(path))
        with ledger._locked():
            ledger._book = ledger._read()
        ledger._check_delta(ledger._book)
        return ledger

    @classmethod
    def beside(cls, path: Path | str, seal: Seal | None = None, *, expected: bool) -> Ledger:
        """Open the ledger that a client keeps beside its state where its operator gives none; make it at first use.

        A new one has no limits. It remembers over which parties the data were summed, in all runs.

        Args:
            path: its file.
            seal: encrypts the file.
            expected: whether a state of this client says that there is one.

        Raises:
            LedgerLost: it is expected, and there is none.
            StorageError, RolledBackError: as `open`.
        """
        place = Path(path)
        if not (expected or place.exists()):
            try:
                return cls.create(path, Limits(), spent=DataUsage(), seal=seal)
            except StorageError:
                if not place.exists():  # else another process was first
                    raise
        return cls.open(path, seal=seal)

    @classmethod
    def in_memory(cls, limits: Limits | None = None, book: LedgerEntries | None = None) -> Ledger:
        """Make a ledger without a file, for simulations.

        Args:
            limits: without any, it counts and refuses nothing.
            book: what was counted before, from a checkpoint (`Ledger.book`).
        """
        ledger = cls(limits or _UNLIMITED, None, None, book or LedgerEntries())
        ledger._check_delta(ledger._book)
        return ledger

    @property
    def book(self) -> LedgerEntries:
        """All entries, as of the last charge through this object; for the checkpoint of a simulation."""
        return self._book

    @property
    def spent(self) -> DataUsage:
        """Exchanges answered, and epsilon and delta spent on the unit of the limits.

        Epsilon is infinite after an exchange without noise for that unit.
        """
        return self._book.spent(self.limits.delta, self.limits.unit)

    def charge(self, run: str, exchange: int, cost: PrivacyCost) -> bool:
        """Count one exchange, durably, before anything is computed for it.

        Args:
            run: the run's identifier.
            exchange: its number in that run, from 0.
            cost: what answering it costs (`privacy_cost.cost_of`).

        Returns:
            Whether it is counted now; `False` where this exchange of this run was counted before.

        Raises:
            BudgetSpent: the exchange would exceed a limit; nothing is charged.
            LedgerLost, StorageError, RolledBackError: the file is gone, was altered, or cannot be written; nothing
                may be computed then.
            ContradictionError: this exchange of this run was charged before at another cost.
            ConfigError: a number that no exchange has.
        """
        with self._locked():
            self._book = self._read()
            after = self._book.with_charge(run, exchange, cost)
            if after is self._book:
                return False
            self._afford(after, cost)
            self._write(after)
        return True

    def reserve(self, engine: Any, *, noise_multiplier: float, rate: float, steps: int) -> Training:
        """Count a training by DP-SGD, durably, before it begins; `record` it afterwards.

        Where the process ends between the two, the reservation stays spent. Reserve before each training: steps that
        this engine ran since its last training without a reservation are counted now; those that it ran before its
        first one are not.

        Args:
            engine: the opacus `PrivacyEngine` that runs it.
            noise_multiplier: standard deviation of a step's noise over the clipping norm of a row's gradient.
            rate: probability with which a step draws each row: the loader must draw them so (`poisson_sampling=True`).
            steps: most steps of this training.

        Returns:
            The training, for `record` and `SumClient.receive(..., trained=training)`.

        Raises:
            BudgetSpent: it would exceed a limit; nothing is counted, and nothing may be trained.
            ConfigError: no engine, or a number that no training has.
            LedgerLost, StorageError, RolledBackError: as `charge`.
        """
        before, cost = steps_of(engine), cost_of_training(noise_multiplier, rate, steps)
        with self._locked():
            book = self._read()
            if unreserved := before - Counter(self._counted.get(engine, before)):
                book = book.with_trained(unreserved)
                self._write(book)
            self._counted[engine] = before
            self._book, after = book, book.with_reserved(noise_multiplier, rate, steps)
            self._afford(after, cost, "training")
            self._write(after)
        return Training(book.trainings, engine, before)

    def record(self, training: Training) -> None:
        """Count the steps that a training ran, in place of what was reserved for it.

        Raises:
            BudgetSpent: more steps ran than were reserved, and beyond a limit. They are counted; send nothing of them.
            ConfigError: it was recorded before, or reserved in another ledger.
            LedgerLost, StorageError, RolledBackError: as `charge`; the reservation stays.
        """
        ran = training.ran()
        with self._locked():
            self._book = self._read()
            kept = self._book.reserved.get(training.number)
            self._write(self._book.with_trained(ran, training.number))
            self._counted[training.engine] = steps_of(training.engine)
            if kept is not None and training.beyond(kept):
                self._afford(self._book, cost_of_training(*kept), "training")

    def check_training(self, training: Training | int) -> None:
        """Check, before a model is sent, that this ledger counts the steps that trained it, within its limits.

        Args:
            training: what `reserve` returned; or its `number`, of one that is recorded.

        Raises:
            ConfigError: it was never reserved here, or steps of it are not counted.
            BudgetSpent: the ledger is beyond a limit.
            LedgerLost, StorageError, RolledBackError: as `charge`.
        """
        with self._locked():
            self._book = self._read()
        self._book.check_trained(training)
        self._afford(self._book, cost_of_training(1.0, 1.0, 1), "training")  # any: its unit is asked for

    @property
    def sums(self) -> SumMemory:
        """Memory of the sums that the data entered, as of the last use through this object."""
        return self._sums

    def remember(self, sums: SumMemory) -> None:
        """Put a memory from a frozen client back into a ledger in memory."""
        assert self.path is None
        self._sums = sums

    def change_sums(self, change: Callable[[SumMemory], SumMemory], *, always: bool = False) -> None:
        """Change what is remembered of sums, in one locked write; what `change` raises ends it before the write.

        Args:
            change: returns the new memory, or the same object for no change.
            always: write also where nothing changes, which then takes the same time.

        Raises:
            LedgerLost, StorageError, RolledBackError: as `charge`.
        """
        with self._locked():
            self._book = self._read()
            after = change(self._sums)
            if always or after is not self._sums:
                self._sums = after
                self._write(self._book)

    def change_rows(self, rows: int, *, least: int = LEAST_CHANGE) -> None:
        """Declare that rows of the data set changed: its sums begin a new memory.

        Sums before and after the change subtract to the rows that came or went, so declare changes seldom, of many rows
        together, and never while a sum is being made.

        Args:
            rows: number of rows that came, went or changed since the last declaration; 0 for none, which changes
                nothing.
            least: the fewest rows of a change.

        Raises:
            ConfigError: 1 to `least` - 1 rows, or no whole number.
            LedgerLost, StorageError, RolledBackError: as `charge`.
        """
        check_integer("rows", rows, 0)
        if 0 < rows < least:
            raise ConfigError(
                f"{rows} changed rows would be what two statistics, before and after, subtract to; wait until {least} "
                "or more changed, and use the data of the last declaration until then"
            )
        if rows:
            self.change_sums(lambda sums: sums.of_new_data())

    def allow_absences(self, of_base: int, in_all: int) -> str:
        """Let the client sit out more exchanges, or fewer.

        Args:
            of_base: of one base (one model), in all runs.
            in_all: of the data set.

        Returns:
            What this gives away, in a sentence.

        Raises:
            ConfigError: no whole numbers from 0.
            LedgerLost, StorageError, RolledBackError: as `charge`.
        """
        self.change_sums(lambda sums: sums.with_most_out(of_base, in_all))
        return what_absences_give(in_all)

    def _afford(self, after: LedgerEntries, cost: PrivacyCost, what: str = "exchange") -> None:
        """Raise `BudgetSpent` if the entries with this exchange or training exceed a limit."""
        limits = self.limits
        if limits.exchanges is not None and after.exchanges > limits.exchanges:
            raise BudgetSpent(
                f"this client's ledger allows {limits.exchanges} exchanges in all runs, and they are used up; only its "
                "operator can raise Limits.exchanges"
            )
        if limits.epsilon is None:
            return
        if not cost.protecting(limits.unit):
            hidden = "no noise" if not cost.mechanisms else "noise that hides single records only"
            raise BudgetSpent(
                f"this client's ledger limits epsilon to {limits.epsilon:g} for one {limits.unit}, and the {what} has "
                f"{hidden}, so that its epsilon is infinite; use a defence with noise for that unit, let DP-SGD train "
                "(Ledger.reserve; trained= of SumClient, dp_sgd of SitePolicy, --trained), or set Limits(epsilon=None)"
            )
        epsilon = after.spent(limits.delta, limits.unit).epsilon
        if not epsilon <= limits.epsilon:
            raise BudgetSpent(
                f"with this {what} the ledger would stand at epsilon {epsilon:.4g} for one {limits.unit} at delta "
                f"{limits.delta:g} in all runs, and its limit is {limits.epsilon:g}; only its operator can raise "
                "Limits.epsilon"
            )

    def _check_delta(self, book: LedgerEntries) -> None:
        if book.declared.delta >= self.limits.delta:
            raise ConfigError(
                f"delta {book.declared.delta:g} was declared as spent, which leaves nothing of Limits.delta "
                f"{self.limits.delta:g}; allow more"
            )

    def _read(self) -> LedgerEntries:
        if self.path is None:
            return self._book
        self._check_there(self.path)
        meta, tensors = container.load(self.path, _KIND, self._seal)
        try:
            self._sums = SumMemory.from_tensors(unnest("sums", tensors))
            if not self._stated and "limits" in meta:
                self.limits = Limits(**json.loads(meta["limits"]))
            return LedgerEntries.from_json(json.loads(meta["book"]))
        except (KeyError, TypeError, ValueError, AttributeError, DataError) as error:
            raise StorageError(f"{_KIND} {self.path} lacks a field: {error!r}; restore it from a copy") from error

    def _write(self, book: LedgerEntries) -> None:
        if self.path is not None:
            sums = nest("sums", self._sums.to_tensors())
            facts = {"book": json.dumps(book.to_json()), "limits": json.dumps(asdict(self.limits))}
            container.save(self.path, _KIND, facts, sums, self._seal)
        self._book = book

    @staticmethod
    def _check_there(path: Path) -> None:
        if not path.exists():
            raise LedgerLost(
                f"there is no ledger {path}; restore it from its newest copy, or say what the data were used for: "
                "Ledger.create(path, limits, spent=DataUsage(exchanges=..., epsilon=..., delta=...)), with DataUsage() "
                "if for nothing yet, or `securefed ledger create`. A new ledger knows none of the sums that the data "
                "entered, so that further sums may be subtracted from those"
            )

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the file's lock, so that no other process charges it."""
        with ExitStack() as held:
            if self.path is not None:
                try:
                    held.enter_context(locked(self.path))
                except OSError as error:
                    self._check_there(self.path)
                    raise StorageError(f"cannot lock {_KIND} {self.path}: {error.strerror}") from error
            yield
