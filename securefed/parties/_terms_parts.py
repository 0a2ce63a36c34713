"""The parts of the terms of a sum: its tensors and its defence, checked, and written to a file and read back.

The terms (`SumTerms`: clients, tensors and defence) travel to all parties as a file, which may be edited by hand. A
defence is a chain of links: transforms, such as a clip, and last the aggregation protocol. Only the public part is
written: of identities the public ones, of encryption the parameters. A chain with a link of a class that is not in
`_CLASSES` (a user's own transform, a decryption key shared among several holders) is refused by name; such parties
build their terms in code.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from fnmatch import fnmatchcase
from importlib import import_module
from typing import Any, Final

import numpy as np

from securefed._hyperparameters import check_integer, check_positive
from securefed._tensors import Ring
from securefed.defenses._base import Aggregation, ChainStage, Defense, Transform
from securefed.defenses._fixed_point import check_ring
from securefed.defenses._grouped_sums import Grouped
from securefed.defenses._secure_aggregation.double_masking import SecureAggregation
from securefed.defenses._secure_aggregation.identities import Identities
from securefed.errors import ConfigError, DataError

UPDATE, WEIGHT, METRIC = "update.", "weight", "metric."
"""Names of the summed tensors in a contribution, before the names of the terms."""


def is_local(name: str, patterns: Sequence[str]) -> bool:
    """Tell whether a tensor stays with its client: its name matches a shell pattern such as `*running_mean`."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def check_type(what: str, value: object, kind: type) -> None:
    """Raise `ConfigError` unless a field is exactly of this type.

    Args:
        what: name of the field, for the error.
        value: its value.
        kind: the type; a subclass is refused too, so that equal terms have equal bytes.
    """
    if type(value) is not kind:
        raise ConfigError(f"{what} must be a {kind.__name__}; got {value!r}")


def as_plain(record: Any, kind: type[int] | type[float], *names: str) -> None:
    """Turn numbers into Python's own, so that equal terms are the same bytes and have the same digest.

    Args:
        record: a frozen dataclass in its `__post_init__`; it is changed.
        kind: `int` or `float`.
        names: the fields to convert; those that hold `None` stay.
    """
    for name in names:
        if (value := getattr(record, name)) is not None:
            object.__setattr__(record, name, kind(value))


@dataclass(frozen=True)
class SummedTensor:
    """One tensor of an update.

    Attributes:
        name: its key in the update.
        shape: its shape.
        bound: largest absolute entry of one client's update (of its difference from the base, where these are summed).
        integer: whether it holds integers, whose mean is rounded to nearest. Booleans are numbers, 0 and 1, whose mean
            is a share.
        ring: width in bits of the integers that it is summed in under an exact defence.
        sensitivity: largest L2 distance by which one row of a client moves the tensor, where noise hides single rows
            (`records()`); `None` where no such bound is known.

    Raises:
        ConfigError: a field of another type, or outside its domain.
    """

    name: str
    shape: tuple[int, ...]
    bound: float
    integer: bool = False
    ring: Ring = 64
    sensitivity: float | None = None

    def __post_init__(self) -> None:
        check_type("a tensor's name", self.name, str)
        where = f"of tensor {self.name!r}"
        check_type(f"shape {where}", self.shape, tuple)
        check_type(f"`integer` {where}", self.integer, bool)
        for length in self.shape:
            check_integer(f"a length in shape {where}", length, 0)
        check_ring(self.ring, where)
        check_positive(f"bound {where}", self.bound)
        if self.sensitivity is not None:
            check_positive(f"sensitivity {where}", self.sensitivity)
        as_plain(self, float, "bound", "sensitivity")


def power_of_two(least: float) -> float:
    """Return the smallest power of two from `least` > 0 on: exact, whereas a rounded logarithm may fall short."""
    mantissa, exponent = math.frexp(least)  # least = mantissa 2^exponent, 1/2 <= mantissa < 1
    return math.ldexp(1.0, exponent - (mantissa == 0.5))


def pipelined(defense: Defense) -> Defense:
    """Return the defence whose secure aggregation agrees the keys of the next round in each; others as they are."""
    aggregation = defense.aggregation
    if not isinstance(aggregation, SecureAggregation):
        return defense
    return replace(defense, aggregation=replace(aggregation, pipelined=True))


def changes_updates(defense: Defense) -> bool:
    """Tell whether a defence sparsifies, clips or noises the whole contribution, which excludes weights beside it.

    Noise of the clients has the stage `ENCODE`, but needs a clip before it, which is found here.
    """
    return any(transform.stage < ChainStage.ENCODE for transform in defense.transforms)


def weighs_alike(defense: Defense) -> bool:
    """Tell whether all clients weigh the same and send no metrics: the defence changes updates, or their sum."""
    aggregation = defense.aggregation
    return changes_updates(defense) or (isinstance(aggregation, Grouped) and aggregation.robust)


def check_alike(defense: Defense, *, beside: bool) -> None:
    """Raise `ConfigError` where weights or metrics travel beside an update that the defence changes."""
    if beside and weighs_alike(defense):
        raise ConfigError(
            f"{defense.name} sparsifies, clips, noises or takes a robust mean of all that a client contributes, so "
            "that weights and metrics cannot travel beside the update; leave largest_weight and metrics out"
        )


def clips(defense: Defense) -> bool:
    """Tell whether a defence clips contributions."""
    return any(transform.stage == ChainStage.CLIP for transform in defense.transforms)


_PRIVACY: Final = "securefed.defenses._differential_privacy"
_CLASSES: Final = {
    "AdaptiveClip": f"{_PRIVACY}.adaptive",
    "CKKS": "securefed.defenses._homomorphic.lattice",
    "CentralGaussian": f"{_PRIVACY}.gaussian",
    "Clip": f"{_PRIVACY}.clip",
    "ClipEach": f"{_PRIVACY}.clip",
    "DistributedNoise": f"{_PRIVACY}.distributed",
    "FixedSizeSampling": f"{_PRIVACY}.accountant",
    "Committee": "securefed.defenses._one_message.committee",
    "Grouped": "securefed.defenses._grouped_sums.grouped",
    "OneMessage": "securefed.defenses._one_message.one_message",
    "Paillier": "securefed.defenses._homomorphic.paillier_protocol",
    "Plain": "securefed.defenses._plain",
    "PoissonCohort": f"{_PRIVACY}.poisson_sampling",
    "PoissonSampling": f"{_PRIVACY}.accountant",
    "Quantise": "securefed.defenses._fixed_point",
    "RecordPrivacy": f"{_PRIVACY}.record_privacy",
    "SecureAggregation": "securefed.defenses._secure_aggregation.double_masking",
}
"""By name, the module of each class that may stand in a file of terms; a file cannot name any other."""
_LEFT_OUT: Final = {"Paillier": {"public", "pool"}}
"""Fields that one party holds for itself: a key that it was given, and randomness computed ahead."""
_LATER: Final = {"SecureAggregation": {"stream"}}
"""Fields that the first releases did not have: not written where they have their default, as files were before."""


def defense_to_json(defense: Defense) -> list[Any]:
    """Return the links of a chain as JSON values.

    Raises:
        ConfigError: a link cannot be written.
    """
    return [_to_json(link) for link in (*defense.transforms, defense.aggregation)]


def defense_from_json(values: list[Any]) -> Defense:
    """Read what `defense_to_json` wrote.

    Raises:
        DataError: not the links of a chain.
        ConfigError: a link whose parameters are refused.
    """
    links = [_from_json(value) for value in values]
    if not links or not isinstance(links[-1], Aggregation) or not all(isinstance(x, Transform) for x in links[:-1]):
        raise DataError("the defence of these terms is no chain of transforms ended by one aggregation")
    return Defense(tuple(links[:-1]), links[-1])


def with_plain_numbers(defense: Defense) -> Defense:
    """Turn NumPy's numbers in a defence's parameters into Python's own, as they are after a file is read.

    Terms do this when they are made, so that those built in code and those read from a file are equal.
    Links of other classes than a file can hold stay as they are, and so does a defence without NumPy's numbers.
    """
    links = (*defense.transforms, defense.aggregation)
    plain = tuple(map(_plain, links))
    if all(new is old for new, old in zip(plain, links, strict=True)):
        return defense
    return replace(defense, transforms=plain[:-1], aggregation=plain[-1])


def _plain(value: Any) -> Any:
    """Return a value with plain numbers at any depth of tuples and links; the value itself where nothing changes."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, tuple):
        items = tuple(map(_plain, value))
        return value if all(new is old for new, old in zip(items, value, strict=True)) else items
    if (
        not is_dataclass(value)
        or isinstance(value, type)
        or _CLASSES.get(type(value).__name__) != type(value).__module__
    ):
        return value
    old = {field.name: getattr(value, field.name) for field in fields(value) if field.init}
    changed = {name: new for name, item in old.items() if (new := _plain(item)) is not item}
    return replace(value, **changed) if changed else value


def _to_json(value: Any) -> Any:
    """Write one link or parameter; an object becomes its class's name and its fields."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple | list):
        return [_to_json(item) for item in value]
    if isinstance(value, Identities):
        return {
            "class": "Identities",
            "public": {str(client): key.hex() for client, key in sorted(value.public.items())},
        }
    kind = type(value).__name__
    if not is_dataclass(value) or _CLASSES.get(kind) != type(value).__module__:
        raise ConfigError(
            f"{value!r} of class {kind} cannot be written to a file of terms; build the terms in code at every party, "
            "or use a defence of securefed.defenses"
        )
    values = {field.name: getattr(value, field.name) for field in fields(value)}
    unset = {one.name for one in fields(value) if one.name in _LATER.get(kind, ()) and values[one.name] == one.default}
    left_out = _LEFT_OUT.get(kind, set()) | unset
    return {"class": kind} | {name: _to_json(item) for name, item in values.items() if name not in left_out}


def _from_json(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_from_json(item) for item in value)
    if not isinstance(value, Mapping):
        return value
    kind = value.get("class")
    if kind == "Identities":
        return Identities({int(client): bytes.fromhex(key) for client, key in value["public"].items()})
    if kind not in _CLASSES:
        raise DataError(
            f"these terms name a link {kind!r}, which this release does not know; use one release everywhere"
        )
    settings = {name: _from_json(item) for name, item in value.items() if name != "class"}
    try:
        return getattr(import_module(_CLASSES[kind]), kind)(**settings)
    except TypeError as error:
        raise DataError(f"these terms hold a {kind} with other fields than this release: {error}") from error


def with_tuples(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields read from JSON with its lists turned into tuples."""

    def convert(value: Any) -> Any:
        return tuple(convert(item) for item in value) if isinstance(value, list) else value

    return {name: convert(value) for name, value in facts.items()}
