"""Work out what an estimate implies, in a fixed order, and score it like every estimate.

    rows                                               ->  the means of their columns
    the first gradient of a linear model               ->  numbers of rows by class, column means, class means, and
                                                           people of classes that few have; labels of people of
                                                           categories that few have
    rows (up to signs)                                 ->  their Gram matrix
    an uncentred Gram matrix with columns of 0 and 1   ->  counts and cross tables of these categories
    a Gram matrix                                      ->  membership: whether a given row was among the rows
    second moments of several clients' rows together   ->  people: the row of one person, or the mean of a few

Nothing is inferred from a verdict: every implication is computed from the attack's own estimate, and once more from
that of its null, and both are scored against the truth. So a Gram matrix that is a little off implies less, and one
that is exposed by word alone implies nothing. Rows do not imply labels. Rows of which only some were read imply nothing
more than the Gram matrix of all of them tells.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import numpy as np

from securefed._auditing.engine.results import Attempt, Secret
from securefed._auditing.engine.runner import Source
from securefed._auditing.engine.seed_result import NEGLIGIBLE, Place
from securefed._auditing.implied.client_statistics import (
    ScoredStatistic,
    people_in_classes,
    read_class_sums,
    score_class_sums,
    score_mean,
)
from securefed._auditing.implied.people_in_gradients import NAME, labels_of_people
from securefed._auditing.implied.pooled_people import people_in_moments
from securefed._auditing.implied.truth import Truth
from securefed._messages import ClientId
from securefed._tensors import Array
from securefed.attacks._base import Reconstruction, Target, View
from securefed.attacks._membership import membership_rates
from securefed.attacks._membership.gram_membership import GramMembership
from securefed.attacks.scores import leakage, relative_error
from securefed.attacks.views import shuffled
from securefed.errors import DataError

OF_ROWS: Final = "rows/means"
"""Name of the computation of column means from rows."""
_LEAST: Final = -1.0
"""Least leakage of a statistic: how much worse than the guess it is says nothing, and would scatter over the runs."""
_CANDIDATES: Final = 100
"""Most rows on each side whose membership is scored; the AUC of a run then has a standard error of at most .04."""
_FEWEST: Final = 3
"""Fewest rows on each side, and fewest columns of a mean that count: what is right of fewer may be luck."""


@dataclass(frozen=True)
class Implied:
    """A scored estimate that follows from another one; the attributes are those of `Attempt`."""

    leakage: float
    chance: float | None = None
    error: float = float("nan")
    baseline: float = float("nan")
    tpr: float = float("nan")
    part: str = ""


Members = frozenset[ClientId]
Compute = Callable[[Array, Members, Truth], Implied | None]
"""From a Gram matrix, the clients whose rows it sums over and the truth to the score of what follows; `None` where the
condition of the implication does not hold."""


@dataclass(frozen=True)
class Implication:
    """One step of the fixed order.

    Attributes:
        secret: name of the secret that follows.
        attack: name of the computation.
        compute: computes and scores it.
    """

    secret: Secret
    attack: str
    compute: Compute


def gram_of_rows(estimate: Reconstruction, rows: int) -> Reconstruction:
    """Return the Gram matrix of estimated rows, to which the signs of whole rows do not matter.

    Args:
        estimate: an estimate of rows; an attack may have read more of them, or copies, beside the members' own.
        rows: the public number of the members' rows.
    """
    value = estimate.value
    return replace(estimate, secret="gram", value=np.asarray(value.T @ value * (rows / max(len(value), 1))))


def _counts(gram: Array, members: Members, truth: Truth) -> Implied | None:
    """Score the counts and cross tables of the categories: the block of columns of 0 and 1, rounded to numbers."""
    pooled, own = truth.pooled, truth.own
    places = np.flatnonzero(((pooled == 0) | (pooled == 1)).all(axis=0) & (np.ptp(pooled, axis=0) > 0))
    if not len(places):
        return None
    block = np.ix_(places, places)
    true = (own.T @ own)[block]
    guess = (pooled.T @ pooled)[block] * (len(own) / len(pooled))
    baseline = relative_error(guess, true) if true.any() else 0.0
    if not baseline > NEGLIGIBLE:
        return None
    estimate = gram[block] * truth.share(members)
    whole = np.round(estimate) if len(own) == len(truth.rows(members)) else estimate
    error = relative_error(whole, true)
    return Implied(leakage(error, baseline), error=error, baseline=baseline)


def _membership(gram: Array, members: Members, truth: Truth) -> Implied | None:
    """Score whether the members' rows are told from rows that took no part."""
    rng = np.random.default_rng([truth.seed, 18])
    known = truth.rows(members), truth.outside
    inside, outside = (rows[rng.permutation(len(rows))[:_CANDIDATES]] for rows in known)
    if min(len(inside), len(outside)) < _FEWEST:
        return None
    attack = GramMembership(gram, sum(truth.public.rows[client] for client in members))
    try:
        scores = attack.score(np.concatenate([inside, outside]))
    except DataError:  # a matrix without positive eigenvalues tells no row
        return Implied(0.0)
    rates = membership_rates(scores[: len(inside)], scores[len(inside) :])
    return Implied(rates.leakage, tpr=rates.tpr)


def _people(gram: Array, members: Members, truth: Truth) -> Implied | None:
    """Score the row of one person, or the mean of a few, in the second moments of several clients together."""
    if len(members) < 2:
        return None
    found = people_in_moments(gram, truth.rows(members), truth)
    if found is None:
        return None
    return Implied(found.leakage, found.chance, found.error, found.baseline, part=found.words)


ORDER: Final[tuple[Implication, ...]] = (
    Implication("counts", "gram/counts", _counts),
    Implication("membership", GramMembership.name, _membership),
    Implication("people", "gram/people", _people),
)
"""Computations on a Gram matrix; an estimate of rows is turned into a Gram matrix first."""


def implied_attempts(
    place: Place, sources: Sequence[Source], observed: View, target: Target, truth: Truth
) -> list[Attempt]:
    """Compute what follows from the attacks on one view, and score it.

    Of several estimates of Gram matrix or rows the attacker uses the one that explains the messages best.

    Args:
        place: where the attacks looked.
        sources: their estimates; where no attack read the view, nothing follows from it.
        observed: the view.
        target: the algorithm and the public facts.
        truth: the rows that scores need.
    """
    if not sources:
        return []
    members = observed.members
    out = [*_of_rows(place, sources, truth), *gradient_attempts(place, observed, target, truth)]
    grams = [found for source in sources if (found := _as_gram(source, members, truth)) is not None]
    for source in sorted(grams, key=_doubt)[:1]:
        of = source.estimate.members or members
        for implication in ORDER:
            follows = implication.compute(source.estimate.value, of, truth)
            if follows is not None:
                chance = _chance(source, implication, follows, of, truth)
                out.append(_attempt(place, implication.attack, implication.secret, follows, chance, source.explained))
    return out


def _of_rows(place: Place, sources: Sequence[Source], truth: Truth) -> Iterator[Attempt]:
    """Score the column means of the rows that explain the messages best."""
    rows = [one for one in sources if one.estimate.secret == "samples" and np.isfinite(one.estimate.value).all()]
    for source in sorted(rows, key=_doubt)[:1]:
        found = score_mean(source.estimate.value.mean(axis=0), truth)
        null = None if source.null is None else score_mean(source.null.value.mean(axis=0), truth)
        if found is not None:
            yield _statistic(place, OF_ROWS, found, null, truth, source.explained)


def gradient_attempts(place: Place, observed: View, target: Target, truth: Truth) -> Iterator[Attempt]:
    """Score what the first gradient of a linear model tells by class; the null reads shuffled rounds.

    Args:
        place: where the attack looks.
        observed: the view.
        target: the algorithm and the public facts.
        truth: the rows that scores need.
    """
    read = read_class_sums(observed, target, truth)
    if read is None:
        return
    mixed = read_class_sums(shuffled(observed, np.random.default_rng([truth.seed, 2])), target, truth)
    scores = [] if mixed is None else score_class_sums(mixed, truth)
    # shuffled rounds may hold the same numbers of rows by class, so that these have no null but the guess
    nulls: dict[Secret, ScoredStatistic] = {one.secret: one for one in scores if one.secret != "labels"}
    for found in score_class_sums(read, truth):
        yield _statistic(place, read.name, found, nulls.get(found.secret), truth, None)
    people = people_in_classes(observed, target, truth)
    if people is not None:
        implied = Implied(people.leakage, people.chance, people.error, people.baseline, part=people.words)
        yield _attempt(place, read.name, "people", implied, people.chance, None)
    if (told := labels_of_people(observed, target, truth)) is not None:
        leak, chance, error, baseline, part = told
        yield _attempt(place, NAME, "people", Implied(leak, chance, error, baseline, part=part), chance, None)


def _statistic(
    place: Place,
    attack: str,
    found: ScoredStatistic,
    null: ScoredStatistic | None,
    truth: Truth,
    explained: bool | None,
) -> Attempt:
    """Make the attempt of a statistic, with a leakage of each column."""
    implied = Implied(max(found.leakage, _LEAST), error=found.error, baseline=found.baseline)
    chance = 0.0 if null is None else max(null.leakage, _LEAST)
    made = _attempt(place, attack, found.secret, implied, chance, explained)
    columns, nulls = found.columns, {} if null is None else null.columns
    return replace(
        made,
        # a mean of several columns that is right to a thousandth of the guess's error is not right by luck
        part=f"the {found.secret}" if len(columns) >= _FEWEST else "",
        part_leakage=found.leakage if len(columns) >= _FEWEST else -math.inf,
        columns={truth.column(one): leak for one, leak in columns.items()},
        null_columns={truth.column(one): leak for one, leak in nulls.items()},
    )


def _as_gram(source: Source, members: Members, truth: Truth) -> Source | None:
    """Return a source of a Gram matrix, or of rows as one; `None` for other secrets and for estimates not finite."""
    estimate = source.estimate
    if estimate.secret not in ("gram", "samples") or not np.isfinite(estimate.value).all():
        return None
    if estimate.secret == "gram":
        return source
    rows = sum(truth.public.rows[client] for client in estimate.members or members)
    null = None if source.null is None else gram_of_rows(source.null, rows)
    return replace(source, estimate=gram_of_rows(estimate, rows), null=null)


def _doubt(source: Source) -> tuple[bool, bool, float]:
    """Order sources: those that explain the messages, then those that cannot tell; by residual."""
    residual = source.estimate.residual
    return source.explained is False, source.explained is None, residual if np.isfinite(residual) else np.inf


def _chance(source: Source, implication: Implication, found: Implied, members: Members, truth: Truth) -> float:
    """Return what the null gives: the implication's own, else the same computation on the source's null, else 0."""
    if found.chance is not None:
        return found.chance
    if source.null is None or not np.isfinite(source.null.value).all():
        return 0.0
    null = implication.compute(source.null.value, members, truth)
    return 0.0 if null is None else null.leakage


def _attempt(
    place: Place, attack: str, secret: Secret, found: Implied, chance: float, explained: bool | None
) -> Attempt:
    """Make the attempt of an implied estimate, at the place of the attack that it follows from."""
    values: dict[str, Any] = {"part": found.part, "part_leakage": found.leakage} if found.part else {}
    return Attempt(
        **asdict(place),
        attack=attack,
        secret=secret,
        leakage=found.leakage,
        null_leakage=chance,
        error=found.error,
        baseline=found.baseline,
        tpr=found.tpr,
        explained=explained,
        derived=True,
        **values,
    )
