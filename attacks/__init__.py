"""Attacks: reconstruct clients' data from a view of a recorded run.

    from securefed.attacks import PowerGram, Target, views

    view = views.server(result.transcript, target=0)
    estimate = PowerGram().run(view, Target(algorithm, public), rng)

`views` holds what each kind of attacker sees, `scores` how estimates are scored. To write an attack of your own, see
`extension_templates/attack.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from securefed._lazy import export_lazily

if TYPE_CHECKING:
    from securefed.attacks._active.chosen_bases import ChosenBases
    from securefed.attacks._active.chosen_broadcasts import (
        ActiveAttack,
        ChosenBroadcast,
        Dialogue,
        active_attacks,
    )
    from securefed.attacks._active.chosen_consensus import ChosenConsensus
    from securefed.attacks._active.class_thresholds import ClassThresholds
    from securefed.attacks._active.client_kernels import ClientKernels
    from securefed.attacks._active.gradient_suppression import GradientSuppression
    from securefed.attacks._active.imprint_module import insert_imprint_module
    from securefed.attacks._active.trap_weights import TrapWeights
    from securefed.attacks._active.visibility import BroadcastSigns, broadcast_signs
    from securefed.attacks._aggregates.client_groups import ClientGroups, group_by_client
    from securefed.attacks._aggregates.disaggregation import disaggregate
    from securefed.attacks._aggregates.dropout_isolation import isolate
    from securefed.attacks._aggregates.participation import ParticipationMatrix
    from securefed.attacks._base import Attack, Reconstruction, RoundView, Target, View, attacks
    from securefed.attacks._distances.distance_fit import DistanceFit
    from securefed.attacks._generic.row_fit import FitRows
    from securefed.attacks._gradient_inversion.naive_descent import NaiveDescent
    from securefed.attacks._gradient_inversion.sample_fit import SampleFit
    from securefed.attacks._gram.faps.consensus_attack import ConsensusGram
    from securefed.attacks._gram.linear import ESTIMATORS
    from securefed.attacks._gram.subspace_iteration import PowerGram
    from securefed.attacks._gram.survivor_differences import DifferenceGram
    from securefed.attacks._networks.client_simulations import LocalSteps
    from securefed.attacks._networks.module_inversion import invert
    from securefed.attacks._networks.reconstruction_quality import psnr, tabular_accuracy
    from securefed.attacks._networks.staged_inversion import InversionEffort, RecoveredRows
    from securefed.attacks._networks.view_inversion import NetworkInversion

__all__ = [
    "ESTIMATORS",
    "ActiveAttack",
    "Attack",
    "BroadcastSigns",
    "ChosenBases",
    "ChosenBroadcast",
    "ChosenConsensus",
    "ClassThresholds",
    "ClientGroups",
    "ClientKernels",
    "ConsensusGram",
    "Dialogue",
    "DifferenceGram",
    "DistanceFit",
    "FitRows",
    "GradientSuppression",
    "InversionEffort",
    "LocalSteps",
    "NaiveDescent",
    "NetworkInversion",
    "ParticipationMatrix",
    "PowerGram",
    "Reconstruction",
    "RecoveredRows",
    "RoundView",
    "SampleFit",
    "Target",
    "TrapWeights",
    "View",
    "active_attacks",
    "attacks",
    "broadcast_signs",
    "disaggregate",
    "group_by_client",
    "insert_imprint_module",
    "invert",
    "isolate",
    "psnr",
    "tabular_accuracy",
]

EXPORTS = {
    "securefed.attacks._active.chosen_broadcasts": "ActiveAttack ChosenBroadcast Dialogue active_attacks",
    "securefed.attacks._active.chosen_bases": "ChosenBases",
    "securefed.attacks._active.chosen_consensus": "ChosenConsensus",
    "securefed.attacks._active.class_thresholds": "ClassThresholds",
    "securefed.attacks._active.client_kernels": "ClientKernels",
    "securefed.attacks._active.gradient_suppression": "GradientSuppression",
    "securefed.attacks._active.imprint_module": "insert_imprint_module",
    "securefed.attacks._active.trap_weights": "TrapWeights",
    "securefed.attacks._active.visibility": "BroadcastSigns broadcast_signs",
    "securefed.attacks._base": "Attack View RoundView Target Reconstruction attacks",
    "securefed.attacks._gram.linear": "ESTIMATORS",
    "securefed.attacks._gram.subspace_iteration": "PowerGram",
    "securefed.attacks._gram.faps.consensus_attack": "ConsensusGram",
    "securefed.attacks._gram.survivor_differences": "DifferenceGram",
    "securefed.attacks._distances.distance_fit": "DistanceFit",
    "securefed.attacks._generic.row_fit": "FitRows",
    "securefed.attacks._gradient_inversion.naive_descent": "NaiveDescent",
    "securefed.attacks._gradient_inversion.sample_fit": "SampleFit",
    "securefed.attacks._networks.view_inversion": "NetworkInversion",
    "securefed.attacks._networks.module_inversion": "invert",
    "securefed.attacks._networks.client_simulations": "LocalSteps",
    "securefed.attacks._networks.staged_inversion": "InversionEffort RecoveredRows",
    "securefed.attacks._networks.reconstruction_quality": "psnr tabular_accuracy",
    "securefed.attacks._aggregates.client_groups": "ClientGroups group_by_client",
    "securefed.attacks._aggregates.disaggregation": "disaggregate",
    "securefed.attacks._aggregates.dropout_isolation": "isolate",
    "securefed.attacks._aggregates.participation": "ParticipationMatrix",
}
export_lazily(
    __name__,
    EXPORTS,
    needs=dict.fromkeys(("InversionEffort", "LocalSteps", "RecoveredRows", "insert_imprint_module", "invert"), "torch"),
)
