"""The audit's membership part: which of a client's rows were there, in the clear and under every noise of the layer.

The target's first rows are canaries (`attacks.membership.canaries`): each is its own or a stand-in from held-out rows.
The run is the algorithm's own, from its case; the adversary sees what the noise's epsilon covers, knows every other
client's rows, and takes their part off. That a whole client took part is public here; what its contribution shows in
the worst case is what `epsilon_noise` measures, and what one record shows under record-level privacy `epsilon_records`:
their rates are rows too. Coins (`poisson`) are among those alone, for no adversary knows the other clients' coins.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Final

import numpy as np

from securefed._auditing.cases import Prepared, case
from securefed._auditing.epsilon_noise import NoiseAudit, audit_noise, outwards
from securefed._auditing.epsilon_records import audit_records
from securefed._auditing.statistics import Interval, verdict
from securefed._auditing.task_results import Task
from securefed._runtime.federation import Federation
from securefed._runtime.server import Result
from securefed._tensors import Array, Tensors
from securefed.algorithms._pca.ssi import SSI
from securefed.algorithms._private.record_level import record_level
from securefed.attacks import views
from securefed.attacks._base import Target, View
from securefed.attacks._generic import Replay
from securefed.attacks._membership import Canaries, CanaryGame, plant, pooled_rates
from securefed.datasets._base import Dataset
from securefed.datasets._loaders import load
from securefed.defenses._base import Defense, Plan, Session
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
from securefed.errors import ConfigError, SecureFedError

INFORMED, POPULATION = "informed", "population"
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
"""Every noise and every clip of the message layer, from a clip and a noise multiplier."""
_RATE: Final = PoissonSampling(0.1)
COINS: Final[Mapping[str, Callable[[float, float], Defense]]] = {
    "gaussian, Poisson cohorts": lambda norm, noise: chain(
        clip(norm), poisson(_RATE.rate), gaussian(noise, sampler=_RATE), Quantise(), Plain()
    )
}
CANARIES: Final = 8
SHADOWS: Final = 6
_TARGET: Final = 0
_NOISE_ENTRIES: Final = 4000
_CANARY_RUNS: Final = 200
_TENSORS: Final = 3
_RECORDS: Final = 16


@dataclass(frozen=True)
class Play:
    """The scores of one adversary in one run."""

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
        algorithm: "any" for canaries that are whole contributions.      defense: the noise, and what bounds a part.
        auc, tpr: area under the curve, and the true positive rate at 1 % false positives; each (value, low, high).
        null: (low, high) of the AUC where membership is dealt out at random.
        members, others: scores of each.      epsilon: what the plan claims for all rounds; `None` without noise.
        verdict, detectable: as of every cell, of the leakage 2 AUC - 1.
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
        """JSON values."""
        out = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}
        return {name: None if isinstance(v, float) and not math.isfinite(v) else v for name, v in out.items()}


def play(task: Task) -> tuple[list[Play], list[str]]:
    """One seed of one algorithm under every defence, and what was left out, and why."""
    what, settings = case(task.algorithm), task.settings
    prepared = what.prepare(load(settings.data), settings.clients, task.seed)
    rng = np.random.default_rng([task.seed, 0x3E3])
    try:
        canaries = _canaries(prepared, task.seed, rng)
    except SecureFedError as error:
        return [], [f"{task.algorithm}, membership: {error}"]
    noise = settings.noise[settings.epsilon, what.rounds]
    done: list[Play] = []
    skipped: list[str] = []
    for name in (PLAIN, *NOISES):
        defense = chain() if name == PLAIN else NOISES[name](what.clip, noise)
        try:
            done += _scored(task, name, defense, prepared, canaries, rng)
        except (SecureFedError, np.linalg.LinAlgError) as error:
            skipped.append(f"{task.algorithm}, membership under {name}: {error}")
    return done, skipped


def client_canaries(delta: float, noise: float, seeds: int) -> Iterator[MembershipRow]:
    """What one whole contribution shows in one exchange under each noise, in the worst case: any algorithm's."""
    for name, make in {**NOISES, **COINS}.items():
        yield from _canary_row("any", name, CLIENT_CANARY, seeds, partial(_client, make(1.0, noise), delta))


def record_canaries(delta: float, noise: float, seeds: int) -> Iterator[MembershipRow]:
    """What one record shows in one round where records are the unit of privacy, in the worst case."""
    rows = Dataset(100.0 * np.eye(_RECORDS), np.ones((_RECORDS, 1)))  # each in a direction of its own, far too long
    whole: Any = record_level(SSI(rank=_RECORDS), 1.0)
    for name, made in (("gaussian, records", gaussian(noise)), ("skellam, records", skellam(noise))):
        defense = chain(records(), made, secure_aggregation())
        yield from _canary_row(
            "pca/ssi", name, RECORD_CANARY, seeds, partial(audit_records, whole, defense, rows, delta)
        )
    try:
        audited = _dp_sgd(rows, delta, noise)
    except ConfigError:  # an extra that is not installed
        return
    yield from _canary_row("private/fedavg", "DP-SGD", RECORD_CANARY, seeds, audited)


def _client(defense: Defense, delta: float, runs: int) -> NoiseAudit:
    return audit_noise(defense, delta, runs=runs, tensors=_TENSORS)


def _dp_sgd(rows: Dataset, delta: float, noise: float) -> Callable[..., NoiseAudit]:
    """One full-batch step of linear regression: zeros there have no gradient."""
    from torch import nn  # noqa: PLC0415 - one row needs it

    from securefed.algorithms._private.dp_fedavg import PrivateFedAvg  # noqa: PLC0415 - needs an extra
    from securefed.problems import TorchModule  # noqa: PLC0415

    module = partial(nn.Linear, _RECORDS, 1, bias=False)
    problem = TorchModule(module=module, criterion="squared_error", compared_with="responses")
    method = PrivateFedAvg(problem=problem, local_steps=1, batch_size=None, noise_multiplier=noise, delta=delta)
    return partial(
        audit_records,
        method,
        chain(),
        rows,
        delta,
        silent=replace(method, noise_multiplier=1e-6),
        claimed=method.per_round(_RECORDS),
    )


def _canary_row(
    algorithm: str, defense: str, adversary: str, seeds: int, audited: Callable[..., NoiseAudit]
) -> Iterator[MembershipRow]:
    runs = [audited(runs=_CANARY_RUNS // seeds + 4) for _ in range(seeds)]
    plays = [Play(algorithm, defense, adversary, item.scores, item.inside, item.claimed) for item in runs]
    if plays := [item for item in plays if item.scores]:
        yield _row(plays)


def gather(plays: Iterable[Play]) -> list[MembershipRow]:
    """Rows in order of first appearance; those whose seeds held only members, or none, are left out."""
    groups: dict[tuple[str, str, str], list[Play]] = {}
    for item in plays:
        groups.setdefault((item.algorithm, item.defense, item.adversary), []).append(item)
    return [_row(group) for group in groups.values() if {bit for item in group for bit in item.inside} == {True, False}]


def _row(group: Sequence[Play]) -> MembershipRow:
    found = pooled_rates([np.array(item.scores) for item in group], [np.array(item.inside) for item in group])
    count, auc = len(group), found.rates.auc
    leak = Interval(2 * auc - 1, 2 * found.auc[0] - 1, 2 * found.auc[1] - 1, count, 2 * found.deviation * count**0.5)
    null = Interval(0.0, 2 * found.null[0] - 1, 2 * found.null[1] - 1, count, 0.0)
    judged = verdict(leak, null)
    first = group[0]
    return MembershipRow(
        first.algorithm,
        first.defense,
        first.adversary,
        (auc, *found.auc),
        (found.rates.tpr, *found.tpr),
        found.null,
        found.rates.members,
        found.rates.others,
        count,
        first.epsilon,
        judged.word,
        judged.detectable,
    )


def _canaries(prepared: Prepared, seed: int, rng: np.random.Generator) -> Canaries:
    """Half of the bits are set; of a single one, in every second seed."""
    data, bound = prepared.clients[_TARGET], prepared.public.feature_bound
    count = min(CANARIES, data.rows)
    bits = rng.permutation(np.arange(count) % 2 == 0) if count > 1 else np.array([seed % 2 == 0])
    return plant(data, _population(prepared.test, bound), bits.tolist(), rng)


def _population(test: Dataset, bound: float) -> Dataset:
    """Held-out rows in the public range."""
    return test.take(np.flatnonzero(np.abs(test.x).max(axis=1) <= bound))


def _scored(
    task: Task, name: str, defense: Defense, prepared: Prepared, canaries: Canaries, rng: np.random.Generator
) -> Iterator[Play]:
    what = case(task.algorithm)
    planted = canaries.planted(prepared.clients[_TARGET])
    clients = (planted, *prepared.clients[1:])
    method = what.build()
    result = Federation(method, clients, defense, seed=task.seed, public=prepared.public).run(what.rounds)
    privacy = result.plan.privacy
    local = name == PLAIN or (privacy is not None and privacy.noise_survivors == 1)
    observed = (views.server if local else views.released)(result.transcript, _TARGET)
    plans = _plans(defense, result)
    noise = 0.0 if name == PLAIN else _noise(defense, result.plan, local=local) * _scales(defense, observed, plans)
    through = None if name == PLAIN else partial(_clipped, defense, plans)
    game = _game(observed, Target(method, prepared.public), clients, canaries, noise, through)
    population = _population(prepared.test, prepared.public.feature_bound)
    epsilon = _claimed(defense, result.plan, what.rounds, task.settings.delta)
    inside = tuple(bool(bit) for bit in canaries.inside)
    for adversary, scores in (
        (INFORMED, game.informed()),
        (POPULATION, game.population(population, SHADOWS, rng)),
    ):
        yield Play(task.algorithm, name, adversary, tuple(float(x) for x in scores), inside, epsilon)


def _game(
    observed: View,
    target: Target,
    clients: Sequence[Dataset],
    canaries: Canaries,
    noise: float | Array,
    through: Callable[[Tensors, int], Tensors] | None,
) -> CanaryGame:
    """The target's part: what was seen less what every other member sent, which this adversary knows."""
    replay = Replay(observed, target, through=through)
    seen = replay.messages
    for index, client in enumerate(replay.members):
        if client != _TARGET:
            seen = seen - replay.alone(index, clients[client])
    return CanaryGame(replay, replay.members.index(_TARGET), seen, noise, clients[_TARGET], canaries)


def _plans(defense: Defense, result: Result) -> dict[int, Plan]:
    """The plan of every exchange: what a defence learns is public, and follows from what was released."""
    learned, plans = defense.start(result.plan.own), {}
    for record in result.transcript.records:
        plans[record.round] = replace(result.plan, learned=learned)
        learned = defense.learn(record.released, plans[record.round], len(record.survivors))
    return plans


def _clipped(defense: Defense, plans: Mapping[int, Plan], sent: Tensors, exchange: int) -> Tensors:
    """What a contribution is in a release of that exchange: clipped, and in the release's units."""
    clip = defense.transforms[0]
    return clip.release(clip.encode(sent, plans[exchange]), plans[exchange])


def _scales(defense: Defense, observed: View, plans: Mapping[int, Plan]) -> Array:
    """(numbers,) what every number's noise is multiplied by on its way out."""
    out = []
    for observation in observed.rounds:
        plan = plans[observation.round]
        ones = outwards(defense, {tensor.name: np.ones(tensor.shape) for tensor in plan.tensors}, plan)
        out += [np.ravel(ones[name]) for name in sorted(observation.message)]
    return np.concatenate(out)


def _noise(defense: Defense, planned: Plan, *, local: bool) -> float:
    """Standard deviation of an entry before its units, by sending zeros through the defence's own code."""
    clients = 1 if local else planned.clients
    zeros = {spec.name: np.zeros(spec.shape) for spec in planned.own}
    units = outwards(defense, {tensor.name: np.ones(tensor.shape) for tensor in planned.tensors}, planned)
    drawn: list[Array] = []
    while sum(map(len, drawn)) < _NOISE_ENTRIES:
        plan = Session(secrets.token_hex(16), 0, tuple(range(planned.clients)), planned).plan
        total: dict[str, Array] = {}
        for _ in range(clients):
            sent = defense.encode(zeros, plan)
            total = {name: np.asarray(value) + total.get(name, 0) for name, value in sent.items()}
        released = defense.release(defense.decode(total, plan, clients), plan)
        drawn.append(np.concatenate([np.ravel(released[name] / units[name]) for name in zeros]))
    return float(np.std(np.concatenate(drawn)))


def _claimed(defense: Defense, plan: Plan, rounds: int, delta: float) -> float | None:
    """Epsilon of so many rounds, as the mechanism itself accounts for them; `None` without noise."""
    for transform in defense.transforms:
        if isinstance(transform, CentralGaussian):
            return float(epsilon_of(transform.noise_multiplier, rounds, delta))
        if isinstance(transform, DistributedNoise):
            return float(transform.loss(plan).epsilon(rounds, delta))
    return None
