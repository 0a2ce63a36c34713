"""SCAFFOLD-Prox: SCAFFOLD for a smooth loss plus a regulariser with a proximal operator.

Source: Liu et al., LoSAC, sec. 5.5, which compares LoSAC with this method; without the regulariser it is SCAFFOLD,
Karimireddy et al. 2020, Algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from securefed._public import Public
from securefed._tensors import Ring
from securefed.algorithms._audit_case import ROWS_CASE
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
    """Train by SCAFFOLD with a proximal step after each local gradient step.

    A local step is y <- prox_{eta Psi}(y - eta (g(y) - c_i + c)), with Psi the regulariser, g the gradient of the loss,
    c_i the client's control variate and c = (1/N) sum_i c_i the server's. Everything else is as in SCAFFOLD, and
    without a regulariser the results are those of SCAFFOLD bit for bit (eta is the `learning_rate`). The fixed point
    minimises the mean over clients of their mean losses, plus Psi.

    The paper does not print the algorithm, so one choice is this library's: option II sets c_i+ to the mean of the
    local gradients. SCAFFOLD's formula for option II, which contains (x - y) / (T eta), would put the subgradient of
    Psi into c_i, and the next local steps would apply it a second time.
    """

    # Settings with which tests and audits run the method.
    test_settings: ClassVar = {"learning_rate": 0.02, "local_steps": 2, "regulariser": L1(0.05)}
    # Option I stores gradients of the loss, which do not depend on the proximal operator.
    audit_case: ClassVar = replace(
        ROWS_CASE,
        settings={
            "problem": "softmax",
            "learning_rate": 0.05,
            "local_steps": 2,
            "option": "I",
            "regulariser": L1(0.01),
        },
    )

    def factors(self, public: Public) -> dict[str, tuple[float, Ring]]:
        """Return SCAFFOLD's bounds of the vectors sent, `dx`'s widened by what the proximal steps can move.

        By vector: its largest entry in units of a gradient's, and the bits of the integers in which it is summed.
        """
        return self.widened(super().factors(public), self.local_steps, public)
