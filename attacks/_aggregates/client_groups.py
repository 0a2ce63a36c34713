"""Group rows that were recovered from sums by the client that holds them, from what their local steps do together.

The setting is federated gradient descent whose server sees the sum of the clients' messages only, and an earlier attack
has recovered all rows behind the sum. A user then calls `group_by_client` with these rows and the view of the run. Over
several local steps the rows of one client move the same model, so that a client's message is not the sum of what its
rows would send by themselves. The observed

    sum = message(rows of client 1) + message(rows of client 2) + ...

therefore depends on which rows share a client. The attacker simulates the clients of a grouping, and exchanges rows
between groups while that brings the simulated sum nearer to the observed one. At the right grouping the two agree to
rounding, so that the attacker knows when it is done. It fails where each search, from several random groupings, ends in
a local minimum, which the residual shows.

Source: Marchand et al. 2023, SRATTA (arXiv 2306.07644), groups rows by ReLU outputs that a client's earlier local steps
switched on. The search here needs all rows of a sum, and no ReLU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations, pairwise

import numpy as np

from securefed._messages import ClientId
from securefed._tensors import Array, Tensors
from securefed.algorithms._optimization.method import GradientMethod
from securefed.attacks._base import RoundView, Target, View
from securefed.attacks._requirements import why_incomplete
from securefed.datasets._base import Dataset
from securefed.errors import TranscriptError

_ENTRIES = 2000
"""Entries of a message that are compared, drawn at random; a message of a network holds thousands more than needed."""
_DISTINCT = 1e-12
"""Distance of two groupings' sums, relative to the sum, below which they count as one grouping: round-off."""
_DRAWS = 20
"""Most random groupings that are drawn to find two that differ; of 2 clients with 2 rows, a third are alike."""
_SOLVED = 1e-3
"""Residual at which the search ends, over the distance between the sums of two random groupings. Rounding leaves 1e-5,
a wrong exchange .05."""


@dataclass(frozen=True)
class ClientGroups:
    """Rows grouped by client.

    Attributes:
        groups: (rows,) number of each row's group.
        clients: by group, the clients that it can be: those with as many rows.
        residual: distance of the simulated sum from the observed one, over the distance between the sums of two random
            groupings (over the observed sum's length where there is one grouping only). Above 1e-3 the grouping is not
            the true one.
        simulations: number of different groups of rows whose messages were simulated.
    """

    groups: Array
    clients: tuple[tuple[ClientId, ...], ...]
    residual: float
    simulations: int

    @property
    def solved(self) -> bool:
        """Whether the grouping explains the sum, so that it is the true one but for chance."""
        return self.residual <= _SOLVED


def group_by_client(
    rows: Array, labels: Array, observed: View, target: Target, *, restarts: int = 10, seed: int = 0
) -> ClientGroups:
    """Group rows by client, from one round's sum.

    Args:
        rows: (rows, features) ALL rows of the members of the first round's sum, in any order, as an attack found them.
        labels: (rows,) their labels.
        observed: a view; only its first round is read.
        target: the algorithm and the public facts.
        restarts: random groupings that the search starts from, at most.
        seed: draws these.

    Returns:
        The grouping of least residual. It says which rows share a client, and which client that is where no other has
        as many rows.

    Raises:
        TranscriptError: the method or the round does not allow it; the message says why.
    """
    if (reason := _why_not(rows, observed, target)) is not None:
        raise TranscriptError(reason)
    rng, first = np.random.default_rng(seed), observed.rounds[0]
    simulation = _Simulation(rows, labels, first, target)
    members = sorted(first.members)
    sizes = [target.public.rows[client] for client in members]
    best: tuple[float, list[frozenset[int]]] = (np.inf, [])
    for _ in range(restarts):
        found = _search(simulation, sizes, rng)
        best = min(best, found, key=lambda item: item[0])
        if best[0] <= _SOLVED:
            break
    groups = np.empty(len(rows), np.int64)
    for number, group in enumerate(best[1]):
        groups[list(group)] = number
    possible = tuple(tuple(client for client in members if target.public.rows[client] == size) for size in sizes)
    return ClientGroups(groups, possible, best[0], len(simulation.known))


def _why_not(rows: Array, observed: View, target: Target) -> str | None:
    """Return why rows cannot be grouped, or `None` if they can."""
    method, public = target.algorithm, target.public
    if not isinstance(method, GradientMethod):
        return "It simulates local gradient steps, and this algorithm makes none."
    if (reason := why_incomplete(observed.rounds[:1])) is not None:
        return reason
    held = [public.rows[client] for client in observed.rounds[0].members]
    if len(rows) != sum(held):
        return f"It needs all {sum(held)} rows of the clients in the sum, and these are {len(rows)}."
    most = max(held)
    steps = method.draw(most, np.random.default_rng(0)).sizes(most)  # rows of each local step, for a client of `most`
    if any(rows_used != most for rows_used in steps):
        return "It simulates clients that use all their rows in every step, and these draw batches."
    if len(steps) < 2 or most < 2:
        return "Rows of a client act together over two or more local steps; here every row acts by itself."
    return None


@dataclass
class _Simulation:
    """Simulates clients with given rows at one broadcast; each group of rows once.

    Attributes:
        rows: (rows, features).
        labels: (rows,).
        observed: the round.
        target: the algorithm and the public facts.
        known: by the numbers of a group's rows, the message of a client that holds them.
        kept: the entries of a message that are compared.
        total: these entries of the observed sum.
    """

    rows: Array
    labels: Array
    observed: RoundView
    target: Target
    known: dict[frozenset[int], Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        total = _flat(self.observed.message)
        self.kept = np.sort(np.random.default_rng(0).permutation(len(total))[:_ENTRIES])
        self.total = total[self.kept]

    def message(self, group: frozenset[int]) -> Array:
        """Return what a client with these rows sends in its first round."""
        if group not in self.known:
            method, order = self.target.algorithm, sorted(group)
            assert isinstance(method, GradientMethod)
            rng = np.random.default_rng(0)
            state = method.enroll(Dataset(self.rows[order], self.labels[order]), self.target.public, rng)
            message = method.contribute(state, self.observed.broadcast, rng)[1]
            self.known[group] = _flat(message)[self.kept]
        return self.known[group]

    def sum(self, groups: Sequence[frozenset[int]]) -> Array:
        """Return the sum of the messages of clients with these rows."""
        return np.asarray(np.sum([self.message(group) for group in groups], axis=0))


def _search(
    simulation: _Simulation, sizes: Sequence[int], rng: np.random.Generator
) -> tuple[float, list[frozenset[int]]]:
    """Exchange rows between groups while that lowers the residual; return it, and the groups.

    Args:
        simulation: messages of clients with given rows.
        sizes: number of rows of each group.
        rng: draws the first grouping, and the order in which pairs of rows are tried.
    """
    count, groups = len(simulation.rows), _random_groups(sizes, rng)
    left = simulation.total - simulation.sum(groups)
    scale = max(_scale(simulation, sizes, rng), 1e-300)
    current, improved = float(np.linalg.norm(left)), True
    while improved and current > _SOLVED * scale:
        improved = False
        pairs = list(combinations(range(count), 2))
        for place in rng.permutation(len(pairs)):
            one, other = pairs[place]
            a, b = (next(k for k, group in enumerate(groups) if row in group) for row in (one, other))
            if a == b:
                continue
            new_a, new_b = groups[a] - {one} | {other}, groups[b] - {other} | {one}
            # `left` is the observed sum less the simulated one; an exchange changes the messages of two groups only.
            exchanged = left + simulation.sum([groups[a], groups[b]]) - simulation.sum([new_a, new_b])
            distance = float(np.linalg.norm(exchanged))
            if distance < current * (1 - 1e-9):  # by more than rounding, which could make the search go in circles
                groups[a], groups[b] = new_a, new_b
                left, current, improved = exchanged, distance, True
    return current / scale, groups


def _scale(simulation: _Simulation, sizes: Sequence[int], rng: np.random.Generator) -> float:
    """Return the distance between the sums of two random groupings: how much it matters which rows share a client.

    Where all groupings are alike (a single client), it is the length of the observed sum.
    """
    first, length = simulation.sum(_random_groups(sizes, rng)), float(np.linalg.norm(simulation.total))
    for _ in range(_DRAWS):
        distance = float(np.linalg.norm(first - simulation.sum(_random_groups(sizes, rng))))
        if distance > _DISTINCT * length:
            return distance
    return length


def _random_groups(sizes: Sequence[int], rng: np.random.Generator) -> list[frozenset[int]]:
    """Divide the rows at random into groups of these sizes."""
    order, ends = rng.permutation(sum(sizes)), np.cumsum([0, *sizes])
    return [frozenset(order[low:high].tolist()) for low, high in pairwise(ends)]


def _flat(message: Tensors) -> Array:
    return np.concatenate([np.asarray(message[name], float).reshape(-1) for name in sorted(message)])
