"""LoSAC with two local steps sends as many vectors as its client took gradients: both, and where they stand, follow.

With one block, y the stored gradient, g and g' those of the two steps, x' the point between them,

    dphi = g' - y,      dx = -eta (2 phi / N + (1 + 1/N) (g - y) + g' - g),      x' = x - eta (phi / N + g - y)

((8), (11) unrolled). So g' = y + dphi, then g, then x'. Nothing is simulated: rounds are gradients at known points, and
learning rates at which local steps overshoot, so that paths through guessed rows lead anywhere, hinder no search.
"""

from __future__ import annotations

import numpy as np

from securefed.algorithms.optimization.dsgd import DSGD
from securefed.algorithms.optimization.losac import LoSAC
from securefed.attacks.gradient_inversion.glm import LinearModel
from securefed.attacks.gradient_inversion.inversion import Scene, scene_of
from securefed.attacks.gradient_inversion.proximal import is_proximal
from securefed.attacks.gradient_inversion.rounds import LocalRound, Seen
from securefed.public import Public


def between(
    method: LocalRound, model: LinearModel, public: Public, seen: tuple[Seen, ...], rounds: int
) -> Scene | None:
    """One client's rounds, two gradients each, or `None` where they do not follow from what it sent."""
    if not isinstance(method, LoSAC) or is_proximal(method) or (method.local_steps, method.blocks) != (2, 1):
        return None
    if any(len(item.members) > 1 or item.clips or item.noise for item in seen):
        return None
    if len({item.members for item in seen}) > 1:
        return None
    eta, clients, stored, out = method.learning_rate, public.clients, np.zeros_like(seen[0].received["x"]), []
    for item in seen:
        x, phi = item.received["x"], item.received["phi"]
        second = stored + item.total["dphi"]
        first = clients * (-item.total["dx"] / eta - 2 * phi / clients + (1 + 1 / clients) * stored - second)
        middle = x - eta * (phi / clients + first - stored)
        out += [Seen({"x": at}, {"gradient": g}, item.members) for at, g in ((x, first), (middle, second))]
        stored = second
    return scene_of(DSGD(problem=method.problem), model, public, tuple(out), rounds=2 * rounds)
