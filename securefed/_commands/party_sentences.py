"""Say who is waited for in the exchange folder of `securefed party`, and what the file of a result holds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from securefed._commands.party_files import requests_in
from securefed.parties import SumResult, SumServer


def describe(folder: Path) -> str:
    """Say in a sentence who is waited for, from the names of the files in the exchange folder."""
    names = requests_in(folder)
    if not names:
        return f"No round was opened in {folder}: the server's turn is next (securefed party sum)."
    if (folder / f"round-{names[0].round}-result.json").exists():
        return f"Round {names[0].round} is complete: round-{names[0].round}-mean.npz holds the mean."
    missing = [name.party for name in names if not (folder / name.file("reply")).exists()]
    if not missing:
        return f"{names[0].place()}: all have replied, and the server's turn is next (securefed party sum)."
    return f"{names[0].place()} waits for {clients_text(missing).lower()}."


def clients_text(parties: Sequence[int]) -> str:
    """Name clients: "Client 3", or "Clients 0, 1 and 2"."""
    texts = [str(party) for party in parties]
    return f"Client {texts[0]}" if len(texts) == 1 else f"Clients {', '.join(texts[:-1])} and {texts[-1]}"


def result_facts(result: SumResult, server: SumServer) -> dict[str, Any]:
    """Return what the result file says, as JSON values."""
    plan = result.plan
    return {
        "round": result.round + 1,
        "given_up": result.given_up,
        "run": server.run,
        "terms": server.terms.digest.hex(),
        "survivors": list(result.survivors),
        "weight": result.weight,
        "metrics": dict(result.metrics),
        "error": dict(result.error),
        "noise": dict(result.noise),
        "plan": str(plan).splitlines(),
        "epsilon": None if np.isinf(server.epsilon) else server.epsilon,
        "void": list(result.void),
        "refusals": {str(party): reason for party, reason in result.refusals.items()},
    }
