"""Registries of algorithms, defences, problems and attacks by name, for the command line, the audit and the tests.

An entry is a function that builds the thing from keyword arguments, with facts that `securefed list` shows. A class
that is not registered is also found, under the name `module:Class`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Generic, TypeVar

from securefed.errors import ConfigError, UnknownNameError

T = TypeVar("T")
Kind = TypeVar("Kind")


@dataclass(frozen=True)
class Entry(Generic[T]):
    """One registered algorithm, defence, attack or problem.

    Attributes:
        name: its name for users; `family/name` where two families use the same name.
        make: builds it from keyword arguments.
        summary: one line.
        source: paper and equations.
        details: further public facts that `securefed list` shows (what it transmits, what it assumes).
        test_settings: small, quick settings for the checks of `securefed.testing`.
        audit_case: how the audit runs it; `None` where the audit leaves it out.
    """

    name: str
    make: Callable[..., T]
    summary: str
    source: str
    details: dict[str, str]
    test_settings: Mapping[str, Any] = field(default_factory=dict)
    audit_case: Any = None


class Registry(Generic[T]):
    """The algorithms, defences, attacks or problems that users choose by name, in the order of registration.

    Args:
        kind: the word for one entry in errors, such as "algorithm".
        built_in: the module whose import registers the package's own entries; it is imported when an entry is first
            looked up, so that the registry is complete wherever it was imported from.
    """

    def __init__(self, kind: str, built_in: str | None = None) -> None:
        self.kind = kind
        self._built_in = built_in
        self._registered: dict[str, Entry[T]] = {}
        self._imported: dict[str, Entry[T]] = {}

    @property
    def _entries(self) -> dict[str, Entry[T]]:
        if self._built_in is not None:
            import_module(
                self._built_in
            )  # at once if it is imported; a second thread waits here for the first's import
        return self._registered

    def register(
        self,
        name: str,
        make: Callable[..., T] | None = None,
        *,
        summary: str,
        source: str,
        test_settings: Mapping[str, Any] | None = None,
        **details: str,
    ) -> Callable[[Kind], Kind]:
        """Add an entry: the class that this decorates, or `make`, which is then added at once.

        A class is built by its method `from_settings` where it has one, and may bring its test settings and its audit
        case as class attributes `test_settings` and `audit_case`.

        Args:
            name: its name for users.
            make: builds it from keyword arguments; left out where this decorates a class.
            summary: one line.
            source: paper and equations.
            test_settings: small, quick settings for the checks of `securefed.testing`, where the class does not bring
                them.
            **details: further public facts that `securefed list` shows.

        Returns:
            The decorator.

        Raises:
            ConfigError: the name is taken.
        """

        def add(kind: Any) -> Any:
            if name in self._registered:
                raise ConfigError(f"{self.kind} {name!r} is registered already; choose another name")
            self._registered[name] = _entry(name, kind, summary, source, details, test_settings)
            return kind

        if make is not None:
            add(make)
        return add

    def entry_of(self, kind: Any) -> Entry[T] | None:
        """Return the entry under which a class is registered; `None` where it is not."""
        makers = (kind, getattr(kind, "from_settings", kind))  # what `_entry` stores as `make` of a class
        return next((entry for entry in self if entry.make in makers), None)

    def __getitem__(self, name: str) -> Entry[T]:
        """Return the entry of a name.

        The name is a full one, the last part of a `family/name` if only one entry has it, or `module:Class` for a class
        that need not be registered.

        Raises:
            UnknownNameError: there is no such entry, or there are several.
            ConfigError: `name` is no text, or the module of `module:Class` cannot be imported, or lacks the class.
        """
        if not isinstance(name, str):
            raise ConfigError(f"the name of the {self.kind} must be a text, such as {self.names[0]!r}; got {name!r}.")
        if name in self._entries:
            return self._entries[name]
        matches = [entry for key, entry in self._entries.items() if key.rsplit("/", 1)[-1] == name]
        if len(matches) == 1:
            return matches[0]
        if ":" in name:
            if name not in self._imported:
                self._imported[name] = self._of_class(name)
            return self._imported[name]
        raise UnknownNameError(self.kind, name, self._entries)

    def __iter__(self) -> Iterator[Entry[T]]:
        return iter(self._entries.values())

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def names(self) -> tuple[str, ...]:
        """All names, in the order in which they were registered."""
        return tuple(self._entries)

    def make(self, name: str, **kwargs: Any) -> T:
        """Build the entry called `name`."""
        return self[name].make(**kwargs)

    def _of_class(self, name: str) -> Entry[T]:
        """Make the entry of a class, under its name `module:Class`, by which other processes find it too."""
        kind = _imported(self.kind, name)
        if (registered := self.entry_of(kind)) is not None:
            return replace(registered, name=name)
        summary = (kind.__doc__ or "").strip().split("\n")[0]
        return _entry(name, kind, summary, f"module {kind.__module__}", {})


def _entry(
    name: str, kind: Any, summary: str, source: str, details: dict[str, str], settings: Mapping[str, Any] | None = None
) -> Entry[Any]:
    """Make the entry of a class, with what the class brings, or of a function that builds the thing."""
    make, own, case = (getattr(kind, key, None) for key in ("from_settings", "test_settings", "audit_case"))
    return Entry(name, make or kind, summary, source, details, settings or own or {}, case)


def _imported(kind: str, name: str) -> Any:
    """Import the class `module:Class`; modules of the working directory are found too.

    Args:
        kind: the word for the class in errors, such as "algorithm".
        name: `module:Class`.
    """
    module, _, attribute = name.partition(":")
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    try:
        value = getattr(import_module(module), attribute, None)
    except ImportError as error:
        raise ConfigError(
            f"{kind} {name!r}: module {module!r} cannot be imported ({error}); write module:Class, with a module that "
            "is installed or lies in the working directory"
        ) from error
    if not isinstance(value, type):
        raise ConfigError(f"{kind} {name!r}: module {module!r} has no class {attribute!r}; write module:Class")
    return value
