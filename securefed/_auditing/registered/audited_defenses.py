"""The defences of an audit: their names, their order, how each is made, and which views an epsilon covers.

A defence protects the clients' contributions while they are summed; `seed_run` runs an algorithm under each of them. A
view is what one kind of attacker sees of the messages. Central noise (`dp`) is added by the server to the sum before it
is published; distributed noise (`ddp`) is added by every client before its mask, so that the server sees it too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from statistics import median
from typing import Final

import numpy as np

from securefed._auditing.engine.allowed_views import default_threshold
from securefed._auditing.engine.defense_names import (
    CKKS,
    DDP,
    DP,
    PAILLIER,
    PAILLIER_THRESHOLD,
    PLAIN,
    QUANTISE,
    SECURE_AGGREGATION,
)
from securefed._extras import check_installed
from securefed._messages import RoundRecord, Transcript
from securefed._runtime.federation import Federation
from securefed._runtime.history import Result
from securefed._tensors import Layout
from securefed.attacks import views
from securefed.attacks._base import RoundView
from securefed.defenses._base import Aggregation, Defense, Plan
from securefed.defenses._chain import chain
from securefed.defenses._differential_privacy import DistributedNoise, calibrate, clip, skellam
from securefed.defenses._fixed_point import Quantise
from securefed.defenses._homomorphic import KeyHolder, Paillier, open_upload
from securefed.defenses._homomorphic.encryption_randomness import power_table
from securefed.defenses._homomorphic.key_holder_protocol import threshold_of
from securefed.defenses._homomorphic.threshold import ThresholdPaillier
from securefed.defenses._plain import Plain
from securefed.defenses._secure_aggregation import secure_aggregation
from securefed.errors import MissingExtraError, UnknownNameError

DEFENSES: Final = (PLAIN, QUANTISE, SECURE_AGGREGATION, PAILLIER, PAILLIER_THRESHOLD, CKKS, DP, DDP)
"""Every defence that an audit can run, in the order of its report: each registered one."""
USUAL: Final = (PLAIN, SECURE_AGGREGATION, PAILLIER, DDP)
"""Those of an audit that names none. Their noise is distributed, so that epsilon holds against the server too."""
ALL: Final = "all"
"""Stands for every defence, or every algorithm with an audit case, where names are asked for."""
PACKAGES: Final = {PAILLIER: ("phe",), PAILLIER_THRESHOLD: ("phe",), CKKS: ("tenseal",)}
"""By defence, the packages of extras that it needs."""
NOISES: Final = (DP, DDP)
"""Defences with noise, which keep an epsilon of differential privacy."""
COVERED: Final[Mapping[str, tuple[str, ...]]] = {
    DP: (views.RELEASED,),
    DDP: (views.SUM_ONLY, views.SMALLEST_SUM, views.CHANGING_SURVIVORS),
}
"""By defence with noise, the views that its epsilon covers. Central noise covers what the server publishes, not what it
sees. Distributed noise covers the sums that the server sees, over the same clients in every round
(`SUM_ONLY`, `SMALLEST_SUM`) or over sets that change (`CHANGING_SURVIVORS`)."""
QUANTISED: Final = chain(Quantise(), Plain())
"""Fixed-point sums in the clear. Every exact defence (masks, Paillier) has the same sums of integers, bit for bit."""
RealRun = tuple[Result, Federation]
"""A run under an audited defence itself, and the federation that ran, which holds keys."""


@dataclass(frozen=True)
class SimulatedSums(Plain):
    """Sums in the clear that stand for those of secure aggregation, in runs whose uploads no attack reads.

    Attributes:
        threshold: fewest clients over which secure aggregation would open a sum.
    """

    threshold: int = 1

    def plan(self, plan: Plan) -> Plan:
        """Return the plan in the clear, with the threshold of the aggregation that it stands for."""
        return replace(super().plan(plan), threshold=self.threshold)


def choose(names: Sequence[str] | None) -> tuple[tuple[str, ...], dict[str, str]]:
    """Choose the defences that an audit runs.

    Args:
        names: those that the caller wants, or `["all"]`; the usual ones if none is given.

    Returns:
        The defences that run; and those that the caller did not name and whose package is not installed, each with the
        extra to install.

    Raises:
        UnknownNameError: a name is unknown.
        MissingExtraError: the package of a named defence is not installed.
    """
    named = () if names is None or list(names) == [ALL] else tuple(names)
    chosen, unavailable = list[str](), dict[str, str]()
    for name in dict.fromkeys(named or (DEFENSES if names else USUAL)):
        if name not in DEFENSES:
            raise UnknownNameError("defense", name, DEFENSES)
        try:
            check_installed(f"the defence {name}", *PACKAGES.get(name, ()))
        except MissingExtraError as missing:
            if named:
                raise
            unavailable[name] = str(missing)
        else:
            chosen.append(name)
    return tuple(chosen), unavailable


def clipping_norm(transcript: Transcript) -> float:
    """Return the norm to which audit and advice clip under noise: the median contribution's of a run in the clear.

    A clip far above it would add noise for nothing; at it, half of the contributions are shortened.
    """
    sizes = [
        math.sqrt(sum(float(np.vdot(value, value)) for value in sent.values()))
        for sent in transcript.contributions.values()
    ]
    return max(median(sizes), 1e-12)


def noise_words(epsilon: float, norm: float, threshold: int, clients: int, precision: str = "") -> str:
    """Describe distributed noise under secure aggregation by all that sets its size.

    Args:
        epsilon: the epsilon of all rounds together.
        norm: the L2 norm to which a contribution is clipped.
        threshold: fewest clients over which a sum opens, for whom the noise is sized.
        clients: number of clients in a round.
        precision: words on the bits of a number that begin with a comma; may be empty.
    """
    return f"distributed noise (epsilon {epsilon:g}, clip {norm:.3g}) under {sums_words(threshold, clients, precision)}"


def sums_words(threshold: int, clients: int, precision: str = "") -> str:
    """Describe secure aggregation; the arguments are those of `noise_words`."""
    return f"secure aggregation (sums of at least {threshold} of {clients} clients{precision})"


def distributed(
    norm: float,
    epsilon: float,
    delta: float,
    rounds: int,
    layout: Layout,
    clients: int,
    *,
    threshold: int | None = None,
    colluding: int = 0,
    real: bool = True,
) -> Defense:
    """Make a chain of clip and distributed Skellam noise that keeps an epsilon against the server.

    Skellam noise, the difference of two Poisson numbers, is integer, so that it can be added before masking; the shares
    of the fewest clients over which a sum opens add up to what epsilon needs.

    Args:
        norm: L2 norm to which a contribution is clipped.
        epsilon: the epsilon of all rounds together.
        delta: the delta that goes with epsilon.
        rounds: number of training rounds.
        layout: the tensors of one contribution, which the noise's exact epsilon depends on.
        clients: number of clients in a round.
        threshold: fewest clients over which a sum opens, for whom the noise is sized; `default_threshold` for `None`.
        colluding: clients among them that tell the server their shares of the noise.
        real: whether masks hide the uploads; without them the sums have the same distribution and cost less to run.
    """
    least = threshold or default_threshold(clients)
    multiplier = distributed_multiplier(norm, epsilon, delta, rounds, layout, clients, least, colluding)
    aggregation: Aggregation = secure_aggregation(threshold=least) if real else SimulatedSums(least)
    return chain(clip(norm), skellam(multiplier, survivors=least, colluding=colluding, delta=delta), aggregation)


@lru_cache(maxsize=256)
def distributed_multiplier(
    norm: float,
    epsilon: float,
    delta: float,
    rounds: int,
    layout: Layout,
    clients: int,
    threshold: int,
    colluding: int = 0,
) -> float:
    """Find a noise multiplier (standard deviation over the clip) at which Skellam noise keeps an epsilon, to 1e-3.

    It starts from the Gaussian's, which is a little less: rounding and the distribution cost a little epsilon. The
    arguments are those of `distributed`.
    """
    multiplier = calibrate(epsilon, delta, rounds)
    while True:
        noise: DistributedNoise = skellam(multiplier, survivors=threshold, colluding=colluding, delta=delta)
        made = chain(clip(norm), noise, secure_aggregation(threshold=threshold))
        if noise.loss(made.plan(layout, clients)).epsilon(rounds, delta) <= epsilon:
            return multiplier
        multiplier *= 1.001


@cache
def key_holder() -> KeyHolder:
    """Return one key holder for all runs of a process, since a key and its tables of powers take seconds to make."""
    holder = KeyHolder.generate(Paillier.bits)
    power_table(holder.public.n, holder.public.base, Paillier.randomness)  # made here, so that no run's time counts it
    return holder


class SharedKeyPaillier(Paillier):
    """Paillier with one key for all runs of a process."""

    def helper(self, clients: int, frozen: bytes | None = None) -> KeyHolder:
        """Return the process's key holder, at the threshold of so many clients."""
        return key_holder().requiring(threshold_of(self.threshold, clients))


@cache
def shared_key_threshold_paillier() -> Defense:
    """Return Paillier without a key holder, one for all runs of a process, since it deals keys at first use."""
    return chain(ThresholdPaillier())


def opened_uploads(result: Result, federation: Federation, target: int) -> tuple[RoundView, ...]:
    """Decrypt the target's uploads of a run under Paillier, as the server and the key holder together could."""
    holder, plan = federation.helper, result.plan
    assert isinstance(holder, KeyHolder)
    opener = partial(open_upload, holder, plan=plan)
    return views.opened(result.transcript, target, opener, views.KEY_HOLDER_VIEW).rounds


def identical_sums(result: Result, quantised: Result, *, whole: bool) -> bool:
    """Whether every exchange of a run has the quantised run's sum of integers.

    Args:
        result: the result of the run.
        quantised: the result of the run that only quantises.
        whole: whether both must have as many rounds; otherwise `result` may have fewer.
    """

    def same(a: RoundRecord, b: RoundRecord) -> bool:
        return a.survivors == b.survivors and all(np.array_equal(a.encoded[n], b.encoded[n]) for n in a.encoded)

    own, other = result.transcript.records, quantised.transcript.records
    if not own or (len(own) != len(other) if whole else len(own) > len(other)):
        return False
    return all(same(a, b) for a, b in zip(own, other, strict=False))
