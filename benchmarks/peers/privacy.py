"""Noise and its accounting: `python -m benchmarks.peers.privacy [samplers] [noise] [epsilons] [calibration]`.

CPU time of a draw beside NumPy's generators (fast, but neither exact nor secret: they bound what can be had); a
client's whole encoding; the noise that is left in decoded sums (the tests lose clients, too); every mechanism's
epsilon, and calibrated noise, beside dp-accounting's and opacus', with the CPU time that each takes. Parts can be run
alone, and each keeps the rows of the others.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import Any

import dp_accounting
import numpy as np
from dp_accounting import GaussianDpEvent, NeighboringRelation, PoissonSampledDpEvent
from dp_accounting.pld import PLDAccountant
from opacus.accountants import RDPAccountant
from opacus.accountants.utils import get_noise_multiplier
from torch import nn

from benchmarks.peers.accountants import CASES, DELTA, LOSSES, RENYI, Case, Other, prv, renyi
from benchmarks.peers.noises import CLIENTS, DRAWS, noise
from benchmarks.rows import Row, clocked, cpu, row, run_parts
from securefed._public import Public
from securefed._sampling.discrete_distributions import discrete_gaussian_draws, skellam_draws
from securefed._sampling.random_stream import SecureRandomStream
from securefed._tensors import Layout, TensorSpec
from securefed.algorithms._private.dp_fedavg import PrivateFedAvg
from securefed.datasets._base import Dataset
from securefed.defenses._chain import chain
from securefed.defenses._differential_privacy import (
    PoissonSampling,
    Sampler,
    accountant,
    calibrate,
    clip,
    distributed,
    epsilon_of,
    privacy_loss,
    skellam,
)
from securefed.defenses._secure_aggregation import secure_aggregation
from securefed.problems import TorchModule

Timed = tuple[float, float]
"""A value, and the CPU seconds that it took."""


def main(arguments: Sequence[str] = ()) -> None:
    """Measure and write `results/privacy.json`."""
    parts: dict[str, Callable[[], list[Row]]] = {
        "samplers": _samplers,
        "noise": lambda: [_encoding(), *_variances()],
        "epsilons": lambda: [*_mechanisms(), *_sampled()],
        "calibration": _calibration,
    }
    run_parts("privacy", __doc__ or "", parts, arguments)


def _samplers() -> list[Row]:
    stream, numpy = SecureRandomStream(), np.random.default_rng(0)
    rows = []
    for name, draw, peer, peer_name in (
        (
            "discrete Gaussian",
            discrete_gaussian_draws,
            lambda v: np.rint(numpy.normal(0, v**0.5, DRAWS)),
            "NumPy normal, rounded: neither exact nor secret",
        ),
        (
            "Skellam",
            skellam_draws,
            lambda v: numpy.poisson(v / 2, DRAWS) - numpy.poisson(v / 2, DRAWS),
            "NumPy Poisson: neither exact nor secret",
        ),
    ):
        for variance in (4.0, 1e4, 1e12):
            speeds = [DRAWS / s / 1e6 for s in cpu(lambda d=draw, v=variance: d(v, DRAWS, stream), 5)]  # type: ignore[misc]
            theirs = DRAWS / median(cpu(lambda p=peer, v=variance: p(v), 5)) / 1e6  # type: ignore[misc]
            ours = median(speeds)
            found = Row(
                f"exact {name} draws", f"variance {variance:.0e}", ours, "M draws/s a core", len(speeds),
                (min(speeds), max(speeds)), theirs, peer_name, ours / theirs, ">= 0.5", min(speeds) >= 0.5,
            )  # fmt: skip
            rows.append(found)
    return rows


def _encoding() -> Row:
    layout = Layout((TensorSpec("x", (DRAWS,)),))
    defense = chain(clip(1.0), skellam(1.0), secure_aggregation())
    plan, value = defense.plan(layout, 100), {"x": np.random.default_rng(0).normal(size=DRAWS)}
    times = [1e3 * s for s in cpu(lambda: defense.encode(value, plan), 3)]
    return row("clip, rotate, round, noise", "N=100, d=1e6, Skellam", times, "ms CPU a client")


def _variances() -> list[Row]:
    """Of what clients that contribute zeros leave in what is seen; relative standard error .14 % (Laplace .22 %)."""
    rows = []
    for name, case in CASES.items():
        found = [noise(case) for _ in range(3)]
        rows.append(
            _variance(name, f"z={case.noise:g}, N={CLIENTS}, 1e6 draws", [n.variance / n.planned for n in found])
        )
    wide = TorchModule(module=partial(nn.Linear, 1000, 1000, bias=False))
    method = PrivateFedAvg(problem=wide, local_steps=1, batch_size=None, learning_rate=1.0)
    silent, rng = Dataset(np.zeros((4, 1000)), np.arange(4) % 2), np.random.default_rng(0)
    public = Public.of([silent])
    client, broadcast = method.enroll(silent, public, rng), method.broadcast(method.start(public, rng))
    sent = [method.contribute(client, broadcast, rng)[1]["delta.weight"] for _ in range(3)]  # no gradient: C z N / 4
    return [*rows, _variance("DP-SGD", "z=1, 4 rows, 1e6 draws", [16 * float(one.var()) for one in sent])]


def _variance(name: str, setting: str, shares: list[float]) -> Row:
    met = all(abs(share - 1) < 0.01 for share in shares)
    return row(f"variance beside the plan's, {name}", setting, shares, "", target="within 1 %", met=met)


def _both(
    quantity: str, setting: str, by: str, ours: Timed, theirs: Timed, within: float, relative: bool = False
) -> list[Row]:
    """Two rows: a value beside a peer's, which has to agree, and the CPU milliseconds that each took.

    Args:
        quantity: what is compared.
        setting: of both.
        by: the peer's name.
        ours: our value and its CPU seconds.
        theirs: the peer's.
        within: how far apart they may be.
        relative: whether that is a share of the peer's value.
    """
    (value, took), (other, seconds) = ours, theirs
    apart = abs(value / other - 1) if relative else abs(value - other)
    target = f"within {100 * within:g} %" if relative else f"within {within:g}"
    setting = f"{setting}, beside {by}"
    return [
        row(quantity, setting, [value], "", peer=other, peer_name=by, target=target, met=apart < within),
        row(f"CPU of {quantity}", setting, [1e3 * took], "ms", peer=1e3 * seconds, peer_name=by),
    ]


def _mechanisms() -> list[Row]:
    """Every mechanism's epsilon as its plan states it; where its releases are Gaussian, also by a second peer."""
    rows = _dp_sgd()
    for name, case in CASES.items():
        rows += _compared(name, case, case.other, case.by)
        if name == "gaussian":
            rows += _compared(name, case, prv(case.noise, 1.0), "opacus, PRV")
    return rows


def _dp_sgd() -> list[Row]:
    """opacus' Renyi accountant, which clients of `PrivateFedAvg` keep, beside dp-accounting's at the same orders."""
    method = PrivateFedAvg(problem=TorchModule(module=partial(nn.Linear, 4, 3)), local_steps=12, batch_size=5)
    event = PoissonSampledDpEvent(method.rate(20), GaussianDpEvent(method.noise_multiplier))
    theirs = clocked(lambda: renyi(lambda link, plan: event, RDPAccountant.DEFAULT_ALPHAS)(None, None, 12))  # type: ignore[arg-type]
    ours = clocked(method.per_round, 20)
    return _both("epsilon, DP-SGD", "z=1, q=.25, 12 steps, delta=1e-5", RENYI, ours, theirs, 0.01)


def _compared(name: str, case: Case, other: Other, by: str) -> list[Row]:
    """Values, and CPU time from nothing: ours of a plan, that states epsilon four times; the peer's of as many."""
    rounds = case.rounds[-1]
    link, plan = case.make(case.noise), case.defense().plan(case.layout, 10)
    ours = dict(plan.epsilon)[rounds]
    took = []
    for _ in range(3):
        _forget()
        took.append(clocked(lambda: case.defense().plan(case.layout, 10))[1])
    mine = ours, median(took) / len(plan.epsilon)
    setting = f"z={case.noise:g}, {rounds} exchanges, delta=1e-5"
    return _both(f"epsilon, {name}", setting, by, mine, clocked(lambda: other(link, plan, rounds)), 0.01)


def _sampled() -> list[Row]:
    """The known point: sigma 1, q .01, 10 000 rounds of Poisson sampling."""
    _forget()
    ours = clocked(lambda: epsilon_of(1.0, 10_000, DELTA, PoissonSampling(0.01)))
    rows = []
    # opacus is told to be within 2e-3, rounds on a grid, and returns its upper bound
    for by, other in ((LOSSES, _poisson_pld(1.0, 0.01)), ("opacus, PRV", prv(1.0, 0.01))):
        theirs = clocked(partial(other, None, None, 10_000))
        rows += _both("epsilon under Poisson sampling", "z=1, q=.01, T=1e4, delta=1e-5", by, ours, theirs, 0.01)
    return rows


def _poisson_pld(noise: float, rate: float) -> Other:
    def epsilon(link: Any, plan: Any, rounds: int) -> float:
        accountant = PLDAccountant(NeighboringRelation.ADD_OR_REMOVE_ONE)
        accountant.compose(PoissonSampledDpEvent(rate, GaussianDpEvent(noise)), rounds)
        return float(accountant.get_epsilon(DELTA))

    return epsilon


def _calibration() -> list[Row]:
    """The least noise for an epsilon, and the CPU time to find it."""
    everybody: dict[str, Callable[[], float]] = {LOSSES: lambda: _calibrated(GaussianDpEvent, 100)}
    sampled = {LOSSES: lambda: _calibrated(_a_tenth, 100), "opacus, PRV": lambda: _opacus_noise(100, 0.1)}
    cases: list[tuple[str, Sampler, dict[str, Callable[[], float]]]] = [
        ("epsilon 3, T=100, everybody in every round", "full", everybody),
        ("epsilon 3, T=100, Poisson q=.1", PoissonSampling(0.1), sampled),
    ]
    rows: list[Row] = []
    for setting, sampler, peers in cases:
        _forget()
        ours = clocked(partial(calibrate, 3.0, DELTA, 100, sampler))
        for by, peer in peers.items():
            rows += _both("noise multiplier", setting, by, ours, clocked(peer), 0.01, relative=True)
    return rows


def _a_tenth(noise: float) -> Any:
    return PoissonSampledDpEvent(0.1, GaussianDpEvent(noise))


def _calibrated(event: Callable[[float], Any], rounds: int) -> float:
    return float(
        dp_accounting.calibrate_dp_mechanism(
            lambda: PLDAccountant(NeighboringRelation.ADD_OR_REMOVE_ONE),
            lambda noise: dp_accounting.SelfComposedDpEvent(event(noise), rounds),
            3.0,
            DELTA,
            dp_accounting.LowerEndpointAndGuess(0.5, 10.0),
            tol=1e-3,
        )
    )


def _opacus_noise(rounds: int, rate: float) -> float:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return get_noise_multiplier(
            target_epsilon=3.0, target_delta=DELTA, sample_rate=rate, steps=rounds, accountant="prv"
        )


def _forget() -> None:
    """Empty our accountants' memories, so that the clock sees all of the work."""
    for module in (accountant, distributed, privacy_loss):
        for found in vars(module).values():
            if hasattr(found, "cache_clear"):
                found.cache_clear()


if __name__ == "__main__":
    main(sys.argv[1:])
