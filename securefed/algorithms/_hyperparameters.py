"""Check hyper-parameters; each error names the given value and the allowed range."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from securefed.errors import ConfigError


def check_integer(name: str, value: Any, least: int, most: int | None = None, *, note: str = "") -> None:
    """Raise `ConfigError` unless `value` is an integer from `least` to `most`.

    Args:
        name: name of the hyper-parameter.
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
    name: str, value: Any, least: float = -math.inf, below: float = math.inf, *, positive: bool = False
) -> None:
    """Raise `ConfigError` unless `value` is a finite number with least <= value < below.

    Args:
        name: name of the hyper-parameter.
        value: what was given.
        least: smallest value allowed.
        below: the value must be less than this.
        positive: whether the value must be greater than 0.
    """
    fits = isinstance(value, int | float | np.integer | np.floating) and type(value) is not bool
    fits = fits and math.isfinite(value)
    if not fits or not least <= value < below or (positive and value <= 0):
        allowed = "a positive, finite number" if positive else "a finite number"
        allowed += f" of at least {least:g}" if least > -math.inf else ""
        allowed += f" {'and ' if least > -math.inf else ''}below {below:g}" if below < math.inf else ""
        raise ConfigError(f"{name} must be {allowed}; got {value!r}.")


def check_positive(name: str, value: Any) -> None:
    """Raise `ConfigError` unless `value` is a positive, finite number."""
    check_number(name, value, positive=True)


def check_choice(name: str, value: Any, allowed: tuple[str, ...]) -> None:
    """Raise `ConfigError` unless `value` is one of the texts `allowed`."""
    if value not in allowed:
        raise ConfigError(f"{name} must be one of {', '.join(map(repr, allowed))}; got {value!r}.")
