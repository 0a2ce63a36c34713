"""Names of classes: which value of a column of labels stands for class 0, 1, ...

A label travels as its number alone, so that parties must number their classes alike. Rows (`Dataset`) and public facts
(`Public`) hold the names in one form each, and a difference is refused by name before anything is sent.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final

from securefed.errors import ConfigError, DataError

ClassName = str | int
"""The value that stands for a class in a column of labels."""
SHOWN: Final = 6
"""Classes that a sentence names; of more, it says how many there are."""


def class_names(given: Iterable[Any]) -> tuple[ClassName, ...]:
    """Return names of classes in their one form: whole numbers as `int`, texts without blanks at their ends.

    Raises:
        ConfigError: no list, an empty name, a name that is neither text nor whole number, or one name twice.
    """
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise ConfigError(f"classes must be a list of names, such as ['healthy', 'ill']; got {given!r}")
    names = tuple(map(class_name, given))
    if odd := [name for name in names if name == "" or not isinstance(name, str | int)]:
        raise ConfigError(f"the name of a class must be a text or a whole number; got {odd[0]!r}")
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise ConfigError(f"the class {twice[0]!r} is named twice; name each class once, in the order of their numbers")
    return names


def class_name(value: Any) -> Any:
    """Return a value of a column of labels as the name of a class, or as it is where it cannot be one."""
    if hasattr(value, "dtype") and getattr(value, "shape", None) == ():
        value = value.item()
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if not isinstance(value, str):
        return value
    text = unicodedata.normalize("NFC", value.strip())
    digits = text.removeprefix("-")
    # one spelling alone is a number: 01 and 1 are two texts
    return int(text) if digits.isascii() and digits.isdecimal() and str(int(text)) == text else text


def numbered_apart(names: Sequence[ClassName]) -> bool:
    """Tell whether the numbers of classes are others than their names: they then depend on which names there are."""
    return tuple(names) != tuple(range(len(names)))


def numbering(names: Sequence[ClassName], most: int | None = SHOWN) -> str:
    """Write which number stands for which class, for a sentence; for the first `most` classes, or for all."""
    shown = ", ".join(f"{number} = {name}" for number, name in enumerate(names[:most]))
    return shown + (", ..." if most is not None and len(names) > most else "")


def common_class_names(parts: Iterable[Any], agreed: Sequence[ClassName] = ()) -> tuple[ClassName, ...]:
    """Return the names by which all parts of some data number their classes; empty where labels are their own numbers.

    Args:
        parts: the rows of each client; those without `class_names`, whose classes are not known, are passed over.
        agreed: the class names of the public facts.

    Raises:
        DataError: two parts number their classes differently, or one otherwise than the public facts.
    """
    said = [("the public facts", tuple(agreed))]
    said += [(f"client {number}", tuple(getattr(part, "class_names", ()))) for number, part in enumerate(parts)]
    return one_numbering([(who, names) for who, names in said if names])


def one_numbering(said: Sequence[tuple[str, tuple[ClassName, ...]]]) -> tuple[ClassName, ...]:
    """Return the names of classes that all agree on; empty where labels are their own numbers.

    Args:
        said: pairs of who says it, for the error, and the names.

    Raises:
        DataError: two differ, and do not both have the numbers themselves as names.
    """
    first = next(((who, names) for who, names in said if numbered_apart(names)), None)
    if first is None:
        return ()
    for who, names in said:
        if names != first[1]:
            union = sorted({*first[1], *names}, key=lambda name: (isinstance(name, str), name))
            raise DataError(
                f"{first[0]} numbers classes as {numbering(first[1])}, and {who} as {numbering(names)}; number them in "
                f"one way, by reading all tables with one list of classes, such as load(..., classes={union!r})"
            )
    return first[1]
