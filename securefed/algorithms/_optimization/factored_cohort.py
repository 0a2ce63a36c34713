"""Compute several clients' local steps without forming the gradients of large weight matrices in every step.

`cohort.py` makes one `FactoredCohort` for a group of simulated clients and a round, where that saves multiplications;
the method's local steps call its `gradient`. A vector has one entry for each parameter of the model.

Where the rows X of a step enter a model only as z = X W^T, W (outputs, features), the gradient of the loss in W is
D^T X, with D = d loss / dz (the slopes). Local steps only add and scale vectors. So W is at any time a combination of
vectors W_j that the client received or remembered and of the gradients D_s^T X_s of earlier steps s, with numbers a_j
and c_s:

    W = sum_j a_j W_j + sum_s c_s D_s^T X_s,    hence    X W^T = sum_j a_j X W_j^T + sum_s c_s (X X_s^T) D_s

This needs the small matrices X X_s^T instead of a gradient of W's size in every step; W itself is formed once a round,
for what is sent. The same holds for an inner weight of a network, with the inputs of its layer in the place of X; for
back-propagation it is also multiplied from the other side, D W. The other parameters (biases, small weights) are
formed: their entries are computed in every step.

A method's update lines run unchanged: where they would get a vector of numbers they get a `FactoredVector`, which keeps
the a_j and c_s, and the formed entries as a `LazySum`, a linear combination of arrays evaluated when numbers are asked
for. They must not write into vectors: stored arrays are told apart by their Python `id`, and never change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from securefed._tensors import Array, Layout, TensorSpec
from securefed.algorithms._optimization.array_pool import ArrayPool
from securefed.algorithms._optimization.factored_gradients import Coefficient, Coefficients, FactoredGradients
from securefed.algorithms._optimization.lazy_sums import MANY, LazySum, unscaled
from securefed.algorithms._optimization.model import Model
from securefed.algorithms._optimization.stacked_rows import StackedRows, joined
from securefed.problems._base import LinearInput
from securefed.problems._weight_products import DenseWeightProducts, times, turned


@dataclass(eq=False)
class FactoredCohort:
    """A group of clients whose vectors are kept as combinations of stored vectors and of gradients in factors.

    Attributes:
        model: the model; its problem is a `LinearInput`, whose input weight W comes first in a vector.
        problem: that problem; it computes D and the gradients of all other parameters from X W^T.
        count: number of clients.
        inner: names of the problem's inner weights (those of later layers) that are not formed in every step either.
        pool: where large arrays come from.
        vectors: received or remembered vectors, (parameters,) or (clients, parameters), by Python's `id`.
        taken: X_s and D_s of each gradient computed so far; D_s is (clients, widest, outputs), with `widest` the
            largest number of rows of a client in the step.
        factors: by name of an inner weight, its gradients in factors.
    """

    model: Model
    problem: LinearInput
    count: int
    inner: Sequence[str] = ()
    pool: ArrayPool = field(default_factory=ArrayPool)
    vectors: dict[int, Array] = field(default_factory=dict)
    taken: list[tuple[StackedRows, Array]] = field(default_factory=list)
    factors: dict[str, FactoredGradients] = field(init=False)
    _places: dict[str, slice] = field(init=False)  # of each parameter, its entries in a vector
    _rests: dict[int, LazySum] = field(default_factory=dict)  # of each stored vector, the entries of `others`
    _products: dict[tuple[int, int], Array] = field(default_factory=dict)  # X W_j^T and X X_s^T, by `id` of the factors
    # by `id` of rows, the c_s of the last sum_s c_s D_s over steps on these rows, and that sum
    _added: dict[int, tuple[Coefficients, Array | None]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.factors = {name: FactoredGradients(self.pool) for name in self.inner}
        self._places, start = {}, 0
        for spec in self.model.layout:
            self._places[spec.name] = slice(start, start + spec.size)
            start += spec.size

    @property
    def input(self) -> TensorSpec:
        """The weight W by which the rows enter."""
        return self.model.layout.specs[0]

    @cached_property
    def others(self) -> Layout:
        """The parameters that are formed in every step: all but W and the inner weights `inner`."""
        return Layout(tuple(spec for spec in self.model.layout.specs[1:] if spec.name not in self.factors))

    @property
    def formed(self) -> tuple[int, int]:
        """Shape of the entries of `others`, one parameter after another: (clients, entries)."""
        return self.count, self.others.size

    def part(self, vector: Array, name: str) -> Array:
        """Return the entries (..., size) of one parameter in a vector."""
        return vector[..., self._places[name]]

    def of(self, vector: Array | FactoredVector) -> FactoredVector:
        """Return a stored vector as a `FactoredVector`, one times itself."""
        if isinstance(vector, FactoredVector):
            return vector
        if id(vector) not in self._rests:
            self.vectors[id(vector)] = vector
            self._rests[id(vector)] = LazySum.of(self.pool, self._rest(vector))
        return FactoredVector(self, {id(vector): 1.0}, {}, self._rests[id(vector)])

    def gradient(self, point: Array | FactoredVector, rows: StackedRows) -> FactoredVector:
        """Compute the clients' mean gradients over `rows`, each at the client's own point, or all at the same.

        `point` is (clients, parameters), or (parameters,) where it is common to all clients.
        """
        own, others = self.of(point), self.others
        rest = own.rest.numbers(self.formed, self.model.problem.dtype)
        known = others.unflatten(np.broadcast_to(rest, self.formed))  # the point's `others`, by name
        flat = self.pool.empty(self.formed, rest.dtype)
        room = others.unflatten(flat)  # views of `flat`, into which their gradients are written
        products = _Products(self, own, DenseWeightProducts(known, self.problem.l2, room))
        slope, found = self.problem.after_input(self._entered(own, rows), known, products, rows.y, rows.weights)
        self.taken.append((rows, slope))
        steps: dict[int, Coefficient] = {len(self.taken) - 1: 1.0}  # this step's c_s
        for name, place in room.items():
            if found[name] is not place:  # the problem made an array of its own
                place[...] = found[name]
        gradient = FactoredVector(self, {}, steps, LazySum.of(self.pool, flat))
        if self.problem.l2:  # of the weights that are not formed; those of the others are in `found`
            l2 = self.problem.l2
            decay = FactoredVector(self, _scaled(own.vectors, l2), _scaled(own.steps, l2), LazySum(self.pool, {}))
            gradient = gradient.plus(decay, 1.0)
        return gradient

    def numbers(self, own: FactoredVector) -> Array:
        """Compute the entries of a vector, (clients, parameters)."""
        out = self.pool.empty((self.count, self.model.layout.size), self.model.problem.dtype)
        for columns, places in self._columns():
            own.rest.write(out[:, places], columns)
        for spec in (self.input, *(spec for spec in self.model.layout if spec.name in self.factors)):
            self._form(own, spec, out[:, self._places[spec.name]])
        return out

    def _form(self, own: FactoredVector, spec: TensorSpec, out: Array) -> None:
        """Write the entries of a weight, sum_s c_s D_s^T X_s + sum_j a_j W_j, into `out`, (clients, size)."""
        if own.steps and spec is self.input:
            slopes, rows = self._gathered(own.steps)
            np.matmul(turned(slopes), rows, out=out.reshape(self.count, *spec.shape))
        elif own.steps:
            self.factors[spec.name].form(own.steps, out.reshape(self.count, *spec.shape))
        elif not own.vectors:
            out[...] = 0.0
        for index, (identity, coefficient) in enumerate(own.vectors.items()):
            term = coefficient * self.part(self.vectors[identity], spec.name)
            if index or own.steps:
                out += term
            else:
                out[...] = term

    def weights(self, own: FactoredVector, spec: TensorSpec) -> list[tuple[Coefficient, Array]]:
        """Return the (a_j, W_j) of a weight, W_j (outputs, inputs) or (clients, outputs, inputs).

        Terms that are common to all clients are added up to one.
        """
        common, out = np.zeros(spec.size, self.model.problem.dtype), []
        for identity, coefficient in own.vectors.items():
            entries = self.part(self.vectors[identity], spec.name)
            if entries.ndim == 1 and np.ndim(coefficient) == 0:
                common += coefficient * entries
            else:
                out.append((_cube(coefficient), entries.reshape(*entries.shape[:-1], *spec.shape)))
        return [(1.0, common.reshape(spec.shape)), *out]

    def _rest(self, vector: Array) -> Array:
        """Return the entries of `others` in a stored vector; a view where they lie together."""
        if not self.factors:
            return vector[..., self.input.size :]
        return np.concatenate([self.part(vector, spec.name) for spec in self.others], axis=-1)

    def _columns(self) -> list[tuple[slice, slice]]:
        """Return the columns of the entries of `others`, and for each its place in a vector."""
        if not self.factors:
            return [(slice(None), slice(self.input.size, None))]
        out, start = [], 0
        for spec in self.others:
            out.append((slice(start, start + spec.size), self._places[spec.name]))
            start += spec.size
        return out

    def _entered(self, own: FactoredVector, rows: StackedRows) -> Array:
        """Compute X W^T = sum_s c_s (X X_s^T) D_s + sum_j a_j X W_j^T, (clients, widest, outputs)."""
        terms = [self._kernel(rows, earlier) @ slope for earlier, slope in self._sums(own.steps)]
        for identity, coefficient in own.vectors.items():
            product = self._product(identity, rows)
            if terms and unscaled(coefficient):  # a_j = 1: saves a copy; terms[0] is an array of our own
                terms[0] += product
            else:
                terms.append(_cube(coefficient) * product)
        return _summed(terms or [np.zeros((*rows.x.shape[:2], self.input.shape[0]), rows.x.dtype)])

    def _product(self, identity: int, rows: StackedRows) -> Array:
        """Return X W_j^T for a stored vector: a part of the product of all steps' rows, `whole`, kept for the round."""
        key = (identity, id(rows.whole))
        if key not in self._products:
            vector = self.part(self.vectors[identity], self.input.name)
            weight = vector.reshape(*vector.shape[:-1], *self.input.shape)
            self._products[key] = times(rows.whole, turned(weight))
        return self._products[key][:, rows.start : rows.start + rows.x.shape[1]]

    def _kernel(self, rows: StackedRows, earlier: StackedRows) -> Array:
        """Compute X X_s^T, (clients, widest, widest of step s); it is kept for the whole round."""
        key = (id(rows), id(earlier))
        if key not in self._products:
            self._products[key] = rows.x @ earlier.x.swapaxes(1, 2)
        return self._products[key]

    def _sums(self, steps: Coefficients) -> list[tuple[StackedRows, Array]]:
        """Return rows X_s and slopes c_s D_s of the steps; those of steps on the same rows are added up."""
        by_rows: dict[int, dict[int, Coefficient]] = {}
        for step, coefficient in steps.items():
            by_rows.setdefault(id(self.taken[step][0]), {})[step] = coefficient
        return [(self.taken[next(iter(own))][0], self._sum(key, own)) for key, own in by_rows.items()]

    def _sum(self, key: int, steps: dict[int, Coefficient]) -> Array:
        """Return sum_s c_s D_s for steps on the same rows.

        The last sum on these rows (`key` is their `id`) is kept. A local step usually adds a term and leaves the others
        with the same objects c_s; the term is then added in place. So use a sum before you ask for the next one.
        """
        known, last = self._added.get(key, ({}, None))
        if last is None or any(steps.get(step) is not coefficient for step, coefficient in known.items()):
            known, last = {}, None
        terms = (_cube(steps[step]) * self.taken[step][1] for step in steps if step not in known)
        total: Array = next(terms) if last is None else last
        for term in terms:
            total += term
        self._added[key] = steps, total
        return total

    def _gathered(self, steps: Coefficients) -> tuple[Array, Array]:
        """Return the slopes and the rows of all steps, each side by side in one array."""
        sums = self._sums(steps)
        if len(sums) == 1:
            return sums[0][1], sums[0][0].x
        return np.concatenate([slope for _, slope in sums], axis=1), joined([rows for rows, _ in sums])


@dataclass(frozen=True, eq=False)
class _Products:
    """Products with the weights of one point (`WeightProducts`), which the problem asks for by the weights' names.

    A layer computes A W^T from its inputs A, `entered` (clients, widest, inputs). D, `slope` (clients, widest,
    outputs), is the derivative of the loss by the layer's outputs.

    Attributes:
        frame: the group of clients.
        own: the point.
        formed: products with the weights that are formed; those with the others go by their factors.
    """

    frame: FactoredCohort
    own: FactoredVector
    formed: DenseWeightProducts
    _weights: dict[str, list[tuple[Coefficient, Array]]] = field(default_factory=dict)

    def forward(self, name: str, entered: Array) -> Array:
        """Compute A W^T."""
        if name not in self.frame.factors:
            return self.formed.forward(name, entered)
        out = _summed([scale * times(entered, turned(weight)) for scale, weight in self._of(name)])
        return out + self.frame.factors[name].forward(entered, self.own.steps) if self.own.steps else out

    def backward(self, name: str, slope: Array) -> Array:
        """Compute D W."""
        if name not in self.frame.factors:
            return self.formed.backward(name, slope)
        out = _summed([scale * times(slope, weight) for scale, weight in self._of(name)])
        return out + self.frame.factors[name].backward(slope, self.own.steps) if self.own.steps else out

    def gradient(self, name: str, slope: Array, entered: Array) -> Array | None:
        """Compute the gradient D^T A, or keep its factors and return `None`."""
        if name not in self.frame.factors:
            return self.formed.gradient(name, slope, entered)
        self.frame.factors[name].take(slope, entered)
        return None

    def _of(self, name: str) -> list[tuple[Coefficient, Array]]:
        if name not in self._weights:
            spec = next(spec for spec in self.frame.model.layout if spec.name == name)
            self._weights[name] = self.frame.weights(self.own, spec)
        return self._weights[name]


class FactoredVector(NDArrayOperatorsMixin):
    """A vector (clients, parameters) as a combination of stored vectors and of gradients, for NumPy's operators.

    Sums and multiples stay combinations; for every other operation of NumPy the numbers are computed first.

    Attributes:
        frame: the group of clients.
        vectors: the a_j, by `id` of the stored vector: a number for all clients, or (clients, 1).
        steps: the c_s, by number of the step: a number for all clients, or (clients, 1).
        rest: the entries of all parameters that are formed in every step.
    """

    def __init__(self, frame: FactoredCohort, vectors: Coefficients, steps: Coefficients, rest: LazySum) -> None:
        self.frame, self.vectors, self.steps, self.rest = frame, vectors, steps, rest
        self._numbers: Array | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """Shape, (clients, parameters)."""
        return self.frame.count, self.frame.model.layout.size

    @property
    def dtype(self) -> np.dtype[Any]:
        """Precision of the entries."""
        return self.frame.model.problem.dtype

    def plus(self, other: FactoredVector, sign: float) -> FactoredVector:
        """Return self + sign * other."""
        vectors, steps = _joined(self.vectors, other.vectors, sign), _joined(self.steps, other.steps, sign)
        rest = self.rest.plus(other.rest, sign)
        if len(rest) > MANY:  # evaluated now, as each of its terms keeps an array in memory
            rest.numbers(self.frame.formed, self.dtype)
        return FactoredVector(self.frame, vectors, steps, rest)

    def times(self, factor: Coefficient) -> FactoredVector:
        """Return factor * self."""
        vectors, steps = _scaled(self.vectors, factor), _scaled(self.steps, factor)
        return FactoredVector(self.frame, vectors, steps, self.rest.times(factor))

    def copy(self) -> Array:
        """Return the numbers as a new array."""
        return np.asarray(self).copy()

    def __getitem__(self, index: Any) -> Any:
        return np.asarray(self)[index]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """Compute the numbers (NumPy calls this); they are kept."""
        if self._numbers is None:
            self._numbers = self.frame.numbers(self)
        return np.array(self._numbers, dtype, copy=copy)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **rest: Any) -> Any:
        if method == "__call__" and not rest and (found := self._linear(ufunc, inputs)) is not None:
            return found
        numbers = [np.asarray(item) if isinstance(item, FactoredVector) else item for item in inputs]
        return getattr(ufunc, method)(*numbers, **rest)

    def _linear(self, ufunc: np.ufunc, inputs: tuple[Any, ...]) -> FactoredVector | None:
        """Return the result of a sum or of a product with a number; `None` for other operations."""
        of = self.frame.of
        match ufunc, inputs:
            case np.negative, _:
                return self.times(-1.0)
            case np.add | np.subtract, (left, right) if self._vector(left) and self._vector(right):
                return of(left).plus(of(right), 1.0 if ufunc is np.add else -1.0)
            case np.multiply, (left, right) if _coefficient(left):
                return of(right).times(left)
            case np.multiply, (left, right) if _coefficient(right):
                return of(left).times(right)
            case np.true_divide, (left, right) if _coefficient(right):
                return of(left).times(1.0 / right)
        return None

    def _vector(self, item: Any) -> bool:
        if isinstance(item, FactoredVector):
            return item.frame is self.frame
        return isinstance(item, np.ndarray) and item.shape in (self.shape, self.shape[1:])


def _coefficient(item: Any) -> bool:
    """Return whether an operand is a number for all clients, or (clients, 1) with one for each."""
    return np.ndim(item) == 0 or (isinstance(item, np.ndarray) and item.ndim == 2 and item.shape[1] == 1)


def _scaled(coefficients: Coefficients, factor: Coefficient) -> Coefficients:
    return {key: factor * value for key, value in coefficients.items()}


def _joined(left: Coefficients, right: Coefficients, sign: float) -> Coefficients:
    """Return the coefficients of left + sign * right, without those that are 0."""
    out = dict(left)
    for key, value in right.items():
        out[key] = out[key] + sign * value if key in out else sign * value
        if np.ndim(out[key]) == 0 and out[key] == 0:
            del out[key]
    return out


def _cube(coefficient: Coefficient) -> Coefficient:
    """Return a coefficient that multiplies arrays (clients, rows, entries)."""
    return coefficient if np.ndim(coefficient) == 0 else coefficient[:, :, None]


def _summed(terms: Sequence[Array]) -> Array:
    """Add arrays, into the first of them."""
    out = terms[0]
    for term in terms[1:]:
        out += term
    return out
