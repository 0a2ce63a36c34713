"""How far an audit can be trusted: `python -m benchmarks.peers.auditors`.

Coverage and power of the epsilon bounds on Gaussian mechanisms of four known epsilons; every noise of the message layer
with and without planted bugs; false positives of verdicts on shuffled runs; absences that a disaggregation takes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from benchmarks.rows import Row, row, show, write
from securefed._auditing.differential_privacy.epsilon_bounds import Guesses, from_scores, one_run, one_run_f
from securefed._auditing.differential_privacy.noise_audit import audit_noise
from securefed._auditing.engine.statistics import FOUND, interval, verdict
from securefed._catalogue import algorithms
from securefed._runtime.federation import Federation
from securefed._runtime.run_options import RunOptions
from securefed.attacks import views
from securefed.attacks._aggregates import disaggregate
from securefed.attacks._base import Target, View
from securefed.attacks._generic import ProbeGram
from securefed.attacks.scores import leakage, relative_error
from securefed.datasets._base import Dataset
from securefed.datasets._loaders import load
from securefed.defenses._chain import chain
from securefed.defenses._differential_privacy import (
    calibrate,
    clip,
    discrete_gaussian,
    gaussian,
    local_gaussian,
    local_laplace,
    skellam,
)
from securefed.defenses._secure_aggregation import secure_aggregation

DELTA = 1e-5
GAMES = 200
NULLS, SEEDS = 200, 10
NOISES = {
    "gaussian": gaussian,
    "local_gaussian": local_gaussian,
    "local_laplace": local_laplace,
    "discrete_gaussian": discrete_gaussian,
    "skellam": skellam,
}


def main() -> None:
    """Measure and write `results/auditors.json`."""
    rows = [*_coverage(), *_noises(), *_nulls(), *_absences()]
    path = write("auditors", rows)
    show(rows)
    print(path)


def _coverage() -> Iterator[Row]:
    rng = np.random.default_rng(0)
    for epsilon in (0.5, 1.0, 2.0, 4.0):
        mu = 1 / calibrate(epsilon, DELTA, 1)
        found: dict[str, list[float]] = {"Clopper-Pearson": [], "one run": [], "one run, f-DP": []}
        for _ in range(GAMES):
            scores = rng.normal(mu, 1, 2000), rng.normal(0, 1, 2000)
            found["Clopper-Pearson"].append(from_scores(*scores, DELTA))
            bits = rng.integers(0, 2, 1000)
            guesses = Guesses.of(mu * bits + rng.normal(size=1000), bits, 200)
            found["one run"].append(one_run(guesses, DELTA))
            found["one run, f-DP"].append(one_run_f(guesses, DELTA))
        for name, bounds in found.items():
            covered = float(np.mean(np.array(bounds) <= epsilon))
            setting = f"epsilon {epsilon:g}, delta 1e-5, {GAMES} games, median bound {np.median(bounds):.3g}"
            yield row(f"coverage, {name}", setting, [covered], "share", target=">= .95", met=covered >= 0.95)


def _noises() -> Iterator[Row]:
    for name, make in NOISES.items():
        bounds, flagged = [], 0
        for _ in range(10):
            found = audit_noise(chain(clip(1.0), make(2.0), secure_aggregation()), DELTA, runs=500, confidence=0.9999)
            bounds.append(found.bound)
            flagged += found.flagged
        setting = f"noise 2, epsilon {found.claimed:.3g}, 500 + 500 exchanges, 128 canaries, confidence .9999"
        yield row(f"bound, {name}", setting, bounds, "epsilon", target="none flagged", met=flagged == 0)


def _nulls() -> Iterator[Row]:
    """Each of 200 runs: 10 seeds of a shuffled transcript attacked, judged beside 10 more shuffles."""
    wrong = 0
    for run in range(NULLS):
        leaks: list[list[float]] = [[], []]
        for seed in range(SEEDS):
            replay, truth, base = _federation(run * SEEDS + seed)
            for side in (0, 1):
                rng = np.random.default_rng([run, seed, side])
                shuffled = views.shuffled(replay, rng)
                found = ProbeGram().run(shuffled, TARGET[0], rng)
                leaks[side].append(leakage(relative_error(found.value, truth), base))
        wrong += verdict(interval(leaks[0]), interval(leaks[1])).word in FOUND
    setting = f"{NULLS} shuffled runs of {SEEDS} seeds, SSI with 4 features, generic probe"
    yield row("false positives of verdicts", setting, [float(wrong)], "runs", target="<= 10", met=wrong <= 10)


TARGET: list[Target] = []


def _federation(seed: int) -> tuple[View, np.ndarray, float]:
    rng = np.random.default_rng(seed)
    data = [Dataset(rng.uniform(0, 1, (6, 4))) for _ in range(3)]
    federation = Federation(algorithms.make("pca/ssi", rank=2), data, seed=seed)
    observed = views.server(federation.run(3).transcript, 0)
    TARGET[:] = [Target(federation.algorithm, federation.public)]
    own, pooled = data[0].x, np.concatenate([item.x for item in data])
    truth = own.T @ own
    return observed, truth, relative_error(pooled.T @ pooled / 3, truth)


def _absences() -> Iterator[Row]:
    """Digits sorted by label, 8 clients, 30 rounds, the target away in `count` of them at random."""
    source = load("digits").data
    parts = np.array_split(np.argsort(source.labels(), kind="stable"), 8)
    data = [source.take(part[::7]) for part in parts]
    settings: Mapping[str, dict[str, object]] = {
        "pca/ssi": {"rank": 5, "tolerance": 0.0},
        "optimization/dsgd": {"problem": "softmax", "learning_rate": 0.05},
    }
    for name, setting in settings.items():
        method = algorithms.make(name, **setting)
        for count in (1, 2, 5, 10, 15):
            errors = []
            for seed in range(5):
                away = set(np.random.default_rng([seed, 9]).permutation(np.arange(1, 30))[:count].tolist())
                federation = Federation(
                    method,
                    data,
                    seed=seed,
                    options=RunOptions(schedule=lambda k, away=away: tuple(range(int(k in away), 8))),
                )
                transcript = federation.run(30).transcript
                found = disaggregate(views.sum_only(transcript, 0))
                each = []
                for k, message in zip(found.rounds, found.messages, strict=True):
                    sent = transcript.contributions[k, 0]
                    each.append(relative_error(message, np.concatenate([np.ravel(sent[n]) for n in sorted(sent)])))
                errors.append(float(np.median(each)))
            yield row(f"error of one client's messages, {name}", f"{count} absences in 30 rounds", errors, "relative")


if __name__ == "__main__":
    main()
