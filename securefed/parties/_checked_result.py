"""Check a published result at a client: recompute it from the sum that the server announced, and check that sum.

Where the terms verify (`secure_aggregation(verify=True)`), the clients of a sum share a key that the server does not
know, and the server announces the opened sum with a tag that only sums of the clients' own contributions have.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from securefed._messages import SERVER
from securefed._runtime.sum_node import SumNode
from securefed._tensors import Array, decode
from securefed.defenses._aggregation import SupportsVerification
from securefed.defenses._base import without_indicator_tensor
from securefed.errors import ConfigError, DataError, MalformedError, SumRefused
from securefed.parties._result import CompletedSum, SumResult, result_of
from securefed.parties._terms import SumTerms

_ROUNDING = 1e-9
"""Relative difference that another processor's arithmetic may make."""


def checked_result(
    terms: SumTerms, node: SumNode | None, result: SumResult, base: dict[str, Array] | None
) -> SumResult:
    """Compute the result from the announced sum; check that sum, and that the published result equals the computed one.

    Args:
        terms: the terms of the sum.
        node: the client's node, which holds the key of its last sum; `None` before its first request.
        result: the published result.
        base: the model that differences were taken from; `None` without one.

    Raises:
        SumRefused: the announced sum is not that of the contributions, or the result does not follow from it.
        MalformedError: the announced bytes are none, or too long.
        ConfigError: nothing can be checked here.
    """
    aggregation = terms.defense.aggregation
    if not terms.plan.verified or not isinstance(aggregation, SupportsVerification):
        raise ConfigError(
            "these terms do not verify sums, so that nothing shows whether the server told the truth; make them with "
            "secure_aggregation(verify=True, identities=...)"
        )
    session, header = (None, None) if node is None else (node.state.session, node.state.header)
    if node is None or not node.state.sum_key or session is None or header is None:
        raise ConfigError("this client holds no key of a sum: it contributed to none, or a later round checked it")
    state, plan = node.state, session.plan
    if session.round != state.tentative_round or header.round != result.round + result.given_up:
        raise ConfigError(
            f"this client waits for the result of round {header.round}, and this is the result of round "
            f"{result.round + result.given_up}, rounds that were given up included; check each result before the next "
            "round begins"
        )
    announced = _announced(result, terms)
    aggregation.client_check(state.sum_key, node.client, plan, announced)  # raises SumRefused
    survivors = tuple(int(member) for member in announced["survivors"])
    total = {tensor.name: announced[f"sum/{tensor.name}"] for tensor in plan.tensors}
    released = terms.defense.release(terms.defense.decode(total, plan, len(survivors)), plan)
    kept = CompletedSum(
        without_indicator_tensor(released), survivors, header.doublings, header.learned, result.round, result.void,
        result.refusals, announced, result.given_up,
    )  # fmt: skip
    found = result_of(terms, kept, base)
    for name, told, own in _compared(result, found):
        if not _alike(told, own):
            raise SumRefused(SERVER, f"the published result does not follow from the announced sum: {name} differs")
    return found


def _announced(result: SumResult, terms: SumTerms) -> dict[str, Array]:
    """Read the announced sum; raise `MalformedError` where the bytes hold none."""
    if not result.announced:
        raise MalformedError(SERVER, "the result comes without the announced sum, by which it would be checked")
    try:
        terms.core.limits.check(result.announced, SERVER)
        return decode(result.announced)[0]
    except DataError as error:
        raise MalformedError(SERVER, f"the announced sum cannot be read: {error}") from error


def _alike(told: Any, own: Any) -> bool:
    """Tell whether names are equal, or numbers up to rounding."""
    if isinstance(own, list):
        return bool(told == own)
    return np.shape(told) == np.shape(own) and np.allclose(told, own, rtol=_ROUNDING, atol=0.0, equal_nan=True)


def _compared(told: SumResult, own: SumResult) -> list[tuple[str, Any, Any]]:
    """Pair all numbers that a reader takes from a published result with those that follow from the announced sum."""
    pairs: list[tuple[str, Any, Any]] = [("the survivors", told.survivors, own.survivors)]
    pairs.append(("the weight", told.weight, own.weight))
    for what in ("mean", "total", "metrics", "error"):
        theirs, ours = getattr(told, what), getattr(own, what)
        if set(theirs) != set(ours):
            pairs.append((f"the names of the {what}", sorted(theirs), sorted(ours)))
            continue
        pairs += [(f"{what} {name!r}", theirs[name], ours[name]) for name in ours]
    return pairs
