"""Look sentences up in `sentences.tsv`, where each is written once, by (word, protection, owner, reason).

The word is a verdict, an answer, or the part of the report that speaks; the protection is `none`, `some` or not said;
the owner is whose data it is about, or who reads them. A sentence has places in braces for names and numbers, in the
notation of `str.format`. Nothing else of a sentence is decided in code.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files
from typing import Final, NamedTuple

NOTHING: Final = "-"
"""Stands in the table where a column does not apply."""


class Key(NamedTuple):
    """Where a sentence stands in the table.

    Attributes:
        word: a verdict, an answer, or the part of the report that speaks.
        protection: `none`, `some`, or `-`.
        owner: `client`, `everyone`, `record`, ...; `-` where it is about the audit.
        reason: what tells sentences with the same first three apart.
    """

    word: str
    protection: str = NOTHING
    owner: str = NOTHING
    reason: str = NOTHING


@cache
def table() -> Mapping[Key, str]:
    """Read the table.

    Raises:
        ValueError: two sentences have one key.
    """
    text = (files("securefed._auditing.sentences") / "sentences.tsv").read_text(encoding="utf-8")
    out: dict[Key, str] = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            *parts, sentence = line.split("\t")
            key = Key(*parts)
            if key in out:
                raise ValueError(f"sentences.tsv has two sentences for {key}")
            out[key] = sentence
    return out


def say(word: str, protection: str = NOTHING, owner: str = NOTHING, reason: str = NOTHING, /, **places: object) -> str:
    """Return a sentence with its places filled.

    Raises:
        KeyError: the table has no such sentence, or a place of it is not given.
    """
    return table()[Key(word, protection, owner, reason)].format_map(places)


def listed(names: Iterable[str], last: str = "and") -> str:
    """List names in a sentence, each once: "a, b and c"."""
    names = list(dict.fromkeys(names))
    return f" {last} ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def counted(count: int, noun: str) -> str:
    """Count things in a sentence: "1 row", "3 rows"."""
    return f"{count:,} {noun}{'s' * (count != 1)}"
