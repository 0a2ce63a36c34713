"""Recover FLAME's rows behind a network from what its first layer learned, round after round.

In FLAME, a personalised method, client i keeps its personal model theta_i, but sends enough for the server to compute
it after every round (`admm_recursion`). Each round's steps,

    theta <- theta - eta (grad f(theta) + lambda (theta - anchor)),

with known eta, lambda and anchor (w_i, the client's local model, or the broadcast one, as FLAME's setting `anchor`
says), are linear in the gradients. So both ends of a round give a weighted mean of the gradients between them
(`flame_simulation`), and a mean gradient of a network is what gradient inversion (`attacks/_networks`) turns into rows.
This file joins the two; torch is imported only where the attack runs.

The first layer computes W x + b from a row x. Its part of the mean gradient is sum_k r_k x_k^T, with r_k the slope of
row k at the layer's outputs. A ReLU unit that is active for one row only has a gradient in proportion to that row.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from securefed.algorithms._optimization.model import Model
from securefed.algorithms._personalized.flame import FLAME
from securefed.attacks._base import Reconstruction, Target, View
from securefed.attacks._gradient_inversion.gradient_rounds import stochastic
from securefed.attacks._personal.admm_recursion import ADMMStates, states_of_view, why_no_states
from securefed.attacks._requirements import check_applies, too_long
from securefed.errors import TranscriptError

if TYPE_CHECKING:
    from securefed.attacks._networks.staged_inversion import RecoveredRows

_EXPLAINED = 1e-3
"""Relative residual up to which rows explain the messages; rounding in float32 leaves less."""


@dataclass(frozen=True)
class FLAMENetworkInversion:
    """Recover one client's rows from its personal models.

    `personal/recursion` gives the personal models, and two of them the mean gradient along the path between them. The
    first layer's part of it holds the rows, exactly, wherever ReLU units separate them (`networks.row_separation`): no
    local step is simulated, and neither labels nor batches need be known. Simulated steps check rows and labels. Rows
    that units do not separate are not recovered: fits of them from random starts end elsewhere.

    Batches are the client's secret. With mini-batches the residual therefore stays large even where rows are exact.

    Attributes:
        largest: most rows that are separated.
    """

    largest: int = 16

    name: ClassVar[str] = "personal/network"
    secret: ClassVar[str] = "samples"

    def applies(self, target: Target, observed: View) -> str | None:
        """Return why the attack cannot run on this view, or `None`."""
        method, public = target.algorithm, target.public
        if not isinstance(method, FLAME):
            return "It follows the personal models of FLAME, and this is another algorithm."
        if not hasattr(method.problem, "row_losses") or not hasattr(method.problem, "predict"):
            return "It inverts classifiers that are networks; gradient_inversion/fit inverts linear models."
        if len(observed.members) > 1:
            return "It follows one client's personal model, and the view shows a sum of several."
        if (reason := why_no_states(observed, target)) is not None:
            return reason
        rows = sum(public.rows[client] for client in observed.members)
        if rows > self.largest:
            return f"It looks for at most {self.largest} rows, and this client has {rows}; raise `largest`."
        vectors = 16 * len(observed.rounds) + rows * public.classes  # a generous count of those held at a time
        return too_long(vectors, Model(method.problem, public).layout.size)

    def run(self, observed: View, target: Target, rng: np.random.Generator) -> Reconstruction:
        """Recover the client's rows, (rows, features), and their labels.

        Raises:
            TranscriptError: the attack does not apply, no linear layer takes the rows, or ReLU units do not separate
                them.
        """
        check_applies(self.applies(target, observed))
        states, public = states_of_view(observed, target), target.public
        if not all(np.isfinite(part).all() for part in (states.local, states.personal)):
            raise TranscriptError("the view's messages lead to numbers that are not finite")
        method = target.algorithm
        assert isinstance(method, FLAME)  # `applies` refuses others
        rows = sum(public.rows[client] for client in observed.members)
        drawn = stochastic(method, (rows,))
        found = self._find(observed, target, method, states, rng)
        value = found.rows
        # rows that do not explain the messages are clipped to the public range; with mini-batches no rows explain them,
        # but rows of the closed forms are exact there too
        if not (found.residual <= _EXPLAINED or drawn):
            value = np.clip(np.nan_to_num(value), -public.feature_bound, public.feature_bound)
        return Reconstruction(
            self.secret,
            value,
            labels=found.targets,
            residual=float(found.residual),
            unknowns=value.size,
            members=observed.members,
            diagnostics={"stage": found.stage, "rounds": len(observed.rounds), "batches assumed": drawn},
        )

    def _find(
        self, observed: View, target: Target, method: FLAME, states: ADMMStates, rng: np.random.Generator
    ) -> RecoveredRows:
        """Separate the rows in closed form, and simulate them.

        Raises:
            TranscriptError: the network has no linear layer that takes the rows, or its units do not separate them.
        """
        import torch  # noqa: PLC0415 - loaded when a network is attacked

        from securefed.attacks._networks.first_layer import FirstLayerEvidence  # noqa: PLC0415
        from securefed.attacks._networks.first_round import network_of  # noqa: PLC0415
        from securefed.attacks._networks.gradient_matching import InversionProblem, RowPrior  # noqa: PLC0415
        from securefed.attacks._networks.row_separation import FirstLayerGradient  # noqa: PLC0415
        from securefed.attacks._networks.staged_inversion import StagedInversion  # noqa: PLC0415

        public, problem = target.public, method.problem
        rows = sum(public.rows[client] for client in observed.members)
        # simulated steps include the l2 penalty as the client's do; the mean gradients that are read are without it
        network: Any = network_of(problem, public)  # type: ignore[arg-type]
        unpenalised: Any = network_of(replace(problem, l2=0.0), public)  # type: ignore[arg-type, type-var]
        simulation, gradients = _paths(observed, target, method, states, network, rows)
        start = simulation.memory[0][0]
        layer = unpenalised.first_layer(start, public.features, torch.zeros(1, dtype=torch.int64))
        if layer is None:
            raise TranscriptError("the network has no linear layer that takes the rows")
        # the first layer's gradients of all rounds, as if they were those of one layer with rounds x outputs
        parts = [network.split(gradient) for gradient in gradients]
        weight = torch.cat([part[layer.weight] for part in parts]).numpy()
        bias = None if layer.bias is None else torch.cat([part[layer.bias] for part in parts]).numpy()
        first = FirstLayerEvidence(unpenalised, start, layer, FirstLayerGradient(weight, bias), rows, rng)
        labelled = first.labelled(public.classes)
        if labelled is None:
            raise TranscriptError("the ReLU units of the first layer do not separate the rows")
        prior = RowPrior(-public.feature_bound, public.feature_bound)
        hypothesis = InversionProblem(start, gradients.reshape(-1), torch.as_tensor(labelled[1]))
        return StagedInversion(network, simulation, public.features, prior).closed_form(hypothesis, first)


def _paths(
    observed: View, target: Target, method: FLAME, states: ADMMStates, network: Any, rows: int
) -> tuple[Any, Any]:
    """Return the simulation of the client's paths, and the mean gradients (rounds, parameters) along them.

    A path starts at theta_i before the round and ends at theta_i after it.
    """
    import torch  # noqa: PLC0415

    from securefed.attacks._personal.flame_simulation import FLAMESimulation  # noqa: PLC0415

    model = Model(method.problem, target.public)
    broadcasts = np.stack([model.vector("", item.broadcast) for item in observed.rounds])
    parts = (broadcasts, states.personal[:-1], states.local[:-1], states.dual[:-1], states.personal[1:])
    received, theta, local, dual, ends = (
        torch.as_tensor(np.ascontiguousarray(value), dtype=network.dtype) for value in parts
    )
    steps = len(method.draw(rows, np.random.default_rng(0)).parts)
    simulation = FLAMESimulation(method, target.public, rows, received, (theta, local, dual), steps)
    return simulation, simulation.mean_gradients(network, ends - theta)
