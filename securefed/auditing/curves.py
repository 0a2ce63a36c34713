"""Leak over rounds: the same attack on growing prefixes of a transcript."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Curve:
    """One chart.

    Attributes:
        title, note: for its head.      names: of the series.
        series: each `rounds`, and `middle`, `low`, `high` over seeds.
    """

    title: str
    note: str
    names: tuple[str, ...]
    series: tuple[Mapping[str, Sequence[float]], ...]

    def to_json(self) -> dict[str, Any]:
        """JSON values."""
        return {"title": self.title, "note": self.note, "series": dict(zip(self.names, self.series, strict=True))}


def over_seeds(rounds: Sequence[int], values: np.ndarray[Any, Any]) -> dict[str, Any]:
    """Median and range over seeds of `values` (seeds, len(rounds))."""
    return {
        "rounds": list(rounds),
        "middle": np.median(values, axis=0).tolist(),
        "low": values.min(axis=0).tolist(),
        "high": values.max(axis=0).tolist(),
    }
