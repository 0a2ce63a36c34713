"""Remedies of the published checks: what an author of an algorithm, attack or defence has to write."""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from extension_templates.aggregation import ZeroSumMasks
from securefed import Aggregate, defenses
from securefed.algorithms import SSI
from securefed.attacks import Reconstruction
from securefed.defenses import clip
from securefed.errors import TranscriptError
from securefed.testing import checks_for, parametrize_with_checks
from securefed.testing._aggregation_checks import check_refused_requests, check_too_few_survivors
from securefed.testing._attack_checks import check_description, check_views_of
from tests.remedies.followed import Followed, evaluated, found

PARAMETRIZE = "securefed/testing/_parametrize.py"
AGGREGATIONS = "securefed/testing/_aggregation_checks.py"
ATTACKS = "securefed/testing/_attack_checks.py"
KEY = bytes(32)


class Satisfied(ZeroSumMasks):
    """An aggregation whose server opens a sum of no client."""

    def server_step(self, state: Any, replies: Any) -> Any:
        return super().server_step(state, replies) if replies else Aggregate({"w": np.zeros(1)}, ())


class Lax(ZeroSumMasks):
    """An aggregation whose client answers every request."""

    def client_accept(self, state: Any, request: Any, context: Any) -> Any:
        return replace(state, next_stage="")


class Heedless:
    """An attack that runs where it says that it cannot."""

    name, secret = "own/heedless", "samples"

    def applies(self, target: Any, observed: Any) -> str:
        return "It applies to no view."

    def run(self, observed: Any, target: Any, rng: Any) -> Reconstruction:
        return Reconstruction("samples", np.zeros((1, 1)))


class Heedful(Heedless):
    """An attack that runs nowhere."""

    def run(self, observed: Any, target: Any, rng: Any) -> Reconstruction:
        raise TranscriptError(self.applies(target, observed))


def described(message: str) -> None:
    """Write all that the message says the attack lacks."""
    given = {"name": "own/attack", "secret": "samples", "applies": print, "run": print}
    check_description(SimpleNamespace(**{name: given[name] for name in re.findall("`(.*?)`", message)}))


TABLE: dict[str, Followed] = {
    "a class for an object, checks": Followed(
        PARAMETRIZE,
        "the checks need an object",
        lambda _: checks_for(SSI),
        lambda message, _: checks_for(evaluated(r"Write (SSI\(.*\)) with", message.replace("...", "rank=2"))),
    ),
    "what is none of them": Followed(
        PARAMETRIZE,
        "it lacks ",
        lambda _: checks_for(3),
        lambda message, _: all(
            hasattr(item, re.findall("`(.*?)`", message)[place]) and checks_for(item)
            for place, item in ((0, SSI(rank=2)), (3, clip(1.0)))
        ),
    ),
    "one object for a list": Followed(
        PARAMETRIZE,
        "instances must be a list",
        lambda _: parametrize_with_checks(SSI(rank=2)),
        lambda message, _: parametrize_with_checks(
            evaluated(r"Write (\[.*\])\.$", message.replace("...", "SSI(rank=2)"))
        ),
    ),
    "an empty list": Followed(
        PARAMETRIZE,
        "got none. Write [MyAlgorithm(...)]",
        lambda _: parametrize_with_checks([]),
        lambda message, _: parametrize_with_checks(
            evaluated(r"Write (\[.*\])\.$", message.replace("...", "rank=2"), MyAlgorithm=SSI)
        ),
    ),
    "a sum of no client": Followed(
        AGGREGATIONS,
        "must raise TooFewSurvivors when no client uploads",
        lambda _: check_too_few_survivors(Satisfied(KEY)),
        lambda message, _: check_too_few_survivors(ZeroSumMasks(KEY)),
    ),
    "a client that answers everything": Followed(
        AGGREGATIONS,
        "a client must refuse ",
        lambda _: check_refused_requests(Lax(KEY)),
        lambda message, _: (
            getattr(defenses, found("see `(.*)`", message)) and check_refused_requests(ZeroSumMasks(KEY))
        ),
    ),
    "an attack without a description": Followed(
        ATTACKS,
        " lacks ",
        lambda _: check_description(SimpleNamespace()),
        lambda message, _: described(message),
    ),
    "an attack that runs anywhere": Followed(
        ATTACKS,
        "must raise TranscriptError where `applies` gives a reason",
        lambda _: check_views_of(Heedless(), "pca/ssi"),
        lambda *_: check_views_of(Heedful(), "pca/ssi"),
    ),
}
"""By name, the remedies that are followed."""
