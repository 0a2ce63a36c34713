"""Write the table of what each algorithm leaks under each defence, from the last full audit that was kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "which_leaks.json"
_COLUMNS = {
    "in the clear: the server": [("plain", "server")],
    "sums only": [("secure_aggregation", "sum only"), ("paillier", "sum only")],
    "sums, seven of eight collude": [("secure_aggregation", "collusion(7)")],
    "distributed noise: the server and all others": [("ddp", "sum only")],
    "central noise: the server": [("dp", "sum only")],
    "central noise: all others": [("dp", "released")],
}
"""Column of the table, with the defence and view that it shows; of several, the graver."""
_SEVERITY = ("not detected", "inconclusive", "partial", "exposed")
_SECRETS = {"gram": "second moments", "samples": "rows", "distances": "distances between columns"}


def pages() -> dict[str, str]:
    """Return the page `which-algorithm-leaks-what.md`."""
    kept = json.loads(RESULTS.read_text())
    setting = kept["setting"]
    lines = [
        "# Which algorithm leaks what",
        "",
        f"The last full audit: {setting['data']}, {setting['clients']} clients, {setting['seeds']} seeds, noise of "
        f"epsilon {setting['epsilon']:g} over the whole run. `securefed audit --algorithms all --defenses "
        "plain,secure_aggregation,paillier,ddp,dp` repeats it.",
        "",
        "In short: in the clear almost every algorithm gives one client's data away. Sums hide the clients of the PCA",
        "methods, but not the rows of clients that hold one row each (the gradient methods' setting here). Noise that",
        "clients add protects against the server too, central noise against all but the server.",
        "",
        *_table(kept, "client", "One client's data"),
        *_table(kept, "federation", "All clients' data together"),
        "What the words promise: [how verdicts are reached](/reference/audit-verdicts.md#verdicts). The figure is the",
        "leakage of the strongest attack: 1 is exact, 0 is no better than a guess without the messages; what is worse",
        "than the guess is written 0. An empty cell was not attacked. What changes the figures is measured in",
        "[what drives leakage](/leakage.md).",
    ]
    return {"which-algorithm-leaks-what.md": "\n".join(lines) + "\n"}


def secret_of(kept: dict[str, Any], algorithm: str) -> str:
    """Return what is to be recovered of an algorithm's clients, in words."""
    secret = kept["secrets"][algorithm]
    return _SECRETS.get(secret, secret)


def shown_of(kept: dict[str, Any], algorithm: str, owner: str) -> dict[str, str]:
    """Return verdict and figure of one algorithm in each column of the table; empty where it was not attacked.

    Args:
        kept: the audit that was kept.
        algorithm: registered name.
        owner: whose data are the secret, `client` or `federation`.
    """
    own = [cell for cell in kept["cells"] if (cell["algorithm"], cell["secret"]) == (algorithm, owner)]
    return {
        column: _shown([cell for cell in own if (cell["defense"], cell["view"]) in places])
        for column, places in _COLUMNS.items()
    }


def _table(kept: dict[str, Any], owner: str, title: str) -> list[str]:
    lines = [
        f"## {title}",
        "",
        f"| algorithm | secret | {' | '.join(_COLUMNS)} |",
        "| --- " * (2 + len(_COLUMNS)) + "|",
    ]
    for algorithm in kept["secrets"]:
        shown = shown_of(kept, algorithm, owner).values()
        if any(shown):
            lines.append(f"| `{algorithm}` | {secret_of(kept, algorithm)} | {' | '.join(shown)} |")
    return [*lines, ""]


def _shown(cells: list[dict[str, Any]]) -> str:
    if not cells:
        return ""
    cell = max(cells, key=lambda one: (_SEVERITY.index(one["verdict"]), one["leakage"]))
    if cell["verdict"] == "inconclusive":
        return "inconclusive"
    text = f"{cell['verdict']} {max(0.0, cell['leakage']):.2f}"
    return f"**{text}**" if cell["verdict"] == "exposed" else text
