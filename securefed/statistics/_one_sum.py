"""The base of all results that follow from one secure sum: its terms, and a run of it in one process.

A single statistic (`Statistic`) and several in one exchange (`Together`) derive from it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Final, Generic, TypeVar

from securefed._tensors import Array
from securefed.defenses._chain import Link, as_defense
from securefed.errors import ConfigError
from securefed.parties._guards import adds_noise
from securefed.parties._result import SumResult
from securefed.parties._server import SumServer
from securefed.parties._simulation import play_round
from securefed.parties._terms import SumTerms
from securefed.parties._terms_parts import SummedTensor
from securefed.statistics._settings import settings_text

Rows = Any
"""One party's rows: an array (rows, features), what `np.asarray` turns into one, or a table with named columns."""
Found = TypeVar("Found")
LEAST_ROWS: Final = 5
"""Fewest rows of a party in a statistic."""
LEAST_PARTIES: Final = 3
"""Fewest parties of a statistic: of two, each learns the other's part."""


class OneSum(ABC, Generic[Found]):
    """A result that follows from one sum over all parties' rows."""

    @abstractmethod
    def summed_tensors(self) -> tuple[SummedTensor, ...]:
        """Return the tensors of the sum as the terms declare them, each in the unit in which it is summed."""

    @abstractmethod
    def summand(self, x: Rows, y: Rows | None = None) -> dict[str, Array]:
        """Compute one party's part of the sum: the update for `SumClient.receive`."""

    @abstractmethod
    def estimate(self, result: SumResult) -> Found:
        """Compute what follows from the result of the sum."""

    @abstractmethod
    def _refusing(self) -> str:
        """Return the name of a statistic by which one row beyond its bounds takes its party out, empty for none."""

    def terms(
        self, *, clients: int, defense: Link | None, cohort: int | None = None, epsilon: float | None = None,
        rounds: int | None = 1, least_rows: int | None = LEAST_ROWS, least_parties: int | None = LEAST_PARTIES,
    ) -> SumTerms:  # fmt: skip
        """Make the terms of the sum, for `securefed.parties`. They hold all settings of the statistic (`from_terms`).

        Args:
            clients: number of parties.
            defense: how the sum is made; `None` in the clear, which has to be written out. With `chain(records(),
                gaussian(z), secure_aggregation())` it is private whether a row is there (to replace a row by another
                moves the sum by up to twice as much), with `chain(clip(norm), ...)` whether a party is, with a norm for
                what `summand` returns. The former needs `outliers="omit"`, and `rows` that are known to be more than
                any party has: a party with more takes no part, which noise does not hide.
            cohort: parties planned for the round; all by default.
            epsilon: privacy budget over all rounds with these terms.
            rounds: rounds at most.
            least_rows: fewest rows of a party, in each statistic and in each column whose rows are counted apart; one
                with fewer sits out. `None` for any. Not used under noise, which hides a row only if no other follows
                from it.
            least_parties: fewest parties of a result: the terms plan for as many, and clients open no sum over fewer.
                `None` for any.

        A party's rows are the same in every sum, so two sums over all parties and over all but one subtract to those
        of that one. With identities each party's ledger refuses such sums, for all statistics of its rows; without
        them have the same parties in each, and let clients answer one round only, or add noise with `epsilon`.

        Raises:
            ConfigError: noise for single rows where `outliers` is "refuse": one row beyond the bounds would take its
                whole party out of the sum, by more than the noise hides.
            ConfigError, PlanError: as `SumTerms`.
        """
        layer = as_defense(defense)
        terms = SumTerms(
            self.summed_tensors(), clients, clients if cohort is None else cohort, layer, largest_weight=1.0,
            weighted=False, base=False, epsilon=epsilon, rounds=rounds,
            least_rows=None if adds_noise(layer) else least_rows, least_parties=least_parties,
            about=settings_text(self),
        )  # fmt: skip
        privacy = terms.plan.privacy
        if privacy is not None and privacy.unit == "record" and (refusing := self._refusing()):
            raise ConfigError(
                "noise for single rows does not hide that one row beyond the declared bounds takes its whole party out "
                f"of the sum; leave such rows out instead: {refusing}(..., outliers='omit')"
            )
        return terms

    def simulate(self, parties: Sequence[Rows], defense: Link | None = None) -> Found:
        """Compute the result where all parties' rows are in this process, whatever their number.

        Args:
            parties: one array or table of rows for each party, or one pair (x, y).
            defense: how the sum is made; in the clear without one.

        Raises:
            DataError, ConfigError, PlanError: as `summand` and `terms`.
            RoundVoid: fewer parties than the defence needs.
        """
        summands = [self.summand(*party) if isinstance(party, tuple) else self.summand(party) for party in parties]
        if not summands:
            raise ConfigError("a statistic needs at least one party's rows")
        terms = self.terms(clients=len(summands), defense=defense, least_rows=None, least_parties=None)
        updates: list[Mapping[str, Any]] = [{"update": summand} for summand in summands]
        return self.estimate(play_round(SumServer(terms), updates))
