"""Attacks on personalised methods: the models that stay with the clients. Importing this registers them."""

from __future__ import annotations

from securefed.attacks.base import attacks
from securefed.attacks.personal.network import Behind
from securefed.attacks.personal.path import Path
from securefed.attacks.personal.recursion import Recursion
from securefed.attacks.personal.replay import Replay

__all__ = ["Behind", "Path", "Recursion", "Replay"]

attacks.register(
    Recursion.name,
    Recursion,
    summary="Duals, local and personal models of consensus ADMM and pFedMe, read off what is sent",
    source="FLAME (Zhu et al.), (10)-(12) and Lemma 2, read backwards",
    reads="every round's broadcast and dz from the first on; of pFedMe the last round's",
)
attacks.register(
    Replay.name,
    Replay,
    summary="Personal models that are not sent: fit the rows, then train as the client does",
    source="this package",
    reads="all rounds: what is broadcast, and the differences of models",
)
attacks.register(
    Path.name,
    Path,
    summary="FLAME's personal models by recursion; rows fitted to the local steps between two of them",
    source="this package; FLAME (Zhu et al.), (9)",
    reads="all rounds: what is broadcast, and the differences of models",
)
attacks.register(
    Behind.name,
    Behind,
    summary="FLAME's rows behind a network: told apart by the ReLU units that they reach, round after round",
    source="this package; FLAME (Zhu et al.), (9); Dimitrov et al. 2024 (SPEAR) for the idea",
    reads="all rounds: what is broadcast, and the differences of models",
)
