"""What every registered attack must do, on every view of every algorithm."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from securefed import catalogue
from securefed.attacks import views
from securefed.attacks.base import Attack, Observed, Target
from securefed.auditing.cases import cases
from securefed.auditing.scoring import SCORES
from securefed.datasets.loaders import Source, digits
from securefed.defenses.compose import chain
from securefed.defenses.fixed_point import Quantise
from securefed.errors import TranscriptError
from securefed.federation import Federation
from securefed.run_options import RunOptions

NAMES = catalogue.attacks.names
CLIENTS, ROUNDS = 4, 5


@cache
def seen(algorithm: str) -> tuple[Target, dict[str, Observed]]:
    """Views of one short run, the target away in every second round of another."""
    case = cases[algorithm].make()
    source = digits()
    small = Source(source.data.take(np.arange(200)), source.name, source.feature_bound, source.image_shape)
    prepared = case.prepare(small, CLIENTS, 0)
    method = case.build()
    federation = Federation(method, prepared.clients, chain(Quantise()), public=prepared.public)
    transcript = federation.run(ROUNDS).transcript
    away = Federation(
        method,
        prepared.clients,
        chain(Quantise()),
        public=prepared.public,
        options=RunOptions(schedule=lambda k: range(k % 2, CLIENTS)),
    )
    looks = {
        "server": views.server(transcript, 0),
        "sum only": views.sum_only(transcript, 0),
        "collusion": views.collusion(transcript, 0, [1]),
        "changing": views.sum_only(away.run(ROUNDS).transcript, 0),
        "output only": views.output_only(transcript, 0),
        "shuffled": views.shuffled(views.server(transcript, 0), np.random.default_rng(0)),
    }
    return Target(method, prepared.public), looks


def test_the_registry_is_not_empty_and_every_attack_names_its_source() -> None:
    assert len(NAMES) >= 7
    for entry in catalogue.attacks:
        assert isinstance(entry.make(), Attack)
        assert entry.make().name == entry.name
        assert entry.make().secret in SCORES
        assert entry.source
        assert entry.details["reads"], f"{entry.name}: register it with reads=, which the report shows"


@pytest.mark.parametrize("algorithm", cases.names)
@pytest.mark.parametrize("name", NAMES)
def test_it_says_why_not_or_gives_a_finite_estimate_and_is_deterministic(name: str, algorithm: str) -> None:
    attack = catalogue.attacks.make(name)
    target, looks = seen(algorithm)
    for view, observed in looks.items():
        reason = attack.applies(target, observed)
        if reason is not None:
            assert len(reason.split()) >= 3, reason  # a sentence
            with pytest.raises(TranscriptError):
                attack.run(observed, target, np.random.default_rng(0))
            continue
        try:
            found = [attack.run(observed, target, np.random.default_rng(0)) for _ in range(2)]
        except TranscriptError as error:
            assert view == "shuffled", error  # an attack may see for itself that nothing fits
            continue
        assert found[0].secret == attack.secret
        if attack.secret != "personal":  # a model's parameters; all else has the data's columns
            assert found[0].value.shape[1] == target.public.features
        assert np.isfinite(found[0].value).all(), view
        np.testing.assert_array_equal(found[0].value, found[1].value)
        assert (found[0].members or observed.members) <= set(range(CLIENTS))


SILENT = {"pca/self"}
"""Clients learn alone and send one number, how much their bases capture: no attack claims to read more from it."""


@pytest.mark.parametrize("algorithm", cases.names)
def test_every_algorithm_is_attacked_on_the_servers_view_and_none_without_messages(algorithm: str) -> None:
    target, looks = seen(algorithm)
    attacks = [catalogue.attacks.make(name) for name in NAMES]
    assert any(attack.applies(target, looks["server"]) is None for attack in attacks) == (algorithm not in SILENT)
    assert all(attack.applies(target, looks["output only"]) is not None for attack in attacks)
