"""From a reconstruction to errors: whose secret it is, and against which baseline."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from securefed.attacks.base import Observed, Reconstruction
from securefed.attacks.scores import match, relative_error, subspace_baseline
from securefed.auditing.cases import Case, Prepared
from securefed.auditing.cases.pca import pooled_gram
from securefed.auditing.cells import CLIENT, FEDERATION, Secret
from securefed.messages import ClientId
from securefed.tensors import Array, Tensors


@dataclass(frozen=True)
class Assessment:
    """One secret's score.

    Attributes:
        error: of the attack; where it returned nothing finite (`failed`), that of the baseline it falls back on.
        truth, estimate: for pictures.
    """

    secret: Secret
    error: float
    baseline: float
    failed: bool
    truth: Array
    estimate: Array


def assess(
    case: Case, prepared: Prepared, observed: Observed, found: Reconstruction, output: Tensors, target: ClientId
) -> list[Assessment]:
    """The client's secret always; the federation's where the view holds everybody's sum.

    A sum of several clients gives a client's Gram matrix as the pooled one scaled by the public rows, and a
    client's samples as those of the recovered set that fit best (whose they are is NOT established).
    """
    members = found.members if found.members is not None else observed.members
    return SCORES[case.secret](prepared, found.value, members, output, target)


def _gram(
    prepared: Prepared, value: Array, members: frozenset[ClientId], output: Tensors, target: ClientId
) -> list[Assessment]:
    data, rows = prepared.clients, prepared.public.rows
    pooled = pooled_gram(data)
    own = data[target].x.T @ data[target].x
    share = rows[target] / sum(rows[i] for i in members)
    guess = pooled * rows[target] / sum(rows)
    out = [_assess(CLIENT, value * share, own, relative_error(guess, own), guess)]
    if len(members) == len(data):
        basis, _ = np.linalg.qr(output["basis"])
        base = subspace_baseline(pooled, basis)
        floor = basis @ basis.T * (np.trace(basis.T @ pooled @ basis) / basis.shape[1])
        out.append(_assess(FEDERATION, value, pooled, base, floor))
    return out


def _samples(
    prepared: Prepared, value: Array, members: frozenset[ClientId], output: Tensors, target: ClientId
) -> list[Assessment]:
    mean = prepared.test.x.mean(axis=0, keepdims=True)

    def one(secret: Secret, truth: Array) -> Assessment:
        base = relative_error(np.broadcast_to(mean, truth.shape), truth)
        estimate = match(value, truth) if np.isfinite(value).all() else value
        return _assess(secret, estimate, truth, base, np.broadcast_to(mean, truth.shape))

    out = [one(CLIENT, prepared.clients[target].x)]
    if len(members) == len(prepared.clients):
        out.append(one(FEDERATION, np.concatenate([data.x for data in prepared.clients])))
    return out


def _assess(
    secret: Secret,
    estimate: Array,
    truth: Array,
    baseline: float,
    fallback: Array,
) -> Assessment:
    failed = not np.isfinite(estimate).all()
    if failed:
        return Assessment(secret, baseline, baseline, True, truth, np.asarray(fallback))
    return Assessment(secret, relative_error(estimate, truth), baseline, False, truth, estimate)


Scorer = Callable[[Prepared, Array, frozenset[ClientId], Tensors, ClientId], list[Assessment]]
SCORES: Mapping[str, Scorer] = {"gram": _gram, "samples": _samples}
"""By the secret's name, as attacks and cases give it."""
