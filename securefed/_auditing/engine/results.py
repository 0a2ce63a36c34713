"""Results of single attacks, the same for registered algorithms and for a user's own.

An audit runs an algorithm under a defence (nothing, secure aggregation, noise, ...), once for each seed. An attack then
estimates a secret (rows, their Gram matrix X^T X, counts of labels, ...) from a view: the messages that one kind of
attacker sees. The estimate is scored by

    leakage = 1 - error / baseline,

where `error` is the estimate's relative error, and `baseline` that of the best guess without messages; of rows the
baseline is smaller where the same estimate also fits rows that took no part (`scores.fit_by_chance`). Chance is
measured by the null: the same attack on messages that say nothing about the secret.

An `Attempt` is one attack on one view of one run. `gathering.gather` makes one `Cell` of an attack's attempts over all
seeds, with intervals and a verdict. All cells together are an `audit_report.Report`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal

from securefed._auditing.engine.cell_parts import Figures, Reach, Read, RunCounts
from securefed._auditing.engine.remarks import remarks_on
from securefed._auditing.engine.statistics import (
    RECONSTRUCTED,
    SIGHTED,
    Interval,
    Verdict,
)
from securefed._tensors import Array
from securefed.attacks._generic import ClearRows, LowDigits, RawBits, RegressRows

CLIENT: Final[Literal["client"]] = "client"
FEDERATION: Final[Literal["federation"]] = "federation"
RECORD: Final = "record"
"""Owner of a membership secret: one row, which took part or did not."""
Secret = Literal[
    "client", "federation", "gram", "distances", "samples", "labels", "statistics", "tokens", "categories",
    "membership", "confirmation", "pooled gram", "pooled distances", "pooled samples", "pooled tokens",
    "pooled categories", "people", "counts", "column means", "class means",
]  # fmt: skip
"""Names of secrets. In an audit of registered algorithms they are `client` and `federation`: one client's and all
clients' data, whose kind the algorithm's audit case (the settings in which it is audited) states. The others state the
kind itself, in an audit of a user's own algorithm; `pooled` means the data of all clients together. `confirmation` is
whether a record took part, for an adversary who knows all other rows. `statistics` (of batch normalisation), `tokens`
and `categories` (which of them occur) are secrets of an audit of a torch loop. `people` are the row of one person, or
the mean of a few, in the data of all clients together; `counts` are those of categories of 0 and 1, with their cross
tables."""
POOLED: Final[tuple[Secret, ...]] = ("pooled gram", "pooled distances", "pooled samples")
"""The data of all clients together, which sums may give away where they hide every single client."""
SUMMARIES: Final[tuple[Secret, ...]] = ("labels", "counts", "column means", "class means")
"""A client's statistics: a part of its data, so that they never say that all of its data are exposed."""
PARTS: Final[tuple[Secret, ...]] = (*SUMMARIES, "categories", "pooled categories", "pooled tokens")
"""Secrets that are a part of the data of their owner: exposed, they never say that all of its data are."""
IMPLIED: Final[tuple[Secret, ...]] = ("counts", "column means", "class means", "people")
"""Secrets that are scored where another secret's estimate implies them, and that no attack searches for by itself."""
ON_REQUEST: Final[tuple[Secret, ...]] = ("distances", "pooled distances")
"""Secrets that an own algorithm is asked for by `unknown="distances"`; where it is not, the Gram matrix tells them."""
GATED: Final[tuple[Secret, ...]] = ("gram", "distances", "samples", *SUMMARIES, "membership", "people", *POOLED)
"""Secrets that a gate (a test that fails above a limit on leakage) checks by default. Not `confirmation`: an adversary
who guesses all of a client's data can confirm the guess against any message without noise, so that only differential
privacy passes it."""
SECRETS: Final[tuple[Secret, ...]] = (*GATED, "confirmation")
NOT_COVERED: Final = "not covered"
"""Answer of `RunCosts.promised` where epsilon does not bound a view, for instance as noise is added after it."""
THE_GUESS: Final = "no more than a guess"
"""In place of a verdict where no attack on a view can do better than the guess, and the estimate is the guess."""
_FURTHER: Final = 10
"""How many times further from exact the null of a run must be for that run to count as a reconstruction. Estimates of
rows of few possible values are nearly exact by chance, and do not count."""


def owner(secret: str) -> str:
    """Name whose data a secret is: `client`, `federation` or `record` (one row); `confirmation` has no owner."""
    if secret in (FEDERATION, "people") or secret.startswith("pooled "):
        return FEDERATION
    if secret == "confirmation":
        return secret
    return RECORD if secret == "membership" else CLIENT


@dataclass(frozen=True)
class Attempt:
    """One attack on one view of one run.

    Attributes:
        algorithm: its name.
        defense: name of the defence.
        view: name of the attacker's view.
        seed: the seed of the run.
        target: the client attacked; `None` for all clients together.
        attack: its name.
        secret: what the estimate is of.
        leakage: 1 - error / baseline; of membership 2 AUC - 1 (AUC: area under the ROC curve). 1 is exact, 0 no better
            than the guess, below 0 worse.
        null_leakage: the same for the attack on messages that say nothing about the target.
        error: relative error of the estimate, that of the baseline if `failed`; NaN for membership.
        baseline: relative error of the guess without messages.
        failed: whether the attack returned nothing finite, so that its user is left with the guess.
        residual: ||observed - predicted|| / ||observed|| of the messages that the estimate predicts; NaN where the
            attack does not compute it.
        rank: the rank of the attack's linear system; 0 where it solves none.
        unknowns: the number of unknowns of that system.
        condition: the condition number of that system.
        explained: whether the estimate explains the messages to their precision; `None` where the attack cannot tell.
        null_explained: the same for the null.
        tpr: true positive rate at 1 % false positives of a membership attack; NaN for the others.
        part: the column or row that the estimate knows best, such as "column 3"; empty where none was scored.
        part_leakage: the leakage of that column or row.
        derived: whether the attack sought another secret, from which this estimate was computed.
        open: what the messages cannot determine of the secret (`Reconstruction.open`); empty if nothing is known of it.
        bound: why no attack on this view can do better than the guess, where that is known; the estimate is the guess.
        columns: by name of a column, its own leakage (`column_scores`); empty where columns are not scored.
        null_columns: the same of the null.
    """

    algorithm: str
    defense: str
    view: str
    seed: int
    target: int | None
    attack: str
    secret: Secret
    leakage: float
    null_leakage: float
    error: float = math.nan
    baseline: float = math.nan
    failed: bool = False
    residual: float = math.nan
    rank: int = 0
    unknowns: int = 0
    condition: float = math.nan
    explained: bool | None = None
    null_explained: bool | None = None
    tpr: float = math.nan
    part: str = ""
    part_leakage: float = -math.inf
    derived: bool = False
    open: str = ""
    bound: str = ""
    columns: Mapping[str, float] = field(default_factory=dict)
    null_columns: Mapping[str, float] = field(default_factory=dict)

    @property
    def owner(self) -> str:
        """The owner of the secret, as `owner` names it."""
        return owner(self.secret)

    @property
    def reconstructs(self) -> bool:
        """Whether the data are known to a thousandth of the guess's error, and chance is far from that.

        Always false for secrets of a single row, such as membership, for single people, who are not all of the data,
        and for a client's statistics: one right answer may be luck.
        """
        whole = self.secret not in (*PARTS, "people") and owner(self.secret) in (CLIENT, FEDERATION)
        if not whole or self.leakage < RECONSTRUCTED:
            return False
        return self.null_leakage < RECONSTRUCTED and 1 - self.null_leakage >= _FURTHER * (1 - self.leakage)


@dataclass(frozen=True)
class RunFacts:
    """Costs of one run under one defence, and the utility of its model.

    Attributes:
        algorithm: its name.
        defense: name of the defence.
        seed: the seed of the run.
        utility: the utility of the final model on held-out rows (higher is better); NaN where no utility is known.
        bytes_per_client_round: the bytes of all messages in both directions, for one client in one round.
        seconds_per_round: wall-clock time of the whole federation in one process.
        rounds: number that ran.
        epsilon: the epsilon of differential privacy, for what the server publishes in all rounds together; `None`
            without noise.
        real: whether the defence itself ran. Otherwise a cheaper run stood for it, whose sums are the same.
        identical: for a real run of a defence without noise, whether every sum equals the cheaper run's bit for bit;
            `None` where they were not compared.
        view: the one view that this run was made for; empty for the run that all other views are made of.
    """

    algorithm: str
    defense: str
    seed: int
    utility: float
    bytes_per_client_round: float
    seconds_per_round: float
    rounds: int
    epsilon: float | None = None
    real: bool = True
    identical: bool | None = None
    view: str = ""


@dataclass(frozen=True)
class Artifact:
    """A secret and its estimate, for the pictures of the page.

    Attributes:
        algorithm: its name.
        defense: name of the defence.
        view: name of the view.
        attack: name of the attack.
        secret: as in `Cell`.
        truth: the secret.
        estimate: the estimate, of the same shape.
        image_shape: (height, width) of a row that is an image; `None` otherwise.
    """

    algorithm: str
    defense: str
    view: str
    attack: str
    secret: Secret
    truth: Array
    estimate: Array
    image_shape: tuple[int, int] | None


@dataclass(frozen=True)
class Cell:
    """One attack on one secret in one view, over all seeds.

    What a run costs, its utility and its epsilon stand once for each run, in `AuditResult.costs`.

    Attributes:
        algorithm: its name.
        defense: name of the defence.
        view: what the attacker sees.
        attack: name of the attack.
        secret: what it looks for.
        leakage: mean over seeds with its 95 % interval.
        null_leakage: the same of the null, which is what chance gives.
        verdict: `exposed`, `partial`, `not detected` or `inconclusive`.
        runs: how many runs the cell rests on, and what they showed apart from the mean.
        figures: the figures of the attack's family; `None` where an earlier file states none.
        read: what some run gave away.
        reach: what the attack can and cannot tell.
    """

    algorithm: str
    defense: str
    view: str
    attack: str
    secret: Secret
    leakage: Interval
    null_leakage: Interval
    verdict: Verdict
    runs: RunCounts = RunCounts()
    figures: Figures | None = None
    read: Read = Read()
    reach: Reach = Reach()

    @property
    def owner(self) -> str:
        """The owner of the secret, as `owner` names it."""
        return owner(self.secret)

    @property
    def given_away(self) -> str:
        """Name whose data, or which part of them, some run reconstructed; empty if none."""
        whose = "all clients' data" if self.owner == FEDERATION else f"client {self.read.client}"
        return whose if self.read.whole else self.read.part

    @property
    def sighted(self) -> bool:
        """Whether silence of this attack means anything: it ran on most seeds, and explained their messages."""
        # `not ... <`: an attack that cannot tell (NaN) passes, here and in `remarks`
        return self.leakage.seeds >= SIGHTED * self.runs.asked and not self.runs.explained < SIGHTED

    @property
    def searches(self) -> bool:
        """Whether the attack uses all of the messages for this secret, so that its finding nothing is evidence.

        All attacks do, but for two kinds. Attacks that read rows off find only rows that stand in a message as they
        are. A regression learns quadratic functions of simulated messages, and an attack that solves for the rows may
        see more. It counts only where no attack can solve for them: where the client step adds random draws to its
        messages that change them as much as other rows would, so that any rows fit. The regression then reports the
        messages as explained.
        """
        reads = self.attack in (ClearRows.name, LowDigits.name, RawBits.name)
        return not reads and (self.attack != RegressRows.name or self.runs.explained >= SIGHTED)

    @property
    def said(self) -> str:
        """The verdict in a word; where the estimate is the guess by construction, that it is (`reach.bound`)."""
        return THE_GUESS if self.reach.bound else self.verdict.word

    @property
    def remarks(self) -> str:
        """Remarks on the verdict, in brackets: power, missing seeds, reconstructed clients; empty if there are none."""
        return remarks_on(self)

    def figure(self, name: str) -> float:
        """Return a figure of the attack's family by its name; NaN where the family has none of that name."""
        return float(getattr(self.figures, name, math.nan))

    def __str__(self) -> str:
        mean = f"{self.leakage.mean:5.2f} [{self.leakage.low:.2f}, {self.leakage.high:.2f}]"
        return f"{self.view:14} {self.secret:14} {self.attack:24} {mean:20} {self.said}{self.remarks}"

    def to_json(self) -> dict[str, Any]:
        """Convert to the JSON values of a cell of `audit.json`."""
        seen = (
            math.nan if self.reach.bound else self.verdict.detectable
        )  # an estimate that is the guess notices no leak
        values = asdict(self) | {"verdict": self.verdict.word, "detectable": seen}
        return {key: finite_or_none(value) for key, value in values.items()}


def finite_or_none(value: Any) -> Any:
    """Replace NaN and infinity by `None`, since JSON has neither; also inside dictionaries, lists and tuples."""
    if isinstance(value, dict):
        return {key: finite_or_none(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite_or_none(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
