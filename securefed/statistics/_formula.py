"""Read a model's formula, such as "readmitted ~ age + dose + ward + age:ward", into columns that each party makes.

A formula names numbers and categories of the parties' tables. A category with agreed levels becomes a column of 0 and 1
for each level but the first; an interaction is the product of columns. What each column is made of stands in the
model's settings (`recipe`), and so in the terms: parties need no formula, and not the package that reads it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Final

import numpy as np

from securefed._extras import needed_for
from securefed._tensors import Array
from securefed.errors import ConfigError
from securefed.statistics._columns import Level, checked_levels, checked_range

Factor = tuple[str, int]
"""Name of a column, and the place of a level of it; -1 for a column of numbers."""
Recipe = tuple[tuple[Factor, ...], ...]
"""For each column of a model, the factors that it is the product of."""
NUMBER: Final = -1
_CATEGORY: Final = re.compile(r"C\((.+)\)")


@dataclass(frozen=True)
class Formula:
    """A formula as it was read.

    Attributes:
        target: name of the column of targets, empty for none.
        intercept: whether there is one.
        recipe: how each column is made.
        bounds: by name of each column, its lowest and highest value.
    """

    target: str
    intercept: bool
    recipe: Recipe
    bounds: Mapping[str, tuple[float, float]]


def read_formula(text: str, bounds: Mapping[str, Any], levels: Mapping[str, Sequence[Level]]) -> Formula:
    """Read a formula.

    Args:
        text: "target ~ terms"; terms are names, `C(name)` for a category, products `a:b` and `a*b`, and `- 1`.
        bounds: of each column of numbers, its largest absolute value, or the lowest and the highest.
        levels: of each category, its levels; the first is the reference.

    Raises:
        ConfigError: it cannot be read, names a column without bounds or levels, or holds a function.
        MissingExtraError: formulaic is not installed.
    """
    with needed_for("from_formula()"):
        from formulaic import Formula as Parsed  # noqa: PLC0415 - optional
        from formulaic.errors import FormulaicError  # noqa: PLC0415
    try:
        parsed = Parsed(text)
    except (FormulaicError, TypeError) as error:
        plain = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
        raise ConfigError(f'{text!r} is no formula, such as "y ~ age + ward": {plain}') from error
    left = [_names(term) for term in getattr(parsed, "lhs", [])]
    if len(left) > 1 or any(len(term) != 1 for term in left):
        raise ConfigError(f"{text!r} names several targets; a model has one")
    terms = [_names(term) for term in getattr(parsed, "rhs", parsed)]
    intercept = ("1",) in terms
    terms = [term for term in terms if term != ("1",)]
    known = {name: checked_levels(name, found) for name, found in levels.items()}
    if not terms:
        raise ConfigError(f"{text!r} names no column beside the target")
    if unknown := sorted({name for term in terms for name in term} - set(known) - set(bounds)):
        raise ConfigError(f"{text!r} names {', '.join(unknown)}, which has neither bounds nor levels; give one of them")
    recipe: list[tuple[Factor, ...]] = []
    for term in terms:
        _check_margins(term, terms, known, text)
        choices = [range(1, len(known[name])) if name in known else (NUMBER,) for name in term]
        recipe += [tuple(zip(term, chosen, strict=True)) for chosen in product(*choices)]
    named = {_label(factors, known): _bound(factors, bounds) for factors in recipe}
    return Formula(left[0][0] if left else "", intercept, tuple(recipe), named)


def made_columns(sources: Array, names: Sequence[str], recipe: Recipe) -> Array:
    """Make a model's columns, (rows, columns), from those of the table; NaN where a source is missing or not agreed.

    Args:
        sources: (rows, sources), codes of levels for categories.
        names: of the sources.
        recipe: how each column is made.
    """
    out = np.ones((len(sources), len(recipe)))
    for at, factors in enumerate(recipe):
        for name, level in factors:
            column = sources[:, names.index(name)]
            known = (
                column if level == NUMBER else np.where(np.isfinite(column) & (column >= 0), column == level, np.nan)
            )
            out[:, at] *= known
    return out


def sources_of(recipe: Recipe) -> tuple[str, ...]:
    """Return the names of the columns that a recipe reads, each once."""
    return tuple(dict.fromkeys(name for factors in recipe for name, _ in factors))


def _names(term: Any) -> tuple[str, ...]:
    """Return the names of a term's factors."""
    out = []
    for factor in term.factors:
        text, function = str(factor.expr), _CATEGORY.fullmatch(str(factor.expr))
        if factor.eval_method.name == "PYTHON" and not function:
            raise ConfigError(f"a formula holds {text!r}; make such a column at each party first, alike, and name it")
        out.append(function[1].strip("` ") if function else text)
    return tuple(out)


def _check_margins(
    term: tuple[str, ...], terms: Sequence[tuple[str, ...]], known: Mapping[str, Any], text: str
) -> None:
    """Raise `ConfigError` where a category has a column less than it needs, since a term without it is lacking."""
    there = [set(one) for one in terms]
    for name in term:
        rest = set(term) - {name}
        if name in known and rest and rest not in there:
            lacking = ":".join(sorted(rest))
            raise ConfigError(
                f"{text!r} has {':'.join(term)} without {lacking}; write {'*'.join(term)}, which has both"
            )


def _label(factors: tuple[Factor, ...], known: Mapping[str, tuple[Level, ...]]) -> str:
    return ":".join(name if level == NUMBER else f"{name}[T.{known[name][level]}]" for name, level in factors)


def _bound(factors: tuple[Factor, ...], bounds: Mapping[str, Any]) -> tuple[float, float]:
    """Return the lowest and the highest value of a product."""
    low, high = 1.0, 1.0
    for name, level in factors:
        ends = (0.0, 1.0) if level != NUMBER else checked_range(f"bound of {name!r}", bounds[name])
        corners = [a * b for a in (low, high) for b in ends]
        low, high = min(corners), max(corners)
    return low, high
