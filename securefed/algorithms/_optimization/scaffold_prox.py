"""SCAFFOLD-Prox: SCAFFOLD for a smooth loss plus a regulariser with a proximal operator.

Source: Liu et al., LoSAC, sec. 5.5, where it is the comparison; the smooth method is Karimireddy et al. 2020,
Algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from securefed._public import Public
from securefed._tensors import Ring
from securefed.algorithms._audit_case import AuditCase
from securefed.algorithms._base import algorithms
from securefed.algorithms._optimization.proximal import L1
from securefed.algorithms._optimization.proximal_steps import ProximalSteps
from securefed.algorithms._optimization.scaffold import Scaffold


@algorithms.register(
    "optimization/scaffold_prox",
    summary="SCAFFOLD through a proximal operator",
    source="LoSAC (Liu et al.), sec. 5.5; Karimireddy et al. 2020 (SCAFFOLD), Algorithm 1",
    transmits="local update and change of the client's control variate",
)
@dataclass(frozen=True, kw_only=True)
class ScaffoldProx(ProximalSteps, Scaffold):
    """y <- prox_{eta Psi}(y - eta (g(y) - c_i + c)), everything else as in SCAFFOLD.

    The paper does not print it. Settled: option II keeps c_i+ as the mean of the local gradients. Read literally,
    (x - y) / (T eta) would put Psi's subgradient into c_i, and from there once more into every step.
    The fixed point minimises the mean over clients of their mean losses, plus Psi; c = (1/N) sum_i c_i holds as before.
    Without a regulariser it is SCAFFOLD, bit for bit.
    """

    test_settings: ClassVar = {"learning_rate": 0.02, "local_steps": 2, "regulariser": L1(0.05)}
    # Option I: stored gradients do not depend on the proximal operator.
    audit_case: ClassVar = AuditCase(
        settings={
            "problem": "softmax",
            "learning_rate": 0.05,
            "local_steps": 2,
            "option": "I",
            "regulariser": L1(0.01),
        },
        secret="samples",
        split="rows_each=1",
        utility="accuracy",
    )

    def factors(self, public: Public) -> dict[str, tuple[float, Ring]]:
        """Bound each contributed vector in units of the gradient's largest entry."""
        return self.widened(super().factors(public), self.local_steps, public)
