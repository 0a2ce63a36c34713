"""Export the public names of a package without importing the modules that define them.

A package's `__init__.py` lists its public names, each with its module and a one-line summary:

    EXPORTS = {
        "clip": ("securefed.defenses._differential_privacy", "Limit the L2 norm of each client's contribution."),
    }
    __getattr__, __dir__ = lazy_exports(__name__, EXPORTS)

A name is imported when it is first used, so that importing the package stays quick. The summaries are appended to the
package's docstring, where `help(package)` shows them. For type checkers the package also imports the names under
`if TYPE_CHECKING:` and lists them in `__all__`; `tests/test_exports.py` compares the three.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

Exports = Mapping[str, tuple[str, str]]
"""By public name, the module that defines it and a one-line summary."""


def lazy_exports(package: str, exports: Exports) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Make a package import its public names when they are first used.

    Args:
        package: the package's `__name__`; the package is being imported.
        exports: its public names, in the order in which `help` shows them.

    Returns:
        The package's `__getattr__` and `__dir__`.
    """
    module = sys.modules[package]
    lines = (f"    {name}: {summary}" for name, (_, summary) in exports.items())
    module.__doc__ = "\n".join([(module.__doc__ or "").rstrip(), "", "Public names:", "", *lines, ""])

    def load(name: str) -> Any:
        if name not in exports:
            raise AttributeError(f"module {package!r} has no attribute {name!r}; see help({package})")
        value = getattr(import_module(exports[name][0]), name)
        module.__dict__[name] = value
        return value

    def names() -> list[str]:
        return sorted(exports)

    return load, names
