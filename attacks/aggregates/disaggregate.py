"""One client's messages from sums over changing cohorts, for any algorithm: least squares over who was there.

Exact sums subtract. What stands in the way is that a client's message changes from round to round, so it is written as
m_i(k) = B_i phi_k with the same few functions phi of the public broadcast for all clients: a constant, and principal
components of the broadcast over the rounds. For a message that is linear in the broadcast (SSI: S_i Z) this is exact
with all components; elsewhere it is a local linear model. How many components are used is decided by the error to
expect: the leave-one-out residual times what the solution amplifies it by, plus what the sums leave open.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from securefed.attacks.aggregates.incidence import Incidence
from securefed.attacks.base import Observation, Observed
from securefed.errors import TranscriptError
from securefed.messages import ClientId
from securefed.public import require
from securefed.tensors import Array, Tensors

_TAU = 1e-9
_TIGHT = 1e-6
_COMMON = 10.0
"""Prior scale of the common message beside the deviations from it."""


@dataclass(frozen=True)
class Disaggregated:
    """The target's messages, as far as the sums tell.

    Attributes:
        rounds: exchanges with the target, in order; the first ones are left out where that fits the rest better.
        messages: (rounds, entries), entries in the order of the sorted names.
        members: whose messages these are: the target, or those that always came with it.
        components: principal components used.      absences: observed rounds without the target.
        noise: by how much noise of the sums is multiplied if messages stay the same (`Incidence.noise`).
        residual: leave-one-out, relative to the sums.
    """

    rounds: tuple[int, ...]
    messages: Array
    members: frozenset[ClientId]
    components: int
    absences: int
    noise: float
    residual: float


def disaggregate(observed: Observed, *, components: int = 6) -> Disaggregated:
    """Fit all clients' messages jointly to all sums.

    Args:
        components: most principal components of the broadcasts to use.

    Raises:
        TranscriptError: no target; or the target comes and goes with all others, so that no sum differs by it; or
            messages that are not finite.
        ConfigError: a negative number of components.
    """
    require(components >= 0, f"components cannot be negative, not {components}")
    if observed.target is None:
        raise TranscriptError("disaggregation needs one client as its target")
    incidence = Incidence.of(observed)
    if len(incidence.groups) == 1:
        raise TranscriptError("the same clients are in every sum: there is nothing to subtract")
    if not all(np.isfinite(value).all() for o in observed.rounds for value in o.message.values()):
        raise TranscriptError("the view's messages are not finite")
    count = len(observed.rounds)
    tried = [_window(observed.rounds[start:], observed.target, components) for start in (0, count // 4, count // 2)]
    _, found = min((item for item in tried if item is not None), key=lambda item: item[0])
    return replace(found, absences=incidence.absences(observed.target), noise=incidence.noise(observed.target))


def _window(rounds: tuple[Observation, ...], target: ClientId, components: int) -> tuple[float, Disaggregated] | None:
    """The best fit to these rounds and the error to expect of it; `None` where no sum differs by the target.

    Later rounds alone are often better: a run's first steps are larger than all others.
    """
    observed = Observed("", target, rounds, {})
    if target not in observed.members or len({o.members for o in rounds}) < 2:
        return None
    incidence = Incidence.of(observed)
    group = next(group for group in incidence.groups if target in group)
    index = incidence.groups.index(group)
    sums = np.stack([_flat(o.message) for o in rounds])
    noise = np.stack(
        [_flat({name: np.full_like(v, o.noise.get(name, 0.0), float) for name, v in o.message.items()}) for o in rounds]
    )
    columns = np.stack([incidence.present[:, incidence.clients.index(min(g))] for g in incidence.groups], axis=1)
    sizes = np.array([len(g) for g in incidence.groups], float)
    basis = _components(np.stack([_flat(o.broadcast) for o in rounds]), components)
    fits = [_fit(columns, sizes, basis[:, : count + 1], sums, index) for count in range(basis.shape[1])]
    best = int(np.argmin([fit.expected for fit in fits]))
    own = np.flatnonzero(columns[:, index])
    mean = sums[own] * (sizes[index] / (columns @ sizes)[own])[:, None]
    found = Disaggregated(
        tuple(rounds[k].round for k in own),
        _shrunk(fits[best].messages, mean, fits[best].solved ** 2 @ noise**2),
        group,
        best,
        0,
        0.0,
        fits[best].left_out / (float(np.linalg.norm(sums)) or 1.0),
    )
    return fits[best].expected / float(np.linalg.norm(fits[best].messages) or 1.0), found


@dataclass(frozen=True)
class _Fit:
    """One group's messages, what they are of the sums, the leave-one-out residual's norm, and the error to expect."""

    messages: Array
    solved: Array
    left_out: float
    expected: float


def _fit(columns: Array, sizes: Array, basis: Array, sums: Array, index: int) -> _Fit:
    """Least squares over all groups' B, (functions, entries) each.

    What the sums leave open is shared out in proportion to the groups' sizes: the fit is of least deviation from a
    common message per client.
    """
    groups = columns.shape[1]
    common = _COMMON * (columns @ sizes)[:, None] * basis
    own = (columns[:, :, None] * basis[:, None, :]).reshape(len(basis), -1)
    U, s, Vt = np.linalg.svd(np.hstack([common, own]), full_matrices=False)
    kept = s > _TAU * s[0]
    U, s, Vt = U[:, kept], s[kept], Vt[kept]
    there = basis[columns[:, index] > 0]
    unit = np.zeros(groups)
    unit[index] = 1.0
    wanted = np.hstack([_COMMON * sizes[index] * there, np.kron(unit, there)])  # the group's messages, of the unknowns
    solved = (wanted @ Vt.T / s) @ U.T
    free = 1 - np.sum(U**2, axis=1)
    judged = free > _TIGHT  # a round that fixes a parameter of its own says nothing about the fit
    if 2 * np.sum(judged) < len(sums) and basis.shape[1] > 1:
        return _Fit(solved @ sums, solved, float("inf"), float("inf"))
    errors = (sums - U @ (U.T @ sums))[judged] / free[judged, None]
    left_out = float(np.linalg.norm(errors)) * np.sqrt(len(sums) / max(int(np.sum(judged)), 1))
    open_part = float(np.linalg.norm(wanted - (wanted @ Vt.T) @ Vt)) * float(np.linalg.norm((U.T @ sums).T / s))
    return _Fit(solved @ sums, solved, left_out, left_out * float(np.linalg.norm(solved)) + open_part)


def _shrunk(messages: Array, mean: Array, variance: Array) -> Array:
    """Towards the mean client's messages, as far as noise of known variance explains the distance from them: the
    positive part of the rule of James and Stein (1961)."""
    apart, noise = float(np.sum((messages - mean) ** 2)), float(np.sum(variance))
    return messages if not noise else np.asarray(mean + max(0.0, 1 - noise / apart) * (messages - mean))


def _components(broadcasts: Array, most: int) -> Array:
    """A constant, and standardised principal components of the broadcasts over the rounds: (rounds, functions)."""
    centred = broadcasts - broadcasts.mean(axis=0)
    U, s, _ = np.linalg.svd(centred, full_matrices=False)
    count = min(most, int(np.sum(s > _TAU * (s[0] if s.size and s[0] > 0 else 1.0))))
    return np.hstack([np.ones((len(broadcasts), 1)), U[:, :count] * np.sqrt(len(broadcasts))])


def _flat(tensors: Tensors) -> Array:
    parts = [np.asarray(tensors[name], np.float64).reshape(-1) for name in sorted(tensors)]
    return np.concatenate(parts) if parts else np.zeros(0)
