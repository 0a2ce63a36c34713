"""Single one client out of a sum by telling all other clients a model whose first layer is dead.

The other clients' gradients of the first layer are zero, so that the sum's first layer is the victim's own. The victim
is told trap weights at the same time, which tell its rows apart. A message layer that sums only clients that were told
the same does not sum these.

Source: Pasquini et al. 2022, Eluding Secure Aggregation in Federated Learning via Model Inconsistency (arXiv
2111.07380), sec. 4.1, gradient suppression.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from securefed.attacks._active.chosen_broadcasts import ChosenBroadcast, Dialogue, Situation
from securefed.attacks._active.simulated_client import SimulatedClient
from securefed.attacks._active.trap_network import DenseChain
from securefed.attacks._active.trap_weights import TrapWeights

_DEAD = 1e6
"""Distance of all first outputs below zero, in units of the declared range."""


@dataclass(frozen=True)
class GradientSuppression:
    """Tell the victim trap weights and all other clients a dead first layer.

    Attributes:
        rounds: broadcasts that are chosen.
    """

    rounds: int = 3

    name: ClassVar[str] = "active/gradient_suppression"
    secret: ClassVar[str] = "samples"

    def applies(self, situation: Situation) -> str | None:
        """Return why the attack cannot run, or `None`."""
        if len(situation.members) < 2:
            return "It singles one client out of a sum, and this view holds the client's own messages."
        return TrapWeights().applies(situation)

    def play(self, situation: Situation, rng: np.random.Generator) -> Dialogue:
        """Play trap weights against the victim alone."""
        client, public = SimulatedClient(situation.target), situation.target.public
        initial = client.model.parameters(situation.honest)
        chain = DenseChain.of(client.method.problem.shapes(public), public.features, public.classes)
        assert chain is not None
        bias = chain.biases[0]
        dead = {**initial, bias: np.full_like(initial[bias], -_DEAD * public.feature_bound)}
        suppressed = client.broadcast(situation.honest, dead)
        alone = replace(situation, members=frozenset({situation.victim}))
        traps = TrapWeights(rounds=self.rounds).play(alone, rng)
        chosen = next(traps)
        while True:
            observed = yield ChosenBroadcast(suppressed, {situation.victim: chosen.to_all})
            try:
                chosen = traps.send(replace(observed, broadcast=chosen.to_all))
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
