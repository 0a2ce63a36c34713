"""Estimate one client's messages from sums over changing cohorts, for any algorithm, by least squares.

Users call `disaggregate` on a view of sums (`attacks.views`), to see what changing participation gives away. Sums of
cohorts that differ by one client can be subtracted, but messages change from round to round. So client i's message in
round k is modelled as m_i(k) = B_i phi_k, with the same few functions phi of the public broadcast for all clients: a
constant, and principal components of the broadcasts over the rounds. This is exact, with all components, for messages
that are linear in the broadcast (in the subspace iteration SSI, S_i Z), and a local linear model otherwise.
The server knows which clients are in each sum; with P_ki = 1 if client i is in that of round k, else 0,

    sum_k = sum_i P_ki B_i phi_k,

which is linear in the unknown B_i and solved by least squares. Clients that are always in the same sums form a group
and share one B: no sums separate them. The number of components minimises the expected error: the leave-one-out
residual times the amplification by the solution, plus the part that the sums do not determine.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from securefed._messages import ClientId
from securefed._public import require
from securefed._tensors import Array, Tensors
from securefed.attacks._aggregates.participation import ParticipationMatrix
from securefed.attacks._base import RoundView, View
from securefed.errors import TranscriptError

_RANK_TOLERANCE = 1e-9
"""Relative singular value below which a direction counts as not determined."""
_FREE_TOLERANCE = 1e-6
"""A round whose leverage is within this of 1 alone determines one parameter and cannot be left out."""
_COMMON = 10.0
"""Scale of the message that all clients share, relative to each client's deviation from it: least squares of minimum
norm gives to deviations only what the common message does not explain."""


@dataclass(frozen=True)
class Disaggregation:
    """Estimate of the target's messages.

    Attributes:
        rounds: numbers of the rounds that hold the target, in order. The first quarter or half of the observed rounds
            is left out where that improves the fit of the rest.
        messages: (rounds, entries) estimates: line k is the message of round `rounds[k]`. A line holds the tensors of
            the message one after the other, in the order of their sorted names, each flattened in C order.
        members: the target and the clients that are always in the same rounds; `messages` is their sum.
        components: number of principal components used.
        absences: number of observed rounds, of the whole view, whose sum does not hold the target; without any, it
            shows in no difference of sums.
        noise: factor by which the standard deviation of independent noise of the sums is multiplied in the target's
            message, if messages do not change over the rounds (`ParticipationMatrix.noise`); infinite where no
            combination of sums is the target's alone. Of the whole view, and no estimate of the noise itself.
        residual: leave-one-out residual, relative to the sums.
    """

    rounds: tuple[int, ...]
    messages: Array
    members: frozenset[ClientId]
    components: int
    absences: int
    noise: float
    residual: float


def disaggregate(observed: View, *, components: int = 6) -> Disaggregation:
    """Fit all clients' messages jointly to all sums, and return the target's.

        found = disaggregate(views.sum_only(result.transcript, target=0))
        last = found.messages[-1]  # of round found.rounds[-1]
        product = last[1:].reshape(features, rank)  # SSI sends `captured`, one number, and `product`

    Args:
        observed: a view of sums, with one client as its target.
        components: largest number of principal components of the broadcasts.

    Returns:
        The estimate. `messages` (rounds, entries) holds a line for each round of `rounds`, the rounds that hold the
        target: the tensors of its message, sorted by name, each flattened in C order. `members` are the clients whose
        sum it is: the target, and those that no sum separates from it. `absences` counts the observed rounds without
        the target. `noise` is the factor by which noise of the sums is amplified. `residual` is the leave-one-out
        residual, relative to the sums, and `components` the number of principal components used.

    Raises:
        TranscriptError: the view has no target, no sum holds it, all sums have the same members, or a message is not
            finite.
        ConfigError: `components` is negative.
    """
    require(components >= 0, f"components must be 0 or more; got {components}")
    if observed.target is None:
        raise TranscriptError("disaggregation needs a view with one client as its target")
    participation = ParticipationMatrix.of(observed)
    absences, noise = participation.absences(observed.target), participation.noise(observed.target)
    if len(participation.groups) == 1:
        raise TranscriptError("the same clients are in every sum, so that there is nothing to subtract")
    if not all(np.isfinite(value).all() for o in observed.rounds for value in o.message.values()):
        raise TranscriptError("the view holds messages with NaN or infinity")
    group = next(group for group in participation.groups if observed.target in group)
    count = len(observed.rounds)
    tried = [_window(observed.rounds[start:], group, components) for start in (0, count // 4, count // 2)]
    _, found = min((item for item in tried if item is not None), key=lambda item: item[0])
    return replace(found, absences=absences, noise=noise)


def separated(observed: View) -> View:
    """Estimate the target's own messages from sums over changing cohorts, as a view that other attacks can read.

    Args:
        observed: a view of sums, with one client as its target.

    Returns:
        The rounds that hold the target, each with `disaggregate`'s estimate of its message (of its group's, where other
        clients are always in the same sums). Stated noise is that of a sum times `Disaggregation.noise`; how far the
        estimate itself may be wrong is not stated.

    Raises:
        TranscriptError: as in `disaggregate`.
    """
    found = disaggregate(observed)
    amplified = found.noise if np.isfinite(found.noise) else 1.0
    by_number = {one.round: one for one in observed.rounds}
    rounds = []
    for number, line in zip(found.rounds, found.messages, strict=True):
        seen = by_number[number]
        noise = {name: amplified * deviation for name, deviation in seen.noise.items()}
        message = _unflat(line, seen.message)
        rounds.append(replace(seen, message=message, members=found.members, step={}, noise=noise))
    return replace(observed, rounds=tuple(rounds))


def _window(
    rounds: tuple[RoundView, ...], group: frozenset[ClientId], components: int
) -> tuple[float, Disaggregation] | None:
    """Return the best fit to these rounds and its expected error, relative to the size of the messages.

    Later rounds alone often fit better, because the first steps of a run are the largest.

    Args:
        rounds: all rounds of the view, or those from some round on.
        group: the target and the clients that are always in the same rounds of the whole view.
        components: largest number of principal components of the broadcasts.

    Returns:
        The error and the fit; `None` if the group cannot be separated in these rounds: all sums have the same members,
        or further clients are always in the same ones.
    """
    participation = ParticipationMatrix.of(View("", None, rounds, {}))
    if group not in participation.groups or len(participation.groups) == 1:
        return None
    index = participation.groups.index(group)
    sums = np.stack([_flat(o.message) for o in rounds])
    noise = np.stack(
        [_flat({name: np.full_like(v, o.noise.get(name, 0.0), float) for name, v in o.message.items()}) for o in rounds]
    )
    # (rounds, groups): 1 where the group is in the sum; all its clients are in the same rounds
    columns = np.stack(
        [participation.present[:, participation.clients.index(min(g))] for g in participation.groups], axis=1
    )
    sizes = np.array([len(g) for g in participation.groups], float)
    basis = _components(np.stack([_flat(o.broadcast) for o in rounds]), components)
    fits = [_fit(columns, sizes, basis[:, : count + 1], sums, index) for count in range(basis.shape[1])]
    best = int(np.argmin([fit.expected for fit in fits]))
    present = np.flatnonzero(columns[:, index])
    mean = sums[present] * (sizes[index] / (columns @ sizes)[present])[:, None]  # the group's share of each sum
    found = Disaggregation(
        rounds=tuple(rounds[k].round for k in present),
        messages=_shrunk(fits[best].messages, mean, fits[best].solved ** 2 @ noise**2),  # variances of the estimates
        members=group,
        components=best,
        absences=0,  # this and the noise are of the whole view: `disaggregate` sets them
        noise=0.0,
        residual=fits[best].left_out / (float(np.linalg.norm(sums)) or 1.0),
    )
    return fits[best].expected / float(np.linalg.norm(fits[best].messages) or 1.0), found


@dataclass(frozen=True)
class _LeastSquares:
    """Estimate of one group's messages.

    Attributes:
        messages: (rounds of the group, entries) estimates.
        solved: (rounds of the group, rounds) the linear map from sums to estimates.
        left_out: norm of the leave-one-out residual.
        expected: expected error of `messages`.
    """

    messages: Array
    solved: Array
    left_out: float
    expected: float


def _fit(columns: Array, sizes: Array, basis: Array, sums: Array, index: int) -> _LeastSquares:
    """Solve for all groups' B, (functions, entries) each, by least squares.

    The part that the sums do not determine is divided in proportion to the groups' sizes: a group of n clients has B =
    n C + D with C common to all clients, and the solution of least norm in (C / 10, all D) is taken. With the singular
    value decomposition A = U s V^T of the system that maps unknowns to sums, and T the map from unknowns to the
    target's messages, the estimate is T V s^-1 U^T sums, and the expected error is

        (leave-one-out residual) ||T V s^-1 U^T||  +  ||T (I - V V^T)|| ||V s^-1 U^T sums||.

    The second term is for what no sum determines: unknowns there are taken to be as large as those that are found.

    Args:
        columns: (rounds, groups) 1 where a group is in the sum.
        sizes: (groups,) numbers of clients.
        basis: (rounds, functions) phi.
        sums: (rounds, entries).
        index: the target's group.
    """
    groups = columns.shape[1]
    # The unknowns, one row each, are C / 10 by function, then D by group and function: sums = [common, deviations]
    # unknowns. An entry of `sums` has its own column of unknowns.
    common = _COMMON * (columns @ sizes)[:, None] * basis
    deviations = (columns[:, :, None] * basis[:, None, :]).reshape(len(basis), -1)
    U, s, Vt = np.linalg.svd(np.hstack([common, deviations]), full_matrices=False)
    kept = s > _RANK_TOLERANCE * s[0]
    U, s, Vt = U[:, kept], s[kept], Vt[kept]
    functions = basis[columns[:, index] > 0]
    unit = np.zeros(groups)
    unit[index] = 1.0
    # The target's messages = to_messages unknowns (T of the docstring) = solved sums.
    to_messages = np.hstack([_COMMON * sizes[index] * functions, np.kron(unit, functions)])
    solved = (to_messages @ Vt.T / s) @ U.T
    free = 1 - np.sum(U**2, axis=1)  # 1 - leverage: a round's residual over it is its leave-one-out residual
    checked = free > _FREE_TOLERANCE  # a round that fixes a parameter of its own gives no information about the fit
    if 2 * np.sum(checked) < len(sums) and basis.shape[1] > 1:  # too few rounds check this fit: a smaller basis wins
        return _LeastSquares(solved @ sums, solved, float("inf"), float("inf"))
    errors = (sums - U @ (U.T @ sums))[checked] / free[checked, None]
    left_out = float(np.linalg.norm(errors)) * np.sqrt(len(sums) / max(int(np.sum(checked)), 1))
    open_part = float(np.linalg.norm(to_messages - (to_messages @ Vt.T) @ Vt)) * float(
        np.linalg.norm((U.T @ sums).T / s)
    )
    return _LeastSquares(solved @ sums, solved, left_out, left_out * float(np.linalg.norm(solved)) + open_part)


def _shrunk(messages: Array, mean: Array, variance: Array) -> Array:
    """Shrink messages towards the mean client's under known noise: positive-part rule of James and Stein (1961)."""
    apart, noise = float(np.sum((messages - mean) ** 2)), float(np.sum(variance))
    if not noise or not apart:
        return messages
    return np.asarray(mean + max(0.0, 1 - noise / apart) * (messages - mean))


def _components(broadcasts: Array, most: int) -> Array:
    """Return (rounds, functions): a constant, and standardised principal components of the broadcasts."""
    centred = broadcasts - broadcasts.mean(axis=0)
    U, s, _ = np.linalg.svd(centred, full_matrices=False)
    count = min(most, int(np.sum(s > _RANK_TOLERANCE * (s[0] if s.size and s[0] > 0 else 1.0))))
    return np.hstack([np.ones((len(broadcasts), 1)), U[:, :count] * np.sqrt(len(broadcasts))])


def _unflat(line: Array, like: Tensors) -> dict[str, Array]:
    """Split a line that `_flat` made into tensors of the shapes of `like`."""
    message, start = dict[str, Array](), 0
    for name in sorted(like):
        shape = np.shape(like[name])
        size = int(np.prod(shape, dtype=np.int64))
        message[name] = line[start : start + size].reshape(shape)
        start += size
    return message


def _flat(tensors: Tensors) -> Array:
    parts = [np.asarray(tensors[name], np.float64).reshape(-1) for name in sorted(tensors)]
    return np.concatenate(parts) if parts else np.zeros(0)
