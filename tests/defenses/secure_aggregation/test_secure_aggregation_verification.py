"""Clients check the announced sum: what is altered is refused by name, and would pass without the check."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from securefed import Layout, TensorSpec, chain
from securefed._persistence.packing import from_bytes
from securefed.defenses import Session, clip, gaussian, secure_aggregation, skellam
from securefed.defenses._aggregation import SupportsVerification
from securefed.defenses._base import without_indicator
from securefed.defenses._secure_aggregation import verification
from securefed.defenses._secure_aggregation.masks import SignedMask
from securefed.defenses._secure_aggregation.verification import TagModuli, check_sum, key_dealers
from securefed.errors import AuthenticationError, MalformedError, PlanError, SumRefused, TooFewSurvivors
from tests.combinations import each_value

PROTOCOL = secure_aggregation(verify=True)
PRIME = 2**61 - 1
TENSORS = (("a", (4, 3), 20), ("b", (7,), 32), ("c", (5,), 64), ("empty", (0,), 32), ("d", (), 32))


def exchange(net, drops=None, *, contributions=None, clients=5, **kwargs):
    """One exchange, what the server announces, and what checks it: (outcome, announced, check)."""
    session = net.session(range(clients), tensors=TENSORS, verify=True, **kwargs)
    contributions = net.contributions(session) if contributions is None else contributions
    out = net.drive(session, contributions, drops)
    announced = PROTOCOL.announce(out.aggregate)

    def check(client=out.aggregate.survivors[0], moduli=verification.FULL, **fields):
        told = {**announced, **{name.replace("__", "/"): value for name, value in fields.items()}}
        check_sum(out.clients[client].sum_key, client, session.plan, told, moduli)

    return out, announced, check


def altered(value, by, place=0):
    changed = value.copy().reshape(-1)
    entry = int(changed[place])
    changed[place] = entry + by if -(2**63) <= entry + by < 2**63 else entry - by
    return changed.reshape(value.shape)


@pytest.mark.parametrize("drops", [{}, {"keys": [1]}, {"shares": [1]}, {"upload": [1]}, {"unmask": [1]}])
def test_the_true_sum_is_accepted_by_every_client_it_counts(net, drops) -> None:
    assert isinstance(PROTOCOL, SupportsVerification)
    out, announced, check = exchange(net, drops)
    for client in out.aggregate.survivors:
        check(client)
    assert set(announced) == {"sum/a", "sum/b", "sum/c", "sum/d", "sum/empty", "survivors", "check"}
    keys = {PROTOCOL.client_keeps(out.clients[client]) for client in out.aggregate.survivors}
    assert len(keys) == 1
    assert PROTOCOL.client_keeps(PROTOCOL.client_open(net.session(range(5), verify=True), 0)) == b""


def test_on_a_sparse_graph_the_key_reaches_everybody(net) -> None:
    session = net.session(range(40), graph="sparse", adversarial=0.1, dropouts=0.1, verify=True)
    out = net.drive(session, net.contributions(session), {"shares": [3], "upload": [7, 9]})
    announced = PROTOCOL.announce(out.aggregate)
    assert len(key_dealers(out.server.digest, out.server.advertised_clients)) == verification.KEY_DEALERS < 40
    assert len(announced["survivors"]) == 37
    for client in out.aggregate.survivors:
        PROTOCOL.client_check(out.clients[client].sum_key, client, session.plan, announced)


@pytest.mark.parametrize(
    ("by", "name"),
    each_value([1, -1, 2**20, 2**31, 2**32, 3 * 2**32, 2**61 - 1, -(2**61 - 1), 4 * (2**61 - 1)], ["a", "b", "c", "d"]),
)
def test_an_altered_entry_is_refused(net, by, name) -> None:
    """Multiples of each ring among them, and of p; the same values unaltered pass."""
    _, announced, check = exchange(net)
    check()
    changed = altered(announced[f"sum/{name}"], by)
    with pytest.raises(SumRefused, match="not that of the contributions"):
        check(**{f"sum__{name}": changed})
    prime_alone = TagModuli(ring_bits=0)
    if by % PRIME:
        with pytest.raises(SumRefused):
            check(moduli=prime_alone, **{f"sum__{name}": changed})
    else:  # power: what the check modulo 2^64 is for
        check(moduli=prime_alone, **{f"sum__{name}": changed})


def test_a_sum_that_wrapped_in_its_ring_is_refused(net) -> None:
    """Clients beyond the plan, so that the server's lifted sum is off by 2^32 or 2^64: exact residues, wrong integers.

    Positive control: without verification the exchange ends with that wrong sum and nobody objects.
    """
    for name, ring in (("b", 32), ("c", 64)):
        session = net.session(range(5), tensors=TENSORS)
        contributions = net.contributions(session)
        for client in (0, 1, 2):
            contributions[client][name] = np.full_like(contributions[client][name], 2 ** (ring - 2))
        wrong = net.drive(session, contributions).aggregate.total[name]
        exact = sum(contributions[client][name].astype(object) for client in range(5))
        assert set(exact - wrong) == {2**ring}
        _, _, check = exchange(net, contributions=contributions)
        with pytest.raises(SumRefused):
            check()


def test_other_members_tags_fields_and_exchanges_are_refused(net) -> None:
    out, announced, check = exchange(net, {"upload": [4]})
    other, *_ = exchange(net, {"upload": [4]}, round=1)
    check(1)
    tag = announced["check"]
    for changed in (tag + np.array([1, 0], np.uint64), tag + np.array([0, 1], np.uint64), tag[::-1].copy()):
        with pytest.raises(SumRefused):
            check(1, check=changed)
    with pytest.raises(SumRefused):  # the sum of an exchange before, which its clients accept
        check(1, **{name.replace("/", "__"): value for name, value in PROTOCOL.announce(other.aggregate).items()})
    for members in ([0, 1, 2, 3, 4], [0, 1, 2], [0, 2, 3, 4], [1, 0, 2, 3], [0, 0, 1, 2, 3], [1], []):
        with pytest.raises(SumRefused):
            check(1, survivors=np.asarray(members, np.int64))
    key, plan = out.clients[1].sum_key, net.session(range(5), tensors=TENSORS, verify=True).plan
    bad = {
        "sum/a": announced["sum/a"].astype(np.float64),
        "sum/b": announced["sum/b"][:-1],
        "survivors": announced["survivors"].astype(np.int32),
        "check": announced["check"].astype(np.int64),
        "more": np.zeros(1),
    }
    for name, value in bad.items():
        with pytest.raises(MalformedError):
            check_sum(key, 1, plan, {**announced, name: value})
        if name in announced:
            with pytest.raises(MalformedError):
                check_sum(key, 1, plan, {k: v for k, v in announced.items() if k != name})
    with pytest.raises(MalformedError):
        check_sum(key, 1, plan, {})


def test_the_server_and_one_client_together_announce_what_they_like(net) -> None:
    """Not promised: a party that knows the key can make tags."""
    out, announced, check = exchange(net)
    key, plan = out.clients[3].sum_key, out.server.session.plan
    wrong = {t.name: altered(announced[f"sum/{t.name}"], 7) if t.size else announced["sum/empty"] for t in plan.tensors}
    tag = verification.FULL.product(key, wrong, plan)
    for client in range(5):
        tag = verification.FULL.shift(tag, verification.FULL.pad(key, client))
    check(**{f"sum__{name}": value for name, value in wrong.items()}, check=verification.to_wire(tag))


def test_false_acceptance_has_the_rate_it_should() -> None:
    """Over p = 31 a forgery passes with probability 2 / 32 where its tag keeps still (0 has two words), else 1 / 32;
    modulo 2^6, a change that p divides passes with probability 1 / 64, or 8 / 64 where it is a multiple of 8.

    In 4000 keys each rate is found within 4 standard deviations, and half of it and twice it are rejected by as many.
    """
    keys, rng = 4_000, np.random.default_rng(0)
    by_p, small = TagModuli(5, 0), TagModuli(5, 6)
    plan = without_indicator(Session("ab" * 16, 0, (0, 1, 2), _plan((("w", (3,), 32),))).plan)
    change, multiple, eightfold = ({"w": np.array([0, by, 0])} for by in (1, 31, 8 * 31))
    kept = moved = odd = even = 0
    for _ in range(keys):
        key = rng.bytes(32)
        shifted = by_p.product(key, change, plan)
        kept += shifted == (0, 0)
        moved += shifted == (9, 0)
        odd += small.product(key, multiple, plan) == (0, 0)
        even += small.product(key, eightfold, plan) == (0, 0)
    for found, rate in ((kept, 2 / 32), (moved, 1 / 32), (odd, 1 / 64), (even, 8 / 64)):
        assert abs(found - keys * rate) < 4 * math.sqrt(keys * rate)
        for wrong in (keys * rate / 2, keys * rate * 2):
            assert abs(found - wrong) > 4 * math.sqrt(wrong)


def _plan(tensors):
    layout = Layout(tuple(TensorSpec(name, shape, 8.0, ring) for name, shape, ring in tensors))
    return chain(secure_aggregation(verify=True)).plan(layout, 3)


def test_masked_tags_are_uniform_and_masks_cancel() -> None:
    rng = np.random.default_rng(1)
    secrets = [rng.bytes(32) for _ in range(20_000)]
    masked = [verification.mask_tag((5, 6), [SignedMask(secret, 1)]) for secret in secrets]
    for bits, column in zip((61, 64), zip(*masked, strict=True), strict=True):
        words = np.array(column, np.uint64)
        shifts = np.arange(bits, dtype=np.uint64)
        leaning = ((words[:, None] >> shifts) & np.uint64(1)).mean(axis=0)
        assert np.abs(leaning - 0.5).max() * 2 * math.sqrt(len(words)) < 6  # 64 bits: below 1e-7
        assert len(set(column)) == len(column)
    masks = [SignedMask(secrets[0], 1), SignedMask(secrets[1], -1)]
    assert verification.mask_tag(verification.mask_tag((5, 6), masks), masks, remove=True) == (5, 6)
    ends = [SignedMask(secrets[2], 1), SignedMask(secrets[2], -1)]
    assert verification.mask_tag((5, 6), ends) == (5, 6)


def test_no_message_and_no_server_state_holds_the_key_or_a_bare_tag(net) -> None:
    out, _, _ = exchange(net)
    key, plan = out.clients[2].sum_key, out.server.session.plan
    wire = b"".join(value.tobytes() for message in out.sent for value in message.body.values())
    assert key not in wire
    values = net.contributions(net.session(range(5), tensors=TENSORS))[2]
    uploaded = next(m for m in out.sent if m.stage == "upload" and m.sender == 2).body["check"].tolist()
    assert tuple(uploaded) not in {
        verification.FULL.tag(key, 2, values, plan), verification.FULL.product(key, values, plan),
    }  # fmt: skip


# --- the key ----------------------------------------------------------------------------------------------------------


def pieces_of(message, sender=None):
    mine = message.stage == "shares" and message.sender >= 0 and sender in (None, message.sender)
    return mine and "pieces" in message.body


def with_body(message, **fields):
    return replace(message, body={**message.body, **fields})


def test_keys_are_fresh_and_depend_on_every_dealer(net) -> None:
    keys = {exchange(net, round=round)[0].clients[0].sum_key for round in range(3)}
    assert len(keys) == 3
    assert b"" not in keys


def test_a_piece_that_is_altered_is_refused_by_the_tag_of_its_message(net) -> None:
    session = net.session(range(5), verify=True)

    def tamper(message):
        return with_body(message, pieces=message.body["pieces"] + np.uint8(1)) if pieces_of(message, 2) else message

    out = net.drive(session, net.contributions(session), tamper=tamper)
    assert 2 not in out.aggregate.survivors
    assert [type(refusal) for _, refusal in out.refusals] == [AuthenticationError]


@pytest.mark.parametrize("how", ["sealed otherwise", "committed otherwise"])
def test_a_dealer_that_tells_clients_different_pieces_is_named(net, how, monkeypatch) -> None:
    session, real = net.session(range(5), verify=True), verification.SumKeyPieces.sealed

    def sealed(self):
        fields = real(self)
        if self._client == 2 and how == "sealed otherwise":
            other = verification.SumKeyPieces.__new__(verification.SumKeyPieces)
            vars(other).update(vars(self), _piece=bytes(32))
            monkeypatch.setattr(verification, "_commitment", lambda *_: fields["piece_commitment"].tobytes())
            fields["pieces"] = fields["pieces"].copy()
            fields["pieces"][3] = real(other)["pieces"][3]
            monkeypatch.undo()
        elif self._client == 2:
            fields["piece_commitment"] = from_bytes(bytes(32))
        return fields

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verification.SumKeyPieces, "sealed", sealed)
        try:
            out = net.drive(session, net.contributions(session))
        except TooFewSurvivors:
            assert how == "committed otherwise"  # everybody refuses
            return
    assert [(client, refusal.sender) for client, refusal in out.refusals] == [(3, 2)]


def test_without_a_dealer_the_round_is_void(net, monkeypatch) -> None:
    monkeypatch.setattr(verification, "KEY_DEALERS", 1)
    session = net.session(range(5), verify=True)
    dealt = []

    def lose(message):
        if pieces_of(message):
            dealt.append(message.sender)
            return None
        return message

    with pytest.raises(TooFewSurvivors, match="deal the sum's key"):
        net.drive(session, net.contributions(session), tamper=lose)
    assert len(dealt) == 1
    out, _, check = exchange(net)
    check()
    assert out.aggregate.survivors == (0, 1, 2, 3, 4)


# --- the plan ---------------------------------------------------------------------------------------------------------


def test_the_plan_says_what_it_promises_and_counts_the_bytes(net) -> None:
    session = net.session(range(5), tensors=TENSORS, verify=True)
    out = net.drive(session, net.contributions(session))
    sent = [m.body for m in out.sent if m.sender == 2]
    assert sum(value.nbytes for body in sent for value in body.values()) == session.plan.upload_bytes
    words = " ".join(session.plan.assumptions)
    assert "2^-60" in words
    assert "nothing is promised against the server and one client" in words
    assert str(PROTOCOL) == "secure_aggregation(verify)"
    assert not net.session(range(5), tensors=TENSORS).plan.verified


def test_it_is_refused_where_the_server_adds_the_noise() -> None:
    layout = Layout((TensorSpec("w", (4,), 1.0),))
    with pytest.raises(PlanError, match="before the server's noise"):
        chain(clip(1.0), gaussian(1.0), secure_aggregation(verify=True)).plan(layout, 5)
    assert chain(clip(1.0), skellam(1.0), secure_aggregation(verify=True)).plan(layout, 5).verified
