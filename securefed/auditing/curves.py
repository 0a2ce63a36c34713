"""Leak over rounds: charts from the audit's traces."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from securefed.auditing.matrix import AuditResult
from securefed.auditing.runs import DEFAULT_SETTING, Trace
from securefed.auditing.words import short
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
    out: list[Curve] = []
    for family, secret in (("pca", "Gram matrix"), ("optimization", "samples")):
        usual = [t for t in traces if t.algorithm.startswith(f"{family}/") and t.setting == DEFAULT_SETTING]
        out += _charts(f"{secret}: error by rounds seen", secret, usual, conditioned=family == "pca")
    for setting in dict.fromkeys(t.setting for t in traces if t.setting != DEFAULT_SETTING):
        wide = [trace for trace in traces if trace.setting == setting]
        out += _charts(f"{setting}: error by rounds seen", "secret", wide, conditioned=True)
    return out


def _charts(title: str, secret: str, traces: Sequence[Trace], *, conditioned: bool) -> list[Curve]:
    if not traces:
        return []
    seeds = len(traces) // len({_label(trace) for trace in traces})
    of = f"median and range of {seeds} seeds" if seeds > 1 else "one seed"
    note = f"relative error of the client's {secret}, plain server view; {of}"
    out = [_curve(title, note, traces, "errors")]
    solved = [t for t in traces if any(math.isfinite(c) for c in t.conditions)]
    if solved and conditioned:
        out.append(_curve("Condition number by rounds seen", "of the attack's linear system", solved, "conditions"))
    return out


def _curve(title: str, note: str, traces: Sequence[Trace], what: str) -> Curve:
    labels = list(dict.fromkeys(_label(trace) for trace in traces))
    series = tuple(_over_seeds([t for t in traces if _label(t) == label], what) for label in labels)
    return Curve(title, note, tuple(labels), series)


def _label(trace: Trace) -> str:
    attack = trace.attack.rsplit("/", 1)[-1]
    return f"{short(trace.algorithm)}, {attack}"


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
