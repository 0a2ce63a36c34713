"""Measure membership: which of a client's rows took part, in the clear and under every kind of noise.

`registered_audit.audit(membership=True)` calls `play` for each algorithm and seed, then `membership_rows`. The target's
first rows are canaries: a coin decides whether the target has its own row or a stand-in, a held-out row of the same
label. The algorithm runs in its audit case, the setting in which it is audited. The adversary sees what the noise's
epsilon covers, knows all other clients' rows and subtracts their messages. The rest it compares with what the target
would have sent with its own row and with the stand-in, by a log likelihood ratio, for each coin. One adversary knows
the target's other rows too (`informed`), the other only rows like them (`population`).

Two worst cases stand beside these: a whole contribution far beyond the clip (`noise_audit`), and one record where
records are the unit of privacy (`record_audit`). Poisson sampling has only these, since the adversary above would have
to know which other clients were sampled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Final

import numpy as np

from securefed._auditing.cases import Case, Prepared
from securefed._auditing.cases.audit_settings import Settings
from securefed._auditing.differential_privacy.noise_audit import audit_noise
from securefed._auditing.differential_privacy.noise_engine import NoiseAudit, noise_scale, released_sum
from securefed._auditing.differential_privacy.record_audit import audit_records
from securefed._auditing.engine.results import finite_or_none
from securefed._auditing.engine.seed_result import Gap
from securefed._auditing.engine.statistics import Interval, verdict
from securefed._extras import check_installed
from securefed._runtime.federation import Federation
from securefed._runtime.history import Result
from securefed._tensors import Array, Tensors
from securefed.algorithms._pca.ssi import SSI
from securefed.algorithms._private.record_level import record_level
from securefed.attacks import views
from securefed.attacks._base import Target, View
from securefed.attacks._generic import Replay
from securefed.attacks._membership import Canaries, CanaryGame, plant, pooled_rates
from securefed.datasets._base import Dataset
from securefed.defenses._base import Defense, Plan
from securefed.defenses._chain import chain
from securefed.defenses._differential_privacy import (
    CentralGaussian,
    DistributedNoise,
    PoissonSampling,
    adaptive_clip,
    clip,
    clip_each,
    discrete_gaussian,
    epsilon_of,
    gaussian,
    local_gaussian,
    local_laplace,
    poisson,
    records,
    skellam,
)
from securefed.defenses._fixed_point import Quantise
from securefed.defenses._plain import Plain
from securefed.defenses._secure_aggregation import secure_aggregation
from securefed.errors import MissingExtraError, SecureFedError

INFORMED, POPULATION = "informed", "population"  # names of the adversaries
CLIENT_CANARY, RECORD_CANARY = "client canary", "record canary"
PLAIN: Final = "plain"
NOISES: Final[Mapping[str, Callable[[float, float], Defense]]] = {
    "gaussian": lambda norm, noise: chain(clip(norm), gaussian(noise), Quantise(), Plain()),
    "gaussian, clip by tensor": lambda norm, noise: chain(clip_each(norm), gaussian(noise), Quantise(), Plain()),
    "gaussian, adaptive clip": lambda norm, noise: chain(
        adaptive_clip(0.5, initial=norm), gaussian(noise), Quantise(), Plain()
    ),
    "discrete_gaussian": lambda norm, noise: chain(clip(norm), discrete_gaussian(noise), secure_aggregation()),
    "skellam": lambda norm, noise: chain(clip(norm), skellam(noise), secure_aggregation()),
    "local_gaussian": lambda norm, noise: chain(clip(norm), local_gaussian(noise), Plain()),
    "local_laplace": lambda norm, noise: chain(clip(norm), local_laplace(noise), Plain()),
}
"""By name, the defence with a kind of noise or clip, made from a clipping norm and a noise multiplier."""
_RATE: Final = PoissonSampling(0.1)  # each client takes part in a tenth of the rounds, so that sampling matters
POISSON: Final[Mapping[str, Callable[[float, float], Defense]]] = {
    "gaussian, Poisson cohorts": lambda norm, noise: chain(
        clip(norm), poisson(_RATE.rate), gaussian(noise, sampler=_RATE), Quantise(), Plain()
    )
}
CANARIES: Final = 8
"""Most rows of the target that a coin decides over; a client needs rows that are known to the adversary beside them."""
SHADOWS: Final = 6
"""Simulated clients for each of the two hypotheses of the adversary who knows only the population."""
_TARGET: Final = 0
_NOISE_ENTRIES: Final = 4000
"""Noise draws from which its standard deviation is measured, to about 1 %."""
_CANARY_RUNS: Final = 200
"""Exchanges with, and as many without, a canary, over all seeds; the AUC then has a standard error below .03."""
_TENSORS: Final = 3
"""Tensors of a contribution, so that clips by tensor differ from a clip of the whole."""
_RECORDS: Final = 16
"""Rows of the client whose records are canaries."""


@dataclass(frozen=True)
class Play:
    """Scores of one adversary in one run.

    Attributes:
        algorithm: its name.
        defense: name of the noise.
        adversary: what the adversary knows.
        scores: one for each coin, higher if the own row is more likely.
        inside: whether it was the own row.
        epsilon: that the noise's accountant claims for all rounds; `None` without noise.
    """

    algorithm: str
    defense: str
    adversary: str
    scores: tuple[float, ...]
    inside: tuple[bool, ...]
    epsilon: float | None


@dataclass(frozen=True)
class MembershipRow:
    """One adversary under one defence, over all seeds.

    Attributes:
        algorithm: its name; "any" for canaries that are whole contributions.
        defense: name of the noise.
        adversary: what the adversary knows.
        auc: (value, low, high) of the area under the ROC curve.
        tpr: (value, low, high) of the true positive rate at 1 % false positives.
        null: (low, high) of the AUC if membership is permuted at random.
        members: number of members' scores.
        others: number of non-members' scores.
        seeds: number of runs.
        epsilon: that the plan claims for all rounds; `None` without noise.
        verdict: as of every attack of the audit (`engine.statistics.verdict`), of the leakage 2 AUC - 1.
        detectable: smallest mean leakage that would have been noticed.
    """

    algorithm: str
    defense: str
    adversary: str
    auc: tuple[float, float, float]
    tpr: tuple[float, float, float]
    null: tuple[float, float]
    members: int
    others: int
    seeds: int
    epsilon: float | None
    verdict: str
    detectable: float

    def to_json(self) -> dict[str, Any]:
        """Convert to JSON values."""
        return {name: finite_or_none(value) for name, value in asdict(self).items()}


def play(algorithm: str, seed: int, settings: Settings) -> tuple[list[Play], list[Gap]]:
    """Play one seed of one algorithm under every noise, at the audit's epsilon.

    Returns:
        The plays; and each noise that was left out, or all of the seed, as the view of a gap with the reason.
    """
    what = settings.case(algorithm)
    prepared = what.prepare(settings.source(), settings.clients, seed)
    rng = np.random.default_rng([seed, 0x3E3])  # any number that no other use of the seed has
    try:
        canaries = _canaries(prepared, seed, rng)
    except SecureFedError as error:
        return [], [Gap(algorithm, "", "membership", "", seed, str(error))]
    noise = settings.noise[settings.epsilon, what.rounds]  # the noise multiplier that meets this epsilon in that many
    done: list[Play] = []
    gaps: list[Gap] = []
    for name in (PLAIN, *NOISES):
        defense = chain() if name == PLAIN else NOISES[name](what.clip, noise)
        try:
            done += _plays_under(what, seed, settings.delta, name, defense, prepared, canaries, rng)
        except (SecureFedError, np.linalg.LinAlgError) as error:
            gaps.append(Gap(algorithm, "", f"membership under {name}", "", seed, str(error)))
    return done, gaps


def client_canaries(delta: float, noise: float, seeds: int) -> Iterator[MembershipRow]:
    """Measure the worst case of one whole contribution in one exchange under each noise, whatever the algorithm.

    `delta` is of the claimed epsilon, `noise` the noise multiplier (standard deviation over the clip), and `seeds` the
    number of runs. The same holds for `record_canaries`.
    """
    for name, make in {**NOISES, **POISSON}.items():
        yield from _canary_row(
            "any", name, CLIENT_CANARY, seeds, partial(audit_noise, make(1.0, noise), delta, tensors=_TENSORS)
        )


def record_canaries(delta: float, noise: float, seeds: int) -> Iterator[MembershipRow]:
    """Measure the worst case of one record in one round, where records are the unit of privacy."""
    rows = Dataset(100.0 * np.eye(_RECORDS), np.ones((_RECORDS, 1)))  # each in its own direction, far beyond the clip
    whole: Any = record_level(SSI(rank=_RECORDS), 1.0)
    for name, made in (("gaussian, records", gaussian(noise)), ("skellam, records", skellam(noise))):
        defense = chain(records(), made, secure_aggregation())
        yield from _canary_row(
            "pca/ssi", name, RECORD_CANARY, seeds, partial(audit_records, whole, defense, rows, delta)
        )
    if not unmeasured_canaries():
        yield from _canary_row("private/fedavg", "DP-SGD", RECORD_CANARY, seeds, _dp_sgd(rows, delta, noise))


def unmeasured_canaries() -> list[str]:
    """Name the canaries that need a package that is not installed, each with the extra to install."""
    try:
        check_installed("DP-SGD", "torch", "opacus")
    except MissingExtraError as missing:
        return [f"DP-SGD, {RECORD_CANARY}: {missing}"]
    return []


def _dp_sgd(rows: Dataset, delta: float, noise: float) -> Callable[..., NoiseAudit]:
    """Prepare the audit of one full-batch DP-SGD step of linear regression, where an absent row is a row of zeros.

    Without a bias the gradient of a row x is (w^T x - y) x, so that a row of zeros adds nothing, whatever its response.
    """
    from torch import nn  # noqa: PLC0415 - one row needs it

    from securefed.algorithms._private.dp_fedavg import PrivateFedAvg  # noqa: PLC0415 - needs an extra
    from securefed.problems import TorchModule  # noqa: PLC0415

    module = partial(nn.Linear, _RECORDS, 1, bias=False)
    problem = TorchModule(module=module, criterion="squared_error", compared_with="responses")
    method = PrivateFedAvg(problem=problem, local_steps=1, batch_size=None, noise_multiplier=noise, delta=delta)
    silent = replace(method, noise_multiplier=1e-6)  # nearly no noise: it shows what each row adds to the message
    return partial(audit_records, method, chain(), rows, delta, silent=silent, claimed=method.per_round(_RECORDS))


def _canary_row(
    algorithm: str, defense: str, adversary: str, seeds: int, audited: Callable[..., NoiseAudit]
) -> Iterator[MembershipRow]:
    """Make the row of `seeds` audits of a canary; none if every audit was refused."""
    runs = [audited(runs=_CANARY_RUNS // seeds + 4) for _ in range(seeds)]  # an audit takes 4 runs at least
    plays = [Play(algorithm, defense, adversary, item.scores, item.inside, item.claimed) for item in runs]
    if plays := [item for item in plays if item.scores]:
        yield _row(plays)


def membership_rows(plays: Iterable[Play], delta: float, noise: float, seeds: int) -> list[MembershipRow]:
    """Make the rows of the plays, and those of canaries in the worst case under a noise multiplier."""
    return [*gather_plays(plays), *client_canaries(delta, noise, seeds), *record_canaries(delta, noise, seeds)]


def gather_plays(plays: Iterable[Play]) -> list[MembershipRow]:
    """Make rows in order of their first play; plays that hold only members, or none, are left out."""
    groups: dict[tuple[str, str, str], list[Play]] = {}
    for item in plays:
        groups.setdefault((item.algorithm, item.defense, item.adversary), []).append(item)
    return [_row(group) for group in groups.values() if {bit for item in group for bit in item.inside} == {True, False}]


def _row(group: Sequence[Play]) -> MembershipRow:
    """Pool the scores of one adversary under one noise over all runs, and judge them."""
    found = pooled_rates([np.array(item.scores) for item in group], [np.array(item.inside) for item in group])
    count, auc = len(group), found.rates.auc
    # `Interval.deviation` is that of one run's value. The pooled AUC stands for a mean over runs, whose deviation is
    # smaller by sqrt(count).
    leak = Interval(2 * auc - 1, 2 * found.auc[0] - 1, 2 * found.auc[1] - 1, count, 2 * found.deviation * count**0.5)
    null = Interval(0.0, 2 * found.null[0] - 1, 2 * found.null[1] - 1, count, 0.0)
    judged = verdict(leak, null)
    first = group[0]
    return MembershipRow(
        algorithm=first.algorithm,
        defense=first.defense,
        adversary=first.adversary,
        auc=(auc, *found.auc),
        tpr=(found.rates.tpr, *found.tpr),
        null=found.null,
        members=found.rates.members,
        others=found.rates.others,
        seeds=count,
        epsilon=first.epsilon,
        verdict=judged.word,
        detectable=judged.detectable,
    )


def _canaries(prepared: Prepared, seed: int, rng: np.random.Generator) -> Canaries:
    """Toss the coins: half of them show the own row; a single coin does in every second seed."""
    data = prepared.clients[_TARGET]
    count = min(CANARIES, data.rows)
    bits = rng.permutation(np.arange(count) % 2 == 0) if count > 1 else np.array([seed % 2 == 0])
    return plant(data, _population(prepared), bits.tolist(), rng)


def _population(prepared: Prepared) -> Dataset:
    """Select the held-out rows within the declared range, as clients' rows are."""
    test = prepared.test
    return test.take(np.flatnonzero(np.abs(test.x).max(axis=1) <= prepared.public.feature_bound))


def _plays_under(
    what: Case,
    seed: int,
    delta: float,
    name: str,
    defense: Defense,
    prepared: Prepared,
    canaries: Canaries,
    rng: np.random.Generator,
) -> Iterator[Play]:
    """Run one seed under one defence, with the canaries among the target's rows, and let both adversaries score."""
    planted = canaries.planted(prepared.clients[_TARGET])
    clients = (planted, *prepared.clients[1:])
    method = what.build()
    result = Federation(method, clients, defense, seed=seed, public=prepared.public).run(what.rounds)
    privacy = result.plan.privacy
    # the adversary sees uploads where each client's own noise meets epsilon (local noise), else the released sums
    local = name == PLAIN or (privacy is not None and privacy.noise_survivors == 1)
    observed = (views.server if local else views.released)(result.transcript, _TARGET)
    plans = _plans(defense, result)
    # of every number in the messages, the noise's standard deviation; and what clipping makes of a simulated message
    noise = 0.0 if name == PLAIN else _noise(defense, result.plan, local=local) * _scales(defense, observed, plans)
    clipped = None if name == PLAIN else partial(_clipped, defense, plans)
    game = _game(observed, Target(method, prepared.public), clients, canaries, noise, clipped)
    epsilon = _claimed(defense, result.plan, what.rounds, delta)
    inside = tuple(bool(bit) for bit in canaries.inside)
    scored = ((INFORMED, game.informed()), (POPULATION, game.population(_population(prepared), SHADOWS, rng)))
    for adversary, scores in scored:
        yield Play(what.name, name, adversary, tuple(float(x) for x in scores), inside, epsilon)


def _game(
    observed: View,
    target: Target,
    clients: Sequence[Dataset],
    canaries: Canaries,
    noise: float | Array,
    clipped: Callable[[Tensors, int], Tensors] | None,
) -> CanaryGame:
    """Subtract from the messages what every other member sent, which the adversary knows; the rest is the target's."""
    replay = Replay(observed, target, through=clipped)
    own_part = replay.messages
    for index, client in enumerate(replay.members):
        if client != _TARGET:
            own_part = own_part - replay.alone(index, clients[client])
    return CanaryGame(replay, replay.members.index(_TARGET), own_part, noise, clients[_TARGET], canaries)


def _plans(defense: Defense, result: Result) -> dict[int, Plan]:
    """Return by exchange its plan: clip, noise, and what an adaptive clip learned from the releases before it."""
    learned, plans = defense.start(result.plan.own), {}
    for record in result.transcript.records:
        plans[record.round] = replace(result.plan, learned=learned)
        learned = defense.learn(record.released, plans[record.round], len(record.survivors))
    return plans


def _clipped(defense: Defense, plans: Mapping[int, Plan], sent: Tensors, exchange: int) -> Tensors:
    """Clip a contribution as that exchange does; `release` undoes an adaptive clip's division by its norm."""
    clip = defense.transforms[0]  # in every defence of `NOISES`
    return clip.release(clip.encode(sent, plans[exchange]), plans[exchange])


def _scales(defense: Defense, observed: View, plans: Mapping[int, Plan]) -> Array:
    """Return the factor by which the release multiplies each number's noise (see `_noise`); (numbers,)."""
    out = []
    for observation in observed.rounds:
        scale = noise_scale(defense, plans[observation.round])
        out += [np.ravel(scale[name]) for name in sorted(observation.message)]
    return np.concatenate(out)


def _noise(defense: Defense, planned: Plan, *, local: bool) -> float:
    """Measure the noise's standard deviation as it is drawn, by sending zeros through the defence's own code.

    A release multiplies the noise by the norm of an adaptive clip, which changes between exchanges. It is divided out
    here, and `_scales` has it for every exchange.
    """
    zeros = {spec.name: np.zeros(spec.shape) for spec in planned.own}
    units = noise_scale(defense, planned)
    clients = [partial(defense.encode, zeros)] * (1 if local else planned.clients)
    drawn: list[Array] = []
    while sum(map(len, drawn)) < _NOISE_ENTRIES:
        released = released_sum(defense, planned, clients)
        drawn.append(np.concatenate([np.ravel(released[name] / units[name]) for name in zeros]))
    return float(np.std(np.concatenate(drawn)))


def _claimed(defense: Defense, plan: Plan, rounds: int, delta: float) -> float | None:
    """Compute epsilon of all rounds as the mechanism itself accounts for them; `None` without noise."""
    for transform in defense.transforms:
        if isinstance(transform, CentralGaussian):
            return float(epsilon_of(transform.noise_multiplier, rounds, delta))
        if isinstance(transform, DistributedNoise):
            return float(transform.loss(plan).epsilon(rounds, delta))
    return None
