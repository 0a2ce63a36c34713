"""pFedMe: each client fits a personal model near the common one, which moves towards the mean of the personal models.

In the paper's words, the common model is trained by gradient steps on the mean of the clients' Moreau envelopes.

Source: Dinh et al., Personalized Federated Learning with Moreau Envelopes, (2)-(7), Algorithm 1.

In a round the base class calls `steps` for each client, with the broadcast vectors, and `update` at the server, with
the sum of what the survivors sent: the clients whose contributions the sum counts. Vectors have one entry per parameter
of the model; clients that are computed together add a leading axis.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from securefed._hyperparameters import check_integer, check_positive
from securefed._public import Public
from securefed._tensors import Array, Ring
from securefed.algorithms._audit_case import PERSONAL_CASE
from securefed.algorithms._base import algorithms
from securefed.algorithms._optimization.local_steps import BatchDraw, LocalTraining, Memory, Vectors
from securefed.algorithms._optimization.model import Model
from securefed.algorithms._personalized.method import PersonalMethod


@algorithms.register(
    "personalized/pfedme",
    summary="Personalised models by Moreau envelopes",
    source="Dinh et al. 2020, (2)-(7), Algorithm 1",
    transmits="local update of the model",
)
@dataclass(frozen=True, kw_only=True)
class PFedMe(PersonalMethod):
    """Train personal models by Moreau envelopes, and one model by gradient steps on their mean.

    min over w of  sum_i F_i(w),  F_i(w) = min over theta of f_i(theta) + lambda/2 ||theta - w||^2.

    f_i is the mean loss of client i's rows, w the server's model, theta client i's personal model, lambda `attraction`,
    eta `learning_rate`, eta_w `model_rate`, and beta `server_step`. F_i is the Moreau envelope of f_i; its gradient is
    lambda (w - theta) at the theta of the minimum.

    A client, from w_i = theta = w, R times:

        theta <- theta - eta (grad f_i(theta) + lambda (theta - w_i))      K times: theta ~ prox of f_i / lambda at w_i
        w_i <- w_i - eta_w lambda (w_i - theta)                            a gradient step on F_i

    and it sends w_i - w.   Server: w <- w + beta mean over survivors of (w_i - w).
    The personal model is the last theta.

    With `local_steps` R, the K = `inner_steps` steps before each update are made on one batch, as in the source. With
    `local_epochs` H, R = 1 and the steps are H passes over all batches, as in the code of the method FLAME
    (`personalized/flame`), whose paper compares itself with pFedMe (eta_w = .5, beta = 1).

    Local steps do not converge where eta (lambda + L) > 2, L the smoothness of f_i: refused at enrolment where L is
    known. F_i has smoothness lambda, so that eta_w lambda < 2 converges for one client; that is not refused.

    Attributes:
        attraction: lambda > 0.
        inner_steps: K >= 1, without meaning for `local_epochs`.
        model_rate: eta_w > 0.
        server_step: beta > 0.
    """

    # Settings with which tests and audits run the method.
    test_settings: ClassVar = {"learning_rate": 0.02, "local_steps": 2, "inner_steps": 2}
    # The settings of FLAME's comparison, as far as a client of few rows has them.
    audit_case: ClassVar = replace(
        PERSONAL_CASE, settings={"problem": "softmax", "learning_rate": 0.01, "local_steps": 2, "inner_steps": 3}
    )

    attraction: float = 15.0
    inner_steps: int = 5
    model_rate: float = 0.05
    server_step: float = 1.0

    sent: ClassVar[tuple[str, ...]] = ("delta",)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("attraction (lambda)", self.attraction)
        check_positive("model_rate", self.model_rate)
        check_positive("server_step (beta)", self.server_step)
        check_integer("inner_steps", self.inner_steps, 1)

    def curvature(self, smoothness: float, rows: int, public: Public) -> float:
        """Bound the curvature of f_i(theta) + lambda/2 ||theta - w_i||^2, where `smoothness` is that of f_i."""
        return self.attraction + smoothness

    def factors(self, public: Public) -> dict[str, tuple[float, Ring]]:
        """Return the sent vectors' bounds, in units of a gradient's largest entry, and their bits in fixed point."""
        updates = self.local_steps if self.local_epochs is None else 1
        steps = self.inner_steps if self.local_epochs is None else self.most_steps(public)
        # Let d = theta - w_i, and g any gradient. A step of theta makes d into (1 - eta lambda) d - eta g; an update of
        # w_i adds eta_w lambda d to w_i - w and makes d into (1 - eta_w lambda) d: theta stays where it is, so that the
        # next update begins with the rest. `reach` bounds d, and `moved` w_i - w, in units of g's largest entry.
        kept, rest = abs(1 - self.learning_rate * self.attraction), abs(1 - self.model_rate * self.attraction)
        reach = moved = 0.0
        for _ in range(updates):
            for _ in range(steps):
                reach = kept * reach + self.learning_rate
            moved += self.model_rate * self.attraction * reach
            reach *= rest
        return {"delta": (moved, 32)}

    def memory(self, model: Model) -> Memory:
        """Return what a client remembers before its first round: theta = w^0."""
        return (self.initial(model),)

    def draw(self, rows: int, rng: np.random.Generator) -> BatchDraw:
        """Draw the rows of each step of theta: R batches, each K times, or H passes over all batches."""
        draw = super().draw(rows, rng)
        if self.local_epochs is not None:
            return draw
        return BatchDraw.of([part for part in draw.parts for _ in range(self.inner_steps)])

    def steps(self, received: Vectors, memory: Memory, work: LocalTraining) -> tuple[dict[str, Array], Memory]:
        """Return `delta`, w_i - w after the R updates, and the client's new memory, theta."""
        w, count = received["x"], len(work.sizes)
        each = self.inner_steps if self.local_epochs is None else count  # steps of theta for one of w_i
        w_i = theta = w
        for step in range(count):
            theta = theta - self.learning_rate * (work.gradient(theta, step) + self.attraction * (theta - w_i))
            if (step + 1) % each == 0:
                w_i = w_i - self.model_rate * self.attraction * (w_i - theta)
        return {"delta": w_i - w}, (theta,)

    def update(self, vectors: Vectors, total: Vectors, survivors: Array, public: Public) -> dict[str, Array]:
        """Return the next w as `x`."""
        return {"x": vectors["x"] + self.server_step * total["delta"] / len(survivors)}
