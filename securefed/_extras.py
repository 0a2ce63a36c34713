"""Name the extra to install where a package that the core does without is missing.

An extra is a named group of optional packages: `pip install securefed[torch]` installs the extra `torch`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Final

from securefed.errors import MissingExtraError

EXTRA_OF: Final = {
    "sklearn": "audit",
    "PIL": "audit",
    "jinja2": "audit",
    "torch": "torch",
    "phe": "paillier",
    "flwr": "flower",
    "triton": "gpu",
    "tenseal": "lattice",
    "opacus": "records",
    "lightning": "lightning",
    "pandas": "statistics",
    "formulaic": "statistics",
}
"""By the module that is imported, the extra in `pyproject.toml` that brings it."""

_NAMES: Final = {"sklearn": "scikit-learn", "PIL": "Pillow", "jinja2": "Jinja2", "torch": "PyTorch", "flwr": "Flower"}


@contextmanager
def needed_for(purpose: str) -> Iterator[None]:
    """Turn a missing package of an extra into an error that names the extra to install.

        with needed_for("the audit's page"):
            import jinja2

    Args:
        purpose: what the import is for, as the subject of a sentence ("the audit's page").

    Raises:
        MissingExtraError: the package of an extra is not installed. Other errors of an import pass as they are.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRA_OF:
            raise
        raise MissingExtraError(purpose, _NAMES.get(package, package), EXTRA_OF[package]) from error


def check_installed(purpose: str, *modules: str) -> None:
    """Check, without importing them, that packages of extras are installed.

    Args:
        purpose: as `needed_for`.
        modules: names of `EXTRA_OF`.

    Raises:
        MissingExtraError: one of them is not.
    """
    for module in modules:
        if not is_installed(module):
            raise MissingExtraError(purpose, _NAMES.get(module, module), EXTRA_OF[module])


def is_installed(module: str) -> bool:
    """Tell whether a top-level module can be found; it is not imported."""
    try:
        return find_spec(module) is not None
    except (ModuleNotFoundError, ValueError):
        return False
