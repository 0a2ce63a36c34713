"""SCAFFOLD-Prox: SCAFFOLD for a smooth loss plus a regulariser with a proximal operator.

Source: Liu et al., LoSAC, sec. 5.5, where it is the comparison; the smooth method is Karimireddy et al. 2020,
Algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass

from securefed.algorithms.base import Public
from securefed.algorithms.optimization.proximal_steps import ProximalSteps
from securefed.algorithms.optimization.scaffold import Scaffold
from securefed.tensors import Ring


@dataclass(frozen=True, kw_only=True)
class ScaffoldProx(ProximalSteps, Scaffold):
    """y <- prox_{eta Psi}(y - eta (g(y) - c_i + c)), everything else as in SCAFFOLD.

    The paper does not print it. Settled: option II keeps c_i+ as the mean of the local gradients. Read literally,
    (x - y) / (T eta) would put Psi's subgradient into c_i, and from there once more into every step.
    The fixed point minimises the mean over clients of their mean losses, plus Psi; c = (1/N) sum_i c_i holds as before.
    Without a regulariser it is SCAFFOLD, bit for bit.
    """

    def factors(self, public: Public) -> dict[str, tuple[float, Ring]]:
        return self.widened(super().factors(public), self.local_steps, public)
