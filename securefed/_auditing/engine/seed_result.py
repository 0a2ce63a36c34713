"""Collect the results of one seed of one algorithm: scored attacks, costs, pictures and gaps.

A seed is one run of the algorithm under each defence of the audit. `SeedResult.record` is the one place where an
attack's estimates become attempts, for registered algorithms and for a user's own: it scores each estimate beside the
null, which is the same attack on messages that say nothing. A gap is something that was to run and did not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import numpy as np

from securefed._auditing.engine.results import Artifact, Attempt, RunFacts, Secret
from securefed._runtime.history import RoundHistory
from securefed._tensors import Array
from securefed.attacks._base import Reconstruction
from securefed.attacks._membership import membership_rates
from securefed.attacks.scores import leakage, relative_error

_GUESS: Final[tuple[float, bool | None, Mapping[int, float]]] = (0.0, None, {})
"""Leakage of the guess without messages, which explains none of them; that of its columns is 0 too."""
DEFAULT_SETTING: Final = "default setting"
"""Legend of the curves on the usual data, beside those on data of full width."""
NEGLIGIBLE: Final = 1e-12
"""Error of a guess below which there is nothing left to find out."""


@dataclass(frozen=True)
class Place:
    """Place of an attack, as in `Attempt`.

    Attributes:
        algorithm: its name.
        defense: name of the defence.
        view: name of the attacker's view.
        seed: the seed of the run.
        target: the client attacked; `None` for all clients together.
    """

    algorithm: str
    defense: str
    view: str
    seed: int
    target: int | None


@dataclass(frozen=True)
class Judgement:
    """One estimate, compared with the secret that it is of.

    Attributes:
        secret: name of the secret.
        error: relative error of the estimate; that of the baseline if `failed`.
        baseline: relative error of the guess without messages; for rows reduced by what any estimate of such rows gets
            right by chance (`scores.fit_by_chance`).
        failed: whether the estimate is not finite, so that its user is left with the guess.
        truth: the secret.
        estimate: the estimate of it, of the same shape; the guess if `failed`.
        part: the column or row that the estimate knows best, such as "column 3"; empty where none was scored.
        part_leakage: the leakage of that column or row.
        columns: by place of a column, its own leakage; empty where columns are not scored.
    """

    secret: Secret
    error: float
    baseline: float
    failed: bool
    truth: Array
    estimate: Array
    part: str = ""
    part_leakage: float = -math.inf
    columns: Mapping[int, float] = field(default_factory=dict)


def judge_estimate(
    secret: Secret,
    estimate: Array,
    truth: Array,
    guess: Array,
    baseline: float,
    by_column: Callable[[Array, Array, Array], Mapping[int, float]] | None = None,
) -> Judgement:
    """Compare an estimate with the truth; the guess replaces an estimate that is not finite.

    Args:
        secret: name of the secret.
        estimate: an estimate of any shape.
        truth: the secret, of the same shape.
        guess: the guess without messages, of the same shape.
        baseline: relative error of the guess.
        by_column: scores each column, from estimate, truth and guess; left out where columns are not scored.
    """
    if not np.isfinite(estimate).all():
        return Judgement(secret, baseline, baseline, True, truth, np.asarray(guess))
    columns = {} if by_column is None else by_column(estimate, truth, guess)
    return Judgement(secret, relative_error(estimate, truth), baseline, False, truth, estimate, columns=columns)


def stated_explained(estimate: Reconstruction) -> bool | None:
    """Return whether an estimate explains its messages, as the attack itself states; `None` where it does not."""
    stated = estimate.diagnostics.get("explained")
    return None if stated is None else bool(stated)


Judge = Callable[[Reconstruction], Sequence[Judgement]]
"""Scores an estimate once for each secret that it is of: one client's data, all clients' data, or both."""


@dataclass(frozen=True)
class Gap:
    """Something that was to run and did not.

    Attributes:
        algorithm: its name.
        defense: name of the defence.
        view: name of the view; empty where the run itself ended.
        attack: name of the attack; empty where the run itself ended.
        seed: the seed of the run.
        reason: the reason, in a sentence.
    """

    algorithm: str
    defense: str
    view: str
    attack: str
    seed: int
    reason: str


@dataclass(frozen=True)
class Trace:
    """One attack on the first rounds of a run in the clear, for several numbers of rounds.

    Attributes:
        setting: what the run was, for the chart's legend.
        algorithm: its name.
        attack: its name.
        rounds: numbers of rounds.
        errors: relative error of the client's secret for each number; NaN where the attack did not apply.
        conditions: condition number of the attack's system for each number of rounds; NaN where it did not apply.
    """

    setting: str
    algorithm: str
    attack: str
    rounds: tuple[int, ...]
    errors: tuple[float, ...]
    conditions: tuple[float, ...]


@dataclass(frozen=True)
class Tradeoff:
    """One run under differential privacy at one epsilon.

    Attributes:
        algorithm: its name.
        epsilon: the epsilon of all rounds together.
        seed: the seed of the run.
        leakage: the leakage of the client's secret, by the strongest attack on what the server publishes; NaN where
            none applies.
        utility: the utility of the final model on held-out rows.
    """

    algorithm: str
    epsilon: float
    seed: int
    leakage: float
    utility: float


@dataclass(frozen=True)
class SeedFloors:
    """Floors of the utility of one algorithm on the data of one seed.

    Attributes:
        algorithm: its name.
        seed: the seed of the run.
        floors: by what reaches it, in words, a score that needs no federation (`cases.utility_floors`).
    """

    algorithm: str
    seed: int
    floors: Mapping[str, float]


@dataclass(frozen=True)
class SmallestAttempt(Attempt):
    """One attack on the smallest client of one run.

    Attributes:
        rows: number of its rows.
    """

    rows: int = 0


@dataclass
class SeedResult:
    """All results of one seed of one algorithm.

    Attributes:
        attempts: scored attacks.
        facts: costs of the runs.
        artifacts: secrets and estimates for pictures.
        skipped: sentences for the report's list of what did not run.
        traces: errors of the attacks on the first rounds.
        tradeoffs: leakage and utility at several epsilons.
        gaps: what was to run and did not, for the gate.
        names: the names of the columns; empty where they have none.
        floors: floors of the utility.
        smallest: attacks on the client with fewest rows, where clients differ in their rows.
    """

    attempts: list[Attempt] = field(default_factory=list)
    facts: list[RunFacts] = field(default_factory=list)
    artifacts: list[Artifact] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    traces: list[Trace] = field(default_factory=list)
    tradeoffs: list[Tradeoff] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    names: tuple[str, ...] = ()
    floors: list[SeedFloors] = field(default_factory=list)
    smallest: list[SmallestAttempt] = field(default_factory=list)

    def leave_out(self, place: Place, attack: str, reason: str) -> None:
        """Note that an attack did not run, and why."""
        self.gaps.append(Gap(place.algorithm, place.defense, place.view, attack, place.seed, reason))

    def record(
        self,
        place: Place,
        attack: str,
        estimates: Sequence[Reconstruction],
        nulls: Sequence[Sequence[Reconstruction] | None],
        judge: Judge,
        explains: Callable[[Reconstruction], bool | None] = stated_explained,
    ) -> list[Judgement]:
        """Score an attack's estimates beside its nulls.

        Args:
            place: where it looked.
            attack: its name.
            estimates: its result; each one after the first is computed from the first, as a Gram matrix from rows.
            nulls: for each kind of meaningless messages its results on them, in the order of `estimates`; `None` where
                it returned nothing, so that its user is left with the guess. Of several nulls the one that leaks most
                counts, secret by secret.
            judge: scores an estimate.
            explains: tells whether an estimate explains its messages; `None` where the attack cannot tell. By default
                what the attack itself says.

        Returns:
            The scores of the estimates, in their order.
        """
        chances = [{} if null is None else _leaks_by_secret(null, judge, explains) for null in nulls]
        judgements = []
        for index, estimate in enumerate(estimates):
            for judged in judge(estimate):
                # of each null, the leakage of the estimate with this number for this secret
                known = (chance.get((index, judged.secret), _GUESS) for chance in chances)
                null_leakage, null_explained, columns = max(known, key=lambda one: one[0], default=_GUESS)
                self.attempts.append(
                    Attempt(
                        **asdict(place),
                        attack=attack,
                        secret=judged.secret,
                        leakage=leakage(judged.error, judged.baseline),
                        null_leakage=null_leakage,
                        error=judged.error,
                        baseline=judged.baseline,
                        failed=judged.failed,
                        residual=estimate.residual,
                        rank=estimate.rank,
                        unknowns=estimate.unknowns,
                        condition=finite_or_nan(estimate.condition),
                        explained=False if judged.failed else explains(estimate),  # what failed has not looked
                        null_explained=null_explained,
                        part=judged.part,
                        part_leakage=judged.part_leakage,
                        derived=index > 0,
                        open="; ".join(estimate.open),
                        bound=str(estimate.diagnostics.get("bound", "")),
                        columns=self._named(judged.columns),
                        null_columns=self._named(columns),
                    )
                )
                judgements.append(judged)
        return judgements

    def _named(self, columns: Mapping[int, float]) -> dict[str, float]:
        """Return leakages of columns by name."""
        return {self.names[place] if self.names else f"column {place}": leak for place, leak in columns.items()}

    def keep_pictures(
        self, place: Place, attack: str, judged: Sequence[Judgement], image_shape: tuple[int, int] | None
    ) -> None:
        """Keep secrets and their estimates, which the page of the report shows beside each other.

        Args:
            place: where the attack looked.
            attack: its name.
            judged: the scores of its estimates.
            image_shape: (height, width) of rows that are images; `None` for others.
        """
        where = place.algorithm, place.defense, place.view, attack
        self.artifacts += [Artifact(*where, item.secret, item.truth, item.estimate, image_shape) for item in judged]

    def record_membership(
        self, place: Place, attack: str, secret: Secret, members: Array, others: Array, rng: np.random.Generator
    ) -> None:
        """Record how well scores separate members from others, beside a null that permutes the scores.

        Args:
            place: where the attack looked.
            attack: its name.
            secret: `membership`, or `confirmation` where the attacker knows all other rows.
            members: scores of records that took part.
            others: scores of records that did not.
            rng: source of the permutation.
        """
        rates, mixed = membership_rates(members, others), rng.permutation(np.concatenate([members, others]))
        null = membership_rates(mixed[: len(members)], mixed[len(members) :])
        self.attempts.append(
            Attempt(
                **asdict(place),
                attack=attack,
                secret=secret,
                leakage=rates.leakage,
                null_leakage=null.leakage,
                tpr=rates.tpr,
            )
        )


def gap_sentences(results: Sequence[SeedResult], runs: int, word: str) -> tuple[str, ...]:
    """Say what did not run in some run, with the first run's reason; the reasons of others differ in figures at most.

    Args:
        results: the results of all runs.
        runs: their number.
        word: what a run is called: `seeds` or `runs`.

    Returns:
        One sentence for each view and attack.
    """
    reasons: dict[str, list[str]] = {}
    for gap in (gap for result in results for gap in result.gaps):
        reasons.setdefault(f"{gap.view}, {gap.attack}", []).append(gap.reason)
    return tuple(
        f"{where}: {group[0]}" + f" ({len(group)} of {runs} {word})" * (len(group) < runs)
        for where, group in reasons.items()
    )


def _leaks_by_secret(
    estimates: Sequence[Reconstruction], judge: Judge, explains: Callable[[Reconstruction], bool | None]
) -> dict[tuple[int, str], tuple[float, bool | None, Mapping[int, float]]]:
    """Map (number of the estimate, secret) to its leakage, whether it explains the messages, and its columns' leaks."""
    return {
        (index, judged.secret): (leakage(judged.error, judged.baseline), explains(estimate), judged.columns)
        for index, estimate in enumerate(estimates)
        for judged in judge(estimate)
    }


def run_costs(history: Sequence[RoundHistory], clients: int) -> dict[str, Any]:
    """Compute the fields of `RunFacts` that a run's history tells: traffic, time and number of rounds.

    Args:
        history: bytes sent to the server (`up`) and by it (`down`), and seconds, round by round; at least one round.
        clients: number of clients.
    """
    rounds = len(history)
    return {
        "bytes_per_client_round": sum(entry.up + entry.down for entry in history) / rounds / clients,
        "seconds_per_round": sum(entry.seconds for entry in history) / rounds,
        "rounds": rounds,
    }


def finite_or_nan(value: float) -> float:
    """Replace infinity by NaN, which JSON and the charts leave out."""
    return value if math.isfinite(value) else math.nan
