"""Work out what an estimate implies, in a fixed order, and score it like every estimate.

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

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Final

import numpy as np

from securefed._auditing.engine.results import Attempt, Secret
from securefed._auditing.engine.seed_result import Place
from securefed._auditing.implied.pooled_people import people_in_moments
from securefed._auditing.implied.truth import Truth
from securefed._messages import ClientId
from securefed._tensors import Array
from securefed.attacks._base import Reconstruction, Target, View
from securefed.attacks._membership import membership_rates
from securefed.attacks._membership.gram_membership import GramMembership
from securefed.attacks.scores import leakage, relative_error
from securefed.errors import DataError

_CANDIDATES: Final = 100
"""Most rows on each side whose membership is scored; the AUC of a run then has a standard error of at most .04."""
_FEWEST: Final = 3
"""Fewest rows on each side: the AUC of fewer is luck."""
_NEGLIGIBLE: Final = 1e-12
"""Error of a guess below which there is nothing left to find out."""


@dataclass(frozen=True)
class Source:
    """An attack's estimate, from which others follow.

    Attributes:
        attack: name of the attack.
        estimate: its estimate.
        null: its estimate from messages that say nothing; `None` where it refused them.
        explained: whether the estimate explains the messages; `None` where the attack cannot tell.
    """

    attack: str
    estimate: Reconstruction
    null: Reconstruction | None
    explained: bool | None = None


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
        attack: name of the attack that computes it; empty for that of the source.
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
    if not baseline > _NEGLIGIBLE:
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
    Implication("counts", "", _counts),
    Implication("membership", GramMembership.name, _membership),
    Implication("people", "", _people),
)
"""What follows from a Gram matrix; rows are turned into one first."""


def implied_attempts(
    place: Place, sources: Sequence[Source], observed: View, target: Target, truth: Truth
) -> list[Attempt]:
    """Compute what follows from the attacks on one view, and score it.

    Of several estimates of Gram matrix or rows the attacker uses the one that explains the messages best.

    Args:
        place: where the attacks looked.
        sources: their estimates.
        observed: the view.
        target: the algorithm and the public facts.
        truth: the rows that scores need.
    """
    members = observed.members
    grams = [found for source in sources if (found := _as_gram(source, members, truth)) is not None]
    out = []
    for source in sorted(grams, key=_doubt)[:1]:
        of = source.estimate.members or members
        for implication in ORDER:
            found = implication.compute(source.estimate.value, of, truth)
            if found is not None:
                out.append(_attempt(place, source, implication, found, _chance(source, implication, found, of, truth)))
    return out


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


def _attempt(place: Place, source: Source, implication: Implication, found: Implied, chance: float) -> Attempt:
    single = {"part": found.part, "part_leakage": found.leakage} if found.part else {}
    values: Mapping[str, object] = {
        **asdict(place),
        "attack": implication.attack or source.attack,
        "secret": implication.secret,
        "leakage": found.leakage,
        "null_leakage": chance,
        "error": found.error,
        "baseline": found.baseline,
        "tpr": found.tpr,
        "explained": source.explained,
        "derived": True,
        **single,
    }
    return Attempt(**values)  # type: ignore[arg-type]
