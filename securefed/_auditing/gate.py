"""What holds an audit back at a limit: cells above it, cells that are unknown, and what did not run."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from securefed._auditing.audit_cells import Cell, Report
from securefed._auditing.finding import strongest, why
from securefed._auditing.statistics import INCONCLUSIVE
from securefed.errors import ConfigError

Kind = Literal["above", "unknown", "did not run"]


@dataclass(frozen=True)
class Held:
    """One reason to hold an audit back.

    Attributes:
        kind: of reason.
        where: algorithm, defence, view, attack and secret, as far as it reaches.
        said: figures, or why.
    """

    kind: Kind
    where: str
    said: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.where}: {self.said}"


def require_limit(limit: float, name: str) -> None:
    """Refuse a limit that no leak could exceed, or that every audit exceeds.

    Args:
        limit: a leakage: 0 is nothing, 1 is exact.
        name: of the option, for the message.

    Raises:
        ConfigError: the limit is not a number from 0 up to, and without, 1.
    """
    if not (math.isfinite(limit) and 0 <= limit < 1):
        raise ConfigError(
            f"{name} takes a leakage of at least 0 (nothing leaks) and below 1 (all is exact, so that no cell is above "
            f"it); got {limit:g}"
        )


def reasons(report: Report, limit: float) -> list[Held]:
    """Every reason to hold an audit back; empty where all that was asked for ran, is known, and leaks at most `limit`.

    Not promised: that no other attack finds more.
    """
    out = [
        Held("above", _where(cell, cell.attack), f"up to {cell.leakage.high:.3f}")
        for cell in report.cells
        if not cell.leakage.high <= limit
    ]
    out += [
        Held("unknown", _where(cell), why(cell))
        for cell in strongest(report.cells).values()
        if cell.verdict.word == INCONCLUSIVE
    ]
    out += [Held("did not run", str(item).partition(": ")[0], item.said) for item in report.missing]
    if not report.cells and not report.missing:
        out.append(Held("did not run", "the audit", "it holds no cell"))
    return out


def _where(cell: Cell, attack: str = "") -> str:
    return ", ".join(name for name in (cell.algorithm, cell.defense, cell.view, attack, cell.secret) if name)
