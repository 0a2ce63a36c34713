"""LoSAC-Prox: LoSAC for a smooth loss plus a regulariser with a proximal operator.

Source: Liu et al., LoSAC: An Efficient Local Stochastic Average Control Method for Federated Optimization,
equations (14)-(16), sec. 5.5.
"""

from __future__ import annotations

from dataclasses import dataclass

from securefed.algorithms.base import Public
from securefed.algorithms.optimization.losac import LoSAC
from securefed.algorithms.optimization.proximal_steps import ProximalSteps
from securefed.tensors import Ring


@dataclass(frozen=True, kw_only=True)
class LoSACProx(ProximalSteps, LoSAC):
    """x_i <- prox_{eta Psi}(x_i - eta (phi_i / N - y_ij + g_ij(x_i)))   (16), everything else as in LoSAC.

    Invariant and ring: as LoSAC's. Without a regulariser it is LoSAC, bit for bit.

    At the fixed point phi / N = (1/S) sum_ij g_ij(x), so what is minimised is (1/S) sum_ij f_ij + Psi: with the
    `printed` block scale that is (M/S) sum_i n_i (mean loss of client i) + Psi, and NOT (14) with its 1/N. To solve
    (14) with weight lambda, give Psi the weight lambda M N / S (`consistent`: lambda N / S).

    The server's mean of low-rank matrices is not of low rank: the rank is exact in the limit, when the clients agree.
    """

    def factors(self, public: Public) -> dict[str, tuple[float, Ring]]:
        return self.widened(super().factors(public), self.local_steps, public)
