"""The n - 1 attack by drop-out: a server that claims to have lost everybody but the victim.

The sum over one survivor is its message. A defence with a threshold must refuse; without one nothing stands in the way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from securefed.defenses.base import Defense
from securefed.defenses.simulate import sum_once
from securefed.errors import ConfigError, SecureFedError
from securefed.messages import ClientId
from securefed.tensors import Layout, Tensors


@dataclass(frozen=True)
class Isolation:
    """How it ended.

    Attributes:
        lost: the clients whose uploads the server discarded.
        refused: what the defence said, empty where it opened the sum.
        error: relative distance of what was opened from the victim's message; NaN where nothing was.
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
    company: int = 0,
    stage: str | None = None,
) -> Isolation:
    """One exchange in which everybody but the victim (and `company` others) is lost.

    Args:
        stage: where the others are lost; at the upload by default.

    Raises:
        ConfigError: no such victim, or more company than there are others.
    """
    others = [client for client in sorted(contributions) if client != victim]
    if victim not in contributions or not 0 <= company <= len(others):
        raise ConfigError(f"a victim among {sorted(contributions)} and 0 to {len(others)} others, not {victim}")
    lost = tuple(others[company:])
    where = stage or defense.aggregation.upload

    def drop(at: str, party: int) -> bool:
        return at == where and party in lost

    try:
        opened = sum_once(defense, layout, contributions, drop=drop)
    except SecureFedError as error:
        return Isolation(lost, f"{type(error).__name__}: {error}", float("nan"))
    truth, found = layout.flatten(contributions[victim]), layout.flatten(opened.total)
    return Isolation(lost, "", float(np.linalg.norm(found - truth) / (np.linalg.norm(truth) or 1.0)))
