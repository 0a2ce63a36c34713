"""Settings that all regressions share, the rows z that enter a model with their bounds, and the parameters' units.

A row is z = (1, (x - shift) / u), or without the 1 where the model has no intercept, with u the powers of two at or
above the bounds of the columns: then every entry is at most 1, and no column has errors or noise of another size than
the next. A linear model divides targets too, (y - y0) / v. Parameters theta of z and of x are related by

    slope_c = v theta_c / u_c        intercept = v theta_0 + y0 - sum_c slope_c shift_c
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np

from securefed._hyperparameters import check_integer, check_number, check_positive
from securefed._tensors import Array
from securefed.errors import CollinearityError, ConfigError, DataError
from securefed.statistics._base import Statistic, check_table
from securefed.statistics._columns import Level, Wanted, checked_bounds, power_of_two
from securefed.statistics._estimate import Labels
from securefed.statistics._fitted import INTERCEPT
from securefed.statistics._formula import Recipe, made_columns, read_formula, sources_of


@dataclass(frozen=True)
class Design(Statistic):
    """A statistic of rows x with targets y, and perhaps weights.

    Attributes:
        features: number of columns of x, where they have no names.
        bound: largest absolute entry of x: one number, one for each column, or a mapping from names of columns to a
            number or to a pair, the lowest and the highest value.
        target_bound: largest absolute entry of y, or a pair, the lowest and the highest.
        rows: most rows of one party.
        ridge: added to the diagonal of the sum of outer products, but for the intercept's entry.
        intercept: whether the model has an intercept.
        columns: names of the columns of x, read from tables with named columns.
        target: name of the column of targets, where `y` is not given apart.
        weights: name of a column of weights of rows, such as survey weights; empty for none. In arrays it is the last
            column of x.
        largest_weight: largest weight of a row.
        shift: subtracted from x, set by pairs of `bound`.
        target_shift: subtracted from y, set by a pair.
        recipe: how the columns are made of those of the table, set by `from_formula`.
        levels: by category, the agreed levels, set by `from_formula`.

    Raises:
        ConfigError: a number outside its domain.
    """

    takes_target: ClassVar[bool] = True
    ignores_shift: ClassVar[bool] = False
    """Whether the parameters do not depend on a shift, although there is no intercept."""

    features: int = 0
    bound: Any = 1.0
    target_bound: Any = 1.0
    rows: int = 2**20
    ridge: float = 0.0
    intercept: bool = True
    columns: tuple[str, ...] = field(default=(), kw_only=True)
    target: str = field(default="", kw_only=True)
    weights: str = field(default="", kw_only=True)
    largest_weight: float = field(default=1.0, kw_only=True)
    shift: float | tuple[float, ...] = field(default=0.0, kw_only=True)
    target_shift: float = field(default=0.0, kw_only=True)
    recipe: Recipe = field(default=(), kw_only=True)
    levels: tuple[tuple[str, tuple[Level, ...]], ...] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        bounds = checked_bounds(self.bound, self.shift, self.columns, self._asked_features())
        for name in ("columns", "bound", "shift"):
            object.__setattr__(self, name, getattr(bounds, name))
        object.__setattr__(self, "features", len(bounds.columns) or self.features)
        check_integer("features", self.features, 1)
        check_integer("rows", self.rows, 1)
        if isinstance(self.target_bound, list | tuple):
            pair = checked_bounds({"y": self.target_bound}, 0.0, (), 1, what="target_bound")
            object.__setattr__(self, "target_bound", float(np.ravel(pair.bound)[0]))
            object.__setattr__(self, "target_shift", float(np.ravel(pair.shift)[0]))
        check_positive("target_bound", self.target_bound)
        check_positive("largest_weight", self.largest_weight)
        check_number("ridge", self.ridge, 0)
        check_number("target_shift", self.target_shift)
        if not self.intercept and not self.ignores_shift and (np.any(self.shift) or self.target_shift):
            raise ConfigError("a model without an intercept is not shifted; give bounds as numbers, not as pairs")

    @classmethod
    def from_formula(
        cls, formula: str, *, bounds: Mapping[str, Any], levels: Mapping[str, Sequence[Level]] | None = None,
        **settings: Any,
    ) -> Self:  # fmt: skip
        """Make a model from a formula, such as "readmitted ~ age + ward + age:ward".

        Args:
            formula: "target ~ terms"; terms are names of columns, products `a:b` and `a*b`, and `- 1` for no intercept.
            bounds: of each column of numbers, its largest absolute value, or the lowest and the highest.
            levels: of each category, its levels; the first is the reference, each other has a column of 0 and 1.
            settings: further settings of the model.

        Raises:
            ConfigError: the formula cannot be read, or names a column without bounds or levels.
            MissingExtraError: formulaic is not installed.
        """
        read = read_formula(formula, bounds, levels or {})
        if read.target:
            settings["target"] = read.target
        made: dict[str, Any] = dict(read.bounds)
        if not cls.ignores_shift:
            settings["intercept"] = read.intercept
            if not read.intercept and levels:
                raise ConfigError("a formula without an intercept has no categories; leave '- 1' out")
            if not read.intercept:  # a model without an intercept is not shifted
                made = {name: max(-low, high) for name, (low, high) in made.items()}
        agreed = tuple((name, tuple(found)) for name, found in (levels or {}).items())
        return cls(bound=made, recipe=read.recipe, levels=agreed, **settings)

    def _asked_features(self) -> int:
        if not self.columns and not isinstance(self.bound, Mapping):
            check_integer("features", self.features, 1)
        return self.features or 1

    @property
    def column_units(self) -> Array:
        """The unit u of each column."""
        return np.broadcast_to([power_of_two(bound) for bound in np.ravel(self.bound)], self.features)

    @property
    def scaled_bounds(self) -> Array:
        """The bound of each column, in its unit."""
        return np.asarray(np.asarray(self.bound) / self.column_units)

    @property
    def target_unit(self) -> float:
        """The unit v of y."""
        return power_of_two(self.target_bound)

    @property
    def width(self) -> int:
        """Number of parameters, the intercept included."""
        return self.features + int(self.intercept)

    @property
    def entries(self) -> int:
        """Number of entries of the upper triangle of a matrix of parameters."""
        return self.width * (self.width + 1) // 2

    @property
    def largest(self) -> float:
        """Largest absolute entry of a row z."""
        return 1.0 if self.intercept else float(self.scaled_bounds.max())

    @property
    def square(self) -> float:
        """Largest squared norm of a row z."""
        return float((self.scaled_bounds**2).sum()) + int(self.intercept)

    def parameter_names(self) -> tuple[str, ...]:
        """Return the names of all parameters, the intercept first."""
        names = self.columns or tuple(f"column {at}" for at in range(self.features))
        return ((INTERCEPT,) if self.intercept else ()) + names

    def rows_of(self, x: Array) -> tuple[Array, Array]:
        """Return the rows z and their weights."""
        own = x[:, : self.features]
        z = (own - np.asarray(self.shift)) / self.column_units
        z = np.column_stack([np.ones(len(x)), z]) if self.intercept else z
        return z, (x[:, self.features] if self.weights else np.ones(len(x)))

    def natural(self, unit: float) -> Array:
        """Return the matrix that takes parameters of z to those of x, but for the shift of y."""
        first = int(self.intercept)
        out = np.zeros((self.width, self.width))
        slopes = unit / self.column_units
        out[first:, first:] = np.diag(slopes)
        if self.intercept:
            out[0, 0] = unit
            out[0, 1:] = -slopes * np.asarray(self.shift)
        return out

    def split(self, parameters: Array) -> tuple[Array, Array]:
        """Return coefficients and the intercept, 0 where there is none."""
        first = int(self.intercept)
        return parameters[first:], np.asarray(parameters[0] if first else 0.0)

    def penalty(self) -> Array:
        """Return the ridge in units of z, for each parameter: none for the intercept."""
        out = np.full(self.width, self.ridge, np.float64)
        out[int(self.intercept) :] /= self.column_units**2
        if self.intercept:
            out[0] = 0.0
        return out

    def _sources(self) -> tuple[Wanted, ...]:
        """Return the columns of the table that those of the model are made of."""
        levels = dict(self.levels)
        return tuple(Wanted(name, levels.get(name, ())) for name in sources_of(self.recipe) or self.columns)

    def _wanted(self) -> tuple[Wanted, ...]:
        return (*self._sources(), *map(Wanted, filter(None, [self.weights])))

    def _made(self, x: Array) -> Array:
        if not self.recipe:
            return x
        names = [source.name for source in self._sources()]
        if x.shape[1] < len(names):
            raise DataError(f"x must have the columns {', '.join(names)}; got shape {x.shape}")
        return np.column_stack([made_columns(x[:, : len(names)], names, self.recipe), x[:, len(names) :]])

    def _target(self) -> str:
        return self.target

    def _check(self, x: Array, y: Array | None) -> None:
        check_table(x, self.features + bool(self.weights), self.rows)
        if y is None or y.shape != (len(x),):
            raise DataError(f"y must hold one target for each of {len(x)} rows; got {None if y is None else y.shape}")

    def _within(self, x: Array, y: Array | None) -> Array:
        near = (np.abs(x[:, : self.features] - np.asarray(self.shift)) <= np.asarray(self.bound)).all(1)
        near &= np.abs(np.asarray(y) - self.target_shift) <= self.target_bound
        if self.weights:
            near &= (x[:, self.features] >= 0) & (x[:, self.features] <= self.largest_weight)
        return np.asarray(near)

    def _declared(self) -> str:
        bounds = ", ".join(f"{bound:g}" for bound in np.ravel(self.bound))
        weights = f", weights from 0 to {self.largest_weight:g}" if self.weights else ""
        shifted = " from their shift" if np.any(self.shift) or self.target_shift else ""
        return f"entries of x are at most {bounds}, of y at most {self.target_bound:g}{shifted}{weights}"

    def _labels(self, value: Array) -> Labels:
        return (self.parameter_names()[int(self.intercept) :],)


def triangle(matrix: Array) -> Array:
    """Return the upper triangle of a matrix, row by row."""
    return np.asarray(matrix[np.triu_indices(len(matrix))])


def check_dependence(matrix: Array, moved: float, names: Sequence[str]) -> float:
    """Return the smallest eigenvalue, in size, of a sum of outer products.

    Args:
        matrix: the sum.
        moved: bound on the spectral norm of its error.
        names: of its columns.

    Raises:
        CollinearityError: it may be 0 within the error, or within the rounding of float64.
    """
    scale = 1 / np.sqrt(np.maximum(np.diag(matrix), 1e-300))
    values, vectors = np.linalg.eigh(matrix * np.outer(scale, scale))
    smallest = float(np.abs(np.linalg.eigvalsh(matrix)).min())
    if smallest > moved and abs(values[0]) > 1e-12 * len(values):
        return smallest
    shares = np.abs(vectors[:, 0])
    among = [name for name, share in zip(names, shares, strict=True) if share > 0.1 * shares.max()]
    raise CollinearityError(
        f"the columns are (nearly) linearly dependent over all parties: {', '.join(among)}; drop some, or give a ridge"
    )
