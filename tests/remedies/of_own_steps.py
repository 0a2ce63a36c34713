"""Remedies of the attack that runs an own step: which unknown fits, and which functions have derivatives."""

from __future__ import annotations

from typing import Any

import numpy as np

from securefed import audit_algorithm
from securefed.attacks import FitRows
from securefed.attacks._engine import DualArray
from securefed.errors import TranscriptError
from tests.remedies.followed import Followed, arguments, found

RULES = "attacks/_engine/array_rules.py"
ROWS = [np.random.default_rng(client).uniform(-1, 1, (5, 4)) for client in range(3)]
MATRIX: Any = DualArray(np.arange(6.0).reshape(3, 2), np.ones((3, 2, 1)))


def sums(rows: Any, broadcast: Any) -> dict[str, Any]:
    return {"sum": np.tanh(rows).sum(axis=0)}


def audited(**options: Any) -> Any:
    """Audit the step; raise what an attack on it was skipped for if that names another unknown."""
    start = {"w": np.zeros(1)}
    report = audit_algorithm(sums, ROWS, rounds=1, seeds=1, view="server", start=start, seconds=5.0, **options)
    for reason in report.skipped:
        if "audit with unknown" in reason:
            raise TranscriptError(reason)
    return report


def without_fit(message: str) -> object:
    assert found(r"leave (it) out", message)
    return audit_algorithm(
        lambda rows, broadcast: {"gram": rows.T @ rows}, ROWS, rounds=1, seeds=1, start={"w": np.zeros(1)},
        view="server", **arguments(r"(unknown='gram')", message),
    )  # fmt: skip


TABLE: dict[str, Followed] = {
    "a norm without a rule": Followed(
        RULES, "the 2-norm has one", lambda _: np.linalg.norm(MATRIX, ord=1), lambda *_: np.linalg.norm(MATRIX, ord=2)
    ),
    "a full singular value decomposition": Followed(
        RULES,
        "np.linalg.svd differentiates with full_matrices=False only",
        lambda _: np.linalg.svd(MATRIX, full_matrices=True),
        lambda message, _: np.linalg.svd(MATRIX, **arguments(r"(full_matrices=False)", message)),
    ),
    "a step that depends on more": Followed(
        "attacks/_generic/unknown_fit.py",
        "the messages depend on more of the rows",
        lambda _: audited(unknown="gram"),
        lambda message, _: audited(**arguments(r'(unknown="rows")', message)),
    ),
    "limits of rows beside another unknown": Followed(
        "securefed/_auditing/own/attack_settings.py",
        "fit limits the search for rows",
        lambda _: audited(unknown="gram", fit=FitRows(calls=5)),
        lambda message, _: without_fit(message),
    ),
}
