"""Run the n - 1 attack: the server claims that all clients but the victim dropped out.

A server that aggregates securely learns the sum over the survivors: the clients whose uploads arrived. The sum over one
survivor is its message, and a dishonest server can discard all other uploads. A defence with a threshold of survivors
must refuse to open (unmask or decrypt) such a sum. Users call `isolate` to try a defence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from securefed._messages import ClientId
from securefed._tensors import Layout, Tensors
from securefed.defenses._base import Defense
from securefed.defenses._simulation import sum_once
from securefed.errors import ConfigError, SecureFedError


@dataclass(frozen=True)
class IsolationResult:
    """Result of an n - 1 attack.

    Attributes:
        lost: clients whose uploads the server discarded.
        refused: error message of the defence, empty if it opened the sum.
        error: relative distance of the opened sum from the victim's message, large where others are in the sum; NaN if
            the defence refused.
    """

    lost: tuple[ClientId, ...]
    refused: str
    error: float


def isolate(
    defense: Defense,
    layout: Layout,
    contributions: Mapping[ClientId, Tensors],
    victim: ClientId,
    *,
    also_kept: int = 0,
) -> IsolationResult:
    """Run one exchange (broadcast, uploads, sum) in which all clients but the victim and `also_kept` others drop out.

    Args:
        defense: the defence under attack.
        layout: names and shapes of the contributions' tensors.
        contributions: what each client sends.
        victim: the client to isolate.
        also_kept: number of other clients whose uploads the server keeps, those with the smallest ids.

    Raises:
        ConfigError: unknown victim, or `also_kept` is not between 0 and the number of other clients.
    """
    others = [client for client in sorted(contributions) if client != victim]
    if victim not in contributions or not 0 <= also_kept <= len(others):
        raise ConfigError(
            f"victim must be one of {sorted(contributions)} and also_kept between 0 and {len(others)}; "
            f"got {victim} and {also_kept}"
        )
    lost = tuple(others[also_kept:])

    def drop(stage: str, party: int) -> bool:
        return stage == defense.aggregation.upload and party in lost

    try:
        opened = sum_once(defense, layout, contributions, drop=drop)
    except SecureFedError as error:
        return IsolationResult(lost, f"{type(error).__name__}: {error}", float("nan"))
    truth, found = layout.flatten(contributions[victim]), layout.flatten(opened.total)
    return IsolationResult(lost, "", float(np.linalg.norm(found - truth) / (np.linalg.norm(truth) or 1.0)))
