"""Check an algorithm object before a run starts; each error names the method at fault and the correction.

Runs, recordings and wrappers call these functions, so that a user's own algorithm fails early and in words. A layout
names the tensors of a message, with their shapes and bounds; public facts are those that all parties know.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import FunctionType
from typing import Any

import numpy as np

from securefed._persistence.packing import pack
from securefed._public import Public
from securefed._tensors import Layout, Tensors
from securefed.algorithms._base import Algorithm
from securefed.errors import ConfigError, DataError

# the functions that `Algorithm` itself defines, without those whose name starts with an underscore
METHODS = tuple(name for name, value in vars(Algorithm).items() if isinstance(value, FunctionType) and name[0] != "_")
"""The methods that a run calls."""


def missing_methods(value: Any) -> list[str]:
    """Name the methods of an algorithm that an object lacks, in alphabetical order."""
    return [name for name in sorted(METHODS) if not callable(getattr(value, name, None))]


def check_object(algorithm: Any) -> None:
    """Raise `ConfigError` unless `algorithm` is an object with all methods of an algorithm."""
    if isinstance(algorithm, type):
        raise ConfigError(f"algorithm must be an object; got the class {algorithm.__name__}. Write {_call(algorithm)}.")
    if isinstance(algorithm, str):
        raise ConfigError(
            f"algorithm must be an object; got the text {algorithm!r}. Write SSI(rank=2) with a class from "
            f"securefed.algorithms, or securefed.algorithms.algorithms.make({algorithm!r}, ...) with its settings."
        )
    missing = missing_methods(algorithm)
    if len(missing) == len(METHODS):
        raise ConfigError(
            "algorithm must be an algorithm, such as securefed.algorithms.SSI(rank=2); got "
            f"{'None' if algorithm is None else f'an object of type {type(algorithm).__name__}'}."
        )
    if missing:
        raise ConfigError(
            f"{type(algorithm).__name__} lacks {', '.join(f'`{name}`' for name in missing)}; derive it from "
            "securefed.Algorithm and write those of its six methods that are missing."
        )


def contribution_layout(algorithm: Algorithm[Any, Any], public: Public) -> Layout:
    """Return the layout of the algorithm's contributions.

    Raises:
        ConfigError: `layout` returns no `Layout`, or one without a tensor.
    """
    layout = _layout(algorithm, "layout", algorithm.layout(public))
    if not layout.specs:
        raise ConfigError(f"{_name(algorithm)}.layout names no tensor; a contribution holds at least one.")
    return layout


def evaluation_layout(algorithm: Algorithm[Any, Any], public: Public) -> Layout:
    """Return the layout of the algorithm's evaluation sums. Raises `ConfigError` where it is no `Layout`."""
    return _layout(algorithm, "evaluation_layout", algorithm.evaluation_layout(public))


def first_broadcast(algorithm: Algorithm[Any, Any], public: Public) -> dict[str, Any]:
    """Return the tensors of a first broadcast, for their names, shapes and types.

    Raises:
        ConfigError: `broadcast` returns no tensors by name.
    """
    tensors = algorithm.broadcast(algorithm.start(public, np.random.default_rng(0)))
    if not isinstance(tensors, Mapping) or not all(isinstance(name, str) for name in tensors):
        raise ConfigError(
            f'{_name(algorithm)}.broadcast must return arrays by name, such as {{"model": array}}; '
            f"got {type(tensors).__name__}."
        )
    return {name: np.asarray(value) for name, value in tensors.items()}


def check_contribution(algorithm: Algorithm[Any, Any], computed: Any, layout: Layout) -> None:
    """Compare names, shapes and types of what `contribute` returned with the layout.

    Args:
        algorithm: the algorithm, for errors.
        computed: what its `contribute` returned.
        layout: the tensors that its `layout` names.

    Raises:
        ConfigError: it is no pair of state and tensors, or a tensor is missing, unexpected, of another shape, or holds
            no real numbers.
    """
    name = f"{_name(algorithm)}.contribute"
    if not (isinstance(computed, tuple) and len(computed) == 2 and isinstance(computed[1], Mapping)):
        pair = isinstance(computed, tuple) and len(computed) == 2
        got = f"{type(computed[1]).__name__} in place of the tensors" if pair else type(computed).__name__
        raise ConfigError(f'{name} must return a pair (state, {{"{layout.names[0]}": array, ...}}); got {got}.')
    tensors: Tensors = computed[1]
    if set(tensors) != set(layout.names):
        raise ConfigError(
            f"{name} must return the tensors of the layout, {', '.join(layout.names)}; got "
            f"{', '.join(map(str, tensors)) or 'none'}."
        )
    for spec in layout:
        value = np.asarray(tensors[spec.name])
        if value.shape != spec.shape:
            raise ConfigError(
                f"{name}: tensor {spec.name!r} must have shape {spec.shape}, as the layout says; got {value.shape}."
            )
        if value.dtype.kind not in "biuf":
            raise ConfigError(f"{name}: tensor {spec.name!r} must hold real numbers; got {value.dtype}.")


def check_packable(algorithm: Algorithm[Any, Any], state: Any, method: str) -> None:
    """Raise `ConfigError` where a state cannot be written to a checkpoint.

    Args:
        algorithm: the algorithm.
        state: what `method` returned.
        method: `start` or `enroll`.
    """
    try:
        pack(state)
    except (DataError, TypeError) as error:
        raise ConfigError(
            f"{_name(algorithm)}.{method} returned a state that cannot be stored: {error}. A state is a frozen "
            "dataclass of arrays, numbers, texts, tuples and dicts of these; mark a field that stays with its owner, "
            "such as the client's data, with securefed.local()."
        ) from error


def _layout(algorithm: Algorithm[Any, Any], method: str, layout: Any) -> Layout:
    """Return what `method` returned; raise `ConfigError` where it is no `Layout`."""
    if not isinstance(layout, Layout):
        raise ConfigError(
            f"{_name(algorithm)}.{method} must return a securefed.Layout, such as "
            f'Layout((TensorSpec("sum", (3,), bound=1.0),)); got {type(layout).__name__}.'
        )
    return layout


def _name(algorithm: Any) -> str:
    return type(algorithm).__name__


def _call(kind: type) -> str:
    """Return the call that makes an object of the class, with the settings of its tests as an example."""
    settings = getattr(kind, "test_settings", {})
    return f"{kind.__name__}({', '.join(f'{name}={value!r}' for name, value in settings.items())})"
