"""Which views the registered attacks run on: equal ones once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from securefed import Public, audit
from securefed._auditing.engine.results import CLIENT
from securefed._auditing.registered.attacker import Attacker
from securefed.algorithms import SSI
from securefed.attacks import Reconstruction, RoundView, Target, View


class Counting:
    """An attack that counts on how many views it runs."""

    name, secret = "test/counting", "gram"

    def __init__(self) -> None:
        self.runs = 0

    def applies(self, target: Target, observed: View) -> str | None:
        return None

    def run(self, observed: View, target: Target, rng: np.random.Generator) -> Reconstruction:
        self.runs += 1
        return Reconstruction("gram", np.eye(2))


def test_views_with_equal_messages_are_attacked_again_where_one_states_a_clip_or_noise() -> None:
    public = Public(clients=2, cohort=2, features=2, rows=(1, 1), classes=0, feature_bound=1.0)
    everybody = frozenset({0, 1})
    one = RoundView(0, {"basis": np.eye(2)}, {"product": np.eye(2)}, everybody, everybody)
    counting = Counting()
    attacker = Attacker([counting], ["gram"], Target(SSI(rank=2), public), seed=0)
    for expected, other in (
        (1, one),
        (1, replace(one)),  # the positive control: an equal view is attacked once
        (2, replace(one, clips=((("product",), 1.0),))),
        (3, replace(one, noise={"product": 0.1})),
        (4, replace(one, step={"product": 0.1})),
    ):
        attacker.attack(View("server", 0, (other,), {}))
        assert counting.runs == expected


@pytest.mark.exhaustive
def test_clipped_sums_without_noise_are_read_as_plain_ones_are() -> None:
    """Under central noise the server sees clipped sums before it; without starts made for clips FedCM fell to .4."""
    found = audit(["optimization/fedcm", "personalized/flame"], ["plain", "dp"], seeds=3, workers=1)
    for algorithm in found.algorithms:
        sums = [c for c in found.of(algorithm) if (c.defense, c.view, c.owner) == ("dp", "sum only", CLIENT)]
        leaks = [cell.leakage.mean for cell in sums]
        assert max(leaks) > 0.99
