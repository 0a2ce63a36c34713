"""Score what is read of a client's statistics: column means, rows by class, class means; and of rare classes.

They are secrets of every algorithm whose messages can carry them. Two computations find them: the mean of rows that an
attack estimated, and the sums by class that stand in the first gradient of a linear model (`class_sums`), which no
search is needed for. A client of four patients of one class sends the mean of their columns in its first message,
whatever becomes of the attacks on its rows.

In sums over several clients the same computation shows the classes of the pool: of a class of one person, that
person's row, and of a class of a few their mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from securefed._auditing.engine.column_scores import leaks_by_column
from securefed._auditing.engine.results import Secret
from securefed._auditing.engine.seed_result import NEGLIGIBLE
from securefed._auditing.implied.column_sums import is_centred
from securefed._auditing.implied.pooled_people import ReadPeople, score_people
from securefed._auditing.implied.truth import Truth
from securefed._messages import ClientId
from securefed._tensors import Array
from securefed.attacks._base import Target, View
from securefed.attacks._gradient_inversion.class_sums import ClassSums, class_sums, why_not_readable
from securefed.attacks.scores import leakage, relative_error
from securefed.errors import TranscriptError

Members = frozenset[ClientId]


@dataclass(frozen=True)
class ScoredStatistic:
    """One statistic of a client, beside the guess of it; `columns` are leakages by place of a column."""

    secret: Secret
    leakage: float
    error: float
    baseline: float
    columns: Mapping[int, float] = field(default_factory=dict)


def read_class_sums(observed: View, target: Target, truth: Truth, *, by_class: bool = True) -> ClassSums | None:
    """Read the sums by class off a view; `None` where its messages carry none, or labels are no classes.

    What a gradient leaves open is taken from the class means of all clients together, which the guesses know too.

    Args:
        observed: the view.
        target: the algorithm and the public facts.
        truth: the rows of all clients.
        by_class: whether the attacker knows the mean of each class, or of all rows only.
    """
    if truth.classes is None or why_not_readable(target, observed) is not None:
        return None
    labels = truth.classes[1] if by_class else np.zeros(0, np.int64)
    total = np.zeros(target.public.features) if not by_class and is_centred(truth.pooled).all() else None
    try:
        return class_sums(observed, target, truth.class_means(truth.pooled, labels), total)
    except TranscriptError:
        return None


def score_mean(estimate: Array, truth: Truth) -> ScoredStatistic | None:
    """Score an estimated mean of each column; the guess is the mean over all clients."""
    true, guess = truth.own.mean(axis=0), truth.pooled.mean(axis=0)
    return _score("column means", estimate[None], true[None], guess[None], truth)


def score_class_sums(found: ClassSums, truth: Truth) -> list[ScoredStatistic]:
    """Score the statistics that sums by class tell of the target.

    Numbers of rows are scaled to the target's share of the members' rows, and means are taken as they are.

    Args:
        found: the sums by class.
        truth: the rows that scores need.
    """
    assert truth.classes is not None
    own, pooled = truth.classes
    classes = len(found.counts)
    counts, all_counts = (np.bincount(labels, minlength=classes).astype(float) for labels in (own, pooled))
    guess = all_counts * (len(own) / len(pooled))
    baseline = relative_error(guess, counts)
    out: list[ScoredStatistic | None] = []
    if baseline > NEGLIGIBLE:
        error = relative_error(found.counts * truth.share(found.members), counts)
        out.append(ScoredStatistic("labels", leakage(error, baseline), error, baseline))
    out.append(score_mean(found.mean, truth))
    held, means = np.flatnonzero(counts), truth.class_means(truth.pooled, pooled)
    read = np.divide(found.sums, found.counts[:, None], out=means.copy(), where=found.counts[:, None] > 0)
    if len(held) > 1:  # of one class they are the means of the columns
        true = np.array([truth.own[own == label].mean(axis=0) for label in held])
        out.append(_score("class means", read[held], true, means[held], truth))
    return [one for one in out if one is not None]


def people_in_classes(observed: View, target: Target, truth: Truth) -> ReadPeople | None:
    """Score the people of the rarest classes of several clients together; the best read ones, or `None`.

    What a gradient leaves open is taken from the mean of all rows here: the mean of a rare class would be the secret.
    Of columns that were centred over all clients it leaves nothing open.
    """
    if not observed.rounds:
        return None
    first = replace(observed, rounds=observed.rounds[:1])  # the sum over all clients; some stay away later
    members = first.members
    found = read_class_sums(first, target, truth, by_class=False) if len(members) > 1 else None
    if found is None:
        return None
    rows, best = truth.rows(members), None
    labels = np.concatenate([np.asarray(truth.clients[client].y) for client in sorted(members)])
    for label in range(len(found.counts)):
        weights = (labels == label).astype(float)
        if not 1 <= weights.sum() < truth.few or found.counts[label] < 1:
            continue
        estimate = found.sums[label] / found.counts[label]
        read = score_people(estimate, f"class {label}", weights, (), rows, truth)
        if read is not None and (best is None or read.leakage > best.leakage):
            best = read
    return best


def _score(secret: Secret, estimate: Array, true: Array, guess: Array, truth: Truth) -> ScoredStatistic | None:
    """Score values of all columns, each in units of its standard deviation; `None` where the guess knows them."""
    estimate, true, guess = (values / truth.scale for values in (estimate, true, guess))
    baseline = relative_error(guess, true) if true.any() else 0.0
    if not baseline > NEGLIGIBLE or not np.isfinite(estimate).all():
        return None
    error = relative_error(estimate, true)
    return ScoredStatistic(secret, leakage(error, baseline), error, baseline, leaks_by_column(estimate, true, guess))
