"""The rules by which NumPy's functions differentiate: shapes, sums, norms and factorisations of dual arrays.

Importing this module fills `forward.FUNCTIONS`, where `DualArray` looks rules up. A factorisation differentiates only
where its factors are unique: columns of full rank for `qr`, different eigenvalues or singular values for the vectors
of `eigh` and `svd`. Otherwise `NoDerivativeError` says so.

d stands for a derivative below, and left and right products with slopes are those of `forward.product_slopes`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from securefed._tensors import Array
from securefed.attacks._engine.forward import (
    FUNCTIONS,
    DualArray,
    NoDerivativeError,
    product_slopes,
    slopes_of,
    value_of,
)

_GAP: Final = 1e-12
"""Smallest difference of two eigenvalues (of squares of singular values), relative to the largest, at which their
vectors are differentiated; smaller ones are round-off. At half or twice the value nothing changes but for such pairs.
"""


def _rule(*functions: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the rule of some functions."""

    def register(rule: Callable[..., Any]) -> Callable[..., Any]:
        FUNCTIONS.update(dict.fromkeys(functions, rule))
        return rule

    return register


def _axes(axis: Any, ndim: int) -> tuple[int, ...]:
    """Return axes counted from the front, all of them for `None`."""
    given = range(ndim) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    return tuple(k % ndim for k in given)


STEERING: Final[tuple[Any, ...]] = (
    *(np.shape, np.ndim, np.size, np.any, np.all, np.argmax, np.argmin, np.argsort, np.flatnonzero),
    *(np.count_nonzero, np.allclose, np.isclose, np.array_equal, np.iscomplexobj, np.isrealobj),
)
"""Functions whose result only steers branches: they return those of the values."""


def _of_values(function: Any) -> Callable[..., Any]:
    """Return the rule of a function in `STEERING`."""
    return lambda *args, **options: function(*(value_of(item) for item in args), **options)


FUNCTIONS.update({function: _of_values(function) for function in STEERING})


@_rule(np.copy)
def _copy(x: DualArray) -> Any:
    return DualArray(x.value.copy(), x.slopes.copy())


@_rule(np.reshape)
def _reshape(x: DualArray, shape: Any) -> Any:
    value = np.reshape(x.value, shape)
    return DualArray(value, x.slopes.reshape(*value.shape, x.slopes.shape[-1]))


@_rule(np.ravel)
def _ravel(x: DualArray) -> Any:
    return _reshape(x, -1)


@_rule(np.transpose)
def _transpose(x: DualArray, axes: Any = None) -> Any:
    order = tuple(range(x.ndim))[::-1] if axes is None else _axes(tuple(axes), x.ndim)
    return DualArray(x.value.transpose(order), x.slopes.transpose(*order, x.ndim))


@_rule(np.swapaxes, np.moveaxis)
def _swapaxes(x: DualArray, first: int, second: int) -> Any:
    first, second = _axes((first, second), x.ndim)
    return DualArray(np.swapaxes(x.value, first, second), np.swapaxes(x.slopes, first, second))


FUNCTIONS[np.moveaxis] = lambda x, source, to: DualArray(
    np.moveaxis(x.value, source, to), np.moveaxis(x.slopes, _axes(source, x.ndim), _axes(to, x.ndim))
)


@_rule(np.squeeze)
def _squeeze(x: DualArray, axis: Any = None) -> Any:
    return _reshape(x, np.squeeze(x.value, axis).shape)


@_rule(np.expand_dims)
def _expand_dims(x: DualArray, axis: Any) -> Any:
    return _reshape(x, np.expand_dims(x.value, axis).shape)


@_rule(np.atleast_2d)
def _atleast_2d(x: Any) -> Any:
    return x if value_of(x).ndim > 1 else x[None] if value_of(x).ndim else _reshape(x, (1, 1))


@_rule(np.broadcast_to)
def _broadcast_to(x: DualArray, shape: Any) -> Any:
    return x + np.zeros(shape)


@_rule(np.concatenate)
def _concatenate(items: Sequence[Any], axis: int = 0) -> Any:
    values = [np.asarray(value_of(item)) for item in items]
    directions = next(item.slopes.shape[-1] for item in items if isinstance(item, DualArray))
    slopes = [
        np.broadcast_to(slopes_of(item), (*value.shape, directions)) for item, value in zip(items, values, strict=True)
    ]
    return DualArray(np.concatenate(values, axis), np.concatenate(slopes, axis % values[0].ndim))


@_rule(np.stack)
def _stack(items: Sequence[Any], axis: int = 0) -> Any:
    return _concatenate([np.expand_dims(item, axis) for item in items], axis)


@_rule(np.hstack, np.column_stack)
def _hstack(items: Sequence[Any]) -> Any:
    return _concatenate(list(items), min(1, value_of(items[0]).ndim - 1))


@_rule(np.vstack)
def _vstack(items: Sequence[Any]) -> Any:
    return _concatenate([_atleast_2d(item) for item in items], 0)


@_rule(np.zeros_like)
def _zeros_like(x: DualArray, **_: Any) -> Any:
    return DualArray(np.zeros_like(x.value), np.zeros_like(x.slopes))


@_rule(np.take)
def _take(x: DualArray, index: Any, axis: Any = None) -> Any:
    return _ravel(x)[index] if axis is None else x[(slice(None),) * (axis % x.ndim) + (index,)]


@_rule(np.repeat)
def _repeat(x: DualArray, repeats: Any, axis: Any = None) -> Any:
    return _take(x, np.repeat(np.arange(x.size if axis is None else x.shape[axis]), repeats), axis)


@_rule(np.diagonal)
def _diagonal(x: DualArray, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
    first, second = _axes((axis1, axis2), x.ndim)
    slopes = np.diagonal(x.slopes, offset, first, second)
    return DualArray(np.diagonal(x.value, offset, first, second), np.moveaxis(slopes, -1, -2))


@_rule(np.diag)
def _diag(x: DualArray) -> Any:
    return _diagonal(x) if x.ndim > 1 else x * np.eye(len(x))


@_rule(np.triu, np.tril)
def _triangle(x: DualArray, k: int = 0) -> Any:
    return x * np.tri(x.shape[-2], x.shape[-1], k)


FUNCTIONS[np.triu] = lambda x, k=0: x * (1 - np.tri(x.shape[-2], x.shape[-1], k - 1))


@_rule(np.trace)
def _trace(x: DualArray) -> Any:
    return _sum(_diagonal(x), axis=-1)


@_rule(np.sum)
def _sum(x: DualArray, axis: Any = None, keepdims: bool = False) -> Any:
    axes = _axes(axis, x.ndim)
    return DualArray(x.value.sum(axes, keepdims=keepdims), x.slopes.sum(axes, keepdims=keepdims))


@_rule(np.cumsum)
def _cumsum(x: DualArray, axis: Any = None) -> Any:
    x, axis = (_ravel(x), 0) if axis is None else (x, axis % x.ndim)
    return DualArray(np.cumsum(x.value, axis), np.cumsum(x.slopes, axis))


@_rule(np.mean)
def _mean(x: DualArray, axis: Any = None, keepdims: bool = False) -> Any:
    count = np.prod([x.shape[k] for k in _axes(axis, x.ndim)])
    return _sum(x, axis, keepdims) / float(count)


@_rule(np.var)
def _var(x: DualArray, axis: Any = None, ddof: int = 0) -> Any:
    count = float(np.prod([x.shape[k] for k in _axes(axis, x.ndim)]))
    return _sum(np.square(x - _mean(x, axis, keepdims=True)), axis) / (count - ddof)


@_rule(np.std)
def _std(x: DualArray, axis: Any = None, ddof: int = 0) -> Any:
    return np.sqrt(_var(x, axis, ddof))


@_rule(np.max, np.min)
def _max(x: DualArray, axis: Any = None, keepdims: bool = False) -> Any:
    return _chosen(x, np.argmax, axis, keepdims)


FUNCTIONS[np.min] = lambda x, axis=None, keepdims=False: _chosen(x, np.argmin, axis, keepdims)


def _chosen(x: DualArray, argument: Any, axis: Any, keepdims: bool) -> Any:
    """Return the entry at the argument of the maximum or minimum, the first of several equal ones."""
    if axis is None:
        return _ravel(x)[argument(x.value)]
    place = np.expand_dims(argument(x.value, axis), axis)
    value = np.take_along_axis(x.value, place, axis)
    out = DualArray(value, np.take_along_axis(x.slopes, place[..., None], axis % x.ndim))
    return out if keepdims else _squeeze(out, axis)


@_rule(np.where)
def _where(chosen: Any, one: Any, other: Any) -> Any:
    chosen = np.asarray(value_of(chosen))
    value = np.where(chosen, value_of(one), value_of(other))
    return DualArray(value, np.where(chosen[..., None], slopes_of(one), slopes_of(other)))


@_rule(np.clip)
def _clip(x: DualArray, low: Any = None, high: Any = None) -> Any:
    x = x if low is None else np.maximum(low, x)
    return x if high is None else np.minimum(high, x)


@_rule(np.dot, np.inner)
def _dot(left: Any, right: Any) -> Any:
    return left * right if 0 in (np.ndim(left), np.ndim(right)) else left @ right


@_rule(np.vdot)
def _vdot(left: Any, right: Any) -> Any:
    return _sum(np.ravel(left) * np.ravel(right))


@_rule(np.outer)
def _outer(left: Any, right: Any) -> Any:
    return np.ravel(left)[:, None] * np.ravel(right)


@_rule(np.einsum)
def _einsum(subscripts: str, *operands: Any, optimize: Any = False) -> Any:
    inputs, arrow, output = subscripts.replace(" ", "").partition("->")
    if not arrow:
        output = "".join(sorted(letter for letter in set(inputs) - {","} if inputs.count(letter) == 1))
    names, values = inputs.split(","), [value_of(item) for item in operands]
    slopes: Any = 0.0
    for k, item in enumerate(operands):
        if isinstance(item, DualArray):  # 'Z' stands for the directions
            terms = ",".join([*names[:k], names[k] + "Z", *names[k + 1 :]])
            varied = [*values[:k], item.slopes, *values[k + 1 :]]
            slopes = slopes + np.einsum(f"{terms}->{output}Z", *varied, optimize=True)
    return DualArray(np.einsum(f"{inputs}->{output}", *values, optimize=True), slopes)


@_rule(np.linalg.norm)
def _norm(x: DualArray, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Any:
    if ord == 2 and axis is None and x.ndim == 2:
        return np.linalg.svd(x, compute_uv=False)[0]
    if ord not in (None, "fro", 2):
        raise NoDerivativeError(f"np.linalg.norm with ord={ord!r} has no rule of differentiation; the 2-norm has one")
    axes = _axes(axis, x.ndim)
    value = np.sqrt(np.square(x.value).sum(axes, keepdims=True))
    unit = x.value / np.where(value == 0, 1.0, value)
    out = DualArray(value, (unit[..., None] * x.slopes).sum(axes, keepdims=True))
    return out if keepdims else _squeeze(out, axes)


@_rule(np.linalg.solve)
def _solve(matrix: Any, right: Any) -> Any:
    if np.ndim(right) == 1:
        return _solve(matrix, right[:, None])[:, 0]
    value = np.linalg.solve(value_of(matrix), value_of(right))  # dx = A^-1 (db - dA x)
    slopes = slopes_of(right) - (product_slopes(matrix, value) if isinstance(matrix, DualArray) else 0.0)
    flat = np.linalg.solve(value_of(matrix), slopes.reshape(*slopes.shape[:-2], -1))
    return DualArray(value, flat.reshape(slopes.shape))


@_rule(np.linalg.inv)
def _inv(matrix: DualArray) -> Any:
    return _solve(matrix, np.eye(matrix.shape[-1]))


def _left(matrix: Array, slopes: Array) -> Array:
    """Return matrix @ d for slopes (..., rows, columns, directions)."""
    return np.asarray(product_slopes(matrix, DualArray(slopes[..., 0], slopes)))


def _right(slopes: Array, matrix: Array) -> Array:
    """Return d @ matrix for slopes (..., rows, columns, directions)."""
    return np.asarray(product_slopes(DualArray(slopes[..., 0], slopes), matrix))


@_rule(np.linalg.qr)
def _qr(matrix: DualArray, mode: str = "reduced") -> Any:
    """Return dQ = (I - Q Q^T) dN R^-1 + Q (B - B^T), with B the part of Q^T dN R^-1 below the diagonal."""
    size = min(matrix.shape[-2:])
    Q, R = np.linalg.qr(matrix.value[..., :size])
    if mode not in ("reduced", "r"):
        raise NoDerivativeError(f"np.linalg.qr in mode {mode!r} has no rule of differentiation; 'reduced' has one")
    turned = _right(matrix.slopes[..., :size, :], np.linalg.inv(R))
    inner = _left(np.swapaxes(Q, -1, -2), turned)
    below = inner * np.tri(size, k=-1)[..., None]
    skew = below - np.swapaxes(below, -2, -3)
    basis = DualArray(Q, turned + _left(Q, skew - inner))
    triangle = basis.mT @ matrix
    return triangle if mode == "r" else (basis, triangle)


@_rule(np.linalg.cholesky)
def _cholesky(matrix: DualArray) -> Any:
    """Differentiate L L^T = A: dL = L P(L^-1 dA L^-T), with P the lower triangle, its diagonal halved."""
    L = np.linalg.cholesky(matrix.value)
    inverse = np.linalg.inv(L)
    inner = _right(_left(inverse, matrix.slopes), np.swapaxes(inverse, -1, -2))
    size = len(L)
    return DualArray(L, _left(L, inner * (np.tri(size) - np.eye(size) / 2)[..., None]))


def _gaps(values: Array, inner: Array) -> Array:
    """Return 1 / (l_j - l_i) for eigenvalues l, 0 on the diagonal.

    Raises:
        NoDerivativeError: two of them are equal, and the slopes `inner` between their vectors are not 0.
    """
    gaps = values - values[:, None]
    equal = np.abs(gaps) <= _GAP * np.abs(values).max(initial=0.0)
    np.fill_diagonal(equal, False)
    if np.any(np.abs(inner[equal]) > _GAP * np.abs(inner).max(initial=0.0)):
        raise NoDerivativeError("the vectors of a repeated eigenvalue or singular value have no derivative")
    np.fill_diagonal(equal, True)
    return np.where(equal, 0.0, 1 / np.where(equal, 1.0, gaps))


@_rule(np.linalg.eigh)
def _eigh(matrix: DualArray) -> tuple[DualArray, DualArray]:
    values, vectors = np.linalg.eigh(matrix.value)
    inner = _right(_left(vectors.T, matrix.slopes), vectors)
    inner = (inner + inner.transpose(1, 0, 2)) / 2
    slopes = _left(vectors, _gaps(values, inner)[..., None] * inner)
    return DualArray(values, np.einsum("iik->ik", inner)), DualArray(vectors, slopes)


@_rule(np.linalg.eigvalsh)
def _eigvalsh(matrix: DualArray) -> Any:
    values, vectors = np.linalg.eigh(matrix.value)
    return DualArray(values, np.einsum("ji,jlk,li->ik", vectors, matrix.slopes, vectors, optimize=True))


@_rule(np.linalg.svd)
def _svd(matrix: DualArray, full_matrices: bool = False, compute_uv: bool = True) -> Any:
    U, s, Vt = np.linalg.svd(matrix.value, full_matrices=False)
    inner = _right(_left(U.T, matrix.slopes), Vt.T)  # U^T dA V
    singular = DualArray(s, np.einsum("iik->ik", inner))
    if not compute_uv:
        return singular
    if full_matrices and len(U) != len(Vt.T):
        raise NoDerivativeError("np.linalg.svd differentiates with full_matrices=False only")
    crossed, column, row = inner.transpose(1, 0, 2), s[:, None, None], s[None, :, None]
    gaps = _gaps(s**2, inner)[..., None]
    left = _left(U, gaps * (inner * row + column * crossed))
    outside = _right(matrix.slopes, Vt.T / s)  # dA V / s, of which the part outside the span of U counts
    left = left + outside - _left(U, _left(U.T, outside))
    right = _left(Vt.T, gaps * (column * inner + crossed * row))
    beyond = _right(matrix.slopes.transpose(1, 0, 2), U / s)
    right = right + beyond - _left(Vt.T, _left(Vt, beyond))
    return DualArray(U, left), singular, DualArray(Vt, right.transpose(1, 0, 2))
