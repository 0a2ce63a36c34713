"""FAPS' client taken apart: a start for the fit of S, found by multiple shooting.

A simulated client composes all its rounds, and where the inner iterations converge slowly a small change of S turns
the subspaces by much: the fit's basin is small. Here S and every subspace X_k are unknown. Each message depends on
S and one X_k alone; that the inner iterations of round k lead from X_{k-1} to X_k is one more equation, which need
not hold before the end. Where the inner counts follow a rule, it is applied again at every step, with the S and the
X_{k-1} of that step.

Source: Bock and Plitt, A multiple shooting algorithm for direct solution of optimal control problems (1984).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.linalg import LinAlgError

from securefed.algorithms.pca.faps import FAPS
from securefed.algorithms.pca.operators import off, orth
from securefed.attacks.gram.coordinates import Coordinates
from securefed.attacks.gram.faps_client import Course, Moved, Operator, by_rule, mask, product, product_tangents
from securefed.attacks.gram.tangents import horizontal, left, right
from securefed.attacks.levenberg import Geodesic, levenberg
from securefed.errors import DivergenceError
from securefed.tensors import Array

FOUND = 1e-8
_LINK_WEIGHT = 0.1
"""Of the equations that link subspaces: at 1 the basin is small again, at .01 the valleys are flat."""
_QUICK, _SLOWNESS = 8.0, 3.0
"""More inner steps say that they converge slowly, and where they end hangs on every digit of S: such a link weighs
less, by this power of the count."""
_PATIENCE, _SETTLED, _NOISE = 20, 4, 1e-3
"""Steps within which the norm must halve; fewer below the last, where noise of the messages may be all that is left."""
_HELD, _HELD_COUNTS = 12, 20
"""While S is held near its start: steps, and the largest inner count."""


@dataclass(frozen=True)
class Landed:
    """Where the search ended.

    Attributes:
        x: parameters of S.      counts: inner counts of rounds 1, 2, ...      norm: of the residual.
        steps: that it took.
    """

    x: Array
    counts: Array
    norm: float
    steps: int


@dataclass(frozen=True)
class Shooting:
    """The equations of the first rounds, in units of lambda_1(S).

    Attributes:
        course: probes Z_k, beta_k and, where they are fixed, the inner steps.
        products: Y_k.      norms: what their entries count by, of a message or (features, 1).
        more: further residuals of S alone, and their derivative.
    """

    algorithm: FAPS
    course: Course
    products: Sequence[Array]
    norms: Sequence[float | Array]
    coordinates: Coordinates
    more: Callable[[Array], tuple[Array, Array]]
    bases: Sequence[Array] = field(init=False)

    def __post_init__(self) -> None:
        rank = self.course.probes[0].shape[1]
        bases = [np.linalg.qr(Z, mode="complete")[0][:, rank:] for Z in self.course.probes]
        object.__setattr__(self, "bases", bases)

    def search(self, x: Array, steps: int, hold: float = 0.0) -> Landed:
        """From S(x) and X_k = Z_k.

        Args:
            hold: how strongly S is held near its start in the first steps, in units of the residual's norm.
        """
        point = np.concatenate([x, np.zeros((len(self.course.probes) - 1) * self._moves)])
        held = _Held(self, x)
        stepper = Geodesic(held.residual)
        norm = best = held.settle(point, hold)
        taken = waited = 0
        while norm > FOUND and taken < steps and waited < (_SETTLED if norm < _NOISE else _PATIENCE):
            before = float(np.linalg.norm(held.residual(point)))
            fit = levenberg(held.linearised, point, steps=1, goal=FOUND, residual=held.residual, stepper=stepper)
            taken += 1
            if not fit.norm < before:
                break
            point = fit.point
            norm = held.settle(point, hold if taken < _HELD else 0.0)
            best, waited = (norm, 0) if norm < 0.5 * best else (best, waited + 1)
        return Landed(x=point[: len(x)], counts=held.counts.astype(float), norm=norm, steps=taken)

    def residual(self, point: Array, counts: Array) -> Array:
        """Relative misfits of the messages, what else is known of S, and the gaps between the rounds."""
        S, subspaces = self._at(point)
        if S is None:
            return np.full(1, np.nan)
        try:
            masks = [-off(X, S @ X) for X in subspaces]
            gaps = []
            for k in range(1, len(subspaces)):
                V, H = subspaces[k - 1], self._operator(S, subspaces, masks, k)
                for _ in range(int(counts[k - 1])):
                    V = orth(H.times(V))
                gaps.append(_weight(counts[k - 1]) * (self._chart(k, V) - self._block(point, k)))
        except (LinAlgError, DivergenceError):
            return np.full(1, np.nan)
        return self._stack(self._misfits(subspaces, masks), self.more(point[: self.coordinates.count])[0], gaps)

    def linearised(self, point: Array, counts: Array) -> tuple[Array, Array]:
        """`residual` and its derivative (equations, parameters)."""
        size, rounds = self.coordinates.count, len(self.course.probes)
        S, subspaces = self._at(point)
        assert S is not None
        directions = self.coordinates.at(point[:size])
        dXs = [self._moved(point, k) for k in range(rounds)]
        pairs = [mask(S, X, dX, directions) for X, dX in zip(subspaces, dXs, strict=True)]
        masks, d_masks = [W for W, _ in pairs], [dW for _, dW in pairs]
        rows, gaps, links = [], [], []
        for k, (X, dX, W, dW) in enumerate(zip(subspaces, dXs, masks, d_masks, strict=True)):
            dY = product_tangents(X, dX, W, dW, self.course.betas[k], self.course.probes[k])
            rows.append(self._spread(dY / np.expand_dims(self.norms[k], -1), k))
            if k:
                H = self._operator(S, subspaces, masks, k)
                moved = Moved(H, dXs[k - 1], d_masks[k - 1], directions)
                V, dV = subspaces[k - 1], dXs[k - 1]
                for _ in range(int(counts[k - 1])):
                    V, dV = horizontal(H.times(V), moved.times(V, dV))
                weight = _weight(counts[k - 1])
                gaps.append(weight * (self._chart(k, V) - self._block(point, k)))
                link = self._spread(self._chart_tangents(k, V, dV), k - 1)
                link[:, self._columns(k)] -= np.eye(self._moves)
                links.append(weight * link)
        more, slopes = self.more(point[:size])
        wide = np.zeros((len(slopes), len(point)))
        wide[:, :size] = slopes
        return self._stack(self._misfits(subspaces, masks), more, gaps), np.vstack([*rows, wide, *links])

    @property
    def _moves(self) -> int:
        """Parameters of one subspace."""
        features, rank = self.course.probes[0].shape
        return int((features - rank) * rank)

    def _columns(self, k: int) -> slice:
        start = self.coordinates.count + (k - 1) * self._moves
        return slice(start, start + self._moves)

    def _block(self, point: Array, k: int) -> Array:
        """T_k, X_k = orth(Z_k + B_k T_k), B_k an orthonormal basis beside Z_k."""
        return point[self._columns(k)].reshape(self.bases[k].shape[1], -1)

    def _at(self, point: Array) -> tuple[Array | None, list[Array]]:
        """S and the subspaces; nothing where they are out of reach."""
        probes = self.course.probes
        try:
            S = self.coordinates.matrix(point[: self.coordinates.count])
            rest = [orth(Z + self.bases[k] @ self._block(point, k)) for k, Z in enumerate(probes) if k]
        except (LinAlgError, DivergenceError):
            return None, []
        return (S if np.isfinite(S).all() else None), [probes[0], *rest]

    def _moved(self, point: Array, k: int) -> Array:
        """dX_k by the parameters of S, which do not move it, and its own; X_0 has none."""
        Z, size = self.course.probes[k], self.coordinates.count
        if not k:
            return np.zeros((len(Z), size, Z.shape[1]))
        B, rank = self.bases[k], Z.shape[1]
        d = np.zeros((len(Z), size + self._moves, rank))
        own = d[:, size:].reshape(len(Z), B.shape[1], rank, rank)
        own[:, :, np.arange(rank), np.arange(rank)] = B[:, :, None]
        return horizontal(Z + B @ self._block(point, k), d)[1]

    def _spread(self, tangents: Array, k: int) -> Array:
        """Tangents (rows, parameters of S and X_k, columns) as rows of the whole Jacobian."""
        size = self.coordinates.count
        flat = tangents.transpose(0, 2, 1).reshape(-1, tangents.shape[1])
        out = np.zeros((len(flat), size + (len(self.course.probes) - 1) * self._moves))
        out[:, :size] = flat[:, :size]
        if k:
            out[:, self._columns(k)] = flat[:, size:]
        return out

    def _chart(self, k: int, V: Array) -> Array:
        """T of the subspace V."""
        return np.asarray(self.bases[k].T @ V @ np.linalg.inv(self.course.probes[k].T @ V))

    def _chart_tangents(self, k: int, V: Array, dV: Array) -> Array:
        inverse = np.linalg.inv(self.course.probes[k].T @ V)
        T = self.bases[k].T @ V @ inverse
        return right(left(self.bases[k].T, dV) - left(T, left(self.course.probes[k].T, dV)), inverse)

    def _operator(self, S: Array, subspaces: Sequence[Array], masks: Sequence[Array], k: int) -> Operator:
        """H of the inner iterations that lead to X_k."""
        return Operator(S, subspaces[k - 1], masks[k - 1], self.course.betas[k], self.course.probes[k])

    def _misfits(self, subspaces: Sequence[Array], masks: Sequence[Array]) -> list[Array]:
        course = self.course
        sent = [product(*all_) for all_ in zip(subspaces, masks, course.betas, course.probes, strict=True)]
        return [(Y - seen) / norm for Y, seen, norm in zip(sent, self.products, self.norms, strict=True)]

    def _stack(self, misfits: Sequence[Array], more: Array, gaps: Sequence[Array]) -> Array:
        flat = [part.reshape(-1) for part in misfits] + [more] + [gap.reshape(-1) for gap in gaps]
        return np.concatenate(flat)

    def counts(self, point: Array) -> Array:
        """Inner counts of rounds 1, 2, ... as they seem from here."""
        S, subspaces = self._at(point)
        rounds = range(1, len(self.course.probes))
        if self.course.steps is not None or S is None:
            return np.full(len(rounds), self.course.steps or 1)
        masks = [-off(X, S @ X) for X in subspaces]
        return np.array([by_rule(self._operator(S, subspaces, masks, k), self.algorithm)[0] for k in rounds])


class _Held:
    """The equations with the inner counts of one step, S held near its start."""

    def __init__(self, shooting: Shooting, start: Array) -> None:
        self._of, self._start, self._pull = shooting, start, 0.0

    def settle(self, point: Array, hold: float) -> float:
        """Choose the counts, and how strongly to hold; the norm without holding."""
        counts = self._of.counts(point)
        self.counts = np.minimum(counts, _HELD_COUNTS) if hold else counts
        norm = float(np.linalg.norm(self._of.residual(point, self.counts)))
        self._pull = hold * min(norm, 1.0) / float(np.linalg.norm(self._start))
        return norm

    def residual(self, point: Array) -> Array:
        return self._with(self._of.residual(point, self.counts), point)

    def linearised(self, point: Array) -> tuple[Array, Array]:
        residual, jacobian = self._of.linearised(point, self.counts)
        if self._pull:
            jacobian = np.vstack([jacobian, self._pull * np.eye(len(self._start), len(point))])
        return self._with(residual, point), jacobian

    def _with(self, residual: Array, point: Array) -> Array:
        pulled = self._pull * (point[: len(self._start)] - self._start) if self._pull else np.zeros(0)
        return np.concatenate([residual, pulled])


def _weight(count: float) -> float:
    """Of the link made by so many inner steps."""
    return float(_LINK_WEIGHT * min(1.0, (_QUICK / count) ** _SLOWNESS))
