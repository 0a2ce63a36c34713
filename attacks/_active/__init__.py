"""Attacks by a server that chooses its broadcasts. Importing this package registers them."""

from __future__ import annotations

from securefed.attacks._active.chosen_bases import ChosenBases
from securefed.attacks._active.chosen_broadcasts import active_attacks
from securefed.attacks._active.chosen_consensus import ChosenConsensus
from securefed.attacks._active.class_thresholds import ClassThresholds
from securefed.attacks._active.client_kernels import ClientKernels
from securefed.attacks._active.gradient_suppression import GradientSuppression
from securefed.attacks._active.trap_weights import TrapWeights

active_attacks.register(
    TrapWeights.name,
    TrapWeights,
    summary="Weights of a network with a dense ReLU layer by which sums of gradients hold single rows",
    source="Fowl et al. 2022 (Robbing the Fed)",
    reads="sums of gradients or of model updates, in a few rounds whose model the server chose",
)
active_attacks.register(
    ClassThresholds.name,
    ClassThresholds,
    summary="Weights of a linear classifier whose classes are intervals of one direction of a row",
    source="after Fowl et al. 2022 (Robbing the Fed)",
    reads="sums of gradients or of model updates of up to 24 rounds whose model the server chose",
)
active_attacks.register(
    GradientSuppression.name,
    GradientSuppression,
    summary="A dead first layer for all clients but one, whose gradient is then alone in the sum",
    source="Pasquini et al. 2022 (2111.07380), sec. 4.1",
    reads="sums of gradients or of model updates of rounds in which one client is told another model",
)
active_attacks.register(
    ClientKernels.name,
    ClientKernels,
    summary="A convolution with channels of its own for each client, which separates the clients of a sum",
    source="Zhao et al. 2023 (LOKI, 2303.12233)",
    reads="sums of gradients or of model updates of rounds in which every client is told another model",
)
active_attacks.register(
    ChosenBases.name,
    ChosenBases,
    summary="Blocks of an orthogonal matrix in place of the bases of a subspace iteration",
    source="this package; faps eq. (2), which is SSI, and fedpca_grassmann Algorithms 1 and 2",
    reads="the products or points of features / rank rounds whose basis the server chose (FedPG and FedPE: one more)",
)
active_attacks.register(
    ChosenConsensus.name,
    ChosenConsensus,
    summary="Consensus graphs by which the clients of PPGL weigh their messages differently in every round",
    source="this package; ppgl eqs. (18)-(25); Harshman 1970",
    reads="the sums of weighted graphs of 4 N - 3 rounds (N clients; up to 12 N - 11) whose consensus the server chose",
)
