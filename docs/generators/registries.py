"""Write the tables of registered algorithms, defences and attacks."""

from __future__ import annotations

from collections.abc import Iterable

from securefed import _catalogue as catalogue

_INTRODUCTIONS = {
    "algorithms": "What `securefed run`, `plan` and `audit` know by name; each runs under every exact defence.",
    "defenses": "What `--defense` knows by name; in Python, `securefed.defenses` builds them, `chain` combines them.",
    "attacks": "What the audit tries, each where it applies. `securefed audit --attacks NAME` runs one alone.",
}
_TITLES = {"algorithms": "Algorithms", "defenses": "Defences", "attacks": "Attacks"}


def pages() -> dict[str, str]:
    """Return a page for each registry."""
    return {f"{kind}.md": _page(kind, getattr(catalogue, kind)) for kind in _TITLES}


def _page(kind: str, registry: Iterable) -> str:  # type: ignore[type-arg]
    lines = [f"# {_TITLES[kind]} by name", "", _INTRODUCTIONS[kind], ""]
    for entry in registry:
        lines += [f"`{entry.name}`", f": {entry.summary}", "", f"  Source: {entry.source}", ""]
        lines += [f"  {word.capitalize()}: {text}\n" for word, text in entry.details.items()]
    return "\n".join(lines) + "\n"
