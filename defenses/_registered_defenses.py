"""Register the defences by name, for the command line, the audit and the contract tests.

Each entry is a name, a function that makes the defence from settings (keyword arguments), and what lists and tables
show: a summary, the source, what it `hides`, and whether its sums are exact. The registry imports this module at first
use.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Any

from securefed.defenses._aggregation import Aggregation
from securefed.defenses._base import Defense, defenses
from securefed.defenses._chain import chain, identity
from securefed.defenses._differential_privacy import AdaptiveClip, Clip, adaptive_clip, clip, gaussian, skellam
from securefed.defenses._fixed_point import Quantise
from securefed.defenses._homomorphic import ckks, paillier, threshold_paillier
from securefed.defenses._plain import Plain
from securefed.defenses._secure_aggregation import secure_aggregation


def _alone(make: Callable[..., Aggregation]) -> Callable[..., Defense]:
    """Return a function of the same settings that makes the chain of the aggregation alone."""

    @wraps(make)  # so that errors can list the settings
    def defense(**settings: Any) -> Defense:
        return chain(make(**settings))

    return defense


def _clip(norm: float, quantile: float | None) -> Clip | AdaptiveClip:
    """Clip at `norm` or, given a quantile, at that quantile of the clients' norms, starting from `norm`."""
    return clip(norm) if quantile is None else adaptive_clip(quantile, initial=norm)


def _dp(clip_norm: float = 1.0, noise_multiplier: float = 1.0, quantile: float | None = None) -> Defense:
    """Central noise of `noise_multiplier` times the clip on the sum, under masks."""
    return chain(_clip(clip_norm, quantile), gaussian(noise_multiplier), secure_aggregation())


def _ddp(
    clip_norm: float = 1.0,
    noise_multiplier: float = 1.0,
    colluding: int = 0,
    quantile: float | None = None,
    threshold: int | None = None,
) -> Defense:
    """Skellam noise of the clients, each adding a share, under masks.

    `noise_multiplier` holds for the sum of `threshold - colluding` shares: a sum opens over no fewer clients than
    `threshold`, and colluding ones know their own shares.
    """
    noise = skellam(noise_multiplier, survivors=threshold, colluding=colluding)
    return chain(_clip(clip_norm, quantile), noise, secure_aggregation(threshold=threshold))


def _secure_aggregation(ring: int | None = None, **settings: Any) -> Defense:
    """Masked sums, in integers of `ring` bits; by default the algorithm says of how many for each tensor."""
    return chain(*([] if ring is None else [Quantise(ring)]), secure_aggregation(**settings))


# The registered function takes the settings of `secure_aggregation`, and `ring`.
_own = signature(secure_aggregation).parameters.values()
_ring = Parameter("ring", Parameter.KEYWORD_ONLY, default=None, annotation="int | None")
setattr(  # noqa: B010 - so that errors can list the settings
    _secure_aggregation, "__signature__", Signature([*(p.replace(kind=Parameter.KEYWORD_ONLY) for p in _own), _ring])
)


defenses.register(
    "plain",
    identity,
    summary="no protection: contributions travel as they are",
    source="the baseline",
    hides="nothing",
    exact="yes",
)
defenses.register(
    "quantise",
    lambda: chain(Quantise(), Plain()),
    summary="no protection; the exact defences' fixed-point encoding, so that their sums must equal it bit for bit",
    source="the baseline for exact sums",
    hides="nothing",
    exact="yes",
)
defenses.register(
    "secure_aggregation",
    _secure_aggregation,
    summary="pairwise and self masks that cancel in the sum; dropouts survived at every stage",
    source="Bonawitz et al., CCS 2017",
    hides="single contributions from the server",
    exact="yes",
)
defenses.register(
    "paillier",
    _alone(paillier),
    summary="additively homomorphic encryption, many values in one ciphertext; a key holder decrypts the sums",
    source="Paillier, EUROCRYPT 1999; encryption randomness of Damgard, Jurik, Nielsen 2010",
    hides="single contributions from the server, unless it colludes with the key holder",
    exact="yes",
)
defenses.register(
    "paillier_threshold",
    _alone(threshold_paillier),
    summary="the same encryption without a key holder: t of N clients together decrypt sums of signed uploads",
    source="Paillier, EUROCRYPT 1999; shared roots and proofs of Shoup, EUROCRYPT 2000",
    hides="single contributions from the server and from fewer than t clients",
    exact="yes",
)
defenses.register(
    "ckks",
    _alone(ckks),
    summary="lattice encryption: faster than Paillier, approximate, larger; needs the extra 'lattice'",
    source="Cheon, Kim, Kim, Song, ASIACRYPT 2017; noise flooding against the attack of Li, Micciancio, EUROCRYPT 2021",
    hides="single contributions from the server, unless it colludes with the key holder",
    exact="no",
)
defenses.register(
    "dp",
    _dp,
    summary="clip, central Gaussian noise on the sum, under secure aggregation",
    source="Dwork, Roth 2014; accounting by privacy loss distributions",
    hides="one client's participation from parties that see only what leaves the aggregator",
    exact="no",
)
defenses.register(
    "ddp",
    _ddp,
    summary="clip, rotate, round, a share of Skellam noise from every client, under secure aggregation",
    source="Agarwal, Kairouz, Liu, NeurIPS 2021; rounding of Kairouz, Liu, Steinke, ICML 2021",
    hides="single contributions, and one client's contribution to the sum, from the server",
    exact="no",
)
