from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from securefed import Dataset, Federation, Result, RunOptions, chain
from securefed._tensors import subtract
from securefed.algorithms import SSI
from securefed.attacks import RoundView, View, views
from securefed.defenses import clip, gaussian, secure_aggregation, threshold_paillier
from securefed.defenses._fixed_point import Quantise
from securefed.defenses._homomorphic import InsecurePaillier, insecure_deal, open_upload
from securefed.errors import TranscriptError
from tests.defenses.paillier import open_together

CLIENTS = 8


def data() -> list[Dataset]:
    rng = np.random.default_rng(0)
    return [Dataset(rng.uniform(-1, 1, (5 + i, 6))) for i in range(CLIENTS)]


def run(defense: Any = None, **arguments: Any) -> tuple[Result, Federation]:
    federation = Federation(SSI(rank=2, tolerance=0.0), data(), defense, **arguments)
    return federation.run(4), federation


def test_the_server_view_holds_the_targets_own_messages() -> None:
    result, _ = run()
    seen = views.server(result.transcript, 3)
    assert [o.members for o in seen.rounds] == [frozenset({3})] * 4
    x = data()[3].x
    for observation in seen.rounds:
        np.testing.assert_allclose(observation.message["product"], x.T @ x @ observation.broadcast["basis"])
    np.testing.assert_array_equal(seen.rounds[0].followed["basis"], seen.rounds[1].broadcast["basis"])
    np.testing.assert_array_equal(seen.rounds[-1].followed["basis"], result.output["basis"])


@pytest.mark.parametrize("defense", [chain(Quantise()), chain(secure_aggregation()), chain(InsecurePaillier(bits=512))])
def test_sum_minus_all_others_is_the_targets_encoded_message_bit_for_bit(defense) -> None:
    result, _ = run(defense)
    others = [i for i in range(CLIENTS) if i != 3]
    for record in result.transcript.records:
        rest = {name: value.copy() for name, value in record.encoded.items()}
        for client in others:
            rest = subtract(rest, result.transcript.contributions[record.round, client])
        own = result.transcript.contributions[record.round, 3]
        for name, value in rest.items():
            np.testing.assert_array_equal(value, own[name])
    seen = views.collusion(result.transcript, 3, others)
    assert seen.view == "collusion(7)"
    assert seen.members == {3}
    step = result.transcript.records[0].step["product"]
    np.testing.assert_array_equal(
        seen.rounds[0].message["product"], result.transcript.contributions[0, 3]["product"] * step
    )


def test_in_the_clear_the_algebra_holds_to_rounding() -> None:
    result, _ = run()
    seen, own = views.collusion(result.transcript, 3, [0, 1, 2, 4, 5, 6, 7]), views.server(result.transcript, 3)
    for a, b in zip(seen.rounds, own.rounds, strict=True):
        largest = max(np.abs(c["product"]).max() for c in result.transcript.contributions.values())
        assert np.abs(a.message["product"] - b.message["product"]).max() <= 1e-12 * largest


def test_the_server_view_is_refused_where_uploads_are_not_in_the_clear() -> None:
    for defense in (chain(secure_aggregation()), chain(InsecurePaillier(bits=512))):
        result, _ = run(defense)
        with pytest.raises(TranscriptError, match="not in the clear"):
            views.server(result.transcript, 0)


def test_server_and_key_holder_together_hold_the_plain_view() -> None:
    result, federation = run(chain(InsecurePaillier(bits=512)))
    plain, _ = run(chain(Quantise()))
    opened = views.opened(
        result.transcript, 3, lambda body: open_upload(federation.helper, body, result.plan), "server + key holder"
    )
    for a, b in zip(opened.rounds, views.server(plain.transcript, 3).rounds, strict=True):
        np.testing.assert_array_equal(a.message["product"], b.message["product"])


def test_share_holders_hold_the_plain_view_from_the_threshold_on_and_sums_below() -> None:
    keys = insecure_deal(5, CLIENTS)
    result, _ = run(chain(threshold_paillier(keys=keys)))
    plain, _ = run(chain(Quantise()))
    assert "any 5 of the 8 share holders" in result.plan.open_to

    def seen(colluders: tuple[int, ...]) -> View:
        theirs = replace(keys, shares={i: keys.shares[i] for i in colluders})
        return views.holders_collusion(
            result.transcript,
            3,
            colluders,
            result.plan.threshold,
            lambda body: open_together(theirs, body, result.plan),
        )

    five = seen((0, 1, 2, 4, 7))
    assert five.view == "5 share holders"
    for a, b in zip(five.rounds, views.server(plain.transcript, 3).rounds, strict=True):
        assert a.members == {3}
        np.testing.assert_array_equal(a.message["product"], b.message["product"])
    four, sums = seen((0, 1, 2, 4)), views.collusion(result.transcript, 3, (0, 1, 2, 4))
    assert four.view == sums.view == "collusion(4)"
    for a, b in zip(four.rounds, sums.rounds, strict=True):
        assert a.members == b.members == {3, 5, 6, 7}
        np.testing.assert_array_equal(a.message["product"], b.message["product"])
    with pytest.raises(TranscriptError, match="both the target"):
        seen((0, 1, 2, 3, 4))


def test_sum_only_keeps_rounds_without_the_target_and_released_holds_the_noise() -> None:
    options = RunOptions(schedule=lambda k: range(k % 2, CLIENTS))
    result, _ = run(chain(clip(50.0), gaussian(0.1), secure_aggregation()), options=options)
    sums, noised = views.sum_only(result.transcript, 0), views.released(result.transcript, 0)
    assert [0 in o.members for o in sums.rounds] == [True, False, True, False]
    for a, b in zip(sums.rounds, noised.rounds, strict=True):
        assert 0 < np.abs(a.message["product"] - b.message["product"]).max() < 50
    assert not views.output_only(result.transcript, 0).rounds


def test_a_colluder_cannot_be_the_target_and_its_contributions_are_needed() -> None:
    result, _ = run()
    with pytest.raises(TranscriptError, match="colluder"):
        views.collusion(result.transcript, 3, [3])
    del result.transcript.contributions[1, 2]
    with pytest.raises(TranscriptError, match="not kept"):
        views.collusion(result.transcript, 3, [2])
    bare, _ = run(options=RunOptions(keep_transcript=False))
    assert not views.server(bare.transcript, 3).rounds


def test_views_of_a_saved_transcript_are_the_same(tmp_path) -> None:
    result, _ = run(chain(secure_aggregation()))
    result.transcript.save(tmp_path / "t")
    again = type(result.transcript).load(tmp_path / "t")
    for a, b in zip(
        views.collusion(result.transcript, 0, range(1, 8)).rounds,
        views.collusion(again, 0, range(1, 8)).rounds,
        strict=True,
    ):
        np.testing.assert_array_equal(a.message["product"], b.message["product"])
        assert (a.members, a.survivors) == (b.members, b.survivors)


def test_the_null_keeps_no_message_in_its_round() -> None:
    result, _ = run()
    seen = views.server(result.transcript, 3)
    null = views.shuffled(seen, np.random.default_rng(0))
    own = [np.sort(o.message["product"].ravel()) for o in seen.rounds]
    for index, observation in enumerate(null.rounds):
        shuffled = np.sort(observation.message["product"].ravel())
        assert not np.array_equal(shuffled, own[index])
        assert any(np.array_equal(shuffled, other) for other in own)
        np.testing.assert_array_equal(observation.broadcast["basis"], seen.rounds[index].broadcast["basis"])


def test_the_null_does_not_hang_on_the_order_of_a_messages_tensors() -> None:
    def observed(*names: str) -> View:
        values = {name: np.arange(9.0) + ord(name) for name in names}
        everybody = frozenset(range(2))
        observation = RoundView(0, {}, values, everybody, everybody)
        return View("server", 0, (observation, replace(observation, round=1)), {})

    one, other = (views.shuffled(item, np.random.default_rng(3)) for item in (observed("a", "b"), observed("b", "a")))
    for a, b in zip(one.rounds, other.rounds, strict=True):
        for name in ("a", "b"):
            np.testing.assert_array_equal(a.message[name], b.message[name])
    assert not np.array_equal(one.rounds[0].message["a"], np.arange(9.0) + ord("a"))
