"""Draw the graph that distances make: each vertex joined with its nearest ones, as graph learning would join them.

The secret of graph learning is the matrix of squared distances between the vertices' signals, from which a graph
follows. `pictures` calls `neighbour_graphs` to show how much of the graph a reconstruction of the distances gives away.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from markupsafe import Markup

from securefed._tensors import Array

_NEAREST: Final = 2
"""Neighbours that each vertex is joined with: the fewest that usually connect a graph of some ten vertices."""
_SIDE: Final = 150
"""Pixels of a side of a drawing."""
_MARGIN: Final = 14
"""Pixels between the vertices and the side."""
Edges = set[tuple[int, int]]
"""Pairs of vertices, the smaller number first."""


def neighbour_graphs(truth: Array, estimate: Array) -> tuple[tuple[Markup, ...], str]:
    """Draw the graphs of the true and of the reconstructed distances, both at the true positions.

    Args:
        truth: squared distances between the vertices' signals, (vertices, vertices).
        estimate: the reconstructed ones, of the same shape.

    Returns:
        The two drawings, and a sentence that counts the edges that agree.
    """
    own, found = (_edges(matrix) for matrix in (truth, estimate))
    places = _places(truth)
    same = len(own & found)
    titles = f"Graph of the original distances, {len(own)} edges", f"Graph of the reconstruction, {same} edges agree"
    drawn = tuple(_draw(places, edges, own, title) for edges, title in zip((own, found), titles, strict=True))
    note = (
        f"Each vertex is joined with the {_NEAREST} nearest. {same} of {len(own)} edges are the original's; wrong ones "
        "are dashed."
    )
    return drawn, note


def _edges(distances: Array) -> Edges:
    """Join each vertex with its nearest ones; distances that are unknown (NaN) or to itself count as infinite."""
    far = np.nan_to_num(distances, nan=np.inf) + np.diag(np.full(len(distances), np.inf))
    nearest = np.argsort(far, axis=1, kind="stable")[:, :_NEAREST]
    return {(min(i, int(j)), max(i, int(j))) for i, row in enumerate(nearest) for j in row}


def _places(distances: Array) -> Array:
    """Place the vertices in a plane by classical scaling, (vertices, 2), between the margins of the drawing.

    For squared distances D and J = I - 11^T / n the coordinates are the two leading eigenvectors of -J D J / 2, each
    times the square root of its eigenvalue.
    """
    count = len(distances)
    centre = np.eye(count) - 1 / count
    values, vectors = np.linalg.eigh(-0.5 * centre @ distances @ centre)
    plane = vectors[:, -2:] * np.sqrt(np.maximum(values[-2:], 0.0))
    low, spread = plane.min(axis=0), np.ptp(plane, axis=0)
    shares: Array = (plane - low) / np.where(spread > 0, spread, 1.0)
    return _MARGIN + shares * (_SIDE - 2 * _MARGIN)


def _draw(places: Array, edges: Edges, right: Edges, title: str) -> Markup:
    """Draw vertices and edges as SVG; edges that are not among the right ones get the style of wrong ones."""
    parts = [f'<svg class="graph" viewBox="0 0 {_SIDE} {_SIDE}" role="img" aria-label="{title}">']
    for i, j in sorted(edges):
        (a, b), (c, d) = places[i], places[j]
        css = "right" if (i, j) in right else "wrong"
        parts.append(f'<line class="{css}" x1="{a:.1f}" y1="{b:.1f}" x2="{c:.1f}" y2="{d:.1f}"/>')
    parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5"/>' for x, y in places]
    return Markup("".join(parts) + "</svg>")  # noqa: S704 - numbers and fixed words alone
