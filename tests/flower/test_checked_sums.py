"""The SuperNodes of a `SecureStrategy` check every sum (`verify=True`), the last one of a run included."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from flwr.serverapp.strategy import FedAvg

from securefed import Seal
from securefed.defenses import Identities, chain, clip, new_identity, public_identity, secure_aggregation, skellam
from securefed.defenses._secure_aggregation import verification
from securefed.flower import SecureStrategy, SitePolicy, secure_mod
from securefed.flower._grid import to_record
from securefed.flower._outcome import UNVERIFIED
from securefed.flower._sum_messages import _DATA, SumRequest
from securefed.parties import SumResult, SumTerms
from tests.combinations import first_ones
from tests.flower import ordinary_app
from tests.flower.grid import LocalGrid
from tests.flower.ordinary_app import CLIENTS
from tests.flower.test_secure_strategy import run, secured

KEYS = [new_identity() for _ in range(CLIENTS)]
PUBLIC = {client: public_identity(key) for client, key in enumerate(KEYS)}
VERIFIED = secure_aggregation(identities=Identities(PUBLIC), verify=True)
ALL_CHECKED = f"{CLIENTS} of {CLIENTS} SuperNodes checked the last sum and found it right"
ANNOUNCE = verification.announce


def sites(**more: Any) -> LocalGrid:
    """SuperNodes whose sites pin identities."""
    grid = ordinary_app.grid()
    for party, place in enumerate(sorted(grid.nodes)):
        own = {name: value(party) for name, value in more.items()}
        policy = SitePolicy(party=party, identity=KEYS[party], identities=PUBLIC, **own)
        grid.nodes[place].app = ordinary_app.app(secure_mod(policy))
    return grid


def lying(total: Any, *more: Any) -> Any:
    return ANNOUNCE({name: np.full_like(values, 12345) for name, values in total.items()}, *more)


def asked(grid: LocalGrid, alter: Callable[[SumResult, SumTerms], SumResult | None]) -> None:
    """Let something alter the published results on their way; `None` loses them."""
    pull, published = grid.pull_messages, {}

    def altered(numbers: Any) -> Any:
        for number in list(numbers):
            content = grid.inbox[number].content if number in grid.inbox else {}
            if content and "result" in content["securefed.request"]:
                terms = SumTerms.from_bytes(bytes(content["securefed.terms"]["message"].data))
                result = alter(SumResult.from_bytes(bytes(content[_DATA]["message"].data), terms), terms)
                if result is None:
                    del grid.inbox[number]
                else:
                    content[_DATA] = to_record(result.to_bytes(terms))
                published[number] = True
        return pull(numbers)

    grid.pull_messages = altered  # type: ignore[method-assign]


@pytest.mark.parametrize("rounds", first_ones([2, 1]))
def test_the_last_sum_of_each_phase_is_checked_by_all_its_clients(rounds: int, caplog: Any) -> None:
    strategy, grid = secured(FedAvg(), VERIFIED), sites()
    with caplog.at_level(logging.INFO, "securefed.flower"):
        run(strategy, grid, rounds)
    assert strategy.checked == f"train: {ALL_CHECKED}; evaluate: {ALL_CHECKED}"
    at_sites = [line for line in caplog.messages if f"the result of round {rounds} was checked" in line]
    assert len(at_sites) == 2 * CLIENTS
    run(strategy, grid, 1)  # a strategy that is started again goes on
    assert strategy.checked == f"train: {ALL_CHECKED}; evaluate: {ALL_CHECKED}"


@pytest.mark.parametrize("rounds", first_ones([2, 1]))
def test_a_server_that_lies_about_the_last_sum_is_refused(rounds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    strategy, grid = secured(FedAvg(fraction_evaluate=0.0), VERIFIED), sites()
    count = 0

    def announce(*given: Any) -> Any:
        nonlocal count
        count += 1
        return lying(*given) if count == rounds else ANNOUNCE(*given)

    monkeypatch.setattr(verification, "announce", announce)
    run(strategy, grid, rounds)
    assert count == rounds
    assert f"0 of {CLIENTS} SuperNodes checked" in strategy.checked
    assert "is not that of the contributions" in strategy.checked


LIES = {
    "the mean": lambda result, terms: replace(result, mean={name: value + 1e-3 for name, value in result.mean.items()}),
    "the weight": lambda result, terms: replace(result, weight=result.weight + 1),
    "the survivors": lambda result, terms: replace(result, survivors=result.survivors[:-1]),
    "another round": lambda result, terms: replace(result, round=result.round - 1),
    "no announced sum": lambda result, terms: replace(result, announced=b""),
    "no message": lambda result, terms: None,
}


@pytest.mark.parametrize("lie", LIES)
def test_a_published_result_that_does_not_follow_from_the_sum_is_refused(lie: str) -> None:
    strategy, grid = secured(FedAvg(fraction_evaluate=0.0), VERIFIED), sites()
    asked(grid, lambda result, terms: result)  # the control
    run(strategy, grid, 1)
    assert strategy.checked == f"train: {ALL_CHECKED}"
    strategy, grid = secured(FedAvg(fraction_evaluate=0.0), VERIFIED), sites()
    asked(grid, LIES[lie])
    run(strategy, grid, 1)
    assert strategy.checked.startswith(f"train: 0 of {CLIENTS} SuperNodes checked")
    assert ("no answer" in strategy.checked) == (lie == "no message")


def test_a_client_that_was_not_in_the_sum_is_not_asked_and_one_that_is_gone_is_named() -> None:
    strategy, grid = secured(FedAvg(fraction_evaluate=0.0), VERIFIED), sites()
    places = sorted(grid.nodes)
    grid.lose = lambda message: message.metadata.dst_node_id == places[0] and "arrays" in message.content
    run(strategy, grid, 1)
    assert f"{CLIENTS - 1} of {CLIENTS - 1} SuperNodes checked" in strategy.checked
    strategy, grid = secured(FedAvg(fraction_evaluate=0.0), VERIFIED), sites()
    grid.lose = lambda message: (
        message.metadata.dst_node_id == places[1] and "result" in message.content["securefed.request"]
    )
    run(strategy, grid, 1)
    assert (
        f"{CLIENTS - 1} of {CLIENTS} SuperNodes" in strategy.checked and f"{places[1]}: no answer" in strategy.checked
    )


def test_without_verify_and_after_a_void_round_the_strategy_says_that_nothing_was_checked() -> None:
    strategy = secured(FedAvg())
    assert strategy.checked == ""
    run(strategy, ordinary_app.grid(secure_mod), 1)
    assert strategy.checked == UNVERIFIED
    strategy, grid = secured(FedAvg(fraction_evaluate=0.0), VERIFIED, max_void=1), sites()
    grid.lose = lambda message: "arrays" in message.content and message.content["config"]["server-round"] == 2
    run(strategy, grid, 2)
    assert "train: the last round was void" in strategy.checked


def test_differences_are_checked_with_the_model_that_they_were_taken_from() -> None:
    defense = chain(clip(1.0), skellam(1.0), VERIFIED)
    strategy = SecureStrategy(FedAvg(fraction_evaluate=0.0), defense, local=("seen",), poll=0.001, patience=0.05)
    run(strategy, sites(), 2)
    assert strategy.checked == f"train: {ALL_CHECKED}"


def test_a_site_with_a_folder_checks_in_a_later_process(tmp_path: Any) -> None:
    grid = sites(folder=lambda party: tmp_path / str(party), seal=lambda party: Seal(bytes(32)))
    strategy = secured(FedAvg(fraction_evaluate=0.0), VERIFIED)
    run(strategy, grid, 1)
    assert strategy.checked == f"train: {ALL_CHECKED}"


def test_a_result_is_no_request_of_an_ordinary_stage() -> None:
    """A client that has answered nothing yet has nothing to check, and its app is not called."""
    grid, strategy = sites(), secured(FedAvg(fraction_evaluate=0.0), VERIFIED)
    run(strategy, grid, 1)
    for node in grid.nodes.values():
        node.begin({})
    assert strategy._secured is not None
    strategy._secured.end()
    assert "holds no key of a sum" in strategy.checked
    assert not any("calls" in node.context.state for node in grid.nodes.values())
    assert SumRequest(0, publishes=False).publishes is False


def test_a_link_that_fails_at_the_end_costs_the_check_and_not_the_result() -> None:
    strategy, grid = secured(FedAvg(fraction_evaluate=0.0), VERIFIED), sites()
    push = grid.push_messages

    def pushed(messages: Any) -> Any:
        sent = list(messages)
        if any("result" in message.content.config_records.get("securefed.request", {}) for message in sent):
            raise ConnectionError("the SuperLink is gone")
        return push(sent)

    grid.push_messages = pushed  # type: ignore[method-assign]
    result = run(strategy, grid, 1)
    assert result.arrays is not None
    assert "no client checked it: ConnectionError('the SuperLink is gone')" in strategy.checked
