"""The audit audited: planted leaks have to be found, planted safety has to pass.

Runs through the same transcript, views, attacks, statistics and verdicts as every audit of one's own algorithm.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from securefed.attacks.generic import FitRows
from securefed.auditing.own import OwnAudit, OwnCell, Secret, audit_algorithm
from securefed.auditing.own_function import Contribute
from securefed.auditing.statistics import EXPOSED, NOT_DETECTED, PARTIAL
from securefed.tensors import Array, Tensors

_CLIENTS, _ROWS, _FEATURES, _ROUNDS, _SEEDS = 5, 4, 4, 2, 10
_BOUND = 5.0


@dataclass(frozen=True)
class Planted:
    """A client function whose leak is known.

    Attributes:
        name, function: what is planted.      secret: by which it must be found; `None` where nothing may be found.
        words: verdicts that are right.
    """

    name: str
    function: Contribute
    secret: Secret | None
    words: tuple[str, ...]


@dataclass(frozen=True)
class Checked:
    """One planted function's result. `right` says whether the audit called it as it should."""

    planted: Planted
    audit: OwnAudit
    right: bool
    said: str


def self_check(seeds: int = _SEEDS) -> tuple[Checked, ...]:
    """Audit every planted function. Deterministic; about two seconds.

    Verdicts rest on `seeds` runs of small clients: 10 are needed for the promised rates.
    """
    return tuple(check(planted, seeds) for planted in PLANTED)


def failures(checked: tuple[Checked, ...]) -> list[str]:
    """A sentence for each planted function that was called wrongly; empty where the audit can be trusted."""
    return [f"planted {item.planted.name}: {item.said}" for item in checked if not item.right]


def check(planted: Planted, seeds: int = _SEEDS) -> Checked:
    """Audit one planted function."""
    found = audit_algorithm(
        planted.function,
        _clients,
        rounds=_ROUNDS,
        seeds=seeds,
        start=_START,
        view=("server",),
        feature_bound=_BOUND,
        fit=FitRows(starts=1, steps=8),
    )
    if planted.secret is None:
        wrong = [cell for cell in found.cells if cell.verdict.word != NOT_DETECTED]
        said = "; ".join(_said(cell) for cell in wrong) or "nothing detected"
        return Checked(planted, found, bool(found.cells) and not wrong, said)
    cells = [cell for cell in found.cells if cell.secret == planted.secret]
    best = max(cells, key=lambda cell: cell.leakage.low, default=None)
    return Checked(
        planted, found, best is not None and best.verdict.word in planted.words, _said(best) if best else "not attacked"
    )


def _said(cell: OwnCell) -> str:
    return f"{cell.secret} {cell.verdict.word}, {cell.leakage.mean:.2f} by {cell.attack}"


def _clients(seed: int) -> list[Array]:
    rng = np.random.default_rng([seed, 8])
    return [np.clip(rng.normal(size=(_ROWS, _FEATURES)), -_BOUND, _BOUND) for _ in range(_CLIENTS)]


_START: Tensors = {"round": np.zeros(1)}


def _clear(rows: Array, broadcast: Tensors) -> Tensors:
    return {"rows": rows}


def _half(rows: Array, broadcast: Tensors) -> Tensors:
    return {"rows": rows[: len(rows) // 2]}


def _hash(rows: Array, broadcast: Tensors) -> Tensors:
    digests = [hashlib.sha256(np.ascontiguousarray(row).tobytes()).digest()[:8] for row in rows]
    return {"digests": np.array([list(digest) for digest in digests], np.float64)}


def _noise(rows: Array, broadcast: Tensors, rng: np.random.Generator) -> Tensors:
    return {"noise": rng.normal(size=(len(rows), rows.shape[1]))}


def _constant(rows: Array, broadcast: Tensors) -> Tensors:
    return {"count": np.array([float(len(rows))])}


PLANTED: tuple[Planted, ...] = (
    Planted("rows in the clear", _clear, "samples", (EXPOSED,)),
    Planted("half of the rows", _half, "samples", (PARTIAL,)),
    Planted("a hash of every row", _hash, "membership", (EXPOSED,)),
    Planted("independent noise", _noise, None, (NOT_DETECTED,)),
    Planted("a constant", _constant, None, (NOT_DETECTED,)),
)
