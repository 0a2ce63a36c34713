"""Attacks on personalised methods, whose models stay with the clients. Importing this package registers them.

In FLAME, FedADMM, pFedMe and Ditto each client trains a personal model beside the common one that the server
broadcasts, and sends only differences of models. The attacks recover the personal models, and from FLAME's also the
clients' rows.
"""

from __future__ import annotations

from securefed.attacks._base import attacks
from securefed.attacks._personal.admm_recursion import ADMMRecursion
from securefed.attacks._personal.flame_network_inversion import FLAMENetworkInversion
from securefed.attacks._personal.personal_model_replay import PersonalModelReplay

__all__ = ["ADMMRecursion", "FLAMENetworkInversion", "PersonalModelReplay"]

attacks.register(
    ADMMRecursion.name,
    ADMMRecursion,
    summary="Duals, local and personal models of consensus ADMM and pFedMe, read off what is sent",
    source="FLAME (Zhu et al.), (10)-(12) and Lemma 2, read backwards",
    reads="every round's broadcast and dz from the first on; of pFedMe the last round's",
)
attacks.register(
    PersonalModelReplay.name,
    PersonalModelReplay,
    summary="Personal models that are not sent: fit the rows, then train as the client does",
    source="this package",
    reads="all rounds: what is broadcast, and the differences of models",
)
attacks.register(
    FLAMENetworkInversion.name,
    FLAMENetworkInversion,
    summary="FLAME's rows behind a network, separated by the ReLU units that they activate in each round",
    source="this package; FLAME (Zhu et al.), (9); Dimitrov et al. 2024 (SPEAR)",
    reads="all rounds: what is broadcast, and the differences of models",
)
