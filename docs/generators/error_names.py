"""Write the page of errors by name, from the docstrings in `securefed/errors.py`: what happened, and what to do."""

from __future__ import annotations

import inspect

from securefed import errors

REMEDY = "What to do:"


def classes() -> list[type[Exception]]:
    """Return the package's errors in the order of the source."""
    found = [one for one in vars(errors).values() if inspect.isclass(one) and one.__module__ == errors.__name__]
    return [one for one in found if issubclass(one, Exception)]


def remedy(error: type[Exception]) -> str:
    """Return what a user does about an error; the empty text where its docstring does not say."""
    text = " ".join((inspect.getdoc(error) or "").split())
    return text.partition(REMEDY)[2].partition(" Attributes:")[0].strip()


def pages() -> dict[str, str]:
    """Return the page `errors.md`."""
    lines = [
        "# Errors by name",
        "",
        "Every error that this package raises on purpose is a `securefed.errors.SecureFedError`,",
        "and its one warning is a `PrecisionWarning`. A message says",
        "what was given, what is allowed and what to do. Nothing is clipped, dropped or weakened in place of an error.",
        "",
    ]
    for error in classes():
        bases = ", ".join(f"`{base.__name__}`" for base in error.__bases__)
        meaning = " ".join((inspect.getdoc(error) or "").split()).partition(REMEDY)[0].partition("Attributes:")[0]
        lines += [f"## {error.__name__}", "", meaning.strip(), "", f"A kind of {bases}."]
        lines += ["", f"**What to do:** {remedy(error)}", ""] if remedy(error) else [""]
    return {"errors.md": "\n".join(lines)}
