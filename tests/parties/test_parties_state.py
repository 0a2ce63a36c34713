"""Sums whose parties stop, restart, give up a round or hold odd values."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from securefed import SERVER, Message, Seal, chain
from securefed._messages import REFUSAL
from securefed._runtime.refusals import refusal_body
from securefed._tensors import encode
from securefed.defenses import Plain, secure_aggregation
from securefed.defenses._fixed_point import Quantise
from securefed.defenses._homomorphic import InsecurePaillier
from securefed.errors import (
    ConfigError,
    DataError,
    DivergenceError,
    MessageRefused,
    PrecisionWarning,
    RoundVoid,
    StorageError,
)
from securefed.parties import SumClient, SumHelper, SumServer, SumTerms
from securefed.parties._envelope import wrap
from tests.combinations import each_value
from tests.parties.helpers import play
from tests.parties.sums import (
    BASE,
    CLIENTS,
    DEFENSES,
    UPDATES,
    check,
    given,
    parties,
    private_terms,
    terms_of,
)


@pytest.mark.parametrize("name", ["plain", "masks", "masks, active", "paillier"])
def test_both_sides_freeze_between_any_two_messages(name: str) -> None:
    terms = terms_of(DEFENSES[name])
    terms_again = terms if name == "paillier" else SumTerms.from_bytes(terms.to_bytes())
    assert terms_again.digest == terms.digest
    members, server = parties(terms), SumServer(terms)
    for _ in range(2):
        server.open(BASE)
        while server.result is None:
            for party, request in server.outgoing.items():
                reply = members[party].receive(request, **(given()[party] if party >= 0 else {}))
                if party >= 0:
                    members[party] = SumClient.thaw(terms, party, members[party].freeze())
                else:
                    members[party] = SumHelper(terms, members[party].freeze())
                asked = len(server.outgoing)
                server.receive({party: reply}, more=True)
                if server.result is None:
                    server = SumServer.thaw(terms, server.freeze())
                    assert len(server.outgoing) in (asked - 1, CLIENTS, CLIENTS + 1, 1)
        check(server.result, range(CLIENTS))


@pytest.mark.parametrize("name", ["masks", "masks, active"])
def test_a_state_whose_replies_name_no_version_is_read(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers wrote such states before messages named the version."""
    terms = terms_of(DEFENSES[name])
    members, server = parties(terms), SumServer(terms)
    shorter = 0
    for _ in range(2):  # the second round goes on from keys that the first prepared
        server.open(BASE)
        while server.result is None:
            for party, request in server.outgoing.items():
                reply = members[party].receive(request, **given()[party])
                now = SumServer.thaw(terms, server.freeze())
                now.receive({party: reply}, more=True)
                with monkeypatch.context() as patch:
                    patch.setattr(Message, "encode", without_version)
                    server.receive({party: reply}, more=True)
                    old = server.freeze()
                shorter += len(old) < len(now.freeze())
                server = SumServer.thaw(terms, old)
        check(server.result, range(CLIENTS))
    assert shorter > CLIENTS  # the control: replies of at least two stages lay in these states without a version


def without_version(message: Message) -> bytes:
    """The bytes of a message as they were before it named the version."""
    return encode(message.body, {n: getattr(message, n) for n in ("run", "round", "stage", "sender", "receiver")})


def stages_of(server: SumServer, members: dict[int, Any]) -> int:
    """Play a round, with both sides frozen and thawed before and after; count its stages."""
    for party, member in members.items():
        members[party] = SumClient.thaw(member.terms, party, member.freeze())
    server.open(BASE)
    stages = 0
    while server.result is None:
        server.receive({i: members[i].receive(data, **given()[i]) for i, data in server.outgoing.items()})
        stages += 1
    check(server.result, range(CLIENTS))
    return stages


@pytest.mark.parametrize(("name", "later"), [("masks", 2), ("masks, active", 3)])
def test_prepared_keys_outlive_both_processes_and_can_be_discarded(name: str, later: int) -> None:
    terms = terms_of(DEFENSES[name])
    members, server = parties(terms), SumServer(terms)
    counts = []
    for discard in (False, False, True):
        counts.append(stages_of(server, members))
        server = SumServer.thaw(terms, server.freeze())
        if discard:  # the control
            server.discard_prepared()
    counts.append(stages_of(server, members))
    assert counts == [later + 2, later, later, later + 2]


@pytest.mark.parametrize("name", ["masks", "masks, active"])
def test_prepared_keys_serve_once_where_a_server_goes_on_from_an_older_file(name: str) -> None:
    """Its clients erased their part with their upload: they refuse, and the attempt with fresh keys is another."""
    terms = terms_of(DEFENSES[name])
    members, server = parties(terms), SumServer(terms)
    stages_of(server, members)
    older = server.freeze()
    first, second = SumServer.thaw(terms, older), SumServer.thaw(terms, older)
    assert first.open(BASE) is not None and first.wants_updates
    uploads = {i: members[i].receive(data, **given()[i]) for i, data in first.outgoing.items()}
    first.receive(uploads)
    assert not first.refusals
    second.open(BASE)
    assert second.wants_updates
    answers = {i: members[i].receive(data, **given()[i]) for i, data in second.outgoing.items()}
    for party, data in answers.items():
        assert b"opened before: a replay" in data
        assert len(data) < len(uploads[party])


def test_prepared_keys_lie_sealed_in_the_servers_file(tmp_path) -> None:
    terms, seal = terms_of(secure_aggregation()), Seal.from_file(tmp_path / "key")
    for kept in (None, seal):
        server = SumServer(terms, file=tmp_path / f"state-{kept is None}", seal=kept)
        stages_of(server, parties(terms))
        prepared = server._sums.prepared
        assert len(prepared) > 1000
        found = prepared[-500:] in (tmp_path / f"state-{kept is None}").read_bytes()
        assert found == (kept is None)


def test_a_server_that_is_killed_at_a_random_moment_gives_the_same_sum_or_a_named_void(tmp_path) -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        terms = terms_of(secure_aggregation())
        file = tmp_path / f"server-{seed}"
        members, server = parties(terms), SumServer(terms, file=file)
        server.open(BASE)
        killed, dies = False, int(rng.integers(1, 4 * CLIENTS))
        messages, result = 0, None
        try:
            while result is None:
                for party, request in list(server.outgoing.items()):
                    messages += 1
                    if messages == dies and not killed:
                        killed = True
                        server = SumServer(terms, file=file)  # nothing of the old process is left
                        break
                    result = server.receive({party: members[party].receive(request, **given()[party])}, more=True)
                else:
                    result = result or (server.receive({}) if server.outgoing else server.result)
        except RoundVoid:
            continue
        assert killed
        assert len(result.survivors) >= 3
        check(result, result.survivors)


def test_state_files_are_sealed_and_belong_to_one_client(tmp_path) -> None:
    terms = terms_of(secure_aggregation())
    seal = Seal.from_file(tmp_path / "key")
    client = SumClient(terms, 0, file=tmp_path / "state", seal=seal)
    client.receive(SumServer(terms).open(BASE)[0])
    assert SumClient(terms, 0, file=tmp_path / "state", seal=seal).run == client.run
    with pytest.raises(StorageError):
        SumClient(terms, 0, file=tmp_path / "state")
    with pytest.raises(StorageError):
        SumClient(terms, 1, file=tmp_path / "state", seal=seal)


def test_an_update_that_is_not_finite_never_reaches_the_sum() -> None:
    terms = terms_of(secure_aggregation(), max_void=2)
    bad = given()
    bad[4]["update"] = UPDATES[4] | {"w": UPDATES[4]["w"] * np.nan}
    with pytest.raises(RoundVoid):
        play(SumServer(terms), parties(terms), bad, base=BASE)
    with pytest.raises(MessageRefused):
        SumHelper(terms_of(InsecurePaillier(bits=512))).receive(b"x" * 60)


@pytest.mark.parametrize("other", [{"rounds": 7}, {"largest_weight": 2**19}, {"max_void": 3}])
def test_a_client_s_file_belongs_to_its_terms(other: dict[str, Any], tmp_path) -> None:
    mine = {"rounds": 9, "largest_weight": 2**20}
    client = SumClient(terms_of(secure_aggregation(), **mine), 0, file=tmp_path / "state")
    client.receive(SumServer(client.terms).open(BASE)[0])
    SumClient(terms_of(secure_aggregation(), **mine), 0, file=tmp_path / "state")
    with pytest.raises(StorageError, match=r"of terms .* give the terms"):
        SumClient(terms_of(secure_aggregation(), **mine | other), 0, file=tmp_path / "state")


@pytest.mark.parametrize(("base", "how"), each_value([True, False], ["void", "abandoned", "void, server restarted"]))
def test_a_round_that_was_given_up_does_not_end_the_run(how: str, base: bool, tmp_path) -> None:
    """Clients answer no attempt twice and `max_void` attempts at most, so the next round has to be another one."""
    terms = terms_of(secure_aggregation(), max_void=2, base=base)
    model = BASE if base else None
    members, server = parties(terms), SumServer(terms, file=tmp_path / "server")
    mine, opened = given(base=model), {"base": model} if base else {}
    for _ in range(2):
        if how == "abandoned":
            server.open(**opened)
            server.receive({i: members[i].receive(request) for i, request in server.outgoing.items()})
            server.abandon()
            continue
        with pytest.raises(RoundVoid):
            play(server, members, mine, lost=lambda stage, party: party > 0, **opened)
        if "restarted" in how:
            server = SumServer(terms, file=tmp_path / "server")
    result = play(server, members, mine, **opened)
    check(result, range(CLIENTS))
    assert (result.round, server.round) == (0, 1)


def test_rounds_that_were_given_up_count_among_the_rounds_of_the_terms() -> None:
    terms = terms_of(secure_aggregation(), rounds=2)
    members, server = parties(terms), SumServer(terms)
    server.open(BASE)
    server.abandon()
    check(play(server, members, given(), base=BASE), range(CLIENTS))
    with pytest.raises(ConfigError, match="complete or given up"):
        server.open(BASE)


@pytest.mark.parametrize("name", ["plain", "masks", "ckks"])
def test_the_error_bounds_the_mean_and_total_whatever_the_weights(name: str) -> None:
    for weight in (1e-3, 1.0, 2.0**20):
        terms = terms_of(DEFENSES[name], bounds=64.0, metrics={"loss": 8.0})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PrecisionWarning)  # of weights far below the largest, under CKKS
            result = play(SumServer(terms), parties(terms), given(weight=weight), base=BASE)
        for key in ("w", "b"):
            expected = np.mean([update[key] for update in UPDATES.values()], axis=0)
            assert np.abs(result.mean[key] - expected).max() <= result.error[key] + 1e-15
            total = np.abs(result.total[key] - expected * weight * CLIENTS).max()
            assert total <= result.error[key] * result.weight + 1e-9
        assert (result.error["w"] == 0) == (name == "plain")


@pytest.mark.parametrize("name", ["plain", "masks"])
def test_weights_that_sum_to_zero_have_no_mean_and_the_run_goes_on(name: str) -> None:
    terms = terms_of(DEFENSES[name])
    members, server = parties(terms), SumServer(terms)
    with pytest.raises(DataError, match="there is no mean"):
        play(server, members, given(weight=0.0), base=BASE)
    check(play(server, members, given(), base=BASE), range(CLIENTS))


@pytest.mark.parametrize("name", ["plain", "masks", "noise"])
def test_a_server_that_dies_after_its_last_write_still_has_the_result(name: str, tmp_path) -> None:
    terms = private_terms() if name == "noise" else terms_of(DEFENSES[name], bounds={"b": 1e-2})
    mine = {i: {"update": UPDATES[i], "base": BASE} for i in range(CLIENTS)} if name == "noise" else given()
    found = play(SumServer(terms, file=tmp_path / "server"), parties(terms), mine, base=BASE)
    again = SumServer(terms, file=tmp_path / "server").result
    assert again is not None
    for field in ("weight", "metrics", "error", "noise", "survivors", "round", "plan", "void", "refusals"):
        assert getattr(again, field) == getattr(found, field), field
    for key in found.mean:
        np.testing.assert_array_equal(again.mean[key], found.mean[key])
        np.testing.assert_array_equal(again.total[key], found.total[key])


@pytest.mark.parametrize("defense", [None, secure_aggregation()])
def test_any_real_type_is_summed_and_a_mean_that_its_type_does_not_hold_is_named(defense: Any) -> None:
    example: dict[str, Any] = {
        "wide": np.zeros(2, np.longdouble), "big": np.zeros((2, 3), ">f4"), "half": np.zeros(3, np.float16),
        "empty": np.zeros((0, 2)), "scalar": np.float32(0), "flags": np.zeros(2, bool), "short": np.zeros(2, np.int8),
    }  # fmt: skip
    base = {name: np.ones_like(value) for name, value in example.items()}
    terms = SumTerms.like(example, clients=3, defense=defense, differences=True, largest_weight=1)
    rng = np.random.default_rng(0)
    updates = [{name: np.asarray(2 * rng.random(np.shape(v))).astype(v.dtype).T.copy().T for name, v in base.items()}
               for _ in range(3)]  # fmt: skip
    server, members = SumServer(terms), parties(terms)
    weight = [torch.tensor(1.0), np.float32(1), 1]
    mine = {i: {"update": u, "weight": weight[i], "base": base} for i, u in enumerate(updates)}
    result = play(server, members, mine, base=base)
    assert SumServer.thaw(terms, server.freeze()).result is not None
    for name, value in result.like(example).items():
        expected = np.mean([np.asarray(update[name], np.float64) for update in updates], axis=0)
        assert np.asarray(value).dtype == (np.float64 if name == "flags" else np.asarray(example[name]).dtype)
        assert isinstance(result.mean[name], np.ndarray)
        if name not in ("short", "half"):
            np.testing.assert_allclose(np.asarray(value, np.float64), expected, atol=1e-6)
    for narrow in (np.zeros(2, np.int8), torch.zeros(2, dtype=torch.int8)):
        with pytest.raises(DataError, match="int8"):
            replace(result, mean={"short": np.array([1.0, 128.0])}).like({"short": narrow})
        found = replace(result, mean={"short": np.array([-128.0, 127.0])}).like({"short": narrow})
        assert found["short"].tolist() == [-128, 127]
    with pytest.raises(DataError, match="uint64"):
        replace(result, mean={"n": np.array([2.0**64])}).like({"n": np.zeros(1, np.uint64)})
    for half in (np.zeros(2, np.float16), torch.zeros(2, dtype=torch.float16)):  # its largest number is 65504
        with pytest.raises(DataError, match="float16"):
            replace(result, mean={"half": np.array([1.0, 1e6])}).like({"half": half})
        found = replace(result, mean={"half": np.array([-65504.0, 65504.0])}).like({"half": half})
        assert found["half"].tolist() == [-65504, 65504]


def test_a_server_that_dies_while_it_opens_a_sum_opens_the_same_sum_again(tmp_path) -> None:
    """Not one of the same updates over fewer clients, which subtracts: without identities no client would refuse it."""
    terms = terms_of(secure_aggregation(), base=False)
    members, server, mine = parties(terms), SumServer(terms, file=tmp_path / "server"), given(base=None)
    server.open()
    for _ in range(3):
        server.receive({i: members[i].receive(request, **mine[i]) for i, request in server.outgoing.items()})
    replies = {i: members[i].receive(request) for i, request in server.outgoing.items()}
    server._close_stage = lambda: None  # type: ignore[method-assign] - killed after the sum, before its write
    server.receive(replies)
    server = SumServer(terms, file=tmp_path / "server")
    assert not server.outgoing
    assert server.result is not None
    check(server.result, range(CLIENTS))
    assert server.round == 1


CLEAR = chain(Quantise(), Plain())
"""A defence that hides nothing, so that a refusal ends the attempt: the sum is never made without that client."""


def one_by_one(server: SumServer, members: dict[int, Any], updates: Any, *, frozen: bool) -> SumServer:
    """Play a round in which each reply is taken alone, and the server becomes another object after each."""
    server.open(BASE)
    while server.result is None:
        for party, request in server.outgoing.items():
            server.receive({party: members[party].receive(request, **updates[party])}, more=True)
            if frozen and server.result is None:
                server = SumServer.thaw(server.terms, server.freeze())
    return server


@pytest.mark.parametrize("frozen", [False, True], ids=["one process", "frozen between replies"])
def test_a_range_that_a_client_refused_is_doubled_though_the_server_was_frozen(frozen: bool) -> None:
    terms = terms_of(CLEAR)
    # weight 1 times this lies beyond 2^20 (largest weight) times 2^20 (bound), and two doublings reach it
    updates = {**UPDATES, 1: UPDATES[1] | {"w": np.full((3, 2), 3.0 * 2**40)}}
    server = one_by_one(SumServer(terms), parties(terms), given(updates), frozen=frozen)
    assert server.result.survivors == tuple(range(CLIENTS))
    assert len(server.result.void) == 2
    assert all("client 1 has values beyond the planned range; bounds doubled" in why for why in server.result.void)


@pytest.mark.parametrize("frozen", [False, True], ids=["one process", "frozen between replies"])
def test_a_client_that_diverged_ends_the_round_though_the_server_was_frozen(frozen: bool) -> None:
    terms = terms_of(CLEAR)
    server = SumServer(terms)
    server.open(BASE)
    refused = Message(server.run, 0, REFUSAL, 1, SERVER, refusal_body(DivergenceError("its steps diverged")))
    server.receive({1: wrap(terms.digest, refused.encode())}, more=True)
    if frozen:
        server = SumServer.thaw(terms, server.freeze())
    members = parties(terms)
    replies = {i: members[i].receive(request, **given()[i]) for i, request in server.outgoing.items()}
    assert sorted(replies) == [0, 2, 3, 4]
    with pytest.raises(DivergenceError, match="client 1: its local steps diverged"):
        server.receive(replies)
    assert server.result is None and not server.outgoing


def test_a_result_whose_error_exceeds_it_is_said_once_a_run_and_a_lost_update_in_its_client_s_log(
    tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The warning is given once also by a server that was started anew, and after the result is kept."""
    example = {"w": np.zeros(2), "b": np.zeros(2)}
    terms = SumTerms.like(example, clients=3, defense=secure_aggregation(), base=False, bounds={"w": 1e19, "b": 1.0})
    members = parties(terms)
    server = SumServer(terms, file=tmp_path / "server")

    def mine(*entries: float) -> Any:
        return {i: {"update": {"w": np.full(2, entry), "b": np.ones(2)}} for i, entry in enumerate(entries)}

    play(server, members, mine(0.0, 0.0, 0.0))  # an exact zero is none
    with warnings.catch_warnings(), pytest.raises(PrecisionWarning, match=r"mean or sum itself: w .at most 1.3, error"):
        warnings.simplefilter("error")
        play(server, members, mine(4.0, 0.0, 0.0))
    assert server.result is not None and server.result.mean["w"] == pytest.approx(4 / 3)
    play(server, members, mine(4.0, 0.0, 0.0))  # warnings are errors here
    one = SumServer(terms, file=tmp_path / "server")
    play(one, members, mine(4.0, 0.0, 0.0))
    assert not caplog.records
    for _ in range(2):
        assert not play(one, members, mine(1.0, 0.0, 0.0)).mean["w"].any()  # its server cannot tell
    assert [record.message for record in caplog.records] == [
        "client 0: all entries of update.w are below half a step of fixed point, and are sent as zeros; make terms "
        "with bounds near the entries"
    ]
