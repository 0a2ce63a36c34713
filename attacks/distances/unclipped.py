"""PPGL's clipped messages of one client, made whole: a clip leaves the ratio of gamma_i w_i and gamma_i."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from securefed.algorithms.graph.ppgl import PPGL, WEIGHT, WEIGHTED
from securefed.attacks.base import Observation, Observed, Target


def unclipped(observed: Observed, target: Target) -> Observed:
    """The view with whole messages, where the ratio is exact; as it is elsewhere, and where nothing was clipped.

    gamma_i follows from the graph before, which the ratio gives: 1 / N at first, then 1 / (||w_i - w_con|| + eps) (25).
    """
    method, public = target.algorithm, target.public
    alone = isinstance(method, PPGL) and len(observed.members) == 1
    if not alone or not any(item.clips for item in observed.rounds) or not all(map(_told, observed.rounds)):
        return observed
    assert isinstance(method, PPGL)
    gamma, rounds = 1 / public.clients, list[Observation]()
    for item in observed.rounds:
        consensus, graph = method.read(item.broadcast), item.message[WEIGHTED] / item.message[WEIGHT]
        if rounds and method.weights == "automatic":
            before = rounds[-1].message[WEIGHTED] / rounds[-1].message[WEIGHT]
            gamma = 1 / (float(np.linalg.norm(before - consensus)) + method.distance_floor)
        message = {WEIGHTED: gamma * graph, WEIGHT: np.asarray(gamma)}
        rounds.append(replace(item, message=message, clips=()) if item.clips else item)
    return replace(observed, rounds=tuple(rounds))


def _told(item: Observation) -> bool:
    """Whether the two travelled without noise, clipped together or not at all."""
    together = all({WEIGHT, WEIGHTED} <= set(names) for names, _ in item.clips)
    present = {WEIGHT, WEIGHTED} <= set(item.message) and bool(item.broadcast)
    return together and present and not any(item.noise.values()) and float(item.message[WEIGHT]) > 0
