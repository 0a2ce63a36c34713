from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import dp_accounting
import numpy as np
import pytest
import torch
from dp_accounting import pld

from securefed import Seal, chain
from securefed._messages import SERVER, Message
from securefed.defenses import (
    Identities,
    adaptive_clip,
    ckks,
    clip,
    gaussian,
    new_identity,
    public_identity,
    secure_aggregation,
    skellam,
)
from securefed.defenses._homomorphic import InsecurePaillier
from securefed.errors import (
    BudgetSpent,
    ConfigError,
    DataError,
    MalformedError,
    MessageRefused,
    PlanError,
    RoundVoid,
    StorageError,
    TermsDiffer,
    VersionRefused,
)
from securefed.parties import SumClient, SumHelper, SumServer, SumTerms, _envelope
from securefed.parties._envelope import unwrap, wrap
from securefed.parties._external import base_array
from securefed.parties._update import model_digest
from tests.parties.helpers import play

CLIENTS = 5
RNG = np.random.default_rng(0)
BASE = {"w": RNG.normal(size=(3, 2)), "b": RNG.normal(size=2), "seen": np.array(3)}
UPDATES = {i: {"w": RNG.normal(size=(3, 2)), "b": RNG.normal(size=2), "seen": np.array(10 + i)} for i in range(CLIENTS)}
WEIGHTS = dict(enumerate((600, 1, 20, 77, 300)))
IDENTITIES = Identities.generate(CLIENTS)
DEFENSES = {
    "plain": None,
    "masks": secure_aggregation(),
    "masks, verified": secure_aggregation(verify=True),
    "masks, active": secure_aggregation(identities=IDENTITIES),
    "paillier": InsecurePaillier(bits=512),
    "ckks": ckks(),
}


def parties(terms: SumTerms) -> dict[int, Any]:
    members: dict[int, Any] = {i: SumClient(terms, i) for i in range(terms.clients)}
    for party in terms.defense.aggregation.beside:
        members[party] = SumHelper(terms)
    return members


def given(updates: Any = UPDATES, **more: Any) -> dict[int, dict[str, Any]]:
    return {i: {"update": u, "weight": WEIGHTS[i], "metrics": {"loss": 1.5 * i}, "base": BASE} | more
            for i, u in updates.items()}  # fmt: skip


def mean_of(clients: Any) -> dict[str, np.ndarray]:
    weights = [WEIGHTS[i] for i in clients]
    return {name: np.average([UPDATES[i][name] for i in clients], axis=0, weights=weights) for name in BASE}


def check(result: Any, clients: Any, atol: float = 1e-7) -> None:
    expected = mean_of(clients)
    assert result.survivors == tuple(clients)
    for name in ("w", "b"):
        np.testing.assert_allclose(result.mean[name], expected[name], atol=atol)
    assert result.mean["seen"] == np.rint(expected["seen"])
    assert result.weight == pytest.approx(sum(WEIGHTS[i] for i in clients), abs=atol * 2**20)
    assert result.metrics["loss"] == pytest.approx(1.5 * sum(clients), abs=atol * 2**20)


def terms_of(defense: Any = None, **more: Any) -> SumTerms:
    return SumTerms.like(BASE, clients=CLIENTS, defense=defense, metrics=("loss",), **more)


@pytest.mark.parametrize("name", DEFENSES)
def test_three_rounds_give_the_weighted_means_and_sums(name: str) -> None:
    bounds = {"bounds": 32.0, "largest_weight": 1024} if name == "ckks" else {}
    terms = terms_of(DEFENSES[name], **bounds)
    members, server = parties(terms), SumServer(terms)
    for number in range(3):
        result = play(server, members, given(), base=BASE)
        check(result, range(CLIENTS), 1e-2 if name == "ckks" else 1e-7)
        assert result.round == number


def test_later_rounds_take_two_exchanges_instead_of_four() -> None:
    terms = terms_of(secure_aggregation())
    members, server = parties(terms), SumServer(terms)
    stages = []
    for _ in range(2):
        server.open(BASE)
        count = 0
        while server.result is None:
            server.receive({i: members[i].receive(r, **given()[i]) for i, r in server.outgoing.items()})
            count += 1
        stages.append(count)
    assert stages == [4, 2]


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
@pytest.mark.parametrize("stage", range(4))
def test_a_client_that_is_lost_at_any_stage_is_not_in_the_sum(name: str, stage: int) -> None:
    terms = terms_of(DEFENSES[name])
    members, server = parties(terms), SumServer(terms)
    result = play(server, members, given(), lost=lambda at, party: at >= stage and party == 1, base=BASE)
    uploaded = stage > 2
    check(result, [i for i in range(CLIENTS) if uploaded or i != 1])
    model = {name: value + 1 for name, value in BASE.items()}  # it is back in the next round
    check(play(server, members, given(base=model), base=model), range(CLIENTS))


@pytest.mark.parametrize("identities", [None, IDENTITIES])
def test_clients_come_and_go_between_rounds(identities: Any) -> None:
    """Without a model too, where each round is a sum of its own."""
    terms = terms_of(secure_aggregation(threshold=3, identities=identities), base=False)
    members, server = parties(terms), SumServer(terms)
    for cohort in ((0, 1, 2), (1, 2, 3, 4), (0, 1, 2, 3, 4)):
        check(play(server, members, given(base=None), cohort=cohort), cohort)


@pytest.mark.parametrize("name", ["plain", "masks"])
def test_a_client_that_was_given_another_model_refuses_the_round(name: str) -> None:
    terms = terms_of(DEFENSES[name])
    members, server, mine = parties(terms), SumServer(terms), given()
    mine[2]["base"] = BASE | {"w": BASE["w"] + 1e-12}
    result = play(server, members, mine, base=BASE)
    check(result, [0, 1, 3, 4])
    assert "it was given another model" in result.refusals[2]


def test_clients_that_were_bound_to_different_models_are_never_summed() -> None:
    """The server shows client 1 the digest of the model that it gave it, so that client 1 agrees to the round."""
    terms = terms_of(secure_aggregation())
    members, server, mine = parties(terms), SumServer(terms), given()
    lie = {name: value + 1 for name, value in BASE.items()}
    mine[1]["base"] = lie
    server.open(BASE)
    while server.result is None:
        requests, exchange = dict(server.outgoing), server._exchange
        assert exchange is not None
        if exchange.stage == "upload":
            honest = exchange.content
            exchange.content = replace(honest, broadcast={"base": base_array(model_digest(lie))})
            requests[1] = server.outgoing[1]
            exchange.content = honest
        server.receive({i: members[i].receive(request, **mine[i]) for i, request in requests.items()})
    check(server.result, [0, 2, 3, 4])
    assert 1 in server.result.refusals


@pytest.mark.parametrize("name", ["masks", "paillier"])
def test_a_client_beyond_its_bound_is_summed_after_the_bound_was_doubled(name: str) -> None:
    terms = terms_of(DEFENSES[name], bounds={"b": 1e-4})
    result = play(SumServer(terms), parties(terms), given(), base=BASE)
    check(result, range(CLIENTS))
    assert result.void
    assert "doubled" in result.void[0]


def test_a_function_computes_the_update_only_when_it_is_due_and_its_failure_sits_out() -> None:
    terms = terms_of(secure_aggregation(), max_void=2)
    members, server = parties(terms), SumServer(terms)
    calls: list[int] = []

    def update(i: int) -> Any:
        calls.append(i)
        if i == 3:
            raise RuntimeError("out of memory")
        return UPDATES[i]

    mine = {i: given()[i] | {"update": lambda i=i: update(i)} for i in range(CLIENTS)}
    with pytest.raises(RoundVoid):
        play(server, members, mine, base=BASE)
    assert sorted(calls) == sorted([*range(CLIENTS)] * 2)


def test_a_request_is_answered_once() -> None:
    terms = terms_of(secure_aggregation())
    members, server = parties(terms), SumServer(terms)
    server.open(BASE)
    while server.result is None:
        requests = dict(server.outgoing)
        replies = {i: members[i].receive(request, **given()[i]) for i, request in requests.items()}
        again = members[0].receive(requests[0], **given()[0])
        assert b"refusal" in again
        assert again != replies[0]
        server.receive(replies)


def test_messages_of_other_versions_terms_and_runs_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    terms = terms_of(secure_aggregation())
    client, server = SumClient(terms, 0), SumServer(terms)
    request = server.open(BASE)[0]
    with pytest.raises(MalformedError, match="no message of securefed"):
        client.receive(b"hello")
    with pytest.raises(TermsDiffer, match="give all parties the same SumTerms"):
        SumClient(terms_of(secure_aggregation(), rounds=3), 0).receive(request)
    monkeypatch.setattr(_envelope, "PROTOCOL_VERSION", 2)
    with pytest.raises(VersionRefused, match="speaks version 1"):
        client.receive(request)
    server.receive({0: request}, more=True)
    assert "speaks version 1" in server._exchange.refusals[0]  # type: ignore[union-attr]
    monkeypatch.undo()
    client.receive(request)  # positive control, and the client now belongs to this run
    assert b"refusal" in client.receive(SumServer(terms).open(BASE)[0])


def test_identities_are_given_by_the_site_and_rotate_between_runs() -> None:
    keys = {i: new_identity() for i in range(CLIENTS)}
    public = Identities({i: public_identity(key) for i, key in keys.items()})
    terms = terms_of(secure_aggregation(identities=public))
    members = {i: SumClient(terms, i, identity=key) for i, key in keys.items()}
    check(play(SumServer(SumTerms.from_bytes(terms.to_bytes())), members, given(), base=BASE), range(CLIENTS))
    with pytest.raises(ConfigError, match="give client 0 its private identity"):
        SumClient(terms, 0)
    with pytest.raises(ConfigError, match="not that of its public identity"):
        SumClient(terms, 0, identity=keys[1])
    with pytest.raises(ConfigError, match="no public identities"):
        SumClient(terms_of(secure_aggregation()), 0, identity=keys[0])
    keys[0] = new_identity()  # a new run with new terms
    rotated = terms_of(secure_aggregation(identities=Identities({i: public_identity(k) for i, k in keys.items()})))
    assert rotated.digest != terms.digest
    members = {i: SumClient(rotated, i, identity=key) for i, key in keys.items()}
    check(play(SumServer(rotated), members, given(), base=BASE), range(CLIENTS))


def test_a_torch_loop_with_batch_norm_adam_and_short_floats_keeps_its_types() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 3))
    model[2].weight = torch.nn.Parameter(model[2].weight.to(torch.bfloat16))  # type: ignore[assignment]
    model[2].bias = torch.nn.Parameter(model[2].bias.half())  # type: ignore[assignment]
    model[0].bias.requires_grad_(False)
    state = model.state_dict()
    state["tied"] = state["0.weight"]
    terms = SumTerms.like(state, clients=3, defense=secure_aggregation(), local=("*.running_*",))
    members, server = parties(terms), SumServer(terms)
    ups = {i: {n: v + i if v.dtype != torch.int64 else v + 2 * i for n, v in state.items()} for i in range(3)}
    result = play(server, members, {i: {"update": u, "weight": 10, "base": state} for i, u in ups.items()}, base=state)
    found = result.like(state)
    assert {n: v.dtype for n, v in found.items()} == {n: v.dtype for n, v in state.items()}
    torch.testing.assert_close(found["0.weight"], state["0.weight"] + 1)
    torch.testing.assert_close(found["2.weight"], state["2.weight"] + 1)
    assert int(found["1.num_batches_tracked"]) == 2
    assert found["1.running_mean"] is state["1.running_mean"]  # stays with its client
    found.pop("tied")
    model.load_state_dict(found)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"update": {"w": BASE["w"], "b": BASE["b"]}}, DataError, "lacks 'seen'"),
        ({"update": BASE | {"w": BASE["w"].T}}, DataError, r"has shape \(2, 3\)"),
        ({"update": BASE | {"more": BASE["w"]}}, DataError, "neither sum nor keep local"),
        ({"update": BASE | {"w": BASE["w"] * 1j}}, DataError, "complex"),
        ({"update": [BASE["w"]]}, DataError, "by name"),
        ({"update": None}, ConfigError, "give the update"),
        ({"base": None}, ConfigError, "bind each round to the model"),
        ({"metrics": {}}, ConfigError, "name the metrics"),
        ({"metrics": {"loss": "low"}}, DataError, "metric 'loss' must be a number"),
        ({"weight": "many"}, DataError, "weight must be a number"),
        ({"weight": torch.zeros(2)}, DataError, "weight must be a number"),
        ({"update": BASE | {"w": [[1.0, 2.0], [3.0]]}}, DataError, "no array of numbers"),
        ({"update": BASE | {"w": torch.zeros(3, 2, device="meta")}}, DataError, "NumPy cannot hold"),
    ],
)
def test_a_mistake_of_the_caller_is_named_and_nothing_is_used_up(change: Any, error: Any, words: str) -> None:
    terms = terms_of(secure_aggregation())
    members, server = parties(terms), SumServer(terms)
    server.open(BASE)
    for _ in range(2):
        server.receive({i: members[i].receive(request) for i, request in server.outgoing.items()})
    requests = dict(server.outgoing)
    assert members[0].wants_update(requests[0])
    with pytest.raises(error, match=words):
        members[0].receive(requests[0], **(given()[0] | change))
    server.receive({i: members[i].receive(request, **given()[i]) for i, request in requests.items()})
    server.receive({i: members[i].receive(request) for i, request in server.outgoing.items()})
    check(server.result, range(CLIENTS))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"largest_weight": 0}, "largest_weight"),
        ({"bounds": {"x": 1.0}}, "no summed tensors"),
        ({"local": ("*",)}, "at least one tensor"),
        ({"cohort": 9}, "cohort"),
        ({"base": False, "differences": True}, "differences"),
        ({"epsilon": 1.0}, "adds none"),
        ({"defense": chain(clip(1.0), skellam(1.0), secure_aggregation())}, "leave them out"),
    ],
)
def test_terms_that_do_not_fit_together_are_refused(settings: Any, words: str) -> None:
    settings = {"defense": secure_aggregation()} | settings
    with pytest.raises((ConfigError, DataError), match=words):
        terms_of(**settings).plan  # noqa: B018


def private_terms(**more: Any) -> SumTerms:
    defense = chain(clip(1.0), skellam(1.0), secure_aggregation())
    return SumTerms.like(BASE, clients=CLIENTS, defense=defense, local=("seen",), **more)


def test_under_noise_the_mean_difference_has_a_fixed_divisor_and_both_sides_count_epsilon() -> None:
    terms = private_terms(rounds=3)
    members, server = parties(terms), SumServer(terms)
    mine = {i: {"update": UPDATES[i], "base": BASE} for i in range(CLIENTS)}
    result = play(server, members, mine, base=BASE, lost=lambda stage, party: stage == 0 and party == 0)
    assert result.survivors == (1, 2, 3, 4)
    assert result.weight == CLIENTS
    assert np.abs(result.mean["w"] - BASE["w"]).max() < 3  # a mean of differences of norm 1 at most, and noise
    assert server.epsilon == pytest.approx(dict(terms.plan.epsilon)[1])
    twice = play(server, members, mine, base=BASE)
    assert twice.round == 1
    assert server.epsilon > dict(terms.plan.epsilon)[1]


def test_a_budget_stops_the_run_on_both_sides_and_survives_a_restart(tmp_path) -> None:
    once = dict(private_terms().plan.epsilon)[1]
    terms = private_terms(epsilon=1.8 * once)
    members, server = parties(terms), SumServer(terms, file=tmp_path / "server")
    mine = {i: {"update": UPDATES[i], "base": BASE} for i in range(CLIENTS)}
    rounds = 0
    while True:
        try:
            play(server, members, mine, base=BASE)
        except BudgetSpent:
            break
        rounds += 1
        members = {i: SumClient.thaw(terms, i, client.freeze()) for i, client in members.items()}
        server = SumServer(terms, file=tmp_path / "server")
    assert rounds >= 1
    assert server.epsilon <= 1.8 * once < terms.epsilon_after(rounds + 1)
    fresh = SumServer(replace(terms, epsilon=None), run=server.run)  # a server without the budget's scruples
    assert fresh.terms.digest != terms.digest  # and clients refuse its terms
    assert members[0].spent.epsilon == pytest.approx(terms.epsilon_after(rounds))


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
                    result = result or (server.receive({}) if server._exchange is not None else server.result)
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


def test_replies_in_another_party_s_name_do_not_count() -> None:
    terms = terms_of(secure_aggregation())
    members, server = parties(terms), SumServer(terms)
    server.open(BASE)
    for _ in range(2):
        server.receive({i: members[i].receive(request) for i, request in server.outgoing.items()})
    replies = {i: members[i].receive(request, **given()[i]) for i, request in server.outgoing.items()}
    replies[1] = replies[2]
    server.receive(replies)
    server.receive({i: members[i].receive(request) for i, request in server.outgoing.items()})
    check(server.result, [0, 2, 3, 4])
    assert isinstance(server.result.refusals[1], str)


def test_the_plan_says_what_no_model_means() -> None:
    assert "different models is not noticed" in str(terms_of(secure_aggregation(), base=False).plan)
    assert "different models is not noticed" not in str(terms_of(secure_aggregation()).plan)


def test_an_update_that_is_not_finite_never_reaches_the_sum() -> None:
    terms = terms_of(secure_aggregation(), max_void=2)
    bad = given()
    bad[4]["update"] = UPDATES[4] | {"w": UPDATES[4]["w"] * np.nan}
    with pytest.raises(RoundVoid):
        play(SumServer(terms), parties(terms), bad, base=BASE)
    with pytest.raises(MessageRefused):
        SumHelper(terms_of(InsecurePaillier(bits=512))).receive(b"x" * 60)


def test_epsilon_is_that_of_an_independent_accountant() -> None:
    """dp_accounting's privacy loss distributions, within .01."""
    defense = chain(clip(1.0), gaussian(1.1), secure_aggregation())
    terms = SumTerms.like(BASE, clients=CLIENTS, defense=defense, local=("seen",))
    for rounds in (1, 10, 100):
        accountant = pld.PLDAccountant()
        accountant.compose(dp_accounting.GaussianDpEvent(1.1), rounds)
        assert terms.epsilon_after(rounds) == pytest.approx(accountant.get_epsilon(1e-5), abs=0.01)


def test_an_adaptive_clip_learns_from_round_to_round_and_both_sides_plan_alike() -> None:
    defense = chain(adaptive_clip(0.5, initial=0.01), gaussian(0.1), secure_aggregation())
    terms = SumTerms.like(BASE, clients=CLIENTS, defense=defense, local=("seen",))
    members, server = parties(terms), SumServer(terms)
    mine = {i: {"update": UPDATES[i], "base": BASE} for i in range(CLIENTS)}
    norms = [play(server, members, mine, base=BASE).plan.learned[0] for _ in range(3)]
    assert norms[0] < norms[1] < norms[2]


@pytest.mark.parametrize("base", [True, False])
@pytest.mark.parametrize("how", ["void", "abandoned", "void, server restarted"])
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
        terms = terms_of(DEFENSES[name], bounds=64.0)
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


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("rounds", value) for value in (float("nan"), 2.5, "3", True, -1)],
        *[("max_void", value) for value in (float("inf"), float("nan"), 0, "8", None)],
        *[("epsilon", value) for value in (float("nan"), "1", 0.0)],
        *[("base", value) for value in ("no", 0, None)],
        *[("differences", "no"), ("weighted", "no"), ("clients", "5"), ("cohort", 2.5), ("largest_weight", "1")],
        *[("metrics", 1), ("metrics", [["loss", "1"]]), ("local", [1]), ("no_such_key", 1)],
        *[("tensors/shape", value) for value in ([-1], "3", [2.5])],
        *[("tensors/bound", value) for value in ("1", None, float("nan"))],
        *[("tensors/ring", "64"), ("tensors/integer", "no"), ("tensors/name", 3), ("tensors/no_such_key", 1)],
        *[
            ("local", "seen"),
            ("metrics", "loss"),
            ("tensors", {}),
            ("defense/verify", "no"),
            ("defense/no_such_key", 1),
        ],
    ],
)
def test_terms_that_were_edited_by_hand_are_read_or_refused_by_name(field: str, value: Any) -> None:
    content = json.loads(private_terms(rounds=3, epsilon=1e3).to_bytes())
    assert SumTerms.from_bytes(json.dumps(content).encode()).digest == private_terms(rounds=3, epsilon=1e3).digest
    content["terms"]["largest_weight"] = 2**20  # an integer for a float: the same terms
    assert SumTerms.from_bytes(json.dumps(content).encode()).digest == private_terms(rounds=3, epsilon=1e3).digest
    place, _, key = field.rpartition("/")
    facts = content["terms"]
    {"": facts, "tensors": facts["tensors"][0], "defense": facts["defense"][-1]}[place][key] = value
    with pytest.raises((ConfigError, DataError)):
        SumTerms.from_bytes(json.dumps(content).encode())


def test_bytes_that_are_no_terms_are_refused_by_name() -> None:
    for data in (b"", b"\xff", b"null", b"[" * 100_000, b'{"format": 1}'):
        with pytest.raises(DataError):
            SumTerms.from_bytes(data)


@pytest.mark.parametrize(
    "settings",
    [
        {"bounds": 0.0},
        {"bounds": "3"},
        {"largest_weight": "x"},
        {"largest_weight": 1e308},
        {"local": "seen"},
        {"metrics": "loss"},
        {"clients": 2.5},
        {"rounds": 1.5},
    ],
)
def test_settings_of_another_type_are_named(settings: Any) -> None:
    with pytest.raises(ConfigError):
        SumTerms.like(BASE, **{"clients": 5} | settings)


def test_numpy_s_numbers_make_the_same_terms() -> None:
    ours = SumTerms.like(BASE, clients=5, rounds=2, bounds=3.0, metrics={"loss": 2.0})
    numpy_s = SumTerms.like(
        BASE, clients=np.int64(5), rounds=np.int32(2), bounds=np.float32(3), metrics={"loss": np.float32(2)}
    )
    assert SumTerms.from_bytes(numpy_s.to_bytes()).digest == ours.digest
    with pytest.raises(PlanError, match="at least 3"):
        SumTerms.like(BASE, clients=2, defense=secure_aggregation())


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
        assert np.asarray(value).dtype == np.asarray(example[name]).dtype
        assert isinstance(result.mean[name], np.ndarray)
        if name not in ("flags", "short", "half"):
            np.testing.assert_allclose(np.asarray(value, np.float64), expected, atol=1e-6)
    for narrow in (np.zeros(2, np.int8), torch.zeros(2, dtype=torch.int8)):
        with pytest.raises(DataError, match="int8"):
            replace(result, mean={"short": np.array([1.0, 128.0])}).like({"short": narrow})
        found = replace(result, mean={"short": np.array([-128.0, 127.0])}).like({"short": narrow})
        assert found["short"].tolist() == [-128, 127]
    with pytest.raises(DataError, match="uint64"):
        replace(result, mean={"n": np.array([2.0**64])}).like({"n": np.zeros(1, np.uint64)})


@pytest.mark.parametrize("change", [{"receiver": 1}, {"round": -1}, {"stage": "nonsense"}, {"body": {}}])
def test_a_stray_message_does_not_bind_a_client_to_its_run(change: Any, tmp_path) -> None:
    terms = terms_of(secure_aggregation())
    members, server = parties(terms), SumServer(terms)
    members[0] = SumClient(terms, 0, file=tmp_path / "client")
    request = Message.decode(unwrap(terms.digest, SumServer(terms).open(BASE)[0], SERVER))
    assert b"refusal" in members[0].receive(wrap(terms.digest, replace(request, **change).encode()))
    assert members[0].run is None
    members[0] = SumClient(terms, 0, file=tmp_path / "client")
    check(play(server, members, given(), base=BASE), range(CLIENTS))
    assert members[0].run == server.run


def test_a_server_that_dies_while_it_opens_a_sum_opens_the_same_sum_again(tmp_path) -> None:
    """Not one of the same updates over fewer clients, which subtracts: without identities no client would refuse it."""
    terms = terms_of(secure_aggregation(), base=False)
    members, server, mine = parties(terms), SumServer(terms, file=tmp_path / "server"), given(base=None)
    server.open()
    for _ in range(3):
        server.receive({i: members[i].receive(request, **mine[i]) for i, request in server.outgoing.items()})
    replies = {i: members[i].receive(request) for i, request in server.outgoing.items()}
    server._close_stage = lambda exchange: None  # type: ignore[method-assign] - killed after the sum, before its write
    server.receive(replies)
    server = SumServer(terms, file=tmp_path / "server")
    assert not server.outgoing
    assert server.result is not None
    check(server.result, range(CLIENTS))
    assert server.round == 1


def test_a_key_holder_answers_in_one_run_and_an_empty_name_is_none() -> None:
    terms = terms_of(InsecurePaillier(bits=512))
    helper = SumHelper(terms)

    def ask(run: str) -> bytes:
        return helper.receive(wrap(terms.digest, Message(run, 0, "key", SERVER, helper.party, {}).encode()))

    with pytest.raises(MessageRefused, match="names no run"):
        ask("")
    assert ask("first")  # the control
    for other in ("second", ""):
        with pytest.raises(MessageRefused):
            ask(other)
