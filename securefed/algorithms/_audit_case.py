"""Settings of the audit's run of an algorithm, as plain data; the algorithm's class holds them as `audit_case`.

An audit runs each algorithm under each defence, attacks the transcripts with every attack that applies, and scores how
much of a secret of client 0, the target, the attacks reconstruct. The settings here say what is run and scored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True, kw_only=True)
class AuditCase:
    """The audit's run of one algorithm. Functions are named; `securefed._auditing.cases` holds them.

    Attributes:
        settings: the algorithm's hyper-parameters.
        secret: what the clients want to keep, by its name in `securefed._auditing.registered.scoring.SCORES`: `gram` (a
            client's Gram matrix), `samples` (its rows) or `distances` (between its columns).
        also: further secrets that are attacked and scored.
        split: how rows are split over the clients, by name: `even_shares`, `one_small=ROWS`, `rows_each=ROWS`,
            `standardised` or `standardised=COLUMNS`.
        split_words: the split in words, for the report; by default those of `split`.
        rounds: number of training rounds.
        clip: L2 norm of one contribution under differential privacy.
        utility: score of the result on held-out rows, higher is better: `score` (the algorithm's own method `utility`),
            `accuracy` (the same, of a classifier), `captured_variance`, `mean_share` or `graph_fit`.
        wide_split: split of a second, harder run on data of more columns; empty for none.
        wide_rounds: numbers of rounds after which the attacks are tried in that second run.
        absent_split: split of the run in which the target stays away in some rounds, so that an attack can compare sums
            with and without it; empty for that of the other runs.
        default: whether an audit that names no algorithm includes this one (it must be quick).
        traced: number of seeds on which the attacks also see, for the report's curve over rounds, growing prefixes of
            the run without a defence.
    """

    settings: Mapping[str, Any]
    secret: str
    also: tuple[str, ...] = ()
    split: str = "even_shares"
    split_words: str = ""
    rounds: int = 6
    clip: float = 1.0
    utility: str = "score"
    wide_split: str = ""
    wide_rounds: tuple[int, ...] = ()
    absent_split: str = ""
    default: bool = False
    traced: int = 3


ROWS_CASE = AuditCase(settings={"problem": "softmax"}, secret="samples", split="rows_each=1", utility="accuracy")
"""Base of the gradient methods' cases: every client has one row."""

PERSONAL_CASE = replace(
    ROWS_CASE,
    also=("personal",),
    split_words="one row for every client; utility of the global model on held-out rows",
)
"""Base of the cases of methods with a personal model, which attacks try to reconstruct too."""

GRAM_CASE = AuditCase(
    settings={"rank": 5}, secret="gram", split="one_small=8", absent_split="even_shares", rounds=10, clip=300.0,
    utility="captured_variance",
)  # fmt: skip
"""Base of the PCA methods' cases: the target, client 0, has 8 rows, and the others share the rest evenly."""
