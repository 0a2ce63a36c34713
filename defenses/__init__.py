"""Defences: what protects the clients' contributions while they are summed.

A defence is a chain of transforms (clip, noise, fixed point), ended by one aggregation (in the clear, masked,
encrypted). Users compose it before a run and give it to a federation; its plan says what it will do:

    from securefed.defenses import chain, clip, gaussian, secure_aggregation

    defense = chain(clip(1.0), gaussian(2.0), secure_aggregation())
    print(defense.plan(layout, clients=20))
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from securefed._lazy import export_lazily

if TYPE_CHECKING:
    from securefed.defenses._aggregation import Aggregation
    from securefed.defenses._base import AdaptiveTransform, ChainStage, Defense, Transform
    from securefed.defenses._chain import chain, identity
    from securefed.defenses._differential_privacy import (
        Budget,
        FixedSizeSampling,
        PoissonSampling,
        adaptive_clip,
        calibrate,
        discrete_gaussian,
        epsilon_of,
        local_gaussian,
        local_laplace,
        poisson,
        skellam,
    )
    from securefed.defenses._differential_privacy.clip import clip, clip_each
    from securefed.defenses._differential_privacy.gaussian import gaussian, sensitivity
    from securefed.defenses._differential_privacy.record_privacy import records
    from securefed.defenses._fixed_point import quantise
    from securefed.defenses._grouped_sums import grouped
    from securefed.defenses._homomorphic import KeyHolder, KeySet, ckks, deal, paillier, threshold_paillier
    from securefed.defenses._one_message import one_message
    from securefed.defenses._plain import Plain
    from securefed.defenses._plan import (
        MaskingPlan,
        Plan,
        PrivacyPlan,
        Session,
        TensorPlan,
        UploadContext,
        expect_stage,
    )
    from securefed.defenses._secure_aggregation import (
        Identities,
        PinnedIdentities,
        new_identity,
        public_identity,
        secure_aggregation,
    )
    from securefed.defenses._simulation import sum_once

__all__ = [
    "AdaptiveTransform",
    "Aggregation",
    "Budget",
    "ChainStage",
    "Defense",
    "FixedSizeSampling",
    "Identities",
    "KeyHolder",
    "KeySet",
    "MaskingPlan",
    "PinnedIdentities",
    "Plain",
    "Plan",
    "PoissonSampling",
    "PrivacyPlan",
    "Session",
    "TensorPlan",
    "Transform",
    "UploadContext",
    "adaptive_clip",
    "calibrate",
    "chain",
    "ckks",
    "clip",
    "clip_each",
    "deal",
    "discrete_gaussian",
    "epsilon_of",
    "expect_stage",
    "gaussian",
    "grouped",
    "identity",
    "local_gaussian",
    "local_laplace",
    "new_identity",
    "one_message",
    "paillier",
    "poisson",
    "public_identity",
    "quantise",
    "records",
    "secure_aggregation",
    "sensitivity",
    "skellam",
    "sum_once",
    "threshold_paillier",
]

EXPORTS = {
    "securefed.defenses._chain": "chain identity",
    "securefed.defenses._base": "Defense Transform AdaptiveTransform ChainStage",
    "securefed.defenses._aggregation": "Aggregation",
    "securefed.defenses._plan": "Plan TensorPlan MaskingPlan PrivacyPlan Session UploadContext expect_stage",
    "securefed.defenses._simulation": "sum_once",
    "securefed.defenses._plain": "Plain",
    "securefed.defenses._fixed_point": "quantise",
    "securefed.defenses._grouped_sums.grouped": "grouped",
    "securefed.defenses._secure_aggregation.double_masking": "secure_aggregation",
    "securefed.defenses._secure_aggregation.identities": "Identities new_identity public_identity",
    "securefed.defenses._secure_aggregation.pinned_identities": "PinnedIdentities",
    "securefed.defenses._one_message.one_message": "one_message",
    "securefed.defenses._homomorphic.paillier_protocol": "paillier",
    "securefed.defenses._homomorphic.threshold": "threshold_paillier",
    "securefed.defenses._homomorphic.lattice": "ckks",
    "securefed.defenses._homomorphic.key_holder": "KeyHolder",
    "securefed.defenses._homomorphic.key_set": "KeySet deal",
    "securefed.defenses._differential_privacy.clip": "clip clip_each",
    "securefed.defenses._differential_privacy.adaptive": "adaptive_clip",
    "securefed.defenses._differential_privacy.record_privacy": "records",
    "securefed.defenses._differential_privacy.poisson_sampling": "poisson",
    "securefed.defenses._differential_privacy.gaussian": "gaussian sensitivity",
    "securefed.defenses._differential_privacy.distributed": "skellam discrete_gaussian local_gaussian local_laplace",
    "securefed.defenses._differential_privacy.budget": "Budget",
    "securefed.defenses._differential_privacy.accountant": "PoissonSampling FixedSizeSampling calibrate epsilon_of",
}
export_lazily(__name__, EXPORTS)
