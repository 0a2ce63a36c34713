"""Cases of the personalised methods: the secrets are a client's own model and its samples."""

from __future__ import annotations

from typing import Any

from securefed.auditing.cases.base import Case, accuracy, register
from securefed.auditing.cases.data import one_sample_each

_SETTINGS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("personalized/flame", {"problem": "softmax", "learning_rate": 0.01, "local_steps": 5, "anchor": "global"}),
    # The rest in the settings of FLAME's comparison, as far as a client of few rows has them.
    ("personalized/pfedme", {"problem": "softmax", "learning_rate": 0.01, "local_steps": 2, "inner_steps": 3}),
    ("personalized/fedadmm", {"problem": "softmax", "learning_rate": 0.01, "local_steps": 5, "penalty": 0.1}),
    ("personalized/ditto", {"problem": "softmax", "learning_rate": 0.01, "local_steps": 5}),
)
for _name, _setting in _SETTINGS:
    register(
        Case(
            name=_name,
            setting=_setting,
            secret="samples",
            also=() if _name == "personalized/fedadmm" else ("personal",),
            prepare=one_sample_each,
            rounds=6,
            clip=1.0,
            utility=accuracy(_name, _setting),
            utility_name="accuracy",
            data="one row for every client; utility of the global model on held-out rows",
        )
    )
