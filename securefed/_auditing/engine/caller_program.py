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
from typing import Any, Final

MAIN: Final = "__main__"
"""The name of the main module."""
_HIDING: Final = threading.Lock()


def needed_modules(tasks: Iterable[Any], work: Callable[..., Any]) -> tuple[str, ...]:
    """Return the caller's modules that tasks need: those of their objects in `MAIN`, and of registered classes.

    Args:
        tasks: arguments of `work`, which name algorithms, attacks, defences and problems.
        work: a function of a module.

    Raises:
        PicklingError: a task cannot be sent to another process; `AttributeError` and `TypeError` mean the same.
    """
    from securefed import _catalogue as catalogue  # noqa: PLC0415 - fills the registries
    from securefed.problems._base import problems  # noqa: PLC0415 - likewise

    sent = bytes(ForkingPickler.dumps((list(tasks), work)))
    modules = {MAIN: None} if MAIN.encode() in sent else {}
    for registry in (catalogue.algorithms, catalogue.attacks, catalogue.defenses, problems):
        for entry in registry:
            module = _module_of(entry.make)
            own = module is not None and module.partition(".")[0] not in ("securefed", "functools")
            if own and entry.name.rpartition("/")[2].encode() in sent:
                modules[str(module)] = None
    return tuple(modules)


def _module_of(maker: Any) -> str | None:
    """Return the module of a class, of a function, or of the class whose `from_settings` the maker is."""
    while isinstance(maker, partial):
        maker = maker.func
    return getattr(getattr(maker, "__self__", maker), "__module__", None)


def main_is_importable() -> bool:
    """Say whether the main module is a file that tells an import from a start, as far as its text shows."""
    file = getattr(sys.modules[MAIN], "__file__", None)
    return file is not None and Path(file).is_file() and "__name__" in Path(file).read_text("utf-8", errors="replace")


@contextmanager
def main_module_hidden() -> Iterator[None]:
    """Hide where the main module came from while a worker starts, so that the worker does not run it."""
    main = sys.modules[MAIN].__dict__
    with _HIDING:
        kept: dict[str, Any] = {name: main.pop(name) for name in ("__spec__", "__file__") if name in main}
        main["__spec__"] = None
        try:
            yield
        finally:
            main.update(kept)
