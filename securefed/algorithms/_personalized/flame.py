"""FLAME: personalised federated learning by ADMM on Moreau envelopes.

Source: Zhu et al., Personalized Federated Learning via ADMM with Moreau Envelope, (6)-(13), Algorithm 1.

In a round the base class calls `steps` for each client, with the broadcast vectors, and `update` at the server, with
the sum of what the survivors sent: the clients whose contributions the sum counts. Vectors have one entry per parameter
of the model; clients that are computed together add a leading axis.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from securefed._hyperparameters import check_choice, check_integer, check_positive
from securefed._messages import ClientId
from securefed._public import Public, require
from securefed._tensors import Array, Layout, Ring
from securefed.algorithms._audit_case import PERSONAL_CASE
from securefed.algorithms._base import algorithms
from securefed.algorithms._optimization.local_steps import LocalTraining, Memory, Vectors, batches
from securefed.algorithms._optimization.method import ModelClient
from securefed.algorithms._optimization.model import Model
from securefed.algorithms._personalized.admm import ConsensusADMM
from securefed.algorithms._personalized.method import PersonalMethod

Anchor = Literal["local", "global"]
Selection = Literal["uniform", "biased"]
NORM = "gradient_norm"
"""Name of the scalar that clients reveal for biased selection."""


@algorithms.register(
    "personalized/flame",
    summary="Personalised models by ADMM on Moreau envelopes",
    source="FLAME (Zhu et al.), (6)-(13), Algorithm 1",
    transmits="change of the local model plus scaled dual; under biased selection also a gradient norm, in the clear",
)
@dataclass(frozen=True, kw_only=True)
class FLAME(ConsensusADMM, PersonalMethod):
    """Train personal models by ADMM on Moreau envelopes.

    min over w and theta_i of  sum_i a_i (f_i(theta_i) + lambda/2 ||theta_i - w||^2)                            (6)

    f_i is the mean loss of client i's rows, theta_i its personal model, w_i its local copy of the global model w, and
    pi_i the dual variable of the constraint w_i = w. m is the number of all clients, a_i the client's weight
    (`weighting`: 1/m or its share of the rows), lambda `attraction`, rho `penalty`, eta `learning_rate`, and H
    `local_epochs`; where that is `None` the client makes `local_steps` steps instead of H passes.

    A client, from the theta_i, w_i, pi_i that it keeps (at first w^0, w^0, 0 with w^0 the first model):

        theta_i <- theta_i - eta (grad f_i(theta_i) + lambda (theta_i - w_i))        H passes over its batches       (9)
        w_i <- (lambda a_i theta_i + rho w - pi_i) / (lambda a_i + rho)                                             (10)
        pi_i <- pi_i + rho (w_i - w)                                                                                (11)

    and it sends the change of z_i = w_i + pi_i / rho. The server adds these to a running sum, so that
    w = (1/m) sum_i z_i over all clients, with the last z_i of those that take no part in the round             (12)

    A client whose contribution the sum does not count keeps its theta_i, w_i, pi_i of before.
    Invariant before and after each round: pi_i = lambda a_i (theta_i - w_i), Lemma 2. Local steps do not converge where
    eta (lambda + L) > 2, L the smoothness of f_i: a client refuses that at enrolment where L is known. The Lagrangian
    is bounded below only where rho >= lambda a_i (Lemma 3). The paper's own setting does not meet this: rho = .01, and
    lambda a_i = 5/50 with 50 clients. It is not refused.

    Attributes:
        attraction: lambda > 0, of the personal model to the local one.
        anchor: what theta_i is drawn to in its steps. `local`: w_i, as in the paper; `global`: the broadcast w, as in
            the authors' code, whose curves are the published ones.
        selection: `uniform`, or `biased` (sec. 4.3): of `candidates` random clients those with the largest gradient
            norm take part. The norms are revealed to the server, each client's own, outside any sum.
        candidates: c, the number of clients that reveal their norm in a round, at least the number of
            clients in a round; 0 with `uniform`.
    """

    # Settings with which audits run the method.
    audit_case: ClassVar = replace(
        PERSONAL_CASE, settings={"problem": "softmax", "learning_rate": 0.01, "local_steps": 5, "anchor": "global"}
    )

    attraction: float = 5.0
    anchor: Anchor = "local"
    selection: Selection = "uniform"
    candidates: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("attraction (lambda)", self.attraction)
        check_choice("anchor", self.anchor, ("local", "global"))
        check_choice("selection", self.selection, ("uniform", "biased"))
        check_integer("candidates", self.candidates, 0)
        require(
            (self.candidates == 0) is (self.selection == "uniform"),
            "candidates must be 0 with selection='uniform'; with selection='biased' it is the number of clients that "
            f"are asked, at least as many as a round takes; got {self.candidates} with selection={self.selection!r}",
        )

    def layout(self, public: Public) -> Layout:
        """Check the number of candidates.

        Raises:
            ConfigError: it is smaller than the cohort (the number of clients in a round), or larger than the number of
                clients.
        """
        require(
            self.selection == "uniform" or public.cohort <= self.candidates <= public.clients,
            f"candidates must lie between the cohort ({public.cohort}) and the clients ({public.clients}), "
            f"not {self.candidates}",
        )
        return super().layout(public)

    def curvature(self, smoothness: float, rows: int, public: Public) -> float:
        """Bound the curvature of f_i(theta) + lambda/2 ||theta - w_i||^2, where `smoothness` is that of f_i."""
        return self.attraction + smoothness

    def factors(self, public: Public) -> dict[str, tuple[float, Ring]]:
        """Return the sent vectors' bounds, in units of a gradient's largest entry, and their bits in fixed point."""
        # The local steps keep theta within `reach` gradients of its anchor. With theta+ the theta after (9) and theta
        # the one before, (10) and (11) give
        # dz = (w - w_i) + 2 lambda a / (lambda a + rho) ((theta+ - w) - (theta - w_i)).
        # w - w_i, which is 0 at rest, is left out. theta+ - w and theta - w_i are at most 2 reaches each: one from
        # theta to the anchor, and one allowed from the anchor to w or w_i. That makes 4, and with the factor 2 it is 8.
        # The bound is planned, not proved: where an entry is larger, the sum is void and is repeated with twice the
        # bound. 64 is the number of bits in fixed point: w is a running sum, which would drift with 32.
        pull = self.attraction * float(np.max(self.share(np.asarray(public.rows, float), public)))
        return {"dz": (8 * pull / (pull + self.penalty) * self.reach(self.attraction, public), 64)}

    def memory(self, model: Model) -> Memory:
        """Return what a client remembers before its first round: theta_i, w_i and pi_i."""
        w = self.initial(model)
        return w, w, model.zeros()

    def steps(self, received: Vectors, memory: Memory, work: LocalTraining) -> tuple[dict[str, Array], Memory]:
        """Return `dz`, the change of z_i, and the client's new memory: theta_i, w_i and pi_i."""
        w, (theta, old_w_i, old_pi_i) = received["x"], memory  # the broadcast `x` is w
        anchor = old_w_i if self.anchor == "local" else w
        for step in range(len(work.sizes)):  # (9)
            theta = theta - self.learning_rate * (work.gradient(theta, step) + self.attraction * (theta - anchor))
        pull = self.attraction * self.share(work.rows, work.public)
        w_i = (1 / (pull + self.penalty)) * (pull * theta + self.penalty * w - old_pi_i)  # (10)
        pi_i = old_pi_i + self.penalty * (w_i - w)  # (11)
        return {"dz": w_i - old_w_i + (1 / self.penalty) * (pi_i - old_pi_i)}, (theta, w_i, pi_i)

    @property
    def reveals(self) -> dict[str, str]:
        """The scalars that a client reveals for the selection, by name."""
        if self.selection == "uniform":
            return {}
        return {NORM: "how far the client's personal model is from fitting a batch of its rows"}

    def reveal(self, client: ModelClient, rng: np.random.Generator) -> dict[str, float]:
        """Return ||g_i|| (sec. 4.3), with g_i = (grad f_i at theta_i, on one random batch) + lambda (theta_i - w_i).

        theta_i and w_i are those that the client keeps from its last round, before it receives this round's w.
        """
        theta, w_i, _ = client.memory
        batch = batches(client.data.rows, self.batch_size, 1, rng)[0]
        gradient = client.model.gradient(theta, client.data, batch) + self.attraction * (theta - w_i)
        self._check(gradient, NORM, "biased selection")
        return {NORM: float(np.linalg.norm(gradient))}

    def choose(self, revealed: Mapping[ClientId, Mapping[str, float]], cohort: int) -> tuple[ClientId, ...]:
        """Choose the `cohort` clients with the largest norms, and return their ids in order; smaller ids win ties."""
        ranked = sorted(revealed, key=lambda client: (-revealed[client][NORM], client))
        return tuple(sorted(ranked[:cohort]))
