"""Read an `audit.json`: its cells and the costs of its runs, of this format and of earlier ones.

In formats 1 and 2 a cell held all its figures side by side, with the costs of its run; format 3 keeps the figures in
parts (`engine.cell_parts`) and the costs once for each run (`engine.run_costs`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Final, TypeVar

from securefed._auditing.engine.audit_result import FORMAT
from securefed._auditing.engine.cell_parts import EstimateFigures, MembershipFigures, Reach, Read, RunCounts
from securefed._auditing.engine.results import NOT_COVERED, Cell
from securefed._auditing.engine.run_costs import RunCosts
from securefed._auditing.engine.statistics import Interval, Verdict
from securefed.errors import DataError

AuditJson = Mapping[str, Any]
"""The JSON values of an `audit.json`."""
PLACE: Final = ("algorithm", "defense", "view", "attack", "secret")
"""Fields that say which cell it is."""
_LEAK: Final = ("mean", "low", "high")
_RENAMED: Final = {"exposed": "exposed_seeds", "whole": "reconstructed"}
"""Fields of a cell's parts that had another name in formats 1 and 2."""
Part = TypeVar("Part", RunCounts, EstimateFigures, MembershipFigures, Read, Reach)


def read(path: Path) -> AuditJson:
    """Read an `audit.json`, of this or an earlier version.

    Raises:
        DataError: the file cannot be read, is not the JSON of an audit, or has a later format than this release's.
    """
    try:
        report: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read {path}: {error}") from error
    except json.JSONDecodeError as error:
        raise DataError(f"{path} is not JSON ({error}); `securefed audit` writes audit.json") from error
    cells = report.get("cells") if isinstance(report, dict) else None
    if not isinstance(cells, list) or not all(_is_cell(cell) for cell in cells):
        raise DataError(f"{path} is JSON, but not of an audit: `securefed audit` writes audit.json with `cells`")
    written = report.get("format", 1)
    if written not in range(1, FORMAT + 1):
        raise DataError(
            f"{path} has format {written}, and this release reads formats 1 to {FORMAT}; compare it with the release "
            "that wrote it, or audit again"
        )
    return report


def cells_of(report: AuditJson) -> list[Cell]:
    """Read the cells; figures that an earlier version did not write are not known (NaN)."""
    return [_cell(values) for values in report["cells"]]


def costs_of(report: AuditJson) -> tuple[RunCosts, ...]:
    """Read the costs of the runs; in formats 1 and 2 they stand in the cells."""
    if "costs" in report:
        return tuple(_costs(values) for values in report["costs"])
    found: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for cell in report["cells"]:
        found.setdefault((cell["algorithm"], cell["defense"], cell["view"]), []).append(cell)
    return tuple(_costs_of_cells(cells) for cells in found.values())


def _is_cell(values: Any) -> bool:
    if not isinstance(values, dict) or not {*PLACE, "leakage", "verdict"} <= values.keys():
        return False
    leak = values["leakage"]
    return isinstance(leak, dict) and all(isinstance(leak.get(name), int | float) for name in _LEAK)


def _cell(values: Mapping[str, Any]) -> Cell:
    """Read a cell, where NaN is `null`."""
    if "runs" in values:
        runs, figures, got, reach = (values[name] or {} for name in ("runs", "figures", "read", "reach"))
    else:
        flat = {name: values.get(old) for name, old in _RENAMED.items()} | dict(values)
        runs = figures = got = reach = flat
    detectable = values.get("detectable")
    return Cell(
        **{name: values[name] for name in PLACE},
        leakage=_interval(values.get("leakage")),
        null_leakage=_interval(values.get("null_leakage")),
        verdict=Verdict(values["verdict"], math.nan if detectable is None else detectable),
        runs=_part(RunCounts, runs),
        figures=_part(MembershipFigures, figures)
        if figures.get("tpr") is not None
        else _part(EstimateFigures, figures),
        read=_part(Read, got),
        reach=_part(Reach, reach),
    )


def _part(kind: type[Part], values: Mapping[str, Any]) -> Part:
    """Read a part of a cell; a number that is not known is NaN."""
    known: dict[str, Any] = {}
    for field in fields(kind):
        value = values.get(field.name)
        if value is not None:
            known[field.name] = tuple(value) if isinstance(value, list) else value
        elif field.type == "float":
            known[field.name] = math.nan
    return kind(**known)


def _interval(values: Mapping[str, Any] | None) -> Interval:
    known = values or {}
    mean, low, high, deviation = (known.get(name, math.nan) for name in (*_LEAK, "deviation"))
    return Interval(mean, low, high, known.get("seeds", 0), deviation)


def _costs(values: Mapping[str, Any]) -> RunCosts:
    known = {name: value for name, value in values.items() if value is not None}
    covered = known.pop("covered", None)
    return RunCosts(**known, covered=None if covered is None else tuple(covered))


def _costs_of_cells(cells: list[Mapping[str, Any]]) -> RunCosts:
    """Read the costs of one view from its cells of an earlier format."""
    first, epsilon = cells[0], cells[0].get("epsilon")
    figures = {name: first.get(name) for name in ("utility", "bytes_per_client_round", "seconds_per_round")}
    return RunCosts(
        first["algorithm"],
        first["defense"],
        first["view"],
        **{name: math.nan if value is None else value for name, value in figures.items()},
        epsilon=None if epsilon == NOT_COVERED else epsilon,
        covered=None if epsilon is None else () if epsilon == NOT_COVERED else (first["view"],),
        note=first.get("note", ""),
    )
