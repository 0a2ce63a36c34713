"""Settings of the attacks on a user's own algorithm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

from securefed._auditing.engine.clear_runs import VIEWS, chosen_views
from securefed._public import require
from securefed._tensors import Array
from securefed.attacks._engine.unknowns import Unknown
from securefed.attacks._generic import FitRows, FitUnknown


class AttackOptions(TypedDict, total=False):
    """The fields of `AttackSettings`, as keyword arguments of `audit_algorithm`; the class says what each means."""

    view: str | Sequence[str]
    population: Array | None
    feature_bound: float | None
    fit: FitRows | None
    seconds: float
    active: bool
    unknown: Unknown


@dataclass(frozen=True, kw_only=True)
class AttackSettings:
    """What the attacks on a user's own algorithm see, know and may take.

    Attributes:
        view: "server" (one client in the clear), "sum only" (what secure aggregation leaves); one of them or both.
        population: rows that the membership attack knows to be like the clients'; the other clients' by default.
        feature_bound: declared range of the data; the largest entry of all clients by default.
        fit: limits of the attack that fits rows to the messages, such as its number of starts.
        seconds: time for all attacks together, without the runs themselves. Attacks that a slow client step keeps from
            ending are skipped by name. A null may take as long as its attack did, even where the seconds are spent by
            then. 900 seconds are far more than a step of milliseconds needs.
        active: also attack an instance with a server that chooses its broadcasts (view `active server`), outside
            `seconds`.
        unknown: what the messages depend on: "rows", or, of an algorithm in NumPy that uses the rows X only through
            them, "gram" (X^T X) or "distances" (between the columns of X, which are signals). The attack then fits that
            matrix, which messages may determine where they do not determine the rows; it checks the claim first, and
            says so where it is wrong.

    Raises:
        ConfigError: a value is none of those allowed, or `fit` is given where no rows are fitted.
    """

    view: str | Sequence[str] = VIEWS
    population: Array | None = None
    feature_bound: float | None = None
    fit: FitRows | None = None
    seconds: float = 900.0
    active: bool = False
    unknown: Unknown = "rows"

    def __post_init__(self) -> None:
        unknown = self.unknown
        require(self.seconds > 0, f"seconds must be positive, not {self.seconds}")
        require(unknown in ("rows", "gram", "distances"), f'unknown is "rows", "gram" or "distances"; got {unknown!r}')
        rows = unknown == "rows" or self.fit is None
        require(rows, f"fit limits the search for rows; leave it out with unknown={unknown!r}")
        chosen_views(self.view)

    @property
    def views(self) -> tuple[str, ...]:
        """The views that are attacked, each once."""
        return chosen_views(self.view)

    @property
    def fitting(self) -> FitRows | FitUnknown:
        """The fitting attack with its limits."""
        return (self.fit or FitRows()) if self.unknown == "rows" else FitUnknown(self.unknown)
