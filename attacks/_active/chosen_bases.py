"""Read Gram matrices in the fewest rounds, by broadcasting the blocks of an orthogonal matrix as bases.

The client of a federated PCA receives a basis Z (features, rank) and answers with a function of Z and of its Gram
matrix S (features, features), in the simplest method the product S Z. An honest iteration converges, so that its bases
become alike and each round tells less about S than the one before. This server sends the blocks Z_1, Z_2, ... of an
orthogonal matrix Q = [Z_1 Z_2 ...] instead: after features / rank rounds it knows S Q, hence S = (S Q) Q^T. The
messages are then given to the attack on recorded runs of that method.

FedPG's and FedPE's clients (consensus ADMM) send a point that depends on a dual variable, which they update from the
broadcast that follows. The attack on a message needs that broadcast too, so one more is sent than messages are read.

What the choice adds is small: recorded runs of honest servers give nearly as much. It does not apply to FAPS, whose
messages can be read only where the iterates come near a consensus, which chosen bases prevent.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from securefed._tensors import Array
from securefed.algorithms._pca.consensus import ConsensusPCA
from securefed.algorithms._pca.server import BASIS
from securefed.attacks._active.chosen_broadcasts import ChosenBroadcast, Dialogue
from securefed.attacks._base import Attack, Reconstruction, RoundView, Target, View
from securefed.attacks.views import ACTIVE_SERVER


@dataclass(frozen=True)
class ChosenBases:
    """Broadcast the blocks of an orthogonal matrix as bases."""

    name: ClassVar[str] = "active/chosen_bases"
    secret: ClassVar[str] = "gram"

    def applies(self, target: Target, observed: Dialogue) -> str | None:
        """Return why the attack cannot run, or `None`."""
        method = target.algorithm
        if BASIS not in observed.honest:
            return "It chooses bases, and this algorithm broadcasts none."
        if getattr(method, "contributes_gram_product", False):
            return None
        if not isinstance(method, ConsensusPCA):
            return "These messages are read where iterates come near a consensus, which chosen bases prevent."
        if len(observed.members) > 1:
            return "A sum over clients whose messages are not linear in their Gram matrices has no closed form."
        return None

    def run(self, observed: Dialogue, target: Target, rng: np.random.Generator) -> Reconstruction:
        """Send every block, then run the attack on recorded runs of this algorithm.

        Args:
            observed: the dialogue; the tensors of an honest broadcast beside the basis are sent unchanged.
            target: the algorithm and the public facts.
            rng: draws the orthogonal matrix.

        Raises:
            TranscriptError: the attack on recorded runs does not apply to the messages.
        """
        consensus = isinstance(target.algorithm, ConsensusPCA)
        features, rank = observed.honest[BASIS].shape
        rounds: list[RoundView] = []
        for basis in _bases(features, rank, rng, extra=consensus):
            seen = observed.ask(ChosenBroadcast({**observed.honest, BASIS: basis}))
            if rounds:
                rounds[-1] = replace(rounds[-1], followed=seen.broadcast)
            rounds.append(seen)
        output = rounds[-1].broadcast  # stands for a result, which this run has none of
        view = View(ACTIVE_SERVER, observed.victim, tuple(rounds[:-1] if consensus else rounds), output)
        return _passive(target.algorithm).run(view, target, rng)


def _bases(features: int, rank: int, rng: np.random.Generator, *, extra: bool) -> Iterator[Array]:
    """Yield orthonormal (features, rank) blocks; `extra` adds one that only follows the last message read."""
    whole, _ = np.linalg.qr(rng.normal(size=(features, features)))
    for start in range(0, features, rank):
        first = min(start, features - rank)  # where rank does not divide features, the last two blocks overlap
        yield whole[:, first : first + rank]
    if extra:  # any block does
        yield whole[:, :rank]


def _passive(algorithm: Any) -> Attack:
    """Return the attack on recorded runs that reads Gram matrices from this algorithm's answers to bases.

    `PowerGram` solves linear equations in S Z, the other two undo the dual updates of FedPG and FedPE.
    """
    from securefed.attacks._duals import FedPEDuals, FedPGDuals  # noqa: PLC0415 - they load SciPy
    from securefed.attacks._gram import PowerGram  # noqa: PLC0415

    if not isinstance(algorithm, ConsensusPCA):
        return PowerGram()
    return FedPGDuals() if isinstance(algorithm, FedPGDuals.algorithm) else FedPEDuals()
