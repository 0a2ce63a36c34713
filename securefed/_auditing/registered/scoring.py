"""Score estimates of registered attacks: the client's secret and the federation's, each beside its best guess.

In each view the messages are sums over `members`: one client, or all clients of a sum. An estimate is compared with one
client's secret always, and with all clients' secret where every client is a member. The guess (the baseline) is what
the public facts and the pooled data of all clients tell without any message, which is more than a real attacker knows.
A `Judgement` holds the relative Frobenius error of the estimate and that of the guess; leakage is 1 minus their ratio.

There is one scorer for each kind of secret: Gram matrix, rows, personal model, distances. All have the arguments of
`assess`, but for the view, in place of which they get its members.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

import numpy as np

from securefed._auditing.cases import Prepared
from securefed._auditing.engine.column_scores import gram_leaks_by_column, leaks_by_column
from securefed._auditing.engine.results import CLIENT, FEDERATION
from securefed._auditing.engine.seed_result import Judgement, judge_estimate
from securefed._auditing.own.single_row_or_column import occurs_once
from securefed._messages import ClientId
from securefed._tensors import Array, Tensors
from securefed.attacks._base import Reconstruction, View
from securefed.attacks.scores import (
    fit_by_chance,
    match,
    relative_error,
    rows_between,
    rows_not_held,
    subspace_baseline,
)

_MOST_REMATCHED = 200
"""Rows up to which columns are scored, since rows are then matched once more."""
_MOST_SCORED = 2000
"""True rows that are matched with those of an estimate: an assignment of 4,000 to 4,000 takes seconds, and an audit
makes dozens of them."""


class RunOutput(Protocol):
    """The part of a run's result that scoring reads."""

    @property
    def output(self) -> Tensors:
        """The final broadcast."""
        ...

    @property
    def personal(self) -> Mapping[ClientId, Tensors]:
        """By client, the model that stays with it."""
        ...


def assess(
    prepared: Prepared, observed: View | None, estimate: Reconstruction, result: RunOutput, target: ClientId
) -> list[Judgement]:
    """Score an estimate for each secret that the view can tell.

    Args:
        prepared: every client's rows, held-out rows and public facts.
        observed: the view that was attacked; `None` where the estimate names its members.
        estimate: `value` is of the kind that `estimate.secret` names; `members` are the clients whose data it is of,
            by default those of the view.
        result: the result of the run.
        target: the client attacked.

    Returns:
        The score for the target's secret, then, where all clients are members, for the secret of all.

    Raises:
        KeyError: no scorer knows the secret.
    """
    members = estimate.members
    if members is None:
        members = frozenset() if observed is None else observed.members
    return SCORES[estimate.secret](prepared, estimate, members, result, target)


def _gram(
    prepared: Prepared, estimate: Reconstruction, members: frozenset[ClientId], result: RunOutput, target: ClientId
) -> list[Judgement]:
    """Score a Gram matrix X^T X, (features, features), of the members' rows X.

    The estimate of the client's matrix is that of the members' matrix times the client's public share of their rows.
    The guess of it is the pooled matrix times the client's share of all rows. The guess of the pooled matrix is the
    best multiple of the projection on the final components.
    """
    data, rows = prepared.clients, prepared.public.rows
    everyone = np.concatenate([one.x for one in data])
    pooled, own = everyone.T @ everyone, data[target].x.T @ data[target].x
    share = rows[target] / sum(rows[i] for i in members)
    guess = pooled * rows[target] / sum(rows)
    mine = estimate.value * share
    out = [judge_estimate(CLIENT, mine, own, guess, relative_error(guess, own), gram_leaks_by_column)]
    if len(members) == len(data):
        basis, _ = np.linalg.qr(result.output["basis"])
        projection = basis @ basis.T * (np.trace(basis.T @ pooled @ basis) / basis.shape[1])
        baseline = subspace_baseline(pooled, basis)
        out.append(judge_estimate(FEDERATION, estimate.value, pooled, projection, baseline))
    return out


def _samples(
    prepared: Prepared, estimate: Reconstruction, members: frozenset[ClientId], result: RunOutput, target: ClientId
) -> list[Judgement]:
    """Score rows (rows, features), matched to the true ones by the Hungarian method.

    The guess is the mean of held-out rows for every row; or the estimate itself, if it fits held-out rows better than
    their mean does (`fit_by_chance`). Where clients hold all of them, rows between those of the clients take their
    place.

    Of the rows of several members those that fit the client's best count as its own, although the attacker does not
    learn whose they are. Of more than `_MOST_SCORED` true rows a random part is scored, which all rows of the estimate
    may be matched to: a leakage is then overstated rather than understated.
    """
    value, mean = estimate.value, prepared.test.x.mean(axis=0)
    finite = bool(np.isfinite(value).all())
    pooled, own = np.concatenate([data.x for data in prepared.clients]), prepared.clients[target].x
    others = rows_not_held(prepared.test.x, [pooled])
    if not len(others):  # rows given with a recording are all of clients
        others = rows_not_held(rows_between(pooled, len(own), np.random.default_rng(0)), [pooled])
    truths = [(CLIENT, own)]
    if len(members) == len(prepared.clients):
        truths.append((FEDERATION, pooled))  # type: ignore[arg-type]
    out = []
    for secret, whole in truths:
        truth = np.random.default_rng(0).permutation(whole)[:_MOST_SCORED] if len(whole) > _MOST_SCORED else whole
        guess = np.broadcast_to(mean, truth.shape)
        baseline = relative_error(guess, truth)
        if finite:
            baseline *= fit_by_chance(value, others, len(truth), mean)
        matched = match(value, truth) if finite else value
        out.append(judge_estimate(secret, matched, truth, guess, baseline, partial(_row_columns, value, pooled)))
    return out


def _row_columns(value: Array, pooled: Array, matched: Array, truth: Array, guess: Array) -> dict[int, float]:
    """Score the columns of rows that are matched by all of their columns, each in its own unit.

    Only columns count of which each true value occurs once in the pool: one of few values may be right by chance.

    Args:
        value: the estimated rows, before they are matched.
        pooled: the rows of all clients.
        matched: the same as they were matched by squared distance, which the column of the largest entries decides.
        truth: the true rows.
        guess: the guess of them.
    """
    scale = pooled.std(axis=0)
    if len(truth) > _MOST_REMATCHED or len(value) > _MOST_REMATCHED or not (scale > 0).any():
        return {}
    scale = np.where(scale > 0, scale, 1.0)
    unique = np.array([occurs_once(truth[:, j], pooled[:, j]).all() for j in range(truth.shape[1])])
    if not unique.any():
        return {}
    leaks = leaks_by_column(match(value / scale, truth / scale), truth / scale, guess / scale)
    return {place: leak for place, leak in leaks.items() if unique[place]}


def _personal(
    prepared: Prepared, estimate: Reconstruction, members: frozenset[ClientId], result: RunOutput, target: ClientId
) -> list[Judgement]:
    """Score the model that stays with the client, as one vector (1, parameters).

    The guess is the best of three: the global model; zeros, where noise made the global model worse than that; and what
    the attack computes from the broadcasts alone, since noise in these moves all clients' models alike.
    """
    own = result.personal[target]
    truth = np.concatenate([np.ravel(part) for part in own.values()])[None]
    guesses = [np.concatenate([np.ravel(result.output[name]) for name in own])[None], np.zeros_like(truth)]
    if estimate.guess is not None:
        guesses.append(estimate.guess.reshape(truth.shape))
    best = min(guesses, key=lambda one: relative_error(one, truth))
    return [judge_estimate(CLIENT, estimate.value, truth, best, relative_error(best, truth))]


def _distances(
    prepared: Prepared, estimate: Reconstruction, members: frozenset[ClientId], result: RunOutput, target: ClientId
) -> list[Judgement]:
    """Score mean squared distances between columns, D_ij = mean over rows of (x_i - x_j)^2.

    The estimate holds one matrix (features, features) for each member, or one for all. The matrix that fits the
    client's best counts as its own, although the attacker does not learn whose it is. Guesses: of the client's matrix
    the pooled one, of the pooled one the best constant off the diagonal.
    """
    width = prepared.public.features
    blocks = estimate.value.reshape(-1, width, width)

    def distances(rows: Array) -> Array:  # (rows, features) -> (features, features)
        return np.asarray(((rows[:, :, None] - rows[:, None, :]) ** 2).mean(axis=0))

    own = distances(prepared.clients[target].x)
    pooled = distances(np.concatenate([data.x for data in prepared.clients]))
    nearest = blocks[int(np.argmin(((blocks - own) ** 2).sum(axis=(1, 2))))]
    out = [judge_estimate(CLIENT, nearest, own, pooled, relative_error(pooled, own))]
    if len(members) == len(prepared.clients):
        rows = np.array([prepared.public.rows[client] for client in sorted(members)], float)
        # D of all rows is the members' mean, weighted by their rows
        mean = np.einsum("k,kij->ij", rows / rows.sum(), blocks) if len(blocks) == len(rows) else blocks.mean(axis=0)
        constant = (1.0 - np.eye(width)) * (pooled.sum() / (width * (width - 1)))
        out.append(judge_estimate(FEDERATION, mean, pooled, constant, relative_error(constant, pooled)))
    return out


Scorer = Callable[[Prepared, Reconstruction, frozenset[ClientId], RunOutput, ClientId], list[Judgement]]
SCORES: Mapping[str, Scorer] = {"gram": _gram, "samples": _samples, "personal": _personal, "distances": _distances}
"""By the secret's name, as attacks and audit cases give it."""
