"""Ditto: clients train a model by federated averaging, and beside it a personal one that is drawn to the average.

Source: Li et al., Ditto: Fair and Robust Federated Learning Through Personalization, Algorithm 1.

In a round the base class calls `steps` for each client; the server's update is FedAvg's. Vectors have one entry per
parameter of the model; clients that are computed together add a leading axis.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from securefed._hyperparameters import check_number
from securefed._public import Public
from securefed._tensors import Array
from securefed.algorithms._audit_case import PERSONAL_CASE
from securefed.algorithms._base import algorithms
from securefed.algorithms._optimization.fedavg import FedAvg
from securefed.algorithms._optimization.local_steps import LocalTraining, Memory, Vectors
from securefed.algorithms._optimization.model import Model
from securefed.algorithms._personalized.method import PersonalMethod


@algorithms.register(
    "personalized/ditto",
    summary="A personal model beside FedAvg, drawn to the averaged one",
    source="Li et al. 2021, Algorithm 1",
    transmits="weighted local update of the averaged model",
)
@dataclass(frozen=True, kw_only=True)
class Ditto(PersonalMethod, FedAvg):
    """Train a personal model beside FedAvg, drawn towards the averaged model.

    v_i <- v_i - eta (grad f_i(v_i) + lambda (v_i - w)) from the v_i that the client keeps (at first w^0, the first
    model), on the batches of the round's FedAvg steps. f_i is the mean loss of client i's rows, w the broadcast model,
    eta `learning_rate`, lambda `attraction`. Everything sent is FedAvg's, whatever lambda: the client's change of w.

    lambda = 0 is local training; lambda towards infinity gives v_i = w. Steps of v_i do not converge where
    eta (lambda + L) > 2, L the smoothness of f_i: refused at enrolment where L is known.

    Attributes:
        attraction: lambda >= 0, of the personal model to the averaged one.
    """

    # Settings with which audits run the method.
    audit_case: ClassVar = replace(
        PERSONAL_CASE, settings={"problem": "softmax", "learning_rate": 0.01, "local_steps": 5}
    )

    attraction: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("attraction (lambda)", self.attraction, 0)

    def curvature(self, smoothness: float, rows: int, public: Public) -> float:
        """Bound the curvature of f_i(v) + lambda/2 ||v - w||^2, where `smoothness` is that of f_i."""
        return self.attraction + smoothness

    def memory(self, model: Model) -> Memory:
        """Return what a client remembers before its first round: v_i."""
        return (self.initial(model),)

    def steps(self, received: Vectors, memory: Memory, work: LocalTraining) -> tuple[dict[str, Array], Memory]:
        """Return what FedAvg sends, `delta`, and the client's new memory, v_i."""
        sent, _ = super().steps(received, (), work)
        w, v = received["x"], memory[0]
        for step in range(len(work.sizes)):
            v = v - self.learning_rate * (work.gradient(v, step) + self.attraction * (v - w))
        return sent, (v,)
