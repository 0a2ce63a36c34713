"""A sentence of the report before its names and numbers are written out, so that sentences of algorithms can be merged.

The page writes each algorithm's sentences on its card. The terminal and `AuditResult.conclusion` write a sentence that
is true of several algorithms once, with their names before it (`merged`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from securefed._auditing.sentences.table import NOTHING, Key, listed, say

NAMED: Final = 8
"""Most algorithms that are named before a sentence, as many as a default audit has; more are counted."""
_BOUNDS: Final = ("bound", "size", "times", "lost")
"""Numbers that are said of several algorithms as the largest of theirs; every other number stands with its own one."""


@dataclass(frozen=True)
class Sentence:
    """A sentence of the table with its names and numbers.

    Attributes:
        key: where it stands in the table.
        places: by the names that it uses, a name or a number.
    """

    key: Key
    places: Mapping[str, object] = field(default_factory=dict)

    def __str__(self) -> str:
        return say(*self.key, **self.places)


def sentence(
    word: str, protection: str = NOTHING, owner: str = NOTHING, reason: str = NOTHING, /, **places: object
) -> Sentence:
    """Make a sentence; the arguments are those of `say`."""
    return Sentence(Key(word, protection, owner, reason), places)


def merged(said: Mapping[str, Sequence[Sentence]], among: int) -> list[str]:
    """Write the sentences of several algorithms, those that differ in nothing but an upper bound as one.

    Args:
        said: by name of an algorithm, its sentences.
        among: number of algorithms of the report; of a single one the name is left out.
    """
    order = list(dict.fromkeys(one.key for sentences in said.values() for one in sentences))
    alike: dict[tuple[Key, str], dict[str, Sentence]] = {}
    for name, sentences in said.items():
        for one in sentences:
            named = repr(sorted((place, value) for place, value in one.places.items() if place not in _BOUNDS))
            alike.setdefault((one.key, named), {})[name] = one
    out = []
    for key in order:
        for (own, _), group in alike.items():
            if own == key:
                largest = Sentence(key, _largest([one.places for one in group.values()]))
                out.append(str(largest) if among == 1 else f"{_names(list(group), among)}: {largest}")
    return out


def _largest(places: Sequence[Mapping[str, object]]) -> dict[str, object]:
    """Return places that agree but for upper bounds, with the largest of each of these."""
    bounds = [name for name in _BOUNDS if name in places[0]]
    return {**places[0], **{name: max(one[name] for one in places) for name in bounds}}  # type: ignore[type-var]


def _names(names: Sequence[str], among: int) -> str:
    if len(names) == among:
        return "Both" if among == 2 else f"All {among}"
    return listed(names) if len(names) <= NAMED else f"{len(names)} of {among}"


def texts(sentences: Iterable[Sentence]) -> tuple[str, ...]:
    """Write sentences, each once."""
    return tuple(dict.fromkeys(map(str, sentences)))
