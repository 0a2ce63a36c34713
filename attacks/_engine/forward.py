"""Forward-mode derivatives on NumPy: an array that carries its derivatives along many directions.

A `DualArray` takes the place of an array in code that is written in NumPy, such as a client's step. Each operation
computes its value and the derivatives of that value together, so that the code needs no derivatives of its own. The
operations that have a rule are listed here (ufuncs) and in `array_rules` (functions); every other one is refused by
`NoDerivativeError`, and so is a conversion to an array or a number, which would drop the derivatives without a word.

Values have any shape (...); derivatives, called slopes, have the shape (..., directions). At points where a function
has no derivative: `maximum` and `minimum` follow the argument with derivatives where both are equal, the first if both
have them, so that a search leaves the kink; `absolute` and `norm` have slope 0 at 0. Branches follow the values:
comparisons return plain arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from securefed._tensors import Array
from securefed.errors import TranscriptError

MOST_DIRECTIONS: Final = 3000
"""Largest number of directions of one array: the normal matrix of so many unknowns takes 72 MB, and a factorisation
seconds. Half of it fits half as many unknowns; twice as many take four times the memory and eight times the time.
"""


class NoDerivativeError(TranscriptError):
    """The derivatives of a step cannot be computed; the message names the operation that stands in the way."""


class DualArray(NDArrayOperatorsMixin):
    """An array with its derivatives along several directions.

    Args:
        value: (...), the array.
        slopes: (..., directions), its derivatives.

    Raises:
        NoDerivativeError: there are more than `MOST_DIRECTIONS` directions.
    """

    __slots__ = ("slopes", "value")

    def __init__(self, value: Any, slopes: Array) -> None:
        self.value: Array = np.asarray(value)
        if slopes.shape[-1] > MOST_DIRECTIONS:
            raise NoDerivativeError(
                f"{slopes.shape[-1]} directions at a time; the limit is {MOST_DIRECTIONS}: fit fewer unknowns"
            )
        shape = (*self.value.shape, slopes.shape[-1])
        self.slopes: Array = slopes if slopes.shape == shape else np.broadcast_to(slopes, shape)

    @classmethod
    def variables(cls, point: Array) -> DualArray:
        """Return the unknowns at a point (n,): each has the derivative 1 along its own direction."""
        return cls(point, np.eye(len(point)))

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise NoDerivativeError(_CAST.format("an array (as np.asarray does)"))

    def __float__(self) -> float:
        raise NoDerivativeError(_CAST.format("a number"))

    __int__ = __complex__ = __index__ = __float__

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        out = options.pop("out", (None,))[0]  # of `x += y`
        if isinstance(out, DualArray) and method == "__call__" and not options:
            out[...] = ufunc(*inputs)
            return out
        if method == "__call__" and not options and out is None:
            if ufunc in _VALUE_ONLY:
                return ufunc(*(value_of(item) for item in inputs))
            if ufunc in UFUNCS:
                return UFUNCS[ufunc](*inputs)
        name = ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}"
        if out is not None:
            raise NoDerivativeError(_CAST.format(f"an array, the output of np.{name},"))
        raise NoDerivativeError(_NO_RULE.format(f"{name}{' with ' + ', '.join(options) if options else ''}"))

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> Any:
        if function in FUNCTIONS:
            return FUNCTIONS[function](*args, **options)
        raise NoDerivativeError(_NO_RULE.format(getattr(function, "__name__", function)))

    def __getitem__(self, index: Any) -> DualArray:
        return DualArray(self.value[index], self.slopes[_with_directions(index)])

    def __setitem__(self, index: Any, item: Any) -> None:
        if not (self.slopes.flags.writeable and self.value.flags.writeable):
            self.value, self.slopes = self.value.copy(), self.slopes.copy()
        self.value[index] = value_of(item)
        self.slopes[_with_directions(index)] = slopes_of(item)

    def __iter__(self) -> Iterator[DualArray]:
        return (self[k] for k in range(len(self.value)))

    def __len__(self) -> int:
        return len(self.value)

    def __bool__(self) -> bool:
        return bool(self.value)

    def __format__(self, spec: str) -> str:
        return format(self.value[()], spec)

    def __repr__(self) -> str:
        return f"DualArray({self.value!r}, {self.slopes.shape[-1]} directions)"

    def __getattr__(self, name: str) -> Any:
        if name in ("shape", "ndim", "size", "dtype", "nbytes"):
            return getattr(self.value, name)
        if name in ("T", "mT"):
            return self.transpose() if name == "T" else np.swapaxes(self, -1, -2)
        if getattr(np, name, None) in FUNCTIONS:
            return lambda *args, **options: getattr(np, name)(self, *args, **options)
        raise AttributeError(name)

    def transpose(self, *axes: Any) -> Any:
        """Return the array with its axes in another order, the reverse by default."""
        return np.transpose(self, axes[0] if len(axes) == 1 else axes or None)

    def reshape(self, *shape: Any) -> Any:
        """Return the array in another shape."""
        return np.reshape(self, shape[0] if len(shape) == 1 else shape)

    def astype(self, dtype: Any, **_: Any) -> DualArray:
        """Return the array; types other than float64 are refused."""
        if np.dtype(dtype) != np.float64:
            raise NoDerivativeError(_CAST.format(np.dtype(dtype).name))
        return self

    def flatten(self) -> Any:
        """Return the array with one axis."""
        return self.reshape(-1)


_CAST: Final = "a conversion to {} would drop the derivatives of the step; write it in array operations without it"
_NO_RULE: Final = "np.{} has no rule of differentiation; write the step in the operations that are listed"
FUNCTIONS: Final[dict[Any, Callable[..., Any]]] = {}
"""Functions that are no ufuncs, and their rules; `array_rules` fills it."""


def value_of(item: Any) -> Any:
    """Return the value of a dual array; anything else as it is."""
    return item.value if isinstance(item, DualArray) else item


def slopes_of(item: Any) -> Any:
    """Return the slopes of a dual array; 0 for a constant."""
    return item.slopes if isinstance(item, DualArray) else 0.0


def _with_directions(index: Any) -> Any:
    """Return the index of the slopes for one of the value: all directions are taken."""
    parts = index if isinstance(index, tuple) else (index,)
    return (*parts, slice(None)) if any(part is Ellipsis for part in parts) else index


def product_slopes(left: Any, right: Any) -> Any:
    """Return the slopes of the matrix product of two arrays, one of them dual, of two axes or more each."""
    out: Any = 0.0
    if isinstance(left, DualArray):  # d left @ right, with the directions as columns
        out = np.matmul(np.swapaxes(value_of(right), -1, -2)[..., None, :, :], left.slopes)
    if isinstance(right, DualArray):  # left @ d right, with columns and directions as one axis
        slopes = right.slopes
        flat = value_of(left) @ slopes.reshape(*slopes.shape[:-2], -1)
        out = out + flat.reshape(*flat.shape[:-1], *slopes.shape[-2:])
    return out


def _matmul(left: Any, right: Any) -> DualArray:
    """Return the matrix product; vectors are rows on the left and columns on the right, as in NumPy."""
    if value_of(left).ndim == 1:
        return _matmul(left[None], right)[..., 0, :] if value_of(right).ndim > 1 else (left * right).sum()
    if value_of(right).ndim == 1:
        return _matmul(left, right[:, None])[..., 0]
    return DualArray(value_of(left) @ value_of(right), product_slopes(left, right))


_ONE: Final = 1.0
"""A partial derivative by which slopes need not be multiplied."""


def _unary(function: Any, slope: Callable[[Array, Array], Any]) -> Callable[[Any], DualArray]:
    """Return the rule of a function of one array; `slope` maps x and f(x) to f'(x)."""

    def rule(x: DualArray) -> DualArray:
        value = function(x.value)
        return DualArray(value, np.asarray(slope(x.value, value))[..., None] * x.slopes)

    return rule


def _binary(function: Any, by_first: Callable[..., Any], by_second: Callable[..., Any]) -> Callable[..., DualArray]:
    """Return the rule of a function of two arrays, given its partial derivatives as functions of x, y and f(x, y)."""

    def rule(x: Any, y: Any) -> DualArray:
        a, b = np.asarray(value_of(x)), np.asarray(value_of(y))
        value = function(a, b)
        terms = []
        for item, partial in ((x, by_first), (y, by_second)):
            if isinstance(item, DualArray):
                lifted = item.slopes.reshape(*(1,) * (value.ndim - item.ndim), *item.slopes.shape)
                factor = partial(a, b, value)
                terms.append(lifted if factor is _ONE else np.asarray(factor)[..., None] * lifted)
        alone = terms[0].copy("K") if factor is _ONE else terms[0]  # slopes are not shared: they may change in place
        return DualArray(value, terms[0] + terms[1] if len(terms) == 2 else alone)

    return rule


def _extremum(function: Any, better: Any) -> Callable[..., DualArray]:
    """Return the rule of `maximum` or `minimum`; see the head of this file for ties."""

    def rule(x: Any, y: Any) -> DualArray:
        a, b = value_of(x), value_of(y)
        taken = better(a, b) | ((a == b) & isinstance(x, DualArray))
        slopes = np.where(taken[..., None], slopes_of(x), slopes_of(y))
        return DualArray(function(a, b), slopes)

    return rule


def _power_by_exponent(a: Array, b: Array, value: Array) -> Array:
    """Return d a^b / d b = a^b log a."""
    return value * np.log(a)


UFUNCS: Final[dict[Any, Callable[..., DualArray]]] = {
    np.add: _binary(np.add, lambda a, b, f: _ONE, lambda a, b, f: _ONE),
    np.subtract: _binary(np.subtract, lambda a, b, f: _ONE, lambda a, b, f: -1.0),
    np.multiply: _binary(np.multiply, lambda a, b, f: b, lambda a, b, f: a),
    np.divide: _binary(np.divide, lambda a, b, f: 1 / b, lambda a, b, f: -f / b),
    np.power: _binary(np.power, lambda a, b, f: b * a ** np.where(b == 0, 1, b - 1), _power_by_exponent),
    np.hypot: _binary(np.hypot, lambda a, b, f: a / f, lambda a, b, f: b / f),
    np.maximum: _extremum(np.maximum, np.greater),
    np.minimum: _extremum(np.minimum, np.less),
    np.matmul: _matmul,
    np.negative: _unary(np.negative, lambda x, f: -1.0),
    np.positive: _unary(np.positive, lambda x, f: 1.0),
    np.absolute: _unary(np.absolute, lambda x, f: np.sign(x)),
    np.sign: _unary(np.sign, lambda x, f: 0.0),
    np.square: _unary(np.square, lambda x, f: 2 * x),
    np.sqrt: _unary(np.sqrt, lambda x, f: 0.5 / f),
    np.reciprocal: _unary(np.reciprocal, lambda x, f: -f * f),
    np.exp: _unary(np.exp, lambda x, f: f),
    np.expm1: _unary(np.expm1, lambda x, f: f + 1),
    np.log: _unary(np.log, lambda x, f: 1 / x),
    np.log1p: _unary(np.log1p, lambda x, f: 1 / (1 + x)),
    np.tanh: _unary(np.tanh, lambda x, f: 1 - f * f),
    np.sin: _unary(np.sin, lambda x, f: np.cos(x)),
    np.cos: _unary(np.cos, lambda x, f: -np.sin(x)),
}
"""Ufuncs and their rules."""
_VALUE_ONLY: Final = frozenset(
    [np.less, np.less_equal, np.greater, np.greater_equal, np.equal, np.not_equal, np.isfinite, np.isnan, np.isinf]
)
"""Ufuncs whose result is piecewise constant and only steers branches: they return plain arrays."""
