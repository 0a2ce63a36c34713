"""Check the settings that users give; each error names the setting, the allowed values and the given value."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from securefed.errors import ConfigError


def check_integer(name: str, value: Any, least: int, most: int | None = None, *, note: str = "") -> None:
    """Raise `ConfigError` unless `value` is an integer from `least` to `most`.

    Args:
        name: name of the setting.
        value: what was given.
        least: smallest value allowed.
        most: largest value allowed; `None` for no limit.
        note: text after the range: what the limit is, or which other value is allowed.
    """
    fits = isinstance(value, int | np.integer) and type(value) is not bool and value >= least
    if not fits or (most is not None and value > most):
        allowed = f"of at least {least}" if most is None else f"between {least} and {most}"
        raise ConfigError(f"{name} must be an integer {allowed}{note and f' {note}'}; got {value!r}.")


def check_number(
    name: str,
    value: Any,
    least: float = -math.inf,
    below: float = math.inf,
    *,
    most: float = math.inf,
    positive: bool = False,
) -> None:
    """Raise `ConfigError` unless `value` is a finite number with least <= value < below and value <= most.

    Args:
        name: name of the setting.
        value: what was given.
        least: smallest value allowed.
        below: the value must be less than this.
        most: largest value allowed.
        positive: whether the value must be greater than 0.
    """
    fits = isinstance(value, int | float | np.integer | np.floating) and type(value) is not bool
    fits = fits and math.isfinite(value)
    if not fits or not least <= value < below or value > most or (positive and value <= 0):
        limits = (("of at least", least), ("below", below), ("of at most", most))
        allowed = " and ".join(f"{words} {limit:g}" for words, limit in limits if math.isfinite(limit))
        kind = "positive, finite" if positive else "finite"
        raise ConfigError(f"{name} must be a {kind} number{allowed and f' {allowed}'}; got {value!r}.")


def check_positive(name: str, value: Any) -> None:
    """Raise `ConfigError` unless `value` is a positive, finite number."""
    check_number(name, value, positive=True)


def check_limit(name: str, value: Any, *, least: float | None = None) -> None:
    """Raise `ConfigError` unless `value` is a number that limits something: positive, and infinite for no limit.

    Args:
        name: name of the setting.
        value: what was given.
        least: smallest value allowed; by default it must be greater than 0.
    """
    if isinstance(value, float | np.floating) and value == math.inf:
        return
    check_number(name, value, -math.inf if least is None else least, positive=least is None)


def check_choice(name: str, value: Any, allowed: tuple[Any, ...]) -> None:
    """Raise `ConfigError` unless `value` is one of `allowed`."""
    if value not in allowed:
        raise ConfigError(f"{name} must be one of {', '.join(map(repr, allowed))}; got {value!r}.")


def checked_integers(name: str, value: Any, count: int | None = None) -> tuple[int, ...]:
    """Return a list or tuple of integers of at least 1 as a tuple.

    Args:
        name: name of the setting.
        value: what was given.
        count: how many integers are needed; any number from 1 on by default.

    Raises:
        ConfigError: another value.
    """
    fits = isinstance(value, list | tuple) and len(value) == (count or len(value)) > 0
    if not fits or not all(
        isinstance(entry, int | np.integer) and type(entry) is not bool and entry >= 1 for entry in value
    ):
        many = "at least one integer" if count is None else f"{count} integers"
        example = ", ".join(["32"] * (count or 2))
        raise ConfigError(f"{name} must be a list of {many} of at least 1; got {value!r}. Write {name}=({example}).")
    return tuple(value)
