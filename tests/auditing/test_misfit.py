"""Silence means something only where the attack explains the messages; its user falls back on the guess elsewhere."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from securefed import Dataset, Federation, chain
from securefed._auditing.engine.explained_messages import explains, fall_back_on_guess, precision
from securefed._auditing.engine.gathering import gather
from securefed._auditing.engine.results import CLIENT, Attempt
from securefed._auditing.engine.statistics import INCONCLUSIVE, NOT_DETECTED, PARTIAL, Interval, interval, verdict
from securefed.algorithms import SSI
from securefed.attacks import PowerGram, Reconstruction, Target, views
from securefed.defenses import Plain, clip, gaussian
from securefed.defenses._fixed_point import Quantise

CLIENTS = [Dataset(np.random.default_rng(k).uniform(0, 1, (5, 6))) for k in range(4)]


def seen(defense, see, rank=2, rounds=3):
    federation = Federation(SSI(rank=rank), CLIENTS, defense, seed=0)
    transcript = federation.run(rounds).transcript
    return Target(federation.algorithm, federation.public), see(transcript, 0)


def attack(target, observed):
    return PowerGram().run(observed, target, np.random.default_rng(0))


def test_an_exact_attack_explains_plain_and_rounded_messages_and_no_shuffled_ones() -> None:
    for defense, see in ((chain(), views.server), (chain(Quantise(), Plain()), views.sum_only)):
        target, observed = seen(defense, see)
        level = precision(observed)
        assert level < 1e-4
        assert explains(attack(target, observed), level) is True
        shuffled = views.shuffled(observed, np.random.default_rng(1))
        assert explains(attack(target, shuffled), level) is False


def test_messages_that_the_attack_does_not_model_are_not_explained_and_noise_of_known_size_is() -> None:
    clipped = chain(clip(0.5), Quantise(), Plain())
    target, observed = seen(clipped, views.sum_only)
    assert explains(attack(target, observed), precision(observed)) is False
    noised = chain(clip(0.5), gaussian(5.0), Quantise(), Plain())
    target, observed = seen(noised, views.released, rounds=12)  # 144 numbers' mean square is 2.25 once in 10^15 runs
    assert precision(observed) > 0.5
    assert explains(attack(target, observed), precision(observed)) is True
    untold = replace(observed, rounds=tuple(replace(o, noise={}) for o in observed.rounds))
    assert precision(untold) < 1e-4  # numbers of which nobody says that they hold noise are taken at their word


def test_an_attack_that_checks_nothing_and_one_that_says_so_itself() -> None:
    bare = Reconstruction("samples", np.zeros((1, 2)))
    assert explains(bare, 1e-6) is None
    assert explains(replace(bare, residual=1.0, diagnostics={"explained": True}), 1e-6) is True
    assert explains(replace(bare, residual=1e-5), 1e-6) is False
    assert explains(replace(bare, residual=1e-5, condition=1e12), 1e-6) is True  # its round-off, amplified
    assert explains(replace(bare, residual=1e-3, condition=1e20), 1e-6) is False


def attempts(leaks, nulls, explained, null_explained):
    made = Attempt("pca/ssi", "plain", "server", 0, 0, "gram/power", CLIENT, 0.0, 0.0, 0.0, 1.0, False, 0.1, 1, 1, 1.0)
    return [
        replace(made, seed=seed, leakage=a, error=1 - a, null_leakage=b, explained=c, null_explained=d)
        for seed, (a, b, c, d) in enumerate(zip(leaks, nulls, explained, null_explained, strict=True))
    ]


def offered(*columns):
    return fall_back_on_guess(attempts(*columns))


def test_the_guess_replaces_failed_estimates_where_that_is_better_on_average() -> None:
    known = [True, True, False]
    assert offered([1.0, 1.0, -8.0], [-3.0, -3.0, -3.0], known, [False] * 3) == ([1.0, 1.0, 0.0], [0.0] * 3)
    assert offered([1.0, 1.0, 0.7], [0.1, 0.1, 0.1], known, [False] * 3) == ([1.0, 1.0, 0.7], [0.1] * 3)
    assert offered([-8.0, -8.0], [-3.0, -3.0], [False, False], [False, False]) == ([-8.0, -8.0], [-3.0, -3.0])
    assert offered([-8.0, 0.5], [-3.0, 0.0], [None, None], [None, None]) == ([-8.0, 0.5], [-3.0, 0.0])


def scores(leaks, explained):
    return attempts(leaks, [0.0] * len(leaks), explained, [False] * len(leaks))


def test_what_stays_open_is_said_where_an_attack_explains_the_messages_and_finds_nothing() -> None:
    said = "The rest may be known: the messages leave open its scale."
    for leak, explained, named in ((-0.5, True, True), (1.0, True, False), (-0.5, False, False)):
        found = [replace(one, open="its scale") for one in scores([leak] * 10, [explained] * 10)]
        (cell,) = gather(found)
        assert (said in cell.remarks) is named and ("its scale" in cell.reach.open) is named


@pytest.mark.parametrize(
    ("leaks", "explained", "word", "mean"),
    [
        ([1.0] * 7 + [-20.0] * 3, [True] * 7 + [False] * 3, PARTIAL, 0.7),  # the mean of what was offered is -5.3
        ([1.0] + [0.0] * 9, [True] + [False] * 9, PARTIAL, 0.1),  # one reconstruction is no luck
        ([0.9] + [0.0] * 9, [True] + [False] * 9, INCONCLUSIVE, 0.09),
        ([-0.1] * 10, [False] * 10, INCONCLUSIVE, -0.1),
        ([-0.1] * 10, [True] * 8 + [False] * 2, NOT_DETECTED, -0.08),
        ([-0.1] * 10, [None] * 10, NOT_DETECTED, -0.1),
    ],
)
def test_a_stuck_search_is_never_called_safety_and_hides_no_leak(leaks, explained, word, mean) -> None:
    (cell,) = gather(scores(leaks, explained))
    assert (cell.verdict.word, cell.leakage.mean) == (word, pytest.approx(mean))


def test_no_information_stays_silent_whatever_share_of_the_runs_is_explained() -> None:
    """Leakage and null of one law, 300 pairs: 15 or more false positives have probability .001 at 2 %."""
    rng = np.random.default_rng(0)
    wrong = 0
    for _ in range(300):
        leak, null = rng.normal(-0.5, 0.5, (2, 10))
        fits, chance = rng.random((2, 10)) < 0.5
        found = offered(leak.tolist(), null.tolist(), fits.tolist(), chance.tolist())
        wrong += verdict(*map(interval, found), explained=float(fits.mean())).word == PARTIAL
    assert wrong < 15


def test_without_power_silence_is_inconclusive() -> None:
    wide = Interval(0.1, -0.8, 0.8, 10, 1.4)
    assert verdict(wide, Interval(0.0, 0.0, 0.0, 10, 0.0)).word == INCONCLUSIVE
    one = verdict(interval([-0.3]), interval([-0.2]))  # one seed: power unknown, and said so
    assert one.word == NOT_DETECTED
    assert math.isnan(one.detectable)


def test_exact_counts_of_labels_are_no_reconstruction() -> None:
    """Three rows of three classes have ten counts, of which a guess hits one."""
    (row,) = attempts([1.0], [0.0], [True], [False])
    assert replace(row, secret="samples").reconstructs  # the control
    assert not replace(row, secret="labels").reconstructs
