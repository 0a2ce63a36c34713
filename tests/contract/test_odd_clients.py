"""Every registered algorithm works with a client whose data is odd, or refuses it by name; and cohorts are the loop."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest

from securefed import Dataset, Federation
from securefed import _catalogue as catalogue
from securefed.algorithms import SupportsBatches
from securefed.errors import ConfigError, SecureFedError
from tests.combinations import quick
from tests.contract.settings import SETTINGS, data, make

NAMES = catalogue.algorithms.names
ODD: dict[str, Callable[[Dataset], Dataset]] = {
    "one row": lambda d: Dataset(d.x[:1], d.labels()[:1]),
    "one class": lambda d: Dataset(d.x, np.zeros(d.rows, int)),
    "constant features": lambda d: Dataset(np.full_like(d.x, 0.5), d.y),
    "zeros": lambda d: Dataset(np.zeros_like(d.x), d.y),
    "the same row again and again": lambda d: Dataset(np.repeat(d.x[:1], d.rows, 0), d.y),
}
# What single clients may not be, said in words before the first round.
REFUSED = {
    ("optimization/losac", "one row"): "blocks must be .* .the rows of the smallest client.; got 2",
    (
        "optimization/losac_prox",
        "one row",
    ): "blocks must be .* .the rows of the smallest client.; got 2",
    ("optimization/fedsaga", "one row"): "blocks must be .* .the rows of the smallest client.; got 2",
}


ROWS = list(product(NAMES, ODD))
QUICK = {*quick(ROWS), *REFUSED}


@pytest.mark.parametrize(
    ("name", "kind"), [pytest.param(*row, marks=() if row in QUICK else pytest.mark.exhaustive) for row in ROWS]
)
def test_a_client_with_odd_data_works_or_is_refused_by_name(name: str, kind: str) -> None:
    clients = data()
    clients[1] = ODD[kind](clients[1])
    if (name, kind) in REFUSED:
        with pytest.raises(SecureFedError, match=REFUSED[name, kind]):
            Federation(make(name), clients, seed=2)
        return
    result = Federation(make(name), clients, seed=2).run(3)
    values = [*result.output.values(), *(v for own in result.personal.values() for v in own.values())]
    assert all(np.isfinite(value).all() for value in values)
    assert len(result.history) == 3


@pytest.mark.parametrize("name", NAMES)
def test_a_cohort_computed_together_is_the_loop(name: str) -> None:
    clients = data()
    together = Federation(make(name), clients, seed=2).run(3)
    alone = Federation(make(name), clients, seed=2, batched=False).run(3)
    single = any(value.dtype == np.float32 for value in together.output.values())
    tolerance = 2e-5 if single else 1e-10
    for name_, value in together.output.items():
        np.testing.assert_allclose(value, alone.output[name_], rtol=0, atol=tolerance)
    for client, own in together.personal.items():
        for name_, value in own.items():
            np.testing.assert_allclose(value, alone.personal[client][name_], rtol=0, atol=tolerance)


def test_all_but_those_where_it_does_not_pay_compute_cohorts_together() -> None:
    # One product a round and client, bound by reading the rows: batching would only copy them.
    alone = {name for name in NAMES if not isinstance(make(name), SupportsBatches)}
    assert alone == {"pca/ssi", "pca/localpower", "pca/self"}


OUTSIDE: list[tuple[str, dict[str, Any]]] = [
    *((name, {"rank": 7}) for name in NAMES if name.startswith("pca/")),  # of 6 features
    *((name, {"rank": 0}) for name in NAMES if name.startswith("pca/")),
    *((name, {"learning_rate": rate}) for name in NAMES if "learning_rate" in SETTINGS[name] for rate in (0.0, np.nan)),
    *((name, {"local_steps": 0}) for name in NAMES if "local_steps" in SETTINGS[name]),
    *((name, {"step_size": -1.0}) for name in NAMES if name.startswith("graph/")),
    *((name, {"rho": 0.0}) for name in ("pca/fedpg", "pca/fedpe", "optimization/fedadmm")),
    *((name, {"penalty": 0.0}) for name in ("personalized/flame", "personalized/fedadmm")),
]


@pytest.mark.parametrize(("name", "change"), OUTSIDE, ids=str)
def test_parameters_outside_their_domain_are_refused_in_words(name: str, change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"must|cannot") as refused:
        Federation(catalogue.algorithms.make(name, **SETTINGS[name] | change), data(), seed=0)
    assert len(str(refused.value)) > 20


def test_more_participants_than_clients_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"cohort must be an integer between 1 and 5"):
        Federation(make("optimization/fedavg"), data(), cohort=6)
