"""The Gauss-Newton step of a `Chain`: edges eliminated, vertices and steps solved for, the rest by what they share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from securefed.attacks.distances.chain import Chain, Course
from securefed.tensors import Array

_EMPTY = 1e-13
_TOLD = 1e-12
"""Shares of the largest squared singular value below which a direction counts as not told."""


@dataclass(frozen=True)
class Step:
    """Where to go.

    Attributes:
        changes: (edges,) each, one for each damping.
        told: (hidden edges, directions), orthonormal: what the degrees say of edges that are 0 at every round's end.
        hidden: those edges.
    """

    changes: tuple[Array, ...]
    told: Array
    hidden: Array

    @property
    def rank(self) -> int:
        """Directions of the distances that the messages determine to first order."""
        return int(self.changes[0].size - self.hidden.size + self.told.shape[1])


def newton(chain: Chain, course: Course, dampings: Sequence[float], weights: Array | None = None) -> Step:
    """A hidden edge acts on the messages only through the degrees at its ends while it lasts.

    Args:
        dampings: of the hidden edges, relative to the largest squared singular value; 0 for none.
        weights: (rounds, edges), of the equations.
    """
    edges, vertices, steps = chain.edges, chain.edges.vertices, chain.steps
    ahead, ahead_by, end, end_by = chain.tangents(course)
    apart = course.apart
    if weights is not None:
        apart, end, end_by = apart * weights, end * weights, end_by * weights[:, None]
    size = (end**2).sum(axis=0)
    live = size > 0
    share = end * np.where(live, 1 / np.where(live, size, 1.0), 0.0)
    own = (share * apart).sum(axis=0)
    own_by = np.einsum("re,rte->te", share, end_by)
    # what a distance of its own cannot mend
    rest, rest_by = apart - end * own, end_by - end[:, None] * own_by
    normal = _between(chain, np.einsum("rte,rse->tse", rest_by, rest_by))
    slope = edges.degrees(np.einsum("rte,re->te", rest_by, rest)).ravel()
    # barriers follow the degrees: S dw + (degree^2 / alpha) db = 0
    system = _between(chain, ahead_by - ahead[:, None] * own_by)
    system[np.diag_indices(steps * vertices)] += (course.degrees**2 / chain.method.alpha).ravel()
    hidden = np.flatnonzero(~live)
    heads, tails = edges.ends[0][hidden], edges.ends[1][hidden]
    by_step, column = np.zeros((steps, vertices, len(hidden))), np.arange(len(hidden))
    by_step[:, heads, column] = by_step[:, tails, column] = ahead[:, hidden]
    acts = by_step.reshape(steps * vertices, -1)
    touched = np.flatnonzero(np.abs(acts).sum(axis=1) > 0)
    sides = np.zeros((steps * vertices, 1 + len(touched)))
    sides[:, 0] = edges.degrees(ahead * own).ravel()
    sides[touched, 1 + np.arange(len(touched))] = 1.0
    solved = np.linalg.solve(system, sides)
    barriers, answers = solved[:, 0], solved[:, 1:]

    def change(shift: Array) -> Array:
        moved = barriers + answers @ (acts[touched] @ shift)
        out = own + (own_by * edges.spread(moved.reshape(steps, vertices))).sum(axis=0)
        out[hidden] = shift
        return np.asarray(out)

    if not len(touched):
        return Step((change(np.zeros(len(hidden))),) * len(dampings), np.zeros((len(hidden), 0)), hidden)
    values, vectors = np.linalg.eigh(acts[touched] @ acts[touched].T)
    kept = values > _EMPTY * values[-1]
    lengths = np.sqrt(values[kept])
    basis, factor = acts[touched].T @ vectors[:, kept] / lengths, vectors[:, kept] * lengths
    into = answers @ factor
    told, rotation = np.linalg.eigh(into.T @ normal @ into)
    sure = told > _TOLD * told[-1]
    basis, told = basis @ rotation[:, sure], told[sure]
    target = -rotation[:, sure].T @ (into.T @ (normal @ barriers + slope))
    changes = tuple(change(basis @ (target / (told + damping * told[-1]))) for damping in dampings) if len(told) else ()
    return Step(changes or (change(np.zeros(len(hidden))),) * len(dampings), np.linalg.qr(basis)[0], hidden)


def _between(chain: Chain, values: Array) -> Array:
    """S diag(v) S^T for each pair of steps, as one matrix over (step, vertex)."""
    out, place = chain.edges.adjacency(values), np.arange(chain.edges.vertices)
    out[..., place, place] = chain.edges.degrees(values)
    size = chain.steps * chain.edges.vertices
    return np.asarray(out.transpose(0, 2, 1, 3).reshape(size, size))
