"""Write the settings of a protection that held in an audit, ready to paste: a command, and a line of Python.

`actions` shows them below its advice to use the protection.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, Final

from securefed._auditing.engine.allowed_views import default_threshold
from securefed._auditing.engine.audit_result import AUDIT, AuditResult

_CODE: Final[Mapping[str, str]] = {
    "secure_aggregation": "chain(secure_aggregation(threshold={threshold}))",
    "paillier": "chain(paillier(threshold={threshold}))",
    "paillier_threshold": "chain(threshold_paillier(threshold={threshold}))",
    "ckks": "chain(ckks(threshold={threshold}))",
    "dp": "chain(clip({clip_norm!r}), gaussian({noise_multiplier!r}), secure_aggregation())",
    "ddp": "chain(clip({clip_norm!r}), skellam({noise_multiplier!r}, survivors={threshold}{colluding}), "
    "secure_aggregation(threshold={threshold}))",
}
"""By defence, the Python that makes it; the names are of `securefed.defenses`."""

_DIGITS: Final = 1e5
"""Noise multipliers are printed to a hundred-thousandth."""


def settings_of(report: AuditResult, algorithm: str, defense: str, *, fixed: bool) -> dict[str, Any]:
    """Return a defence's settings in the audit, by their names for `--defense-set`.

    Args:
        report: the report of the audit.
        algorithm: the algorithm that it protected.
        defense: its name.
        fixed: whether it holds only while the same clients take part, so that every client must be in a sum. Noise
            keeps the threshold that it was sized for.

    Returns:
        The settings; the noise multiplier is rounded up, so that epsilon holds, and `None` where it is not known.
    """
    clients = report.settings[AUDIT]["clients"]
    threshold = {"threshold": clients if fixed and defense != "ddp" else default_threshold(clients)}
    noise = report.settings[algorithm].get("noise multipliers", {}).get(defense)
    if defense not in ("dp", "ddp"):
        return threshold
    rounded = None if noise is None else math.ceil(noise * _DIGITS) / _DIGITS
    own = {"clip_norm": float(report.settings[algorithm]["clip"]), "noise_multiplier": rounded}
    colluders = report.settings[AUDIT].get("colluders", 0)
    return own if defense == "dp" else threshold | own | ({"colluding": colluders} if colluders else {})


def to_paste(report: AuditResult, algorithm: str, defense: str, *, fixed: bool = False) -> str:
    """Write two lines to paste: options of `securefed run`, and Python; empty where one is unknown."""
    own = settings_of(report, algorithm, defense, fixed=fixed)
    if defense not in _CODE or None in own.values():
        return ""
    options = " ".join(f"--defense-set {name}={json.dumps(value)}" for name, value in own.items())
    more = {"colluding": f", colluding={own['colluding']}" if "colluding" in own else ""}
    return f"--defense {defense} {options}\ndefense = {_CODE[defense].format(**own | more)}"
