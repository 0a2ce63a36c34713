"""Plans, dropouts at every stage, states that survive a process, exactness."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from securefed import SERVER, Layout, Message, TensorSpec, chain
from securefed._persistence.packing import pack
from securefed.defenses import Aggregation, MaskingPlan, Plan, Session, TensorPlan, secure_aggregation
from securefed.defenses._base import without_indicator
from securefed.defenses._secure_aggregation import SecureAggregation
from securefed.errors import ConfigError, DataError, PlanError, RangeRefused, TooFewSurvivors


def expected_survivors(session, drops):
    """Whose uploads the sum must hold, `None` where fewer than the threshold are left somewhere."""
    left, survivors = set(session.cohort), None
    for stage in ("keys", "shares", "upload", "unmask"):
        left -= set(drops.get(stage, ()))
        if len(left) < session.plan.threshold:
            return None
        if stage == "upload":
            survivors = tuple(sorted(left))
    return survivors


def check(net, session, drops, **kwargs):
    contributions = net.contributions(session)
    expected = expected_survivors(session, drops)
    if expected is None:
        with pytest.raises(TooFewSurvivors):
            net.drive(session, contributions, drops, **kwargs)
        return
    out = net.drive(session, contributions, drops, **kwargs)
    assert out.aggregate.survivors == expected
    assert not out.refusals
    for name, value in net.sum(contributions, expected).items():
        assert out.aggregate.total[name].dtype == np.int64
        assert out.aggregate.total[name].shape == value.shape
        assert np.array_equal(out.aggregate.total[name], value)


@pytest.mark.parametrize("cohort", [(1, 2, 6), pytest.param((0, 3, 4, 8), marks=pytest.mark.exhaustive)])
def test_every_client_may_drop_at_any_stage_whatever_the_others_do(net, cohort):
    """All combinations: each client leaves at one of the four stages or stays."""
    session = net.session(cohort, tensors=(("w", (3,), 32),))
    for when in itertools.product(range(5), repeat=len(cohort)):
        drops = {stage: [c for c, w in zip(cohort, when, strict=True) if w == k] for k, stage in enumerate(net.STAGES)}
        check(net, session, drops)


@settings(max_examples=25)
@given(st.data())
def test_random_dropouts_in_larger_cohorts(net, data):
    cohort = sorted(data.draw(st.sets(st.integers(0, 500), min_size=6, max_size=16)))
    threshold = data.draw(st.integers(len(cohort) // 2 + 1, len(cohort)))
    leaving = data.draw(st.lists(st.sampled_from(cohort), max_size=len(cohort) // 2, unique=True))
    drops: dict[str, list[int]] = {}
    for client in leaving:
        drops.setdefault(data.draw(st.sampled_from(net.STAGES)), []).append(client)
    check(net, net.session(cohort, threshold=threshold), drops, repack=data.draw(st.booleans()))


def test_packing_every_state_between_stages_changes_nothing(net):
    session = net.session([0, 1, 2, 3, 4])
    for stage in net.STAGES:
        check(net, session, {stage: [2]}, repack=True)


def test_only_session_identities_and_masks_made_ahead_are_not_packed(net):
    session = net.session([0, 1, 2])
    clients, server, _ = net.upto(session, net.contributions(session), "upload")
    for state in (clients[0], server):
        fields = set(vars(state)) - {"session", "identities", "precomputed"}
        stored = {field.name: field.metadata.get("stored_as", field.name) for field in dataclasses.fields(state)}
        assert {stored[name] for name in fields} == {name.split("/")[0].split(":")[0] for name in pack(state)}


def test_a_client_step_is_a_function_of_state_and_request(net):
    """A client that is asked twice from one state deals the same shares and the same masks (the tag's nonce is new)."""
    session = net.session([0, 1, 2])
    contributions = net.contributions(session)
    for stage in net.STAGES:
        clients, _, requests = net.upto(session, contributions, stage)
        request = Message(session.run, session.round, stage, SERVER, 1, requests[1])
        encoded = contributions[1] if stage == "upload" else None
        first, second = (SecureAggregation().client_step(clients[1], request, encoded)[1] for _ in range(2))
        assert all(np.array_equal(first[name], second[name]) for name in first if name != "tag")


def test_rings_of_both_widths_wrap_signed_sums_exactly(net):
    """Entries of one sign at the largest magnitude whose sum fits, among several tensors and an empty one."""
    session = net.session(
        [0, 1, 2], tensors=(("a", (3, 2), 32), ("b", (4,), 64), ("none", (0,), 32), ("c/d:e", (), 32))
    )
    for sign in (-1, 1):
        contributions = {
            client: {
                t.name: np.full(t.shape, sign * ((2 ** (t.ring - 1) - 1) // 3), np.int64) for t in session.plan.tensors
            }
            for client in session.cohort
        }
        kept = {client: {n: v.copy() for n, v in tensors.items()} for client, tensors in contributions.items()}
        out = net.drive(session, contributions, repack=True)
        for name, value in net.sum(kept, session.cohort).items():
            assert np.array_equal(out.aggregate.total[name], value)
            assert all(np.array_equal(contributions[c][name], kept[c][name]) for c in session.cohort)


@pytest.mark.parametrize("drops", [{}, {"upload": [3]}, {"shares": [0], "upload": [8], "unmask": [4]}])
def test_packed_rings_sum_exactly_whoever_drops(net, drops):
    """Extremes of both signs in rings of 20 and 16 bits beside wider ones, empty and single entries among them."""
    tensors = (("w", (7,), 20), ("m", (2, 3), 16), ("none", (0,), 20), ("one", (), 21), ("x", (2,), 32), ("s", (), 64))
    session = net.session([0, 3, 4, 8, 9, 12], tensors=tensors)
    check(net, session, drops, repack=True)
    for sign in (-1, 1):
        contributions = {
            client: {
                t.name: np.full(t.shape, sign * ((2 ** (t.ring - 1) - 1) // 6), np.int64) for t in session.plan.tensors
            }
            for client in session.cohort
        }
        out = net.drive(session, contributions)
        for name, value in net.sum(contributions, session.cohort).items():
            assert np.array_equal(out.aggregate.total[name], value)
    sent = [value.nbytes for stage in net.STAGES for body in out.bodies(stage, sender=3) for value in body.values()]
    assert sum(sent) == session.plan.upload_bytes


def test_an_entry_beyond_its_part_of_a_packed_ring_never_leaves_the_client(net):
    session = net.session([0, 1, 2], tensors=(("w", (4,), 20),))
    good = net.contributions(session)
    clients, _, requests = net.upto(session, good, "upload")
    request = Message(session.run, session.round, "upload", SERVER, 0, requests[0])
    part = (2**19 - 1) // 3
    for entry in (part, -part):
        SecureAggregation().client_step(clients[0], request, {"w": np.full(4, entry, np.int64)})
    for entry in (part + 1, -part - 1):
        with pytest.raises(RangeRefused):
            SecureAggregation().client_step(clients[0], request, {"w": np.full(4, entry, np.int64)})


def test_a_contribution_that_is_not_the_plans_never_leaves_the_client(net):
    session = net.session([0, 1, 2])
    good = net.contributions(session)
    clients, _, requests = net.upto(session, good, "upload")
    request = Message(session.run, session.round, "upload", SERVER, 0, requests[0])

    def ask(encoded):
        return SecureAggregation().client_step(clients[0], request, encoded)

    assert set(ask(good[0])[1]) == {"masked/w", "masked/loss", "tag"}
    for wrong in [None, {}, good[0] | {"more": good[0]["w"]}, good[0] | {"w": good[0]["w"].astype(np.float64)},
                  good[0] | {"w": good[0]["w"][:-1]}, good[0] | {"loss": good[0]["loss"].reshape(1)}]:  # fmt: skip
        with pytest.raises(DataError):
            ask(wrong)
    for entry in (2**31, -(2**31) - 1):
        with pytest.raises(RangeRefused):
            ask(good[0] | {"w": np.full(5, entry, np.int64)})


def test_the_plan_states_stages_bytes_threshold_and_assumptions(net):
    session = net.session(range(7))
    plan = session.plan
    assert (plan.stages, plan.threshold) == (net.STAGES, 4)
    assert [net.plan(clients).threshold for clients in (3, 4, 5, 100)] == [3, 3, 3, 51]
    assert "A round that one client leaves is void." in net.plan(3).assumptions
    assert net.plan(3, dropouts=1 / 3).threshold == 2  # the caller planned for a loss
    out = net.drive(session, net.contributions(session))
    sent = sum(value.nbytes for stage in net.STAGES for body in out.bodies(stage, sender=3) for value in body.values())
    assert sent == plan.upload_bytes
    assert "4 of 7" in plan.open_to
    text = " ".join(plan.assumptions)
    assert all(word in text for word in ("honest but curious", "visible", "colluding"))


def test_keys_and_shares_stay_small_and_the_upload_is_one_word_per_entry(net):
    plan = net.plan(100, (("w", (1_000_000,), 32),))
    assert (
        plan.upload_bytes - 4_000_000 - 100 * 32 - 2 * 28 < 10_000
    )  # less the upload, the shares returned, their tags
    assert plan.upload_bytes <= 4.1 * 1_000_000
    assert net.plan(100, (("w", (1_000_000,), 20),)).upload_bytes <= 2.7 * 1_000_000


@pytest.mark.parametrize(("clients", "threshold"), [(1, None), (2, None), (2, 2), (3, 1), (4, 2), (6, 3), (5, 6)])
def test_thresholds_that_do_not_protect_are_refused(net, clients, threshold):
    with pytest.raises(PlanError):
        net.plan(clients, threshold=threshold)


@pytest.mark.parametrize("threshold", [2.5, "3", True, 0, -3])
def test_a_threshold_is_a_whole_number(threshold):
    with pytest.raises(ConfigError, match="threshold must be an integer of at least 1"):
        secure_aggregation(threshold)


def test_tensors_that_are_not_quantised_are_refused():
    tensor = TensorPlan("w", (2,), 1.0, 0, 0.0, 2**31, 0.0)
    with pytest.raises(PlanError, match="quantise"):
        secure_aggregation().plan(Plan("x", 3, (tensor,), {"w": 32}))


def test_sessions_that_stretch_the_plan_are_refused(net):
    protocol, plan = SecureAggregation(), net.plan(4)
    weak = Plan("x", 4, plan.tensors, plan.wanted_rings, threshold=2, masking=MaskingPlan(shares=2))
    for session in (Session("r", 0, (0, 1, 2, 3, 4), plan), Session("r", 0, (0, 1, 2, 3), weak)):
        with pytest.raises(PlanError):
            protocol.server_open(session)
        with pytest.raises(PlanError):
            protocol.client_open(session, 0)
    with pytest.raises(ConfigError):
        protocol.client_open(Session("r", 0, (0, 1, 2), plan), 3)
    assert protocol.client_open(Session("r", 0, (0, 1, 2), plan), 2).stage == "keys"


def test_it_ends_a_chain_and_sums_real_contributions_within_the_plan(net):
    defense = chain(secure_aggregation(threshold=4))
    assert isinstance(defense.aggregation, Aggregation)
    assert str(defense.aggregation) == "secure_aggregation(threshold=4)"
    assert defense.name == "quantise + secure_aggregation(threshold=4)"
    layout = Layout((TensorSpec("w", (6,), 2.0), TensorSpec("s", (), 10.0, 64)))
    session = Session("ab" * 16, 4, (0, 1, 2, 3, 4), defense.plan(layout, 5))
    rng = np.random.default_rng(3)
    real = {c: {"w": rng.uniform(-2, 2, 6), "s": np.asarray(rng.uniform(-9, 9))} for c in session.cohort}
    encoded = {c: defense.encode(tensors, session.plan) for c, tensors in real.items()}
    out = net.drive(session, encoded, {"upload": [1]}, protocol=defense.aggregation)
    decoded = defense.decode(out.aggregate.total, session.plan, out.aggregate.count)
    for tensor in without_indicator(session.plan).tensors:
        exact = sum(real[c][tensor.name] for c in (0, 2, 3, 4))
        assert np.abs(decoded[tensor.name] - exact).max() <= tensor.error


def test_secrets_are_not_shown(net):
    session = net.session([0, 1, 2])
    clients, server, _ = net.upto(session, net.contributions(session), "upload")
    shown = repr(clients[0]) + repr(server)
    assert repr(clients[0].root) not in shown
    assert repr(clients[0].channel) not in shown
    assert repr(server.secret) not in shown
