"""Named things: algorithms, defences, attacks. The CLI, the audit and the contract batteries read these."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from securefed.errors import ConfigError, UnknownNameError

T = TypeVar("T")


@dataclass(frozen=True)
class Entry(Generic[T]):
    """One registered thing.

    Attributes:
        name: how users call it, `family/name` where a name recurs.
        make: builds it from keyword arguments.
        summary: one line.
        source: paper and equations.
        details: further public facts shown by `securefed list` (what it transmits, what it assumes).
    """

    name: str
    make: Callable[..., T]
    summary: str
    source: str
    details: dict[str, str]


class Registry(Generic[T]):
    """Entries by name, in the order they were registered."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._entries: dict[str, Entry[T]] = {}

    def register(self, name: str, make: Callable[..., T], *, summary: str, source: str, **details: str) -> None:
        """Add an entry; a name is taken once."""
        if name in self._entries:
            raise ConfigError(f"{self.kind} {name!r} is registered already")
        self._entries[name] = Entry(name, make, summary, source, details)

    def __getitem__(self, name: str) -> Entry[T]:
        """The entry called `name`, or by its last part where that is unambiguous."""
        if name in self._entries:
            return self._entries[name]
        matches = [entry for key, entry in self._entries.items() if key.rsplit("/", 1)[-1] == name]
        if len(matches) == 1:
            return matches[0]
        raise UnknownNameError(self.kind, name, self._entries)

    def __iter__(self) -> Iterator[Entry[T]]:
        return iter(self._entries.values())

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._entries)

    def make(self, name: str, **kwargs: Any) -> T:
        """Build the entry called `name`."""
        return self[name].make(**kwargs)
