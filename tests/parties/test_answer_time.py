"""Clients answer a request for their contribution when the terms say so (`answer_after`), on a hand clock."""

from __future__ import annotations

import random
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from flwr.serverapp.strategy import FedAvg

from securefed._runtime import absence
from securefed.defenses import secure_aggregation
from securefed.errors import ConfigError, LateAnswerWarning
from securefed.flower import SecureStrategy, secure_mod
from securefed.parties import SumClient, SumServer, SumTerms
from tests.flower import ordinary_app

CLIENTS, AFTER = 4, 30.0
BASE = {"w": np.zeros(3)}
PLAIN = SumTerms.like(BASE, clients=CLIENTS, defense=secure_aggregation(), max_void=1)
TERMS = replace(PLAIN, answer_after=AFTER)


class HandClock:
    """A clock that stands still but while somebody sleeps or works."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> HandClock:
    hand = HandClock()
    monkeypatch.setattr(absence, "time", hand)
    return hand


def round_of(terms: SumTerms, clock: HandClock, works: dict[int, float], fails: set[int], early: bool = False) -> Any:
    """Play a round; return the seconds that each client took for each stage."""
    clients, server = [SumClient(terms, i) for i in range(CLIENTS)], SumServer(terms)
    took: list[dict[int, float]] = []
    server.open(BASE)
    while server.result is None:
        replies: dict[int, bytes] = {}
        took.append({})
        for i, request in server.outgoing.items():
            arrived = clock.now

            def update(i: int = i) -> dict[str, Any]:
                clock.now += works[i]
                if i in fails:
                    raise ValueError("no rows")
                return {"w": np.ones(3)}

            if early and clients[i].wants_update(request):
                given: Any = update()
                replies[i] = clients[i].receive(request, given, base=BASE, arrived=arrived)
            else:
                replies[i] = clients[i].receive(request, update, base=BASE)
            took[-1][i] = clock.now - arrived
        try:
            server.receive(replies)
        except Exception:
            break
    return took


def test_all_clients_take_the_named_time_whatever_their_function_does(clock: HandClock) -> None:
    works = {0: 0.1, 1: 3.0, 2: 29.0, 3: 1.0}
    for fails, early in ((set(), False), ({0}, False), (set(), True)):
        took = round_of(TERMS, clock, works, fails, early)
        assert took[2] == pytest.approx(dict.fromkeys(range(CLIENTS), AFTER))
        assert all(seconds == 0 for stage in (*took[:2], *took[3:]) for seconds in stage.values())
        control = round_of(PLAIN, clock, works, fails, early)
        assert control[2] == pytest.approx(works)


@pytest.mark.parametrize("fails", [set(), {1}])
def test_a_client_that_takes_longer_says_so_to_its_own_site(clock: HandClock, fails: set[int]) -> None:
    with pytest.warns(LateAnswerWarning, match="client 1 answers 5 s later than the terms say, 30 s") as said:
        took = round_of(TERMS, clock, {0: 1.0, 1: 35.0, 2: 0.0, 3: 30.0}, fails)
    assert len(said) == 1
    assert took[2] == pytest.approx({0: AFTER, 1: 35.0, 2: AFTER, 3: AFTER})


def test_the_terms_carry_it_and_the_plan_declares_it() -> None:
    assert SumTerms.from_bytes(TERMS.to_bytes()) == TERMS
    assert TERMS.digest != PLAIN.digest
    assert b"answer_after" not in PLAIN.to_bytes()  # terms of before keep their digest
    assert "answers the request for its contribution 30 s after it arrived" in str(TERMS.plan)
    assert "after it arrived" not in str(PLAIN.plan)
    for wrong in (0, -1.0, np.inf, np.nan, 3601.0, "30", True):
        with pytest.raises(ConfigError, match="answer_after"):
            replace(PLAIN, answer_after=wrong)


def test_a_request_that_is_refused_or_cannot_be_answered_does_not_wait(clock: HandClock) -> None:
    clients, server = [SumClient(TERMS, i) for i in range(CLIENTS)], SumServer(TERMS)
    server.open(BASE)
    for _ in range(2):
        server.receive({i: clients[i].receive(request) for i, request in server.outgoing.items()})
    with pytest.raises(ConfigError, match="asks for the contribution"):
        clients[0].receive(server.outgoing[0], base=BASE)
    assert clock.now == 100.0


@pytest.mark.parametrize("failing", [None, 1])
def test_a_supernode_answers_after_the_time_of_the_terms(clock: HandClock, failing: int | None) -> None:
    def train(message: Any, context: Any) -> Any:
        number = int(context.node_config["partition-id"])
        clock.now += float(number)
        if number == failing:
            raise RuntimeError("no rows")
        return ordinary_app.train(message, context)

    grid = ordinary_app.grid(secure_mod, train=train)
    took: list[float] = []
    pull = grid.pull_messages

    def timed(numbers: Any) -> Any:
        out = []
        for number in list(numbers):
            message, begun = grid.inbox.get(number), clock.now
            out += pull([number])
            if message is not None and "arrays" in message.content:
                took.append(clock.now - begun)
        return out

    grid.pull_messages = timed  # type: ignore[method-assign]
    strategy = SecureStrategy(
        FedAvg(fraction_evaluate=0.0), secure_aggregation(), largest_weight=64, answer_after=AFTER, max_void=2,
        poll=0.001,
    )  # fmt: skip
    random.seed(1)
    with warnings.catch_warnings():
        warnings.simplefilter("error", LateAnswerWarning)
        try:
            strategy.start(grid, ordinary_app.initial(), 1, 60.0)
        except Exception as error:
            assert failing is not None and "sat out" in str(error)
    assert took == pytest.approx([AFTER] * len(took)) and len(took) == ordinary_app.CLIENTS * (
        1 if failing is None else 2
    )


def test_a_server_that_waits_too_short_is_told_before_the_first_round() -> None:
    strategy = SecureStrategy(
        FedAvg(fraction_evaluate=0.0), secure_aggregation(), largest_weight=64, answer_after=AFTER
    )
    with pytest.raises(ConfigError, match="clients answer after 30 s, and a timeout of 20 s ends before"):
        strategy.start(ordinary_app.grid(secure_mod), ordinary_app.initial(), 1, 20.0)
    with pytest.raises(ConfigError, match="answer_after"):
        SecureStrategy(FedAvg(fraction_evaluate=0.0), secure_aggregation(), largest_weight=64, answer_after=-1.0)
