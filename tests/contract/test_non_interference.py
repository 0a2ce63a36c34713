"""What a server sees of a client, apart from its protected upload, does not depend on the client's data.

Every registered algorithm under every defence that hides contributions or adds noise to them. hypothesis plays the
server: any broadcast, order, number, kind and cohort, with faults and replays on the way. Two data sets with the same
public facts play the client, at one node each. Answers and refusals, their texts, names, types, shapes and sizes of all
fields, and the number of messages must be the same.

Exempt: the time that a client takes; the scalars that a selection reveals, as its plan says; enrolment, in which a
client may refuse data that no run can use; and the contents of protected uploads and of what opens their sum. In one
bit, an opened sum shows that some client was out: what the server then does is the same for both data sets here.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any
from zlib import crc32

import pytest
from hypothesis import HealthCheck, Phase, assume, given, seed, settings

from securefed import _catalogue as catalogue
from securefed import chain, identity
from securefed._runtime.client import ClientNode
from securefed._runtime.sum_facts import SumFacts
from securefed.defenses import (
    Defense,
    Identities,
    adaptive_clip,
    ckks,
    clip,
    grouped,
    local_gaussian,
    secure_aggregation,
    skellam,
    threshold_paillier,
)
from securefed.defenses._differential_privacy import CentralGaussian
from securefed.defenses._homomorphic import InsecurePaillier, insecure_deal
from securefed.errors import SecureFedError
from tests.combinations import covered_rows, first_ones
from tests.contract.deviating_server import OldOrder, compare, terms_of
from tests.contract.deviations import CLIENTS, PAIRS, SCHEDULES
from tests.contract.settings import make

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # wild broadcasts overflow, as they do in a run
NAMES = catalogue.algorithms.names
PRIVATE = ("private/fedavg",)
DEFENSES: dict[str, Defense] = {
    "secure_aggregation": chain(secure_aggregation()),
    "against a server that deviates": chain(
        secure_aggregation(identities=Identities.generate(CLIENTS), pipelined=True, verify=True)
    ),
    "in groups": chain(grouped(secure_aggregation(), groups=1, aggregator="mean")),
    "paillier": chain(InsecurePaillier(bits=512)),
    "paillier_threshold": chain(threshold_paillier(keys=insecure_deal(2, CLIENTS, bits=256))),
    "ckks": chain(ckks()),
    "dp": chain(clip(1.0), CentralGaussian(1.0), secure_aggregation()),
    "ddp": chain(clip(1.0), skellam(1.0), secure_aggregation()),
    "local noise": chain(clip(1.0), local_gaussian(1.0)),
    "adaptive clip": chain(adaptive_clip(0.5), skellam(1.0), secure_aggregation()),
}
CLEAR = "in the clear"
COMBINATIONS = [(name, defense) for name in NAMES for defense in DEFENSES] + [(name, CLEAR) for name in PRIVATE]
PROFILE = settings.default.max_examples
AT_LEAST = 3 if settings.get_profile("gate").max_examples > PROFILE else 5
"""Schedules for each combination: `make test` plays fewer, as of all tests of hypothesis.

The nightly profile's number is shared between the combinations."""
EXAMPLES = max(AT_LEAST, math.ceil(PROFILE / len(COMBINATIONS)))


@cache
def terms(name: str, defense: str) -> SumFacts:
    return terms_of(make(name), identity() if defense == CLEAR else DEFENSES[defense])


def play(
    name: str,
    defense: str,
    examples: int,
    node: Callable[..., Any] = ClientNode,
    phases: tuple = (Phase.generate, Phase.shrink),
) -> Counter:
    """Play so many schedules; what the victims showed, counted by stage and name of refusal."""
    met: Counter[str] = Counter()
    agreed = terms(name, defense)

    def example(pair: tuple[str, str], schedule: list) -> None:
        try:
            world = compare(agreed, pair, schedule, node)
        except SecureFedError as error:  # enrolment: of data that no run can use
            assume(error is None)
            raise
        met.update(what(shown) for shown in world.wire.seen)

    generated = given(PAIRS, SCHEDULES)(example)
    if settings.default.derandomize:  # other schedules for each combination, the same in every run
        generated = seed(crc32(f"{name} {defense}".encode()))(generated)
    options = {"suppress_health_check": list(HealthCheck), "database": None, "deadline": None}
    settings(max_examples=examples, phases=phases, derandomize=False, report_multiple_bugs=False, **options)(
        generated
    )()
    return met


def what(shown: tuple) -> str:
    return shown[1] if shown[0] == "raised" else (shown[7][0].decode() if shown[7] else shown[2])


@pytest.mark.hypothesis
@pytest.mark.parametrize(("name", "defense"), covered_rows(COMBINATIONS))
def test_what_a_server_sees_beside_uploads_does_not_depend_on_data(name: str, defense: str) -> None:
    assert sum(play(name, defense, EXAMPLES).values()) >= EXAMPLES


CONTROLS = [
    ("pca/localpower", "secure_aggregation"),
    ("pca/ssi", "secure_aggregation"),
    ("graph/ditto", "secure_aggregation"),
    ("pca/localpower", "local noise"),
    *((name, "secure_aggregation") for name in ("pca/faps", "graph/fedprox")),
    *(("pca/localpower", defense) for defense in ("against a server that deviates", "paillier")),
]


@pytest.mark.parametrize(("name", "defense"), first_ones(CONTROLS, 3))
def test_the_battery_finds_the_oracle_when_the_old_order_is_put_back(name: str, defense: str) -> None:
    """The control: a client that computes before it checks, and refuses by name, is told apart."""
    with pytest.raises(AssertionError):
        play(name, defense, 2000, OldOrder, (Phase.generate,))
