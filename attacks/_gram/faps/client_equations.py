"""Compare a simulated FAPS client's messages with the observed ones, as functions of its Gram matrix S.

There are three kinds of residuals, each the simulated value less the observed one: Y_k of every round, divided by the
norm of the observed Y_k; tr(Z_k^T S Z_k) of every round; and lambda_1(S), which the first message shows. Only the first
rounds are read, in which the attacker knows whether an adaptive client raised beta (`fit_plan.known_rounds`). Inner
counts that follow a stop rule are fitted with S, as real numbers (`simulated_client`). `client_fit` minimises the
residuals, and `multiple_shooting` finds a start for that. The package's head has the symbols.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from securefed._tensors import Array
from securefed.algorithms._pca.faps import FAPS
from securefed.algorithms._pca.server import BASIS, CAPTURED, PRODUCT
from securefed.attacks._base import RoundView
from securefed.attacks._engine.fit import ForwardSimulation
from securefed.attacks._gram.coordinates import GramParametrisation
from securefed.attacks._gram.faps.fit_plan import LONGEST, known_rounds, parametrisation
from securefed.attacks._gram.faps.message_span import span_basis
from securefed.attacks._gram.faps.simulated_client import ReceivedRounds, messages, received_rounds

_EIGENVALUE_WEIGHT = 0.1
"""Weight of the equation lambda_1(S) = beta / beta_scale beside messages of norm 1: it only keeps a search from S = 0,
since the messages themselves determine lambda_1."""


@dataclass(frozen=True)
class ClientEquations:
    """Residuals of the first rounds, with S in units of lambda_1(S) and in a basis of the span of the messages.

    The parameter vector x holds the parameters of S, then, where the inner iterations stop by a rule, the inner counts
    of rounds 1, 2, ... as real numbers. The scalars are the vector (tr(Z_0^T S Z_0), ..., lambda_1(S)).

    Attributes:
        algorithm: the FAPS that the client runs.
        parametrisation: S in the basis, (directions, directions), as a function of its parameters.
        scale: lambda_1(S).
        basis: orthonormal basis of the messages' span, (features, directions).
        received: the broadcasts, Z_k in the basis, (directions, rank) for each round.
        products: Y_k in the basis, over lambda_1(S), (directions, rank) for each round.
        captured: tr(Z_k^T S Z_k) over lambda_1(S), (rounds,).
    """

    algorithm: FAPS
    parametrisation: GramParametrisation
    scale: float
    basis: Array
    received: ReceivedRounds
    products: Sequence[Array]
    captured: Array

    @classmethod
    def of(cls, rounds: Sequence[RoundView], algorithm: FAPS, rows: int, scale: float) -> ClientEquations:
        """Read the first rounds; from some round on beta is not known, and later rounds are left out (`fit_plan`).

        Args:
            rounds: one client's messages from its first on.
            algorithm: the FAPS that the client runs.
            rows: bound on the rank of S; 0 for none.
            scale: lambda_1(S).
        """
        usable = rounds[: min(LONGEST, known_rounds(algorithm, len(rounds)))]
        basis = span_basis(usable, rows)
        return cls(
            algorithm,
            parametrisation(basis.shape[1], rows),
            scale,
            basis,
            received_rounds([basis.T @ o.broadcast[BASIS] for o in usable], algorithm),
            [basis.T @ o.message[PRODUCT] / scale for o in usable],
            np.array([float(o.message[CAPTURED]) for o in usable]) / scale,
        )

    @property
    def norms(self) -> list[float]:
        """Return the norm of each message, by which its residual is divided."""
        return [float(np.linalg.norm(Y)) or 1.0 for Y in self.products]

    def reduced(self, gram: Array) -> Array:
        """Return S, given in all features and its own units, in the basis and the units of the equations."""
        return np.asarray(self.basis.T @ gram @ self.basis / self.scale)

    def restored(self, S: Array) -> Array:
        """Return S, given in the basis and the units of the equations, in all features and its own units."""
        return np.asarray(self.scale * self.basis @ S @ self.basis.T)

    def residual(self, x: Array) -> Array:
        """Return all residuals, (rounds * directions * rank + rounds + 1,).

        They are (Y_k simulated - observed) / ||Y_k observed|| of each round, then those of the scalars. Where the
        simulation fails, the result is one NaN, which a search takes for an infinite norm.
        """
        return self._simulation.sent(x)

    def linearised(self, x: Array) -> tuple[Array, Array]:
        """Return `residual` and its derivative (equations, parameters)."""
        return self._simulation.sent_and_tangents(x)

    @property
    def _simulation(self) -> ForwardSimulation:
        """Return the residuals as a step in array operations."""
        size = self.parametrisation.count

        def step(x: Any) -> Any:
            S = self.parametrisation.matrix(x[:size])
            sent = messages(S, x[size:], self.received)
            pairs = zip(sent, self.products, self.norms, strict=True)
            relative = [((Y - observed) / norm).reshape(-1) for Y, observed, norm in pairs]
            return np.concatenate([*relative, self.scalar_residuals(S)])

        return ForwardSimulation(step, size + self.received.free_counts)

    def scalar_residuals(self, S: Any) -> Any:
        """Return the simulated less the observed scalars; the observed lambda_1(S) is 1 in these units."""
        captured = [np.vdot(Z, S @ Z) for Z in self.received.probes]
        scalars = np.stack([*captured, _EIGENVALUE_WEIGHT * np.linalg.eigvalsh(S)[-1]])
        return scalars - np.append(self.captured, _EIGENVALUE_WEIGHT)
