"""Average or add updates securely where all of them are in one process: the simulation of `securefed.parties`.

    new = secure_mean([client.state_dict() for client in clients], weights=sizes, defense=secure_aggregation())

Nothing is hidden from this process. The functions show what a secure sum does to your updates (rounding, clipping,
noise) before you put clients on machines of their own.
`play_round` plays a round of any sum: a `SumClient` for each contribution, and the helpers of the defence. A helper is
a key holder of encrypted sums; its party number is negative.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from securefed._hyperparameters import check_positive
from securefed._messages import PartyId
from securefed._tensors import Array, Layout, Ring, is_torch, real_array
from securefed.defenses._chain import Link, as_defense
from securefed.defenses._fixed_point import check_ring
from securefed.errors import ConfigError, DataError, RangeRefused
from securefed.parties._client import SumClient
from securefed.parties._helper import SumHelper
from securefed.parties._precision import check_representable, largest_entry
from securefed.parties._result import SumResult
from securefed.parties._server import SumServer
from securefed.parties._terms import SumTerms
from securefed.parties._terms_parts import power_of_two, weighs_alike
from securefed.parties._update import like

T = TypeVar("T")
_LARGEST = 1e300
"""Largest entry of an update; beyond it a sum of updates may overflow float64."""
_EXACT = 2**53
"""Up to it float64 holds every integer."""
_SMALLEST = float(np.finfo(np.float32).tiny)
"""Smallest bound that is derived from updates: a tensor of zeros has no largest entry to derive one from."""


def secure_mean(
    updates: Sequence[Mapping[str, T]],
    weights: Sequence[float] | None = None,
    defense: Link | None = None,
    *,
    bound: float | Mapping[str, float] | None = None,
    ring: Ring = 64,
) -> dict[str, T]:
    """Simulate a secure weighted mean: this process plays all clients and the server (`securefed.parties`).

    Args:
        updates: one mapping for each client, of NumPy arrays or torch tensors (bfloat16 and float16 too): same names
            and shapes. Under a clip give changes (new model less old), since all that is given is clipped: whole models
            would be.
        weights: one number >= 0 for each client (sample counts); all equal by default. They are summed inside the
            defence: the server learns their total only. A defence that clips or adds noise allows only equal ones.
        defense: how the sum is made, for instance `secure_aggregation()`. It has to be given: `chain()` averages in the
            clear, to compare with.
        bound: largest absolute entry of a tensor in any update, a public fact of your training (a clipping norm): by
            the tensors' names, or one number for all. Exact defences round each tensor by its own bound, so that
            weights beside a large counter keep their precision if each has its own. By default the largest entry of
            each tensor in `updates`, rounded up to a power of two: right in a simulation, where this process sees all
            updates; in a deployment the clients have to agree on it beforehand.
        ring: width in bits of the integers that exact defences sum.

    Returns:
        The mean, in the updates' own types, dtypes and devices; integer tensors (counters) rounded to nearest. The mean
        of booleans is the share of those that are true, in float64.
        In the clear exact to float64 rounding. An exact defence sums integers, so that the sum of updates and the sum
        of weights are rounded, and the mean divides one by the other: it is then within 6 times `TensorPlan.error` of
        the mean in the clear. (Weights are divided by the largest one rounded up to a power of two, so that their sum
        is at least 1/2; their own rounding counts for at most twice that of the updates: 6 = 2 (1 + 2). Equal ones are
        not summed, and the error is that of the sum over the number of updates.) Under a clip or noise, the sum of the
        clipped updates and the noise over the number of clients.

    Raises:
        DataError: no list of updates, or an empty one; other names or shapes, entries that are not finite, complex
            numbers, or other types than real numbers; or a mean or sum that an update's integer type does not hold.
        ConfigError: weights of a wrong number, negative, or all zero; weights or integers under a clip;
            bounds of other names than the tensors', or no positive numbers; a ring of another width; no defence.
        RangeRefused: an entry beyond its bound.
        RoundVoid: fewer updates than the defence needs.
        PlanError: the defence cannot keep its promise for these updates, or a bound is so far beyond a tensor's entries
            that nothing of them would be left.
    """
    return _like(_simulate("secure_mean", updates, weights, defense, bound, ring).mean, updates[0])


def secure_sum(
    updates: Sequence[Mapping[str, T]],
    defense: Link | None = None,
    *,
    bound: float | Mapping[str, float] | None = None,
    ring: Ring = 64,
) -> dict[str, T]:
    """Simulate a secure sum: this process plays all clients and the server (`securefed.parties`).

    Args:
        updates: as `secure_mean`.
        defense: as `secure_mean`.
        bound: as `secure_mean`.
        ring: as `secure_mean`.

    Returns:
        The sum, in the updates' own types, dtypes and devices; of booleans how many are true, in int64.

    Raises:
        DataError, ConfigError, RangeRefused, RoundVoid, PlanError: as `secure_mean`.
    """
    result = _simulate("secure_sum", updates, None, defense, bound, ring)
    totals = _like({name: np.asarray(total) for name, total in result.total.items()}, updates[0])
    noised = result.plan.noised or result.plan.privacy is not None  # then no count is a whole number
    return totals if noised else {name: _counted(total, updates[0][name]) for name, total in totals.items()}


def _simulate(
    caller: str, updates: Sequence[Mapping[str, Any]], weights: Sequence[float] | None, defense: Link | None,
    bound: float | Mapping[str, float] | None, ring: Ring,
) -> SumResult:  # fmt: skip
    """Run one round of a `SumServer` with one `SumClient` for each update."""
    if not isinstance(updates, Sequence):
        raise DataError(f"{caller} needs a list with one update for each client; got {type(updates).__name__}")
    if not updates:
        raise DataError(f"{caller} needs at least one update")
    if defense is None:
        raise ConfigError(
            f"{caller} needs a defense, such as defense=secure_aggregation(); to do without one, write defense=chain()"
        )
    chosen = as_defense(defense)
    check_ring(ring, caller)
    arrays = [_arrays(index, update) for index, update in enumerate(updates)]
    for index, update in enumerate(arrays):
        Layout.of(arrays[0]).check(update, where=f"update {index}")
        if odd := [n for n, v in update.items() if v.dtype.kind == "f" and arrays[0][n].dtype.kind != "f"]:
            raise DataError(
                f"update {index}: {odd[0]!r} is of type {update[odd[0]].dtype}, and the first update says integers, "
                "whose mean is rounded; give one type, such as 0.0 for 0"
            )
    given = _weights(weights, len(arrays))
    alike = given is None or len(set(given.tolist())) == 1  # equal weights need not be summed
    if not alike and weighs_alike(chosen):
        raise ConfigError(f"{chosen.name} clips or noises every update alike; leave the weights out")
    # one round, which is not repeated where it is void, without a model to start from
    terms = SumTerms.like(
        arrays[0], clients=len(arrays), defense=chosen, bounds=_bounds(arrays, bound),
        largest_weight=None if given is None or alike else given.max(), base=False, ring=ring, pipelined=False,
        rounds=1, max_void=1,
    )  # fmt: skip
    contributions: list[dict[str, Any]] = [{"update": update} for update in arrays]
    shares = [1.0] * len(arrays)
    if terms.weighted and given is not None:
        shares = [weight / terms.largest_weight for weight in given.tolist()]
        for contribution, weight in zip(contributions, given.tolist(), strict=True):
            contribution["weight"] = weight
    check_representable(terms.plan, arrays, shares)
    return play_round(SumServer(terms), contributions)


def _arrays(index: int, update: Mapping[str, Any]) -> dict[str, Array]:
    """Return the update of client `index` as NumPy arrays of real numbers; raise `DataError` where it is none."""
    try:
        arrays = {name: real_array(value, f"update {index}: {name!r}") for name, value in update.items()}
    except (TypeError, ValueError, AttributeError) as error:
        if isinstance(error, DataError):
            raise
        given = type(update).__name__
        raise DataError(f"update {index} must map names to arrays, as a state dict does; got {given}") from error
    for name, value in arrays.items():
        if value.dtype.kind in "iu" and not _held_by_float64(value):
            raise DataError(
                f"update {index}: {name!r} holds integers beyond 2^53 that float64, in which sums are made, does not "
                "hold; give floats, or differences from a number that all parties know"
            )
    return arrays


def _weights(weights: Sequence[float] | None, count: int) -> Array | None:
    """Return the weights of `count` updates, `None` without any; refuse wrong numbers of them and bad values."""
    if weights is None:
        return None
    try:
        given = np.asarray(weights, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"weights must be numbers: {error}") from error
    if given.shape != (count,) or not np.isfinite(given).all() or (given < 0).any() or not given.any():
        raise ConfigError(f"{count} updates need as many finite weights >= 0, not all zero; got {weights!r}")
    return given


def _bounds(updates: Sequence[Mapping[str, Array]], bound: float | Mapping[str, float] | None) -> dict[str, float]:
    """Find the bound of each tensor, by name: the caller's, or the largest entry rounded up to a power of two.

    Args:
        updates: the clients' updates.
        bound: as in `secure_mean`.
    """
    largest = {name: max(largest_entry(update[name]) for update in updates) for name in updates[0]}
    for name, value in largest.items():
        if value > _LARGEST:
            raise DataError(f"an entry of {value:.3g} in {name!r} is too large to be summed; scale the updates")
    if bound is None:
        return {name: power_of_two(max(value, _SMALLEST)) for name, value in largest.items()}
    bounds = dict(bound) if isinstance(bound, Mapping) else dict.fromkeys(largest, bound)
    if odd := sorted(set(bounds) ^ set(largest)):
        raise ConfigError(f"bounds are needed for exactly the tensors {sorted(largest)}; these differ: {odd}")
    for name, declared in bounds.items():
        check_positive(f"the bound of {name!r}", declared)
    for name, value in largest.items():
        if value > bounds[name]:
            raise RangeRefused(
                f"{name!r} reaches {value:.3g}, beyond its bound {bounds[name]:.3g}; declare a larger one"
            )
    return bounds


def _held_by_float64(value: Array) -> bool:
    """Tell whether float64 holds all integers of an array, which it does up to 2^53."""
    large = value[(value > _EXACT) | (value < -_EXACT)]
    return all(int(float(entry)) == entry for entry in large.tolist())


def _like(values: Mapping[str, Array], example: Mapping[str, T]) -> dict[str, T]:
    return {name: like(values[name], value) for name, value in example.items()}


def _counted(total: T, example: T) -> T:
    """Return a sum of booleans as int64, and any other sum as it is."""
    if real_array(example, "an update").dtype.kind != "b":
        return total
    number: Any = total
    return number.round().long() if is_torch(number) else np.rint(number).astype(np.int64)  # type: ignore[no-any-return]


def play_round(server: SumServer, contributions: Sequence[Mapping[str, Any]]) -> SumResult:
    """Open a round without a model, and carry its messages to fresh clients until its result is there.

    A client is given its contribution with every request, and looks at it where the request is for the upload.

    Args:
        server: a new server.
        contributions: for client 0, 1, ... the keyword arguments of `SumClient.receive`.

    Returns:
        The result of the round.

    Raises:
        RoundVoid, RangeRefused, DivergenceError, BudgetSpent: as `SumServer.receive`.
    """
    terms = server.terms
    members: dict[PartyId, Any] = {client: SumClient(terms, client) for client in range(len(contributions))}
    members |= {party: SumHelper(terms) for party in terms.defense.aggregation.beside}
    server.open()
    while server.result is None:
        replies = {}
        for party, request in server.outgoing.items():
            given = contributions[party] if party >= 0 else {}
            replies[party] = members[party].receive(request, **given)
        server.receive(replies)
    return server.result
