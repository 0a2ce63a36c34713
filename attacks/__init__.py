"""Attacks: reconstruct clients' data from a view of a recorded run.

    from securefed.attacks import PowerGram, Target, views

    view = views.server(result.transcript, client=0)
    estimate = PowerGram().run(view, Target(algorithm, public), rng)

`views` holds what each kind of attacker sees, `scores` how estimates are scored. To write an attack of your own, see
`extension_templates/attack.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from securefed._lazy import lazy_exports

if TYPE_CHECKING:
    from securefed.attacks._aggregates.disaggregation import disaggregate
    from securefed.attacks._aggregates.dropout_isolation import isolate
    from securefed.attacks._aggregates.participation import ParticipationMatrix
    from securefed.attacks._base import Attack, Reconstruction, RoundView, Target, View, attacks
    from securefed.attacks._distances.distance_fit import DistanceFit
    from securefed.attacks._duals.fedpe import FedPEDuals
    from securefed.attacks._duals.fedpg import FedPGDuals
    from securefed.attacks._duals.joint_fit import JointDuals
    from securefed.attacks._duals.pooled_client import PooledDuals
    from securefed.attacks._gradient_inversion.dlg import DLG
    from securefed.attacks._gradient_inversion.naive_descent import NaiveDescent
    from securefed.attacks._gradient_inversion.sample_fit import SampleFit
    from securefed.attacks._gradient_inversion.telescoping_fit import TelescopingFit
    from securefed.attacks._gram.faps.consensus_attack import ConsensusGram
    from securefed.attacks._gram.faps.summed_clients import JointGram
    from securefed.attacks._gram.linear import ESTIMATORS
    from securefed.attacks._gram.local_power import LocalPowerGram
    from securefed.attacks._gram.subspace_iteration import PowerGram
    from securefed.attacks._gram.survivor_differences import DifferenceGram
    from securefed.attacks._membership.likelihood_ratio import ConfirmationAttack, MembershipAttack, ShadowMembership
    from securefed.attacks._membership.membership_rates import membership_rates
    from securefed.attacks._networks.client_simulations import LocalSteps
    from securefed.attacks._networks.module_inversion import invert
    from securefed.attacks._networks.reconstruction_quality import psnr, tabular_accuracy
    from securefed.attacks._networks.staged_inversion import InversionEffort, RecoveredRows
    from securefed.attacks._networks.view_inversion import NetworkInversion
    from securefed.attacks._personal.admm_recursion import ADMMRecursion
    from securefed.attacks._personal.flame_network_inversion import FLAMENetworkInversion
    from securefed.attacks._personal.flame_row_fit import FLAMERowFit
    from securefed.attacks._personal.personal_model_replay import PersonalModelReplay

__all__ = [
    "DLG",
    "ESTIMATORS",
    "ADMMRecursion",
    "Attack",
    "ConfirmationAttack",
    "ConsensusGram",
    "DifferenceGram",
    "DistanceFit",
    "FLAMENetworkInversion",
    "FLAMERowFit",
    "FedPEDuals",
    "FedPGDuals",
    "InversionEffort",
    "JointDuals",
    "JointGram",
    "LocalPowerGram",
    "LocalSteps",
    "MembershipAttack",
    "NaiveDescent",
    "NetworkInversion",
    "ParticipationMatrix",
    "PersonalModelReplay",
    "PooledDuals",
    "PowerGram",
    "Reconstruction",
    "RecoveredRows",
    "RoundView",
    "SampleFit",
    "ShadowMembership",
    "Target",
    "TelescopingFit",
    "View",
    "attacks",
    "disaggregate",
    "invert",
    "isolate",
    "membership_rates",
    "psnr",
    "tabular_accuracy",
]

EXPORTS = {
    "Attack": (
        "securefed.attacks._base",
        "Reconstruct a secret from a view; an attack is a frozen dataclass of settings.",
    ),
    "View": ("securefed.attacks._base", "An attacker's view of a run, for one target."),
    "RoundView": ("securefed.attacks._base", "One round in an attacker's view."),
    "Target": ("securefed.attacks._base", "Facts that an attacker knows in addition to the view."),
    "Reconstruction": ("securefed.attacks._base", "Result of an attack."),
    "attacks": ("securefed.attacks._base", "All registered attacks by name."),
    "ESTIMATORS": ("securefed.attacks._gram.linear", "Names of the estimators of PowerGram."),
    "PowerGram": (
        "securefed.attacks._gram.subspace_iteration",
        "Stack the Z_k and Y_k of the rounds that show one set of clients, and solve S Z = Y.",
    ),
    "LocalPowerGram": (
        "securefed.attacks._gram.local_power",
        "Solve for S^q from rounds with the same number q > 1 of local steps, take the root, and fit it to all rounds.",
    ),
    "ConsensusGram": (
        "securefed.attacks._gram.faps.consensus_attack",
        "Estimate S near consensus, on every view; then, on single clients, solve for it exactly.",
    ),
    "DifferenceGram": (
        "securefed.attacks._gram.survivor_differences",
        "Fit one Gram matrix to every group of clients that always come together, jointly to all rounds.",
    ),
    "JointGram": ("securefed.attacks._gram.faps.summed_clients", "Fit all clients of FAPS' sums at once."),
    "FedPGDuals": (
        "securefed.attacks._duals.fedpg",
        "Compute U_i and Y_i round by round, and solve the Riemannian steps between them for S_i.",
    ),
    "FedPEDuals": (
        "securefed.attacks._duals.fedpe",
        "Compute U_i, Y_i and T_i round by round, and solve the Euclidean steps between them for S_i.",
    ),
    "JointDuals": (
        "securefed.attacks._duals.joint_fit",
        "Fit the Gram matrices of all clients of a sum, for FedPG and FedPE with any number of local steps.",
    ),
    "PooledDuals": (
        "securefed.attacks._duals.pooled_client",
        "Compute the mean U and Y of all clients round by round, and solve the steps between them for the mean of S_i.",
    ),
    "DistanceFit": (
        "securefed.attacks._distances.distance_fit",
        "Fit z_i / N_i of every member by Levenberg-Marquardt through all steps of all rounds, few rounds first.",
    ),
    "DLG": ("securefed.attacks._gradient_inversion.dlg", "Recover rows by deep leakage from gradients."),
    "NaiveDescent": (
        "securefed.attacks._gradient_inversion.naive_descent",
        "Minimise ||g(x', y') - g||^2 over rows x' and labels y' by gradient descent, with one round's update as g.",
    ),
    "TelescopingFit": (
        "securefed.attacks._gradient_inversion.telescoping_fit",
        "Fit rows to the stored gradients, which are running sums of the messages.",
    ),
    "SampleFit": (
        "securefed.attacks._gradient_inversion.sample_fit",
        "Fit all rows to several simulated rounds by Levenberg-Marquardt, labels unknown, in the messages' row space.",
    ),
    "NetworkInversion": (
        "securefed.attacks._networks.view_inversion",
        "Reconstruct rows and labels from the members' first round: closed forms, then a fit of local steps.",
    ),
    "invert": ("securefed.attacks._networks.module_inversion", "Reconstruct the rows behind one message."),
    "LocalSteps": (
        "securefed.attacks._networks.client_simulations",
        "The update (end minus start) of gradient descent on the client's rows.",
    ),
    "InversionEffort": ("securefed.attacks._networks.staged_inversion", "Limits on the searches of an inversion."),
    "RecoveredRows": ("securefed.attacks._networks.staged_inversion", "The rows that explain a message best."),
    "psnr": (
        "securefed.attacks._networks.reconstruction_quality",
        "Return the PSNR (m,) of each true image in dB, at most 200, after Hungarian matching.",
    ),
    "tabular_accuracy": (
        "securefed.attacks._networks.reconstruction_quality",
        "Return the share of rows in which each feature is right, and the share of rows that are right as a whole.",
    ),
    "ADMMRecursion": (
        "securefed.attacks._personal.admm_recursion",
        "Compute the personal model theta_i after the last round.",
    ),
    "PersonalModelReplay": (
        "securefed.attacks._personal.personal_model_replay",
        "Fit the rows by gradient_inversion/fit and train the personal model on them.",
    ),
    "FLAMERowFit": (
        "securefed.attacks._personal.flame_row_fit",
        "Fit rows to the steps between the personal models that personal/recursion computes.",
    ),
    "FLAMENetworkInversion": (
        "securefed.attacks._personal.flame_network_inversion",
        "Recover one client's rows from its personal models.",
    ),
    "disaggregate": (
        "securefed.attacks._aggregates.disaggregation",
        "Fit all clients' messages jointly to all sums, and return the target's.",
    ),
    "isolate": (
        "securefed.attacks._aggregates.dropout_isolation",
        "Run one exchange in which all clients but the victim (and company others) drop out.",
    ),
    "ParticipationMatrix": (
        "securefed.attacks._aggregates.participation",
        "Matrix of the clients that contributed to the sum of each round.",
    ),
    "MembershipAttack": (
        "securefed.attacks._membership.likelihood_ratio",
        "An attack that scores candidate records; a higher score means membership is more likely.",
    ),
    "ShadowMembership": (
        "securefed.attacks._membership.likelihood_ratio",
        "Score by the likelihood ratio of shadow runs with and without the candidate.",
    ),
    "ConfirmationAttack": (
        "securefed.attacks._membership.likelihood_ratio",
        "Compare the observed messages with those that the known rows and the candidate would send.",
    ),
    "membership_rates": (
        "securefed.attacks._membership.membership_rates",
        "Compute the error rates of the scores of members and of non-members.",
    ),
}
__getattr__, __dir__ = lazy_exports(__name__, EXPORTS)
