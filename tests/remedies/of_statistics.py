"""Remedies of statistics of named columns, and of several in one exchange."""

from __future__ import annotations

from dataclasses import replace

from securefed.parties import SumTerms
from securefed.statistics import ContingencyTable, Mean, Statistic, Together, from_terms
from tests.remedies.followed import Followed, X, arguments, evaluated, found

WARDS = ("icu", "surgery")
UNSEEN = {"ward": ["icu", "maternity"]}


def described(message: str) -> object:
    """Take terms that the method which the message names made."""
    assert found(r"`(Statistic\.terms)`", message) == f"{Statistic.__name__}.{Statistic.terms.__name__}"
    return from_terms(Mean(bound=120.0).terms(clients=3, defense=None))


TABLE: dict[str, Followed] = {
    "a level that was not agreed": Followed(
        "securefed/statistics/_columns.py",
        "; agree on levels that hold these, alike at all parties",
        lambda _: ContingencyTable({"ward": WARDS}, rows=9).summand(UNSEEN),
        lambda message, _: ContingencyTable(
            {"ward": WARDS}, rows=9, **arguments(r"with (outliers='omit')$", message)
        ).summand(UNSEEN),
    ),
    "terms that do not say what is summed": Followed(
        "securefed/statistics/_settings.py",
        "these terms do not say what is summed; take terms that `Statistic.terms` made",
        lambda _: from_terms(SumTerms.like({"w": X}, clients=3, defense=None)),
        lambda message, _: described(message),
    ),
    "terms of a statistic that bind a base": Followed(
        "securefed/statistics/_settings.py",
        "these terms bind a statistic to a base",
        lambda _: from_terms(replace(Mean(bound=120.0).terms(clients=3, defense=None), base=True)),
        lambda message, _: described(message),
    ),
    "something else than a statistic": Followed(
        "securefed/statistics/_together.py",
        "Together needs statistics of one sum, such as ",
        lambda _: Together(3),  # type: ignore[arg-type]
        lambda message, _: Together(evaluated(r"such as (Mean\(bound=120\));", message, Mean=Mean)),
    ),
}
"""By name, the remedies that are followed."""
