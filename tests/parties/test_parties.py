from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from securefed._runtime.exchange_context import tensors_digest
from securefed.defenses import (
    secure_aggregation,
)
from securefed.errors import (
    ConfigError,
    DataError,
    RoundVoid,
)
from securefed.parties import SumServer, SumTerms
from securefed.parties._node import base_array
from tests.combinations import each_value
from tests.parties.helpers import play
from tests.parties.sums import (
    BASE,
    CLIENTS,
    COARSE,
    DEFENSES,
    IDENTITIES,
    UPDATES,
    check,
    given,
    parties,
    terms_of,
)


@pytest.mark.parametrize("name", DEFENSES)
def test_three_rounds_give_the_weighted_means_and_sums(name: str) -> None:
    terms = terms_of(DEFENSES[name], **(COARSE if name == "ckks" else {}))
    members, server = parties(terms), SumServer(terms)
    for number in range(3):
        result = play(server, members, given(), base=BASE)
        check(result, range(CLIENTS), 1e-6 if name == "ckks" else 1e-7)
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


@pytest.mark.parametrize(("name", "stage"), each_value(["masks", "masks, active"], range(4)))
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
    """Each round has a model of its own. Without one the sums would subtract, and with identities clients refuse."""
    for bound in (True, False):
        terms = terms_of(secure_aggregation(threshold=3, identities=identities), base=bound)
        members, server = parties(terms), SumServer(terms)
        for number, cohort in enumerate(((0, 1, 2), (1, 2, 3, 4), (0, 1, 2, 3, 4))):
            model = {name: value + number for name, value in BASE.items()} if bound else None
            opened = {} if model is None else {"base": model}
            if number == 1 and not bound and identities is not None:  # it would tell client 0 from 1 and 2
                with pytest.raises(RoundVoid, match="tell 1 clients apart"):
                    play(server, members, given(base=model), cohort=cohort, **opened)
                continue
            check(play(server, members, given(base=model), cohort=cohort, **opened), cohort)


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
        requests, exchange = dict(server.outgoing), server._sums.exchange
        assert exchange is not None
        if exchange.stage == "upload":
            honest = exchange.content
            exchange.content = replace(honest, broadcast={"base": base_array(tensors_digest(lie))})
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


def test_a_torch_loop_with_batch_norm_adam_and_short_floats_keeps_its_types() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 3))
    model[2].weight = torch.nn.Parameter(model[2].weight.to(torch.bfloat16))  # type: ignore[assignment]
    model[2].bias = torch.nn.Parameter(model[2].bias.half())  # type: ignore[assignment]
    model[0].bias.requires_grad_(False)
    state = model.state_dict()
    state["tied"] = state["0.weight"]
    terms = SumTerms.like(state, clients=3, defense=secure_aggregation(), largest_weight=10, local=("*.running_*",))
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
        ({"update": torch.nn.Linear(2, 3)}, ConfigError, r"update is a Linear; .*net\.state_dict\(\)"),
        ({"base": torch.nn.Linear(2, 3)}, ConfigError, r"base is a Linear; .*net\.state_dict\(\)"),
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


def test_what_is_no_message_and_no_example_is_named() -> None:
    terms = terms_of(secure_aggregation())
    server = SumServer(terms)
    server.open(BASE)
    with pytest.raises(ConfigError, match="bytes by party number"):
        server.receive([b""])  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="a message is bytes"):
        parties(terms)[0].receive(None)
    with pytest.raises(ConfigError, match=r"by name, such as net\.state_dict"):
        SumTerms.like(torch.nn.Linear(2, 3), clients=3, defense=secure_aggregation())  # type: ignore[arg-type]


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
