"""Tell what worker processes need of the caller's own program: its registered classes, its main module, or nothing.

Python's workers run the caller's main module again, under another name, before their first task. That fails where the
main module is no file (a program on standard input, a notebook), and starts the audit anew where it is a script without
`if __name__ == "__main__":`. Nearly all tasks hold nothing but names and numbers and need no main module.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from pickle import PicklingError
from typing import Any, Final

_MAIN: Final = "__main__"
_HIDING: Final = threading.Lock()


def registered_modules() -> tuple[str, ...]:
    """Return the modules outside the package whose import registers algorithms, attacks, defences or problems."""
    from securefed import _catalogue as catalogue  # noqa: PLC0415 - fills the registries
    from securefed.problems._base import problems  # noqa: PLC0415 - likewise

    makers = [
        entry.make
        for registry in (catalogue.algorithms, catalogue.attacks, catalogue.defenses, problems)
        for entry in registry
    ]
    modules = dict.fromkeys(filter(None, map(_module_of, makers)))
    return tuple(name for name in modules if name.partition(".")[0] not in ("securefed", "functools"))


def _module_of(maker: Any) -> str | None:
    """Return the module of a class, of a function, or of the class whose `from_settings` the maker is."""
    while isinstance(maker, partial):
        maker = maker.func
    return getattr(getattr(maker, "__self__", maker), "__module__", None)


def why_no_workers(tasks: Iterable[Any], work: Callable[..., Any], modules: Iterable[str]) -> str:
    """Say why tasks must run in this process; empty where worker processes can run them.

    Args:
        tasks: arguments of `work`.
        work: a function of a module.
        modules: what `registered_modules` returned.
    """
    try:
        needs_main = needs_main_module(tasks, work, modules)
    except (PicklingError, AttributeError, TypeError) as error:
        return f"a setting cannot be sent to another process ({error})"
    if not needs_main or _importable():
        return ""
    return (
        "they need classes of the main program, which other processes cannot import; put the classes into a module, or "
        'save the program as a file whose calls stand under `if __name__ == "__main__":`'
    )


def needs_main_module(tasks: Iterable[Any], work: Callable[..., Any], modules: Iterable[str]) -> bool:
    """Say whether tasks, or a registered class, come from the main module; the arguments are `why_no_workers`'s.

    Raises:
        PicklingError: a task cannot be sent to another process; `AttributeError` and `TypeError` mean the same.
    """
    return _MAIN in modules or _MAIN.encode() in bytes(ForkingPickler.dumps((list(tasks), work)))


def _importable() -> bool:
    """Say whether the main module is a file that tells an import from a start, as far as its text shows."""
    file = getattr(sys.modules[_MAIN], "__file__", None)
    return file is not None and Path(file).is_file() and "__name__" in Path(file).read_text("utf-8", errors="replace")


@contextmanager
def main_module_hidden() -> Iterator[None]:
    """Hide where the main module came from while a worker starts, so that the worker does not run it."""
    main = sys.modules[_MAIN].__dict__
    with _HIDING:
        kept: dict[str, Any] = {name: main.pop(name) for name in ("__spec__", "__file__") if name in main}
        main["__spec__"] = None
        try:
            yield
        finally:
            main.update(kept)
