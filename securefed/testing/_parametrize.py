"""Find the published checks for an object, and parametrise a pytest test with them.

A check is a function of one object (an algorithm, attack, transform or aggregation) that raises where the object breaks
a rule of its kind; each kind has a module with the tuple `CHECKS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any

from securefed.errors import ConfigError

Check = Callable[[Any], None]
_KINDS = (
    ("contribute", "algorithm", "securefed.testing._algorithm_checks"),
    ("applies", "attack", "securefed.testing._attack_checks"),
    ("client_open", "aggregation", "securefed.testing._aggregation_checks"),
    ("encode", "transform", "securefed.testing._transform_checks"),
)
"""A method that identifies the kind of an object, the kind, and the module with its `CHECKS`."""


def checks_for(instance: Any) -> tuple[Check, ...]:
    """Return the published checks for an object: an algorithm, an attack, a transform or an aggregation.

    Raises:
        ConfigError: it is a class, or none of these.
    """
    if isinstance(instance, type):
        name = instance.__name__
        raise ConfigError(f"the checks need an object; got the class {name}. Write {name}(...) with its settings.")
    for method, _, module in _KINDS:
        if callable(getattr(instance, method, None)):
            checks: tuple[Check, ...] = import_module(module).CHECKS
            return checks
    raise ConfigError(
        f"{type(instance).__name__} is none of {', '.join(kind for _, kind, _ in _KINDS)}: it lacks "
        f"{', '.join(f'`{method}`' for method, _, _ in _KINDS)}"
    )


def parametrize_with_checks(instances: Iterable[Any]) -> Any:
    """Parametrise a pytest test with every check of every object; the test takes `instance` and `check`.

    Args:
        instances: algorithms, attacks, transforms or aggregations, with small, quick settings.

    Returns:
        The decorator, pytest's own `pytest.mark.parametrize`.

    Raises:
        ConfigError: no list, an empty one, or an object for which there are no checks.
    """
    if not isinstance(instances, Iterable):
        raise ConfigError(f"instances must be a list of objects; got one {type(instances).__name__}. Write [...].")
    import pytest  # noqa: PLC0415 - needed in test suites only

    pairs = [
        pytest.param(instance, check, id=f"{type(instance).__name__}-{getattr(check, '__name__', check)}")
        for instance in instances
        for check in checks_for(instance)
    ]
    if not pairs:  # pytest would skip the test, and the suite pass
        raise ConfigError("instances must hold an object or more; got none. Write [MyAlgorithm(...)].")
    return pytest.mark.parametrize(("instance", "check"), pairs)
