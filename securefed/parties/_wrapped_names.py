"""Read a model that a library wrapped: its tensors have a prefix that the terms, made from the bare model, lack.

Opacus' `GradSampleModule` puts `_module.` before all names of a state_dict, `DistributedDataParallel` puts `module.`
and `torch.compile` `_orig_mod.`; several stand one after the other. Either side may be the wrapped one.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from functools import cache
from typing import Final, TypeVar

T = TypeVar("T")
_WRAPPERS: Final = {"_module.": "opacus", "module.": "DistributedDataParallel", "_orig_mod.": "torch.compile"}
_LOG = logging.getLogger("securefed.client")


def without_wrapper(given: Mapping[str, T], wanted: Collection[str]) -> Mapping[str, T]:
    """Return a mapping under the names that the terms give its tensors, if it differs from them by wrappers alone.

    Names are changed only where all of them, on that side, have the same prefix, and where every wanted name is then
    found; so it is clear which tensor is which. That is said in the log, once for each prefix.

    Args:
        given: tensors by name; further names than the wanted ones may be among them.
        wanted: names that the terms give.

    Returns:
        The mapping under the names of the terms, or `given` itself where no prefix explains the difference.
    """
    if all(name in given for name in wanted) or not all(isinstance(name, str) for name in given):
        return given
    theirs, ours = _wrapper(given), _wrapper(wanted)
    renamed = {ours + name.removeprefix(theirs): value for name, value in given.items()}
    if theirs == ours or not all(name in renamed for name in wanted):
        return given
    _say(theirs, ours)
    return renamed


def unwrap_hint(name: str, given: Collection[str]) -> str:
    """Say what to write where a missing tensor is there under a wrapper's prefix; empty where it is not."""
    for other in given:
        for prefix, library in _WRAPPERS.items():
            if isinstance(other, str) and other.endswith(prefix + name):
                bare = f"model.{other.removesuffix(name)}state_dict()"
                return f"; it holds {other!r}, the name inside a wrapper ({library}): give {bare}"
    return ""


def _wrapper(names: Collection[str]) -> str:
    """Return the wrappers' prefixes that all names begin with; empty for no names."""
    prefix, more = "", bool(names)
    while more:
        more = False
        for wrapper in _WRAPPERS:
            if all(name.startswith(prefix + wrapper) for name in names):
                prefix, more = prefix + wrapper, True
    return prefix


@cache
def _say(theirs: str, ours: str) -> None:
    _LOG.warning(
        "names of tensors begin with %r, and those of the terms with %r: these are read as the same tensors; give the "
        "state_dict of the bare model, such as model._module.state_dict(), to be rid of this line", theirs, ours,
    )  # fmt: skip
