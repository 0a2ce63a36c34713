"""Which local steps went without momentum, read from one client's graphs.

`Descent` leaves the momentum out of a step whose start would have a negative degree, a switch that no slope shows. On
edges that stay positive a round's end is a known multiple of z_e plus what the two vertices add, whatever the barriers
were: the difference of two rounds that cancels z_e lies in the range of S^T, and for the true switches alone.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np

from securefed.attacks.distances.chain import Chain
from securefed.tensors import Array

_MOST = 10
"""Steps of two rounds beyond which switches are too many to try."""
_VERTICES = 60
_TOLD = 1e-6
"""Share of the median misfit that the true switches leave at most; edges that touched 0 leave more to any."""
_CLEAR = 0.3
"""Share of the positive weights that is left out, the smallest: they may have touched 0 on the way."""


def switched(chain: Chain, rng: np.random.Generator) -> Chain:
    """The chain with the momenta that its steps had; as it was where they cannot be told."""
    local, full = chain.method.local_steps, chain.method.momentum
    if not chain.carried or not full or 2 * local > _MOST or len(chain.graphs) < 2:
        return chain
    found = np.array([full])
    for last in range(1, len(chain.graphs)):
        undecided = (last + 1) * local - len(found)
        choices = [np.append(found, tail) for tail in product((full, 0.0), repeat=undecided)]
        misfits = _misfits(chain, last, choices, rng)
        told = misfits is not None and misfits.min() < _TOLD * np.median(misfits)
        found = choices[int(np.argmin(misfits))] if misfits is not None and told else choices[0]
    return replace(chain, momenta=found)


def _misfits(chain: Chain, last: int, choices: list[Array], rng: np.random.Generator) -> Array | None:
    """Of each choice, how far round `last` is from one that fits with the first; `None` on too few edges."""
    edges, vertices = chain.edges, chain.edges.vertices
    floor = chain.graphs[[0, last - 1, last]].min(axis=0)
    if not (floor > 0).any():
        return None
    inside = np.isin(np.arange(vertices), rng.permutation(vertices)[:_VERTICES])
    chosen = floor > np.quantile(floor[floor > 0], _CLEAR)
    chosen = np.flatnonzero(chosen & inside[edges.ends[0]] & inside[edges.ends[1]])
    ends = np.zeros((len(chosen), vertices))
    for end in edges.ends:
        ends[np.arange(len(chosen)), end[chosen]] = 1.0
    ends = ends[:, ends.any(axis=0)]
    if len(chosen) < ends.shape[1] + 2:
        return None
    span = np.linalg.qr(ends)[0]
    out = []
    for momenta in choices:
        known, by = _free(chain, momenta, chosen, last, 0.0), _free(chain, momenta, chosen, last, 1.0)
        slopes = [float((a - b)[0]) for a, b in zip(known, by, strict=True)]
        off = chain.graphs[last, chosen] - known[-1] + slopes[-1] / slopes[0] * (known[0] - chain.graphs[0, chosen])
        out.append(float(np.linalg.norm(off - span @ (span.T @ off))))
    return np.array(out)


def _free(chain: Chain, momenta: Array, chosen: Array, last: int, distance: float) -> tuple[Array, Array]:
    """Ends of the first round and of `last` without barriers and projections, all distances alike."""
    method, ends = chain.method, []
    previous = np.zeros(chain.edges.count)[chosen]
    for place in range(last + 1):
        begin, before = chain.origin(place, np.zeros(chain.edges.count))
        graph, previous = begin[chosen], previous if place else before[chosen]
        anchor, strength = chain.anchors[place, chosen], chain.strengths[place]
        for step in range(method.local_steps):
            ahead = graph + momenta[place * method.local_steps + step] * (graph - previous)
            slope = distance + 4 * method.beta * ahead + strength * (ahead - anchor)
            previous, graph = graph, ahead - method.step_size * slope
        ends.append(graph)
    return ends[0], ends[-1]
