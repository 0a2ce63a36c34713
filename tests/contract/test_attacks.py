"""What every registered attack must do, on every view of every algorithm."""

from __future__ import annotations

from itertools import product

import pytest

from securefed import _catalogue as catalogue
from securefed._auditing.cases import case_names
from securefed.attacks import Attack
from securefed.testing._attack_checks import check_description, check_views_of, views_of
from tests.combinations import cover

NAMES = catalogue.attacks.names
SEARCHES = ("gradient_inversion/telescoping", "gradient_inversion/fit", "gradient_inversion/dlg", "distances/fit")
"""Attacks that search for seconds, the quickest first; all others are run on every algorithm in `make test`."""
SOLVED = [name for name in NAMES if name not in SEARCHES]
DEAR = (
    ("graph/fedprox", "distances/fit"),
    ("personalized/fedadmm", "gradient_inversion/dlg"),
    ("pca/faps", "gram/consensus"),
)
"""Seconds each: left out of `make test`, where these attacks run elsewhere."""
SEARCHED, EVERYWHERE = list(product(case_names(), SEARCHES)), list(product(case_names(), SOLVED))
QUICK = [row for row in cover(SEARCHED) if row not in DEAR]


def test_the_registry_is_not_empty_and_every_attack_names_its_source() -> None:
    assert len(NAMES) >= 7
    for entry in catalogue.attacks:
        assert isinstance(entry.make(), Attack)
        assert entry.make().name == entry.name
        check_description(entry.make())
        assert entry.source
        assert entry.details["reads"], f"{entry.name}: register it with reads=, which the report shows"


@pytest.mark.parametrize(
    ("algorithm", "name"),
    [
        *(pytest.param(*row, marks=() if row in QUICK else pytest.mark.exhaustive) for row in SEARCHED),
        *(pytest.param(*row, marks=pytest.mark.exhaustive if row in DEAR else ()) for row in EVERYWHERE),
    ],
)
def test_it_says_why_not_or_gives_a_finite_estimate_and_is_deterministic(algorithm: str, name: str) -> None:
    check_views_of(catalogue.attacks.make(name), algorithm)


SILENT = {"pca/self"}
"""Clients learn alone and send one number, how much their bases capture: no attack claims to read more from it."""


@pytest.mark.parametrize("algorithm", case_names())
def test_every_algorithm_is_attacked_on_the_servers_view_and_none_without_messages(algorithm: str) -> None:
    target, looks = views_of(algorithm)
    attacks = [catalogue.attacks.make(name) for name in NAMES]
    assert any(attack.applies(target, looks["server"]) is None for attack in attacks) == (algorithm not in SILENT)
    assert all(attack.applies(target, looks["output only"]) is not None for attack in attacks)
