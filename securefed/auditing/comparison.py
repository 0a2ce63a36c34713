"""Two audits beside each other: which leaks grew, which shrank, and what it cost."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal

from securefed.errors import DataError

Change = Literal["grew", "shrank", "within the intervals", "only after", "only before"]
GREW: Final = "grew"
SHRANK: Final = "shrank"
SAME: Final = "within the intervals"
ADDED: Final = "only after"
GONE: Final = "only before"
Key = tuple[str, str, str, str, str]
_FIELDS = ("algorithm", "defense", "view", "attack", "secret")


@dataclass(frozen=True)
class Compared:
    """One cell of two audits.

    Attributes:
        algorithm, defense, view, attack, secret: which.
        before, after: mean leakages; `None` where only one audit has the cell.
        change: `grew` or `shrank` where the 95 % intervals do not overlap.
        verdicts: of both, likewise.      utility, bytes: after less before, and after over before; `None` likewise.
    """

    algorithm: str
    defense: str
    view: str
    attack: str
    secret: str
    before: float | None
    after: float | None
    change: Change
    verdicts: tuple[str | None, str | None]
    utility: float | None
    bytes: float | None

    def to_json(self) -> dict[str, Any]:
        """JSON values."""
        return asdict(self)


def read(path: Path) -> Mapping[str, Any]:
    """An `audit.json`.

    Raises:
        DataError: it cannot be read, or is not the JSON of an audit.
    """
    try:
        report: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read {path}: {error}") from error
    except json.JSONDecodeError as error:
        raise DataError(f"{path} is not JSON ({error}); `securefed audit` writes audit.json") from error
    cells = report.get("cells") if isinstance(report, dict) else None
    needed = {*_FIELDS, "leakage", "verdict", "utility", "bytes_per_client_round"}
    if not isinstance(cells, list) or not all(isinstance(cell, dict) and needed <= cell.keys() for cell in cells):
        raise DataError(f"{path} is JSON, but not of an audit: `securefed audit` writes audit.json with `cells`")
    return report


def compare(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Compared]:
    """Every cell of either audit, those of `after` first, in their order.

    A leak counts as changed only where the two 95 % intervals do not overlap, which errs on the side of "same":
    both audits' own seeds say how small a change would have been seen.
    """
    old, new = ({_key(cell): cell for cell in report["cells"]} for report in (before, after))
    keys = dict.fromkeys([*new, *old])
    return [_compared(key, old.get(key), new.get(key)) for key in keys]


def settings_that_differ(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    """What makes the comparison uneven, in sentences: other data, clients, seeds, hyper-parameters, versions."""
    if before.get("version") != after.get("version"):
        yield f"securefed {before.get('version')} before, {after.get('version')} after"
    old, new = (report.get("settings", {}) for report in (before, after))
    for name in sorted(old.keys() & new.keys()):
        for key in sorted(old[name].keys() | new[name].keys()):
            a, b = old[name].get(key), new[name].get(key)
            if a != b:
                yield f"{name}: {key} was {a}, is {b}"


def _key(cell: Mapping[str, Any]) -> Key:
    algorithm, defense, view, attack, secret = (str(cell[name]) for name in _FIELDS)
    return algorithm, defense, view, attack, secret


def _compared(key: Key, old: Mapping[str, Any] | None, new: Mapping[str, Any] | None) -> Compared:
    if old is None or new is None:
        first, second = (None if cell is None else cell["leakage"]["mean"] for cell in (old, new))
        words = None if old is None else old["verdict"], None if new is None else new["verdict"]
        return Compared(*key, first, second, ADDED if old is None else GONE, words, None, None)
    a, b = old["leakage"], new["leakage"]
    change: Change = GREW if b["low"] > a["high"] else SHRANK if b["high"] < a["low"] else SAME
    traffic = new["bytes_per_client_round"], old["bytes_per_client_round"]
    ratio = traffic[0] / traffic[1] if all(traffic) else math.nan
    return Compared(
        *key,
        a["mean"],
        b["mean"],
        change,
        (old["verdict"], new["verdict"]),
        new["utility"] - old["utility"],
        ratio if math.isfinite(ratio) else None,
    )
