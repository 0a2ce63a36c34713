"""Defences: what protects the clients' contributions while they are summed.

A defence is a chain of transforms, ended by one aggregation:

    from securefed.defenses import chain, clip, gaussian, secure_aggregation

    defense = chain(clip(1.0), gaussian(2.0), secure_aggregation())
    print(defense.plan(layout, clients=20))
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from securefed._lazy import lazy_exports

if TYPE_CHECKING:
    from securefed.defenses._base import Aggregation, Defense, Session, UploadContext, expect_stage
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
    from securefed.defenses._homomorphic import KeyHolder, KeySet, ckks, deal, paillier, threshold_paillier
    from securefed.defenses._plain import Plain
    from securefed.defenses._plan import MaskingPlan, Plan, PrivacyPlan, TensorPlan
    from securefed.defenses._secure_aggregation import Identities, new_identity, public_identity, secure_aggregation
    from securefed.defenses._simulation import sum_once
    from securefed.defenses._transform import AdaptiveTransform, ChainStage, Transform

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
    "identity",
    "local_gaussian",
    "local_laplace",
    "new_identity",
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

_BASE: Final = "securefed.defenses._base"
_COMPOSE: Final = "securefed.defenses._chain"
_ENCRYPTION: Final = "securefed.defenses._homomorphic"
_FIXED_POINT: Final = "securefed.defenses._fixed_point"
_MASKING: Final = "securefed.defenses._secure_aggregation"
_PLAIN: Final = "securefed.defenses._plain"
_PLAN: Final = "securefed.defenses._plan"
_PRIVACY: Final = "securefed.defenses._differential_privacy"
_SIMULATE: Final = "securefed.defenses._simulation"
_TRANSFORM: Final = "securefed.defenses._transform"
_EXPORTS: Final = {
    "chain": (_COMPOSE, "Compose a defence from transforms and one aggregation."),
    "identity": (_COMPOSE, "Compose the defence that changes nothing: sums in the clear."),
    "Defense": (_BASE, "A chain of transforms, ended by one aggregation."),
    "Transform": (_TRANSFORM, "Base class of a transform: one link of a chain before the aggregation."),
    "AdaptiveTransform": (_TRANSFORM, "Base class of a transform that learns public numbers from each release."),
    "ChainStage": (_TRANSFORM, "The kinds of transforms, in the order in which a chain applies them."),
    "Aggregation": (_BASE, "Base class of an aggregation: how the sum of the contributions is made."),
    "Session": (_BASE, "The identity of one exchange, which every message is checked against."),
    "UploadContext": (_BASE, "Fingerprints of what the server sent a client before its upload."),
    "Plan": (_PLAN, "What a defence will do for one layout and number of clients, stated before the run."),
    "TensorPlan": (_PLAN, "The part of a plan about one tensor: bound, ring, step, error."),
    "MaskingPlan": (_PLAN, "The part of a plan about secure aggregation by masks."),
    "PrivacyPlan": (_PLAN, "The part of a plan about differential privacy: clip, noise, epsilon."),
    "expect_stage": (_BASE, "Check, in an aggregation, that a request asks for the stage that comes next."),
    "sum_once": (_SIMULATE, "Run one exchange in this process, without a network, and return the sum."),
    "Plain": (_PLAIN, "Aggregation without protection: the server sees every contribution."),
    "quantise": (_FIXED_POINT, "Encode contributions in fixed point, for exact sums."),
    "secure_aggregation": (_MASKING, "Aggregate by pairwise masks that cancel in the sum; clients may drop out."),
    "Identities": (_MASKING, "Public identities of the clients, against a server that deviates from the protocol."),
    "new_identity": (_MASKING, "Draw a client's private identity key."),
    "public_identity": (_MASKING, "Derive the public identity of a private key."),
    "paillier": (_ENCRYPTION, "Aggregate under Paillier encryption, opened by a key holder."),
    "threshold_paillier": (_ENCRYPTION, "Aggregate under Paillier encryption, opened by t of N clients together."),
    "ckks": (_ENCRYPTION, "Aggregate under CKKS lattice encryption, opened by a key holder; approximate."),
    "KeyHolder": (_ENCRYPTION, "The party that holds the private key and opens sums."),
    "KeySet": (_ENCRYPTION, "Keys of threshold decryption: the shared key and the secrets of some clients."),
    "deal": (_ENCRYPTION, "Draw the keys of threshold decryption."),
    "clip": (_PRIVACY, "Limit the L2 norm of each client's contribution."),
    "clip_each": (_PRIVACY, "Limit the L2 norm of each tensor of a contribution by itself."),
    "adaptive_clip": (_PRIVACY, "Clip at a quantile of the clients' norms, learned privately during the run."),
    "records": (_PRIVACY, "Size the noise for one record of a client instead of the whole client."),
    "poisson": (_PRIVACY, "Let each client take part with a fixed probability (Poisson sampling)."),
    "gaussian": (_PRIVACY, "Add central Gaussian noise to the sum."),
    "skellam": (_PRIVACY, "Add distributed Skellam noise, a share at each client."),
    "discrete_gaussian": (_PRIVACY, "Add distributed discrete Gaussian noise, a share at each client."),
    "local_gaussian": (_PRIVACY, "Add discrete Gaussian noise that protects each upload by itself."),
    "local_laplace": (_PRIVACY, "Add discrete Laplace noise that protects each upload by itself."),
    "Budget": (_PRIVACY, "A limit on epsilon over a run."),
    "PoissonSampling": (_PRIVACY, "Poisson sampling, for the accountant: each client with a fixed probability."),
    "FixedSizeSampling": (_PRIVACY, "Sampling of cohorts of a fixed size, for the accountant."),
    "calibrate": (_PRIVACY, "Find the noise multiplier for a wanted epsilon."),
    "epsilon_of": (_PRIVACY, "Compute epsilon of the Gaussian mechanism over a number of rounds."),
    "sensitivity": (_PRIVACY, "Compute the L2 sensitivity of a planned sum, rounding included."),
}
__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
