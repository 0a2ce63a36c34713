"""Single one client out of a sum by sending all other clients a model whose first layer is dead (always inactive).

The other clients' gradients of the first fully connected layer are zero, so that the sum of that layer is the victim's
own. The server sends the victim trap weights in the same round (`trap_weights`: weights under which one gradient holds
single rows), and the others the same weights with biases so low that no row activates the layer. A message layer that
sums only clients that received the same broadcast does not sum these.

Source: Pasquini et al. 2022, Eluding Secure Aggregation in Federated Learning via Model Inconsistency (arXiv
2111.07380), sec. 4.1, gradient suppression.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from securefed._tensors import Array, Tensors
from securefed.attacks._active.chosen_broadcasts import ChosenBroadcast, Dialogue
from securefed.attacks._active.simulated_client import SimulatedClient
from securefed.attacks._active.trap_network import DenseChain
from securefed.attacks._active.trap_weights import TrapWeights
from securefed.attacks._base import Reconstruction, RoundView, Target


@dataclass(frozen=True)
class GradientSuppression:
    """Send the victim trap weights and all other clients a dead first layer.

    Attributes:
        rounds: number of rounds whose broadcasts the server chooses.
    """

    rounds: int = 3

    name: ClassVar[str] = "active/gradient_suppression"
    secret: ClassVar[str] = "samples"

    def applies(self, target: Target, observed: Dialogue) -> str | None:
        """Return why the attack cannot run, or `None`."""
        if len(observed.members) < 2:
            return "It singles one client out of a sum, and this view holds the client's own messages."
        return TrapWeights().applies(target, observed)

    def run(self, observed: Dialogue, target: Target, rng: np.random.Generator) -> Reconstruction:
        """Run `TrapWeights` against the victim alone; each broadcast that it chooses goes out in two versions.

        `TrapWeights` is shown each round as if all clients had received the version with traps.
        """
        public = target.public
        shapes = SimulatedClient(target, observed).method.problem.shapes(public)
        chain = DenseChain.of(shapes, public.features, public.classes)
        assert chain is not None  # `applies` has refused networks without fully connected layers at their end

        def ask(chosen: ChosenBroadcast) -> RoundView:
            suppressed = _suppressed(chosen.to_all, chain, public.feature_bound)
            seen = observed.ask(ChosenBroadcast(suppressed, {observed.victim: chosen.to_all}, counted=False))
            return replace(seen, broadcast=chosen.to_all)

        alone = replace(observed, members=frozenset({observed.victim}), ask=ask)
        return TrapWeights(rounds=self.rounds).run(alone, target, rng)


def _suppressed(traps: Tensors, chain: DenseChain, bound: float) -> dict[str, Array]:
    """Lower the trap's biases until no row reaches an output.

    The layer's inputs are entries of a row, at most the bound in size, or behind convolutions pixels that a bias lifted
    by the bound (`layer_inputs`), at most twice the bound. An output's sum of inputs times weights is then below
    `reach`.
    """
    reach = 2 * bound * float(np.abs(np.asarray(traps[chain.weights[0]], float)).sum(axis=1).max())
    bias = np.asarray(traps[chain.biases[0]])
    return {**traps, chain.biases[0]: np.full_like(bias, -1.0 - reach)}
