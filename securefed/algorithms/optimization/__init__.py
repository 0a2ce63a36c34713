"""Gradient methods. Importing this registers them; `problem` may be a registered name or a `Problem`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from securefed.algorithms.base import algorithms
from securefed.algorithms.optimization.dsgd import DSGD
from securefed.algorithms.optimization.fedavg import FedAvg
from securefed.algorithms.optimization.losac import LoSAC
from securefed.algorithms.optimization.method import GradientMethod
from securefed.algorithms.optimization.scaffold import Scaffold
from securefed.problems import Problem, problems

__all__ = ["DSGD", "FedAvg", "GradientMethod", "LoSAC", "Scaffold"]


def _maker(method: Callable[..., GradientMethod]) -> Callable[..., Any]:
    def make(problem: str | Problem = "softmax", **settings: Any) -> GradientMethod:
        return method(problem=problems.make(problem) if isinstance(problem, str) else problem, **settings)

    return make


algorithms.register(
    "optimization/dsgd",
    _maker(DSGD),
    summary="Distributed gradient descent: clients send gradients",
    source="LoSAC (Liu et al.), sec. 5.4; Deep Leakage from Gradients (Zhu et al.), sec. 3.1",
    transmits="sum over rows of the gradient at the model",
)
algorithms.register(
    "optimization/fedavg",
    _maker(FedAvg),
    summary="Federated averaging of local updates",
    source="McMahan et al. 2017, Algorithm 1",
    transmits="weighted local update",
)
algorithms.register(
    "optimization/scaffold",
    _maker(Scaffold),
    summary="Control variates against client drift",
    source="Karimireddy et al. 2020, Algorithm 1",
    transmits="local update and change of the client's control variate",
)
algorithms.register(
    "optimization/losac",
    _maker(LoSAC),
    summary="Local stochastic average control",
    source="Liu et al., (8), (11)-(13), Algorithm 2",
    transmits="local update and change of the stored gradients",
)
