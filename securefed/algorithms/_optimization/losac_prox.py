"""LoSAC-Prox: LoSAC for a smooth loss plus a regulariser with a proximal operator.

Source: Liu et al., LoSAC: An Efficient Local Stochastic Average Control Method for Federated Optimization,
equations (14)-(16), sec. 5.5.

LoSAC makes local gradient steps that a stored average of all clients' gradients corrects: client i stores the last
gradient y_ij of each block j of its rows, the server phi, in proportion to the sum of all y_ij.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from securefed._public import Public
from securefed._tensors import Ring
from securefed.algorithms._audit_case import ROWS_CASE
from securefed.algorithms._base import algorithms
from securefed.algorithms._optimization.losac import LoSAC
from securefed.algorithms._optimization.proximal import L1, Nuclear
from securefed.algorithms._optimization.proximal_steps import ProximalSteps


@algorithms.register(
    "optimization/losac_prox",
    summary="LoSAC through a proximal operator, for a loss plus a regulariser",
    source="LoSAC (Liu et al.), (14)-(16), sec. 5.5",
    transmits="local update and change of the stored gradients",
)
@dataclass(frozen=True, kw_only=True)
class LoSACProx(ProximalSteps, LoSAC):
    """Train by LoSAC with a proximal step after each local gradient step.

    A local step on block j is x_i <- prox_{eta Psi}(x_i - eta (phi_i / N - y_ij + g_ij(x_i)))  (16), with Psi the
    regulariser, eta the `learning_rate`, phi_i the client's current copy of phi, and g_ij the block's gradient.
    Everything else is as in LoSAC, including the invariant phi = (N/S) sum_ij y_ij, for N clients of whom S are planned
    for a round; without a regulariser the results are LoSAC's, bit for bit.

    The paper's problem (14) is to minimise (1/N) sum_i F_i + lambda R, with F_i the sum of the losses of client i's n_i
    rows, and R the regulariser of weight 1. The method's fixed point is another one: there phi / N = (1/S) sum_ij g_ij,
    so that it minimises (1/S) sum_ij f_ij + Psi, with f_ij the loss whose gradient is g_ij. To solve (14), set

        Psi = (lambda M N / S) R  with `block_scale="printed"`: g_ij is n_i times the mean gradient of one of M blocks,
                                  so that sum_j f_ij = M F_i for blocks of equal size;
        Psi = (lambda N / S) R    with `"consistent"`: g_ij is the sum of the block's gradients; sum_j f_ij = F_i.

    The server's mean of low-rank matrices is not of low rank: the rank is exact in the limit, when the clients agree.
    """

    # Settings with which tests and audits run the method.
    test_settings: ClassVar = {"learning_rate": 0.002, "local_steps": 2, "blocks": 2, "regulariser": Nuclear(0.05)}
    # With one row, one block and one step the client stores this row's gradient, whatever the regulariser is.
    audit_case: ClassVar = replace(
        ROWS_CASE,
        settings={"problem": "softmax", "learning_rate": 0.05, "local_steps": 1, "blocks": 1, "regulariser": L1(0.01)},
    )

    def factors(self, public: Public) -> dict[str, tuple[float, Ring]]:
        """Return LoSAC's bounds and bits of the vectors sent, with the bound of `dx` widened for the proximal steps.

        A bound is a vector's largest entry in units of a gradient's; bits are those of the integers in which the vector
        is summed.
        """
        return self.widened(super().factors(public), self.local_steps, public)
