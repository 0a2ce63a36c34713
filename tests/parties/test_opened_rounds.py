"""Rounds as a server opens them, with cohorts and ranges; and the state of a key holder, which belongs to its terms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from securefed.defenses import secure_aggregation
from securefed.defenses._homomorphic import InsecurePaillier
from securefed.errors import ConfigError, RangeRefused, RoundVoid, StorageError
from securefed.parties import SumHelper, SumServer
from tests.parties.helpers import play
from tests.parties.sums import BASE, UPDATES, given, parties, terms_of


def test_after_the_most_doublings_of_a_range_the_run_goes_on() -> None:
    """The range stays at its largest, which clients accept, and a round of values within it gives its sum."""
    terms = terms_of(secure_aggregation(), bounds=32.0, metrics={"loss": 16.0}, largest_weight=1024)
    members, server = parties(terms), SumServer(terms)
    for broken in range(3):  # 8 attempts each, then 4 more; a client sits out at most 8 times
        bad = given()
        bad[broken]["update"] = {name: value * 1e12 for name, value in UPDATES[broken].items()}
        with pytest.raises(RangeRefused if broken == 2 else RoundVoid):
            play(server, members, bad, base=BASE)
    assert play(server, members, given(), base=BASE).survivors == (2, 3, 4)


@pytest.mark.parametrize("cohort", [np.array([0, 1, 3]), [np.int64(0), np.int64(1), np.int64(3)], [False, True, 3.0]])
@pytest.mark.parametrize("kept", [False, True])
def test_a_cohort_may_hold_numbers_of_any_type(cohort: Any, kept: bool, tmp_path) -> None:
    terms = terms_of(secure_aggregation())
    server = SumServer(terms, file=tmp_path / "server" if kept else None)
    assert play(server, parties(terms), given(), base=BASE, cohort=cohort).survivors == (0, 1, 3)


def test_a_cohort_that_is_refused_leaves_the_last_result_with_its_model() -> None:
    terms = terms_of(secure_aggregation(), differences=True)
    server, members = SumServer(terms), parties(terms)
    mean = play(server, members, given(), base=BASE).mean["w"]
    with pytest.raises(ConfigError, match="a cohort holds"):
        server.open({name: value + 100 for name, value in BASE.items()}, cohort=[0, 0])
    np.testing.assert_array_equal(SumServer.thaw(terms, server.freeze()).result.mean["w"], mean)  # type: ignore[union-attr]


def test_a_key_holder_s_state_belongs_to_its_terms() -> None:
    mine, other = (terms_of(InsecurePaillier(bits=512), rounds=rounds) for rounds in (7, 9))
    frozen = SumHelper(mine).freeze()
    SumHelper(mine, frozen)
    with pytest.raises(StorageError, match=r"of terms .* give the terms"):
        SumHelper(other, frozen)
