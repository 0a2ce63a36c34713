"""Leak over rounds: charts from the audit's traces."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from securefed._auditing.matrix import AuditResult
from securefed._auditing.report_text import secret_title
from securefed._auditing.runs import DEFAULT_SETTING
from securefed._auditing.task_results import Trace
from securefed._tensors import Array


@dataclass(frozen=True)
class Curve:
    """One chart.

    Attributes:
        algorithm: whose.      title, note: for its head.      names: of the series.
        series: each `rounds`, and `middle`, `low`, `high` over seeds.
    """

    algorithm: str
    title: str
    note: str
    names: tuple[str, ...]
    series: tuple[Mapping[str, Sequence[float]], ...]

    def to_json(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "algorithm": self.algorithm,
            "title": self.title,
            "note": self.note,
            "series": dict(zip(self.names, self.series, strict=True)),
        }


def curves_for(result: AuditResult) -> list[Curve]:
    """For each algorithm and setting: errors by rounds seen, and the conditioning of attacks that solve a system."""
    traces = [trace for outcome in result.outcomes for trace in outcome.traces]
    out: list[Curve] = []
    for algorithm, setting in dict.fromkeys((trace.algorithm, trace.setting) for trace in traces):
        these = [trace for trace in traces if (trace.algorithm, trace.setting) == (algorithm, setting)]
        secret = secret_title(result.report.settings[algorithm]["secret"])
        out += _charts(algorithm, setting, secret, these)
    return out


def _charts(algorithm: str, setting: str, secret: str, traces: Sequence[Trace]) -> list[Curve]:
    seeds = len(traces) // len({trace.attack for trace in traces})
    of = f"median and range of {seeds} seeds" if seeds > 1 else "one seed"
    where = "" if setting == DEFAULT_SETTING else f", {setting}"
    note = f"relative error of the client's {secret}, plain server view; {of}"
    out = [_curve(algorithm, f"Error by rounds seen{where}", note, traces, "errors")]
    solved = [t for t in traces if any(math.isfinite(c) for c in t.conditions)]
    if solved:
        out.append(_curve(algorithm, f"Condition number{where}", "of the attack's linear system", solved, "conditions"))
    return [curve for curve in out if any(len(series["rounds"]) for series in curve.series)]


def _curve(algorithm: str, title: str, note: str, traces: Sequence[Trace], what: str) -> Curve:
    names = list(dict.fromkeys(trace.attack for trace in traces))
    series = tuple(_over_seeds([t for t in traces if t.attack == name], what) for name in names)
    return Curve(algorithm, title, note, tuple(name.rsplit("/", 1)[-1] for name in names), series)


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
