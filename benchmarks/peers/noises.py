"""The noise that each mechanism leaves in what its epsilon covers, drawn through its whole chain, beside the plan's."""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass

import numpy as np

from benchmarks.peers.accountants import Case
from securefed._tensors import Layout, TensorSpec
from securefed.defenses._base import Plan, Session
from securefed.defenses._differential_privacy import DistributedNoise, sensitivity

CLIENTS = 3
DRAWS = 1_000_000


@dataclass(frozen=True)
class Noise:
    """Of one entry of what is seen.

    Attributes:
        variance: over all entries.      planned: what the plan says.
        least: what the noise multiplier asks for, without what rounding adds to the sensitivity.
    """

    variance: float
    planned: float
    least: float


def noise(case: Case, factor: float = 1.0, entries: int = DRAWS) -> Noise:
    """What three clients that contribute zeros leave in a release; under local noise, what one upload holds.

    Args:
        factor: on the noise multiplier.
    """
    defense = case.defense(factor)
    layout = Layout((TensorSpec("x", (entries,), 1.0, sensitivity=0.2),))
    plan = Session(secrets.token_hex(16), 0, tuple(range(CLIENTS)), defense.plan(layout, CLIENTS)).plan
    assert plan.privacy is not None
    clients = 1 if plan.privacy.noise_survivors == 1 else CLIENTS
    total: dict[str, np.ndarray] = {}
    for _ in range(clients):
        sent = defense.encode({"x": np.zeros(entries)}, plan)
        total = {name: np.asarray(value) + total.get(name, 0) for name, value in sent.items()}
    seen = defense.release(defense.decode(total, plan, clients), plan)["x"]
    multiplier = factor * case.noise
    for transform in defense.transforms:
        if isinstance(transform, DistributedNoise):
            sizes = transform.sizes(plan)
            shares = clients / sizes.honest
            return Noise(
                float(seen.var()), clients * sizes.share * sizes.step**2, shares * (multiplier * plan.privacy.clip) ** 2
            )
    unit = _unit(case, plan)
    return Noise(
        float(seen.var()), (multiplier * sensitivity(plan) * unit) ** 2, (multiplier * plan.privacy.clip * unit) ** 2
    )


def _unit(case: Case, plan: Plan) -> float:
    """What a release multiplies noise by: one over the rate of coins; an adaptive clip's C, which is 1 at first."""
    coins = [link for link in case.start if link.name == "poisson"]
    return math.prod(1 / link.sampler.rate for link in coins)
