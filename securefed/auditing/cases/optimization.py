"""Cases of the stochastic gradient methods: the secret is a client's samples."""

from __future__ import annotations

from typing import Any

from securefed.algorithms.optimization import L1
from securefed.auditing.cases.base import Case, accuracy, register
from securefed.auditing.cases.data import one_sample_each

_SAMPLES_DATA = "one row for every client; utility on held-out rows"
_QUICK = ("optimization/dsgd", "optimization/fedavg", "optimization/scaffold", "optimization/losac")
"""In the default audit."""
_GRADIENT_SETTINGS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("optimization/dsgd", {"problem": "softmax", "learning_rate": 0.1}),
    ("optimization/fedavg", {"problem": "softmax", "learning_rate": 0.05, "local_steps": 5}),
    # Two local steps, as in the comparison of these two in LoSAC's table 2.
    ("optimization/scaffold", {"problem": "softmax", "learning_rate": 0.1, "local_steps": 2}),
    ("optimization/losac", {"problem": "softmax", "learning_rate": 0.1, "local_steps": 2, "blocks": 1}),
    ("optimization/fedprox", {"problem": "softmax", "learning_rate": 0.05, "local_steps": 5}),
    ("optimization/fedsaga", {"problem": "softmax", "learning_rate": 0.05, "local_steps": 2, "blocks": 1}),
    ("optimization/mimesvrg", {"problem": "softmax", "learning_rate": 0.05, "local_steps": 2}),
    ("optimization/fedcm", {"problem": "softmax", "learning_rate": 0.05, "local_steps": 5}),
    ("optimization/fedadmm", {"problem": "softmax", "learning_rate": 0.05, "local_steps": 1}),
    # Proximal methods where stored gradients do not depend on the operator.
    (
        "optimization/losac_prox",
        {"problem": "softmax", "learning_rate": 0.05, "local_steps": 1, "blocks": 1, "regulariser": L1(0.01)},
    ),
    (
        "optimization/scaffold_prox",
        {"problem": "softmax", "learning_rate": 0.05, "local_steps": 2, "option": "I", "regulariser": L1(0.01)},
    ),
)
for _name, _setting in _GRADIENT_SETTINGS:
    register(
        Case(
            name=_name,
            setting=_setting,
            secret="samples",
            prepare=one_sample_each,
            rounds=6,
            clip=1.0,
            utility=accuracy(_name, _setting),
            utility_name="accuracy",
            data=_SAMPLES_DATA,
            default=_name in _QUICK,
        )
    )
