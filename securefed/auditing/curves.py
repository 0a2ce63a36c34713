"""Leak over rounds: charts from the audit's traces."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from securefed.auditing.matrix import AuditResult
from securefed.auditing.runs import DEFAULT_SETTING, Trace
from securefed.tensors import Array


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


def curves_for(result: AuditResult) -> list[Curve]:
    """Errors by family of algorithm, then conditioning where an attack solves a linear system."""
    traces = [trace for outcome in result.outcomes for trace in outcome.traces]
    out = []
    for family, secret in (("pca", "Gram matrix"), ("optimization", "samples")):
        mine = [trace for trace in traces if trace.algorithm.startswith(f"{family}/")]
        if mine:
            seeds = len({id(trace) for trace in mine}) // len({_label(trace) for trace in mine})
            note = f"relative error of the client's {secret}, plain server view; median and range of {seeds} seeds"
            out.append(_curve(f"{secret}: error by rounds seen", note, mine, "errors"))
            conditioned = [t for t in mine if any(math.isfinite(c) for c in t.conditions)]
            if conditioned and family == "pca":
                note = "of the attack's linear system, over the directions kept"
                out.append(_curve("Condition number by rounds seen", note, conditioned, "conditions"))
    return out


def _curve(title: str, note: str, traces: Sequence[Trace], what: str) -> Curve:
    labels = list(dict.fromkeys(_label(trace) for trace in traces))
    series = tuple(_over_seeds([t for t in traces if _label(t) == label], what) for label in labels)
    return Curve(title, note, tuple(labels), series)


def _label(trace: Trace) -> str:
    name = trace.algorithm.rsplit("/", 1)[-1]
    return name if trace.setting == DEFAULT_SETTING else f"{name}, {trace.setting}"


def _over_seeds(traces: Sequence[Trace], what: str) -> dict[str, list[float]]:
    """Median and range over seeds; prefixes at which the attack did not apply are left out."""
    lengths = [count for count in traces[0].rounds if all(count in trace.rounds for trace in traces)]
    values: Array = np.array([[getattr(t, what)[t.rounds.index(count)] for count in lengths] for t in traces])
    kept = np.isfinite(values).all(axis=0)
    values = values[:, kept]
    return {
        "rounds": [lengths[index] for index in np.flatnonzero(kept)],
        "middle": np.median(values, axis=0).tolist(),
        "low": values.min(axis=0).tolist(),
        "high": values.max(axis=0).tolist(),
    }
