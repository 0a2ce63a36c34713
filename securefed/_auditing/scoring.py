"""From a reconstruction to errors: whose secret it is, and against which baseline."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from securefed._auditing.audit_cells import CLIENT, FEDERATION, Secret
from securefed._auditing.cases import Prepared
from securefed._auditing.cases.data import pooled_gram
from securefed._messages import ClientId
from securefed._tensors import Array, Tensors
from securefed.attacks._base import Reconstruction, View
from securefed.attacks.scores import match, relative_error, subspace_baseline


class Known(Protocol):
    """What scoring reads of a run's result."""

    @property
    def output(self) -> Tensors: ...

    @property
    def personal(self) -> Mapping[ClientId, Tensors]: ...


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
    prepared: Prepared, observed: View, found: Reconstruction, result: Known, target: ClientId
) -> list[Assessment]:
    """The client's secret always; the federation's where the view holds everybody's sum.

    A sum of several clients gives a client's Gram matrix as the pooled one scaled by the public rows, and a
    client's samples as those of the recovered set that fit best (whose they are is NOT established).
    """
    members = found.members if found.members is not None else observed.members
    return SCORES[found.secret](prepared, found, members, result, target)


def _gram(
    prepared: Prepared, found: Reconstruction, members: frozenset[ClientId], result: Known, target: ClientId
) -> list[Assessment]:
    value, data, rows = found.value, prepared.clients, prepared.public.rows
    pooled = pooled_gram(data)
    own = data[target].x.T @ data[target].x
    share = rows[target] / sum(rows[i] for i in members)
    guess = pooled * rows[target] / sum(rows)
    out = [_assess(CLIENT, value * share, own, relative_error(guess, own), guess)]
    if len(members) == len(data):
        basis, _ = np.linalg.qr(result.output["basis"])
        base = subspace_baseline(pooled, basis)
        floor = basis @ basis.T * (np.trace(basis.T @ pooled @ basis) / basis.shape[1])
        out.append(_assess(FEDERATION, value, pooled, base, floor))
    return out


def _samples(
    prepared: Prepared, found: Reconstruction, members: frozenset[ClientId], result: Known, target: ClientId
) -> list[Assessment]:
    value, mean = found.value, prepared.test.x.mean(axis=0, keepdims=True)

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


def _personal(
    prepared: Prepared, found: Reconstruction, members: frozenset[ClientId], result: Known, target: ClientId
) -> list[Assessment]:
    """The model that stays with the client. The best guess is the global one, zero where noise made that worse, or what
    the broadcasts alone tell: noise in them moves all clients' models alike."""
    own = result.personal[target]
    truth = np.concatenate([np.ravel(part) for part in own.values()])[None]
    guesses = [np.concatenate([np.ravel(result.output[name]) for name in own])[None], np.zeros_like(truth)]
    if found.guess is not None:
        guesses.append(found.guess.reshape(truth.shape))
    best = min(guesses, key=lambda one: relative_error(one, truth))
    return [_assess(CLIENT, found.value, truth, relative_error(best, truth), best)]


def _distances(
    prepared: Prepared, found: Reconstruction, members: frozenset[ClientId], result: Known, target: ClientId
) -> list[Assessment]:
    """Mean squared distances between columns; of the members' matrices the best fit is the client's (whose is whose is
    NOT established). A client's baseline knows the pooled distances, the federation's the best constant."""
    width = prepared.public.features
    blocks = found.value.reshape(-1, width, width)

    def truth_of(rows: Array) -> Array:
        return np.asarray(((rows[:, :, None] - rows[:, None, :]) ** 2).mean(axis=0))

    own = truth_of(prepared.clients[target].x)
    pooled = truth_of(np.concatenate([data.x for data in prepared.clients]))
    nearest = blocks[int(np.argmin(((blocks - own) ** 2).sum(axis=(1, 2))))]
    out = [_assess(CLIENT, nearest, own, relative_error(pooled, own), pooled)]
    if len(members) == len(prepared.clients):
        rows = np.array([prepared.public.rows[client] for client in sorted(members)], float)
        mean = np.einsum("k,kij->ij", rows / rows.sum(), blocks) if len(blocks) == len(rows) else blocks.mean(axis=0)
        constant = (1.0 - np.eye(width)) * (pooled.sum() / (width * (width - 1)))
        out.append(_assess(FEDERATION, mean, pooled, relative_error(constant, pooled), constant))
    return out


Scorer = Callable[[Prepared, Reconstruction, frozenset[ClientId], Known, ClientId], list[Assessment]]
SCORES: Mapping[str, Scorer] = {"gram": _gram, "samples": _samples, "personal": _personal, "distances": _distances}
"""By the secret's name, as attacks and cases give it."""
