"""Make charts of attack error against the number of rounds seen, from the traces of an audit.

A trace is one attack on the first rounds of one run in the clear: for several numbers of rounds (`rounds`) the relative
error (`errors`) and the condition number of the attack's system (`conditions`). `registered_audit` calls `curves_of`
once, and the page draws the curves (`charts.curve`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from securefed._auditing.engine.seed_result import DEFAULT_SETTING, SeedResult, Trace
from securefed._auditing.sentences.names import secret_title
from securefed._tensors import Array

Curve = Mapping[str, Any]
"""One chart: `algorithm`, `title`, `note`, and `series`, which maps an attack's name to lists of equal length:
`rounds`, the horizontal axis, and `middle`, `low`, `high` over seeds. Charts that are made elsewhere in the same form
(`size_curve`) have the key `scale` with the value `share`: their values lie between 0 and 1, and the horizontal axis is
the number of rows a client."""


def curves_of(results: Iterable[SeedResult], secrets: Mapping[str, str]) -> Iterator[Curve]:
    """For each algorithm and setting: errors by rounds seen, and condition numbers of attacks that solve a system.

    Args:
        results: the results of all seeds.
        secrets: by algorithm, the kind of its secret.
    """
    traces = [trace for result in results for trace in result.traces]
    for algorithm, setting in dict.fromkeys((trace.algorithm, trace.setting) for trace in traces):
        own = [trace for trace in traces if (trace.algorithm, trace.setting) == (algorithm, setting)]
        seeds = len(own) // len({trace.attack for trace in own})
        over = f"median and range of {seeds} seeds" if seeds > 1 else "one seed"
        where = "" if setting == DEFAULT_SETTING else f", {setting}"
        note = f"relative error of the client's {secret_title(secrets[algorithm])}, plain server view; {over}"
        curves = [_curve(algorithm, f"Error by rounds seen{where}", note, own, "errors")]
        solved = [trace for trace in own if any(math.isfinite(number) for number in trace.conditions)]
        if solved:
            title = f"Condition number{where}"
            curves.append(_curve(algorithm, title, "of the attack's linear system", solved, "conditions"))
        yield from (curve for curve in curves if any(series["rounds"] for series in curve["series"].values()))


def _curve(algorithm: str, title: str, note: str, traces: Sequence[Trace], values: str) -> Curve:
    """Make one chart with a line for each attack; `values` is the field of a trace that it shows."""
    names = dict.fromkeys(trace.attack for trace in traces)
    series = {
        name.rsplit("/", 1)[-1]: _over_seeds([trace for trace in traces if trace.attack == name], values)
        for name in names
    }
    return {"algorithm": algorithm, "title": title, "note": note, "series": series}


def _over_seeds(traces: Sequence[Trace], name: str) -> dict[str, list[float]]:
    """Compute median and range over seeds; numbers of rounds at which the attack did not apply are left out."""
    lengths = [count for count in traces[0].rounds if all(count in trace.rounds for trace in traces)]
    values: Array = np.array([[getattr(t, name)[t.rounds.index(count)] for count in lengths] for t in traces])
    known = np.isfinite(values).all(axis=0)
    values = values[:, known]
    return {
        "rounds": [lengths[index] for index in np.flatnonzero(known)],
        "middle": np.median(values, axis=0).tolist(),
        "low": values.min(axis=0).tolist(),
        "high": values.max(axis=0).tolist(),
    }
